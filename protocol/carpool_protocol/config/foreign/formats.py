"""Other programs' files: whose a file is, in which shape, and the table of their keys onto ours.

Owns these tables; `translate` applies them and `docs/shapes.md` is made from them. A key that stands in no
table may still be one of ours (people add `sharing` to an `.mcp.json`); else it gets one warning.

Sources, as of 2026-11: the programs' own reference pages. `timeout` is milliseconds in Claude Code, Gemini
CLI, Kiro and opencode, seconds in Cline, Roo Code and the Python programs with lists. Where a program
documents none, its unit is not guessed: the key is passed over with a warning.

Pure. Knows nothing of: files, lines, what our settings mean.
"""

from typing import Final, Literal

from msgspec import Struct

from carpool_protocol.config.text.jsonc import JsonValue

Turn = Literal[
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
"""How a value becomes one of ours; see `translate`."""

Unit = Literal["s", "ms"] | None


class Way(Struct, frozen=True):
    """What becomes of one key."""

    turn: Turn
    key: str = ""
    """Ours; empty where none is."""


class Shape(Struct, frozen=True, kw_only=True):
    """How a kind of file holds its servers."""

    name: str
    """For people."""
    holders: tuple[str, ...]
    """The keys from the root to the servers; none: the root itself is the list."""
    ways: dict[str, Way]
    unit: Unit
    """Of `timeout`."""
    beside: frozenset[str] | None = frozenset()
    """Keys beside the first holder that the program reads; None: it keeps all its settings there."""
    words: bool = False
    """A `command` with blanks and without `args` is a command line."""
    either: bool = False
    """`http` may mean HTTP+SSE as well: the program tries both."""
    braces: bool = False
    """`{env:VAR}` is a variable, and `${` is text."""


_REMOTE: Final[dict[str, Way]] = {
    "url": Way("url", "url"),
    "serverUrl": Way("url", "url"),
    "httpUrl": Way("http url", "url"),
    "headers": Way("texts", "headers"),
    "oauth": Way("oauth", "oauth"),
    "auth": Way("oauth", "oauth"),
    "headersHelper": Way("cannot"),
    "authProvider": Way("cannot"),
    "authProviderType": Way("cannot"),
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
"""Keys of `oauth` (Claude Code, Gemini CLI, opencode) and `auth` (Cursor), theirs and ours."""

_ALL: Final[dict[str, Way]] = {
    "command": Way("command", "command"),
    "args": Way("command", "args"),
    "env": Way("texts", "env"),
    "environment": Way("texts", "env"),
    "cwd": Way("same", "cwd"),
    "workingDirectory": Way("same", "cwd"),
    "type": Way("transport", "transport"),
    "transport": Way("transport", "transport"),
    "transportType": Way("transport", "transport"),
    "disabled": Way("same", "disabled"),
    "enabled": Way("opposite", "disabled"),
    "timeout": Way("time", "timeout_s"),
    "auto_connect": Way("same", "auto_connect"),
    "autoConnect": Way("same", "auto_connect"),
    "tools_prefix": Way("same", "tools_prefix"),
    "reconnect": Way("reconnect", "restart.give_up_after"),
    "max_reconnect_attempts": Way("attempts", "restart.give_up_after"),
    "disabledTools": Way("same", "tools.deny"),
    "excludeTools": Way("same", "tools.deny"),
    "includeTools": Way("same", "tools.allow"),
    "tags": Way("same", "tags"),
    # What the agent itself asks of its user, or shows to it: not ours to do.
    **{
        each: Way("unread")
        for each in (
            *("alwaysAllow", "autoApprove", "alwaysLoad", "trust", "description", "name", "title", "icon"),
            *("gallery", "version", "dev", "id", "label", "watchPaths", "disabledInApplications"),
        )
    },
    **_REMOTE,
}
"""What every program's servers may hold."""

MCP_SERVERS: Final = Shape(name="mcpServers", holders=("mcpServers",), ways=_ALL, unit=None)
VS_CODE: Final = Shape(
    name="VS Code",
    holders=("servers",),
    ways=_ALL,
    unit=None,
    beside=frozenset({"inputs", "sandbox"}),
    either=True,
)
VS_CODE_SETTINGS: Final = Shape(
    name="VS Code settings", holders=("mcp", "servers"), ways=_ALL, unit=None, beside=None, either=True
)
OPENCODE: Final = Shape(
    name="opencode", holders=("mcp",), ways=_ALL, unit="ms", beside=None, words=True, braces=True
)
NAMED_LIST: Final = Shape(name="list with names", holders=(), ways=_ALL, unit="s")
SERVERS_LIST: Final = Shape(name="servers as a list", holders=("servers",), ways=_ALL, unit="s")

SHAPES: Final = (MCP_SERVERS, VS_CODE, VS_CODE_SETTINGS, NAMED_LIST, SERVERS_LIST, OPENCODE)


class Program(Struct, frozen=True):
    """Whose a file is."""

    name: str
    path: str
    """How the file's path ends, in whole steps."""
    unit: Unit = None
    """Of `timeout`, where the shape does not say it."""
    holds_more: bool = False
    """The file is the program's settings as a whole."""
    dollars: bool = False
    """`$VAR` is a variable, too."""


PROGRAMS: Final[tuple[Program, ...]] = (
    Program("Claude Code", ".mcp.json", "ms"),
    Program("Claude Code", ".claude.json", "ms", holds_more=True),
    Program("Claude Desktop", "claude_desktop_config.json", holds_more=True),
    Program("Cursor", ".cursor/mcp.json"),
    Program("Windsurf", "mcp_config.json"),
    Program("VS Code", ".vscode/mcp.json"),
    Program("VS Code", ".vscode/settings.json", holds_more=True),
    Program("Gemini CLI", ".gemini/settings.json", "ms", holds_more=True, dollars=True),
    Program("Kiro", ".kiro/settings/mcp.json", "ms"),
    Program("Cline", "cline_mcp_settings.json", "s"),
    Program("Roo Code", ".roo/mcp.json", "s"),
    Program("Roo Code", "settings/mcp_settings.json", "s"),
    Program("opencode", "opencode.json", "ms", holds_more=True),
    Program("opencode", "opencode.jsonc", "ms", holds_more=True),
    Program("another program", "mcp_servers.json", "s"),
    Program("another program", "mcp/servers.json", "s"),
)
"""Files that are not ours by their path. Any other file is: it is read strictly."""

REMOTE_TRANSPORTS: Final[dict[str, str]] = {
    **dict.fromkeys(("http", "streamable-http", "streamableHttp", "streamable_http"), "http"),
    "sse": "sse",
    "url": "url",
    "remote": "url",
}
"""Theirs and ours."""
UNSPOKEN: Final = frozenset({"ws", "websocket"})
COMMAND_TRANSPORTS: Final = frozenset({"stdio", "local"})


def program_of(file: str) -> Program | None:
    """Whose file this is by its path; None: ours."""
    path = "/" + file.replace("\\", "/")
    return next((each for each in PROGRAMS if path.endswith("/" + each.path)), None)


def shape_of(value: JsonValue) -> Shape | None:
    """In which shape a file holds its servers; None: it holds none in any shape that is known."""
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
"""With one of these, `servers` is a server of that name."""


def is_own_entry(entry: JsonValue) -> bool:
    """Whether a server of another program is carpool itself (`carpool connect`, `carpool run`): for carpool
    it is none, or it would be a server of its own.
    """
    match entry:
        case {"command": [*words]}:
            pass
        case {"command": command, "args": [*args]}:
            words = [command, *args]
        case _:
            return False
    said = [each for each in words if isinstance(each, str)]
    if said[1:2] == ["-P"]:  # as carpool itself says it
        del said[1]
    at = 3 if said[1:3] == ["-m", "carpool"] else 1 if said and said[0].rpartition("/")[2] == "carpool" else 0
    return at > 0 and said[at : at + 1] in (["connect"], ["run"])
