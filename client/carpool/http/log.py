"""Lines of the HTTP door for its log, on stderr.

Knows nothing of: the file behind stderr.
"""

import contextlib
import sys

from carpool_protocol.files import log_format
from carpool_protocol.runtime.wallclock import wallclock


def log_line(text: str, level: str = "info") -> None:
    """Print one line for the log. `level`: one of `log_format.LEVELS`."""
    with contextlib.suppress(OSError):  # a full disk ends no door
        sys.stderr.write(log_format.log_line(wallclock(), level, "http", text, {}) + "\n")
        sys.stderr.flush()


def warn(text: str) -> None:
    """Print one line about a trouble."""
    log_line(text, "warning")
