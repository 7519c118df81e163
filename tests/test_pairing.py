"""Verdicts on pairs, and the vocabularies they rest on: by token text, never by size."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest
from gguf_files import TOKENS, write_gguf

from slipstream.errors import ModelError, PairError
from slipstream.models.advice import advise, experts_read, fitting_sizes, transfer_s
from slipstream.models.describe import describe
from slipstream.models.description import Description, Head, of_gguf
from slipstream.models.gguf import read_gguf
from slipstream.models.header import GGUF
from slipstream.models.pairing import Verdict, compare, verdict
from slipstream.models.vocabulary import Vocabulary

NORMAL, CONTROL, UNUSED = 1, 3, 5


def header(tokens: tuple[str, ...] = TOKENS, kinds: tuple[int, ...] | None = None, **more: Any) -> GGUF:
    """A header as the reader gives it; `more` has a key's dots as double underscores."""
    metadata: dict[str, Any] = {
        "general.architecture": "llama",
        "llama.embedding_length": 64,
        "llama.block_count": 4,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": kinds or (NORMAL,) * len(tokens),
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 1,
    }
    metadata |= {key.replace("__", "."): value for key, value in more.items()}
    return GGUF(Path("x.gguf"), metadata, (), 1000)


def model(*args: Any, name: str = "x", **more: Any) -> Description:
    return of_gguf([header(*args, **more)], name, None)


def ruling(target: Description, draft: Description) -> Verdict:
    return verdict(target, draft)


QWEN = tuple(f"w{i}" for i in range(151_643))
ADDED = tuple(f"<|added{i}|>" for i in range(22))


def qwen(n_rows: int) -> Description:
    n_real = len(QWEN) + len(ADDED)
    padding = tuple(f"[PAD{i}]" for i in range(n_real, n_rows))
    kinds = (NORMAL,) * len(QWEN) + (CONTROL,) * len(ADDED) + (UNUSED,) * len(padding)
    return model((*QWEN, *ADDED, *padding), kinds)


def test_qwen_with_151936_and_152064_rows_shares_its_vocabulary() -> None:
    for target, draft in ((152_064, 151_936), (151_936, 152_064)):
        found = ruling(qwen(target), qwen(draft))
        assert (found.kind, found.fits) == ("same vocabulary", True)
        assert f"the target has {target:,} rows and the draft {draft:,}" in found.reasons


def test_equal_size_does_not_hide_other_tokens() -> None:
    found = ruling(model(), model((*TOKENS[:2], "A", "B", *TOKENS[4:])))
    assert (found.kind, found.fits) == ("different", False)
    assert "token 2 is 'a' in the target and 'A' in the draft" in found.reasons
    assert "2 token ids stand for other texts" in found.reasons
    assert "of the target's 6 tokens the draft knows 66.7%, most under other ids" in found.reasons
    assert "slipstream pair x" in found.next_step and "use_heterogeneous_vocab" in found.next_step


def test_a_draft_of_another_vocabulary_is_told_what_it_costs_where_slipstream_can_run_it() -> None:
    other = (*TOKENS[:2], "A", "B", *TOKENS[4:])
    assert "a second context of the draft" in ruling(model(), model(other)).next_step
    assert "second context" not in ruling(model(), model(other, llama__ssm__conv_kernel=4)).next_step


def test_only_the_first_differences_are_shown_and_all_are_counted() -> None:
    tokens = tuple(f"t{i}" for i in range(100))
    compared = compare(Vocabulary.of_gguf(header(tokens)), Vocabulary.of_gguf(header(tokens[::-1])))
    assert (compared.n_different, len(compared.differences), compared.n_common) == (100, 8, 100)
    assert [d.token for d in compared.differences] == list(range(8))


def test_special_tokens_that_differ_are_named() -> None:
    kinds = (CONTROL, CONTROL, *(NORMAL,) * 4)
    found = ruling(model(kinds=kinds), model(("<s>", "<end>", *TOKENS[2:]), kinds))
    assert (found.kind, found.fits) == ("same but for special tokens", True)
    assert "token 1 is '</s>' in the target and '<end>' in the draft" in found.reasons


