"""One of carpool's own files as servers come into it.

Owns which name a server gets there: its own, unless another server has it.

Pure. Knows nothing of: where a server comes from.
"""

import posixpath

from carpool.setup.model import Change, KeyPath, Own, Role
from carpool_protocol.config.edit import put, value_at
from carpool_protocol.config.expand import from_home
from carpool_protocol.config.jsonc import JsonValue, parse
from carpool_protocol.config.named import WORKSPACES
from carpool_protocol.config.shape import SERVERS
from carpool_protocol.names import safe_server_name

State = tuple[str, tuple[KeyPath, ...]]


class Into:
    """Its text so far."""

    def __init__(self, own: Own) -> None:
        self.path = own.path
        self._before = own.text
        self._text = own.text if own.text is not None else "{}\n"
        self._taken = own.taken
        self._regions: list[KeyPath] = []

    def set(self, path: KeyPath, value: JsonValue) -> None:
        """Write a member. Raises `CannotEditError`."""
        self._text = put(self._text, path, value)
        if not any(path[: len(each)] == each for each in self._regions):
            self._regions.append(path)

    def workspace(self, root: str, home: str) -> KeyPath:
        """Where servers of a directory stand; a workspace is made for it where there is none."""
        held = self._at((WORKSPACES,))
        for name, each in held.items():
            said = each.get("root") if isinstance(each, dict) else None
            if isinstance(said, str) and _absolute(said, home) == posixpath.normpath(root):
                return (WORKSPACES, name)
        name = _free(safe_server_name(posixpath.basename(posixpath.normpath(root))), held.keys())
        self.set((WORKSPACES, name), {"root": root, SERVERS: {}})
        return (WORKSPACES, name)

    def put(self, place: KeyPath, name: str, server: dict[str, JsonValue], other: str) -> tuple[str, bool]:
        """Put a server in. The name it has there, and whether it was there before. `other`: what a second
        name ends in.
        """
        path = (*place, SERVERS)
        held = self._at(path)
        if server in held.values():
            same = [key for key, each in held.items() if each == server]
            if name in same:
                return name, True
            again = [key for key in same if key.startswith(f"{name}-")]
            if again:
                return again[0], True
        taken = {*held, *(self._taken if not place else ())}
        said = name if name not in taken else _free(f"{name}-{other}", taken)
        self.set((*path, said), server)
        return said, False

    def state(self) -> State:
        """For `back`."""
        return self._text, tuple(self._regions)

    def back(self, state: State) -> None:
        """As it was then."""
        self._text, self._regions = state[0], [*state[1]]

    def change(self, role: Role) -> list[Change]:
        """What becomes of the file; nothing where it is as it was."""
        if not self._regions:
            return []
        before = None if self._before is None else self._before.encode()
        return [Change(self.path, role, before, self._text.encode(), tuple(self._regions))]

    def _at(self, path: KeyPath) -> dict[str, JsonValue]:
        held = value_at(parse(self._text, "").value, path)
        return held if isinstance(held, dict) else {}


def _free(name: str, taken: object) -> str:
    number, said = 1, name
    while said in taken:  # type: ignore[operator]
        number += 1
        said = f"{name}-{number}"
    return said


def _absolute(root: str, home: str) -> str:
    return posixpath.normpath(from_home(root, home))
