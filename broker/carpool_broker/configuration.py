"""The configuration in force, and what it means for each session.

Owns the file being watched, the last good reading of it, the sources (one per distinct environment,
directory and set of roots that sessions bring), and which session uses which.
A broken file is refused at start and later leaves the last good one in force. What follows for the core comes
back as events, to be fed in order.

Knows nothing of: sockets, calls, how scopes come into force (`core.sources`).
"""

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from carpool_broker.core.bounds import Bounds
from carpool_broker.core.events import SessionMoved, SourceDropped, SourceId, SourceRead
from carpool_broker.core.scope import Scope
from carpool_broker.core.scopes import Resolution, only, resolve, resolve_run
from carpool_protocol.attach import Attach, RunCommand
from carpool_protocol.config.environment import scrub
from carpool_protocol.config.expand import references
from carpool_protocol.config.load import ConfigFile, home_of, load_layer
from carpool_protocol.config.model import Config, variables
from carpool_protocol.ids import ServerName, SessionId
from carpool_protocol.streams import Refused

DAEMON = SourceId("daemon")
"""The source without any session: what `auto_connect` and `min` hold up."""

Stamp = tuple[int, int, int] | None
Followed = SourceRead | SessionMoved | SourceDropped


class BrokenConfigError(Exception):
    """The file cannot be used. The text has one line per problem."""


class _Held:
    """A source and what it is resolved from."""

    def __init__(
        self,
        environment: dict[str, str],
        workspace: str,
        cwd: str,
        run: RunCommand | None,
        roots: tuple[str, ...] | None,
        *,
        server: str = "",
    ) -> None:
        self.environment = environment
        self.workspace = workspace
        self.cwd = cwd
        self.run = run
        self.roots = roots
        self.server = server
        """The only one that is seen; empty: all are."""
        self.sessions = 0


class _Guest:
    """A session: what it brings, and the source that follows from it."""

    def __init__(self, attach: Attach, environment: dict[str, str]) -> None:
        self.attach = attach
        self.environment = environment
        self.roots: tuple[str, ...] | None = None
        """What its agent names; None where it names none."""
        self.source = DAEMON


