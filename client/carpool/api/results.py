"""What calls and looks answer: plain values that keep everything that came.

Owns their shapes. Each holds what it was made of (`raw`), so a field that this release does not know is there
still. How a result reads as one text is `carpool.adapters.flatten`'s.

Knows nothing of: sessions, sockets.
"""

import json
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Final, cast

import msgspec
from msgspec import Struct

from carpool.errors import ToolError

Json = dict[str, Any]


class Result(Struct, frozen=True):
    """What a tool answered (MCP 2025-11-25, server/tools, "Tool Result")."""

    raw: Json
    """All of it, as it came."""

    @property
    def content(self) -> list[Json]:
        """Its parts: text, images, resources …"""
        found = self.raw.get("content")
        return found if isinstance(found, list) else []

    @property
    def structured(self) -> Any:
        """`structuredContent`; None where there is none."""
        return self.raw.get("structuredContent")

    @property
    def meta(self) -> Json:
        """`_meta`; empty where there is none."""
        return _mapping(self.raw, "_meta")

    @property
    def is_error(self) -> bool:
        """The tool says that it failed; its text says why."""
        return self.raw.get("isError") is True

    @property
    def text(self) -> str:
        """All of it as one text, the way models read it."""
        flatten, _ = _adapters()
        return flatten(self.raw)

    def as_success(self) -> Json:
        """`{"success": bool, "output": str}`."""
        _, as_success = _adapters()
        return as_success(self.raw)

    def or_raise(self) -> "Result":
        """Itself. Raises `ToolError` where the tool says that it failed."""
        if self.is_error:
            raise ToolError(self.text, self)
        return self


class Tool(Struct, frozen=True):
    """A tool as this session sees it."""

    name: str
    """What `call` takes, and what is legal for every model API."""
    server: str
    tool: str
    """The server's own name of it."""
    description: str
    """With the prefix, where the configuration wants one."""
    definition: Json
    """As the server wrote it: `inputSchema`, `outputSchema`, `annotations` …"""
    aliases: tuple[str, ...] = ()
    """Other spellings that mean this tool alone."""
    tags: tuple[str, ...] = ()
    """Of its server, and its own (docs/python.md)."""

    @property
    def input_schema(self) -> Json:
        """JSON Schema of the arguments."""
        return _mapping(self.definition, "inputSchema")

    @property
    def annotations(self) -> Json:
        """What the server claims of it: `readOnlyHint` … Nothing that one should rely on."""
        return _mapping(self.definition, "annotations")

    def as_mcp(self) -> Json:
        """As in the answer to `tools/list`: the definition under the qualified name."""
        return {**self.definition, "name": self.name, "description": self.description}


class Server(Struct, frozen=True):
    """A server that this session sees."""

    name: str
    state: str
    """`serving`, `cold` (starts with the first call) …; `disabled`, `misconfigured`, `untrusted`, `unset` (it
    needs a variable, or a workspace, that is not there).
    """
    why: str = ""
    """Why it cannot be used, where it cannot."""
    tags: tuple[str, ...] = ()
    tools: tuple[str, ...] = ()
    """Their qualified names, as far as they are known."""


class Outcome(Struct, frozen=True):
    """Result of starting or stopping one server."""

    server: str
    ok: bool
    text: str
    """The state it is in now, or why it could not be done."""


class Workspace(Struct, frozen=True):
    """Where a session is."""

    name: str
    root: str


class Progress(Struct, frozen=True):
    """How far a call is (MCP 2025-11-25, basic/utilities/progress)."""

    progress: float
    total: float | None = None
    message: str = ""


def read(raw: bytes) -> Any:
    """JSON of a peer. Half a surrogate pair, as real servers write it, stays what it is (rule 16)."""
    try:
        return msgspec.json.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return json.loads(raw)


def read_object(raw: bytes) -> Json:
    """The same of what must be an object; empty for anything else, and for what cannot be read."""
    try:
        found = read(raw)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def tool_of(entry: Mapping[str, Any]) -> Tool:
    """An entry of `carpool/tools`."""
    return Tool(
        name=str(entry["name"]),
        server=str(entry["server"]),
        tool=str(entry["tool"]),
        description=str(entry.get("description") or ""),
        definition=_mapping(entry, "definition"),
        aliases=tuple(entry.get("aliases") or ()),
        tags=tuple(entry.get("tags") or ()),
    )


def progress_of(params: Json) -> Progress | None:
    """What `notifications/progress` says; None where it says nothing that can be read."""
    try:
        return msgspec.convert({**params, "message": params.get("message") or ""}, Progress, strict=False)
    except msgspec.ValidationError:
        return None


@cache
def _adapters() -> tuple[Callable[[Json], str], Callable[[Json], Json]]:
    """How a result reads. Imported late: only who wants that pays for it; and once, not for each result."""
    from carpool.adapters import as_success, flatten

    return flatten, as_success


_NOTHING: Final[Json] = {}


def _mapping(of: Mapping[str, Any], key: str) -> Json:
    found = of.get(key)
    return cast("Json", found) if isinstance(found, dict) else _NOTHING
