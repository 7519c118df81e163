"""Width classes: what follows from them, how they are written down, and that the probe finds those of a toy."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from width_toy import WidthToy, grouped

from slipstream.decoding.widths import PAGE, SHORT_ROWS, WHOLE_ROWS, WIDTHS, Band, WidthClasses, probe, starts

ALL = (WIDTHS,)
ONE_APART = ((1,), WIDTHS[1:])


def band(page: int, classes: tuple[tuple[int, ...], ...] = ALL, n_rows: int = 8, difference: float = 0.0) -> Band:
    """A band that ends half its rows behind the beginning of a page."""
    return Band(max(page * PAGE - n_rows // 2, 64 - n_rows if page == 0 else 0), n_rows, classes, difference, 0)


def known(*bands: Band) -> WidthClasses:
    classes = WidthClasses()
    for one in bands:
        classes = classes.with_band(one)
    return classes


def test_nothing_probed_shows_nothing_but_plain_decoding():
    nothing = WidthClasses()
    assert (nothing.exact, nothing.common(), nothing.reach, nothing.is_free) == ((), (), 0, False)
    assert nothing.shows({1}, 10_000) and not nothing.shows({1, 2}, 10)


def test_where_all_widths_agree_exact_mode_is_free():
    free = known(band(0), band(1))
    assert free.exact == WIDTHS and free.is_free and free.common() == ALL


def test_common_classes_are_those_that_hold_in_every_band():
    classes = known(band(0, ((1, 2, 3, 4), (8, 16))), band(1, ((1,), (2, 3, 8), (4,), (16,))))
    assert classes.common() == ((1,), (2, 3), (4,), (8,), (16,))
    assert classes.common(PAGE) == ((1, 2, 3, 4), (8, 16)), "a short context meets the first band alone"
    assert classes.exact == (2, 3) and not classes.is_free


@pytest.mark.parametrize(
    ("classes", "exact"),
    [
        (((1, 2, 3), (4, 8, 16, 24)), (1, 2, 3)),
        (((1,), (2,), (4, 8, 16), (3, 5)), (3, 5)),
        (((2, 9), (1, 32)), (1, 32)),
        (((1,), (2,), (3,)), (1,)),
        (((1,),), (1,)),
    ],
)
def test_exact_mode_takes_the_class_of_several_that_begins_narrowest_or_width_1(classes, exact):
    assert known(band(0, classes)).exact == exact


def test_the_reach_ends_at_the_first_page_that_was_not_looked_at():
    assert known(band(0)).reach == PAGE
    assert known(band(0), band(1), band(2)).reach == 3 * PAGE
    assert known(band(0), band(2)).reach == PAGE
    assert known(band(1), band(2)).reach == 0


def test_what_is_shown_depends_on_the_widths_used_and_on_the_context():
    classes = known(band(0), band(1, ONE_APART))
    assert classes.shows({1, 2}, PAGE), "they agree on the first page"
    assert not classes.shows({1, 2}, PAGE + 1)
    assert classes.shows({2, 32}, 2 * PAGE) and not classes.shows({2, 32}, 2 * PAGE + 1)
    assert not classes.shows({2, 9}, 10), "9 was not compared"
    assert classes.shows([1], 10**9) and classes.shows([], 10**9)
    gap = known(band(0), band(2))
    assert not gap.shows({2, 3}, 2 * PAGE)


def test_missing_starts_are_those_of_pages_not_known_by_so_many_rows():
    at = starts(1000, WHOLE_ROWS)
    assert WidthClasses().missing(at, WHOLE_ROWS) == at
    short = known(band(0), band(1))
    assert short.missing(at, WHOLE_ROWS) == at, "eight rows are not enough"
    whole = known(band(0, n_rows=32), band(1, n_rows=32))
    assert whole.missing(at, WHOLE_ROWS) == at[2:]
    assert whole.missing(starts(1000, SHORT_ROWS)[:2], SHORT_ROWS) == [], "more rows are as good"


def test_a_band_takes_the_place_of_that_of_the_same_page():
    classes = known(band(1, ONE_APART), band(0), band(1, ALL, 32))
    assert [b.page for b in classes.bands] == [0, PAGE] and classes.bands[1].n_rows == 32 and classes.is_free


@pytest.mark.parametrize("n_rows", [SHORT_ROWS, WHOLE_ROWS])
@pytest.mark.parametrize("n_ctx", [16, 100, 128, 256, 300, 512, 1000, 8192])
def test_the_probe_looks_at_each_page_within_the_context(n_ctx, n_rows):
    at = starts(n_ctx, n_rows)
    assert all(start + n_rows + max(WIDTHS) <= n_ctx for start in at)
    pages = [band.page for band in (Band(start, n_rows, ALL, 0.0, 0) for start in at)]
    assert pages == [PAGE * i for i in range(len(at))], "no gaps"
    assert n_ctx < 256 or at, "a usual context has at least one"
    assert all(start < page < start + n_rows for start, page in zip(at[1:], pages[1:], strict=True)), "across its edge"


def grouping(numbers: list[int]) -> tuple[tuple[int, ...], ...]:
    """The widths 1 to 4 in classes with these numbers."""
    return tuple(tuple(w for w, g in zip((1, 2, 3, 4), numbers, strict=True) if g == n) for n in sorted(set(numbers)))


PLACES = [(start, n_rows) for n_rows in (SHORT_ROWS, WHOLE_ROWS) for start in starts(1500, n_rows)]
bands = st.builds(
    lambda place, numbers, difference, flips: Band(*place, grouping(numbers), difference, flips),
    st.sampled_from(PLACES),
    st.lists(st.integers(0, 3), min_size=4, max_size=4),
    st.floats(0, 100),
    st.integers(0, SHORT_ROWS),
)


@given(st.lists(bands, max_size=5))
def test_data_gives_back_what_it_was_made_of(some):
    classes = known(*some)
    assert WidthClasses.from_data(json.loads(json.dumps(classes.to_data()))) == classes


@given(st.lists(bands, min_size=1, max_size=4), st.integers(1, 6000))
def test_common_classes_divide_the_widths_and_lie_within_those_of_each_band(some, n_context):
    classes = known(*some)
    groups = classes.common(n_context)
    if groups:
        assert sorted(w for g in groups for w in g) == [1, 2, 3, 4]
    for one in classes.bands:
        if one.page < n_context:
            assert all(any(set(g) <= set(c) for c in one.classes) for g in groups)


GOOD = [64, 8, [[1], [2, 3]], 0.5, 1]


@pytest.mark.parametrize(
    "data",
    [
        None,
        [],
        {},
        {"bands": None},
        {"bands": [[64, 8]]},
        {"bands": [[64, 8, 5, 0.5, 1]]},
        {"bands": [[64, 8, [["a"]], 0.5, 1]]},
        {"bands": [[64, 8, [], 0.5, 1]]},
        {"bands": [[64, 8, [[1]], 10**400, 1]]},
        {"bands": [[float("inf"), 8, [[1]], 0.5, 1]]},
        {"bands": [GOOD, GOOD]},
        {"bands": [[252, *GOOD[1:]], GOOD]},
        {"bands": [GOOD, [252, 8, [[1], [2, 3, 4]], 0.5, 1]]},
    ],
)
def test_damaged_data_is_refused(data):
    assert WidthClasses.from_data(data) is None


@pytest.mark.parametrize(
    "band",
    [
        [64, 8, [[0, 1, 2]], 0.5, 1],
        [64, 8, [[-1, 1]], 0.5, 1],
        [64, 8, [[2, 3]], 0.5, 1],
        [64, 8, [[1, 2], [2, 3]], 0.5, 1],
        [64, 8, [[1, 2], [3, 9]], 0.5, 1],
        [64, 8, [[1, 10**9]], 0.5, 1],
        [64, 8, [[1, 2], []], 0.5, 1],
        [-64, 8, [[1, 2]], 0.5, 1],
        [64, 0, [[1, 2]], 0.5, 1],
        [64, -8, [[1, 2]], 0.5, 1],
        [64, 8, [[1, 2]], float("nan"), 1],
        [64, 8, [[1, 2]], -1.0, 1],
        [64, 8, [[1, 2]], 0.5, 9],
    ],
    ids=lambda b: str(b),
)
def test_absurd_data_is_refused(band):
    """Such a file would choose widths that no pass can have, or show what nobody has looked at."""
    assert WidthClasses.from_data({"bands": [band]}) is None


TEXT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3, 8, 4, 6, 2, 6, 4, 3, 3, 8, 3, 2, 7, 9]
FIRST_PAGE = ((1, 2, 3, 4), (5, 6, 7, 8, 10, 12), (16, 20, 24, 32))
SECOND_PAGE = ((1,), (2, 3, 5, 8), (4, 6, 7), (10, 12, 16), (20, 24, 32))


def test_the_probe_finds_exactly_the_classes_there_are():
    toy = WidthToy(grouped(FIRST_PAGE, SECOND_PAGE), size=1e-3, n_ctx=900)
    found = known(*probe(toy, TEXT, [64, 300, 252], 8))
    assert [b.start for b in found.bands] == [64, 300] or [b.start for b in found.bands] == [64, 252]
    inside = {b.start: b.classes for b in probe(toy, TEXT, [64, 300, 560], 8)}
    assert inside == {64: FIRST_PAGE, 300: SECOND_PAGE, 560: SECOND_PAGE}


def test_a_band_across_the_edge_of_a_page_has_the_classes_of_both():
    toy = WidthToy(grouped(FIRST_PAGE, SECOND_PAGE), size=1e-3, n_ctx=900)
    (across,) = probe(toy, TEXT, [252], 8)
    both = known(band(0, FIRST_PAGE), band(1, SECOND_PAGE)).common()
    assert across.classes == both and across.page == PAGE


def test_a_single_bit_in_a_single_row_parts_two_widths():
    class OneBit(WidthToy):
        def forward(self, rows):
            result = super().forward(rows)
            r, logits = rows[0], result.logits[0]
            if len(r.tokens) == 7 and r.n_outputs and r.start <= 70 < r.start + 7:
                row = logits[70 - r.start]
                row[5] = np.nextafter(row[5], np.float32(9))
            return result

    toy = OneBit(grouped(ALL))
    (seen,) = probe(toy, TEXT, [64], 8)
    assert seen.classes == (tuple(w for w in WIDTHS if w != 7), (7,)) and 0 < seen.difference < 1e-5


def test_a_difference_that_only_the_cache_hands_on_is_seen():
    """Its own rows are right, but what it wrote is read by the next pass."""

    class Writes(WidthToy):
        def shift(self, group: int):
            return super().shift(group) if group == 103 else np.zeros(self.n_vocab, dtype=np.float32)

        def forward(self, rows):
            result = super().forward(rows)
            if len(rows[0].tokens) == 3 and rows[0].n_outputs:
                result.logits[0][:] -= self.shift(103)
            return result

    toy = Writes(grouped((tuple(w for w in WIDTHS if w != 3),)))
    (seen,) = probe(toy, TEXT, [64], 8)
    assert (3,) in seen.classes and len(seen.classes) == 2


def test_difference_and_flips_are_those_of_the_rows():
    toy = WidthToy(grouped(FIRST_PAGE), size=0.7)
    (seen,) = probe(toy, TEXT, [64], 32)
    text = [TEXT[i % len(TEXT)] for i in range(64 + 32)]
    arms = []
    for group in range(3):
        rows = []
        for at in range(64, 64 + 32):
            row = toy.row(text[: at + 1]) + toy.shift(group)
            rows.append(row + toy.shift(group if at > 64 else toy.written[0][63]))
        arms.append(np.array(rows, dtype=np.float32))
    best = np.array([arm.argmax(axis=1) for arm in arms])
    assert seen.flips == np.count_nonzero((best != best[0]).any(axis=0)) > 0
    assert seen.difference == max(float(np.abs(arms[0] - arm).max()) for arm in arms[1:]) > 0.7


def test_where_all_widths_agree_there_is_no_difference():
    (seen,) = probe(WidthToy(grouped(ALL)), TEXT, [64], 8)
    assert (seen.classes, seen.difference, seen.flips) == (ALL, 0.0, 0)


@pytest.mark.parametrize(
    ("options", "widths"),
    [
        ({"n_batch": 7}, WIDTHS[:7]),
        ({"n_batch": 1}, (1,)),
        ({"max_rollback": 4}, (1, 2, 3, 4)),
        ({"max_rollback": 0}, (1,)),
    ],
)
def test_only_widths_that_the_runtime_can_use_are_compared(options, widths):
    (seen,) = probe(WidthToy(grouped(ALL), **options), TEXT, [64], 8)
    assert seen.classes == (widths,)


def test_the_work_of_a_probe_is_fixed_and_its_progress_rises_to_the_end():
    told: list[float] = []
    toy = WidthToy(grouped(ALL), n_ctx=600)
    seen = list(probe(toy, TEXT, [64, 252], 8, told.append))
    assert len(seen) == 2 and told == sorted(told) and told[-1] == 1.0 and len(told) == 2 * len(WIDTHS)
    computed = [rows[0] for rows in toy.passes if rows[0].n_outputs]
    assert {len(r.tokens) for r in computed} == set(WIDTHS)
    assert all(r.n_outputs == len(r.tokens) and not r.n_padding for r in computed), "all rows stay to the end"