def test_a_special_token_more_at_the_end_is_a_special_difference_and_an_ordinary_one_is_not() -> None:
    longer = (*TOKENS, "<tool>")
    special = ruling(model(), model(longer, (*(NORMAL,) * 6, CONTROL)))
    assert special.kind == "same but for special tokens"
    assert "token 6 is nothing in the target and '<tool>' in the draft" in special.reasons
    assert ruling(model(), model(longer)).kind == "different"


def test_the_same_text_may_be_special_in_one_of_them_alone() -> None:
    found = ruling(model(kinds=(CONTROL, *(NORMAL,) * 5)), model())
    assert found.kind == "same but for special tokens"
    assert "token 0, '<s>', is special in one of them and ordinary in the other" in found.reasons


def test_other_ends_of_text_are_told_and_change_no_verdict() -> None:
    found = ruling(model(), model(tokenizer__ggml__eos_token_id=2))
    assert found.kind == "same vocabulary"
    assert "texts end with token 1 in the target and 2 in the draft" in found.reasons


def test_a_missing_vocabulary_is_an_error() -> None:
    with pytest.raises(ModelError, match="x holds no vocabulary"):
        ruling(model(), model(()))


class TestHeads:
    def eagle(self, **more: Any) -> Description:
        values = {"target_hidden_size": 64, "target_layers": (1, 2, 4), "embedding_length": 64, **more}
        return model(general__architecture="eagle3", **{f"eagle3__{key}": value for key, value in values.items()})

    def test_a_head_of_the_right_shape_fits(self) -> None:
        found = ruling(model(), self.eagle())
        assert (found.kind, found.fits) == ("needs the target's hidden states", True)
        assert found.reasons[0] == "the draft is an EAGLE-3 head (eagle3), which has no text of its own"
        assert "no proof that it was trained for x" in found.next_step

    @pytest.mark.parametrize(
        ("more", "said"),
        [
            ({"target_hidden_size": 128}, "it is made for a hidden size 128, and the target's is 64"),
            ({"target_layers": (1, 2, 5)}, "it reads layer 5, and the target has 4"),
        ],
    )
    def test_another_shape_does_not(self, more: dict[str, Any], said: str) -> None:
        found = ruling(model(), self.eagle(**more))
        assert not found.fits and said in found.reasons

    def test_another_vocabulary_does_not(self) -> None:
        found = ruling(model((*TOKENS, "more")), self.eagle())
        assert not found.fits and "it is made for a vocabulary of 6, and the target's is 7" in found.reasons

    def test_a_head_is_no_target(self) -> None:
        with pytest.raises(PairError, match="is an EAGLE-3 head and no target"):
            ruling(self.eagle(), model())

    def test_dflash_and_gemma_assistants_are_known_by_their_architecture(self) -> None:
        dflash = model(general__architecture="dflash", dflash__target_hidden_size=64, dflash__target_layers=(1, 3))
        gemma = model(general__architecture="gemma4-assistant", **{"gemma4-assistant.embedding_length_out": 64})
        assert dflash.head == Head("DFlash", 64, (1, 3), 6)
        assert gemma.head == Head("MTP", 64, (), 6)
        assert ruling(model(), dflash).fits and ruling(model(), gemma).fits

    def test_layers_for_multi_token_prediction_inside_the_model_make_no_head_of_it(self, tmp_path: Path) -> None:
        own = describe(str(write_gguf(tmp_path / "own.gguf")))
        assert own.head is None and own.n_mtp_layers == 0
        alone = model(llama__nextn_predict_layers=1)  # no tensor of a first layer
        assert alone.head == Head("MTP", 64, (), 6)


def safetensors(shapes: dict[str, list[int]]) -> bytes:
    text = json.dumps(
        {name: {"dtype": "BF16", "shape": shape, "data_offsets": [0, 0]} for name, shape in shapes.items()}
    )
    return struct.pack("<Q", len(text)) + text.encode()


