"""Carpool's own side of `carpool setup`: its files as they are, how it is started, and trust in a project.

Owns the files that servers are moved into: carpool.json with its `env_file`, and `.carpool/mcp.json` of a
project. If one of these files is broken, or one in a project is a link, the verb ends: the effect of a
change could not be foreseen. Knows nothing of: other programs' files.
"""

import os

from msgspec import Struct
from msgspec.structs import replace

from carpool.check.trust_facts import Facts, trust_facts
from carpool.control.place import runtime_place
from carpool.launcher import own_command
from carpool.setup import file_io
from carpool.setup.client_files import ClientFilePath
from carpool.setup.model import CarpoolFile, SecretsFile
from carpool.terminal.verb_output import EXIT_USAGE, fail
from carpool_protocol.bootstrap import paths
from carpool_protocol.config.reading.load import (
    ConfigFile,
    ConfigLayer,
    LayerTexts,
    env_file_path,
    find_config_file,
    home_of,
    load_config,
    load_layer,
)
from carpool_protocol.config.reading.merge import merge_configs, taken_over
from carpool_protocol.config.reading.parse import read_config
from carpool_protocol.config.reading.project import FoundWorkspace, find_workspace, workspace_name_at
from carpool_protocol.config.reading.trust import grant_trust, read_listed, read_trust, trust_of
from carpool_protocol.config.reading.workspaces import roots_of
from carpool_protocol.config.schema.model import Config
from carpool_protocol.config.text.file_stamps import Stamp
from carpool_protocol.ids import ServerName

_SECRETS = "secrets.env"
PROJECT_FILE = os.path.join(".carpool", "mcp.json")


def project_of(home: str) -> str:
    """Return the directory whose project files are looked at; empty if there is none."""
    root = os.path.realpath(find_workspace(os.getcwd(), home).root)
    return "" if root == os.path.realpath(home) else root


def own_files(home: str) -> tuple[CarpoolFile, SecretsFile]:
    """Return carpool.json and its `env_file` as they are; both must be sound."""
    where = find_config_file(os.environ)
    path = os.path.realpath(where.path)
    file = ConfigFile(path, asked_for=False)
    layer = load_layer(file, home)
    config = layer.loaded.config
    if config is None:
        fail("\n".join(each.render() for each in layer.loaded.problems), EXIT_USAGE)
    text = _text(path)
    taken = (
        frozenset(name for name in config.servers if config.servers[name].file != path)
        | config.unusable.keys()
    )
    own = CarpoolFile(path, text, taken, config.login_shell)
    return own, secrets_file(config, layer.env, home)


def secrets_file(config: Config, env: dict[str, str], home: str) -> SecretsFile:
    """Return the `env_file` of a configuration, or the new one that it gets. `env`: the variables in it."""
    if config.env_file is not None:
        said = os.path.realpath(env_file_path(config, home) or "")
        return SecretsFile(said, _text(said), env)
    beside = os.path.dirname(os.path.realpath(config.file))
    names = (_SECRETS if number == 1 else f"secrets-{number}.env" for number in range(1, 100))
    name = next(each for each in names if not os.path.lexists(os.path.join(beside, each)))
    return SecretsFile(os.path.join(beside, name), None, {}, name)


def project_file(project: str) -> CarpoolFile:
    path = os.path.join(project, PROJECT_FILE)
    if os.path.islink(path) or os.path.islink(os.path.dirname(path)):
        fail(f"{path} is a link in a project; say --user-only, or look at it", EXIT_USAGE)
    layer = load_layer(ConfigFile(path, asked_for=False), "", project=True)
    if layer.loaded.config is None:
        fail("\n".join(each.render() for each in layer.loaded.problems), EXIT_USAGE)
    return CarpoolFile(path, _text(path))


def _text(path: str) -> str | None:
    data = file_io.bytes_of(path)
    return None if data is None else data.decode()


