"""The corpus: past requests are drafted from, texts stay apart, memory is bounded, and a file keeps it all."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from forced import Forced
from hypothesis import given, settings
from hypothesis import strategies as st
from test_ring import N_NEW, PROMPTS, SAMPLINGS, new_state, plain, run
from toy import Clock, ToyRuntime

from slipstream.decoding.choice import Sampler
from slipstream.decoding.protocols import Budget
from slipstream.decoding.ring import Ring
from slipstream.decoding.sampling import Sampling
from slipstream.drafters.corpus import Corpus
from slipstream.drafters.corpus_file import open_corpus
from slipstream.drafters.suffix import SuffixDrafter
from slipstream.errors import InputError

N_VOCAB = 1 << 20

PROMPT = [1, 2, 3, 4, 5]
ANSWER = [11, 12, 13, 14, 15, 16]
CHOICE = Sampler(Sampling(temperature=0), 4).bind(())


def proposed(drafter: SuffixDrafter, seq: int = 0, n: int = 32) -> list[int]:
    return drafter.propose(seq, Budget(n), CHOICE).tokens.tolist()


def answered(drafter: SuffixDrafter, prompt: list[int], answer: list[int], seq: int = 0) -> None:
    """A request that was answered; the sequence stays as it is."""
    drafter.begin(seq, [*prompt, *answer[:1]])
    drafter.observe(seq, answer[1:])


def filled(corpus: Corpus, *texts: list[int]) -> Corpus:
    for text in texts:
        corpus.add(text)
    return corpus


def test_a_text_that_ended_is_drafted_from_in_another_sequence():
    drafter = SuffixDrafter()
    answered(drafter, PROMPT, ANSWER)
    drafter.begin(1, [*PROMPT, *ANSWER[:1]])
    assert proposed(drafter, 1) == [], "the first one is not over"
    drafter.end(0)
    drafter.begin(1, [*PROMPT, *ANSWER[:1]])
    assert proposed(drafter, 1) == ANSWER[1:]


@pytest.mark.parametrize("seq", [0, 1])
def test_a_repeated_request_is_drafted_from_the_first_one(seq):
    drafter = SuffixDrafter()
    answered(drafter, PROMPT, ANSWER)
    if seq != 0:
        drafter.end(0)
    drafter.begin(seq, [*PROMPT, *ANSWER[:1]])
    assert proposed(drafter, seq) == ANSWER[1:]


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=["greedy", "0.7", "1.2"])
def test_a_repeated_request_has_the_same_text_in_fewer_passes(sampling):
    ring = Ring(ToyRuntime(), [SuffixDrafter()], Forced(16, ()), Clock())
    prompt, rounds = list(PROMPTS[0]), []
    for _ in range(2):
        state = new_state(0, sampling, prompt)
        rounds.append(run(ring, [state], [prompt]))
        assert state.tokens == plain(0, sampling, prompt)
    assert len(rounds[1]) <= 2 + N_NEW // 16 < len(rounds[0]), "each draft is right to its end"


def test_a_text_that_goes_on_stays_out_of_the_corpus():
    drafter = SuffixDrafter()
    answered(drafter, PROMPT, ANSWER)
    drafter.begin(0, [*PROMPT, *ANSWER, 21, 22])
    assert len(drafter.corpus) == 0
    assert proposed(drafter) == []


def test_what_a_new_text_does_not_hold_enters_the_corpus():
    """A second answer to the same question: the first one's end would else be forgotten."""
    drafter = SuffixDrafter()
    answered(drafter, PROMPT, ANSWER)
    answered(drafter, PROMPT, [11, 12, 31, 32])
    drafter.observe(0, [13])
    assert proposed(drafter)[:3] == ANSWER[3:]


def test_a_running_text_finds_one_that_ends_beside_it():
    drafter = SuffixDrafter()
    drafter.begin(1, [7, 8, 9])
    answered(drafter, PROMPT, ANSWER)
    drafter.end(0)
    drafter.observe(1, [11, 12])
    assert proposed(drafter, 1) == ANSWER[2:]


def test_a_match_stays_true_when_the_corpus_grows():
    """What stands for 1 2 stood for 2 alone as well, until 2 was seen behind others: it follows the more frequent."""
    drafter = SuffixDrafter(filled(Corpus(), *[[1, 2, 3]] * 3))
    drafter.begin(0, [9, 2])
    assert proposed(drafter, n=1) == [3]
    filled(drafter.corpus, *[[5, 2, 7]] * 4)
    assert proposed(drafter, n=1) == [7]


def test_a_running_text_finds_what_came_after_the_older_half_was_forgotten():
    drafter = SuffixDrafter(Corpus(24))
    drafter.begin(0, [9])
    filled(drafter.corpus, list(range(100, 109)), list(range(110, 119)), [50, 51, 52])
    assert len(drafter.corpus.generations) == 2
    drafter.observe(0, [50])
    assert proposed(drafter) == [51, 52]


