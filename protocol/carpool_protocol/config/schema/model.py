"""A configuration that was read and is valid.

Owns the values that all other code works with. Invariant: the values that `parse` builds are valid by
themselves (types, bounds, names, templates); only expansion can still fail. Defaults stand in `settings`, so
these values are always complete.

Knows nothing of: text, files, sessions, processes.
"""

from typing import Literal

from msgspec import Struct

from carpool_protocol.config.schema.expand import PLACE_NAMES, references
from carpool_protocol.config.text.problems import KeyPath
from carpool_protocol.ids import ServerName
from carpool_protocol.link.messages import Policy, ToolOffer

Replace = Literal["greet_first", "stop_first"]
Roots = Literal["workspace", "agent"]
Era = Literal["auto", "legacy", "modern", "match"]


class SessionSettings(Struct, frozen=True, kw_only=True):
    """Limits for the open and waiting calls of one session (rule 3)."""

    max_open_calls: int
    max_waiting_calls: int
    max_waiting_bytes: int
    park_s: float
    return_s: float
    slow_reader_s: float


class AuditConfig(Struct, frozen=True, kw_only=True):
    """Settings of the audit log."""

    on: bool
    max_bytes: int


TRACE_VARIABLES = "OTEL_"
"""The start of the names of the variables of the OpenTelemetry SDK."""


class TraceConfig(Struct, frozen=True, kw_only=True):
    """Settings of OpenTelemetry traces."""

    on: bool
    sample: float
    endpoint: str | None


OperatorRight = Literal["", "read", "full"]
"""What the holder of a token may do as an operator: nothing (an agent), read, or also change what runs."""


class HttpToken(Struct, frozen=True):
    """A bearer token for HTTP, under its name in the file."""

    hash: str
    """`sha256:` and 64 hex digits."""
    profile: str = ""
    """The profile of agents with this token; empty: no limits."""
    operator: OperatorRight = ""
    """Not empty: the token is an operator's, and no agent's."""
    expires: float = 0.0
    """The time from which it is refused, in seconds since 1970; 0: never."""
    workspaces: tuple[str, ...] = ()
    """The named workspaces that its agents may work in; empty: any."""

    def is_expired(self, now: float) -> bool:
        """True if it is refused by now."""
        return 0.0 < self.expires <= now


class HttpConfig(Struct, frozen=True, kw_only=True):
    """Settings of the HTTP door, which exists if the file has `http` (see `Config.http_wanted`)."""

    host: str
    port: int
    path: str
    stateless: bool
    json_response: bool
    given_tokens: dict[str, HttpToken] | None
    """Tokens by the name of the principal; empty: the door makes one. None: it needs none (`false`)."""
    hosts: tuple[str, ...]
    origins: tuple[str, ...]
    max_body_bytes: int
    max_sessions: int
    max_open: int
    max_connections: int
    session_idle_s: float

    @property
    def tokens(self) -> dict[str, HttpToken]:
        """The tokens that the file names."""
        return self.given_tokens or {}

    @property
    def needs_token(self) -> bool:
        """True if nobody comes in without a token."""
        return self.given_tokens is not None


class ClusterConfig(Struct, frozen=True, kw_only=True):
    """Settings of the cluster that this carpool is a node of (docs/cluster.md)."""

    url: str
    """Empty: no cluster."""
    node: str
    """Empty: the machine's name."""
    name: str
    labels: tuple[str, ...]
    profile: str
    drain_by: tuple[str, ...]
    """Names of nodes, or `*`."""
    max_servers: int
    """The most servers of one other node that are used here."""
    credentials: str
    ca: str
    certificate: str
    certificate_key: str
    key: str
    peers: tuple[str, ...]
    """Each `NAME ADDRESS [PUBLIC-KEY]`."""


