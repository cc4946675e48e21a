"""The configuration in force, and what it means for each session.

Owns the sources (one per distinct `source_key` of sessions), which session uses which, and what on disk all
that was read from. What follows for the core comes back as events, to be fed in order.

The servers of a project that is not trusted are named to its sessions and never run; the user's own server of
the same name stays in force meanwhile, so that a repository takes no name over by being visited (rule 19).

Invariant: once it is there it reads nothing from disk. It is told what was found where (`scan`); where
nobody has looked yet, nothing is.

Knows nothing of: sockets, calls, how scopes come into force (`effective_sources`), what the user's file
says and what lies over it (`layers`), what a source is named by (`source_key`), who looks and
when.
"""

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping

from msgspec.structs import replace

from carpool_broker.config.layers import Layers, UsersFile
from carpool_broker.config.locations import Guest, Spot, Wish, objection, unknown_profile, wish_of
from carpool_broker.config.scan import Sight
from carpool_broker.config.source_key import Basis, Find, reading
from carpool_broker.config.workspaces import Watched
from carpool_broker.core.configuration.overrides import Own
from carpool_broker.core.configuration.profiles import frame_of, limits_of, narrowed, sees
from carpool_broker.core.configuration.resolve_servers import Resolution, only, resolve, resolve_run
from carpool_broker.core.model.approval import Approved, PinId
from carpool_broker.core.model.bounds import Bounds
from carpool_broker.core.model.events import SessionMoved, SourceDropped, SourceId, SourceRead
from carpool_broker.hooks.spec import HookSpec, spec_of
from carpool_broker.storage.override_store import Switchboard
from carpool_protocol.bootstrap import paths
from carpool_protocol.carrier.attach import Attach, Moved
from carpool_protocol.carrier.streams import Refused
from carpool_protocol.config.reading.last_good import LastGood
from carpool_protocol.config.reading.load import ConfigFile, Layer, home_of
from carpool_protocol.config.schema.environment import scrub
from carpool_protocol.config.schema.expand import references
from carpool_protocol.config.schema.model import Config, ServerConfig, variables
from carpool_protocol.ids import ServerName, SessionId
from carpool_protocol.link.messages import Root
from carpool_protocol.wire.tool_names import check_name_length

DAEMON = SourceId("daemon")
"""The source without any session: what `auto_connect` and `min` hold up."""

Followed = SourceRead | SessionMoved | SourceDropped