def write_folder(folder: Path, config: dict[str, Any] | None = None, vocab: bool = True) -> Path:
    """A Hugging Face folder with the tokens of `gguf_files`, the first two added and special."""
    folder.mkdir(parents=True, exist_ok=True)
    plain = {"architectures": ["LlamaForCausalLM"], "hidden_size": 64, "num_hidden_layers": 4, "vocab_size": 8}
    (folder / "config.json").write_text(json.dumps({**plain, **(config or {})}))
    if vocab:
        added = [{"id": i, "content": TOKENS[i], "special": True} for i in range(2)]
        model = {"type": "BPE", "vocab": {text: i for i, text in enumerate(TOKENS) if i > 1}}
        (folder / "tokenizer.json").write_text(json.dumps({"model": model, "added_tokens": added}))
        (folder / "tokenizer_config.json").write_text(
            json.dumps({"bos_token": {"content": "<s>"}, "eos_token": "</s>", "add_bos_token": False})
        )
    shapes = {"model.embed_tokens.weight": [8, 64], "model.layers.0.mlp.experts.0.up_proj.weight": [64, 64]}
    (folder / "model.safetensors").write_bytes(safetensors(shapes))
    return folder


class TestHuggingFaceFolders:
    def test_facts(self, tmp_path: Path) -> None:
        found = describe(str(write_folder(tmp_path, {"num_experts": 8, "num_experts_per_tok": 2})))
        assert (found.form, found.architecture, found.hidden_size, found.n_layers) == (
            *("Hugging Face", "LlamaForCausalLM"),
            *(64, 4),
        )
        assert (found.n_params, found.n_active_params, found.quantization) == (512 + 4096, 512 + 1024, "BF16")
        assert found.vocabulary is not None
        assert found.vocabulary.tokens == (*TOKENS, "", "")
        assert (found.vocabulary.bos_id, found.vocabulary.eos_id, found.vocabulary.n_base) == (0, 1, 4)
        assert found.vocabulary.padding == {6, 7} and found.vocabulary.special == {0, 1}

    def test_a_folder_and_a_gguf_file_of_one_model_agree(self, tmp_path: Path) -> None:
        gguf = write_gguf(tmp_path / "x.gguf", token_types=(CONTROL, CONTROL, *(NORMAL,) * 4))
        found = verdict(describe(str(write_folder(tmp_path / "hf"))), describe(str(gguf)))
        assert found.kind == "same vocabulary", found.reasons

    def test_heads_need_no_tokenizer(self, tmp_path: Path) -> None:
        config = {
            "architectures": ["LlamaForCausalLMEagle3"],
            "draft_vocab_size": 4,
            "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 2, 3]},
        }
        head = describe(str(write_folder(tmp_path / "head", config, vocab=False))).head
        assert head == Head("EAGLE-3", 64, (1, 2, 3), 8)
        dflash = {"architectures": ["DFlashDraftModel"], "dflash_config": {"target_layer_ids": [1, 9]}}
        assert describe(str(write_folder(tmp_path / "d", dflash, vocab=False))).head == Head("DFlash", 64, (1, 9), 8)
        speculator = {
            "architectures": ["Eagle3Speculator"],
            "speculators_model_type": "eagle3",
            "transformer_layer_config": {"hidden_size": 32, "vocab_size": 9},
        }
        assert describe(str(write_folder(tmp_path / "s", speculator, vocab=False))).head == Head("EAGLE-3", 32, (), 9)
        gemma = {"architectures": ["Gemma4AssistantForCausalLM"], "backbone_hidden_size": 5376, "hidden_size": 1024}
        assert describe(str(write_folder(tmp_path / "g", gemma, vocab=False))).head == Head("MTP", 5376, (), 8)

    def test_a_model_without_tokenizer_is_an_error(self, tmp_path: Path) -> None:
        with pytest.raises(ModelError, match=r"holds no tokenizer\.json"):
            describe(str(write_folder(tmp_path, vocab=False)))

    @pytest.mark.parametrize(
        ("file", "content", "said"),
        [
            ("config.json", b"{", "config.json of .* is damaged"),
            ("config.json", b"[" * 100_000, "config.json of .* is damaged"),
            ("config.json", b'{"vocab_size": 1000000000000}', "claims 1,000,000,000,000 tokens"),
            ("tokenizer.json", b'{"model": {"vocab": {"a": 99999999999}}}', "holds no vocabulary"),
            ("tokenizer.json", b'{"model": {"vocab": {"a": -1}}}', "holds no vocabulary"),
            ("tokenizer.json", b"{}", "holds no vocabulary"),
            ("model.safetensors", struct.pack("<Q", 1 << 60), "no safetensors file"),
            ("model.safetensors", struct.pack("<Q", 90_000_000) + b"{}", "no safetensors file"),
            ("model.safetensors", b"", "no safetensors file"),
            ("model.safetensors", safetensors({"a": [10**400, 2]}), "no tensor has such a shape"),
            ("model.safetensors", safetensors({"a": [-1, -5]}), "no tensor has such a shape"),
            ("model.safetensors", struct.pack("<Q", 4) + b"nope", "is damaged"),
        ],
    )
    def test_damaged_files_say_so(self, tmp_path: Path, file: str, content: bytes, said: str) -> None:
        folder = write_folder(tmp_path)
        (folder / file).write_bytes(content)
        with pytest.raises(ModelError, match=said) as caught:
            describe(str(folder))
        assert "\n" not in str(caught.value) and caught.value.hint


