"""Whether two models fit together, as far as their files tell."""

from __future__ import annotations

from slipstream.models.gguf import GGUF

_UNUSED_TYPE = 5


def same_vocabulary(target: GGUF, draft: GGUF) -> str | None:
    """Why the two do not share a vocabulary, in words; None if they do.

    They may differ in the number of padding tokens at the end, which no text is ever made of.
    Both must have been read with their arrays.
    """
    for key, what in (("tokenizer.ggml.model", "tokenizer"), ("tokenizer.ggml.pre", "pre-tokenizer")):
        one, other = target.text(key), draft.text(key)
        if one != other:
            return f"the target's {what} is '{one or 'none'}', the draft's '{other or 'none'}'"
    return _different_token(target, draft) or _different_size(target, draft) or _different_ends(target, draft)


def _different_token(target: GGUF, draft: GGUF) -> str | None:
    pairs = zip(target.tokens, draft.tokens, strict=False)
    for token, (one, other) in enumerate(pairs):
        if one != other and not (_is_padding(target, token) and _is_padding(draft, token)):
            return f"token {token} is {one!r} in the target and {other!r} in the draft"
    return None


def _different_size(target: GGUF, draft: GGUF) -> str | None:
    sizes = len(target.tokens), len(draft.tokens)
    if 0 in sizes:
        return f"the {'target' if sizes[0] == 0 else 'draft'}'s file holds no vocabulary"
    longer = target if sizes[0] > sizes[1] else draft
    for token in range(min(sizes), max(sizes)):
        if not _is_padding(longer, token):
            text = longer.tokens[token]
            return f"the target has {sizes[0]} tokens, the draft {sizes[1]}: {text!r} is only in one of them"
    return None


def _different_ends(target: GGUF, draft: GGUF) -> str | None:
    for what, one, other in (
        ("begin", target.bos_id, draft.bos_id),
        ("end", target.eos_id, draft.eos_id),
    ):
        if one != other:
            return f"texts {what} with token {one} in the target and {other} in the draft"
    return None


def _is_padding(gguf: GGUF, token: int) -> bool:
    types = gguf.metadata.get("tokenizer.ggml.token_type")
    if isinstance(types, tuple) and token < len(types) and types[token] == _UNUSED_TYPE:
        return True
    return gguf.tokens[token].upper().startswith(("[PAD", "<PAD"))
