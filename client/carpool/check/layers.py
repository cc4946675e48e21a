"""The user's configuration merged with everything over it in this directory, for `carpool check`.

Owns the decision what is in force here (the named workspace of the directory; a project's servers only once
they are trusted) and the warnings about the rest. Reads files, writes nothing. No value of an environment
appears in any text. Knows nothing of: terminals, the daemon.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct

from carpool.check.body_size import body_size_warnings
from carpool.check.hooks import hook_warnings
from carpool.check.modules import module_warnings, wrong_names
from carpool.check.names import unused_prefixes
from carpool.check.profiles import unknown_server_warnings
from carpool.check.programs import MissingProgram, ProgramLookup, command_warnings
from carpool.check.traces import trace_warnings
from carpool.check.urls import url_warnings
from carpool_protocol.config.reading.includes import find_included
from carpool_protocol.config.reading.load import (
    ConfigFile,
    env_file_path,
    find_config_file,
    home_of,
    load_layer,
)
from carpool_protocol.config.reading.merge import cap_problem, merge_configs, shadowed
from carpool_protocol.config.reading.project import (
    FoundWorkspace,
    find_workspace,
    unread_warnings,
    workspace_name_at,
)
from carpool_protocol.config.reading.trust import read_trust, store_problem, trust_of, waits_for_trust
from carpool_protocol.config.reading.workspaces import roots_of
from carpool_protocol.config.schema.environment import scrub
from carpool_protocol.config.schema.expand import PLACE_NAMES, MissingValue, expand
from carpool_protocol.config.schema.model import Config, ServerConfig
from carpool_protocol.config.text.problems import ConfigProblem
from carpool_protocol.ids import ServerName


class CheckedLayers(Struct, kw_only=True):
    """The findings about all layers."""

    where: ConfigFile
    config: Config | None
    """The configuration in force; None if the user's file cannot be used."""
    problems: list[ConfigProblem]
    warnings: list[str]
    """Warnings about settings that are ignored, and about servers that replace others."""
    misconfigured: dict[str, str] = {}
    """Servers in force that cannot run as they are written, with the reason, which is a warning too."""
    absent: dict[ServerName, MissingProgram] = {}
    """Servers whose program or packages are missing here, with the reason; its text is a warning too."""
    shadowed: list[str] = []
    """Servers that a server of the same name replaces, and project files that another one hides; warnings
    too.
    """
    env_files: dict[str, list[str]] = {}
    """The names of the variables of each `env_file`, by its path."""
    unset: list[str] = []
    """Variables without a default that servers use and that are not set here."""
    workspace: dict[str, Any] | None = None
    """The named workspace of this directory: `{name, root, servers}`; None if it is in none."""
    project: dict[str, Any] | None = None
    """The project of this directory: `{root, file, trust, servers}`; None if there is no project file."""
    waiting: str = ""
    """The reason why the project's servers are not in force; empty if they are."""
    known: dict[str, str] = {}
    """The variables of this environment and of the user's `env_file`. Their values are secrets."""
    project_known: dict[str, str] = {}
    """The same variables with those of the project, for its servers."""
    places: dict[str, str] = {}
    door: str = ""
    """The reason why the HTTP door cannot open at this moment; empty if it can, or if none is wanted."""
    path: list[str] | None = None
    """The directories where programs of servers are looked up; None: those of this environment's PATH."""

    def __repr__(self) -> str:
        """Return the representation without the variables."""
        return f"Checked({self.where!r}, {self.problems!r})"

    def add_shadowed(self, texts: Iterable[str]) -> None:
        """Add warnings about what is shadowed."""
        added = list(texts)
        self.shadowed += added
        self.warnings += added

    def add_env_file(self, config: Config, home: str, variables: Iterable[str]) -> None:
        """Add the `env_file` of a configuration, if it names one."""
        if (path := env_file_path(config, home)) is not None:
            self.env_files[path] = list(variables)

    def expanded(self, server: ServerConfig, text: str) -> str | MissingValue:
        """Expand a template as for an agent in this directory."""
        return expand(text, self.project_known if server.project else self.known, self.places)


