"""llama.cpp's flags of old and of b11549: names, and what a line that still parses lacks."""

from __future__ import annotations

from pathlib import PurePath
from typing import Final

from .command_line import Flag, Line, is_count, is_joined, name_of, program_name
from .flags_llamacpp_known import compare, program_of
from .flags_llamacpp_variables import rename, set_variable, variable
from .flags_word import behind_equals, expands, joined, parted

ENGINE: Final = "llama.cpp"
REFACTORED = "llama.cpp #22397"
PREFIXED = "llama.cpp #22964"

PROGRAMS = {
    "main": "llama-cli",
    "server": "llama-server",
    "speculative": "llama-speculative",
    "llama-server": "",
    "llama-cli": "",
    "llama-speculative": "",
    "llama-speculative-simple": "",
    "llama": "",
}
"""Names, with today's where it is another."""

KNOWN = (
    *("llama-server", "llama-cli", "llama-speculative", "llama-speculative-simple", "llama serve"),
    *("main", "server", "speculative"),
)

DRAFTS = ("--spec-draft-model", "--model-draft", "-md", "--spec-draft-hf", "--hf-repo-draft", "-hfd", "-hfrd")
N_MAX = ("--draft", "--draft-n", "--draft-max")
N_MIN = ("--draft-min", "--draft-n-min")
DRAFTING = ("--spec-default", "--fim-qwen-7b-spec", "--fim-qwen-14b-spec")
"""Flags that bring drafts without a type or a model."""

OWN_LENGTH = "llama.cpp refuses it today: each type of draft has a flag of its own for it"

SWITCHES = {("-fa", "--flash-attn"): "llama.cpp #15434", ("-co", "--color"): ""}
"""Flags that were said alone and take on, off or auto today, and since when."""

MAPS = ("ngram-simple", "ngram-map-k", "ngram-map-k4v")
MAP_LENGTH = 48
"""Tokens of their drafts unless `size-m` says otherwise."""

TYPES = {
    "draft": ("draft-simple", PREFIXED),
    "eagle3": ("draft-eagle3", PREFIXED),
    "mtp": ("draft-mtp", "llama.cpp #22673"),
    "dflash": ("draft-dflash", ""),
    "dspark": ("draft-dspark", ""),
}
"""Types of old, with today's and since when."""

TODAY = (
    "none",
    *(f"draft-{kind}" for kind in ("simple", "eagle3", "mtp", "dflash", "dspark")),
    *MAPS,
    "ngram-mod",
    "ngram-cache",
)

FLAGS = (
    Flag(("--draft-p-min",), "--spec-draft-p-min", "today's name; the old one is still read", REFACTORED),
    Flag(("--draft-p-split",), "--spec-draft-p-split", "today's name; the old one is still read", REFACTORED),
    Flag(("--p-split", "-ps"), "--spec-draft-p-split", "today's name"),
    Flag(("--p-accept", "-pa"), "", "no longer known"),
    Flag(
        ("--ctx-size-draft", "-cd", "--spec-draft-ctx-size"), "", "no longer known: the draft's context is the target's"
    ),
    Flag(("-ins", "--instruct"), "", "no longer known: llama-cli is a chat without it", "llama.cpp #7675", n_values=0),
    Flag(("-cml", "--chatml"), "", "no longer known: the template is the model's", "llama.cpp #7675", n_values=0),
    Flag(("--spec-ngram-check-rate",), "", "no longer known"),
    Flag(("--spec-replace",), "", "no longer known", n_values=2),
)

NGRAM_FLAGS = {
    "--spec-ngram-size-n": ("size-n", "--spec-ngram-mod-n-match"),
    "--spec-ngram-size-m": ("size-m", ""),
    "--spec-ngram-min-hits": ("min-hits", ""),
}
"""What was said for all n-gram types, and now for each: its name behind `--spec-TYPE-`, and for ngram-mod."""


def recognise(words: list[str]) -> int:
    """How many words name the program; 0 where it is another."""
    name = program_name(words[0])
    if name not in PROGRAMS:
        return 0
    return 2 if name == "llama" and len(words) > 1 and not words[1].startswith("-") else 1


def claims(words: list[str]) -> bool:
    """Whether flags without a program are this engine's."""
    names = {name_of(word) for word in words}
    others = {"--spec-method", "--spec-model", "--spec-tokens", "--spec-decoding-acceptance-method"}
    own = {*DRAFTS, *N_MAX, *N_MIN, "--draft-model-path", *(old for flag in FLAGS for old in flag.old)}
    gguf = "--draft-model" in names and any(word.endswith(".gguf") for word in words)
    return bool(names & own) or gguf or any(name.startswith("--spec-") for name in names - others)


