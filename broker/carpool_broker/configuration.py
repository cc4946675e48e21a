"""The configuration in force, and what it means for each session.

Owns the file being watched, the last good reading of it, the sources (one per distinct environment
that sessions bring) and the secret that keys pool keys. A broken file is refused at start and later
leaves the last good one in force.

Knows nothing of: sockets, calls, how scopes come into force (`core.sources`).
"""

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from carpool_broker.core.bounds import Bounds
from carpool_broker.core.events import SourceId, SourceRead
from carpool_broker.core.scope import Scope
from carpool_broker.core.scopes import Resolution, resolve, resolve_run
from carpool_protocol.attach import Attach, RunCommand
from carpool_protocol.config.environment import scrub
from carpool_protocol.config.expand import references
from carpool_protocol.config.load import ConfigFile, env_file_path, home_of, load_config, load_env_file
from carpool_protocol.config.model import Config, variables
from carpool_protocol.ids import ServerName

DAEMON = SourceId("daemon")
"""The source without any session: what `auto_connect` and `min` hold up."""

Stamp = tuple[int, int, int] | None


class BrokenConfigError(Exception):
    """The file cannot be used. The text has one line per problem."""


class _Held:
    """A source and what it is resolved from."""

    def __init__(self, environment: dict[str, str], workspace: str, cwd: str, run: RunCommand | None) -> None:
        self.environment = environment
        self.workspace = workspace
        self.cwd = cwd
        self.run = run
        self.sessions = 0


class Configuration:
    """The file, its last good reading, and the sources in use."""

    def __init__(self, file: ConfigFile, environ: Mapping[str, str]) -> None:
        """Raises `BrokenConfigError`."""
        self._file = file
        self._base_environment = scrub(environ)
        self._home = home_of(environ)
        self._secret = os.urandom(32)
        self._sources: dict[SourceId, _Held] = {DAEMON: _Held({}, "", "", None)}
        self.problem = ""
        """Why the file as it is now is not in force; empty when it is."""
        self._env_file: dict[str, str] = {}
        self._stamps: tuple[Stamp, Stamp] = (None, None)
        self.config = self._read()

    def _read(self) -> Config:
        stamp = _stamp(self._file.path)
        loaded = load_config(self._file)
        if loaded.config is None:
            self._stamps = (stamp, self._stamps[1])
            raise BrokenConfigError("\n".join(problem.render() for problem in loaded.problems))
        env_file, problems = load_env_file(loaded.config, self._home)
        path = env_file_path(loaded.config, self._home)
        self._stamps = (stamp, _stamp(path) if path else None)
        if problems:
            raise BrokenConfigError("\n".join(problem.render() for problem in problems))
        self._env_file = env_file
        return loaded.config

    def changed(self) -> bool:
        """Whether the file, or its `env_file`, is another one than was last read."""
        path = env_file_path(self.config, self._home)
        return self._stamps != (_stamp(self._file.path), _stamp(path) if path else None)

    def reload(self) -> list[SourceRead] | None:
        """Read again. None when the file is broken: `problem` says why and the last good one stays."""
        try:
            self.config = self._read()
        except BrokenConfigError as error:
            self.problem = str(error)
            return None
        self.problem = ""
        return [self.resolve(source) for source in self._sources]

    def bounds(self) -> Bounds:
        """What a session may have open and waiting."""
        session = self.config.session
        return Bounds(
            max_open_calls=session.max_open_calls,
            max_waiting_calls=session.max_waiting_calls,
            max_waiting_bytes=session.max_waiting_bytes,
        )

    def wanted_variables(self, attach: Attach) -> list[str]:
        """What the carrier is asked for: exactly the names that the configuration uses."""
        return [] if attach.run is not None else sorted(variables(self.config))

    def enter(self, attach: Attach, environment: dict[str, str]) -> tuple[SourceId, SourceRead | None]:
        """The source of a new session, and its reading if no session had it yet."""
        source, held = self._source_of(attach, environment)
        known = self._sources.get(source)
        if known is not None:
            known.sessions += 1
            return source, None
        held.sessions = 1
        self._sources[source] = held
        return source, self.resolve(source)

    def leave(self, source: SourceId) -> bool:
        """A session of this source is gone. True when it was the last one."""
        held = self._sources[source]
        held.sessions -= 1
        if held.sessions > 0 or source == DAEMON:
            return False
        del self._sources[source]
        return True

    def _source_of(self, attach: Attach, environment: dict[str, str]) -> tuple[SourceId, _Held]:
        places = {
            name
            for server in self.config.servers.values()
            for _, text in server.templates()
            for name in references(text)
        }
        workspace = attach.cwd if "workspace" in places else ""
        cwd = attach.cwd if "cwd" in places else ""
        held = _Held(environment, workspace, cwd, attach.run)
        if not (environment or workspace or cwd or attach.run):
            return DAEMON, held
        run = [] if attach.run is None else [attach.run.argv, sorted(attach.run.env.items()), attach.run.cwd]
        what = msgspec.msgpack.encode([sorted(environment.items()), workspace, cwd, run])
        return SourceId(hashlib.blake2b(what, key=self._secret, digest_size=8).hexdigest()), held

    def resolve(self, source: SourceId) -> SourceRead:
        """What this source comes to now."""
        held = self._sources[source]
        config = self.config
        if held.run is not None:
            found = resolve_run(held.run, secret=self._secret)
        else:
            found = resolve(
                config,
                environment=held.environment,
                base_environment=self._base_environment,
                env_file=self._env_file,
                workspace=held.workspace,
                cwd=held.cwd,
                home=self._home,
                secret=self._secret,
            )
        return self._reading(source, found)

    def _reading(self, source: SourceId, found: Resolution) -> SourceRead:
        config = self.config
        return SourceRead(
            source=source,
            scope=Scope(tuple(found.entries), config.separator),
            specs=tuple(found.specs),
            misconfigured=dict(found.misconfigured),
            stop_first=frozenset(
                ServerName(name) for name, server in config.servers.items() if server.replace == "stop_first"
            ),
            max_processes=config.max_instances,
            max_greeting=config.max_greeting,
        )


def _stamp(path: str) -> Stamp:
    """What changes when the file does; None when there is none."""
    try:
        found = Path(path).stat()
    except OSError:
        return None
    return (found.st_ino, found.st_mtime_ns, found.st_size)
