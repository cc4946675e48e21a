"""What the launcher says to people, one line at a time: on the terminal, or in its log."""

import contextlib
import signal
import sys
import time


def log_line(text: str) -> None:
    """Print one line, with the time."""
    with contextlib.suppress(OSError):  # a log on a full disk ends nobody
        sys.stderr.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} launcher: {text}\n")
        sys.stderr.flush()


def exit_status_text(status: int) -> str:
    """Return an exit status in words."""
    if status >= 0:
        return f"exit code {status}"
    try:
        return signal.Signals(-status).name
    except ValueError:
        return f"signal {-status}"
