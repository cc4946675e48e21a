"""How our own processes log: one line on stderr, which the launcher turns into a file.

Owns the format. A log line holds names and numbers, never arguments or environment values. Of what a peer
said in it (the error that a server greets with, say) no control character is left, and a second line is
indented: nobody writes a line of our log but we.
What cannot be written (a full disk) is lost without a word: nobody could read one.
"""

import logging
import sys
from typing import Final, TextIO

from carpool_protocol.runtime.wallclock import wallclock

LINE: Final = "%(asctime)s %(levelname)s %(name)s %(message)s"
_SHOWN: Final = {
    **{at: f"\\x{at:02x}" for at in (*range(0x20), *range(0x7F, 0xA0))},
    **{at: f"\\u{at:04x}" for at in (0x2028, 0x2029, *range(0xD800, 0xE000))},
    ord("\n"): "\n    ",
    ord("\t"): "\t",
}


class _Format(logging.Formatter):
    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: N802
        return wallclock()

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        if not record.message.isprintable():
            record.message = record.message.translate(_SHOWN)
        return super().formatMessage(record)


class _Handler(logging.StreamHandler[TextIO]):
    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        if not isinstance(sys.exc_info()[1], OSError):  # its traceback would go to the same disk
            super().handleError(record)


def log_to_stderr(level: str = "INFO") -> None:
    """Set up logging for this process."""
    handler = _Handler(sys.stderr)
    handler.setFormatter(_Format(LINE))
    logging.basicConfig(level=level, handlers=[handler], force=True)
