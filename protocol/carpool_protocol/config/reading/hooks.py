"""Reads the list `hooks` of the user's file.

Owns its structure. Only the user's own file may have hooks: they see the calls of all agents, and run as the
user.

Knows nothing of: processes, calls.
"""

from collections.abc import Collection
from typing import Final

from carpool_protocol.config.reading.workspaces import SectionReader
from carpool_protocol.config.schema.model import HookConfig
from carpool_protocol.config.schema.setting import with_defaults
from carpool_protocol.config.schema.settings_hooks import HOOK_SETTINGS
from carpool_protocol.config.schema.value_types import kind_of
from carpool_protocol.config.text.jsonc import JsonValue
from carpool_protocol.config.text.problems import KeyPath, did_you_mean

HOOKS: Final = "hooks"
_KEYS: Final = {each.key: each for each in HOOK_SETTINGS}


def read_hooks(reading: SectionReader, value: JsonValue, profiles: Collection[str]) -> tuple[HookConfig, ...]:
    """All hooks in the order of the file. `profiles`: the names of existing profiles."""
    if not isinstance(value, list):
        reading.add_problem((HOOKS,), f"must be a list of hooks in [ ], found {kind_of(value)}")
        return ()
    found: dict[str, HookConfig] = {}
    for number, inner in enumerate(value):
        path: KeyPath = (HOOKS, number)
        if not isinstance(inner, dict):
            example = '{ "name": "guard", "command": "…" }'
            reading.add_problem(path, f"must be an object like {example}, found {kind_of(inner)}")
            continue
        fields = reading.section(path, inner, _KEYS, {})
        if "name" not in inner:
            reading.add_problem(path, "needs a `name`")
            continue
        if ("command" in inner) == ("python" in inner):
            reading.add_problem(path, "needs a `command` or `python`, and not both")
        elif "python" in inner and "args" in inner:
            reading.add_problem((*path, "args"), "goes with `command` only")
        if "on" in inner and not inner["on"]:
            reading.add_problem((*path, "on"), "is empty: the hook would never run")
        for at, profile in enumerate(fields.get("profiles", ())):
            if profile not in profiles:
                meant = did_you_mean(profile, list(profiles))
                hint = f"; did you mean `{meant}`?" if meant else ""
                reading.add_problem((*path, "profiles", at), f"there is no profile of this name{hint}")
        hook = HookConfig(**with_defaults(HOOK_SETTINGS, fields))
        if hook.name in found:
            reading.add_problem((*path, "name"), "is the name of another hook, too")
        found[hook.name] = hook
    return tuple(found.values())
