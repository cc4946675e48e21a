"""Names on stderr the servers that a verb still waits for after some seconds.

The broker answers `carpool start` once each server has started or failed, and a first start may take minutes.
Owns the look at the servers meanwhile: a thread with a session of its own, because the request occupies the
first one. Knows nothing of: the request, how a server is started.
"""

import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any, Final

import click
import msgspec

from carpool.control.control_client import AnsweredError, ControlClient, ControlClientError
from carpool.terminal import display

LATE_S = 10.0
LOOKER: Final = "late starts"
"""The name of the thread that looks."""
_ANSWER_S: Final = 5.0


@contextmanager
def late_starts_told(directory: str, servers: Collection[str] | None) -> Iterator[None]:
    """Name the servers that are still starting if the body takes longer than `LATE_S`. `servers`: those of
    the request; None: all.
    """
    ended = threading.Event()

    def look() -> None:
        if not ended.wait(LATE_S):
            text = _late_text(directory, servers)
            if text and not ended.is_set():
                click.echo(display.wrapped(text), err=True)

    looker = threading.Thread(target=look, name=LOOKER, daemon=True)
    looker.start()
    try:
        yield
    finally:
        ended.set()


def _late_text(directory: str, servers: Collection[str] | None) -> str:
    try:
        with ControlClient(directory, control=True) as client:
            status: dict[str, Any] = msgspec.json.decode(client.request("carpool/status", {}, _ANSWER_S))
    except (ControlClientError, AnsweredError, OSError):
        return ""  # the request itself tells what is wrong with the broker
    late = [
        (name, str(row.get("last_error") or ""))
        for name, row in (status.get("servers") or {}).items()
        if row.get("state") == "starting" and (servers is None or name in servers)
    ]
    if not late:
        return ""
    named = ", ".join(f"{name} ({error})" if error else name for name, error in late)
    return f"still starting: {named}; a first start may take minutes. Ctrl-C ends this wait, not the start"