class ServerConfig(Struct, frozen=True, kw_only=True):
    """One server as written, before expansion."""

    name: ServerName
    file: str
    """The file that it is written in, as shown to people."""
    under: KeyPath
    """Its path in that file."""
    project: bool
    """True: a project's own file. Its servers run in the workspace (rule 13), once trusted (rule 19)."""
    workspace: str = ""
    """The named workspace that it is written under; empty: none."""
    command: str | None
    """`None`: the server is `url` or `python`, or disabled. `server_kinds` says which keys go with which."""
    args: tuple[str, ...]
    python: str | None
    """A Python module; its functions are the tools."""
    node: str | None = None
    """The server is at this other node of the cluster, or at any (`*`)."""
    server: str | None = None
    """Its name there; `None`: the same."""
    on: tuple[str, ...] = ()
    """The nodes that run it, by label; empty: every node that has it in its file."""
    strict: bool
    interpreter: str | None
    """`None`: the daemon's own Python."""
    env: dict[str, str]
    cwd: str
    transport: Literal["stdio", "http", "sse", "url"] | None
    """`None`: `stdio`, or `url` with a URL."""
    url: str | None
    headers: dict[str, str]
    oauth_client_id: str | None
    oauth_client_secret: str | None
    oauth_scopes: tuple[str, ...]
    oauth_redirect_port: int
    era: Era
    disabled: bool
    replace: Replace
    roots: Roots | None
    """`None`: roots are not declared to the server (rule 6)."""
    tools_allow: tuple[str, ...]
    tools_deny: tuple[str, ...]
    tools_prefix: str | None
    """`None`: the server's name."""
    description_prefix: bool | None
    """`None`: the value of the file."""
    pin: bool
    """True: tools with a definition that is not approved are held back."""
    max_tools: int | None
    tags: tuple[str, ...]
    tools_file: str | None
    """As written, before `~` and relative paths are resolved."""
    offline: tuple[ToolOffer, ...] | None = None
    """The tools in it; `None` without a file, and until `load` has read it."""
    policy: Policy
    beneath: Policy | None = None
    """Policy of the user's server with the same name, or the defaults; `None`: it lies over no other layer.

    See `merge`.
    """
    late: dict[KeyPath, str]
    """Numbers and switches written as `${VAR}`, by path below the server.

    `late_values.fill_late_values` reads them; until then they have their defaults.
    """
    lines: dict[KeyPath, int]
    """Lines in the file, by path below the server; `()` is the server's name."""

    def __repr__(self) -> str:
        """The name without `env` and `args`, which may hold secrets: reprs end up in logs."""
        return f"ServerConfig({self.name!r})"

    @property
    def written_in(self) -> str:
        """The place of the server for people: the file, and the workspace that it belongs to."""
        return f"{self.file} (workspace {self.workspace})" if self.workspace else self.file

    @property
    def is_offline(self) -> bool:
        """True if its `tools_file` lists tools and there is nothing to run."""
        kinds = (self.command, self.url, self.python, self.node)
        return self.tools_file is not None and kinds == (None,) * len(kinds)

    def templates(self) -> list[tuple[KeyPath, str]]:
        """Every text in which `${VAR}` is expanded, with its path below the server."""
        return [
            *(
                ((key,), text)
                for key, text in (
                    ("command", self.command),
                    ("python", self.python),
                    ("interpreter", self.interpreter),
                    ("url", self.url),
                )
                if text is not None
            ),
            *((("headers", name), text) for name, text in self.headers.items()),
            *([(("oauth", "client_id"), self.oauth_client_id)] if self.oauth_client_id is not None else []),
            *((("args", at), text) for at, text in enumerate(self.args)),
            *((("env", name), text) for name, text in self.env.items()),
            (("cwd",), self.cwd),
            *self.late.items(),
        ]

    def login_templates(self) -> list[tuple[KeyPath, str]]:
        """The templates, and the one that only `carpool login` needs."""
        secret = self.oauth_client_secret
        return [*self.templates(), *([(("oauth", "client_secret"), secret)] if secret is not None else [])]


