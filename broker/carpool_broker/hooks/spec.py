"""The hooks of a configuration: what the core decides by, and what each is run as.

Owns the expansion of `${VAR}` in them: hooks belong to the daemon, not to a session, so a variable is that of
the `env_file`, else of the daemon's own scrubbed environment (rule 13).

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
    """How one hook is run. Where it changes, so does its process."""

    name: str
    argv: tuple[str, ...] = ()
    python: str | None = None
    env: dict[str, str] = {}
    cwd: str
    folder: str
    """Modules are looked for there, too: the directory of the configuration file."""
    problem: str = ""
    """Why it cannot be run; then each run fails."""

    def __repr__(self) -> str:
        """Without `env` and `argv`: they may hold secrets."""
        return f"HookSpec({self.name!r})"

    @property
    def secrets(self) -> set[str]:
        """What no log may hold."""
        return {each for each in secrets_of(self.env) if each}


def rule_of(hook: HookConfig) -> HookRule:
    """What the core decides by."""
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
    """How it is run. `file`: the configuration's; `variables`: what `${VAR}` stands for."""
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
