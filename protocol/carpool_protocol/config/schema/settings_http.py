"""The settings of the HTTP door: `http` in the file. The key alone, even with an empty object, opens the
door.

Knows nothing of: HTTP. The door itself (`carpool.http`) checks what only it can judge.
"""

from typing import Final

from carpool_protocol.config.schema.setting import MiB, Setting, count, seconds, size

_NO_VARIABLES: Final = (
    "no ${VAR} is filled in here; for an address from the environment set CARPOOL_HTTP=HOST:PORT where "
    "`carpool up` runs, or run `carpool up --http HOST:PORT`"
)


def _check_host(value: str) -> str | None:
    if "${" in value:
        return _NO_VARIABLES
    if not value or not value.isprintable() or set(value) & set(" /[]"):
        return 'must be a name or an address alone, such as "127.0.0.1"; the port goes into `http.port`'
    return None


def _check_path(value: str) -> str | None:
    good = value.startswith("/") and not value.endswith("/") and value.isascii() and value.isprintable()
    if good and not set(value) & set("?#% "):
        return None
    return 'must be a path such as "/mcp": with a slash before and none behind it'


HTTP_SETTINGS: Final[tuple[Setting, ...]] = (
    Setting(
        key="http.host",
        field="http.host",
        kind="text",
        default="127.0.0.1",
        check=_check_host,
        text='Name or address on which the HTTP door listens. Only loopback goes with `"tokens": false`.',
    ),
    Setting(
        key="http.port",
        field="http.port",
        kind="count",
        default=8808,
        unit="port",
        low=0,
        high=65535,
        no_variables=_NO_VARIABLES,
        text="Port of the HTTP door, without quotes. 0: any free one.",
    ),
    Setting(
        key="http.path",
        field="http.path",
        kind="text",
        default="/mcp",
        check=_check_path,
        text="Path of MCP. `PATH/s/SERVER` offers one server under its own tool names.",
    ),
    Setting(
        key="http.stateless",
        field="http.stateless",
        kind="switch",
        default=False,
        text="Serve handshake-era requests without sessions: each POST gets a session of its own. Servers "
        "cannot ask such agents anything.",
    ),
    Setting(
        key="http.json_response",
        field="http.json_response",
        kind="switch",
        default=False,
        text="Answer every POST with plain JSON, never with a stream of events. Progress and log messages of "
        "a request are left out, and requests of a server to the agent are refused. In the stateless era "
        "they still work, as `input_required` results.",
    ),
    Setting(
        key="http.tokens",
        field="http.given_tokens",
        kind="token map",
        text="Bearer tokens that are accepted: a name and the hash of the token. `carpool token add NAME` "
        "writes both. Where there is none, the HTTP door makes one and keeps it in the state directory "
        "(`carpool token show`); `false`: no token is needed, and every process of this user comes in "
        '([http.md](http.md)). With `{"hash": …, "profile": NAME}` in place of the hash, '
        'agents with that token have that profile. With `{"hash": …, "operator": true}` the token is an '
        "operator's and no agent's; "
        'with `"read"` for `true` it only reads ([operating.md](operating.md)). With `"expires": '
        '"2027-01-31T00:00:00Z"` it is refused from then on. With `"workspaces": [NAME, …]` its agents work '
        "in those workspaces only ([workspaces.md](workspaces.md)).",
    ),
    Setting(
        key="http.hosts",
        field="http.hosts",
        kind="texts",
        default=(),
        text="Names without port that a `Host` header may have, besides those of loopback. `*`: any.",
    ),
    Setting(
        key="http.origins",
        field="http.origins",
        kind="texts",
        default=(),
        text="Origins of web pages that may send requests, besides those of loopback, such as "
        "`https://app.example.org`. `*`: any.",
    ),
    size(
        "http.max_body_bytes",
        "http.max_body_bytes",
        4 * MiB,
        "Largest body of a request; at most 8387584.",
    ),
    count(
        "http.max_sessions",
        "http.max_sessions",
        10_000,
        "sessions",
        "Maximum number of sessions, divided evenly among the tokens; more are answered 503. Requests of the "
        "stateless era have one session for each token and URL; if it is idle it gives way to another one.",
    ),
    count(
        "http.max_open",
        "http.max_open",
        1024,
        "requests",
        "Maximum number of open requests of one token, or of all agents without one; more are answered 429.",
    ),
    count(
        "http.max_connections",
        "http.max_connections",
        16_384,
        "connections",
        "Maximum number of connections of all agents together; [http.md](http.md) says how tokens share "
        "them.",
    ),
    seconds(
        "http.session_idle_s",
        "http.session_idle_s",
        3600.0,
        "A session ends after this long without a request, also that of stateless requests.",
    ),
)
"""Settings of the door, in the file's `http`."""