def modernise(line: Line) -> None:
    """Makes a line of llama.cpp one of b11549."""
    _rename_program(line)
    rename(line)
    _part_values(line)
    _never_flags(line)
    line.replace(FLAGS)
    _rename_types(line)
    _split_ngram_flags(line)
    _split_lengths(line, N_MAX, "n-max")
    _split_lengths(line, N_MIN, "n-min")
    _give_switches_values(line)
    compare(line)
    if not _drafts_by_itself(line):
        _turn_on(line)
    _say_defaults(line)


def _rename_program(line: Line) -> None:
    if not line.program:
        return
    path = line.program[0]
    name = PurePath(path.replace("\\", "/")).name
    if new := PROGRAMS[program_name(path)]:
        line.program[0] = path[: -len(name)] + new + (".exe" if name.endswith(".exe") else "")
        line.note(f"{name} → {new}", "the program's name today", "llama.cpp #7809")
    if new == "llama-cli" or (program_name(path) == "llama-cli" and line.has("-no-cnv", "--no-conversation")):
        line.remarks.append(
            "llama-cli is a chat today and waits for the next message (llama.cpp #17824): with -st it ends after one "
            "answer. llama-completion completes a text as main did; it drafts nothing."
        )


def _part_values(line: Line) -> None:
    if any(map(is_joined, line.words)):
        parts = [[word.partition("=")[0], behind_equals(word)] if is_joined(word) else [word] for word in line.words]
        line.words[:] = [part for pair in parts for part in pair]
        line.note("--flag=value → --flag value", "llama.cpp reads no = within a flag")


def _never_flags(line: Line) -> None:
    """`--draft-model NAME --draft-model-path PATH` stands in articles and never was."""
    path, name = line.take("--draft-model-path"), line.take("--draft-model")
    kept = path or name
    if kept is None:
        return
    line.put("--model-draft", kept.value, at=min(found.at for found in (path, name) if found))
    line.note(f"{kept.name} → --model-draft", "llama.cpp never had it")
    if path and name:
        line.note(f"{name.name} {name.value} taken out", "llama.cpp never had it; the path names the draft")


def _flag_types(line: Line) -> list[str]:
    """The types of all flags; llama.cpp adds them up."""
    return [kind for value in line.all_values("--spec-type") for kind in parted(value, ",") if kind]


def _types_of(line: Line) -> list[str]:
    """The types of the flags and of the variable."""
    return [kind for kind in parted(variable(line, "SPEC_TYPE"), ",") if kind] + _flag_types(line)


def _rename_types(line: Line) -> None:
    for kind in _types_of(line):
        if kind in TYPES:
            new, since = TYPES[kind]
            line.note(f"--spec-type {kind} → {new}", "types that draft with a model begin with draft-", since)
        elif kind not in TODAY and not expands(kind):
            line.remarks.append(f"{kind!r} is no type that llama.cpp knows. Types are {', '.join(TODAY)}.")
    if any(kind in TYPES for kind in _flag_types(line)):
        line.set("--spec-type", _todays(_flag_types(line)))
    set_variable(line, "SPEC_TYPE", _todays(parted(variable(line, "SPEC_TYPE"), ",")))


def _todays(kinds: list[str]) -> str:
    return joined(",", (TYPES.get(kind, (kind, ""))[0] for kind in kinds))


def _split_ngram_flags(line: Line) -> None:
    for old, (name, of_mod) in NGRAM_FLAGS.items():
        if (found := line.take(old)) is not None:
            new = [f"--spec-{kind}-{name}" for kind in _types_of(line) if kind in MAPS]
            new += [of_mod] if of_mod and "ngram-mod" in _types_of(line) else []
            for flag in reversed(new):
                line.put(flag, found.value, at=found.at)
            what = f"{old} → {' and '.join(new)}" if new else f"{old} {found.value} taken out"
            why = "each n-gram type has its own" if new else "none of the types that run here has such a setting"
            line.note(what, why, REFACTORED)


