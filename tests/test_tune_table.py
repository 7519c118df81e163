"""What `slipstream tune` says at its end."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tuned_examples import ALL, arm

from slipstream.cli.tune_table import show
from slipstream.lab.tuned import EngineResult, Ratio, Tuned, Verdict


def said(tuned: Tuned, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, columns: int = 120) -> str:
    monkeypatch.setenv("COLUMNS", str(columns))
    show(tuned)
    return capsys.readouterr().out


def of(engine: EngineResult, **changes: object) -> Tuned:
    return replace(ALL["clear_win"], engines=(replace(engine, **changes),))


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("clear_win", "llama.cpp b11549: use ngram-mod n 16, 1.24 [1.19–1.30] × plain decoding. Its interval lies"),
        ("off", "vllm 0.33.0, 4 requests at once: leave it off. suffix is 0.97 [0.93–1.02] times as fast"),
        ("undecided", "llama.cpp b11549: undecided. ngram-simple is 1.02 [0.71–1.46] times as fast"),
    ],
)
def test_the_answer_is_said_once_and_then_the_reason(name, line, capsys, monkeypatch):
    out = said(ALL[name], capsys, monkeypatch)
    assert line in out and out.lower().count(line.partition(": ")[2].partition(". ")[0].lower()) == 1


def test_categories_have_answers_of_their_own(capsys, monkeypatch):
    out = said(ALL["clear_win"], capsys, monkeypatch)
    assert "  chat: leave it off\n" in out and "  maths: undecided\n" in out
    assert "  code: use ngram-mod n 16, 1.31 [1.18–1.47] × plain decoding\n" in out


def test_the_title_has_the_speed_of_plain_decoding_and_the_prompts_that_were_measured(capsys, monkeypatch):
    first = said(ALL["clear_win"], capsys, monkeypatch).splitlines()[0]
    assert first.strip() == "llama.cpp b11549, plain decoding 43.6 tokens/s"
    few = said(ALL["undecided"], capsys, monkeypatch)
    assert "llama.cpp b11549, plain decoding 43.6 tokens/s, 2 of 36 prompts measured" in few


def test_the_judged_setting_stands_first_and_drafts_that_were_not_made_are_told(capsys, monkeypatch):
    arms = (arm("better where it was chosen", 1.4), replace(arm("judged", 1.1), judged=True), arm("idle", 1.0))
    arms = (*arms[:2], replace(arms[2], n_drafted=0, acceptance_rate=None))
    lines = said(of(ALL["clear_win"].engines[0], arms=arms), capsys, monkeypatch).splitlines()
    first, second, third = [line for line in lines if " 43.6 " in line and "plain decoding" not in line]
    assert first.startswith("judged ") and first.rstrip().endswith("judged") and second.startswith("better")
    assert third.startswith("idle") and "none made" in third


def test_prompts_that_plain_decoding_repeats_itself_on_are_told(capsys, monkeypatch):
    assert "  2 of 36 prompts: plain decoding repeats itself" in said(ALL["clear_win"], capsys, monkeypatch)


def test_measurements_that_do_not_count_are_told(capsys, monkeypatch):
    said_of = "  7 of 144 measurements do not count: plain decoding before and after them hardly agreed.\n"
    assert said_of in said(ALL["clear_win"], capsys, monkeypatch)
    assert "do not count" not in said(ALL["off"], capsys, monkeypatch)


def test_plain_decoding_has_its_speed_though_no_setting_was_measured(capsys, monkeypatch):
    never = replace(
        arm("ngram", 1.0, state="dropped"), overall=None, tokens_per_s=None, plain_tokens_per_s=None, n_compared=0
    )
    verdict = Verdict(None, None, "The budget was too small to measure any setting.")
    out = said(of(ALL["undecided"].engines[0], arms=(never,), verdict=verdict), capsys, monkeypatch)
    assert "plain decoding 43.6 tokens/s" in out and "not measured" in out and "dropped" not in out


def test_a_long_name_is_never_cut_off(capsys, monkeypatch):
    name = "draft-simple n 16 p 0.75 + ngram-map-k4v n 16"
    best = arm(name, 1.24)
    out = said(of(ALL["clear_win"].engines[0], arms=(best,)), capsys, monkeypatch, columns=80)
    table = out.partition("llama.cpp b11549: ")[0]
    assert "…" not in table and all(word in table for word in name.split()) and "[1.19" not in table


def test_a_bound_that_says_nothing_is_called_many(capsys, monkeypatch):
    wild = replace(arm("ngram", 1.0), overall=Ratio(1.3, 0.01, 5e21, 2))
    assert "0.01–many" in said(of(ALL["undecided"].engines[0], arms=(wild,)), capsys, monkeypatch)


def test_names_cannot_steer_the_terminal(capsys, monkeypatch):
    out = said(ALL["hostile"], capsys, monkeypatch)
    assert "\x1b" not in out and "\u202e" not in out and "\\x1b" in out
