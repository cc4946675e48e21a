"""Finds the configuration file and reads it and the files it includes.

Owns all file access of configuration except the search for a project's (`project`). Raises nothing: a file
that cannot be read is a problem like any other. Reads only regular files that not everybody may write (they
name programs to run), opens nothing else, and never waits for one (a FIFO in its place is refused). A disk
that does not answer blocks the caller. A layer is bounded in files, bytes and, for a project, values, because
entering a stranger's project reads its files.

Knows nothing of: the meaning of the text, the time of the next reading.
"""

import hashlib
import os
import socket
import stat
from collections.abc import Mapping
from typing import Final, cast

from msgspec import Struct
from msgspec.structs import replace

from carpool_protocol.bootstrap import paths
from carpool_protocol.bootstrap.paths import CONFIG_VARIABLE
from carpool_protocol.config.reading.flagged_variables import all_flagged
from carpool_protocol.config.reading.includes import find_included
from carpool_protocol.config.reading.node_servers import with_node_servers
from carpool_protocol.config.reading.parse import MAX_PROJECT_SERVERS, LoadedConfig, empty_config, read_config
from carpool_protocol.config.reading.tools_file import read_tools
from carpool_protocol.config.schema.environment import read_env_file
from carpool_protocol.config.schema.expand import from_home
from carpool_protocol.config.schema.model import Config, NamedWorkspace, ServerConfig
from carpool_protocol.config.schema.placement import node_name
from carpool_protocol.config.text.file_stamps import Stamp, stamp
from carpool_protocol.config.text.jsonc import ValueBudget
from carpool_protocol.config.text.problems import ConfigProblem, render_path
from carpool_protocol.ids import ServerName
from carpool_protocol.link.messages import ToolOffer

MAX_FILE_BYTES: Final = 1024 * 1024
MAX_LAYER_BYTES: Final = 4 * MAX_FILE_BYTES
"""All files of a layer together."""
MAX_PROJECT_BYTES: Final = 512 * 1024
"""A project's file and the files it includes, together."""
MAX_PROJECT_VALUES: Final = 30_000
"""Maximum number of values in these files and the `tools_file`s together.

Reading this many takes up to half a second, and 512 KiB can hold many more. A thousand servers have fewer
than ten thousand.
"""

_MISSING: Final = f"there is no such file: write it, or name another one (--config, {CONFIG_VARIABLE})"


class ConfigFile(Struct, frozen=True):
    """The path of the configuration file."""

    path: str
    """Absolute."""
    asked_for: bool
    """True: an option or variable named it, so it must exist."""
    node_servers: str = ""
    """The file with the servers of other nodes, which the node's process writes; empty: it does not count."""


def find_config_file(environ: Mapping[str, str], option: str | None = None) -> ConfigFile:
    """`option` (`--config`), else `$CARPOOL_CONFIG`, else `carpool.json` in the XDG config directory.

    Processes that people and agents start call `trusted_places` first, for all CARPOOL_… variables.
    """
    if option:
        return ConfigFile(os.path.abspath(from_home(option, home_of(environ))), asked_for=True)
    return ConfigFile(paths.config_file(environ), asked_for=bool(environ.get(CONFIG_VARIABLE)))


class LayerTexts(Struct, frozen=True):
    """The texts of a layer's files except the `env_file`: enough to read the layer again after the files
    changed.
    """

    by_path: Mapping[str, str] = {}
    included: tuple[str, ...] = ()

    def __repr__(self) -> str:
        """The paths without the texts."""
        return f"Texts({list(self.by_path)!r})"


class ConfigLayer(Struct, frozen=True):
    """One configuration file with all files that belong to it."""

    loaded: LoadedConfig
    files: tuple[str, ...]
    """All files that were read or were missing: the file itself, included files, `tools_file`s, the
    `env_file`.
    """
    seen: dict[str, Stamp]
    """Stamps of these files and of the directories where more may appear. While none changes, the layer is
    current.
    """
    env: dict[str, str]
    """Variables of the `env_file`. Secrets: in memory only."""
    digest: str
    """Hash of the bytes of `files` (rule 19); it changes with any of them.

    For a project it also covers the variables that the trust question flags, so a carpool that flags more of
    them asks again.
    """
    texts: LayerTexts

    def __repr__(self) -> str:
        """Files and digest, without `env` and texts."""
        return f"Layer({self.files!r}, {self.digest!r})"


