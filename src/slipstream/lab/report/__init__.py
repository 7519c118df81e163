"""`report.html`: what a tuning run found, as one page that needs nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from slipstream.lab.tuned import Tuned


def write(tuned: Tuned, path: Path) -> None:
    """Writes the page to `path`, in place of what is there. Raises InputError where it cannot be written."""
    from slipstream.errors import InputError

    from .page import render

    try:
        # A lone surrogate, which JSON may carry, is no text that a file can hold.
        path.write_text(render(tuned), encoding="utf-8", errors="replace")
    except OSError as error:
        raise InputError(f"The report cannot be written to {path}: {error}.", "Name another folder.") from None
