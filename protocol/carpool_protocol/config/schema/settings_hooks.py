"""The settings of a hook: one object of the list `hooks` in the user's own file.

Knows nothing of: the messages to and from a hook (`hooks`), the meaning of a pattern (`capability`).
"""

import re
from typing import Final

from msgspec import UNSET

from carpool_protocol.config.schema.capability import check_capability
from carpool_protocol.config.schema.setting import Setting, seconds
from carpool_protocol.wire.tool_name_resolver import check_server_name

_NAME = r"[A-Za-z_][A-Za-z0-9_]*"
_ENTRY = re.compile(rf"{_NAME}(\.{_NAME})*:{_NAME}(\.{_NAME})*")
_PHASES: Final = ("before", "after")


def _check_phase(value: str) -> str | None:
    return None if value in _PHASES else 'must be "before" or "after"'


def _check_entry(value: str) -> str | None:
    return None if _ENTRY.fullmatch(value) else 'must be a module and a function, like "my_hooks:no_secrets"'


HOOK_SETTINGS: Final[tuple[Setting, ...]] = (
    Setting(
        key="name",
        field="name",
        kind="text",
        default=UNSET,
        check=lambda name: check_server_name(name, "hook"),
        text="Name in errors, logs and `carpool status`.",
    ),
    Setting(
        key="on",
        field="on",
        kind="texts",
        default=("before",),
        check=_check_phase,
        text="When the hook runs: `before` a call is sent, `after` it was answered (also with an error of "
        "carpool), or both.",
    ),
    Setting(
        key="command",
        field="command",
        kind="template",
        text="A program: it gets the call as JSON on stdin and writes its verdict as JSON on stdout. `~/` is "
        "the home directory.",
    ),
    Setting(key="args", field="args", kind="templates", default=(), text="Arguments of the program."),
    Setting(
        key="python",
        field="python",
        kind="text",
        check=_check_entry,
        text="In place of `command`: `package.module:function`, run by the daemon's own Python. Modules "
        "beside the configuration file are found.",
    ),
    Setting(
        key="env",
        field="env",
        kind="template map",
        text="Environment variables of its process. `${VAR}` comes from the `env_file`, else from the "
        "daemon's own environment.",
    ),
    Setting(
        key="match",
        field="match",
        kind="texts",
        default=("*",),
        check=check_capability,
        text="The calls that it checks, written as in a profile: `mcp:github:*`, `tag:code`.",
    ),
    Setting(
        key="profiles",
        field="profiles",
        kind="texts",
        default=(),
        text="Check only calls of agents with one of these profiles. Empty: calls of all agents.",
    ),
    seconds("timeout_s", "timeout_s", 5.0, "The hook fails if it gives no verdict for this long."),
    Setting(
        key="on_failure",
        field="on_failure",
        kind="text",
        default="deny",
        choices=("deny", "allow"),
        text="What happens if the hook fails: `deny` the call (or withhold the answer), or `allow` it.",
    ),
    Setting(
        key="rewrite",
        field="rewrite",
        kind="switch",
        default=False,
        text="Allow the hook to rewrite arguments and results. Without this setting a rewrite is a failure.",
    ),
)
