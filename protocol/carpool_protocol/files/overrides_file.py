"""The overrides of `carpool enable`, `disable` and `pause` in a file, so that they outlive a broker.

Owns the form of the file, which lies in the runtime directory. The broker writes it; the command line reads
it for `check`, and edits it while no broker runs. It is removed when carpool stops. An unreadable file counts
as empty.

Knows nothing of: the effect of an override, and when one is dropped (the broker's `core/switches`).
"""

import contextlib
import os

import msgspec
from msgspec import Struct

from carpool_protocol.files import private_files


class OverridesFile(Struct, omit_defaults=True):
    """Overrides by server name: True means enabled."""

    servers: dict[str, bool] = {}
    """Overrides for all sessions."""
    sessions: dict[str, dict[str, bool]] = {}
    """Overrides for one session each, by session id."""
    paused: list[str] = []
    """The servers that are paused, for all sessions."""
    carpool: str = ""
    """The launcher under which these session ids were given out. A later launcher gives the same ids to
    others.
    """


_decoder = msgspec.json.Decoder(OverridesFile)


def read_overrides(path: str) -> OverridesFile:
    """The overrides in the file; empty if it is missing or unreadable. Never raises."""
    try:
        with open(path, "rb") as file:
            return _decoder.decode(file.read())
    except (OSError, ValueError, msgspec.MsgspecError, RecursionError):
        return OverridesFile()


def write_overrides(path: str, held: OverridesFile) -> None:
    """Replace the file as a whole, or remove it if there are no overrides. Raises `OSError`."""
    if held.servers or held.sessions or held.paused:
        private_files.replace(path, msgspec.json.encode(held))
    else:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)


def forget_server(path: str, server: str) -> None:
    """Remove all overrides of a server, because the configuration files now decide. Raises `OSError`.

    For use while no broker runs that could be told.
    """
    held = read_overrides(path)
    kept = {session: {name: on for name, on in own.items() if name != server}
            for session, own in held.sessions.items()}  # fmt: skip
    held.servers.pop(server, None)
    held.sessions = {session: own for session, own in kept.items() if own}
    write_overrides(path, held)
