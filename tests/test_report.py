"""The report of a tuning run: what it says, that it says it safely, and how it looks in a browser."""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import dataclass, field, replace
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import pytest
import tuned_examples
from report_browser import CHROMIUM, open_in_browser
from tuned_examples import ALL, HOSTILE

from slipstream.errors import InputError
from slipstream.lab.report import write
from slipstream.lab.report.page import render
from slipstream.lab.tuned import CostPoint, Tuned, Verdict

VOID = {"meta", "link", "col", "line", "circle", "path", "br"}
EVERY = pytest.mark.parametrize("name", ALL)


@dataclass
class Element:
    tag: str
    attributes: dict[str, str]
    text: str = ""


@dataclass
class Page(HTMLParser):
    """A page's elements in order, each with all text within; fails on tags that do not nest."""

    elements: list[Element] = field(default_factory=list)
    opened: list[Element] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        element = Element(tag, {name: value or "" for name, value in attrs})
        self.elements.append(element)
        if tag not in VOID:
            self.opened.append(element)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(Element(tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert self.opened and self.opened[-1].tag == tag, f"</{tag}> closes {self.opened[-1:]}"
        self.opened.pop()

    def handle_data(self, data: str) -> None:
        for element in self.opened:
            element.text += data

    def all(self, tag: str, **attributes: str) -> list[Element]:
        wanted = {name.rstrip("_"): value for name, value in attributes.items()}.items()
        return [e for e in self.elements if e.tag == tag and all(e.attributes.get(k) == v for k, v in wanted)]

    @property
    def words(self) -> str:
        """All text of the body but the script's, with single spaces."""
        body, script = self.all("body")[0], self.all("script")[0]
        return " ".join(body.text.removesuffix(script.text).split())


def parse(source: str) -> Page:
    page = Page()
    page.feed(source)
    page.close()
    assert not page.opened
    return page


def report(tuned: Tuned) -> Page:
    return parse(render(tuned))


def cleaned(text: str) -> str:
    """As the page shows it: without colours of a terminal, what cannot be shown replaced."""
    return re.sub("[\x00-\x08\x0b-\x1f\u202a-\u202e]", "\ufffd", text.replace("\x1b[31m", ""))


@EVERY
def test_every_engine_arm_and_setting_appears(name: str) -> None:
    page = report(ALL[name])
    for engine in ALL[name].engines:
        assert cleaned(engine.name) in page.words and cleaned(engine.version) in page.words
        rows = [row.text for row in page.all("th", role="rowheader")]
        for arm in engine.arms:
            assert any(" ".join(cleaned(arm.arm).split()) in " ".join(row.split()) for row in rows)
        codes = [code.text for code in page.all("code")]
        assert all(cleaned(written.text) in codes for written in engine.settings)


@EVERY
def test_the_page_fetches_nothing(name: str) -> None:
    page = report(ALL[name])
    for element in page.elements:
        for attribute in ("href", "src", "srcset", "action", "data", "poster"):
            link = element.attributes.get(attribute, "#")
            assert link.startswith("#") or link == "data:,", element
    inline = page.all("style")[0].text + page.all("script")[0].text
    assert not re.search(r"url\(|@import|https?:|fetch\(|XMLHttp|import\(", inline)


@EVERY
def test_identifiers_are_unique_and_references_lead_somewhere(name: str) -> None:
    page = report(ALL[name])
    identifiers = [element.attributes["id"] for element in page.elements if "id" in element.attributes]
    assert len(identifiers) == len(set(identifiers))
    for element in page.elements:
        for reference in element.attributes.get("aria-labelledby", "").split():
            assert reference in identifiers
        if element.tag == "a":
            assert element.attributes["href"].removeprefix("#") in identifiers


@EVERY
def test_headings_descend_by_one_level_and_drawings_are_named(name: str) -> None:
    page = report(ALL[name])
    levels = [int(element.tag[1]) for element in page.elements if re.fullmatch("h[1-6]", element.tag)]
    assert levels[0] == 1 and all(b - a <= 1 for a, b in pairwise(levels))
    for drawing in page.all("svg", role="img"):
        assert drawing.attributes.get("aria-label") or drawing.attributes.get("aria-labelledby")
    assert len(page.all("caption")) == len(page.all("table"))


def test_hostile_texts_stay_texts() -> None:
    page, harmless = report(ALL["hostile"]), report(ALL["clear_win"])
    assert {element.tag for element in page.elements} <= {element.tag for element in harmless.elements}
    names = {name for element in harmless.elements for name in element.attributes}
    assert {name for element in page.elements for name in element.attributes} <= names
    assert "alert" not in page.all("script")[0].text and len(page.all("script")) == 1
    assert cleaned(HOSTILE) in page.words and "49" not in page.all("h1")[0].text


def test_only_the_script_of_the_page_may_run() -> None:
    page = report(ALL["clear_win"])
    policy = page.all("meta", **{"http-equiv": "Content-Security-Policy"})[0].attributes["content"]
    digest = base64.b64encode(hashlib.sha256(page.all("script")[0].text.encode()).digest()).decode()
    assert policy.startswith("default-src 'none'") and f"script-src 'sha256-{digest}'" in policy


def test_a_win_is_told_with_its_factor_and_interval() -> None:
    card = report(ALL["clear_win"]).all("article")[0]
    words = " ".join(card.text.split())
    assert card.attributes["class"] == "card use"
    assert "Use ngram-mod n 16 1.24× [1.19–1.30] the speed of plain decoding" in words
    assert "54.1 tokens/s; plain decoding 43.6 tokens/s." in words
    assert "Hint: Acceptance is 71 %" in words


def test_leaving_it_off_is_told_with_the_reason() -> None:
    card = report(ALL["off"]).all("article")[0]
    assert card.attributes["class"] == "card off"
    words = " ".join(card.text.split())
    assert "Leave speculation off Plain decoding: 170 tokens/s. suffix is 0.97 [0.93–1.02] times" in words
    assert "Verification is too dear on this hardware" in words


def test_an_undecided_run_says_so() -> None:
    words = " ".join(report(ALL["undecided"]).all("article")[0].text.split())
    assert "1 request at a time, 2 of 36 prompts measured open Undecided Plain decoding: 43.6 tokens/s." in words
    assert "tokens/s. ngram-simple is 1.02 [0.71–1.46] times as fast" in words


def test_a_category_has_its_own_verdict() -> None:
    said = [" ".join(p.text.split()) for p in report(ALL["clear_win"]).all("p", class_="decision")]
    assert said[0] == "off Acceptance too low: 34 %."
    assert "on Use ngram-mod n 16 1.31× [1.18–1.47]" in said


def test_an_arm_that_failed_shows_its_last_lines_and_one_that_parted_where() -> None:
    page = report(ALL["clear_win"])
    assert "tensor 'blk.0.attn_q.weight' has wrong shape" in page.all("pre")[2].text
    assert "Without a speed-up to draw: draft-eagle3 n 3." in page.words
    assert "2 of 144 greedy answers compared parted from plain decoding’s text: ngram-mod n 64 (2 of 36)." in page.words
    items = [" ".join(item.text.split()) for item in page.all("li")]
    assert {"edit-3 after 112 characters", "chat-1 after 9 characters"} <= set(items)
    assert "36 of 36" in page.words


def test_categories_of_which_nothing_is_known_share_a_sentence() -> None:
    engine = ALL["undecided"].engines[0]
    little = {"chat": Verdict(None, None, "One prompt alone."), "code": Verdict(None, None, "One prompt alone.")}
    words = report(replace(ALL["undecided"], engines=(replace(engine, by_category=little),))).words
    assert "chat and code: One prompt alone." in words
    assert "edit, summary, maths and json: No arm has a speed-up there." in words


def test_an_arm_that_was_never_run_does_not_count_as_dropped() -> None:
    never = replace(tuned_examples.failed("ngram-mod", "not run: no draft"), state="dropped")
    engine = replace(ALL["off"].engines[0], arms=(never,))
    assert "not measured not run: no draft" in report(replace(ALL["off"], engines=(engine,))).words


def test_provenance_is_complete() -> None:
    page = report(ALL["clear_win"])
    facts = dict(zip([dt.text for dt in page.all("dt")], [dd.text for dd in page.all("dd")], strict=True))
    assert " ".join(facts["Prompts given"].split()).startswith("36 prompts of 6 categories: chat 6, code 6")
    assert facts["Machine"] == "2 × AMD EPYC 7003 (AVX2), 24 GiB, no GPU"
    assert facts["Begun"] == "2026-11-30 01:51 UTC"
    assert " ".join(facts["Measured for"].split()) == "9 min 43 s"
    assert " ".join(facts["Answers"].split()) == "greedy, 128 tokens at most"
    assert (facts["slipstream"], facts["llama.cpp"]) == ("0.2.0", "b11549")
    assert ALL["clear_win"].command in [code.text for code in page.all("code")]


def test_what_is_not_known_is_said_in_a_sentence_and_not_drawn() -> None:
    page = report(ALL["nothing_known"])
    assert not page.all("svg", role="img")
    for sentence in (
        "Settings to copy: none were written.",
        "Speed-up, acceptance, course of time: no arm was measured.",
        "No answer was compared with plain decoding’s text.",
    ):
        assert sentence in page.words
    assert not re.search(r"\b(nan|inf|None)\b", page.words)
    assert "No engine was measured" in report(ALL["no_engine"]).words


def test_each_thing_that_is_not_drawn_has_its_reason() -> None:
    bare = replace(tuned_examples.arm("ngram", 1.1, rates=()), survival=(), timeline=None, samples=())
    engine = replace(ALL["off"].engines[0], arms=(bare,), settings=())
    page = report(replace(ALL["off"], engines=(engine,)))
    assert page.words.count("Not shown") == 1
    for sentence in (
        "Settings to copy: none were written.",
        "Acceptance by position: vllm does not count it, or no draft had two tokens.",
        "An answer as it came: of several requests at a time none is drawn.",
        "Acceptance of each answer: vllm does not count it by request, or nothing was drafted.",
    ):
        assert sentence in page.words
    headings = [" ".join(heading.text.split()) for heading in page.all("h3")]
    assert "Over time" not in headings and "Settings to copy" not in headings


def test_where_nothing_was_decided_the_arm_that_was_measured_most_is_drawn_over_time() -> None:
    few, many = tuned_examples.arm("few", 1.3), tuned_examples.arm("many", 1.1)
    few = replace(few, samples=few.samples[:2])
    engine = replace(ALL["undecided"].engines[0], arms=(few, many))
    words = report(replace(ALL["undecided"], engines=(engine,))).words
    assert "a mark for each answer of many." in words


def test_all_arms_are_in_the_order_of_their_speed_behind_the_chosen() -> None:
    rows = [" ".join(row.text.split()) for row in report(ALL["clear_win"]).all("th", role="rowheader")]
    assert rows[-5:] == [
        "ngram-mod n 16 chosen",
        "ngram-mod n 64",
        "draft-simple n 2 + ngram-simple",
        "draft-simple n 4 p 0.75",
        "draft-eagle3 n 3",
    ]


def test_measurements_that_count_in_no_speed_up_are_told() -> None:
    said = "7 of 144 measurements of arms count in no speed-up: plain decoding before and after hardly agreed."
    assert said in report(ALL["clear_win"]).words and "count in no speed-up" not in report(ALL["off"]).words


def test_prompts_that_no_time_was_left_for_are_told_from_those_measured() -> None:
    best = ALL["clear_win"].engines[0]
    engine = replace(best, prompts={"chat": 6, "code": 2})
    page = report(replace(ALL["clear_win"], engines=(engine,)))
    headings = [" ".join(heading.text.split()) for heading in page.all("h2") + page.all("h4")]
    assert "llama.cpp b11549 1 request at a time, 8 of 36 prompts measured" in headings
    assert {"chat 6 prompts", "code 2 of 6 prompts measured", "edit 0 of 6 prompts measured"} <= set(headings)
    assert "36 prompts of 6 categories given" in page.words


def test_the_own_engine_without_a_cost_curve_is_told_apart() -> None:
    words = report(replace(tuned_examples.several_engines(), cost=())).words
    assert words.count("What a wider pass costs: not measured.") == words.count("What a wider pass costs") == 1
    assert "wider pass" not in report(ALL["off"]).words


def test_of_many_arms_the_slow_ones_are_folded_away_but_never_the_chosen() -> None:
    engine = ALL["many_arms"].engines[0]
    slowest = replace(engine, verdict=replace(engine.verdict, arm=engine.arms[0].arm))
    page = report(replace(ALL["many_arms"], engines=(slowest,)))
    shown, folded = (table.text for table in page.all("table", class_="whiskers")[:2])
    assert "chosen" in shown and "chosen" not in folded
    assert (shown.count("the speed of plain decoding"), folded.count("the speed of plain decoding")) == (9, 31)


def test_a_cost_curve_of_many_contexts_shows_some_and_the_longest() -> None:
    cost = tuple(CostPoint(w, n, 1 + w / 10) for n in range(256, 256 * 21, 256) for w in (1, 2, 4))
    names = [" ".join(item.text.split()) for item in report(replace(ALL["off"], cost=cost)).all("li")]
    assert sum(name.startswith("context of") for name in names) == 6
    assert "context of 5,120 tokens" in names


def test_a_report_replaces_the_one_before_and_a_lone_surrogate_does_no_harm(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text("old", encoding="utf-8")
    write(replace(ALL["clear_win"], model="m\ud800"), path)
    assert parse(path.read_text(encoding="utf-8")).all("h1")[0].text == "m?"


def test_a_folder_that_is_not_there_is_an_error_for_a_person(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be written"):
        write(ALL["off"], tmp_path / "missing" / "report.html")


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_colours_stand_out_from_their_background(scheme: int) -> None:
    style = report(ALL["no_engine"]).all("style")[0].text
    colours = dict(re.findall(r"--([a-z0-9]+): (#[0-9a-f]{6})", style.split(":root {")[1 + scheme]))
    for name in ("ink", "soft", "accent", "good", "bad", "open", "unsure"):
        assert min(contrast(colours[name], colours[behind]) for behind in ("paper", "card", "chosen")) >= 4.5, name
    for name in ("s0", "s1", "s2", "s3", "s4", "s5", "strong"):
        assert contrast(colours[name], colours["paper"]) >= 3.0, name


def contrast(a: str, b: str) -> float:
    """WCAG 2's contrast ratio."""
    light, dark = sorted((luminance(a), luminance(b)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium here")
def test_in_a_browser_nothing_overflows_all_charts_have_marks_and_no_error_is_logged(tmp_path: Path) -> None:
    found, console = open_in_browser({name: render(tuned) for name, tuned in ALL.items()}, (390, 1180), tmp_path)
    assert not console
    assert len(found) == 2 * len(ALL)
    for page in found:
        assert page["overflow"] <= 0, page["name"]
        assert all(chart["seen"] > 0 and chart["outside"] == 0 for chart in page["charts"]), page["name"]
        assert page["tip"] == (True if page["charts"] else None), page["name"]
        assert set(page["buttons"]) <= {"Copied", "Selected: copy it"}, page["name"]
    assert {page["name"]: len(page["charts"]) for page in found}["clear_win 390"] > 30
