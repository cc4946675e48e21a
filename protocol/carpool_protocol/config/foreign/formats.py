"""Tables for other programs' files: their paths, their shapes, and their keys with carpool's equivalents.

Owns these tables; `translate` applies them and `docs/shapes.md` is made from them. A key that stands in no
table may still be one of carpool's (people add `sharing` to an `.mcp.json`); else it gets one warning.

Sources, as of 2026-11: the programs' own reference pages. `timeout` is milliseconds in Claude Code, Gemini
CLI, Kiro and opencode, seconds in Cline, Roo Code and the Python programs with lists. If a program documents
no unit, none is guessed: the key is ignored with a warning.

Pure. Knows nothing of: files, lines, the meaning of carpool's settings.
"""

from typing import Final, Literal

from msgspec import Struct

from carpool_protocol.config.text.jsonc import JsonValue

Conversion = Literal[
    "same",
    "texts",
    "opposite",
    "time",
    "command",
    "attempts",
    "reconnect",
    "url",
    "http url",
    "oauth",
    "cannot",
    "transport",
    "unread",
]
"""How a value becomes one of carpool's (see `translate`)."""

Unit = Literal["s", "ms"] | None


class KeyMapping(Struct, frozen=True):
    """How one key of another program is converted."""

    conversion: Conversion
    key: str = ""
    """Carpool's key; empty: there is none."""


class FileShape(Struct, frozen=True, kw_only=True):
    """Where a kind of file holds its servers, and how they are written."""

    name: str
    """The name for people."""
    holders: tuple[str, ...]
    """The keys from the root to the servers. Empty: the root itself is the list."""
    mappings: dict[str, KeyMapping]
    unit: Unit
    """Unit of `timeout`."""
    beside: frozenset[str] | None = frozenset()
    """Keys beside the first holder that the program reads; None: it keeps all its settings there."""
    words: bool = False
    """True: a `command` with blanks and without `args` is a command line."""
    either: bool = False
    """True: `http` may also mean HTTP+SSE, because the program tries both."""
    braces: bool = False
    """True: `{env:VAR}` is a variable, and `${` is plain text."""


_REMOTE: Final[dict[str, KeyMapping]] = {
    "url": KeyMapping("url", "url"),
    "serverUrl": KeyMapping("url", "url"),
    "httpUrl": KeyMapping("http url", "url"),
    "headers": KeyMapping("texts", "headers"),
    "oauth": KeyMapping("oauth", "oauth"),
    "auth": KeyMapping("oauth", "oauth"),
    "headersHelper": KeyMapping("cannot"),
    "authProvider": KeyMapping("cannot"),
    "authProviderType": KeyMapping("cannot"),
}

OAUTH: Final[dict[str, str]] = {
    "clientId": "client_id",
    "client_id": "client_id",
    "CLIENT_ID": "client_id",
    "clientSecret": "client_secret",
    "client_secret": "client_secret",
    "CLIENT_SECRET": "client_secret",
    "scopes": "scopes",
    "scope": "scopes",
    "callbackPort": "redirect_port",
    "redirect_port": "redirect_port",
}
"""Keys of `oauth` (Claude Code, Gemini CLI, opencode) and `auth` (Cursor) → carpool's keys."""

_ALL_KEYS: Final[dict[str, KeyMapping]] = {
    "command": KeyMapping("command", "command"),
    "args": KeyMapping("command", "args"),
    "env": KeyMapping("texts", "env"),
    "environment": KeyMapping("texts", "env"),
    "cwd": KeyMapping("same", "cwd"),
    "workingDirectory": KeyMapping("same", "cwd"),
    "type": KeyMapping("transport", "transport"),
    "transport": KeyMapping("transport", "transport"),
    "transportType": KeyMapping("transport", "transport"),
    "disabled": KeyMapping("same", "disabled"),
    "enabled": KeyMapping("opposite", "disabled"),
    "timeout": KeyMapping("time", "timeout_s"),
    "auto_connect": KeyMapping("same", "auto_connect"),
    "autoConnect": KeyMapping("same", "auto_connect"),
    "tools_prefix": KeyMapping("same", "tools_prefix"),
    "reconnect": KeyMapping("reconnect", "restart.give_up_after"),
    "max_reconnect_attempts": KeyMapping("attempts", "restart.give_up_after"),
    "disabledTools": KeyMapping("same", "tools.deny"),
    "excludeTools": KeyMapping("same", "tools.deny"),
    "includeTools": KeyMapping("same", "tools.allow"),
    "tags": KeyMapping("same", "tags"),
    # Keys for the agent itself and its user: no task of carpool.
    **{
        each: KeyMapping("unread")
        for each in (
            *("alwaysAllow", "autoApprove", "alwaysLoad", "trust", "description", "name", "title", "icon"),
            *("gallery", "version", "dev", "id", "label", "watchPaths", "disabledInApplications"),
        )
    },
    **_REMOTE,
}
"""Keys of servers in the files of all programs."""

UNREAD_KEYS: Final = frozenset(key for key, each in _ALL_KEYS.items() if each.conversion == "unread")
"""Keys that concern the agent's program alone."""

