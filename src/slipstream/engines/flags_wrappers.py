"""Programs that run another: which of their options take a value, and so where the other one stands."""

from __future__ import annotations

import re
from dataclasses import dataclass

from .command_line import program_name

VARIABLE = re.compile(r"[A-Za-z_]\w*=")


@dataclass(frozen=True)
class Wrapper:
    """valued: its options whose value is the next word. n_operands: words before the program that are no options.

    command: the word, one of these, behind which the program and options of it stand; none is needed where it is empty.
    """

    valued: frozenset[str] = frozenset()
    n_operands: int = 0
    command: tuple[str, ...] = ()


def _options(text: str) -> frozenset[str]:
    return frozenset(text.split())


UV = _options(
    "-p --python -w --with --with-editable --with-requirements --from -c --constraints --overrides --env-file --extra "
    "--no-extra --group --no-group --only-group --package --project --directory --index --default-index -i --index-url "
    "--extra-index-url -f --find-links --index-strategy --keyring-provider -P --upgrade-package --reinstall-package "
    "--refresh-package --resolution --prerelease --fork-strategy -C --config-setting --no-build-isolation-package "
    "--exclude-newer --link-mode --no-build-package --no-binary-package --cache-dir --config-file --color "
    "--allow-insecure-host --python-platform --torch-backend"
)

WRAPPERS = {
    "sudo": Wrapper(
        _options(
            "-u --user -g --group -h --host -p --prompt -C --close-from -T --command-timeout -U --other-user -R "
            "--chroot -D --chdir -r --role -t --type"
        )
    ),
    "nohup": Wrapper(),
    "time": Wrapper(_options("-f --format -o --output")),
    "env": Wrapper(_options("-u --unset -C --chdir")),
    "exec": Wrapper(_options("-a")),
    "nice": Wrapper(_options("-n --adjustment")),
    "numactl": Wrapper(
        _options(
            "-i --interleave -w --weighted-interleave -p --preferred -P --preferred-many -N --cpunodebind -C "
            "--physcpubind -m --membind"
        )
    ),
    "taskset": Wrapper(n_operands=1),
    "uv": Wrapper(UV, command=("run",)),
    "uvx": Wrapper(UV),
}


def behind(words: list[str]) -> tuple[int, int]:
    """Where the first word stands that sets no variable, and where the program behind all wrappers should stand.

    Both are as many as there are words where there is none.
    """
    first = at = _past_variables(words, 0)
    while at < len(words) and (wrapper := WRAPPERS.get(program_name(words[at]))):
        at = _past_variables(words, _past(wrapper, words, at + 1))
    return first, at


def _past_variables(words: list[str], at: int) -> int:
    return next((i for i in range(at, len(words)) if not VARIABLE.match(words[i])), len(words))


def _past(wrapper: Wrapper, words: list[str], at: int) -> int:
    """The place behind the wrapper's options, command and operands."""
    at = _past_options(wrapper.valued, words, at)
    if wrapper.command:
        if words[at : at + 1] and words[at] not in wrapper.command:
            return len(words)
        at = _past_options(wrapper.valued, words, at + 1)
    return min(at + wrapper.n_operands, len(words))


def _past_options(valued: frozenset[str], words: list[str], at: int) -> int:
    while at < len(words) and words[at].startswith("-"):
        if words[at] == "--":
            return at + 1
        at += 2 if _takes_next(words[at], valued) else 1
    return min(at, len(words))


def _takes_next(word: str, valued: frozenset[str]) -> bool:
    """Whether the option's value is the next word. Of letters behind one dash the first that takes a value decides."""
    if word.startswith("--"):
        return word in valued
    found = [i for i, letter in enumerate(word) if f"-{letter}" in valued]
    return bool(found) and found[0] == len(word) - 1
