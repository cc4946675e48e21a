"""Lines of the node's process for its log, on stderr.

Knows nothing of: the file behind stderr.
"""

import contextlib
import sys

from carpool_protocol.files import log_format
from carpool_protocol.runtime.wallclock import wallclock


def log(text: str, level: str = "info") -> None:
    """Print one line for the log. `level`: one of `log_format.LEVELS`."""
    with contextlib.suppress(OSError):  # a full disk ends no node
        sys.stderr.write(log_format.log_line(wallclock(), level, "node", text, {}) + "\n")
        sys.stderr.flush()
