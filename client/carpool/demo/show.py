"""The progress of `carpool demo`: one line a step, and one that changes in place on a terminal.

Owns stderr. On a terminal `live` rewrites the last line; elsewhere it is silent, so that a log has whole
lines only. Knows nothing of: what is being done.
"""

import contextlib
import shutil
import sys
import time
from typing import TextIO

from carpool.terminal import display

LIVE_EVERY_S = 0.15
"""More often nobody can read it."""


class ProgressDisplay:
    """The lines of one demo."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._on_terminal = self._stream.isatty()
        self._start_s = time.monotonic()
        self._is_live = False
        self._live_s = 0.0

    def elapsed_s(self) -> float:
        return time.monotonic() - self._start_s

    def print_step(self, text: str) -> None:
        """A line that stays."""
        self._write(text, "\n")

    def show_live(self, text: str) -> None:
        """A line that the next one replaces, for people who wait."""
        now_s = time.monotonic()
        if self._on_terminal and now_s - self._live_s >= LIVE_EVERY_S:
            self._live_s = now_s
            self._write(text, "")

    def clear_live(self) -> None:
        """Take the changing line away."""
        if self._is_live:
            self._put("\r\x1b[K")
            self._is_live = False

    def _write(self, text: str, end: str) -> None:
        self.clear_live()
        line = f"{self.elapsed_s():5.1f} s  {display.printable(text)}"
        if not end:
            # A line that wraps cannot be taken away again.
            line = line[: shutil.get_terminal_size().columns - 1]
            self._is_live = True
        self._put(line + end)

    def _put(self, text: str) -> None:
        # A reader that has left (`2>&1 | head`, a closed terminal) must not cost the demo its orderly end.
        with contextlib.suppress(OSError):
            self._stream.write(text)
            self._stream.flush()
