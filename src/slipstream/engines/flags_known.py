"""Which flags the programs of a release take: lists that the engines themselves gave, kept as files beside this one."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.resources import files


@cache
def flags_of(name: str) -> Mapping[str, Mapping[str, int]]:
    """Of each program in this list its flags, with how many values belong to each. name: the file's, without `.txt`."""
    programs: dict[str, dict[str, int]] = {}
    for row in files(__package__).joinpath(f"{name}.txt").read_text("utf-8").splitlines():
        if not row.startswith("#"):
            flag, n_values, *takers = row.split()
            for program in takers:
                programs.setdefault(program, {})[flag] = int(n_values)
    return programs
