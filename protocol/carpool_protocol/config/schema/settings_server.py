"""The settings of one server, in the order of the pages that show them.

The defaults of a pool's policy are those of `messages.Policy`, which alone states them. Part of the one table
in `settings`.

Knows nothing of: files, text, servers by name.
"""

from typing import Final

from carpool_protocol.config.schema.setting import Setting, count, seconds, size
from carpool_protocol.link.messages import Policy
from carpool_protocol.wire.tool_names import check_tools_prefix

_P: Final = Policy()

SERVER_SETTINGS: Final[tuple[Setting, ...]] = (
    Setting(
        key="command",
        field="command",
        kind="template",
        text="The program to run, looked up in the server's `PATH`. A server has this, `url` or `python`.",
    ),
    Setting(key="args", field="args", kind="templates", default=(), text="Its arguments."),
    Setting(
        key="python",
        field="python",
        kind="template",
        text="A Python module, as `package.module`, whose functions are the server's tools (docs/python.md). "
        "It is looked for in `cwd` first.",
    ),
    Setting(
        key="strict",
        field="strict",
        kind="switch",
        default=False,
        text="With `python`: a function whose parameters have no types keeps the server from starting. "
        "Otherwise it takes any arguments, and its name is in the server's log.",
    ),
    Setting(
        key="interpreter",
        field="interpreter",
        kind="template",
        text="With `python`: the Python that runs the module, which needs carpool installed; relative to "
        "`cwd`. Without this setting it is carpool's own.",
    ),
    Setting(
        key="env",
        field="env",
        kind="template map",
        text="Environment variables of the server, added to the daemon's own.",
    ),
    Setting(
        key="cwd",
        field="cwd",
        kind="template",
        default="~",
        text="Directory the server runs in. Relative to the home directory, which `~` names.",
    ),
    Setting(
        key="transport",
        field="transport",
        kind="text",
        choices=("stdio", "http", "sse", "url"),
        spellings=(
            ("streamable-http", "http"),
            ("streamableHttp", "http"),
            ("streamable_http", "http"),
        ),
        later=("ws",),
        also=("type",),
        text="How the server is reached. `stdio`: a command. `http`: a `url` with Streamable HTTP, of both "
        "eras. `sse`: a `url` with HTTP+SSE, its predecessor. `url`: which of the two is found out, by the "
        "well-known document of the host or by trying (docs/remote.md). Without this setting a server with "
        "a `url` is `url`. Other programs write it as `type`.",
    ),
    Setting(
        key="url",
        field="url",
        kind="url",
        text="Where the server is, instead of `command`: it is reached over HTTP (docs/remote.md).",
    ),
    Setting(
        key="headers",
        field="headers",
        kind="header map",
        text="HTTP headers for every request to `url`. With an `Authorization` among them there is no login.",
    ),
    Setting(
        key="oauth.client_id",
        field="oauth_client_id",
        kind="template",
        text="The client that `carpool login` uses, where it was registered by hand. Without it carpool "
        "registers itself.",
    ),
    Setting(key="oauth.client_secret", field="oauth_client_secret", kind="secret", text="Its secret."),
    Setting(
        key="oauth.scopes",
        field="oauth_scopes",
        kind="texts",
        default=(),
        text="What `carpool login` asks for. Without them, what the server says it needs.",
    ),
    count(
        "oauth.redirect_port",
        "oauth_redirect_port",
        0,
        "port",
        "Where `carpool login` waits on 127.0.0.1 for the browser to come back, for clients registered with "
        "one port. 0: any.",
        low=0,
        high=65535,
    ),
    Setting(
        key="era",
        field="era",
        kind="text",
        default="auto",
        choices=("auto", "legacy", "modern", "match"),
        text="How the server is spoken to. `legacy`: with a handshake (MCP 2024-11-05 to 2025-11-25). "
        "`modern`: stateless (MCP 2026-07-28). `auto`: in the era of each agent if the server speaks both, "
        "with a second process only when agents of both use it; else in the one that it speaks. `match`: as "
        "`auto`, also where `pool.max` is 1. Agents of both eras can use it in any case; "
        "`carpool why SERVER` tells which era it is and why ([sharing.md](sharing.md)).",
    ),
    Setting(
        key="disabled",
        field="disabled",
        kind="switch",
        default=False,
        text="Known and shown, never started; its tools are not listed. `carpool enable` and `disable` are "
        "stronger, for a while ([workspaces.md](workspaces.md)).",
    ),
    Setting(
        key="tools_file",
        field="tools_file",
        kind="text",
        text="File with the server's tools, as `tools/list` or `carpool tools --json` give them, relative to "
        "the file this stands in; `~/` is the home directory. They are listed while the server has not told "
        "its own since carpool started, and while it is stopped or has failed.",
    ),
    Setting(
        key="auto_connect",
        field="policy.auto_connect",
        kind="switch",
        default=_P.auto_connect,
        text="Start with carpool instead of on first use.",
    ),
    Setting(
        key="sharing",
        field="policy.sharing",
        kind="text",
        default=_P.sharing,
        choices=("auto", "concurrent", "serial", "session"),
        text="How agents share the server. `concurrent`: many calls at once on an instance. `serial`: one "
        "call that can ask at a time on an instance. `session`: each agent has an instance of its own. "
        "`auto`: carpool decides; `carpool why SERVER` tells what and why.",
    ),
    Setting(
        key="roots",
        field="roots",
        kind="text",
        choices=("workspace", "agent"),
        text="Which directories the server is told as MCP roots. `workspace`: the workspace of the agent's "
        "session. `agent`: those that the agent itself names, with its names for them, else its workspace. "
        "Agents with other roots have an instance of their own. Without this setting roots are not "
        "declared to the server.",
    ),
    count(
        "pool.min",
        "policy.min_instances",
        _P.min_instances,
        "instances",
        "Instances kept running once the server has started.",
        low=0,
        high=4096,
    ),
    count(
        "pool.max",
        "policy.max_instances",
        _P.max_instances,
        "instances",
        "Instances at most. 0: as the sharing mode needs them (1 for `concurrent`, 4 for `serial`, 32 for "
        "`session`; fewer where carpool's list knows that several would undo each other).",
        low=0,
        high=4096,
    ),
    count(
        "pool.spares",
        "policy.spares",
        _P.spares,
        "instances",
        "Warm instances beyond those that agents hold, while a server shared as `session` is in use, so that "
        "the next agent need not wait.",
        low=0,
        high=4096,
    ),
    count(
        "pool.scale_up_at",
        "policy.scale_up_at",
        _P.scale_up_at,
        "calls",
        "Unanswered calls on the least busy instance at which another one starts, up to `pool.max`.",
    ),
    seconds(
        "pool.idle_s",
        "policy.idle_s",
        _P.idle_s,
        "An instance unused this long is ended, down to `pool.min`.",
    ),
    seconds("timeout_s", "policy.timeout_s", _P.timeout_s, "A call ends after this long without progress."),
    Setting(
        key="tool_timeouts_s",
        field="policy.tool_timeouts_s",
        kind="seconds map",
        unit="s",
        text="`timeout_s` for single tools, by the server's own names.",
    ),
    seconds(
        "max_total_s", "policy.max_total_s", _P.max_total_s, "A call ends after this long, progress or not."
    ),
    seconds(
        "ask_timeout_s",
        "policy.ask_timeout_s",
        _P.ask_timeout_s,
        "A question of the server (sampling, elicitation) that its agent has not answered in this time is "
        "answered with an error. Meanwhile `timeout_s` of its call stands still, and the server is not ended "
        "for its silence.",
    ),
    seconds(
        "lease_idle_s",
        "policy.lease_idle_s",
        _P.lease_idle_s,
        "An instance that one agent holds (`session`) is taken back after this long without a call.",
    ),
    seconds("wait_s", "policy.wait_s", _P.wait_s, "The longest a call waits for an instance."),
    count(
        "max_waiting_calls",
        "policy.max_waiting_calls",
        _P.max_waiting_calls,
        "calls",
        "Calls of all sessions that wait for an instance of this server; more are answered `Unavailable`.",
        low=0,
    ),
    size(
        "max_waiting_bytes", "policy.max_waiting_bytes", _P.max_waiting_bytes, "Size of the calls that wait."
    ),
    count(
        "max_in_flight",
        "policy.max_in_flight",
        _P.max_in_flight,
        "calls",
        "Unanswered calls on one instance before others wait or another instance starts.",
    ),
    seconds("start_s", "policy.start_s", _P.start_s, "Limit from spawn to greeting."),
    seconds(
        "first_start_s",
        "policy.first_start_s",
        _P.first_start_s,
        "The same until the server has once greeted: `npx` and `uvx` may install for minutes.",
    ),
    count(
        "restart.give_up_after",
        "policy.give_up_after",
        _P.give_up_after,
        "failures",
        "Failures in a row after which the server is left alone for `restart.open_s`.",
    ),
    seconds(
        "restart.first_delay_s",
        "policy.first_delay_s",
        _P.first_delay_s,
        "Pause before the first restart; it doubles with each failure.",
        zero=True,
    ),
    seconds("restart.max_delay_s", "policy.max_delay_s", _P.max_delay_s, "The longest pause.", zero=True),
    seconds(
        "restart.healthy_after_s",
        "policy.healthy_after_s",
        _P.healthy_after_s,
        "After a life this long an end no longer counts as one failure more in a row.",
    ),
    seconds(
        "restart.open_s",
        "policy.open_s",
        _P.open_s,
        "A server that failed `restart.give_up_after` times in a row is left alone for this long; calls to "
        "it are refused at once. Then, when somebody needs it, one start and one call show whether it is "
        "well again. 0: never by itself, only `carpool start SERVER` tries again.",
        zero=True,
    ),
    count(
        "limits.rss_mb",
        "policy.limit_rss_mb",
        _P.limit_rss_mb,
        "MiB",
        "An instance whose processes hold more memory than this, twice in a row when looked at every few "
        "seconds (RSS, so memory that they share counts for each), is replaced: another greets first if it "
        "is in use, and open calls finish. One that an agent holds (`session`) is left to it for `drain_s`. "
        "0: no limit.",
        low=0,
    ),
    count(
        "limits.calls",
        "policy.limit_calls",
        _P.limit_calls,
        "calls",
        "An instance is replaced in the same way after so many calls, or up to a tenth fewer, so that "
        "several do not go at once. One that an agent holds is ended with its lease, as always. 0: no limit.",
        low=0,
        high=1_000_000_000,
    ),
    seconds(
        "limits.age_s",
        "policy.limit_age_s",
        _P.limit_age_s,
        "The same for the age of an instance. 0: no limit.",
        zero=True,
    ),
    seconds(
        "probe_s",
        "policy.probe_s",
        _P.probe_s,
        "An instance silent this long is probed with a ping, and given no new call while it does not answer. "
        "It is ended once its silence has lasted as long as any of its calls may. Time in which carpool does "
        "not read from it, or in which it waits for an agent's answer, does not count towards that.",
    ),
    seconds(
        "drain_s", "policy.drain_s", _P.drain_s, "The longest a replaced instance may finish what is open."
    ),
    Setting(
        key="replace",
        field="replace",
        kind="text",
        default="greet_first",
        choices=("greet_first", "stop_first"),
        text="When the server's settings change: the new one greets before the old one stops, or the old one "
        "stops first (for servers that hold a port or a lock).",
    ),
    Setting(
        key="stderr_in_errors",
        field="policy.stderr_in_errors",
        kind="switch",
        default=_P.stderr_in_errors,
        text="Show the server's last stderr lines to whichever agent its death hits. "
        "They may hold other agents' data.",
    ),
    Setting(
        key="tools.allow",
        field="tools_allow",
        kind="texts",
        default=("*",),
        text="Tools that agents may see and call, by the server's own names, as patterns "
        "(`*`, `?`, `[…]`; case counts).",
    ),
    Setting(
        key="tools.deny",
        field="tools_deny",
        kind="texts",
        default=(),
        text="Patterns of tools that are hidden and refused, also where `tools.allow` has them.",
    ),
    Setting(
        key="tools_prefix",
        field="tools_prefix",
        kind="text",
        check=check_tools_prefix,
        text="Stands before the separator in the names agents see; without it the server's name does. "
        '`""`: names untouched.',
    ),
    Setting(
        key="description_prefix",
        field="description_prefix",
        kind="switch",
        text="`description_prefix` for this server alone.",
    ),
    Setting(
        key="pin",
        field="pin",
        kind="switch",
        default=False,
        text="Hold back tools that are new, or whose definition has changed since the user approved them. "
        "What the server lists first counts as approved (docs/security.md).",
    ),
    Setting(
        key="max_tools",
        field="max_tools",
        kind="count",
        unit="tools",
        high=1_000_000,
        text="Its tools in one agent's list; those that come after are left out of it and can still be "
        "called.",
    ),
    Setting(
        key="tags",
        field="tags",
        kind="texts",
        default=(),
        text="Words to find servers by. Profiles may grant and deny by them (`tag:WORD`).",
    ),
)
"""Settings of one server: the object under `mcpServers` → NAME."""
