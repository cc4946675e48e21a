"""What the terminal of this process can show: its width and its colours.

Owns what decides that: what a stream is, `NO_COLOR`, `FORCE_COLOR`, `TERM` and `COLUMNS`. A pipe or a file
has no width, so nothing for it is ever cut. `click.style` needs no import of its own; `rich` would cost more
than the rest of a verb.

Refuses to know what is shown (`display`), and how a table is laid out (`table`).
"""

import os
import sys
from collections.abc import Mapping
from typing import TextIO


def width() -> int | None:
    """Return the columns of the terminal on stdout; None where stdout is no terminal."""
    if not _is_terminal(sys.stdout):
        return None
    import shutil  # late: a pipe has no width

    return shutil.get_terminal_size().columns


def error_width() -> int | None:
    """Return the columns of the terminal on stderr; None where stderr is no terminal."""
    if not _is_terminal(sys.stderr):
        return None
    try:
        return (
            int(os.environ.get("COLUMNS") or 0) or os.get_terminal_size(sys.stderr.fileno()).columns or None
        )
    except (ValueError, OSError):
        return None


def colour_forced(environ: Mapping[str, str]) -> bool | None:
    """Return if the environment wants colours whatever a stream is; None if the stream decides.

    `NO_COLOR` is stronger than `FORCE_COLOR`; a variable that is empty says nothing.
    """
    if environ.get("NO_COLOR"):
        return False
    if environ.get("FORCE_COLOR"):
        return environ["FORCE_COLOR"] != "0"
    return False if environ.get("TERM") == "dumb" else None


def has_colours(stream: TextIO | None = None) -> bool:
    """Return True if text for this stream (stdout) may have colours."""
    forced = colour_forced(os.environ)
    return _is_terminal(sys.stdout if stream is None else stream) if forced is None else forced


def _is_terminal(stream: TextIO | None) -> bool:
    try:
        return stream is not None and stream.isatty()
    except ValueError:  # it is closed
        return False
