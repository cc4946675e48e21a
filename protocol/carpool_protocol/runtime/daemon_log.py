"""How our own processes log: one line on stderr, which the launcher turns into a file.

Owns the format. A log line holds names and numbers, never arguments or environment values.
"""

import logging
import sys

from carpool_protocol.wallclock import wallclock


class _Format(logging.Formatter):
    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: N802
        return wallclock()


def log_to_stderr(level: str = "INFO") -> None:
    """Set up logging for this process."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Format("%(asctime)s %(levelname)s %(name)s %(message)s"))
    logging.basicConfig(level=level, handlers=[handler], force=True)
