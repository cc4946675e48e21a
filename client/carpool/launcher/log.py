"""Lines of the launcher on its stderr: JSON in a file, text on a terminal or in a journal.

Knows nothing of: the file behind stderr and its size (`up`).
"""

import contextlib
import os
import signal
import stat
import sys

from carpool_protocol.files import log_format
from carpool_protocol.runtime.wallclock import wallclock


def log_line(text: str, level: str = "info") -> None:
    """Print one line, with the time. `level`: one of `log_format.LEVELS`."""
    at = wallclock()
    with contextlib.suppress(OSError):  # a log on a full disk ends nobody
        is_file = stat.S_ISREG(os.fstat(sys.stderr.fileno()).st_mode)
        line = log_format.log_line(at, level, "launcher", text, {}) if is_file else f"{at} launcher: {text}"
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()


def exit_status_text(status: int) -> str:
    """Return an exit status in words."""
    if status >= 0:
        return f"exit code {status}"
    try:
        return signal.Signals(-status).name
    except ValueError:
        return f"signal {-status}"