class ProfileConfig(Struct, frozen=True, kw_only=True):
    """The rights and limits of agents with this profile (docs/profiles.md)."""

    name: str
    allow: tuple[str, ...]
    """Capabilities (`carpool_protocol.config.schema.capability`). Empty: nothing."""
    deny: tuple[str, ...]
    """Stronger than `allow`."""
    max_in_flight: int | None
    calls_per_minute: int | None
    max_servers: int | None
    max_tools: int | None
    show: Literal["all", "search"]
    resource_tools: bool


class HookConfig(Struct, frozen=True, kw_only=True):
    """One hook as written, before expansion (docs/hooks.md)."""

    name: str
    on: tuple[str, ...]
    command: str | None
    """`None`: the hook is `python`."""
    args: tuple[str, ...]
    python: str | None
    """`package.module:function`"""
    env: dict[str, str]
    match: tuple[str, ...]
    """Capabilities (`carpool_protocol.config.schema.capability`)."""
    profiles: tuple[str, ...]
    """Empty: agents of any profile."""
    timeout_s: float
    on_failure: Literal["deny", "allow"]
    rewrite: bool

    def __repr__(self) -> str:
        """The name without `env` and `args`, which may hold secrets."""
        return f"HookConfig({self.name!r})"


class NamedWorkspace(Struct, frozen=True, kw_only=True):
    """A workspace of the user's file: servers for the sessions in it, laid over those for all."""

    name: str
    file: str
    line: int
    root: str | None
    """As written: absolute, or below `~`. Sessions below it are in the workspace. None: only sessions that
    name it.
    """
    servers: dict[ServerName, ServerConfig]
    unusable: dict[ServerName, str] = {}
    """See `Config.unusable`."""


class Config(Struct, frozen=True, kw_only=True):
    """The content of a configuration file and of the files it includes."""

    file: str
    """The path as shown to people."""
    servers: dict[ServerName, ServerConfig]
    """In the order of the file."""
    unusable: dict[ServerName, str]
    """Servers that cannot be run as written, and the reason with file and line."""
    include: tuple[str, ...]
    """Patterns of files with more servers, relative to this file."""
    included: tuple[str, ...] = ()
    """The files that these patterns named at the time of reading."""
    separator: str
    tool_name_length: int
    description_prefix: bool
    max_tools: int | None
    env_file: str | None
    """As written; `load.env_file_path` gives the path."""
    login_shell: bool
    max_instances: int
    max_greeting: int
    supervisors: int
    list_wait_s: float
    idle_exit_s: float
    receive_budget_bytes: int
    argument_budget_bytes: int
    unread_budget_bytes: int
    counters: bool
    session: SessionSettings
    audit: AuditConfig
    trace: TraceConfig
    http: HttpConfig
    cluster: ClusterConfig
    workspaces: dict[str, NamedWorkspace]
    """In the order of the file."""
    profiles: dict[str, ProfileConfig]
    hooks: tuple[HookConfig, ...]
    """In the order of the file, which is the order in which they run."""
    lines: dict[KeyPath, int]
    """Lines of the settings outside `mcpServers`."""

    @property
    def files(self) -> tuple[str, ...]:
        """All files in which servers of this configuration may be written."""
        return self.file, *self.included

    @property
    def http_wanted(self) -> bool:
        """True if the file opens the HTTP door."""
        return ("http",) in self.lines


def takes_operator_variables(server: ServerConfig) -> bool:
    """True for a server of the user's file that connects when carpool starts, before any agent is there."""
    return server.policy.auto_connect and not server.project and not server.workspace


def operator_variables(config: Config) -> frozenset[str]:
    """The variables that servers with `auto_connect` in the user's file use (`takes_operator_variables`)."""
    servers = filter(takes_operator_variables, config.servers.values())
    return frozenset(
        name for server in servers for _, text in server.templates() for name in references(text)
    ) - frozenset(PLACE_NAMES)


def variables(config: Config, *, disabled: bool = False) -> frozenset[str]:
    """The environment variables that enabled servers use; with `disabled`, also those of disabled servers."""
    names = {
        name
        for server in config.servers.values()
        if disabled or not server.disabled
        for _, text in server.templates()
        for name in references(text)
    }
    return frozenset(names - PLACE_NAMES)
