"""Memory plans: against hand-worked values, against what llama.cpp says, and that the advice is sensible.

The models are headers without weights: see `model_headers`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import model_headers as headers
import pytest
from typer.testing import CliRunner

from slipstream.cli.main import app
from slipstream.models.gguf import read_gguf
from slipstream.models.hardware import GPU_RESERVE_BYTES, X86_REPACKED, Device, Machine
from slipstream.models.memory import (
    Advice,
    Context,
    Load,
    Setup,
    Shape,
    advise,
    compute_bytes,
    kv_bytes,
    output_bytes,
    plan,
    read_shape,
    state_bytes,
)

MIB, GIB = 1 << 20, 1 << 30
Write = Callable[[Path], Path]


def shape_of(write: Write, folder: Path) -> Shape:
    return read_shape([read_gguf(write(folder))], X86_REPACKED)


def cards(*sizes_gib: float, memory_gib: float = 64) -> Machine:
    gpus = (Device(f"GPU{i}", int(n * GIB), int(n * GIB), GPU_RESERVE_BYTES) for i, n in enumerate(sizes_gib))
    memory = int(memory_gib * GIB)
    return Machine((Device("CPU", memory, memory), *gpus), repacked=X86_REPACKED)


def cache(shape: Shape, context: Context) -> int:
    return sum(kv_bytes(layer, shape, context) for layer in shape.layers)


def state(shape: Shape, context: Context) -> int:
    return sum(state_bytes(layer, shape, context) for layer in shape.layers)


# Weights and caches


@pytest.mark.parametrize(
    ("write", "published_bytes"),
    [
        (headers.llama_1b, 807_694_464),
        (headers.llama_8b, 4_920_734_272),
        (headers.llama_70b, 42_520_393_152),
        (headers.qwen3_32b, 19_762_149_024),
    ],
)
def test_weights_are_those_of_the_published_file_but_for_its_vocabulary(write, published_bytes, tmp_path):
    left = published_bytes - shape_of(write, tmp_path).weights_bytes
    assert 4_000_000 < left < 9_000_000


@pytest.mark.parametrize(
    ("write", "kv_mib"),
    [
        (headers.llama_8b, 32 * (8 * 128) * 2 * 2 * 8192 / MIB),  # 32 layers, 8 heads of 128, K and V, two bytes
        (headers.llama_70b, 80 * (8 * 128) * 2 * 2 * 8192 / MIB),
        (headers.qwen3_32b, 64 * (8 * 128) * 2 * 2 * 8192 / MIB),  # head size is not n_embd ÷ heads
        (headers.gemma3_27b, 62 * (16 * 128) * 2 * 2 * 8192 / MIB),
        (headers.deepseek_v2_lite, 27 * (512 + 64) * 2 * 8192 / MIB),  # one latent row, no V
        (headers.lfm2_1b, 6 * (8 * 64) * 2 * 2 * 8192 / MIB),  # six of sixteen layers attend
        (headers.qwen35, 1 * (2 * 256) * 2 * 2 * 8192 / MIB),  # one of four
    ],
)
def test_kv_cache_by_architecture(write, kv_mib, tmp_path):
    assert cache(shape_of(write, tmp_path), Context(8192)) == kv_mib * MIB


def test_quantised_caches_count_blocks(tmp_path):
    shape = shape_of(headers.llama_8b, tmp_path)
    plain = cache(shape, Context(8192))
    assert cache(shape, Context(8192, type_k="Q8_0", type_v="Q8_0")) == plain * 34 // 64
    assert cache(shape, Context(8192, type_k="Q8_0", type_v="Q4_0")) == plain // 2 * 34 // 64 + plain // 2 * 18 // 64


def test_caches_are_for_all_sequences_and_padded(tmp_path):
    shape = shape_of(headers.llama_8b, tmp_path)
    assert cache(shape, Context(2048, n_seq=4)) == cache(shape, Context(8192))
    assert cache(shape, Context(1000)) == cache(shape, Context(1024))


def test_layers_with_a_window_hold_window_and_pass(tmp_path):
    shape = shape_of(headers.gemma3_27b, tmp_path)
    row = 16 * 128 * 2 * 2
    windowed = Context(8192, n_seq=2, swa_full=False)
    assert cache(shape, windowed) == 10 * row * 16384 + 52 * row * (2 * 1024 + 512)
    assert cache(shape, replace(windowed, swa_full=True)) == 62 * row * 16384


def test_recurrent_state_has_a_snapshot_for_each_token_that_may_go(tmp_path):
    hybrid = shape_of(headers.lfm2_1b, tmp_path)
    assert state(hybrid, Context(8192)) == 10 * 2 * 2048 * 4
    assert state(hybrid, Context(8192, n_seq=3, n_rollback=16)) == 10 * 2 * 2048 * 4 * 3 * 17
    delta_net = shape_of(headers.qwen35, tmp_path)
    assert state(delta_net, Context(8192)) == 3 * (3 * (4096 + 2 * 16 * 128) + 128 * 4096) * 4


def test_layers_that_share_a_cache_have_none(tmp_path):
    def sharing(n_shared: int) -> Shape:
        path = headers.transformer(
            tmp_path / "sharing.gguf",
            "gemma4",
            n_layer=8,
            n_embd=512,
            n_ff=1024,
            n_head=4,
            n_head_kv=2,
            n_vocab=1024,
            metadata={"attention.shared_kv_layers": n_shared},
        )
        return read_shape([read_gguf(path)], {})

    assert cache(sharing(6), Context(512)) * 4 == cache(sharing(0), Context(512))


def test_a_fused_projection_is_read_by_its_heads(tmp_path):
    tensors: headers.Tensors = {
        "token_embd.weight": ((256, 512), "F16"),
        "blk.0.attn_qkv.weight": ((256, 512), "F16"),
    }
    metadata = {"block_count": 1, "embedding_length": 256, "attention.head_count": 4, "attention.head_count_kv": 2}
    path = headers.write_header(tmp_path / "fused.gguf", "phi3", metadata, tensors)
    layer = read_shape([read_gguf(path)], {}).layers[0]
    assert (layer.k_width, layer.v_width) == (2 * 64, 2 * 64)


# llama.cpp's own word

HEADERS = [
    headers.llama_8b,
    headers.llama_70b,
    headers.qwen3_32b,
    headers.gemma3_27b,
    headers.deepseek_v2_lite,
    headers.lfm2_1b,
    headers.qwen35,
]
CONTEXTS = [
    Context(8192, n_rollback=8),
    Context(1000, n_seq=3),
    Context(32768, n_batch=64, type_k="Q8_0", type_v="Q8_0"),
    Context(8192, n_seq=2, swa_full=False),
]


@pytest.mark.parametrize("write", HEADERS, ids=lambda write: write.__name__)
def test_estimates_are_near_what_llama_cpp_would_allocate(write, tmp_path):
    from slipstream.runtimes.llamacpp.measured import measure

    path = write(tmp_path)
    shape = read_shape([read_gguf(path)], X86_REPACKED)
    for context in CONTEXTS:
        said = measure(path, context)
        assert cache(shape, context) == pytest.approx(said.kv_bytes, rel=0.001)
        assert state(shape, context) == pytest.approx(said.state_bytes, rel=0.03, abs=0.02 * MIB)
        assert compute_bytes(shape, context) == pytest.approx(said.compute_bytes, rel=0.05)


def test_measuring_leaves_the_log_as_it_was(tmp_path):
    from slipstream.runtimes.llamacpp.library import ffi, open_library, take_errors
    from slipstream.runtimes.llamacpp.measured import measure

    library = open_library()
    measure(headers.lfm2_1b(tmp_path), Context(512))
    take_errors()
    assert library.llama_model_load_from_file(b"/nowhere.gguf", library.llama_model_default_params()) == ffi.NULL
    assert "nowhere" in take_errors()


def test_a_measurement_replaces_the_estimate(tmp_path):
    from slipstream.models.memory import Measurement

    load = Load(shape_of(headers.lfm2_1b, tmp_path), Context(8192), measured=Measurement(100 * MIB, MIB, 7 * MIB))
    parts = {part.name: part.n_bytes for part in plan(Setup(cards(), load)).parts}
    assert parts["compute buffers"] == 7 * MIB
    assert parts["KV cache"] == pytest.approx(100 * MIB, abs=100)


# Where it lies


def test_a_card_gets_a_copy_of_embeddings_that_are_the_output_too(tmp_path):
    shape = shape_of(headers.llama_1b, tmp_path)
    load = Load(shape, Context(8192))
    assert shape.tied_bytes == 2048 * 128256 // 256 * 210

    def weights(machine: Machine) -> int:
        return sum(part.n_bytes for part in plan(Setup(machine, load)).parts if part.name == "weights")

    assert weights(cards(24)) == weights(cards()) + shape.tied_bytes


def test_repacked_weights_lie_beside_the_file_on_the_cpu_alone(tmp_path):
    load = Load(shape_of(headers.llama_8b, tmp_path), Context(8192))
    on_cpu, on_card = (
        {part.name: part.n_bytes for part in plan(Setup(machine, load)).parts} for machine in (cards(), cards(24))
    )
    n_q4 = sum(t.size_bytes or 0 for t in read_gguf(headers.llama_8b(tmp_path)).tensors if t.type_name == "Q4_K")
    assert on_cpu["repacked weights"] == n_q4 - 4096 * 128256 // 256 * 144  # rows of embeddings are only fetched
    assert "repacked weights" not in on_card


def test_a_draft_and_a_second_context_have_caches_and_buffers_of_their_own(tmp_path):
    target, draft = (Load(shape_of(write, tmp_path), Context(8192)) for write in (headers.llama_8b, headers.llama_1b))
    parts = plan(Setup(cards(24), target, draft)).parts
    names = {part.name for part in parts if part.model == "draft"}
    assert names == {"weights", "KV cache", "compute buffers", "outputs"}

    hybrid = Load(shape_of(headers.qwen35, tmp_path), Context(8192))
    plain, with_mtp = plan(Setup(cards(24), hybrid)), plan(Setup(cards(24), hybrid, mtp=True))
    own = {part.name: part.n_bytes for part in with_mtp.parts if part.model == "mtp"}
    assert own["KV cache"] == 1 * 512 * 2 * 2 * 8192
    assert own["outputs"] == output_bytes(hybrid.shape, hybrid.context) == 4 * 151936
    more = hybrid.shape.mtp_layers[0].weights_bytes + sum(own.values())
    assert with_mtp.total_bytes == plain.total_bytes + more


def test_two_contexts_of_a_draft_share_its_weights_alone(tmp_path):
    target, draft = (Load(shape_of(write, tmp_path), Context(8192)) for write in (headers.llama_8b, headers.llama_1b))
    one, two = (plan(Setup(cards(24), target, replace(draft, n_contexts=n))).parts for n in (1, 2))
    for before, after in zip(one, two, strict=True):
        twice = before.model == "draft" and before.name != "weights"
        assert after.n_bytes == before.n_bytes * (2 if twice else 1)


def test_a_draft_goes_where_the_target_left_room(tmp_path):
    target, draft = (Load(shape_of(write, tmp_path), Context(8192)) for write in (headers.qwen35, headers.llama_1b))
    parts = plan(Setup(cards(1.5, 1.5), target, draft)).parts  # the target's logits lie on the second card
    first, second = (part.n_bytes for part in parts if (part.model, part.name) == ("draft", "KV cache"))
    assert first > 2 * second


# Advice


def advice(machine: Machine, tmp_path: Path, target: Write, draft: Write | None = None, n_ctx: int = 8192):
    loads = [Load(shape_of(write, tmp_path), Context(n_ctx, n_outputs=33)) for write in (target, draft) if write]
    return advise(Setup(machine, *loads))


def options(said: Advice) -> list[str]:
    return [remedy.options for remedy in said.remedies]


QUANTIZED = "--cache-type-k q8_0 --cache-type-v q8_0"


def test_70b_with_8b_on_two_cards_of_24_fits_with_a_change(tmp_path):
    said = advice(cards(24, 24), tmp_path, headers.llama_70b, headers.llama_8b)
    assert said.verdict == "fits with changes"
    assert options(said) == [QUANTIZED, "--draft-gpu-layers 0", "--draft suffix", "--draft MODEL"]
    assert advice(cards(24, 24), tmp_path, headers.llama_70b, headers.llama_8b, n_ctx=4096).verdict == "fits"


def test_8b_with_1b_on_one_card_fits(tmp_path):
    assert advice(cards(24), tmp_path, headers.llama_8b, headers.llama_1b).verdict == "fits"


def test_what_stays_free_is_told_of_each_device(tmp_path):
    said = advice(cards(100, 24, memory_gib=8), tmp_path, headers.llama_8b).sentence
    assert re.fullmatch(r"Fits: [\d.]+ GiB stay free on GPU0, [\d.]+ GiB on GPU1, 7\.\d GiB on CPU\.", said)


def test_no_coarser_target_for_the_sake_of_a_draft(tmp_path):
    said = advice(cards(6.5), tmp_path, headers.llama_8b, headers.llama_1b)
    assert said.verdict == "fits with changes"
    assert options(said) == ["--draft-gpu-layers 0", "--draft suffix", "--draft MODEL"]
    assert "take no coarser one for a draft" in said.sentence


def test_two_changes_come_before_a_shorter_context(tmp_path):
    said = advice(cards(8), tmp_path, headers.llama_8b, headers.llama_1b, n_ctx=32768)
    assert options(said) == [f"--draft-gpu-layers 0 {QUANTIZED}", f"--draft suffix {QUANTIZED}"]


def test_layers_of_the_target_leave_the_card_with_or_after_its_draft(tmp_path):
    said = advice(cards(3), tmp_path, headers.llama_8b, headers.llama_1b, n_ctx=32768)
    assert said.verdict == "fits with changes"
    changed = [line.rpartition("--gpu-layers ") for line in options(said)]
    assert {before.split(" --cache")[0].strip() for before, _, _ in changed} == {
        "--draft-gpu-layers 0",
        "--draft suffix",
    }
    assert all(0 < int(n) < 33 for _, _, n in changed)


@pytest.mark.parametrize("size_gib", [0.6, 1, 1.5, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12])
def test_no_draft_on_the_card_with_its_target_pushed_off(size_gib, tmp_path):
    said = advice(cards(size_gib), tmp_path, headers.llama_8b, headers.llama_1b, n_ctx=32768)
    assert said.verdict != "doesn't fit"
    for line in options(said):
        assert " --gpu-layers" not in f" {line}" or line.startswith(("--draft suffix", "--draft-gpu-layers 0"))


def test_where_memory_is_short_everywhere_both_lie_on_the_cpu_with_less_context(tmp_path):
    said = advice(cards(1, memory_gib=9), tmp_path, headers.llama_8b, n_ctx=32768)
    assert said.verdict == "fits with changes"
    assert all("--gpu-layers 0" in line and "--ctx" in line for line in options(said))


def test_fewer_layers_where_the_target_alone_is_too_large(tmp_path):
    said = advice(cards(24), tmp_path, headers.llama_70b)
    assert [line.split()[0] for line in options(said)] == ["--gpu-layers"]


def test_what_cannot_fit_does_not(tmp_path):
    said = advice(cards(24, memory_gib=8), tmp_path, headers.llama_70b, headers.llama_8b)
    assert (said.verdict, said.remedies) == ("doesn't fit", ())


def test_a_shorter_context_is_the_longest_that_fits(tmp_path):
    load = Load(shape_of(headers.llama_8b, tmp_path), Context(131072))
    setup = Setup(cards(memory_gib=12), load)
    n_ctx = int(options(advise(setup))[0].split("--ctx ")[1])
    for n, fits in ((n_ctx, True), (n_ctx + 256, False)):
        assert plan(replace(setup, target=replace(load, context=Context(n)))).fits is fits


def test_no_more_context_is_advised_than_the_target_was_trained_for(tmp_path):
    n_trained = shape_of(headers.llama_8b, tmp_path).n_ctx_train
    large = advice(cards(1000), tmp_path, headers.llama_8b, n_ctx=1_000_000)
    assert (large.verdict, len(large.notes)) == ("fits", 1)
    assert f"trained for {n_trained:,} tokens" in large.notes[0]
    small = advice(cards(48), tmp_path, headers.llama_8b, n_ctx=1_000_000)
    assert (options(small), small.notes) == ([f"--ctx {n_trained}"], large.notes)
    for size_gib in (4, 8, 12):
        lines = options(advice(cards(size_gib), tmp_path, headers.llama_8b, n_ctx=1_000_000))
        assert lines
        assert all(int(line.split("--ctx ")[1].split()[0]) <= n_trained for line in lines)
    assert advice(cards(24), tmp_path, headers.llama_8b).notes == ()


@pytest.mark.parametrize("line", ["The target was trained for", "GiB on CPU"])
def test_the_command_tells_of_training_and_free_memory(line, tmp_path):
    path = headers.llama_1b(tmp_path)
    said = CliRunner().invoke(app, ["plan", str(path), "--gpu", "900GiB", "--ctx", "1000000"])
    assert said.exit_code == 0
    assert sum(line in shown for shown in said.output.splitlines()) == 1