def test_of_equals_the_text_itself_is_believed_more():
    drafter = SuffixDrafter(filled(Corpus(), [1, 2, 8]))
    drafter.begin(0, [1, 2, 9, 5, 1, 2])
    assert proposed(drafter, n=1) == [9]


def test_confidence_in_past_texts_is_learned_apart():
    texts = [[10 * i, 10 * i + 1, 10 * i + 2] for i in range(1, 30)]
    drafter = SuffixDrafter(filled(Corpus(), *texts))
    before = list(drafter.acceptance.rates)
    prior = list(drafter.corpus_acceptance.rates)
    drafter.begin(0, [1])
    for first, second, _ in texts:
        drafter.observe(0, [first, second, 1000 + second])
    assert min(a / b for a, b in zip(drafter.corpus_acceptance.rates, prior, strict=True)) < 0.5
    assert drafter.acceptance.rates == before, "nothing in this text repeats"


@pytest.mark.parametrize("behind", range(1, 4))
def test_nothing_is_proposed_behind_the_end_of_a_text(behind):
    drafter = SuffixDrafter(filled(Corpus(), [1, 2, 3], [4, 5, 6]))
    drafter.begin(0, [9, *[1, 2, 3][-behind:]])
    assert proposed(drafter) == []


texts = st.lists(st.integers(0, 3), min_size=1, max_size=12)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.booleans(), texts), min_size=1, max_size=8), texts)
def test_what_is_proposed_followed_within_one_text(others, own):
    """No mark is proposed, and no match goes from one text into the next: each proposed pair stood in some text."""
    drafter = SuffixDrafter(Corpus(48))
    drafter.begin(0, own[:1])
    written, past = own[:1], []
    for i, (is_own, text) in enumerate(others):
        if is_own:
            drafter.observe(0, text)
            written += text
        else:
            drafter.begin(1 + i, text)
            drafter.end(1 + i)
            past.append(text)
        pairs = {pair for t in (written, *past) for pair in pairwise(t)}
        draft = proposed(drafter)
        assert set(pairwise([written[-1], *draft])) <= pairs