def _split_lengths(line: Line, old: tuple[str, ...], name: str) -> None:
    """The length of drafts was one for all types."""
    found = line.take(*old)
    if found is None:
        return
    at, written, value, kinds = found.at, found.name, found.value, _types_of(line)
    new = ["--spec-ngram-mod-" + name] if "ngram-mod" in kinds else []
    if _draft_of(line) or any(kind.startswith("draft-") for kind in kinds) or not kinds:
        new.insert(0, "--spec-draft-" + name)
    for flag in reversed(new):
        line.put(flag, value, at=at)
    shortened = [] if name == "n-min" else _shorten_maps(line, [k for k in kinds if k in MAPS], value, at)
    if new or shortened:
        line.note(f"{written} → {' and '.join([*new, *shortened])}", OWN_LENGTH, REFACTORED)
    else:
        why = f"llama.cpp refuses it today, and {_no_length(kinds, name)}"
        line.note(f"{written} {value} taken out", why, REFACTORED)


def _no_length(kinds: list[str], name: str) -> str:
    if name == "n-min":
        return f"--spec-type {','.join(kinds)} has no flag for a least length of drafts"
    maps = [f"--spec-{kind}-size-m" for kind in kinds if kind in MAPS]
    if not maps:
        return f"--spec-type {','.join(kinds)} has no flag for the length of drafts"
    return f"drafts are as long as {' and '.join(maps)} says, {MAP_LENGTH} tokens unless given"


def _shorten_maps(line: Line, kinds: list[str], value: str, at: int) -> list[str]:
    """A maximum below the length of a map's drafts becomes that length."""
    shortened = []
    for kind in kinds:
        flag = f"--spec-{kind}-size-m"
        length = line.value(flag) or str(MAP_LENGTH)
        if is_count(value) and is_count(length) and int(value) < int(length):
            line.take(flag)
            line.put(flag, value, at=min(at, len(line.words)))
            shortened.append(flag)
    return shortened


def _give_switches_values(line: Line) -> None:
    for names, since in SWITCHES.items():
        at = line.index(*names)
        if at is not None and (at + 1 == len(line.words) or name_of(line.words[at + 1])):
            line.put("on", at=at + 1)
            line.note(f"{line.words[at]} → {line.words[at]} on", "it takes on, off or auto today", since)


def _drafts_by_itself(line: Line) -> bool:
    """Whether the program drafts with its draft model whatever the types are."""
    return bool(line.program) and program_name(line.program[0]) == "llama-speculative"


def _draft_of(line: Line) -> str | None:
    """The draft model, of a flag or a variable."""
    return line.value(*DRAFTS) or variable(line, "SPEC_DRAFT_MODEL") or variable(line, "SPEC_DRAFT_HF_REPO") or None


def _turn_on(line: Line) -> None:
    """A draft model alone turns nothing on, and neither do lengths."""
    kinds, draft = _types_of(line), _draft_of(line)
    if draft is None:
        if program_of(line) and not kinds and not line.has(*DRAFTING):
            line.remarks.append("Nothing is drafted by this line: it has neither --spec-type nor a draft model.")
        return
    if "none" in kinds or line.has("--spec-default") or any(kind.startswith("draft-") for kind in kinds):
        return
    kind = _kind_of(draft)
    line.set("--spec-type", joined(",", [*_flag_types(line), kind]))
    why = "a draft model alone no longer turns speculation on: it was loaded and never asked, without a word"
    if line.program and program_name(line.program[0]) == "llama-speculative-simple":
        why = "a draft model alone no longer turns speculation on: the program ends with an error"
    elif kind != "draft-simple":
        why = "a draft model alone no longer turns speculation on everywhere; the type is read from its name"
    line.note(f"--spec-type {line.value('--spec-type')} added", why, "llama.cpp #23988")


def _kind_of(draft: str) -> str:
    name = PurePath(draft.replace("\\", "/")).name.lower().replace("eagle-3", "eagle3")
    return next((f"draft-{kind}" for kind in ("eagle3", "dflash", "dspark", "mtp") if kind in name), "draft-simple")


def _say_defaults(line: Line) -> None:
    by_itself = _drafts_by_itself(line)
    if not by_itself and "draft-simple" not in _types_of(line):
        return
    if not (line.has("--spec-draft-n-max") or variable(line, "SPEC_DRAFT_N_MAX")):
        line.remarks.append("--spec-draft-n-max is not given: it is 3 today and was 16.")
    if not (by_itself or line.has("--spec-draft-p-min") or variable(line, "SPEC_DRAFT_P_MIN")):
        line.remarks.append(
            "--spec-draft-p-min is not given: it is 0.0 today and was 0.75 (llama.cpp #25792), so a draft no longer "
            "ends where the draft model is unsure. --spec-draft-p-min 0.75 gives the old behaviour."
        )
