"""Approvals of pinned servers on disk: one file each, in `pins/` of the state directory.

Owns the files: private, replaced whole, read once in the life of a broker. An invalid file stays in place,
and no tool of its server counts as approved until the user approves again; forgetting would mean to trust the
server's next list. Only a missing file means that a server is new.

Knows nothing of: approvals themselves (`approvals`).
"""

import logging
import os
from collections.abc import Iterable
from typing import Final

import msgspec
from msgspec import Struct

from carpool_broker.core.model.approval import Approved, Definition, PinId
from carpool_broker.storage.catalog_cache import contains_secret
from carpool_protocol.files import state_file
from carpool_protocol.runtime.wallclock import wallclock

log = logging.getLogger("carpool.broker")

DIRECTORY: Final = "pins"
MAX_FILE_BYTES: Final = 16 * 1024 * 1024
_VERSION: Final = 2


class ApprovalFile(Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The content of one file."""

    version: int
    pin: str
    kept_at: str
    tools: dict[str, Definition]
    also: dict[str, tuple[Definition, ...]] = {}


_decode: Final = msgspec.json.Decoder(ApprovalFile).decode


class ApprovalStore:
    """The files of one state directory."""

    def __init__(self, state: str) -> None:
        """`state`: the state directory; empty: nothing is kept."""
        self._directory = os.path.join(state, DIRECTORY) if state else ""
        self.problem: dict[PinId, str] = {}
        """Why the approvals of a server could not be written."""
        self._loaded: dict[PinId, Approved | None] = {}

    def path(self, pin: PinId) -> str:
        """The path of a server's file."""
        name, _, hashed = pin.rpartition(":")
        return os.path.join(self._directory, f"{name}-{hashed}.json")

    def find(self, pin: PinId) -> Approved | None:
        """The approvals of a server; None: the server is new."""
        if self._directory and pin not in self._loaded:
            self._loaded[pin] = self._read(pin)
        return self._loaded.get(pin)

    def _read(self, pin: PinId) -> Approved | None:
        path = self.path(pin)
        try:
            data = state_file.read_state_file(path, MAX_FILE_BYTES)
        except FileNotFoundError:
            return None
        except OSError as error:
            data = f"cannot be read ({error.strerror})"
        if isinstance(data, bytes):
            try:
                file = _decode(data)
                if (file.version, file.pin) == (_VERSION, pin):
                    return Approved(file.tools, also=file.also)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                pass
            data = "is not a file of approved tools of this version"
        why = f"{path} {data}, so no tool of its server counts as approved"
        log.error("%s", why)
        return Approved({}, why)

    def save(self, pin: PinId, approved: Approved, secrets: Iterable[str]) -> None:
        """Keep the approvals of a server. A definition that contains one of `secrets` is kept as a hash
        only.
        """
        self._loaded[pin] = approved
        if not self._directory:
            return
        values = [*secrets]

        def kept(each: Definition) -> Definition:
            return Definition(each.digest) if contains_secret(each.text.encode(), values) else each

        held = ApprovalFile(
            version=_VERSION,
            pin=pin,
            kept_at=wallclock(),
            tools={tool: kept(each) for tool, each in approved.tools.items()},
            also={tool: tuple(map(kept, others)) for tool, others in approved.also.items()},
        )
        data = msgspec.json.format(msgspec.json.encode(held))
        path = self.path(pin)
        why = f"{path} would be larger than {MAX_FILE_BYTES} bytes" if len(data) > MAX_FILE_BYTES else ""
        why = why or state_file.write_state_file(path, data + b"\n")
        if why:
            self.problem[pin] = why
            log.error("the approvals of a pinned server are lost when the broker ends: %s", why)
        else:
            self.problem.pop(pin, None)