@settings(max_examples=100, deadline=None)
@given(st.lists(st.lists(st.integers(0, 3), min_size=2, max_size=12), min_size=2, max_size=6), st.data())
def test_a_text_of_other_words_is_never_drafted(words, data):
    """Each text has tokens of its own: whatever follows a piece of one must come from that one."""
    own = [[10 * i + token for token in text] for i, text in enumerate(words)]
    drafter = SuffixDrafter(filled(Corpus(), *own))
    i = data.draw(st.integers(0, len(own) - 1))
    drafter.begin(0, own[i][: data.draw(st.integers(1, len(own[i])))])
    assert {token // 10 for token in proposed(drafter)} <= {i}


def test_memory_is_bounded_and_the_newest_text_is_always_there():
    rng, corpus = random.Random(0), Corpus(64)
    for i in range(200):
        text = [1000 * i + j for j in range(3)] + [rng.randrange(5) for _ in range(rng.randrange(1, 60))]
        corpus.add(text)
        assert len(corpus) <= 64 and len(corpus.generations) <= 2
        assert sum(len(automaton.next) for automaton in corpus.generations) <= 2 * 64 + 2
        drafter = SuffixDrafter(corpus)
        drafter.begin(0, text[-4:-2])
        assert proposed(drafter), "a piece of the newest is found"


def test_the_older_half_is_kept_until_the_newer_one_is_full():
    corpus = filled(Corpus(40), [1, 2, 3, 4])

    def known() -> bool:
        drafter = SuffixDrafter(corpus)
        drafter.begin(0, [1, 2])
        return proposed(drafter) == [3, 4]

    kept = []
    for i in range(12):
        corpus.add([100 + 5 * i + j for j in range(5)])
        kept.append(known())
    assert kept == sorted(kept, reverse=True) and sum(kept) in range(4, 10)


def test_of_a_text_longer_than_the_corpus_the_end_is_kept():
    corpus = filled(Corpus(20), list(range(100)))
    assert len(corpus) <= 20
    drafter = SuffixDrafter(corpus)
    drafter.begin(0, [95, 96])
    assert proposed(drafter) == [97, 98, 99]


@pytest.mark.parametrize("n_tokens", [0, 1])
def test_a_corpus_of_nothing_keeps_nothing(n_tokens):
    told: list[object] = []
    drafter = SuffixDrafter(Corpus(n_tokens, told.append))
    answered(drafter, PROMPT, ANSWER)
    drafter.end(0)
    drafter.begin(0, [*PROMPT, *ANSWER[:1]])
    assert proposed(drafter) == [] and len(drafter.corpus) == 0 and told == []


def follows(corpus: Corpus, behind: list[int]) -> list[int]:
    drafter = SuffixDrafter(corpus)
    drafter.begin(0, behind)
    return proposed(drafter)


def test_a_file_keeps_the_corpus(tmp_path):
    path = tmp_path / "corpus.jsonl"
    open_corpus(path, "v", N_VOCAB).add(ANSWER)
    open_corpus(path, "v", N_VOCAB).add([21, 22, 23])
    corpus = open_corpus(path, "v", N_VOCAB)
    assert follows(corpus, ANSWER[:2]) == ANSWER[2:] and follows(corpus, [21, 22]) == [23]
    assert len(path.read_text().splitlines()) == 3, "what is read again is not written again"


def test_two_programs_may_write_to_one_file(tmp_path):
    path = tmp_path / "corpus.jsonl"
    one, other = open_corpus(path, "v", N_VOCAB), open_corpus(path, "v", N_VOCAB)
    one.add(ANSWER)
    other.add([21, 22, 23])
    one.add([31, 32, 33])
    corpus = open_corpus(path, "v", N_VOCAB)
    assert [follows(corpus, text) for text in (ANSWER[:5], [21, 22], [31, 32])] == [[16], [23], [33]]


FOREIGN = {
    "a text": b"Dear diary,\n",
    "not UTF-8": b"\xff\xfe\x00",
    "other JSON": b'{"kind": "other"}\n[1, 2]\n',
    "a list": b"[1, 2, 3]\n",
    "deep": b"[" * 100_000,
}


@pytest.mark.parametrize("content", FOREIGN.values(), ids=FOREIGN)
def test_a_file_of_something_else_is_refused_and_left_alone(tmp_path, content):
    path = tmp_path / "mine"
    path.write_bytes(content)
    with pytest.raises(InputError, match="mine") as refused:
        open_corpus(path, "v", N_VOCAB)
    assert refused.value.hint and path.read_bytes() == content


def test_the_corpus_of_another_vocabulary_is_refused_and_left_alone(tmp_path):
    path = tmp_path / "corpus.jsonl"
    open_corpus(path, "one", N_VOCAB).add(ANSWER)
    content = path.read_bytes()
    with pytest.raises(InputError, match="another vocabulary"):
        open_corpus(path, "other", N_VOCAB)
    assert path.read_bytes() == content


@pytest.mark.parametrize("path", ["none/corpus.jsonl", "."])
def test_a_path_where_no_file_can_be_is_refused(tmp_path, path):
    with pytest.raises(InputError, match=r"cannot be|is no file"):
        open_corpus(tmp_path / path, "v", N_VOCAB)


def test_a_last_line_cut_short_costs_that_text_alone(tmp_path):
    path = tmp_path / "corpus.jsonl"
    corpus = open_corpus(path, "v", N_VOCAB)
    corpus.add(ANSWER)
    corpus.add([21, 22, 23])
    path.write_bytes(path.read_bytes()[:-4])
    again = open_corpus(path, "v", N_VOCAB)
    assert follows(again, ANSWER[:2]) == ANSWER[2:] and follows(again, [21, 22]) == []
    again.add([31, 32, 33])
    assert follows(open_corpus(path, "v", N_VOCAB), [31, 32]) == [33], "nor is the next one lost"


@pytest.mark.parametrize("line", ["[1, -5, 2]", "[true, 2]", '{"a": 1}', "[]", '["1", "2"]', "[1.5, 2]", "null", "x"])
def test_a_line_that_is_no_text_is_left_out(tmp_path, line):
    path = tmp_path / "corpus.jsonl"
    open_corpus(path, "v", N_VOCAB).add(ANSWER)
    with path.open("a") as file:
        file.write(line + "\n")
    open_corpus(path, "v", N_VOCAB).add([21, 22, 23])
    corpus = open_corpus(path, "v", N_VOCAB)
    assert len(corpus) == len(ANSWER) + 3 + 2, "two texts with their marks"


def test_a_file_is_bounded_by_rewriting_it(tmp_path):
    path, sizes = tmp_path / "corpus.jsonl", []
    for i in range(30):
        corpus = open_corpus(path, "v", N_VOCAB, n_tokens=40)
        for j in range(3):
            corpus.add([100 * i + 10 * j + k for k in range(8)])
        sizes.append(path.stat().st_size)
    texts = path.read_text().splitlines()[1:]
    assert len(texts) <= 2 * 40 / 8 + 4 and max(sizes[15:]) < 2 * max(sizes[:5])
    assert follows(open_corpus(path, "v", N_VOCAB, n_tokens=40), [2920, 2921]) == list(range(2922, 2928))


def test_an_answer_is_worth_more_than_its_memory(tmp_path):
    path = tmp_path / "folder" / "corpus.jsonl"
    path.parent.mkdir()
    corpus = open_corpus(path, "v", N_VOCAB)
    path.unlink()
    path.parent.rmdir()
    corpus.add(ANSWER)
    assert follows(corpus, ANSWER[:2]) == ANSWER[2:]


@pytest.mark.parametrize("name", ["a" * 5000, "\0", "loop"], ids=["too long", "NUL", "a link to itself"])
def test_a_path_that_no_file_can_have_is_said(tmp_path, name):
    """Came as OSError, ValueError and RuntimeError."""
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(InputError, match=r"corpus .* cannot be read"):
        open_corpus(tmp_path / name, "v", N_VOCAB)
