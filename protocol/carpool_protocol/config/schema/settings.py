"""The table of all settings: key, kind, default, unit and description.

From it come validation and "did you mean" (`parse`), the values and defaults of `model`, the page
`docs/settings.md` (`settings_page`) and the rows of `carpool check` (`describe`). A setting that is not here,
in `settings_cluster`, `settings_server`, `settings_profile`, `settings_hooks`, `settings_trace` or
`settings_http` does not exist.

Knows nothing of: files, text, servers by name.
"""

from typing import Final

from carpool_protocol.config.schema.setting import (
    Default,
    Kind,
    MiB,
    Setting,
    check_pattern,
    check_root,
    count,
    seconds,
    size,
)
from carpool_protocol.config.schema.settings_cluster import CLUSTER_SETTINGS
from carpool_protocol.config.schema.settings_hooks import HOOK_SETTINGS
from carpool_protocol.config.schema.settings_http import HTTP_SETTINGS
from carpool_protocol.config.schema.settings_profile import PROFILE_SETTINGS
from carpool_protocol.config.schema.settings_server import SERVER_SETTINGS
from carpool_protocol.config.schema.settings_trace import TRACE_SETTINGS
from carpool_protocol.ids import MAX_SUPERVISORS
from carpool_protocol.wire.tool_name_resolver import (
    MAX_NAME_CHARS,
    MIN_NAME_CHARS,
    SEPARATOR,
    check_separator,
)

__all__ = [
    "FILE_SETTINGS",
    "HOOK_SETTINGS",
    "PROFILE_SETTINGS",
    "SERVER_SETTINGS",
    "WORKSPACE_SETTINGS",
    "Default",
    "Kind",
    "MiB",
    "Setting",
    "may_be_late",
]