def test_a_missing_part_of_a_split_is_named(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "x-00001-of-00002.gguf", extra={"split.count": 2})
    with pytest.raises(ModelError, match=r"x-00002-of-00002\.gguf, a part of .*, is missing"):
        describe(str(path))
    with pytest.raises(ModelError, match=r"alone\.gguf is one of 2 parts, which its name does not say"):
        describe(str(path.rename(tmp_path / "alone.gguf")))


def test_what_is_no_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="of the kind 'adapter'"):
        describe(str(write_gguf(tmp_path / "x.gguf", extra={"general.type": "adapter"})))


class TestAdvice:
    def test_every_point_says_where_it_comes_from(self) -> None:
        target, draft = model(llama__expert_count=256, llama__expert_used_count=8), model()
        for pair in ((target, draft), (draft, model(tuple("abcdef")))):
            points = advise(*pair, verdict(*pair))
            assert points and all(point.source and point.text for point in points)
            assert {point.label for point in points} <= {"rule of thumb", "measured", "formula"}
        assert {"MoE target", "second GPU", "draft quantisation"} <= {
            p.topic for p in advise(target, draft, verdict(target, draft))
        }

    @pytest.mark.parametrize("draft", [model(), model(tuple("abcdef"))], ids=["one vocabulary", "another"])
    def test_the_figures_on_draft_quantisation_are_those_on_record(self, draft: Description) -> None:
        record = Path(__file__).parents[1] / "bench" / "results" / "draft-quantisation-qwen2.5-coder-0.5b.json"
        measured = json.loads(record.read_text(encoding="utf-8"))
        points = advise(model(), draft, verdict(model(), draft))
        (point,) = (p for p in points if (p.topic, p.label) == ("draft quantisation", "measured"))
        assert f"{measured['prompts']} prompts" in point.source
        for figures in measured["drafts"]:
            shown = f"{figures['agreement']:.1%}".replace("%", " %"), f"{figures['t1_ms']:.1f}"
            assert all(text in point.text for text in (*shown, f"{figures['predicted_speed_up']:.2f}"))

    def test_fitting_sizes_are_a_tenth_to_a_fifth(self) -> None:
        assert fitting_sizes(70e9) == pytest.approx((7e9, 14e9))

    def test_experts_read_as_the_formula_has_it(self) -> None:
        """256 experts, 8 a token: 1.97 times as many at width 2, 3.82 at width 4."""
        assert experts_read(256, 8, 1) == pytest.approx(8)
        assert experts_read(256, 8, 2) / 8 == pytest.approx(1.97, abs=0.005)
        assert experts_read(256, 8, 4) / 8 == pytest.approx(3.82, abs=0.005)

    def test_a_second_card_costs_copies_and_bytes(self) -> None:
        assert transfer_s(0, 1e9) == pytest.approx(40e-6)
        assert transfer_s(1e9, 25e9) == pytest.approx(40e-6 + 0.04)


def test_the_header_of_a_real_writer_gives_the_same_vocabulary(tmp_path: Path) -> None:
    gguf = read_gguf(write_gguf(tmp_path / "x.gguf", tokens=(*TOKENS, "[PAD6]")))
    vocabulary = Vocabulary.of_gguf(gguf)
    assert vocabulary.tokens == (*TOKENS, "[PAD6]") and vocabulary.padding == {6}
    assert (vocabulary.algorithm, vocabulary.pre_tokenizer, vocabulary.add_bos) == ("BPE", "smollm", False)
