"""Tokens become text: whole characters, and nothing of a stop string."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.text import Piece, TextStream


def feed(stream: TextStream, tokens: list[bytes]) -> list[str]:
    return ["".join(p.text for p in stream.push(t, False)) for t in tokens]


def test_a_character_over_several_tokens_comes_whole():
    data = "猫🐈".encode()
    assert feed(TextStream(), [data[:2], data[2:4], data[4:6], data[6:]]) == ["", "猫", "", "🐈"]


def test_broken_bytes_at_the_end_show_as_replacement_character():
    stream = TextStream()
    assert feed(stream, [b"a\xe7\x8c"]) == ["a"]
    assert stream.finish() == [Piece("�", False)]


def test_a_stop_string_across_tokens_is_never_shown():
    stream = TextStream(["STOP"])
    assert feed(stream, [b"one S", b"T", b"O", b"P two"]) == ["one ", "", "", ""]
    assert stream.stopped and stream.finish() == []
    assert stream.push(b"more", False) == []


def test_text_held_back_for_a_stop_string_comes_when_it_was_none():
    stream = TextStream(["STOP"])
    assert feed(stream, [b"ST", b"ART"]) == ["", "START"]


def test_the_earliest_of_several_stop_strings_counts():
    assert feed(TextStream(["\n\n", "END"]), [b"a END\n\n"]) == ["a "]


def test_a_stop_string_may_begin_within_a_false_start():
    assert feed(TextStream(["aab"]), [b"a", b"a", b"a", b"b"]) == ["", "", "a", ""]


def test_drafted_text_is_marked_as_such_even_when_held_back():
    stream = TextStream(["xyz"])
    assert stream.push(b"ax", True) == [Piece("a", True)]
    assert stream.push(b"b", False) == [Piece("x", True), Piece("b", False)]


@given(st.text(max_size=60), st.lists(st.integers(1, 5), min_size=60, max_size=300))
def test_any_cutting_of_the_bytes_gives_the_same_text(text, sizes):
    data, stream, shown = text.encode(), TextStream(), ""
    for size in sizes:
        shown += "".join(p.text for p in stream.push(data[:size], False))
        data = data[size:]
    assert shown + "".join(p.text for p in stream.push(data, False) + stream.finish()) == text


@pytest.mark.parametrize("cut", range(1, 8))
def test_a_stop_string_is_found_wherever_the_tokens_part(cut):
    stream = TextStream(["</end>"])
    data = b"ab</end>cd"
    assert "".join(feed(stream, [data[:cut], data[cut:]])) == "ab" and stream.stopped