FILE_SETTINGS: Final[tuple[Setting, ...]] = (
    Setting(
        key="separator",
        field="separator",
        kind="text",
        default=SEPARATOR,
        check=check_separator,
        text="Stands between server and tool in the names agents see.",
    ),
    count(
        "tool_name_length",
        "tool_name_length",
        MAX_NAME_CHARS,
        "characters",
        "Longest names of tools and prompts; longer ones are cut and get a hash. An agent may have a limit "
        "of its own (`carpool connect --tool-name-length`).",
        low=MIN_NAME_CHARS,
        high=MAX_NAME_CHARS,
    ),
    Setting(
        key="description_prefix",
        field="description_prefix",
        kind="switch",
        default=False,
        text="Put `[server] ` before each tool's description.",
    ),
    Setting(
        key="max_tools",
        field="max_tools",
        kind="count",
        unit="tools",
        high=1_000_000,
        text="Maximum number of tools in one agent's list. Further tools are not listed but can still be "
        "called. A profile may allow fewer.",
    ),
    Setting(
        key="env_file",
        field="env_file",
        kind="text",
        text="File of `NAME=value` lines for variables that an agent's own environment does not have. A "
        "value is taken as written, without quotes around the whole of it; `#` begins a comment only at the "
        "start of a line. Relative to the configuration file; `~/` is the home directory.",
    ),
    Setting(
        key="login_shell",
        field="login_shell",
        kind="switch",
        default=True,
        text="Ask your login shell for its `PATH` when carpool starts: servers then find the same programs "
        "as your terminal. `false`: servers get the `PATH` with which carpool was started.",
    ),
    Setting(
        key="include",
        field="include",
        kind="texts",
        default=(),
        check=check_pattern,
        text="Patterns of further files with servers, such as `servers.d/*.json`: relative to the directory "
        "of the configuration file, and only inside it. New, changed and removed files take effect at once.",
    ),
    count(
        "max_instances",
        "max_instances",
        64,
        "instances",
        "Maximum number of running instances of all servers together.",
        high=4096,
    ),
    count(
        "max_greeting",
        "max_greeting",
        3,
        "instances",
        "Maximum number of instances that start at the same time; others wait their turn. One that does "
        "not greet keeps its turn for 5 s, towards servers of other projects and workspaces for 1 s.",
        high=4096,
    ),
    count(
        "supervisors",
        "supervisors",
        1,
        "processes",
        "Number of processes that run servers. Each server has one of them, and each gets an equal share of "
        "`max_greeting` and `max_instances`, but room for the `pool.min` of all its servers. More than one "
        "helps where that process needs a whole core. A changed number applies after "
        "`carpool restart --all`.",
        low=1,
        high=MAX_SUPERVISORS,
    ),
    seconds(
        "list_wait_s",
        "list_wait_s",
        10.0,
        "Longest time that a list of tools waits for servers that are starting.",
    ),
    seconds(
        "idle_exit_s",
        "idle_exit_s",
        3600.0,
        "A carpool that an agent has started ends this long after the last session of an agent has ended, "
        "and the next agent starts it again; 0: never. One that you started (`carpool up`, a service) goes "
        "on, and so does any with an HTTP door or a server with `auto_connect` or `pool.min`.",
        zero=True,
    ),
    size(
        "receive_budget_bytes",
        "receive_budget_bytes",
        256 * MiB,
        "Maximum memory for unfinished lines of all agents together.",
    ),
    size(
        "argument_budget_bytes",
        "argument_budget_bytes",
        256 * MiB,
        "Maximum memory for arguments of the open calls of all agents together. One agent may use as much as "
        "it leaves free for all others; more is answered `Unavailable`.",
    ),
    size(
        "unread_budget_bytes",
        "unread_budget_bytes",
        256 * MiB,
        "Maximum memory for output that agents have not read. One agent may use as much as it leaves free "
        "for all others; in place of further large answers it gets an error. All agents with one token for "
        "HTTP count as one.",
    ),
    count(
        "session.max_open_calls",
        "session.max_open_calls",
        64,
        "calls",
        "Maximum number of calls of one session that are open at once.",
    ),
    count(
        "session.max_waiting_calls",
        "session.max_waiting_calls",
        256,
        "calls",
        "Maximum number of calls of one session that wait because of `session.max_open_calls`; more are "
        "answered `Unavailable`.",
        low=0,
    ),
    size(
        "session.max_waiting_bytes",
        "session.max_waiting_bytes",
        16 * MiB,
        "Maximum size of waiting calls of one session.",
    ),
    seconds(
        "session.park_s",
        "session.park_s",
        300.0,
        "How long a call of a stateless agent waits for the agent's answer to the server (sampling, "
        "elicitation); then it is cancelled. It may end sooner while other agents wait for the instance that "
        "it holds.",
    ),
    seconds(
        "session.return_s",
        "session.return_s",
        30.0,
        "How long sessions are kept after the death of their broker, with their calls and leases, so that "
        "agents can resume them.",
    ),
    seconds(
        "session.slow_reader_s",
        "session.slow_reader_s",
        30.0,
        "An agent that does not read its output is disconnected after this long.",
    ),
    Setting(
        key="audit.on",
        field="audit.on",
        kind="switch",
        default=False,
        text="Log which agent called which tool, when, and the outcome, never values ([audit.md](audit.md)).",
    ),
    size(
        "audit.max_bytes",
        "audit.max_bytes",
        64 * MiB,
        "Maximum size of all audit files together; the oldest is removed first.",
    ),
    Setting(
        key="counters",
        field="counters",
        kind="switch",
        default=True,
        text="Count calls, errors and times by agent, server and tool ([counters.md](counters.md)).",
    ),
    *TRACE_SETTINGS,
    *HTTP_SETTINGS,
    *CLUSTER_SETTINGS,
)
"""Settings of the file as a whole. `mcpServers` is not one: it holds servers."""

WORKSPACE_SETTINGS: Final[tuple[Setting, ...]] = (
    Setting(
        key="root",
        field="root",
        kind="text",
        check=check_root,
        text="The workspace's directory: absolute, or below `~`. Agents that work there are in the workspace "
        "automatically. Without it agents must name the workspace, and there is no `${workspace}`.",
    ),
)
"""Settings of a named workspace, beside its servers: the object under `workspaces` → NAME."""

_LATE: Final = frozenset({"switch", "count", "seconds"})
_CHECKED_AT_ONCE: Final = frozenset({"pool.min", "pin"})
"""Settings that other rules of the file depend on, or that an agent's environment must not decide."""


def may_be_late(setting: Setting) -> bool:
    """True if a file may have `${VAR}` in place of this number or switch (`late_values`)."""
    return setting.kind in _LATE and setting.key not in _CHECKED_AT_ONCE