MCP_SERVERS: Final = FileShape(name="mcpServers", holders=("mcpServers",), mappings=_ALL_KEYS, unit=None)
VS_CODE: Final = FileShape(
    name="VS Code",
    holders=("servers",),
    mappings=_ALL_KEYS,
    unit=None,
    beside=frozenset({"inputs", "sandbox"}),
    either=True,
)
VS_CODE_SETTINGS: Final = FileShape(
    name="VS Code settings",
    holders=("mcp", "servers"),
    mappings=_ALL_KEYS,
    unit=None,
    beside=None,
    either=True,
)
OPENCODE: Final = FileShape(
    name="opencode", holders=("mcp",), mappings=_ALL_KEYS, unit="ms", beside=None, words=True, braces=True
)
NAMED_LIST: Final = FileShape(name="list with names", holders=(), mappings=_ALL_KEYS, unit="s")
SERVERS_LIST: Final = FileShape(name="servers as a list", holders=("servers",), mappings=_ALL_KEYS, unit="s")

SHAPES: Final = (MCP_SERVERS, VS_CODE, VS_CODE_SETTINGS, NAMED_LIST, SERVERS_LIST, OPENCODE)


class ForeignProgram(Struct, frozen=True):
    """One file of another program."""

    name: str
    path: str
    """The end of the file's path, in whole steps."""
    unit: Unit = None
    """Unit of `timeout`, if the shape does not give it."""
    holds_more: bool = False
    """True: the file also holds the program's other settings."""
    dollars: bool = False
    """True: `$VAR` is a variable too."""


PROGRAMS: Final[tuple[ForeignProgram, ...]] = (
    ForeignProgram("Claude Code", ".mcp.json", "ms"),
    ForeignProgram("Claude Code", ".claude.json", "ms", holds_more=True),
    ForeignProgram("Claude Desktop", "claude_desktop_config.json", holds_more=True),
    ForeignProgram("Cursor", ".cursor/mcp.json"),
    ForeignProgram("Windsurf", "mcp_config.json"),
    ForeignProgram("VS Code", ".vscode/mcp.json"),
    ForeignProgram("VS Code", ".vscode/settings.json", holds_more=True),
    ForeignProgram("Gemini CLI", ".gemini/settings.json", "ms", holds_more=True, dollars=True),
    ForeignProgram("Kiro", ".kiro/settings/mcp.json", "ms"),
    ForeignProgram("Cline", "cline_mcp_settings.json", "s"),
    ForeignProgram("Roo Code", ".roo/mcp.json", "s"),
    ForeignProgram("Roo Code", "settings/mcp_settings.json", "s"),
    ForeignProgram("opencode", "opencode.json", "ms", holds_more=True),
    ForeignProgram("opencode", "opencode.jsonc", "ms", holds_more=True),
    ForeignProgram("another program", "mcp_servers.json", "s"),
    ForeignProgram("another program", "mcp/servers.json", "s"),
    ForeignProgram("another program", ".dispatch/mcp.json", "s"),
)
"""Files of other programs, by path. Any other file is carpool's own and read strictly."""

REMOTE_TRANSPORTS: Final[dict[str, str]] = {
    **dict.fromkeys(("http", "streamable-http", "streamableHttp", "streamable_http"), "http"),
    "sse": "sse",
    "url": "url",
    "remote": "url",
}
"""Their name of a transport → carpool's name."""
UNSUPPORTED_TRANSPORTS: Final = frozenset({"ws", "websocket"})
COMMAND_TRANSPORTS: Final = frozenset({"stdio", "local"})


def program_of(file: str) -> ForeignProgram | None:
    """The program that a file belongs to, by its path. None: it is carpool's own."""
    path = "/" + file.replace("\\", "/")
    return next((each for each in PROGRAMS if path.endswith("/" + each.path)), None)


def shape_of(value: JsonValue) -> FileShape | None:
    """The shape of a file's content. None: it holds no servers in a known shape."""
    match value:
        case list():
            return NAMED_LIST
        case {"mcpServers": _}:
            return MCP_SERVERS
        case {"servers": list()}:
            return SERVERS_LIST
        case {"servers": _}:
            return VS_CODE
        case {"mcp": {"servers": dict(servers)}} if not _ENTRY & servers.keys():
            return VS_CODE_SETTINGS
        case {"mcp": _}:
            return OPENCODE
        case _:
            return None


_ENTRY: Final = frozenset({"type", "command", "url", "enabled"})
"""If it has one of these keys, `servers` is a server of that name and no list of servers."""


def is_own_entry(entry: JsonValue) -> bool:
    """True if a server entry of another program runs carpool itself (`carpool connect`, `carpool run`).

    Carpool ignores such an entry; else it would be a server of itself.
    """
    match entry:
        case {"command": [*words]}:
            pass
        case {"command": command, "args": [*args]}:
            words = [command, *args]
        case _:
            return False
    texts = [each for each in words if isinstance(each, str)]
    if texts[1:2] == ["-P"]:  # the form in which carpool itself writes it
        del texts[1]
    at = (
        3
        if texts[1:3] == ["-m", "carpool"]
        else 1
        if texts and texts[0].rpartition("/")[2] == "carpool"
        else 0
    )
    return at > 0 and texts[at : at + 1] in (["connect"], ["run"])