def read_layers(
    environ: Mapping[str, str],
    named: str | None,
    cwd: str,
    store: str,
    search_path: Callable[[Config], Sequence[str]] | None = None,
) -> CheckedLayers:
    """Read all layers.

    `named`: a file to read alone; `store`: the file of trust; `search_path`: returns the PATH of servers
    under a configuration. None: the PATH of `environ`.
    """
    home = home_of(environ)
    where = find_config_file(environ, named)
    layer = load_layer(where, home)
    user = layer.loaded.config
    found = CheckedLayers(
        where=where,
        config=user,
        problems=list(layer.loaded.problems),
        warnings=[each.render() for each in layer.loaded.warnings],
    )
    within, users = "", (where.path,) if user is None else user.files
    if user is not None:
        found.warnings += _idle_patterns(user)
        found.add_env_file(user, home, layer.env)
    if user is not None and named is None and (name := workspace_name_at(cwd, roots := roots_of(user, home))):
        within = roots[name]
        user = _in_named(found, user, name, within)
    workspace = find_workspace(cwd, home, within, users) if named is None else FoundWorkspace("")
    env: dict[str, str] = {}
    if user is not None and workspace.file:
        env = _add_project(found, user, workspace, home, store)
    if found.config is not None:
        found.warnings += found.config.unusable.values()
        found.warnings += unused_prefixes(found.config)
        found.warnings += unknown_server_warnings(
            found.config, _of_trusted(home, store) if found.config.profiles else ()
        )
        found.known, found.project_known = {**layer.env, **environ}, {**layer.env, **env, **environ}
        found.places = {"workspace": workspace.root or cwd, "cwd": cwd}
        found.unset = _unset(found.config, found.known, found.project_known)

        def expanded(server: ServerConfig, text: str) -> str | None:
            value = found.expanded(server, text)
            return None if isinstance(value, MissingValue) else value

        wrong = wrong_names(found.config, expanded)
        found.warnings += wrong.values()
        found.misconfigured = dict(sorted({**found.config.unusable, **wrong}.items()))
        found.path = None if search_path is None or user is None else list(search_path(user))
        searched = found.known.get("PATH", os.defpath) if found.path is None else os.pathsep.join(found.path)
        absent = command_warnings(
            found.config, expanded, ProgramLookup(searched, environ), home, workspace.root
        )
        found.absent = absent
        found.warnings += (each.text for each in absent.values())
        found.warnings += url_warnings(found.config, expanded)
        found.warnings += trace_warnings(found.config)
        found.warnings += body_size_warnings(found.config)
        found.warnings += hook_warnings(found.config, {**scrub(environ), "PATH": searched, **layer.env})
        found.warnings += module_warnings(found.config, expanded, home, workspace.root)
    return found


def _idle_patterns(config: Config) -> list[str]:
    """Yield a warning for each pattern of `include` that matches no file at the moment."""
    base = os.path.dirname(config.file)
    return [
        ConfigProblem(
            config.file, config.lines["include",], f"include[{at}]", f"no file fits {pattern!a} in {base}"
        ).render()
        for at, pattern in enumerate(config.include)
        if not isinstance(found := find_included(base, [pattern]), str) and not found.files
    ]


def _in_named(found: CheckedLayers, user: Config, name: str, root: str) -> Config:
    """Merge a named workspace over the user's servers."""
    workspace = user.workspaces[name]
    found.workspace = {"name": name, "root": root, "servers": list(workspace.servers)}
    found.add_shadowed(each.render() for each in shadowed(user, workspace))
    found.config = merge_configs(user, workspace)
    return found.config


def _add_project(
    found: CheckedLayers, user: Config, workspace: FoundWorkspace, home: str, store: str
) -> dict[str, str]:
    """Merge the project's file over the user's. Returns the project's own variables."""
    layer = load_layer(ConfigFile(workspace.file, asked_for=True), home, project=True)
    found.add_shadowed(unread_warnings(workspace))
    found.warnings += [each.render() for each in layer.loaded.warnings]
    found.problems += layer.loaded.problems
    found.project = {"root": workspace.root, "file": workspace.file, "trust": "untrusted", "servers": []}
    config = layer.loaded.config
    if config is None:
        return {}
    found.warnings += _idle_patterns(config)
    trust = trust_of(read_trust(store), workspace, layer.digest)
    servers = [*config.servers, *config.unusable]
    found.warnings += [said] if servers and (said := store_problem(store)) else []
    found.project |= {"trust": trust if servers else "nothing", "servers": servers}
    found.add_shadowed(each.render() for each in shadowed(user, config))
    merged = merge_configs(user, config)
    if (problem := cap_problem(merged, workspace.file)) is not None:
        found.problems.append(problem)
    if servers and trust != "trusted":
        found.waiting = waits_for_trust(workspace.file, workspace.root, trust, servers)
        return {}
    found.config = merged
    found.add_env_file(config, home, layer.env)
    return layer.env


def _of_trusted(home: str, store: str) -> Iterator[ServerConfig]:
    """Yield the servers of all trusted projects, wherever they are: a profile may name them."""
    for path in read_trust(store):
        config = load_layer(ConfigFile(path, asked_for=False), home, project=True).loaded.config
        yield from () if config is None else config.servers.values()


def _unset(config: Config, known: Mapping[str, str], of_project: Mapping[str, str]) -> list[str]:
    def missing(server: ServerConfig, text: str) -> str | None:
        variables = of_project if server.project else known
        found = expand(text, variables, dict.fromkeys(PLACE_NAMES, "/"))
        return found.name if isinstance(found, MissingValue) else None

    names = {
        missing(server, text)
        for server in config.servers.values()
        if not server.disabled
        for _, text in server.templates()
    }
    return sorted(name for name in names if name is not None)


def working_directory() -> str:
    """Return the directory of this process; empty if it has been removed."""
    try:
        return os.getcwd()
    except OSError:
        return ""
