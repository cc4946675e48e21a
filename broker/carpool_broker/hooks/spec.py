"""The hooks of a configuration: the rules for the core, and the launch of each.

Owns the expansion of `${VAR}` in them. Hooks belong to the daemon, not to a session, so a variable comes from
the `env_file`, else from the daemon's own scrubbed environment (rule 13).

Pure. Knows nothing of: processes, calls.
"""

import os
from collections.abc import Mapping

from msgspec import Struct

from carpool_broker.core.model.events import HookRule
from carpool_protocol.carrier.remote import secrets_of
from carpool_protocol.config.schema.capability import capability
from carpool_protocol.config.schema.expand import MissingValue, expand, from_home
from carpool_protocol.config.schema.model import HookConfig


class HookSpec(Struct, frozen=True, kw_only=True):
    """The launch of one hook. If it changes, its process is replaced."""

    name: str
    argv: tuple[str, ...] = ()
    python: str | None = None
    env: dict[str, str] = {}
    cwd: str
    folder: str
    """The directory of the configuration file, in which modules are looked up too."""
    problem: str = ""
    """Why it cannot be run; then each run fails."""

    def __repr__(self) -> str:
        """The name without `env` and `argv`, which may hold secrets."""
        return f"HookSpec({self.name!r})"

    @property
    def secrets(self) -> set[str]:
        """Values that no log may hold."""
        return {each for each in secrets_of(self.env) if each}


def rule_of(hook: HookConfig) -> HookRule:
    """The rule of a hook for the core."""
    return HookRule(
        name=hook.name,
        before="before" in hook.on,
        after="after" in hook.on,
        match=tuple(map(capability, hook.match)),
        profiles=hook.profiles,
        timeout_s=hook.timeout_s,
        closed=hook.on_failure == "deny",
        rewrite=hook.rewrite,
    )


def spec_of(hook: HookConfig, file: str, variables: Mapping[str, str], home: str) -> HookSpec:
    """The launch of a hook. `file`: the configuration's; `variables`: values for `${VAR}`."""
    problem = ""

    def filled(text: str) -> str:
        nonlocal problem
        found = expand(text, variables, {})
        if isinstance(found, MissingValue):
            problem = problem or found.render()
            return ""
        return found

    argv: tuple[str, ...] = ()
    if hook.command is not None:
        argv = (from_home(filled(hook.command), home), *map(filled, hook.args))
    env = {name: filled(value) for name, value in hook.env.items()}
    folder = os.path.dirname(file)
    python = None if hook.python is None else filled(hook.python)
    return HookSpec(
        name=hook.name, argv=argv, python=python, env=env, cwd=home, folder=folder, problem=problem
    )
