"""One of carpool's own files, while servers are added to it.

Owns the name that a server gets there: its own, unless another server has it. Two servers are the same if
they run or reach the same with the same environment. A different timeout does not make a different server:
the longest time counts. All changes are written at the end, at once, because each edit of a file reads the
whole file. Pure, and so apart from `carpool_files`, which reads the files. Knows nothing of: where a server
comes from.
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
from carpool_protocol.wire.tool_name_resolver import safe_server_name

_TIMES: Final = {
    "timeout_s": Policy().timeout_s,
    "max_total_s": Policy().max_total_s,
    "start_s": Policy().start_s,
}
"""Keys that do not make a different server, with their default values."""
_EITHER: Final = (None, "url")
"""Transports of a URL that leave open which one is tried."""

TargetState = tuple[JsonValue, tuple[KeyPath, ...]]


class TargetFile:
    """One of carpool's files with the changes so far."""

    def __init__(self, own: CarpoolFile) -> None:
        self.path = own.path
        self.taken = own.taken
        self._before = own.text
        self._text = own.text if own.text is not None else "{}\n"
        self._value = parse(self._text, "").value
        self._regions: dict[KeyPath, None] = {}
        self._written: dict[KeyPath, dict[str, list[str]]] = {}
        """The names of servers, by the place of their object and by their text.

        Only places that were asked for are here.
        """

    @property
    def value(self) -> JsonValue:
        """Return the whole content."""
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
        """Return the place of the workspace for a directory; a missing workspace is made."""
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
        """Add a server. Returns its name there, and True if it was there before.

        `other`: the ending of a second name.
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
        """Give an existing server the timeouts and the transport of another one that is the same."""
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
        """Return the state for `restore`."""
        return copy.deepcopy(self._value), tuple(self._regions)

    def restore(self, state: TargetState) -> None:
        """Restore an earlier state."""
        self._value, self._regions = state[0], dict.fromkeys(state[1])
        self._written.clear()

    def change(self, role: Role) -> list[FileChange]:
        """Return the change of the file; empty if it is as it was. Raises `CannotEditError`."""
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
    """Return the same text for the same server, whatever the order of its members and its timeouts."""
    if isinstance(server, dict):
        server = {key: value for key, value in server.items() if key not in _TIMES and key != "transport"}
    return json.dumps(server, sort_keys=True)


def _fits(there: JsonValue, server: dict[str, JsonValue]) -> bool:
    """True if both servers can be reached by one transport."""
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