def load_config(file: ConfigFile) -> LoadedConfig:
    """Read the file and the files it includes. If no option named it, it may be missing: then there are no
    servers.
    """
    return load_layer(file, "").loaded


def load_layer(
    file: ConfigFile, home: str, *, project: bool = False, earlier: LayerTexts | None = None
) -> ConfigLayer:
    """Read a file with its included files, `tools_file`s and `env_file`. Without `home` the last two are left
    out.

    `earlier`: texts to use in place of the files; then only the `env_file` is read from disk, and if that is
    impossible its variables are not set.
    """
    reading = _LayerReader(project=project, earlier=earlier)
    text = reading.read_configuration(file.path)
    if text is None and not file.asked_for:
        loaded = LoadedConfig(empty_config(file.path), [])
    elif text is None:
        loaded = LoadedConfig(None, [ConfigProblem(file.path, 1, "", _MISSING)])
    elif isinstance(text, ConfigProblem):
        loaded = LoadedConfig(None, [text])
    else:
        loaded = reading.with_included(reading.parse_servers(text, file.path))
        loaded = reading.with_tools(loaded, home) if home else loaded
    if file.node_servers:
        loaded = reading.with_node_servers(loaded, file)
    env: dict[str, str] = {}
    path = env_file_path(loaded.config, home) if loaded.config is not None and home else None
    if loaded.config is not None and path is not None:
        env, problems = _env_of(loaded.config, path, reading.read_text(path, secret=True))
        if problems and earlier is None:
            loaded = replace(loaded, config=None, problems=problems)
    texts = LayerTexts(reading.texts, tuple(reading.matched))
    if project and loaded.config is not None and (warned := all_flagged(loaded.config)):
        reading.digest.update(f"flagged {warned!a}\n".encode())
    return ConfigLayer(loaded, tuple(reading.files), reading.seen, env, reading.digest.hexdigest(), texts)


