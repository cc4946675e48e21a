"""What of `carpool enable` and `disable` outlives a broker: a file in the runtime directory.

Owns its form. The broker writes it; the command line reads it for `check`, and corrects it where no broker
runs. It goes when carpool stops. A file that cannot be read says nothing.

Knows nothing of: what a switch does, when one is dropped (the broker's `core/switches`).
"""

import contextlib
import os

import msgspec
from msgspec import Struct

from carpool_protocol.files import private_files


class OverridesFile(Struct, omit_defaults=True):
    """Servers that are switched: True is on."""

    servers: dict[str, bool] = {}
    """For everybody."""
    sessions: dict[str, dict[str, bool]] = {}
    """For one session each, by its id."""
    carpool: str = ""
    """Under which launcher these ids were given out: the next one gives them to others."""


_decoder = msgspec.json.Decoder(OverridesFile)


def read_overrides(path: str) -> OverridesFile:
    """What is there. Never raises."""
    try:
        with open(path, "rb") as file:
            return _decoder.decode(file.read())
    except (OSError, ValueError, msgspec.MsgspecError, RecursionError):
        return OverridesFile()


def write_overrides(path: str, held: OverridesFile) -> None:
    """Put them there, whole; nothing to keep is no file. Raises `OSError`."""
    if held.servers or held.sessions:
        private_files.replace(path, msgspec.json.encode(held))
    else:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)


def forget_server(path: str, server: str) -> None:
    """The files of configuration say it from now on. For when no broker is there to be told. Raises
    `OSError`.
    """
    held = read_overrides(path)
    kept = {session: {name: on for name, on in own.items() if name != server}
            for session, own in held.sessions.items()}  # fmt: skip
    held.servers.pop(server, None)
    held.sessions = {session: own for session, own in kept.items() if own}
    write_overrides(path, held)
