"use strict";

// Copy buttons, and tool tips that come at once; without this script the page reads the same.

function copied(code) {
  if (navigator.clipboard && window.isSecureContext) {
    return navigator.clipboard.writeText(code.textContent).then(() => true, () => selected(code));
  }
  return Promise.resolve(selected(code));
}

function selected(code) {
  getSelection().selectAllChildren(code);
  return document.execCommand("copy");
}

for (const button of document.querySelectorAll(".settings button")) {
  const code = button.closest(".settings").querySelector("code");
  button.hidden = false;
  button.addEventListener("click", async () => {
    const done = await copied(code);
    button.textContent = done ? "Copied" : "Selected: copy it";
    document.getElementById("said").textContent = button.textContent;
    setTimeout(() => { button.textContent = "Copy"; }, 2500);
  });
}

const tip = document.getElementById("tip");

for (const title of document.querySelectorAll(".mark > title, .track title")) {
  const mark = title.parentNode;
  mark.dataset.tip = title.textContent;
  title.remove();
}

document.addEventListener("pointerover", (event) => {
  const mark = event.target.closest("[data-tip]");
  tip.hidden = !mark;
  if (!mark) return;
  tip.textContent = mark.dataset.tip;
  const dot = (mark.querySelector(".mark") || mark).getBoundingClientRect();
  const left = Math.min(dot.left + dot.width / 2, innerWidth - tip.offsetWidth - 8);
  const top = dot.top - tip.offsetHeight - 8;
  tip.style.left = `${Math.max(8, left) + scrollX}px`;
  tip.style.top = `${(top < 0 ? dot.bottom + 8 : top) + scrollY}px`;
});

addEventListener("beforeprint", () => {
  for (const details of document.querySelectorAll("details")) details.open = true;
});