class _LayerReader:
    """Reads the files of one layer."""

    def __init__(self, *, project: bool, earlier: LayerTexts | None) -> None:
        self.project = project
        self.earlier = earlier
        self.texts: dict[str, str] = {}
        self.matched: list[str] = []
        """Files that `include` names."""
        self.files: list[str] = []
        self.seen: dict[str, Stamp] = {}
        self.digest = hashlib.sha256()
        self.left_bytes = MAX_LAYER_BYTES
        self.left_project_bytes = MAX_PROJECT_BYTES
        self.allowance = ValueBudget(MAX_PROJECT_VALUES) if project else ValueBudget()

    def read_configuration(self, path: str) -> str | ConfigProblem | None:
        """The text of a file that holds servers."""
        found = self.read_text(path)
        if not self.project or not isinstance(found, str):
            return found
        self.left_project_bytes -= len(found.encode())
        return found if self.left_project_bytes >= 0 else _too_much(path, "a project", MAX_PROJECT_BYTES)

    def parse_servers(self, text: str, path: str) -> LoadedConfig:
        """The configuration in such a text."""
        return read_config(text, path, project=self.project, allowance=self.allowance)

    def read_text(self, path: str, *, secret: bool = False) -> str | ConfigProblem | None:
        """The text of a file as `_read` returns it, added to the digest."""
        self.seen.setdefault(path, stamp(path))
        found: str | ConfigProblem | None
        if self.earlier is not None and not secret:
            found = self.earlier.by_path.get(path)
        else:
            found = read_config_text(path) if self.left_bytes > 0 else _too_much(path)
        if isinstance(found, str) and not secret:
            self.texts[path] = found
        self.files.append(path)
        data = found.encode() if isinstance(found, str) else b""
        # Files below the directory of the first one are named relative to it, however it is reached; others
        # as they are.
        name = path.removeprefix(os.path.join(os.path.dirname(self.files[0]), ""))
        self.digest.update(f"{os.fsencode(name).hex()} {len(data)} {isinstance(found, str)}\n".encode())
        self.digest.update(data)
        self.left_bytes -= len(data)
        return found if self.left_bytes >= 0 or not isinstance(found, str) else _too_much(path)

    def with_included(self, loaded: LoadedConfig) -> LoadedConfig:
        """The configuration with the servers of all included files. A problem in one file is a problem of the
        whole.
        """
        config = loaded.config
        if config is None:
            return loaded
        problems: list[ConfigProblem] = []
        warnings = list(loaded.warnings)
        written = dict(loaded.written)
        servers, unusable = dict(config.servers), dict(config.unusable)
        found = find_included(os.path.dirname(config.file), config.include)
        if not isinstance(found, str):
            self.seen = {**found.looked_in, **self.seen}
            self.matched = list(found.files)
        elif self.earlier is None:
            problem = ConfigProblem(config.file, config.lines["include",], "include", found)
            return LoadedConfig(None, [problem], warnings)
        if self.earlier is not None:
            self.matched = list(self.earlier.included)
        for path in self.matched:
            inner = self.read_included(path)
            problems += inner.problems
            warnings += inner.warnings
            written |= inner.written
            if inner.config is None:
                continue
            for name in (*inner.config.servers, *inner.config.unusable):
                if name in servers or name in unusable:
                    first = servers[name].file if name in servers else config.file
                    line = inner.config.servers[name].lines[()] if name in inner.config.servers else 1
                    why = f"the name is used twice, also in {first}; give one another name"
                    problems.append(ConfigProblem(path, line, name, why))
            servers |= inner.config.servers
            unusable |= inner.config.unusable
            if self.project and len(servers) + len(unusable) > MAX_PROJECT_SERVERS:
                why = f"a project may have {MAX_PROJECT_SERVERS} servers in all its files, and here are more"
                return LoadedConfig(None, [ConfigProblem(path, 1, "", why)], warnings)
        if problems:
            return LoadedConfig(None, problems, warnings)
        whole = replace(config, servers=servers, unusable=unusable, included=tuple(self.matched))
        return LoadedConfig(whole, [], warnings, written)

    def with_node_servers(self, loaded: LoadedConfig, file: ConfigFile) -> LoadedConfig:
        """The configuration with the servers of other nodes, and without those that are placed elsewhere."""
        config = loaded.config
        if config is None:
            return loaded
        text = self.read_text(file.node_servers)
        offered = read_config(text, file.node_servers).config if isinstance(text, str) else None
        said = config.cluster.node if offered is None else offered.cluster.node
        node = node_name(said, socket.gethostname())
        return replace(loaded, config=with_node_servers(config, offered, node))

    def with_tools(self, loaded: LoadedConfig, home: str) -> LoadedConfig:
        """The configuration with the tools of servers that have a `tools_file`. A bad list is that server's
        problem.
        """
        config = loaded.config
        if config is None:
            return loaded
        workspaces: dict[str, NamedWorkspace] = {}
        for name, each in config.workspaces.items():
            servers, unusable = self._read_tools_of(each, home)
            workspaces[name] = replace(each, servers=servers, unusable=unusable)
        servers, unusable = self._read_tools_of(config, home)
        whole = replace(config, servers=servers, unusable=unusable, workspaces=workspaces)
        return replace(loaded, config=whole)

    def _read_tools_of(
        self, of: Config | NamedWorkspace, home: str
    ) -> tuple[dict[ServerName, ServerConfig], dict[ServerName, str]]:
        servers, unusable = dict(of.servers), dict(of.unusable)
        for name, server in of.servers.items():
            if server.tools_file is None or server.disabled:
                continue
            path = os.path.join(os.path.dirname(server.file), from_home(server.tools_file, home))
            text = self.read_text(path)
            found: tuple[ToolOffer, ...] | list[ConfigProblem]
            if text is None:
                line = server.lines.get(("tools_file",), server.lines[()])
                where = render_path((*server.under, "tools_file"))
                found = [ConfigProblem(server.file, line, where, f"there is no file {path}")]
            elif isinstance(text, ConfigProblem):
                found = [text]
            else:
                found = read_tools(text, path, name, self.allowance)
            if isinstance(found, tuple):
                servers[name] = replace(server, offline=found)
            else:
                del servers[name]
                unusable[name] = "; ".join(each.render() for each in found[:3])
        return servers, unusable

    def read_included(self, path: str) -> LoadedConfig:
        text = self.read_configuration(path)
        if text is None:
            return LoadedConfig(
                None, [ConfigProblem(path, 1, "", "the file is included, but it does not exist")]
            )
        if isinstance(text, ConfigProblem):
            return LoadedConfig(None, [text])
        loaded = self.parse_servers(text, path)
        if loaded.config is not None and len(loaded.config.lines) > 1:
            at = min(line for key, line in loaded.config.lines.items() if key)
            return LoadedConfig(None, [ConfigProblem(path, at, "", "an included file may hold servers only")])
        return loaded


