"""Whether two models fit together, as far as their files tell: token by token, or as a head and its target."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from slipstream.errors import ModelError, PairError
from slipstream.models.description import Description, Head
from slipstream.models.header import GGUF
from slipstream.models.vocabulary import Vocabulary

Kind = Literal["same vocabulary", "same but for special tokens", "different", "needs the target's hidden states"]

N_SHOWN: Final = 8


@dataclass(frozen=True)
class Difference:
    """A token id that stands for two texts, None for none. `special`: it is no ordinary text in either."""

    token: int
    target: str | None
    draft: str | None
    special: bool

    def __str__(self) -> str:
        one, other = ("nothing" if text is None else repr(text) for text in (self.target, self.draft))
        return f"token {self.token} is {one} in the target and {other} in the draft"


@dataclass(frozen=True)
class Comparison:
    """Two vocabularies, token by token. Padding, which no text is made of, is left out.

    differences: the first few of ordinary tokens; special: the first few of special ones. n_different, n_special:
    how many there are. n_target, n_common: texts of the target, and those of them that the draft has under any id.
    """

    differences: tuple[Difference, ...]
    special: tuple[Difference, ...]
    n_different: int
    n_special: int
    n_target: int
    n_common: int

    @property
    def kind(self) -> Kind:
        if self.n_different:
            return "different"
        return "same but for special tokens" if self.n_special else "same vocabulary"


@dataclass(frozen=True)
class Verdict:
    """What a pair is, why, and what to do next. `fits`: the draft's tokens are the target's own.

    comparison: None for a head, which has no tokens of its own.
    """

    kind: Kind
    fits: bool
    reasons: tuple[str, ...]
    next_step: str
    comparison: Comparison | None = None


def compare(target: Vocabulary, draft: Vocabulary) -> Comparison:
    """Compares by text, and by type where a token is never shown in one and ordinary in the other."""
    differences: list[Difference] = []
    special: list[Difference] = []
    n_different = n_special = 0
    for token in _unequal(target, draft):
        found = _difference(target, draft, token)
        if found is None:
            continue
        n_special, n_different = n_special + found.special, n_different + (not found.special)
        shown = special if found.special else differences
        if len(shown) < N_SHOWN:
            shown.append(found)
    n_common = len(target.texts & draft.texts)
    return Comparison(tuple(differences), tuple(special), n_different, n_special, len(target.texts), n_common)


def verdict(target: Description, draft: Description) -> Verdict:
    """The verdict on a pair. Raises PairError for a target that is a head, ModelError for a missing vocabulary."""
    if target.head is not None:
        hint = "Name the model that it drafts for first, the head second."
        raise PairError(f"{target.name} is {target.head} and no target.", hint)
    if draft.head is not None:
        return _head_verdict(target, draft, draft.head)
    vocabularies = _vocabulary(target), _vocabulary(draft)
    compared = compare(*vocabularies)
    reasons = [*_token_reasons(compared), *_text_reasons(*vocabularies), *_size_reasons(target, draft)]
    fits = compared.kind != "different"
    return Verdict(compared.kind, fits, tuple(reasons), _next_step(target, draft, compared.kind), compared)


def same_vocabulary(target: GGUF, draft: GGUF) -> str | None:
    """Why the two do not share a vocabulary, in words; None if they do.

    They may differ in padding, which no text is ever made of. Both must have been read with their arrays.
    """
    for gguf, what in ((target, "target"), (draft, "draft")):
        if not gguf.tokens:
            return f"the {what}'s file holds no vocabulary"
    for key, what in (("tokenizer.ggml.model", "tokenizer"), ("tokenizer.ggml.pre", "pre-tokenizer")):
        one, other = target.text(key), draft.text(key)
        if one != other:
            return f"the target's {what} is '{one or 'none'}', the draft's '{other or 'none'}'"
    vocabularies = Vocabulary.of_gguf(target), Vocabulary.of_gguf(draft)
    compared = compare(*vocabularies)
    first = next((d for d in (*compared.differences, *compared.special) if d.target != d.draft), None)
    if first is not None and None in (first.target, first.draft):
        sizes = (f"the target has {len(target.tokens)} tokens", f"the draft {len(draft.tokens)}")
        return f"{', '.join(sizes)}: {first.draft or first.target!r} is only in one of them"
    return str(first) if first is not None else next(iter(_ends(*vocabularies)), None)


def n_draft_contexts(target: GGUF, draft: GGUF) -> int:
    """How many contexts slipstream gives a draft: in another vocabulary it drafts in two ways, each with one.

    Both must have been read with their arrays. A file that holds no vocabulary is no draft, and one is as good as two.
    """
    known = bool(target.tokens and draft.tokens)
    return 2 if known and same_vocabulary(target, draft) is not None else 1


def _unequal(target: Vocabulary, draft: Vocabulary) -> list[int]:
    """Ids whose texts or types are not the same, and those of one vocabulary alone."""
    shorter, longer = sorted((target.n_rows, draft.n_rows))
    pairs = enumerate(zip(target.tokens, draft.tokens, strict=False))
    texts = {token for token, (one, other) in pairs if one != other}
    hidden = {t for t in target.control ^ draft.control if t < shorter}
    return sorted(texts | hidden | set(range(shorter, longer)))


def _difference(target: Vocabulary, draft: Vocabulary, token: int) -> Difference | None:
    padding = target.is_padding(token), draft.is_padding(token)
    if all(padding):
        return None
    one = None if padding[0] else target.tokens[token]
    other = None if padding[1] else draft.tokens[token]
    special = (padding[0] or token in target.special), (padding[1] or token in draft.special)
    if one == other:
        # Which of the added tokens are never shown, converters do not agree on; added or ordinary they do.
        return None if all(special) else Difference(token, one, other, True)
    return Difference(token, one, other, all(special))


def _vocabulary(model: Description) -> Vocabulary:
    if model.vocabulary is None:
        hint = "Give the model's own file or folder, tokenizer included."
        raise ModelError(f"{model.name} holds no vocabulary to compare.", hint)
    return model.vocabulary


def _token_reasons(compared: Comparison) -> list[str]:
    share = compared.n_common / max(compared.n_target, 1)
    if compared.n_different:
        count = f"{compared.n_different:,} token ids stand for other texts"
        common = f"of the target's {compared.n_target:,} tokens the draft knows {share:.1%}, most under other ids"
        return [count, *map(str, compared.differences), common]
    if compared.n_special:
        return [
            f"all ordinary tokens agree; {compared.n_special:,} special ones do not",
            *map(_special, compared.special),
        ]
    return [f"all {compared.n_target:,} tokens agree, id by id"]


def _special(difference: Difference) -> str:
    if difference.target == difference.draft:
        return f"token {difference.token}, {difference.target!r}, is special in one of them and ordinary in the other"
    return str(difference)


def _text_reasons(target: Vocabulary, draft: Vocabulary) -> list[str]:
    reasons = []
    if target.n_rows != draft.n_rows:
        reasons.append(f"the target has {target.n_rows:,} rows and the draft {draft.n_rows:,}")
    one, other = target.pre_tokenizer, draft.pre_tokenizer
    if one is not None and other is not None and one != other:
        reasons.append(f"their pre-tokenizers differ ('{one}', '{other}'), though a draft model splits no text")
    return reasons + _ends(target, draft)


def _ends(target: Vocabulary, draft: Vocabulary) -> list[str]:
    pairs = (("begin", target.bos_id, draft.bos_id), ("end", target.eos_id, draft.eos_id))
    return [f"texts {how} with token {a} in the target and {b} in the draft" for how, a, b in pairs if a != b]


def _size_reasons(target: Description, draft: Description) -> list[str]:
    one, other = target.n_active_params, draft.n_active_params
    if one and other and other >= one:
        return [f"the draft computes with {other / 1e9:.2f} B parameters a token, no fewer than the target: no gain"]
    return []


def _next_step(target: Description, draft: Description, kind: Kind) -> str:
    run = f'`slipstream run {target.name} "…" --draft {draft.name} --stats`'
    are_gguf = target.form == draft.form == "GGUF"
    if kind == "different":
        family = f"Look for a draft of the target's family: `slipstream pair {target.name}`."
        others = "vLLM (use_heterogeneous_vocab) and transformers (assistant_tokenizer)"
        if not are_gguf or draft.recurrent:
            return f"{family} {others} can translate between vocabularies, at the cost of acceptance."
        return (
            f"{family} This one drafts all the same, translated, which {others} can do as well: {run}. It costs "
            "acceptance and a second context of the draft, one for drafts by common tokens and one for drafts by text; "
            "whichever is measured faster is asked, and neither where plain decoding is."
        )
    if are_gguf:
        step = f"Try it and measure: {run}."
    else:
        step = "slipstream runs GGUF files; what engines for this form make of the pair is said below."
    if kind == "same vocabulary":
        return step
    return f"Ordinary text is drafted well, the special tokens named never are. See below which engines take it. {step}"


def _head_verdict(target: Description, draft: Description, head: Head) -> Verdict:
    misfits = [
        text
        for what, one, other in (
            ("hidden size", target.hidden_size, head.hidden_size),
            ("vocabulary of", target.n_rows, head.vocab_size),
        )
        if (text := _misfit(what, one, other)) is not None
    ]
    n_layers = target.n_layers
    # The state behind the last layer is numbered n_layers.
    if head.layers and n_layers is not None and max(head.layers) > n_layers:
        misfits.append(f"it reads layer {max(head.layers)}, and the target has {n_layers}")
    reads = f"it reads layers {', '.join(map(str, head.layers))} of the target" if head.layers else ""
    kind: Kind = "needs the target's hidden states"
    opening = f"the draft is {head} ({draft.architecture}), which has no text of its own"
    if misfits:
        step = f"Look for a head that was trained for this very target: `slipstream pair {target.name}`."
    else:
        step = (
            f"Hidden size, vocabulary and layers match, which is no proof that it was trained for {target.name}: "
            "check its page. slipstream does not run heads; the engines that do stand below."
        )
    return Verdict(kind, not misfits, tuple(r for r in (opening, reads, *misfits) if r), step)


def _misfit(what: str, target: int | None, head: int | None) -> str | None:
    if target is None or head is None or target == head:
        return None
    return f"it is made for a {what} {head:,}, and the target's is {target:,}"
