"""SGLang's flags of old and of 0.5.23: three lengths or none, and what a line with speculation should say besides."""

from __future__ import annotations

from typing import Final

from .command_line import Flag, Line, is_count, name_of, program_name

ENGINE: Final = "sglang"
MODULE = "sglang.launch_server"
KNOWN = ("sglang serve", f"python -m {MODULE}")
ALGORITHM = "--speculative-algorithm"
STEPS, TOPK, WIDTH = "--speculative-num-steps", "--speculative-eagle-topk", "--speculative-num-draft-tokens"
CHAINED = ("EAGLE", "EAGLE3", "NEXTN", "STANDALONE")
THRESHOLDS = ("--speculative-accept-threshold-single", "--speculative-accept-threshold-acc")

RENAMED = "lookahead is named ngram today"
FLAGS = (
    Flag(("--speculative-algo",), ALGORITHM, "its whole name"),
    Flag(("--speculative-draft",), "--speculative-draft-model-path", "its whole name; several flags begin so"),
    Flag(
        ("--speculative-dflash-draft-window-size",),
        "--speculative-draft-window-size",
        "it serves EAGLE-3 too",
        "SGLang #37347",
    ),
    *(
        Flag((f"--speculative-lookahead-{name}",), f"--speculative-ngram-{name}", RENAMED, "SGLang #11010")
        for name in ("min-bfs-breadth", "max-bfs-breadth", "match-type", "capacity")
    ),
    Flag(
        ("--speculative-lookahead-branch-length", "--speculative-ngram-branch-length"),
        "--speculative-ngram-max-trie-depth",
        "today's name",
        "SGLang #21181",
    ),
    Flag(
        tuple(
            f"--speculative-{kind}-{end}-match-window-size" for kind in ("lookahead", "ngram") for end in ("min", "max")
        ),
        "",
        "no longer known: every suffix up to --speculative-ngram-max-trie-depth is matched",
        "SGLang #21225",
    ),
)


def recognise(words: list[str]) -> int:
    """How many words name the program; 0 where it is another."""
    name = program_name(words[0])
    if name == "sglang" and words[1:2] == ["serve"]:
        return 2
    return 3 if name.startswith("python") and words[1:3] == ["-m", MODULE] else 0


def claims(words: list[str]) -> bool:
    """Whether flags without a program are this engine's."""
    return any(name_of(word).startswith("--speculative-") for word in words)


def modernise(line: Line) -> None:
    """Makes a line of SGLang one of 0.5.23."""
    line.replace(FLAGS)
    _lookahead(line)
    algorithm = (line.value(ALGORITHM) or "").upper()
    if algorithm in CHAINED:
        _all_three(line)
    _adaptive(line, algorithm)
    if algorithm and not line.has("--max-running-requests"):
        line.remarks.append(
            "--max-running-requests is not given: with speculation SGLang takes 48, without it another number. Give it "
            "to both lines when you compare them."
        )
    for flag in THRESHOLDS:
        if line.has(flag) and line.value(flag) not in ("1", "1.0"):
            line.remarks.append(f"{flag} below 1 accepts tokens that the target would not write: the text changes.")


def _lookahead(line: Line) -> None:
    if (line.value(ALGORITHM) or "").upper() == "LOOKAHEAD":
        line.set(ALGORITHM, "NGRAM")
        line.note(f"{ALGORITHM} LOOKAHEAD → NGRAM", RENAMED, "SGLang #11010")


def _all_three(line: Line) -> None:
    """Steps, top-k and draft tokens are all given or none; with top-k 1 the last is steps + 1."""
    values = {flag: line.value(flag) for flag in (STEPS, TOPK, WIDTH)}
    if all(value is None for value in values.values()):
        return
    if any(value is not None and not is_count(value) for value in values.values()):
        return
    why = "SGLang takes all three lengths or none"
    topk = values[TOPK] or "1"
    if topk != "1":
        missing = [flag for flag, value in values.items() if value is None]
        if missing:
            line.remarks.append(f"{' and '.join(missing)} must be given as well: {why}.")
        return
    steps, width = values[STEPS], values[WIDTH]
    if steps is None and width is None:
        line.take(TOPK)
        line.note(f"{TOPK} {topk} taken out", why)
        return
    steps = steps or str(int(width or 1) - 1)
    for flag, value in ((STEPS, steps), (TOPK, topk), (WIDTH, str(int(steps) + 1))):
        if values[flag] is None:
            line.put(flag, value)
            line.note(f"{flag} {value} added", why)
        elif values[flag] != value:
            line.set(flag, value)
            line.note(f"{flag} {values[flag]} → {value}", "with top-k 1 it is always steps + 1")


def _adaptive(line: Line, algorithm: str) -> None:
    if line.has("--speculative-adaptive-config") and not line.has("--speculative-adaptive"):
        line.put("--speculative-adaptive", at=line.index("--speculative-adaptive-config"))
        line.note("--speculative-adaptive added", "the file alone turns nothing on")
    if line.has("--speculative-adaptive") and (
        algorithm not in ("EAGLE", "EAGLE3") or line.value(TOPK) not in (None, "1")
    ):
        line.remarks.append(
            "--speculative-adaptive works with EAGLE and EAGLE3 at top-k 1 only; else lengths stay fixed."
        )