class Configuration:
    """What is in force, and the sources in use."""

    def __init__(
        self,
        file: ConfigFile,
        environ: Mapping[str, str],
        trust: str = "",
        secret: bytes = b"",
        *,
        kept: Find = lambda _: None,
        board: Switchboard | None = None,
        pins: Callable[[PinId], Approved | None] = lambda _: None,
        last_good: LastGood | None = None,
        trusted_good: LastGood | None = None,
        operator: Mapping[str, str] | None = None,
    ) -> None:
        """`trust`: the file of trusted projects; empty: none is. `secret` keys the hashes in pool keys: with
        an earlier broker's its pools are ours. `kept`: what a pool told an earlier one, `pins`: what of a
        pinned server is approved. `last_good`, `trusted_good`: without these no good reading of the user's
        file, or of a project's, outlives this process. `operator`: variables of an explicit
        `carpool up`, for servers with `auto_connect`. Raises `BrokenConfigError`.
        """
        self._own_environment = scrub(environ)
        # PATH is the supervisor's to give: it asks the login shell, and no pool's key depends on the answer.
        self._base_environment = {
            name: value for name, value in self._own_environment.items() if name != "PATH"
        }
        self._home = home_of(environ)
        self._secret = secret or os.urandom(32)
        self._operator = dict(operator or {})
        self._kept = kept
        self._pins = pins
        self._sources: dict[SourceId, Basis] = {DAEMON: Basis({}, "", "")}
        self._guests: dict[SessionId, Guest] = {}
        self.board = board or Switchboard()
        self.switches = self.board.switches
        self._logins = paths.logins_dir(os.path.dirname(trust)) if trust else ""
        self.users = UsersFile(file, self._home, last_good or LastGood())
        self.layers = Layers(self.users.config, self._home, trust, trusted_good or LastGood())

    @property
    def config(self) -> Config:
        """The user's, as it was last good."""
        return self.layers.config

    @property
    def problem(self) -> str:
        """Why the user's file as it is now is not in force; empty when it is."""
        return self.users.problem

    @property
    def warnings(self) -> list[str]:
        """Notes about ignored parts of other programs' files."""
        return self.users.warnings

    # --- what is on disk -------------------------------------------------------------------------------

    def watched(self) -> list[Watched]:
        """Every file that was looked at, as it was then."""
        return [Watched("", self.users.seen), *self.layers.workspaces.watched()]

    def wishes(self) -> set[Wish]:
        """Where sessions want to be."""
        return {guest.wish for guest in self._guests.values()} - {Wish()}

    def reload(self, layer: Layer | None, sights: Iterable[Sight]) -> list[Followed]:
        """Everything was read again: the user's file (None: it could not be) and what is where, by what that
        says. A session whose directory, project or roots matter only now moves to another source.
        """
        before = self.layers.names()
        if layer is not None:
            self.users.take(layer)
        self.layers.config = self.users.config
        return self.looked(sights, before)

    def looked(self, sights: Iterable[Sight], before: set[ServerName] | None = None) -> list[Followed]:
        """This was found where sessions are; elsewhere nothing is known now. `before`: servers until then."""
        before = self.layers.names() if before is None else before
        self.layers.workspaces.take_all(sights)
        # One that comes keeps its switch: it was meant for those of this name whose sessions have left.
        if self.switches.forget_all(before - self.layers.names()):
            self.board.keep()
        followed = self.follow()
        self.layers.workspaces.keep(self.wishes())
        return followed

    def gone_profiles(self) -> list[str]:
        """Profiles that sessions have and the file has no longer: they grant nothing."""
        held = {guest.attach.profile for guest in self._guests.values()}
        return sorted(held - {"", *self.config.profiles})

    def switched(self) -> list[Followed]:
        """Switches were turned: they are kept, and this is what follows."""
        self.board.keep()
        return self.follow()

    def follow(self) -> list[Followed]:
        """What everything comes to now. A session moves to another source where that goes with it now."""
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
            profiles=limits_of(self.config),
        )

    def wanted_variables(self, attach: Attach) -> list[str]:
        """What the carrier is asked for: exactly the names that the configuration uses. Also for servers that
        may not run yet: not every carrier can be asked again, and nothing uses them until then.
        """
        if attach.run is not None:
            return []
        return self.layers.variables_at(self._spot(self.wish_at_first(attach)))

    def objection(self, attach: Attach) -> Refused | None:
        """Why a session that is to see only a part of the configuration cannot be; None: it can."""
        resumes = attach.resume is not None  # its workspace or profile may have left the file meanwhile
        if attach.profile and attach.profile not in self.config.profiles and not resumes:
            return Refused(unknown_profile(self.config, attach.profile), "unknown_profile")
        if attach.workspace and not resumes:
            sight = self.layers.workspaces.sight_of(self.wish_at_first(attach))
            if why := self.objection_to(attach, attach.workspace) or sight.objection:
                return Refused(why, "unknown_workspace")
        if not attach.server:
            return None
        spot = self._spot(self.wish_at_first(attach))
        project = self.layers.project_at(spot)
        config, name = self.layers.merged(spot.name, project), ServerName(attach.server)
        on = {each.name for each in config.servers.values() if not each.disabled}
        # One that is switched is back when it is switched back: until then the session sees nothing.
        on |= self.switches.everyone.keys() & config.servers.keys()
        there = name in {*on, *config.unusable, *self.layers.kept_out(spot.name, project)[0]}
        strangers = self.layers.strangers(spot.name, project)
        # One answer for all, so that nobody finds out by asking what his profile keeps back.
        if not there or not (resumes or sees(config, attach.profile, name, strangers)):
            return Refused(
                "the configuration has no server of that name, or it is disabled, or the profile has nothing "
                "of it: see `carpool status`",
                "unknown_server",
            )
        return None

    def enter(
        self, session: SessionId, attach: Attach, environment: dict[str, str]
    ) -> tuple[SourceId, list[Followed]]:
        """The source of a new session, and its reading if no session had it yet."""
        guest = self._guests[session] = Guest(attach, environment, DAEMON)
        guest.asked.update(self.wanted_variables(attach))
        self._sources[DAEMON].sessions += 1
        followed = self._place(session)
        return guest.source, [event for event in followed if not isinstance(event, SessionMoved)]

    def objection_to(self, attach: Attach, workspace: str) -> str:
        """Why a session that came with `attach` cannot be in this workspace; empty: it can."""
        return objection(self.config, workspace, by_name_only=attach.streams)

    def use_roots(self, session: SessionId, roots: tuple[Root, ...]) -> list[Followed]:
        """The session's agent names these roots. It moves in any case, be it to where it is."""
        guest = self._guests.get(session)
        if guest is None:
            return []
        guest.roots = roots
        return self._place(session) or [SessionMoved(session, guest.source)]

    def unasked(self, session: SessionId, moved: Moved | None) -> list[str]:
        """Variables that servers use there (None: where the session is) and its carrier was not asked for."""
        guest = self._guests.get(session)
        if guest is None or guest.attach.run is not None:
            return []
        spot = self._spot(wish_of(guest.attach, moved or guest.moved))
        return [name for name in self.layers.variables_at(spot) if name not in guest.asked]

    def guest(self, session: SessionId) -> Guest | None:
        """A session that is here."""
        return self._guests.get(session)

    def learn(self, session: SessionId, environment: dict[str, str]) -> list[Followed]:
        """More variables of a session."""
        guest = self._guests.get(session)
        if guest is None:
            return []
        guest.environment |= {name: each for name, each in environment.items() if name in guest.asked}
        return self._place(session)

    def move(self, session: SessionId, moved: Moved) -> list[Followed]:
        """The session is in another workspace from now on."""
        self._guests[session].moved = moved
        return self._place(session, elsewhere=True)

    def leave(self, session: SessionId) -> list[Followed]:
        """A session is gone, and its source with the last one."""
        if self.switches.ended(session):
            self.board.keep()
        followed = self._release(self._guests.pop(session).source)
        self.layers.workspaces.keep(self.wishes())
        return followed

    def _place(self, session: SessionId, *, elsewhere: bool = False) -> list[Followed]:
        """Find the source that goes with what the session brings. `elsewhere`: it is in another workspace."""
        guest = self._guests[session]
        source, basis = self._source_of(guest, self.switches.own(session))
        if source == guest.source:
            return []
        before, guest.source = guest.source, source
        followed: list[Followed] = []
        if source not in self._sources:
            self._sources[source] = basis
            followed.append(self.resolve(source))
        self._sources[source].sessions += 1
        return [*followed, SessionMoved(session, source, elsewhere), *self._release(before)]

    def _release(self, source: SourceId) -> list[Followed]:
        basis = self._sources[source]
        basis.sessions -= 1
        if basis.sessions > 0 or source == DAEMON:
            return []
        del self._sources[source]
        return [SourceDropped(source)]

    def _source_of(self, guest: Guest, own: Own) -> tuple[SourceId, Basis]:
        attach = guest.attach
        length = attach.tool_name_length if check_name_length(attach.tool_name_length) is None else 0
        if attach.run is not None:  # what it brings itself is all that counts
            basis = Basis(
                guest.environment,
                "",
                "",
                run=attach.run,
                server=attach.server,
                profile=attach.profile,
                tool_name_length=length,
            )
        else:
            spot = guest.spot = self._spot(guest.wish)
            project = self.layers.project_at(spot)
            merged = self.layers.merged(spot.name, project)
            config = self.switches.seen(merged, own)
            servers = [each for each in config.servers.values() if not each.disabled]
            places = {name for each in servers for _, text in each.templates() for name in references(text)}
            told = {each.roots for each in servers}
            placed = "workspace" in places or bool(told - {None})
            names = variables(config)
            basis = Basis(
                {name: value for name, value in guest.environment.items() if name in names},
                self.layers.root_of(spot) if placed or merged is not self.config else "",
                spot.cwd if "cwd" in places else "",
                roots=guest.roots if "agent" in told else None,
                spot=spot if merged is not self.config else None,
                project=self.layers.workspaces.at(spot).file if project is not None else "",
                server=attach.server,
                own=own,
                profile=attach.profile,
                tool_name_length=length,
            )
        return DAEMON if basis.is_empty else basis.source_id(self._secret), basis

    def wish_at_first(self, attach: Attach) -> Wish:
        """Where a session wants to be that comes with this."""
        if attach.run is not None:
            return Wish()
        return wish_of(attach, attach.resume.moved if attach.resume else None)

    def _spot(self, wish: Wish) -> Spot:
        return self.layers.workspaces.sight_of(wish).spot

    def resolve(self, source: SourceId) -> SourceRead:
        """What this source comes to now."""
        basis = self._sources[source]
        if basis.run is not None:
            return self._reading(source, basis, self.config, resolve_run(basis.run, secret=self._secret))
        project = self.layers.workspaces.projects.get(basis.project)
        config = self.switches.seen(self.layers.merged(basis.name, project), basis.own)
        found = resolve(
            config,
            environment=basis.environment,
            base_environment=self._base_environment,
            env_file=self.users.env,
            operator=self._operator,
            project_env_file=project.env if project is not None else {},
            workspace=basis.workspace,
            cwd=basis.cwd,
            home=self._home,
            secret=self._secret,
            roots=basis.roots,
            interpreter=sys.executable,
            named_root=basis.named_root,
            logins=self._logins,
        )
        kept_out, untrusted = self.layers.kept_out(basis.name, project)
        found = replace(
            found,
            misconfigured={**found.misconfigured, **kept_out},
            untrusted=untrusted,
            unset=found.unset - kept_out.keys(),
        )
        return self._reading(source, basis, config, found)

    # --- what others see ---------------------------------------------------------------------------------

    def written_for(self, session: SessionId, name: ServerName) -> ServerConfig | None:
        """The server that a session would see under this name if nothing were switched. Sessions of
        `carpool run` see none of these.
        """
        guest = self._guests.get(session)
        if guest is None or guest.attach.run is not None:
            return None
        return self.layers.at(guest.spot).servers.get(name)

    def secrets(self) -> Iterator[str]:
        """Values of variables that are in use: nothing that is kept on disk may hold one. Those of a project
        that is not trusted are given to nobody, and may be words that every list holds.
        """
        yield from self.users.env.values()
        yield from self._operator.values()
        for project in self.layers.workspaces.projects.values():
            if not project.awaits():
                yield from project.env.values()
        for basis in self._sources.values():
            yield from basis.environment.values()

    def own_environment(self) -> Mapping[str, str]:
        """The daemon's own, scrubbed: every server has it, with another PATH."""
        return self._own_environment

    def hook_specs(self) -> list[HookSpec]:
        """How the hooks are run. Where both have a variable, the `env_file` was written for this."""
        variables = {**self._own_environment, **self.users.env}
        config = self.config
        return [spec_of(hook, config.file, variables, self._home) for hook in config.hooks]

    def whereabouts(self, session: SessionId) -> dict[str, str]:
        """In which workspace a session is: `{name, root}`; both are empty where it is in none."""
        guest = self._guests.get(session)
        if guest is None or guest.attach.run is not None:
            return {"name": "", "root": ""}
        return {"name": guest.spot.name, "root": self.layers.root_of(guest.spot)}

    def _reading(self, source: SourceId, basis: Basis, config: Config, found: Resolution) -> SourceRead:
        project = self.layers.workspaces.projects.get(basis.project)
        strangers = self.layers.strangers(basis.name, project)
        frame = frame_of(config, basis.profile, strangers)
        found = narrowed(found, config, frame.rights, strangers)
        if basis.server:
            found = only(found, ServerName(basis.server))
        if basis.server or basis.run is not None:  # no other server is there, and names are the server's own
            frame = replace(frame, barred=tuple(each for each in frame.barred if each[0] == basis.server))
        if basis.tool_name_length:
            frame = replace(frame, name_chars=basis.tool_name_length)
        whys = {
            name: self.switches.why_off(config.servers[name], basis.own)
            for name in found.disabled
            if name in config.servers
        }
        read = reading(source, config, found, whys, find=self._kept, frame=frame, pins=self._pins)
        return replace(read, broken=project.why_lost() if project is not None else "")
