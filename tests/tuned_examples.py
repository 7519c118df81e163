"""Tuning runs as they might have ended, for tests of what is made from them. The figures are invented."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from operator import mul

from slipstream.engines.protocol import Speculation
from slipstream.lab.tuned import (
    ArmResult,
    CostPoint,
    EngineResult,
    Ratio,
    Sample,
    State,
    Timeline,
    Tuned,
    Verdict,
    Written,
)

HOSTILE = "<script>alert('x')</script>\"'&\x00\x1b[31m\u202e</style>{{ 7 * 7 }}"
"""What a name, a reason or a log line may hold."""

FACTORS = {"chat": 0.96, "code": 1.31, "edit": 2.05, "summary": 1.12, "maths": 0.99, "json": 1.42}


def ratio(value: float, n: int = 6) -> Ratio:
    return Ratio(value, value * (1 - 0.25 / n**0.5), value * (1 + 0.3 / n**0.5), n)


def arm(
    name: str,
    factor: float,
    categories: Sequence[str] = tuple(FACTORS),
    state: State = "measured",
    rates: Sequence[float | None] = (0.81, 0.72, 0.66, 0.58),
) -> ArmResult:
    """An arm whose speed-up is `factor` overall, and by category what suits the category."""
    by_category = {category: ratio(FACTORS.get(category, 1.1) * factor / 1.24) for category in categories}
    return ArmResult(
        arm=name,
        speculation=(Speculation(name),),
        state=state,
        reason="Its interval lay below that of ngram-mod n 16." if state == "dropped" else "",
        overall=ratio(factor, 36),
        by_category=by_category,
        tokens_per_s=43.6 * factor,
        plain_tokens_per_s=43.6,
        acceptance_rate=0.71,
        mean_tokens_a_pass=2.31,
        conditional=tuple(rates),
        survival=tuple(accumulate((rate or 0.5 for rate in rates), mul)),
        n_same=36,
        n_compared=36,
        parted=(),
        timeline=timeline(factor),
        samples=samples(factor, categories),
    )


def timeline(factor: float) -> Timeline:
    """An answer of 128 tokens: plain one by one, the arm in bursts that grow longer in its middle."""
    plain = tuple((0.21 + i / 43.6, i + 1) for i in range(128))
    times, n = [(0.22, 1)], 1
    while n < 128:
        burst = 1 if n < 30 or n > 100 else 4
        n = min(128, n + burst)
        times.append((times[-1][0] + (burst + 0.2) / (43.6 * factor), n))
    return Timeline("edit-3", "edit", tuple(times), plain)


def samples(factor: float, categories: Sequence[str]) -> tuple[Sample, ...]:
    """Six rounds over the categories; the machine gets slower towards the end."""
    return tuple(
        Sample(
            at_s=30.0 + 12.0 * i,
            category=category,
            tokens_per_s=43.6 * FACTORS.get(category, 1.1) * factor / 1.24 * (1 - 0.004 * i),
            plain_tokens_per_s=43.6 * (1 - 0.004 * i) + (i % 3 - 1),
            acceptance_rate=min(0.95, 0.35 * FACTORS.get(category, 1.1) + 0.02 * (i % 4)),
        )
        for i, category in enumerate(list(categories) * 6)
    )


def failed(name: str, reason: str) -> ArmResult:
    return ArmResult(
        name, (Speculation(name),), "failed", reason, None, {}, None, None, None, None, (), (), 0, 0, (), None
    )


LOG = "\n".join(
    [
        "llama.cpp ended before it was ready (exit status 1). Its last lines:",
        "load_model: loading draft model '/models/draft.gguf'",
        "llama_model_load: error loading model: tensor 'blk.0.attn_q.weight' has wrong shape; expected 576, got 1024",
        "srv    load_model: failed to load draft model, '/models/draft.gguf'",
        "main: exiting due to model loading error",
    ]
)

COMMAND_LINE = Written(
    "Command line",
    "sh",
    "llama-server \\\n  --model qwen2.5-coder-0.5b-instruct-q4_k_m.gguf \\\n  --ctx-size 4096 \\\n"
    "  --spec-type ngram-mod \\\n  --spec-ngram-mod-n-max 16\n",
    "llama-server.sh",
)
PRESET = Written(
    "Models preset", "text", "[qwen2.5-coder-0.5b]\nspec-type = ngram-mod\nspec-ngram-mod-n-max = 16\n", "p.ini"
)


def clear_win() -> Tuned:
    """llama.cpp gains, differently by category; one arm dropped, one failed, one changed a text."""
    best = arm("ngram-mod n 16", 1.24)
    parting = replace(
        arm("ngram-mod n 64", 1.21, rates=(0.8, 0.7, None, 0.61, 0.6, 0.55, 0.5)),
        n_same=34,
        parted=(("edit-3", 112), ("chat-1", 9)),
    )
    slow = arm("draft-simple n 4 p 0.75", 0.78, state="dropped", rates=(0.9, 0.84, 0.8, 0.77))
    both = arm("draft-simple n 2 + ngram-simple", 1.03, rates=(0.88, 0.8))
    arms = (best, parting, both, slow, failed("draft-eagle3 n 3", LOG))
    engine = EngineResult(
        "llama.cpp",
        "b11549",
        1,
        dict.fromkeys(FACTORS, 6),
        43.6,
        7,
        144,
        2,
        1,
        arms,
        Verdict(
            "ngram-mod n 16",
            best.overall,
            "Its interval lies above 1, on 36 prompts that did not choose it.",
            "Acceptance is 71 %; guides say that speculation pays above 60 to 70 %.",
        ),
        {
            "chat": Verdict("plain", None, "Acceptance too low: 34 %."),
            "code": Verdict("ngram-mod n 16", best.by_category["code"], ""),
            "edit": Verdict("ngram-mod n 64", parting.by_category["edit"], "The text repeats what is to be edited."),
            "maths": Verdict(None, None, "The interval holds 1."),
        },
        (COMMAND_LINE, PRESET),
    )
    curve = {1: 1.0, 2: 2.05, 3: 3.03, 4: 2.59, 5: 3.8, 6: 3.54, 8: 4.58, 10: 4.52, 12: 5.89, 16: 6.92, 32: 13.9}
    cost = tuple(CostPoint(w, n, 1 + (t - 1) * (1 + n / 20000)) for n in (256, 4096) for w, t in curve.items())
    return Tuned(
        slipstream="0.2.0",
        started="2026-11-30T01:51:07+00:00",
        seconds=583.4,
        command="slipstream tune qwen2.5-coder-0.5b-instruct-q4_k_m.gguf --engine llama.cpp --budget 10m",
        machine="2 × AMD EPYC 7003 (AVX2), 24 GiB, no GPU",
        model="/home/user/models/qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
        draft="/home/user/models/draft.gguf",
        n_tokens=128,
        prompts=dict.fromkeys(FACTORS, 6),
        engines=(engine,),
        cost=cost,
    )


def off() -> Tuned:
    """Nothing pays: every interval below 1."""
    arms = (arm("ngram n 5", 0.91), arm("draft_model n 3", 0.31, rates=(0.22,)), arm("suffix", 0.97))
    verdict = Verdict(
        "plain",
        None,
        "suffix is 0.97 [0.93–1.02] times as fast as plain decoding. Verification is too dear on this "
        "hardware: a pass over 4 tokens takes 2.6 times that of one, and 1.4 tokens were accepted a pass.",
        "Acceptance is 48 %; guides ask for 60 to 70 %.",
    )
    settings = (replace(COMMAND_LINE, text="vllm serve model\n"),)
    engine = EngineResult(
        "vllm", "0.33.0", 4, dict.fromkeys(FACTORS, 6), 170.2, 0, 108, 0, 0, arms, verdict, {}, settings
    )
    return replace(clear_win(), engines=(engine,), cost=(), draft=None, model="Qwen/Qwen2.5-Coder-0.5B-Instruct")


def undecided() -> Tuned:
    """The budget ended before anything could be told."""
    short = replace(arm("ngram-simple", 1.02), overall=Ratio(1.02, 0.71, 1.46, 2), by_category={}, conditional=())
    verdict = Verdict(None, None, "ngram-simple is 1.02 [0.71–1.46] times as fast as plain decoding, on 2 prompts.")
    arms = (replace(short, timeline=None, samples=()),)
    engine = EngineResult("llama.cpp", "b11549", 1, {"chat": 1, "code": 1}, 43.6, 0, 2, 0, 0, arms, verdict, {}, ())
    return replace(clear_win(), engines=(engine,), cost=(), seconds=20.2)


def several_engines() -> Tuned:
    """Three engines with three verdicts, one of them at two numbers of requests at a time."""
    win, loss, open_ = clear_win().engines[0], off().engines[0], undecided().engines[0]
    own = replace(win, name="slipstream", version="0.2.0", concurrency=4)
    return replace(clear_win(), engines=(win, own, loss, replace(open_, name="mlx-lm", version="0.32.0")))


def japanese() -> Tuned:
    """Names of models, categories and arms in Japanese."""
    names = ("雑談", "翻訳（日本語から英語へ）", "コードの編集")
    best = arm("下書きモデル n 4", 1.4, names)
    engine = replace(
        clear_win().engines[0],
        arms=(best, arm("接尾辞", 1.1, names)),
        verdict=Verdict("下書きモデル n 4", best.overall, "六つの分野のうち五つで速い。"),
        by_category={"翻訳（日本語から英語へ）": Verdict("接尾辞", best.by_category[names[1]], "")},
    )
    model = "/home/利用者/模型/日本語大規模言語模型-七十億-指示調整済み-第二版.q4_k_m.gguf"
    return replace(clear_win(), model=model, prompts=dict.fromkeys(names, 6), engines=(engine,))


def hostile() -> Tuned:
    """Every text is HTML, JavaScript, a template, control characters."""
    names = (HOSTILE, "__proto__")
    bad = replace(arm(HOSTILE, 1.3, names), reason=f"{HOSTILE}\n{HOSTILE}", n_same=30, parted=((HOSTILE, 3),))
    bad = replace(bad, timeline=replace(timeline(1.3), prompt=HOSTILE, category=HOSTILE))
    verdict = Verdict(HOSTILE, bad.overall, HOSTILE, HOSTILE)
    settings = (Written(HOSTILE, '" onmouseover="alert(1)', f"model={HOSTILE}", HOSTILE),)
    arms = (bad, failed(f"failed {HOSTILE}", HOSTILE))
    engine = EngineResult(
        HOSTILE, HOSTILE, 1, {HOSTILE: 1}, 43.6, 0, 1, 0, 0, arms, verdict, {HOSTILE: verdict}, settings
    )
    return Tuned(
        slipstream=HOSTILE,
        started=HOSTILE,
        seconds=float("nan"),
        command=HOSTILE,
        machine=HOSTILE,
        model=HOSTILE,
        draft=HOSTILE + "\ud800",
        n_tokens=128,
        prompts={HOSTILE: 1},
        engines=(engine,),
        cost=(CostPoint(1, 0, 1.0), CostPoint(2, 0, float("inf"))),
    )


def many_arms() -> Tuned:
    """Forty arms over six categories, with long names and speed-ups from a twentieth to seven."""
    arms = tuple(
        arm(
            f"draft-simple n {n} p {p:g} + ngram-map-k4v n {n}",
            0.05 * 1.135 ** (4 * i + j),
            state="dropped" if j % 2 else "measured",
            rates=tuple(0.95 - 0.01 * i - 0.02 * k for k in range(n)),
        )
        for i, n in enumerate((1, 2, 3, 4, 6, 8, 12, 16, 24, 32))
        for j, p in enumerate((0.0, 0.25, 0.5, 0.75))
    )
    verdict = Verdict(arms[-4].arm, arms[-4].overall, "The fastest whose text was plain decoding's.")
    return replace(clear_win(), engines=(replace(clear_win().engines[0], arms=arms, verdict=verdict, by_category={}),))


def nothing_known() -> Tuned:
    """Missing values wherever one may be missing."""
    odd = replace(
        arm("ngram-cache", 1.0),
        overall=Ratio(float("nan"), float("nan"), float("inf"), 0),
        by_category={"chat": Ratio(1.1, float("nan"), float("nan"), 1)},
        tokens_per_s=None,
        plain_tokens_per_s=None,
        acceptance_rate=None,
        mean_tokens_a_pass=None,
        conditional=(None, None),
        survival=(),
        n_same=0,
        n_compared=0,
        timeline=Timeline("", "", (), ((0.0, 1),)),
        samples=(Sample(0.0, "chat", None, None, None),),
    )
    engine = EngineResult(
        "ollama", "", 1, {}, None, 0, 0, 0, 0, (odd, failed("draft", "")), Verdict(None, None, ""), {}, ()
    )
    bare = EngineResult("lmstudio", "", 1, {}, None, 0, 0, 0, 0, (), Verdict("plain", None, ""), {}, ())
    return Tuned("", "", 0.0, "", "", "", None, 0, {}, (engine, bare))


def no_engine() -> Tuned:
    return replace(nothing_known(), engines=())


ALL: Mapping[str, Tuned] = {
    make.__name__: make()
    for make in (
        clear_win,
        off,
        undecided,
        several_engines,
        japanese,
        hostile,
        many_arms,
        nothing_known,
        no_engine,
    )
}
