"""The results of calls and looks: plain values that keep everything that came.

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
    """The result of a tool (MCP 2025-11-25, server/tools, "Tool Result")."""

    raw: Json
    """The whole result, as it came."""

    @property
    def content(self) -> list[Json]:
        """The parts: text, images, resources …"""
        found = self.raw.get("content")
        return found if isinstance(found, list) else []

    @property
    def structured(self) -> Any:
        """`structuredContent`; None if there is none."""
        return self.raw.get("structuredContent")

    @property
    def meta(self) -> Json:
        """`_meta`; empty if there is none."""
        return _mapping(self.raw, "_meta")

    @property
    def is_error(self) -> bool:
        """True if the tool reports a failure; its text has the reason."""
        return self.raw.get("isError") is True

    @property
    def text(self) -> str:
        """The whole result as one text, in the form that models read."""
        flatten, _ = _adapters()
        return flatten(self.raw)

    def as_success(self) -> Json:
        """Return `{"success": bool, "output": str}`."""
        _, as_success = _adapters()
        return as_success(self.raw)

    def or_raise(self) -> "Result":
        """Return the result itself. Raises `ToolError` if the tool reports a failure."""
        if self.is_error:
            raise ToolError(self.text, self)
        return self


class Tool(Struct, frozen=True):
    """A tool as this session sees it."""

    name: str
    """The name that `call` takes, which is legal for every model API."""
    server: str
    tool: str
    """The server's own name of the tool."""
    description: str
    """The description, with the prefix if the configuration wants one."""
    definition: Json
    """The definition as the server wrote it: `inputSchema`, `outputSchema`, `annotations` …"""
    aliases: tuple[str, ...] = ()
    """Other spellings that mean this tool alone."""
    tags: tuple[str, ...] = ()
    """The tags of its server, and its own (docs/python.md)."""

    @property
    def input_schema(self) -> Json:
        """The JSON Schema of the arguments."""
        return _mapping(self.definition, "inputSchema")

    @property
    def annotations(self) -> Json:
        """The claims of the server about it, such as `readOnlyHint`. They are not to be relied on."""
        return _mapping(self.definition, "annotations")

    def as_mcp(self) -> Json:
        """Return the definition under the qualified name, as in the answer to `tools/list`."""
        return {**self.definition, "name": self.name, "description": self.description}


class Server(Struct, frozen=True):
    """A server that this session sees."""

    name: str
    state: str
    """`serving`, `cold` (starts with the first call) …; `disabled`, `misconfigured`, `untrusted`, `unset` (it
    needs a variable, or a workspace, that is not there), `away` (carpool starts its supervisor again; calls
    wait).
    """
    why: str = ""
    """The reason why it cannot be used; empty if it can."""
    tags: tuple[str, ...] = ()
    tools: tuple[str, ...] = ()
    """The qualified names of its tools, as far as they are known."""


class Outcome(Struct, frozen=True):
    """The result of starting or stopping one server."""

    server: str
    ok: bool
    text: str
    """The present state, or the reason of the failure."""


class Workspace(Struct, frozen=True):
    """The workspace of a session."""

    name: str
    root: str


class Progress(Struct, frozen=True):
    """The progress of a call (MCP 2025-11-25, basic/utilities/progress)."""

    progress: float
    total: float | None = None
    message: str = ""


def read(raw: bytes) -> Any:
    """Read JSON of a peer. Half a surrogate pair, as real servers write it, stays as it is (docs/rules.md,
    rule 16).
    """
    try:
        return msgspec.json.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return json.loads(raw)


def read_object(raw: bytes) -> Json:
    """Read JSON that must be an object; empty for anything else, and for what cannot be read."""
    try:
        found = read(raw)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def tool_of(entry: Mapping[str, Any]) -> Tool:
    """Return a tool from an entry of `carpool/tools`."""
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
    """Return the progress in `notifications/progress`; None if it cannot be read."""
    try:
        return msgspec.convert({**params, "message": params.get("message") or ""}, Progress, strict=False)
    except msgspec.ValidationError:
        return None


@cache
def _adapters() -> tuple[Callable[[Json], str], Callable[[Json], Json]]:
    """Return the module that reads results. It is imported late, because not every program needs it."""
    from carpool.adapters import as_success, flatten

    return flatten, as_success


_NOTHING: Final[Json] = {}


def _mapping(of: Mapping[str, Any], key: str) -> Json:
    found = of.get(key)
    return cast("Json", found) if isinstance(found, dict) else _NOTHING
