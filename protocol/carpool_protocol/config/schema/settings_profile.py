"""The settings of a profile: the object under `profiles` → NAME in the user's own file.

Knows nothing of: the meaning of a pattern (`capability`), the agents with a profile.
"""

from typing import Final

from carpool_protocol.config.schema.capability import check_capability
from carpool_protocol.config.schema.setting import Setting

PROFILE_SETTINGS: Final[tuple[Setting, ...]] = (
    Setting(
        key="allow",
        field="allow",
        kind="texts",
        default=("*",),
        check=check_capability,
        text="What its agents may see and call: `mcp:SERVER:TOOL`, `prompt:SERVER:PROMPT`, "
        "`resource:SERVER:URI`, `mcp:SERVER` (all of it), `tag:TAG` or `*`; each part is a shell pattern "
        "over the server's own names. An empty list allows nothing.",
    ),
    Setting(
        key="deny",
        field="deny",
        kind="texts",
        default=(),
        check=check_capability,
        text="What its agents may not see or call, written like `allow` and stronger than it.",
    ),
    Setting(
        key="max_in_flight",
        field="max_in_flight",
        kind="count",
        unit="calls",
        low=1,
        high=1_000_000,
        text="Maximum number of calls that are open at servers at once; more wait in the queue.",
    ),
    Setting(
        key="calls_per_minute",
        field="calls_per_minute",
        kind="count",
        unit="calls",
        low=1,
        high=1_000_000,
        text="Maximum number of calls in a minute; they may come all at once. More are answered "
        "`Unavailable`, with the time to wait.",
    ),
    Setting(
        key="max_servers",
        field="max_servers",
        kind="count",
        unit="servers",
        low=1,
        high=1_000_000,
        text="Maximum number of different servers that may be called; calls to further servers are refused.",
    ),
    Setting(
        key="max_tools",
        field="max_tools",
        kind="count",
        unit="tools",
        low=0,
        high=1_000_000,
        text="Maximum number of tools in the list. Further tools are not listed but can still be called.",
    ),
    Setting(
        key="show",
        field="show",
        kind="text",
        default="all",
        choices=("all", "search"),
        text="`search`: list tools that find, describe and call tools, instead of the tools themselves.",
    ),
    Setting(
        key="resource_tools",
        field="resource_tools",
        kind="switch",
        default=False,
        text="List tools that list and read resources and prompts, for agents that know only tools.",
    ),
)
"""The limits count for one session, or for all sessions of one token together."""
