"""The faults of configuration files that keep a session in a directory from its servers.

Owns the sentences of all verbs that find nothing: the user's file is broken, the project's file is broken or
waits for trust, or all servers are disabled. Reads the files itself, since a verb may ask before the broker
has noticed. Knows nothing of: settings (`layers`), what a verb has looked for.
"""

import os
from collections.abc import Mapping, Sequence

from carpool.check.layers import working_directory
from carpool.control.control_client import AnsweredError
from carpool.control.place import runtime_place
from carpool.launcher.up import environment_in_force
from carpool.terminal import display
from carpool_protocol.bootstrap import paths
from carpool_protocol.config.reading.load import (
    ConfigFile,
    find_config_file,
    home_of,
    load_config,
    load_layer,
)
from carpool_protocol.config.reading.project import find_workspace, workspace_name_at
from carpool_protocol.config.reading.trust import read_trust, trust_of, waits_for_trust
from carpool_protocol.config.reading.workspaces import roots_of
from carpool_protocol.config.schema.model import Config, NamedWorkspace
from carpool_protocol.config.text.problems import ConfigProblem


def file_faults_here(workspace: str = "") -> str:
    """Return `file_faults` for a verb of this process, a line each. `workspace`: as of `--workspace`."""
    directory = runtime_place().directory
    environ = environment_in_force(directory)
    store = paths.trust_file(paths.state_dir(environ, directory))
    return "\n".join(file_faults(environ, store, working_directory(), workspace))


def faults_behind(error: AnsweredError, workspace: str = "") -> str:
    """Return `file_faults_here` for what was not found; empty for other errors."""
    missing = error.slug() in {"unknown_tool", "unknown_prompt", "unknown_resource"}
    return file_faults_here(workspace) if missing else ""


def file_faults(environ: Mapping[str, str], store: str, cwd: str, workspace: str = "") -> list[str]:
    """Return a sentence for each file that gives a session no servers though it may name some.

    `store`: the file of trust; `workspace`: a name or a directory in place of `cwd`.
    """
    where, home = find_config_file(environ), home_of(environ)
    found = [broken] if (broken := broken_file(environ)) else []
    user = load_config(where).config
    roots = {} if user is None else roots_of(user, home)
    at = roots.get(workspace, "") or (workspace if os.path.isabs(workspace) else cwd)
    name = workspace_name_at(at, roots)
    project = find_workspace(at, home, roots.get(name, ""), (where.path,) if user is None else user.files)
    configs: list[Config | NamedWorkspace] = []
    if user is not None:
        configs += [user, user.workspaces[name]] if name else [user]
    if project.file:
        layer = load_layer(ConfigFile(project.file, asked_for=True), home, project=True)
        config = layer.loaded.config
        trust = trust_of(read_trust(store), project, layer.digest)
        if config is None:
            found.append(f"the project's file cannot be read: {_first_of(layer.loaded.problems)}")
        elif trust == "trusted":
            configs.append(config)
        elif config.servers or config.unusable:
            found.append(waits_for_trust(project.file, project.root, trust, _marked(config)))
    servers = [each for config in configs for each in config.servers.values()]
    if not found and servers and all(each.disabled for each in servers):
        files = " and ".join(dict.fromkeys(each.written_in for each in servers))
        names = ", ".join(dict.fromkeys(each.name for each in servers))
        found.append(f"disabled in {files}: {names} (`carpool enable NAME`)")
    return [display.printable(each) for each in found]


def broken_file(environ: Mapping[str, str]) -> str:
    """Return what is wrong with the user's file; empty: nothing, or it is not there."""
    file = find_config_file(environ)
    problems = load_config(file).problems if os.path.lexists(file.path) else []
    return display.printable(f"the configuration cannot be read: {_first_of(problems)}") if problems else ""


def _first_of(problems: Sequence[ConfigProblem]) -> str:
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    return f"{problems[0].render()}{more}; `carpool check` shows all of it"


def _marked(config: Config) -> list[str]:
    """Return the servers of a file; those that it disables are marked."""
    disabled = {each.name for each in config.servers.values() if each.disabled}
    names = [*config.servers, *config.unusable]
    return [f"{name} (disabled there)" if name in disabled else name for name in names]