def command(candidate: ClientFilePath) -> list[str]:
    """Return the command with which a program starts carpool.

    The bare name is used only if it is found in PATH, and not for a program that is started from a desktop,
    whose PATH may be another one. In a project's file the bare name is used for those programs as well:
    other users do not have the path of this machine.
    """
    bare = own_command.is_in_path() and (candidate.scope == "project" or not candidate.client.desktop)
    return [*(["carpool"] if bare else own_command.executable()), "connect"]


class EarlierTrust(Struct, frozen=True):
    """The part of a project that is trusted before setup changes its file."""

    others: dict[str, Stamp]
    """The other files of the project, which setup leaves alone."""
    digest: str
    """The digest of the trusted content; empty if there is no file, so that nothing is trusted."""
    listed: frozenset[ServerName]
    """The servers that `trust.read_listed` returned."""
    taken_over: frozenset[ServerName] = frozenset()
    """Servers that the question named because they take the place of the user's own."""


def check_trustable(project: str) -> EarlierTrust | None:
    """Return the earlier trust if the project's file may be trusted once setup has changed it, else None.

    It may be if the rest of the file was trusted before, or if there was no file. The part that setup adds
    has been shown.
    """
    workspace = _workspace(project)
    if not os.path.lexists(workspace.file):
        return EarlierTrust({}, "", frozenset())
    layer = _layer(workspace)
    if trust_of(read_trust(trust_store()), workspace, layer.digest) != "trusted":
        return None
    listed = frozenset(map(ServerName, read_listed(trust_store(), workspace)))
    return EarlierTrust(_others(layer), layer.digest, listed)


def trust_question_facts(project: str, own: bytes | None, its: bytes) -> Facts:
    """Return the facts that the question of trust shows.

    `own`: the new content of carpool.json, if it is changed; `its`: the new content of the project's file.
    """
    home, workspace = home_of(os.environ), _workspace(project)
    where = find_config_file(os.environ)
    user = load_config(where).config
    if own is not None and (planned := read_config(own.decode(), where.path).config) is not None:
        servers = planned.servers if user is None else {**user.servers, **planned.servers}
        user = replace(planned, servers=servers)
    if user is not None and (name := workspace_name_at(project, roots_of(user, home))):
        user = merge_configs(user, user.workspaces[name])
    loaded = read_config(its.decode(), workspace.file, project=True)
    assert loaded.config is not None  # `plan.check` has refused what is not sound
    layer = ConfigLayer(loaded, (workspace.file,), {}, {}, "", LayerTexts())
    return {
        **trust_facts(workspace, layer, loaded.config, "untrusted", user),
        "taken_over": frozenset() if user is None else taken_over(user, loaded.config),
    }


def trust_now(project: str, its: bytes, before: EarlierTrust) -> str:
    """Trust the project's file if it has the content `its` and the project's other files are as they were.

    Returns the reason why it is not trusted, a sentence; empty if it is. Raises `OSError`.
    """
    workspace = _workspace(project)
    layer = _layer(workspace)
    if file_io.bytes_of(workspace.file) != its or _others(layer) != before.others:
        return f"{workspace.file} was changed this very moment, and is not trusted"
    config = layer.loaded.config
    named = (before.listed | before.taken_over) & (
        config.servers.keys() if config is not None else frozenset()
    )
    grant_trust(trust_store(), workspace, layer.digest, named)
    return ""


def _others(layer: ConfigLayer) -> dict[str, Stamp]:
    return {path: layer.seen[path] for path in layer.files[1:]}


def _workspace(project: str) -> FoundWorkspace:
    return FoundWorkspace(project, os.path.join(project, PROJECT_FILE))


def _layer(workspace: FoundWorkspace) -> ConfigLayer:
    return load_layer(ConfigFile(workspace.file, asked_for=True), home_of(os.environ), project=True)


def trust_store() -> str:
    return paths.trust_file(paths.state_dir(os.environ, runtime_place().directory))
