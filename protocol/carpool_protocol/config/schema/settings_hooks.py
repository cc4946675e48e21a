"""The settings of a hook: one object of the list under `hooks` in the user's own file.

Knows nothing of: what a hook is told and says (`hooks`), what a pattern covers (`capability`).
"""

import re
from typing import Final

from msgspec import UNSET

from carpool_protocol.config.schema.capability import check_capability
from carpool_protocol.config.schema.setting import Setting, seconds
from carpool_protocol.wire.tool_names import check_server_name

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
        text="What it is called in errors, logs and `carpool status`.",
    ),
    Setting(
        key="on",
        field="on",
        kind="texts",
        default=("before",),
        check=_check_phase,
        text="When it looks: `before` a call is sent, `after` it was answered (then also at calls that ended "
        "with an error of carpool), or both.",
    ),
    Setting(
        key="command",
        field="command",
        kind="template",
        text="A program: the call comes as JSON on its stdin, its verdict is JSON on its stdout. `~/` is the "
        "home directory.",
    ),
    Setting(key="args", field="args", kind="templates", default=(), text="Its arguments."),
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
        text="Environment variables of its process. `${VAR}` is of the `env_file`, else of the daemon's own.",
    ),
    Setting(
        key="match",
        field="match",
        kind="texts",
        default=("*",),
        check=check_capability,
        text="Which calls it looks at, written as in a profile: `mcp:github:*`, `tag:code`.",
    ),
    Setting(
        key="profiles",
        field="profiles",
        kind="texts",
        default=(),
        text="Only calls of agents with one of these profiles. Empty: calls of all agents.",
    ),
    seconds("timeout_s", "timeout_s", 5.0, "It fails when it has given no verdict for so long."),
    Setting(
        key="on_failure",
        field="on_failure",
        kind="text",
        default="deny",
        choices=("deny", "allow"),
        text="When it fails: `deny` the call (or keep the answer back), or `allow` it as it is.",
    ),
    Setting(
        key="rewrite",
        field="rewrite",
        kind="switch",
        default=False,
        text="It may rewrite arguments and results. One that does without counts as failed.",
    ),
)
