"""A headless browser that opens reports in frames of given widths and tells what it sees."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--enable-logging=stderr")

LOOK = """
const seen = (element) => { const box = element.getBoundingClientRect(); return box.width > 2 && box.height > 2; };

function within(mark, chart) {
  const [inner, outer] = [mark.getBoundingClientRect(), chart.getBoundingClientRect()];
  const [x, y] = [inner.left + inner.width / 2, inner.top + inner.height / 2];
  return x > outer.left - 1 && x < outer.right + 1 && y > outer.top - 1 && y < outer.bottom + 1;
}

function look(frame) {
  const page = frame.contentDocument;
  const tip = page.getElementById("tip");
  for (const details of page.querySelectorAll("details")) details.open = true;
  const charts = [...page.querySelectorAll("svg[role=img]")].map((chart) => {
    const marks = [...chart.querySelectorAll(".mark path, circle.mark")];
    return { seen: marks.filter(seen).length, outside: marks.filter((mark) => !within(mark, chart)).length };
  });
  const mark = page.querySelector("[data-tip]");
  mark?.dispatchEvent(new PointerEvent("pointerover", { bubbles: true }));
  for (const button of page.querySelectorAll(".settings button")) button.click();
  return {
    name: frame.title,
    overflow: page.documentElement.scrollWidth - page.documentElement.clientWidth,
    charts,
    tip: mark ? tip.textContent === mark.dataset.tip && seen(tip) : null,
  };
}

addEventListener("load", () => {
  const frames = [...document.querySelectorAll("iframe")];
  const found = frames.map(look);
  setTimeout(() => {
    frames.forEach((frame, i) => {
      const buttons = [...frame.contentDocument.querySelectorAll(".settings button")];
      found[i].buttons = buttons.map((button) => seen(button) ? button.textContent : "");
    });
    document.getElementById("found").textContent = JSON.stringify(found);
  }, 500);
});
"""


def open_in_browser(
    pages: Mapping[str, str], widths: Sequence[int], folder: Path
) -> tuple[list[dict[str, Any]], list[str]]:
    """What each page looks like at each width, and the lines of the console."""
    frames = [
        f'<iframe title="{name} {width}" width="{width}" height="900" srcdoc="{html.escape(page)}"></iframe>'
        for name, page in pages.items()
        for width in widths
    ]
    outer = folder / "frames.html"
    body = f"{''.join(frames)}<pre id=found></pre><script>{LOOK}</script>"
    outer.write_text(f"<!DOCTYPE html><meta charset=utf-8>{body}", encoding="utf-8", errors="replace")
    command = [str(CHROMIUM), *FLAGS, f"--user-data-dir={folder / 'profile'}", "--virtual-time-budget=5000"]
    done = subprocess.run(
        [*command, "--dump-dom", outer.as_uri()], capture_output=True, text=True, timeout=120, check=True
    )
    found = re.search(r'<pre id="found">(.*?)</pre>', done.stdout, re.DOTALL)
    assert found and found[1], done.stderr[-2000:]
    return json.loads(html.unescape(found[1])), [line for line in done.stderr.splitlines() if "CONSOLE" in line]
