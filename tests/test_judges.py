"""Each engine's rule, at its borders: what it takes, what it refuses, and what it does not notice."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import typer
from gguf_files import TOKENS as FEW
from gguf_files import write_gguf
from test_pairing import CONTROL, NORMAL, UNUSED, header, model, qwen

from slipstream.cli.check import check
from slipstream.models.judges import Judgement, judge, llama_cpp, mlx_lm, openvino, transformers, vllm
from slipstream.models.pairing import Comparison, compare, verdict
from slipstream.models.vocabulary import Vocabulary

TOKENS = tuple(f"t{i}" for i in range(200))


def vocabulary(tokens: tuple[str, ...] = TOKENS, kinds: tuple[int, ...] | None = None, **more: Any) -> Vocabulary:
    return Vocabulary.of_gguf(header(tokens, kinds, **more))


def both(target: Vocabulary, draft: Vocabulary) -> tuple[Vocabulary, Vocabulary, Comparison]:
    return target, draft, compare(target, draft)


def with_token(token: int, text: str) -> Vocabulary:
    return vocabulary((*TOKENS[:token], text, *TOKENS[token + 1 :]))


class TestLlamaCpp:
    def test_ids_0_to_4_are_not_compared(self) -> None:
        assert llama_cpp(vocabulary(), with_token(4, "other")).takes is True
        refused = llama_cpp(vocabulary(), with_token(5, "other"))
        assert (refused.takes, refused.reason) == (False, "token 5 is 't5' and 'other'")

    @pytest.mark.parametrize(("more", "takes"), [(128, True), (129, False)])
    def test_sizes_may_differ_by_128(self, more: int, takes: bool) -> None:
        longer = vocabulary((*TOKENS, *(f"more{i}" for i in range(more))))
        assert llama_cpp(vocabulary(), longer).takes is takes
        assert llama_cpp(longer, vocabulary()).takes is takes

    def test_another_type(self) -> None:
        refused = llama_cpp(vocabulary(), vocabulary(tokenizer__ggml__model="llama"))
        assert (refused.takes, refused.reason) == (False, "vocabulary types BPE and SPM are not one")

    def test_bos_counts_only_where_it_is_added(self) -> None:
        added, other = {"tokenizer__ggml__add_bos_token": True}, {"tokenizer__ggml__bos_token_id": 3}
        assert llama_cpp(vocabulary(), vocabulary(**other)).takes is True
        assert llama_cpp(vocabulary(**added), vocabulary(**added, **other)).takes is False
        assert "one adds BOS" in llama_cpp(vocabulary(**added), vocabulary()).reason

    def test_eos_likewise(self) -> None:
        added, other = {"tokenizer__ggml__add_eos_token": True}, {"tokenizer__ggml__eos_token_id": 3}
        assert llama_cpp(vocabulary(), vocabulary(**other)).takes is True
        assert llama_cpp(vocabulary(**added), vocabulary(**added, **other)).takes is False

    def test_the_pre_tokenizer_says_whether_bos_is_added_unless_the_file_does(self) -> None:
        llama3 = vocabulary(tokenizer__ggml__pre="llama-bpe")
        assert llama3.add_bos and not vocabulary(tokenizer__ggml__pre="qwen2").add_bos
        assert not vocabulary(tokenizer__ggml__pre="llama-bpe", tokenizer__ggml__add_bos_token=False).add_bos


class TestEnginesThatJudgeBySize:
    @pytest.mark.parametrize("engine", [vllm, mlx_lm, transformers])
    def test_equal_size_with_other_tokens_is_taken_and_warned_of(self, engine: Any) -> None:
        judgement: Judgement = engine(*both(vocabulary(), with_token(7, "other")))
        assert judgement.takes is True and "hides different tokens" in judgement.warning

    @pytest.mark.parametrize("engine", [vllm, mlx_lm, transformers])
    def test_equal_tokens_are_taken_without_a_warning(self, engine: Any) -> None:
        judgement: Judgement = engine(*both(vocabulary(), vocabulary()))
        assert (judgement.takes, judgement.warning) == (True, "")

    def test_padding_alone_makes_vllm_and_transformers_refuse_and_not_mlx(self) -> None:
        padded = vocabulary((*TOKENS, "[PAD200]"), (*(NORMAL,) * 200, UNUSED))
        assert vllm(*both(vocabulary(), padded)).takes is False
        assert "use_heterogeneous_vocab" in vllm(*both(vocabulary(), padded)).reason
        assert "assistant_tokenizer" in transformers(*both(vocabulary(), padded)).reason
        assert mlx_lm(*both(vocabulary(), padded)).takes is True

    def test_mlx_does_not_count_added_tokens(self) -> None:
        added = vocabulary((*TOKENS, "<tool>"), (*(NORMAL,) * 200, CONTROL))
        judgement = mlx_lm(*both(vocabulary(), added))
        assert judgement.takes is True and "special tokens differ" in judgement.warning


class TestOpenVino:
    @pytest.mark.parametrize("what", ["bos", "eos", "padding"])
    def test_three_ids_must_agree(self, what: str) -> None:
        other = vocabulary(**{f"tokenizer__ggml__{what}_token_id": 9})
        assert openvino(*both(vocabulary(), other)).takes is False

    def test_other_tokens_are_left_to_one_sentence(self) -> None:
        judgement = openvino(*both(vocabulary(), with_token(7, "other")))
        assert judgement.takes is None and "one sentence" in judgement.reason and judgement.warning


def by_engine(target: Any, draft: Any) -> dict[str, bool | None]:
    return {j.engine: j.takes for j in judge(target, draft, verdict(target, draft))}


def test_qwen_of_two_sizes_as_each_engine_sees_it() -> None:
    assert by_engine(qwen(152_064), qwen(151_936)) == {
        "slipstream": True,
        "llama.cpp": True,
        "vLLM": False,
        "MLX-LM": True,
        "transformers": False,
        "OpenVINO GenAI": True,
    }


def test_a_recurrent_draft_is_refused_by_slipstream() -> None:
    assert by_engine(model(), model(llama__ssm__conv_kernel=4))["slipstream"] is False


def test_llama_cpp_wants_three_layers_of_an_eagle3_head() -> None:
    def eagle(*layers: int) -> Any:
        more = {"eagle3__target_hidden_size": 64, "eagle3__target_layers": layers}
        return model(general__architecture="eagle3", **more)

    assert by_engine(model(), eagle(1, 2, 3))["llama.cpp"] is True
    assert by_engine(model(), eagle(1, 2))["llama.cpp"] is False
    assert by_engine(model(), eagle(1, 2, 9))["llama.cpp"] is False
    assert by_engine(model(), eagle(1, 2, 3))["slipstream"] is False


class TestCommand:
    """`slipstream check`."""

    def run(self, *arguments: str | Path) -> tuple[int, str]:
        from typer.testing import CliRunner

        app = typer.Typer()
        app.command()(check)
        done = CliRunner().invoke(app, list(map(str, arguments)))
        return done.exit_code, done.output

    def test_a_pair_that_fits(self, tmp_path: Path) -> None:
        code, text = self.run(write_gguf(tmp_path / "a.gguf"), write_gguf(tmp_path / "b.gguf"))
        assert code == 0 and "Verdict: same vocabulary\n" in text and "[rule of thumb: " in text
        assert "  llama.cpp       yes  " in text and "--stats" in text

    def test_one_of_another_vocabulary_can_draft(self, tmp_path: Path) -> None:
        other = write_gguf(tmp_path / "b.gguf", tokens=FEW[::-1])
        code, text = self.run(write_gguf(tmp_path / "a.gguf"), other)
        assert code == 0 and "Verdict: different (needs translation)" in text
        assert "  slipstream      yes  token 0 is" in text and "by common tokens and by text" in text

    def test_json(self, tmp_path: Path) -> None:
        code, text = self.run(write_gguf(tmp_path / "a.gguf"), write_gguf(tmp_path / "b.gguf"), "--json")
        data = json.loads(text)
        assert (code, data["verdict"]["kind"], data["target"]["vocab_size"]) == (0, "same vocabulary", len(FEW))
        assert len(data["engines"]) == 6 and {"label", "source"} <= set(data["advice"][0])

    def test_names_of_tokens_cannot_steer_the_terminal(self, tmp_path: Path) -> None:
        other = write_gguf(tmp_path / "b.gguf", tokens=("\x1b[2J", *FEW[1:]))
        assert "\x1b" not in self.run(write_gguf(tmp_path / "a.gguf"), other)[1]
