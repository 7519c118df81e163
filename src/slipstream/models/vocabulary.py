"""The vocabulary of a model as its files tell it: the text of each token id, and which of them are no ordinary text.

    GGUF           tokenizer.ggml.* of the header
    Hugging Face   tokenizer.json, with tokenizer_config.json and config.json

Nothing is tokenised here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, TypeGuard

from slipstream.errors import ModelError
from slipstream.models.header import GGUF

MAX_TOKENS: Final = 1 << 22
"""More rows than any vocabulary has; a number from a file is not believed beyond it."""

_UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED = 2, 3, 4, 5
_PADDING: Final = re.compile(r"[\[<]pad_?\d+[\]>]", re.IGNORECASE)
_ALGORITHMS: Final = {"gpt2": "BPE", "gemma4": "BPE", "llama": "SPM", "bert": "WPM", "t5": "UGM"}
_BEGINS_WITH_BOS: Final = frozenset(
    {
        *("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "jina-v5-nano"),
        *("tekken", "chameleon"),
    }
)
"""Pre-tokenizers with which llama.cpp adds BOS unless the file says otherwise (src/llama-vocab.cpp)."""


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """Token texts by id, spelt as the files spell them (byte-level BPE writes bytes as letters).

    n_rows: rows of the embedding, which is what engines that judge by size compare.
    n_base: tokens without the added ones, which Hugging Face calls a tokenizer's `vocab_size`.
    special: control, added and unknown tokens; control: those that are never shown. padding: ids that no text is
    made of. algorithm: BPE, SPM (SentencePiece), WPM, UGM or another name. pre_tokenizer: None where not told.
    add_bos, add_eos: whether llama.cpp puts the token around a text.
    """

    tokens: tuple[str, ...]
    special: frozenset[int]
    control: frozenset[int]
    padding: frozenset[int]
    algorithm: str
    pre_tokenizer: str | None
    bos_id: int | None
    eos_id: int | None
    pad_id: int | None
    add_bos: bool
    add_eos: bool
    n_base: int

    @property
    def n_rows(self) -> int:
        return len(self.tokens)

    @cached_property
    def texts(self) -> frozenset[str]:
        """The texts of all tokens but padding."""
        return frozenset(text for token, text in enumerate(self.tokens) if token not in self.padding)

    def is_padding(self, token: int) -> bool:
        """Whether no text is made of this id, be it a padding row or beyond the last."""
        return token >= len(self.tokens) or token in self.padding

    @classmethod
    def of_gguf(cls, gguf: GGUF) -> Vocabulary:
        """The vocabulary in a header that was read with its arrays. Raises ModelError if there is none."""
        tokens, tokenizer = gguf.tokens, gguf.text("tokenizer.ggml.model")
        if not tokens or tokenizer in (None, "none"):
            raise _missing(gguf.path.name)
        algorithm = _ALGORITHMS.get(tokenizer or "", (tokenizer or "").upper())
        pre = gguf.text("tokenizer.ggml.pre")
        types = gguf.metadata.get("tokenizer.ggml.token_type")
        kinds = types if isinstance(types, tuple) else ()
        padding = _of_kind(kinds, _UNUSED) | {t for t, text in enumerate(tokens) if _PADDING.fullmatch(text)}
        added = _of_kind(kinds, _CONTROL) | _of_kind(kinds, _USER_DEFINED)
        add_bos = algorithm in ("SPM", "WPM") or (algorithm == "BPE" and pre in _BEGINS_WITH_BOS)
        return cls(
            tokens,
            special=frozenset(added | _of_kind(kinds, _UNKNOWN)),
            control=frozenset(_of_kind(kinds, _CONTROL)),
            padding=frozenset(t for t in padding if t < len(tokens)),
            algorithm=algorithm,
            pre_tokenizer=pre,
            bos_id=gguf.bos_id,
            eos_id=gguf.eos_id,
            pad_id=gguf.integer("tokenizer.ggml.padding_token_id"),
            add_bos=_flag(gguf, "tokenizer.ggml.add_bos_token", add_bos),
            add_eos=_flag(gguf, "tokenizer.ggml.add_eos_token", algorithm == "UGM"),
            n_base=len(tokens) - len(padding | added if algorithm == "BPE" else padding),
        )

    @classmethod
    def of_tokenizer(
        cls,
        name: str,
        tokenizer: Mapping[str, object],
        settings: Mapping[str, object],
        config: Mapping[str, object],
        n_rows: int | None,
    ) -> Vocabulary:
        """The vocabulary of a `tokenizer.json`, padded to `n_rows` (the model's `vocab_size`).

        settings, config: the content of `tokenizer_config.json` and `config.json`; `name` is for errors.
        Raises ModelError for content that is no tokenizer.
        """
        model = _mapping(tokenizer.get("model"))
        base = dict(_pieces(model.get("vocab")))
        added = [entry for entry in _list(tokenizer.get("added_tokens")) if _is_added(entry)]
        ids = {**base, **{entry["content"]: entry["id"] for entry in added}}
        n_known = max(ids.values(), default=-1) + 1
        if not ids or min(ids.values()) < 0 or max(n_known, n_rows or 0) > MAX_TOKENS:
            raise _missing(name)
        texts = [""] * max(n_known, n_rows or 0)
        for text, token in ids.items():
            texts[token] = text
        known = frozenset(ids.values())
        bos, eos, pad = (_ending(key, settings, config, ids) for key in ("bos_token", "eos_token", "pad_token"))
        return cls(
            tuple(texts),
            special=frozenset(entry["id"] for entry in added),
            control=frozenset(entry["id"] for entry in added if entry.get("special") is True),
            padding=frozenset(t for t, text in enumerate(texts) if t not in known or _PADDING.fullmatch(text)),
            algorithm=_algorithm(model),
            pre_tokenizer=None,
            bos_id=bos,
            eos_id=eos,
            pad_id=pad,
            add_bos=_adds_bos(settings, tokenizer, texts[bos] if bos is not None and bos < len(texts) else ""),
            add_eos=settings.get("add_eos_token") is True,
            n_base=len(base),
        )


def _missing(name: str) -> ModelError:
    return ModelError(f"{name} holds no vocabulary.", "Give the model's own file or folder, tokenizer included.")


def _flag(gguf: GGUF, key: str, default: bool) -> bool:
    value = gguf.metadata.get(key)
    return value if isinstance(value, bool) else default


def _of_kind(kinds: Sequence[object], kind: int) -> set[int]:
    return {token for token, its_kind in enumerate(kinds) if its_kind == kind}


def _mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, dict) else {}


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _pieces(vocab: object) -> Iterator[tuple[str, int]]:
    """The two ways of `tokenizer.json`: {text: id}, and [[text, score], …] by id."""
    if isinstance(vocab, dict):
        yield from ((text, token) for text, token in vocab.items() if isinstance(token, int))
    for token, piece in enumerate(_list(vocab)):
        if isinstance(piece, list) and piece and isinstance(piece[0], str):
            yield piece[0], token


def _is_added(entry: object) -> TypeGuard[dict[str, Any]]:
    return isinstance(entry, dict) and isinstance(entry.get("id"), int) and isinstance(entry.get("content"), str)


def _algorithm(model: Mapping[str, object]) -> str:
    kind = str(model.get("type"))
    if kind == "BPE":
        return "SPM" if model.get("byte_fallback") is True else "BPE"
    return {"Unigram": "UGM", "WordPiece": "WPM"}.get(kind, kind.upper())


def _ending(
    key: str, settings: Mapping[str, object], config: Mapping[str, object], ids: Mapping[str, int]
) -> int | None:
    """The id of `bos_token` and the like: by its text, which may stand in an object, else as the model's own id."""
    token = settings.get(key)
    text = token.get("content") if isinstance(token, dict) else token
    if isinstance(text, str) and text in ids:
        return ids[text]
    value = config.get(f"{key}_id")
    value = value[0] if isinstance(value, list) and value else value
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _adds_bos(settings: Mapping[str, object], tokenizer: Mapping[str, object], bos: str) -> bool:
    told = settings.get("add_bos_token")
    if isinstance(told, bool):
        return told
    processor = _mapping(tokenizer.get("post_processor"))
    steps = [processor, *map(_mapping, _list(processor.get("processors")))]
    return any(bos in _mapping(step.get("special_tokens")) for step in steps)