class Configuration:
    """The file, its last good reading, and the sources in use."""

    def __init__(self, file: ConfigFile, environ: Mapping[str, str], secret: bytes = b"") -> None:
        """Raises `BrokenConfigError`. `secret` keys the hashes in pool keys: with an earlier broker's its
        pools are ours.
        """
        self._file = file
        self._base_environment = scrub(environ)
        self._home = home_of(environ)
        self._secret = secret or os.urandom(32)
        self._sources: dict[SourceId, _Held] = {DAEMON: _Held({}, "", "", None, None)}
        self._guests: dict[SessionId, _Guest] = {}
        self.problem = ""
        """Why the file as it is now is not in force; empty when it is."""
        self._env_file: dict[str, str] = {}
        self._watched: tuple[str, ...] = ()
        self._stamps: list[Stamp] = []
        self.warnings: list[str] = []
        """What was passed over in files of other programs."""
        self.config = self._read()

    def _read(self) -> Config:
        layer = load_layer(self._file, self._home)
        self._watched = (*layer.files, *layer.directories)
        self._stamps = _stamps(self._watched)
        loaded = layer.loaded
        if loaded.config is None:
            raise BrokenConfigError("\n".join(problem.render() for problem in loaded.problems))
        self._env_file = layer.env
        self.warnings = [each.render() for each in loaded.warnings]
        return loaded.config

    def changed(self) -> bool:
        """Whether the file, or one that belongs to it, is another one than was last read."""
        return self._stamps != _stamps(self._watched)

    def reload(self) -> list[Followed] | None:
        """Read again. None when the file is broken: `problem` says why and the last good one stays. A session
        whose directory or roots matter only now moves to another source.
        """
        try:
            self.config = self._read()
        except BrokenConfigError as error:
            self.problem = str(error)
            return None
        self.problem = ""
        found: list[Followed] = [self.resolve(source) for source in self._sources]
        for session in self._guests:
            found += self._place(session)
        return found

    def bounds(self) -> Bounds:
        """What a session may have open and waiting."""
        session = self.config.session
        return Bounds(
            max_open_calls=session.max_open_calls,
            max_waiting_calls=session.max_waiting_calls,
            max_waiting_bytes=session.max_waiting_bytes,
            argument_budget_bytes=self.config.argument_budget_bytes,
            unread_budget_bytes=self.config.unread_budget_bytes,
            park_s=session.park_s,
            return_s=session.return_s,
        )

    def wanted_variables(self, attach: Attach) -> list[str]:
        """What the carrier is asked for: exactly the names that the configuration uses."""
        return [] if attach.run is not None else sorted(variables(self.config))

    def objection(self, attach: Attach) -> Refused | None:
        """Why a session that is to see only a part of the configuration cannot be; None: it can."""
        if attach.profile:
            return Refused(
                "this version of carpool has no profiles yet: leave the profile out", "unknown_profile"
            )
        server = self.config.servers.get(ServerName(attach.server))
        if attach.server and (server is None or server.disabled):
            return Refused(
                "the configuration has no server of that name, or it is disabled: see `carpool status`",
                "unknown_server",
            )
        return None

    def enter(
        self, session: SessionId, attach: Attach, environment: dict[str, str]
    ) -> tuple[SourceId, list[Followed]]:
        """The source of a new session, and its reading if no session had it yet."""
        guest = self._guests[session] = _Guest(attach, environment)
        self._sources[DAEMON].sessions += 1
        followed = self._place(session)
        return guest.source, [event for event in followed if not isinstance(event, SessionMoved)]

    def use_roots(self, session: SessionId, roots: tuple[str, ...]) -> list[Followed]:
        """The session's agent names these roots. It moves in any case, be it to where it is."""
        guest = self._guests.get(session)
        if guest is None:
            return []
        guest.roots = roots
        return self._place(session) or [SessionMoved(session, guest.source)]

    def leave(self, session: SessionId) -> list[Followed]:
        """A session is gone, and its source with the last one."""
        return self._release(self._guests.pop(session).source)

    def _place(self, session: SessionId) -> list[Followed]:
        """Find the source that goes with what the session brings."""
        guest = self._guests[session]
        source, held = self._source_of(guest)
        if source == guest.source:
            return []
        before, guest.source = guest.source, source
        followed: list[Followed] = []
        if source not in self._sources:
            self._sources[source] = held
            followed.append(self.resolve(source))
        self._sources[source].sessions += 1
        return [*followed, SessionMoved(session, source), *self._release(before)]

    def _release(self, source: SourceId) -> list[Followed]:
        held = self._sources[source]
        held.sessions -= 1
        if held.sessions > 0 or source == DAEMON:
            return []
        del self._sources[source]
        return [SourceDropped(source)]

    def _source_of(self, guest: _Guest) -> tuple[SourceId, _Held]:
        servers = [each for each in self.config.servers.values() if not each.disabled]
        places = {name for each in servers for _, text in each.templates() for name in references(text)}
        told = {each.roots for each in servers}
        attach, environment = guest.attach, guest.environment
        workspace = attach.cwd if "workspace" in places or told - {None} else ""
        cwd = attach.cwd if "cwd" in places else ""
        roots = guest.roots if "agent" in told else None
        if attach.run is not None:  # what it brings itself is all that counts
            workspace, cwd, roots = "", "", None
        held = _Held(environment, workspace, cwd, attach.run, roots, server=attach.server)
        if not (environment or workspace or cwd or attach.run or attach.server or roots is not None):
            return DAEMON, held
        run = [] if attach.run is None else [attach.run.argv, sorted(attach.run.env.items()), attach.run.cwd]
        what = msgspec.msgpack.encode(
            [sorted(environment.items()), workspace, cwd, run, roots, attach.server]
        )
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
                roots=held.roots,
            )
        if held.server:
            found = only(found, ServerName(held.server))
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
            twins=found.twins,
            own_roots=found.own_roots,
            stateless=found.stateless,
        )


def _stamps(paths: tuple[str, ...]) -> list[Stamp]:
    return [_stamp(path) for path in paths]


def _stamp(path: str) -> Stamp:
    """What changes when the file does; None when there is none."""
    try:
        found = Path(path).stat()
    except OSError:
        return None
    return (found.st_ino, found.st_mtime_ns, found.st_size)
