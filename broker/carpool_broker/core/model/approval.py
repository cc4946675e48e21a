"""What the user has approved of a pinned server, as values, and what that goes by.

Owns the name of an approval: which servers are one and the same to it. Knows nothing of: what is held back
because of it (`approvals`), files.
"""

import hashlib
from collections.abc import Mapping
from typing import Final, NewType

from msgspec import Struct, msgpack

from carpool_protocol.config.schema.model import ServerConfig
from carpool_protocol.ids import ServerName

PinId = NewType("PinId", str)
"""A pinned server, as it is written: its name and a hash of where it is written and what it runs."""

NO_PIN: Final = PinId("")


class Definition(Struct, frozen=True):
    """One that was approved."""

    digest: str
    """Of its canonical form."""
    text: str = ""
    """That form, for people; empty where it was not kept, because it held a value of an environment."""


class Approved(Struct, frozen=True):
    """What the user has approved of one server."""

    tools: Mapping[str, Definition]
    damaged: str = ""
    """Why that cannot be read, a sentence; then nothing is approved."""
    also: Mapping[str, tuple[Definition, ...]] = {}
    """Of tools whose words differ between pools of the server: what was approved of the others."""

    def for_tool(self, tool: str) -> tuple[Definition, ...]:
        """What is approved of a tool, the last one first."""
        return (*((self.tools[tool],) if tool in self.tools else ()), *self.also.get(tool, ()))


def pin_of(server: ServerConfig) -> PinId:
    """What the approval of this server is good for: another command, or another file, is another server.

    As it is written: what variables hold has no say, so that agents of several environments share one
    approval; neither have `env` and `headers`, where secrets change.
    """
    if not server.pin:
        return NO_PIN
    where = ["project", server.file] if server.project else ["workspace", server.workspace]
    run = [server.command, server.args, server.python, server.interpreter, server.url, server.cwd]
    hashed = hashlib.blake2b(msgpack.encode([*where, *run]), digest_size=8).hexdigest()
    return PinId(f"{server.name}:{hashed}")


def server_of(pin: PinId) -> ServerName:
    """The server that is meant."""
    return ServerName(pin.rpartition(":")[0])
