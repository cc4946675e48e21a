"""What `carpool demo` says while it works: one line a step, and one that changes in place on a terminal.

Owns stderr. On a terminal `live` rewrites the last line; elsewhere it is silent, so that a log has whole
lines only. Knows nothing of: what is being done.
"""

import shutil
import sys
import time
from typing import TextIO

from carpool import display


class Show:
    """The lines of one demo. `silent`: says nothing at all."""

    def __init__(self, stream: TextIO | None = None, *, silent: bool = False) -> None:
        self._stream = stream or sys.stderr
        self._silent = silent
        self._on_terminal = self._stream.isatty()
        self._start_s = time.monotonic()
        self._is_live = False

    def elapsed_s(self) -> float:
        return time.monotonic() - self._start_s

    def step(self, text: str) -> None:
        """A line that stays."""
        self._write(text, "\n")

    def live(self, text: str) -> None:
        """A line that the next one replaces, for people who wait."""
        if self._on_terminal:
            self._write(text, "")

    def wipe(self) -> None:
        """Take the changing line away."""
        if self._is_live and not self._silent:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
            self._is_live = False

    def _write(self, text: str, end: str) -> None:
        if self._silent:
            return
        self.wipe()
        line = f"{self.elapsed_s():5.1f} s  {display.printable(text)}"
        if not end:
            # A line that wraps cannot be taken away again.
            line = line[: shutil.get_terminal_size().columns - 1]
            self._is_live = True
        self._stream.write(line + end)
        self._stream.flush()
