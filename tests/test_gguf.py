"""The GGUF reader: what it says of good files, and that bad ones end in one clear line."""

import random
import struct
import time
from pathlib import Path

import pytest
from gguf_files import TOKENS, write_gguf

from slipstream.errors import ModelError
from slipstream.models.gguf import Skipped, read_gguf
from slipstream.models.header import GGUF, check_model
from slipstream.models.pairing import same_vocabulary


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    return write_gguf(tmp_path / "tiny.gguf")


def header(version: int = 3, n_tensors: int = 0, n_values: int = 0, rest: bytes = b"") -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, n_tensors, n_values) + rest


def string(text: str) -> bytes:
    return struct.pack("<Q", len(text)) + text.encode()


def refusal(path: Path, content: bytes) -> ModelError:
    path.write_bytes(content)
    with pytest.raises(ModelError) as caught:
        read_gguf(path)
    assert "\n" not in str(caught.value)
    assert caught.value.hint
    return caught.value


def test_facts_of_a_file(tiny: Path) -> None:
    gguf = read_gguf(tiny)
    assert (gguf.architecture, gguf.name, gguf.kind) == ("llama", "Tiny", "model")
    assert (gguf.n_params, gguf.quantization, gguf.context_length) == (48, "Q4_K_M", 512)
    assert gguf.size_bytes == tiny.stat().st_size
    assert gguf.tokens == TOKENS
    assert gguf.vocab_size == len(TOKENS)
    assert (gguf.bos_id, gguf.eos_id, gguf.token_text(1), gguf.token_text(99)) == (0, 1, "</s>", "")
    assert not gguf.is_split


def test_tensors_are_those_that_the_writer_wrote(tiny: Path) -> None:
    first, second = read_gguf(tiny).tensors
    assert (first.name, first.shape, first.type_name, first.size_bytes) == (
        "token_embd.weight",
        (4, 8),
        "F32",
        128,
    )
    assert (second.name, second.shape, second.type_name, second.offset) == (
        "output_norm.weight",
        (16,),
        "F16",
        128,
    )


def test_without_arrays_only_their_lengths_are_known(tiny: Path) -> None:
    gguf = read_gguf(tiny, arrays=False)
    assert gguf.metadata["tokenizer.ggml.tokens"] == Skipped(len(TOKENS))
    assert gguf.vocab_size == len(TOKENS)
    assert gguf.n_params == 48


def test_quantization_is_counted_where_the_file_does_not_say(tmp_path: Path) -> None:
    assert read_gguf(write_gguf(tmp_path / "x.gguf", file_type=None)).quantization == "F32"


def test_named_chat_templates(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "x.gguf", template="main", extra={"tokenizer.chat_template.tool_use": "tools"})
    assert read_gguf(path).chat_templates == {"default": "main", "tool_use": "tools"}


def test_a_vocabulary_of_150_000_is_read_quickly(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "x.gguf", tokens=[f"token {i}" for i in range(150_000)])
    start = time.perf_counter()
    assert len(read_gguf(path).tokens) == 150_000
    assert time.perf_counter() - start < 1.0, "0.05 s by itself; the bound leaves room for busy machines"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is empty"),
        (b"PK\x03\x04 a zip", "not a GGUF file"),
        (b"version https://git-lfs.github.com/spec/v1\n", "Git LFS pointer"),
        (b"GGUF", "ends inside its header"),
        (header(version=1), "GGUF version 1"),
        (header(version=9), "GGUF version 9"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
        (header(n_values=1), "metadata entries"),
        (header(n_tensors=1 << 60), "tensors"),
        (header(n_values=1, rest=string("k" * 40) + struct.pack("<I", 99)), "unknown type 99"),
        (header(n_values=1, rest=struct.pack("<Q", 1 << 62) + bytes(40)), "characters in one string"),
        (header(n_values=1, rest=string("k") + struct.pack("<IIQ", 9, 4, 1 << 40)), "values in one array"),
        (header(n_values=1, rest=string("k") + struct.pack("<IIQ", 9, 8, 1 << 40)), "strings in one array"),
        (header(n_values=1, rest=string("k") + struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * 9), "nested"),
        (
            header(n_values=1, rest=string("k") + struct.pack("<IIQQ", 9, 8, 1, 1 << 40) + bytes(9)),
            "reaches beyond",
        ),
        (header(n_tensors=1, rest=string("t") + struct.pack("<I", 77) + bytes(40)), "77 dimensions"),
    ],
)
def test_files_that_cannot_be_read_say_why(tmp_path: Path, content: bytes, said: str) -> None:
    assert said in refusal(tmp_path / "x.gguf", content).message


