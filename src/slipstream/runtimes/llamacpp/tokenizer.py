"""Text to tokens and back, by the model's own vocabulary."""

from __future__ import annotations

from typing import Any

from .library import ffi


class Tokenizer:
    """A view of a loaded model's vocabulary; valid as long as the model is."""

    def __init__(self, lib: Any, model: Any) -> None:
        self._lib = lib
        self._vocab = lib.llama_model_get_vocab(model)
        self.n_vocab = int(lib.llama_vocab_n_tokens(self._vocab))
        self.bos = int(lib.llama_vocab_bos(self._vocab))
        self.eos = int(lib.llama_vocab_eos(self._vocab))
        self.add_bos = bool(lib.llama_vocab_get_add_bos(self._vocab))
        self._pieces: dict[tuple[int, bool], bytes] = {}
        self._ends: dict[int, bool] = {}

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Token ids. `add_special` adds what the model wants at the beginning; `parse_special` reads <|…|> tokens."""
        data = text.encode("utf-8", "replace")
        n_max = len(data) + 8
        tokens = ffi.new("llama_token[]", n_max)
        n = self._lib.llama_tokenize(self._vocab, data, len(data), tokens, n_max, add_special, parse_special)
        assert n >= 0, "a byte gives one token at most"
        return [int(t) for t in tokens[0:n]]

    def piece(self, token: int, special: bool = False) -> bytes:
        """The bytes of a token, which need not be whole characters; control tokens are empty unless `special`."""
        piece = self._pieces.get((token, special))
        if piece is None:
            piece = self._pieces[token, special] = self._piece(token, special)
        return piece

    def vocabulary(self) -> list[str]:
        """The texts of all tokens as the model's file writes them, to compare two models."""
        texts = (self._lib.llama_vocab_get_text(self._vocab, token) for token in range(self.n_vocab))
        return [ffi.string(text).decode("utf-8", "replace") for text in texts]

    def is_eog(self, token: int) -> bool:
        """Whether the token ends a generation (end of text, of turn, …)."""
        known = self._ends.get(token)
        if known is None:
            known = self._ends[token] = bool(self._lib.llama_vocab_is_eog(self._vocab, token))
        return known

    def _piece(self, token: int, special: bool) -> bytes:
        size = 64
        while True:
            buffer = ffi.new("char[]", size)
            n = self._lib.llama_token_to_piece(self._vocab, token, buffer, size, 0, special)
            if n >= 0:
                return bytes(ffi.buffer(buffer, n))
            size = -n