def _env_of(
    config: Config, path: str, text: str | ConfigProblem | None
) -> tuple[dict[str, str], list[ConfigProblem]]:
    if isinstance(text, str):
        return read_env_file(text, path)
    if text is not None:
        return {}, [text]
    return {}, [ConfigProblem(config.file, config.lines["env_file",], "env_file", f"there is no file {path}")]


def env_file_path(config: Config, home: str) -> str | None:
    """The path of the `env_file`, relative to the configuration file; `~/` is `home`. None: there is none."""
    if config.env_file is None:
        return None
    return os.path.join(os.path.dirname(config.file), from_home(config.env_file, home))


def home_of(environ: Mapping[str, str]) -> str:
    """The home directory: `$HOME`, else the account's."""
    return environ.get("HOME") or os.path.expanduser("~")


def read_config_text(path: str) -> str | ConfigProblem | None:
    """The text of a file; None if there is none."""
    try:
        # An untrusted project can name any path, and opening a device can have effects.
        if not stat.S_ISREG(os.stat(path).st_mode):
            return ConfigProblem(path, 1, "", "is not a regular file")
        # The file may have been replaced since. Without O_NONBLOCK, opening a FIFO waits for its writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        return ConfigProblem(path, 1, "", f"cannot be opened: {_reason(error)}")
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)  # `open` refuses a directory without closing the descriptor
        return ConfigProblem(path, 1, "", "is not a regular file")
    if mode & 0o002:
        os.close(descriptor)
        return ConfigProblem(
            path,
            1,
            "",
            "is writable for all users, who could make carpool run any program; run `chmod o-w` on it",
        )
    with open(descriptor, "rb") as file:
        try:
            data = cast("bytes | None", file.read(MAX_FILE_BYTES + 1))
        except OSError as error:
            return ConfigProblem(path, 1, "", f"cannot be read: {_reason(error)}")
    if data is None:  # some files of the kernel look regular and have nothing to read at the moment
        return ConfigProblem(path, 1, "", "cannot be read: it has no content at the moment")
    if len(data) > MAX_FILE_BYTES:
        return ConfigProblem(path, 1, "", f"is larger than {MAX_FILE_BYTES} bytes")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        return ConfigProblem(
            path, data.count(b"\n", 0, error.start) + 1, "", "is not UTF-8 here; save it as UTF-8"
        )


def _too_much(path: str, of: str = "one configuration", most_bytes: int = MAX_LAYER_BYTES) -> ConfigProblem:
    why = f"is not read: with it the files of {of} are larger than {most_bytes} bytes"
    return ConfigProblem(path, 1, "", why)


def _reason(error: OSError | ValueError) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or "the system gave no reason"