def test_a_missing_file_and_a_folder(tmp_path: Path) -> None:
    for path in (tmp_path / "none.gguf", tmp_path):
        with pytest.raises(ModelError, match="cannot be read"):
            read_gguf(path)


def test_tensor_data_cut_short_is_noticed(tiny: Path) -> None:
    assert "truncated" in refusal(tiny, tiny.read_bytes()[:-1]).message


def test_every_truncation_of_a_file_is_refused(tiny: Path, tmp_path: Path) -> None:
    content = tiny.read_bytes()
    for length in range(0, len(content), 7):
        assert refusal(tmp_path / "cut.gguf", content[:length]).message


def test_mutated_headers_are_read_or_refused(tiny: Path, tmp_path: Path) -> None:
    """400 files with a few random bytes changed: nothing but ModelError may come out, and soon."""
    content, random_ = tiny.read_bytes(), random.Random(5)
    path = tmp_path / "mutated.gguf"
    for _ in range(400):
        mutated = bytearray(content)
        for _ in range(random_.randint(1, 4)):
            mutated[random_.randrange(4, len(content) - 200)] = random_.choice((0, 1, 9, 127, 128, 255))
        path.write_bytes(mutated)
        for arrays in (True, False):
            try:
                gguf = read_gguf(path, arrays=arrays)
            except ModelError:
                continue
            assert isinstance(gguf.quantization, str)
            assert isinstance(gguf.chat_templates, dict)
            assert gguf.n_params >= 0


SPM_BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


@pytest.mark.parametrize(
    ("tokenizer", "tokens", "n_blocks", "said"),
    [
        ("gpt2", (), 2, "no vocabulary"),
        ("gpt2", (1, 2), 2, "no vocabulary"),
        ("none", TOKENS, 2, "no vocabulary"),
        ("gpt2", TOKENS, 0, "it claims 0 layers"),
        ("gpt2", TOKENS, 1 << 31, "it claims 2,147,483,648 layers"),
        ("gpt2", ("a", "b", "a"), 2, "tokens 0 and 2 have the same text, 'a'"),
        ("gpt2", ("a", "b\0c", "b\0d"), 2, "tokens 1 and 2 have the same text, 'b'"),
        ("llama", (*SPM_BYTES[:10], *SPM_BYTES[11:]), 2, "needs the token <0x0A>"),
        ("llama", (*SPM_BYTES[:10], *SPM_BYTES[11:], "\n"), 2, None),
        ("gpt2", ("", "", "\ufffd", "\ufffd", "a"), 512, None),
        ("gpt2", TOKENS, None, None),
    ],
)
def test_headers_on_which_llama_cpp_would_end_the_process(
    tokenizer: str, tokens: tuple, n_blocks: int | None, said: str | None
) -> None:
    metadata = {"tokenizer.ggml.model": tokenizer, "tokenizer.ggml.tokens": tokens, "unknown.block_count": n_blocks}
    gguf = GGUF(Path("x.gguf"), {key: value for key, value in metadata.items() if value is not None}, (), 0)
    if said is None:
        check_model(gguf)
    else:
        with pytest.raises(ModelError, match=rf"x\.gguf cannot be run: .*{said}"):
            check_model(gguf)


class TestSameVocabulary:
    def reason(self, folder: Path, **of_draft: object) -> str | None:
        target = write_gguf(folder / "target.gguf")
        draft = write_gguf(folder / "draft.gguf", **of_draft)  # type: ignore[arg-type]
        return same_vocabulary(read_gguf(target), read_gguf(draft))

    def test_equal_ones(self, tmp_path: Path) -> None:
        assert self.reason(tmp_path) is None

    def test_another_pre_tokenizer(self, tmp_path: Path) -> None:
        assert "'qwen2'" in str(self.reason(tmp_path, pre="qwen2"))

    def test_the_first_other_token_is_named(self, tmp_path: Path) -> None:
        tokens = (*TOKENS[:2], "A", *TOKENS[3:])
        assert self.reason(tmp_path, tokens=tokens) == "token 2 is 'a' in the target and 'A' in the draft"

    def test_padding_at_the_end_may_differ(self, tmp_path: Path) -> None:
        assert self.reason(tmp_path, tokens=(*TOKENS, "[PAD6]", "[PAD7]")) is None
        assert self.reason(tmp_path, tokens=(*TOKENS, "x"), token_types=[1] * len(TOKENS) + [5]) is None

    def test_real_tokens_at_the_end_may_not(self, tmp_path: Path) -> None:
        assert "'more' is only in one" in str(self.reason(tmp_path, tokens=(*TOKENS, "more")))

    def test_another_end_of_text(self, tmp_path: Path) -> None:
        reason = self.reason(tmp_path, extra={"tokenizer.ggml.eos_token_id": 2})
        assert reason == "texts end with token 1 in the target and 2 in the draft"
