"""Lines of the HTTP door for its log, on stderr.

Knows nothing of: the file behind stderr.
"""

from carpool_protocol.runtime.asyncio_process import print_log_line


def log_line(text: str, level: str = "info") -> None:
    """Print one line for the log. `level`: one of `log_format.LEVELS`."""
    print_log_line("http", text, level)


def warn(text: str) -> None:
    """Print one line about a trouble."""
    log_line(text, "warning")
