"""Lines of the node's process for its log, on stderr.

Knows nothing of: the file behind stderr.
"""

from carpool_protocol.runtime.asyncio_process import print_log_line


def log(text: str, level: str = "info") -> None:
    """Print one line for the log. `level`: one of `log_format.LEVELS`."""
    print_log_line("node", text, level)
