"""Warnings of `carpool check` about hooks, without running any of their code.

Owns the search for a hook's command and for its module. A missing function is only noticed when the hook's
process imports the module. Knows nothing of: calls, terminals.
"""

import os
import shutil
import sys
from collections.abc import Mapping
from importlib.machinery import PathFinder

from carpool_protocol.config.reading.hooks import HOOKS
from carpool_protocol.config.reading.load import home_of
from carpool_protocol.config.schema.expand import MissingValue, expand, from_home
from carpool_protocol.config.schema.model import Config, HookConfig
from carpool_protocol.config.text.problems import ConfigProblem, render_path


def hook_warnings(config: Config, variables: Mapping[str, str]) -> list[str]:
    """Return a warning for each hook that cannot run.

    `variables`: those of the daemon, with its `env_file`.
    """
    found: list[str] = []
    for number, hook in enumerate(config.hooks):
        why = _objection(config, hook, variables)
        if why is not None:
            key, text = why
            at = (HOOKS, number, key)
            line = config.lines.get(at, config.lines.get(at[:2], 1))
            effect = "refused" if hook.on_failure == "deny" else "let through"
            text = f"{text}; the calls of this hook are {effect} meanwhile"
            found.append(ConfigProblem(config.file, line, render_path(at), text).render())
    return found


def _objection(config: Config, hook: HookConfig, variables: Mapping[str, str]) -> tuple[str, str] | None:
    env: dict[str, str] = {}
    for name, text in hook.env.items():
        value = expand(text, variables, {})
        if isinstance(value, MissingValue):
            return "env", value.render()
        env[name] = value
    for text in () if hook.command is None else (hook.command, *hook.args):
        if isinstance(missing := expand(text, variables, {}), MissingValue):
            return "command", missing.render()
    search = env.get("PATH", variables.get("PATH", os.defpath))
    if hook.command is not None:
        command = from_home(str(expand(hook.command, variables, {})), home_of(variables))
        return None if shutil.which(command, path=search) else ("command", f"there is no command {command!a}")
    module = (hook.python or "").partition(":")[0]
    own = [each for each in env.get("PYTHONPATH", "").split(os.pathsep) if each]
    places = [*own, *filter(None, sys.path), os.path.dirname(config.file)]
    return None if _is_there(module, places) else ("python", f"there is no module {module} that Python finds")


def _is_there(module: str, places: list[str]) -> bool:
    """True if a module of this name is found; none is imported."""
    within: list[str] | None = places
    for name in module.split("."):
        if within is None:
            return False
        spec = PathFinder.find_spec(name, within)
        if spec is None:
            return name in sys.builtin_module_names
        within = None if spec.submodule_search_locations is None else list(spec.submodule_search_locations)
    return True
