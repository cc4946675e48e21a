"""One of carpool's own files as servers come into it.

Owns which name a server gets there: its own, unless another server has it. Two servers are the same if they
run or reach the same with the same environment. How long a program waits for it makes no other server: the
longest time counts. What comes is written at the end, at once: each edit of a file reads it all.

Pure, and so apart from `carpool_files`, which reads them. Knows nothing of: where a server comes from.
"""

import copy
import json
import posixpath
from collections.abc import Callable
from typing import Final

from carpool.setup.model import CarpoolFile, FileChange, KeyPath, Role
from carpool_protocol.config.edit.edit import CannotEditError, set_members, value_at
from carpool_protocol.config.reading.parse import SERVERS
from carpool_protocol.config.reading.workspaces import WORKSPACES
from carpool_protocol.config.schema.expand import from_home
from carpool_protocol.config.text.jsonc import JsonValue, parse
from carpool_protocol.link.messages import Policy
from carpool_protocol.wire.tool_names import safe_server_name

_TIMES: Final = {
    "timeout_s": Policy().timeout_s,
    "max_total_s": Policy().max_total_s,
    "start_s": Policy().start_s,
}
"""Keys that make no other server, and what holds where they are not written."""
_EITHER: Final = (None, "url")
"""Ways to reach a URL that leave it open which one is tried."""

TargetState = tuple[JsonValue, tuple[KeyPath, ...]]


class TargetFile:
    """What it says so far."""

    def __init__(self, own: CarpoolFile) -> None:
        self.path = own.path
        self.taken = own.taken
        self._before = own.text
        self._text = own.text if own.text is not None else "{}\n"
        self._value = parse(self._text, "").value
        self._regions: dict[KeyPath, None] = {}
        self._written: dict[KeyPath, dict[str, list[str]]] = {}
        """By the place of an object of servers and how a server is written: its names there. Of those places
        that were asked for.
        """

    @property
    def value(self) -> JsonValue:
        """The whole of it."""
        return self._value

    def set(self, path: KeyPath, value: JsonValue) -> None:
        """Set a member. Raises `CannotEditError`."""
        holder = self._value
        for key in path[:-1]:
            holder = holder.setdefault(key, {}) if isinstance(holder, dict) else None
        if not isinstance(holder, dict):
            raise CannotEditError("what is there already is not an object")
        holder[path[-1]] = value
        if not any(path[:length] in self._regions for length in range(1, len(path))):
            self._regions[path] = None

    def workspace(self, root: str, home: str) -> KeyPath:
        """Where servers of a directory stand; a workspace is made for it where there is none."""
        held = self._at((WORKSPACES,))
        for name, each in held.items():
            said = each.get("root") if isinstance(each, dict) else None
            if isinstance(said, str) and _absolute(said, home) == posixpath.normpath(root):
                return (WORKSPACES, name)
        name = _free(safe_server_name(posixpath.basename(posixpath.normpath(root))), held.__contains__)
        self.set((WORKSPACES, name), {"root": root, SERVERS: {}})
        return (WORKSPACES, name)

    def add_server(
        self, place: KeyPath, name: str, server: dict[str, JsonValue], other: str
    ) -> tuple[str, bool]:
        """Put a server in. The name it has there, and whether it was there before. `other`: what a second
        name ends in.
        """
        path = (*place, SERVERS)
        held = self._at(path)
        same = [
            each
            for each in self._names_in(path).setdefault(_as_text(server), [])
            if _fits(held[each], server)
        ]
        for known in (name, *(each for each in same if each.startswith(f"{name}-"))):
            if known in same:
                self._extend_server((*path, known), server)
                return known, True

        def is_taken(each: str) -> bool:
            return each in held or (not place and each in self.taken)

        said = name if not is_taken(name) else _free(f"{name}-{other}", is_taken)
        self.set((*path, said), dict(server))
        self._written[path][_as_text(server)].append(said)
        return said, False

    def _extend_server(self, path: KeyPath, server: dict[str, JsonValue]) -> None:
        """Let a server that is there have the times and the transport of one that is the same."""
        there = self._at(path)
        for key, plain in _TIMES.items():
            if (longer := max(_seconds(there, key, plain), _seconds(server, key, plain))) > _seconds(
                there, key, plain
            ):
                self.set((*path, key), longer)
        if there.get("transport") in _EITHER and server.get("transport") not in _EITHER:
            self.set((*path, "transport"), server["transport"])

    def _names_in(self, path: KeyPath) -> dict[str, list[str]]:
        if path not in self._written:
            names = self._written[path] = {}
            for name, each in self._at(path).items():
                names.setdefault(_as_text(each), []).append(name)
        return self._written[path]

    def state(self) -> TargetState:
        """For `restore`."""
        return copy.deepcopy(self._value), tuple(self._regions)

    def restore(self, state: TargetState) -> None:
        """As it was then."""
        self._value, self._regions = state[0], dict.fromkeys(state[1])
        self._written.clear()

    def change(self, role: Role) -> list[FileChange]:
        """What becomes of the file; nothing where it is as it was. Raises `CannotEditError`."""
        if not self._regions:
            return []
        members: dict[KeyPath, dict[str, JsonValue]] = {}
        for path in self._regions:
            members.setdefault(path[:-1], {})[path[-1]] = value_at(self._value, path)
        text = self._text
        for holder, new in members.items():
            text = set_members(text, holder, new)
        before = None if self._before is None else self._before.encode()
        return [FileChange(self.path, role, before, text.encode(), tuple(self._regions))]

    def _at(self, path: KeyPath) -> dict[str, JsonValue]:
        held = value_at(self._value, path)
        return held if isinstance(held, dict) else {}


def _as_text(server: JsonValue) -> str:
    """The same for the same, in whatever order its members are and however long it is waited for."""
    if isinstance(server, dict):
        server = {key: value for key, value in server.items() if key not in _TIMES and key != "transport"}
    return json.dumps(server, sort_keys=True)


def _fits(there: JsonValue, server: dict[str, JsonValue]) -> bool:
    """Whether two servers can be reached in one way."""
    held = there.get("transport") if isinstance(there, dict) else None
    said = server.get("transport")
    return held == said or held in _EITHER or said in _EITHER


def _seconds(server: dict[str, JsonValue], key: str, plain: float) -> float:
    said = server.get(key, plain)
    return said if isinstance(said, int | float) and not isinstance(said, bool) else plain


def _free(name: str, is_taken: Callable[[str], bool]) -> str:
    number, said = 1, name
    while is_taken(said):
        number += 1
        said = f"{name}-{number}"
    return said


def _absolute(root: str, home: str) -> str:
    return posixpath.normpath(from_home(root, home))
