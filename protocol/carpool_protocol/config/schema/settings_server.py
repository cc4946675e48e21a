"""The settings of one server, in the order of the pages that show them.

The defaults of a pool's policy are those of `messages.Policy` and stand only there. Part of the one table in
`settings`.

Knows nothing of: files, text, servers by name.
"""

from typing import Final

from carpool_protocol.config.schema.setting import Setting, count, seconds, size
from carpool_protocol.config.schema.settings_cluster import check_node, check_placement
from carpool_protocol.link.messages import Policy
from carpool_protocol.wire.tool_name_resolver import check_tools_prefix

_P: Final = Policy()

SERVER_SETTINGS: Final[tuple[Setting, ...]] = (
    Setting(
        key="command",
        field="command",
        kind="template",
        text="The program to run, looked up in the server's `PATH`. A server has `command`, `url` or "
        "`python`.",
    ),
    Setting(key="args", field="args", kind="templates", default=(), text="Arguments of the program."),
    Setting(
        key="python",
        field="python",
        kind="template",
        text="A Python module, as `package.module`, whose functions are the server's tools "
        "([python.md](python.md)). It is looked up in `cwd` first.",
    ),
    Setting(
        key="strict",
        field="strict",
        kind="switch",
        default=False,
        text="With `python`: `true` refuses to start the server if a parameter of a function has no type. "
        "Otherwise such a function takes any arguments, and its name is in the server's log.",
    ),
    Setting(
        key="interpreter",
        field="interpreter",
        kind="template",
        text="With `python`: the Python that runs the module, relative to `cwd`; carpool must be installed "
        "in it. Default: carpool's own Python.",
    ),
    Setting(
        key="node",
        field="node",
        kind="text",
        check=check_node,
        text="A server of another node of the cluster: the node's name, or `*` for any node that offers "
        "it ([cluster.md](cluster.md)). What other nodes offer is there without this; it is for a "
        "name of your own.",
    ),
    Setting(
        key="server",
        field="server",
        kind="text",
        text="With `node`: the server's name there. Default: the same as here.",
    ),
    Setting(
        key="on",
        field="on",
        kind="texts",
        default=(),
        alone=True,
        check=check_placement,
        text='The nodes of the cluster that run it, by label: `gpu`, or `["host:alpha", "!small"]`. A node '
        "needs one of the labels and none with `!`; `host:NAME` is the label of one node. Elsewhere "
        "the server is that of the nodes that run it.",
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
        text="Directory in which the server runs, relative to the home directory (`~`).",
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
        "eras. `sse`: a `url` with HTTP+SSE, its predecessor. `url`: carpool finds out which of the two, by "
        "the well-known document of the host or by trying ([remote.md](remote.md)); this is the default with "
        "a `url`. Other programs write this key as `type`.",
    ),
    Setting(
        key="url",
        field="url",
        kind="url",
        text="Address of a server that is reached over HTTP, instead of `command` ([remote.md](remote.md)).",
    ),
    Setting(
        key="headers",
        field="headers",
        kind="header map",
        text="HTTP headers for every request to `url`. With an `Authorization` header no login is needed.",
    ),
    Setting(
        key="oauth.client_id",
        field="oauth_client_id",
        kind="template",
        text="The client id for `carpool login`, if the client was registered by hand. Without it carpool "
        "registers itself.",
    ),
    Setting(
        key="oauth.client_secret",
        field="oauth_client_secret",
        kind="secret",
        text="The client secret for `carpool login`.",
    ),
    Setting(
        key="oauth.scopes",
        field="oauth_scopes",
        kind="texts",
        default=(),
        text="Scopes that `carpool login` asks for. Default: those that the server says it needs.",
    ),
    count(
        "oauth.redirect_port",
        "oauth_redirect_port",
        0,
        "port",
        "Port on 127.0.0.1 on which `carpool login` waits for the browser, for clients registered with one "
        "port. 0: any.",
        low=0,
        high=65535,
    ),
    Setting(
        key="era",
        field="era",
        kind="text",
        default="auto",
        choices=("auto", "legacy", "modern", "match"),
        text="The era of MCP in which carpool speaks to the server. `legacy`: with a handshake (MCP "
        "2024-11-05 to 2025-11-25). `modern`: stateless (MCP 2026-07-28). `auto`: in the era of each agent "
        "if the server speaks both, with a second process only if agents of both use it; else in the era "
        "that it speaks. `match`: as `auto`, also if `pool.max` is 1. Agents of both eras can use it in any "
        "case; `carpool why SERVER` shows the era and the reason ([sharing.md](sharing.md)).",
    ),
    Setting(
        key="disabled",
        field="disabled",
        kind="switch",
        default=False,
        text="`true`: the server is shown but never started, and its tools are not listed. `carpool enable` "
        "and `disable` temporarily override this ([workspaces.md](workspaces.md)).",
    ),
    Setting(
        key="tools_file",
        field="tools_file",
        kind="text",
        text="File with the server's tools, as `tools/list` or `carpool tools --json` give them, relative to "
        "the file with this setting; `~/` is the home directory. They are listed until the server has given "
        "its own list since carpool started, and while it is stopped or has failed. Without a program: the "
        "server is `offline`, and calls to it are refused.",
    ),
    Setting(
        key="auto_connect",
        field="policy.auto_connect",
        kind="switch",
        default=_P.auto_connect,
        text="Start the server with carpool instead of on first use.",
    ),
    Setting(
        key="sharing",
        field="policy.sharing",
        kind="text",
        default=_P.sharing,
        choices=("auto", "concurrent", "serial", "session"),
        text="How agents share the server. `concurrent`: many calls at once on an instance. `serial`: one "
        "call that can ask at a time on an instance. `session`: each agent has an instance of its own. "
        "`auto`: carpool decides; `carpool why SERVER` shows the decision and the reason.",
    ),
    Setting(
        key="roots",
        field="roots",
        kind="text",
        choices=("workspace", "agent"),
        text="The directories that the server gets as MCP roots. `workspace`: the workspace of the agent's "
        "session. `agent`: those that the agent itself names, with its names for them, else its workspace. "
        "Agents with different roots have different instances. Changed roots hold from when they are "
        "applied: one change of a token, or of a session without one, every 0.5 s. Without this setting "
        "carpool does not declare roots to the server.",
    ),
    count(
        "pool.min",
        "policy.min_instances",
        _P.min_instances,
        "instances",
        "Minimum number of instances that keep running once the server has started.",
        low=0,
        high=4096,
    ),
    count(
        "pool.max",
        "policy.max_instances",
        _P.max_instances,
        "instances",
        "Maximum number of instances. 0: as many as the sharing mode needs (1 for `concurrent`, 4 for "
        "`serial`, 32 for `session`; fewer if carpool's list says that several would disturb each other).",
        low=0,
        high=4096,
    ),
    count(
        "pool.spares",
        "policy.spares",
        _P.spares,
        "instances",
        "Warm instances beyond those that agents hold, while a server shared as `session` is in use. They "
        "save the next agent the start.",
        low=0,
        high=4096,
    ),
    count(
        "pool.scale_up_at",
        "policy.scale_up_at",
        _P.scale_up_at,
        "calls",
        "At this many unanswered calls on the least busy instance another one starts, up to `pool.max`.",
    ),
    seconds(
        "pool.idle_s",
        "policy.idle_s",
        _P.idle_s,
        "An instance unused this long is ended, down to `pool.min`. Servers of a project, a workspace or an "
        "agent's variables stay this long after their last agent.",
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
        "max_total_s",
        "policy.max_total_s",
        _P.max_total_s,
        "A call ends after this long, even with progress.",
    ),
    seconds(
        "ask_timeout_s",
        "policy.ask_timeout_s",
        _P.ask_timeout_s,
        "A request of the server to the agent (sampling, elicitation) gets an error as answer after this "
        "long. Meanwhile `timeout_s` of its call is paused, and the server is not ended for its silence.",
    ),
    seconds(
        "lease_idle_s",
        "policy.lease_idle_s",
        _P.lease_idle_s,
        "An instance that one agent holds (`session`) is taken back after this long without a call.",
    ),
    seconds("wait_s", "policy.wait_s", _P.wait_s, "Longest time that a call waits for an instance."),
    count(
        "max_waiting_calls",
        "policy.max_waiting_calls",
        _P.max_waiting_calls,
        "calls",
        "Maximum number of calls of all sessions that wait for an instance of this server; more are answered "
        "`Unavailable`.",
        low=0,
    ),
    size(
        "max_waiting_bytes",
        "policy.max_waiting_bytes",
        _P.max_waiting_bytes,
        "Maximum size of waiting calls.",
    ),
    count(
        "max_in_flight",
        "policy.max_in_flight",
        _P.max_in_flight,
        "calls",
        "Maximum number of unanswered calls on one instance; further calls wait, or another instance starts. "
        "The last eighth is for agents and tokens that hold few.",
    ),
    seconds(
        "start_s",
        "policy.start_s",
        _P.start_s,
        "Longest time from the start of the process to the end of its greeting.",
    ),
    seconds(
        "first_start_s",
        "policy.first_start_s",
        _P.first_start_s,
        "`start_s` until the server has greeted once: `npx` and `uvx` may install for minutes.",
    ),
    count(
        "restart.give_up_after",
        "policy.give_up_after",
        _P.give_up_after,
        "failures",
        "After this many failures in a row carpool does not start the server for `restart.open_s`.",
    ),
    seconds(
        "restart.first_delay_s",
        "policy.first_delay_s",
        _P.first_delay_s,
        "Pause before the first restart; it doubles with each failure.",
        zero=True,
    ),
    seconds(
        "restart.max_delay_s",
        "policy.max_delay_s",
        _P.max_delay_s,
        "Longest pause before a restart.",
        zero=True,
    ),
    seconds(
        "restart.healthy_after_s",
        "policy.healthy_after_s",
        _P.healthy_after_s,
        "The end of an instance that lived this long does not continue a row of failures.",
    ),
    seconds(
        "restart.open_s",
        "policy.open_s",
        _P.open_s,
        "How long carpool does not start a server that failed `restart.give_up_after` times in a row; calls "
        "to it are refused at once. Afterwards carpool starts it once as a test: by itself if somebody "
        "called it or listed tools meanwhile, or if `auto_connect` or `pool.min` keep it, else with the next "
        "call or list. Until a call has returned, one call at a time is let through; a failure begins the "
        "time anew. 0: only `carpool start SERVER` starts it again.",
        zero=True,
    ),
    count(
        "limits.rss_mb",
        "policy.limit_rss_mb",
        _P.limit_rss_mb,
        "MiB",
        "An instance is replaced if its processes use more memory than this in two measurements in a row, a "
        "few seconds apart (RSS: memory that they share counts for each). If it is in use, another instance "
        "greets first, and open calls finish. An agent that holds it (`session`) keeps it for `drain_s`. 0: "
        "no limit.",
        low=0,
    ),
    count(
        "limits.calls",
        "policy.limit_calls",
        _P.limit_calls,
        "calls",
        "An instance is replaced in the same way after this many calls, or up to a tenth fewer, so that "
        "several are not replaced at once. One that an agent holds is ended with its lease. 0: no limit.",
        low=0,
        high=1_000_000_000,
    ),
    seconds(
        "limits.age_s",
        "policy.limit_age_s",
        _P.limit_age_s,
        "An instance is replaced in the same way at this age. 0: no limit.",
        zero=True,
    ),
    seconds(
        "probe_s",
        "policy.probe_s",
        _P.probe_s,
        "An instance that is silent for this long gets a ping, and no new call until it answers. It is ended "
        "when it has been silent for as long as any of its calls may last. Time in which carpool does not "
        "read from it, or in which it waits for an agent's answer, does not count.",
    ),
    seconds(
        "drain_s",
        "policy.drain_s",
        _P.drain_s,
        "Longest time in which a replaced instance may finish its open calls.",
    ),
    Setting(
        key="replace",
        field="replace",
        kind="text",
        default="greet_first",
        choices=("greet_first", "stop_first"),
        text="Order when the server's settings change. `greet_first`: the new process greets before the old "
        "one stops. `stop_first`: the old one stops first (for servers that hold a port or a lock).",
    ),
    Setting(
        key="stderr_in_errors",
        field="policy.stderr_in_errors",
        kind="switch",
        default=_P.stderr_in_errors,
        text="Show the server's last stderr lines to agents with calls that its death ends. "
        "The lines may hold other agents' data.",
    ),
    Setting(
        key="tools.allow",
        field="tools_allow",
        kind="texts",
        default=("*",),
        text="Tools that agents may see and call: patterns over the server's own names "
        "(`*`, `?`, `[…]`; case sensitive).",
    ),
    Setting(
        key="tools.deny",
        field="tools_deny",
        kind="texts",
        default=(),
        text="Patterns of tools that are hidden and refused, even if `tools.allow` has them.",
    ),
    Setting(
        key="tools_prefix",
        field="tools_prefix",
        kind="text",
        check=check_tools_prefix,
        text="Text before the separator in the names that agents see, in place of the server's name. "
        '`""`: the server\'s own tool names.',
    ),
    Setting(
        key="description_prefix",
        field="description_prefix",
        kind="switch",
        text="`description_prefix` for this server only.",
    ),
    Setting(
        key="pin",
        field="pin",
        kind="switch",
        default=False,
        text="Hold back new tools, and tools with a definition that changed after the user approved it. "
        "The server's first list counts as approved ([security.md](security.md)).",
    ),
    Setting(
        key="max_tools",
        field="max_tools",
        kind="count",
        unit="tools",
        high=1_000_000,
        text="Maximum number of tools of this server in one agent's list. Further tools are not listed but "
        "can still be called.",
    ),
    Setting(
        key="tags",
        field="tags",
        kind="texts",
        default=(),
        text="Words that group servers. Profiles may grant and deny by them (`tag:WORD`).",
    ),
)
"""Settings of one server: the object under `mcpServers` → NAME."""
