"""A simulated world with real configuration: files of a user and of projects, sessions in workspaces.

Owns the broker's side of that (the real `Configuration`, `WorkspaceMoves` and `OverrideCommands` before the
core, which the plain world has not), what each agent's carrier brings, and the rules: a configuration comes
to what `workspace_files` says; nothing runs that nobody trusts; a call goes only to what its session sees,
or saw when it was made, and with no value but its own; a list names nothing else. A broken rule is a
`Violation`.

Pools get names that a seed decides: their keys are hashes of directories, which are others in each run.
Knows nothing of: what changes when (`workspace_faults`).
"""

import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from carpool_broker.admin.override_commands import CannotOverrideError, OverrideCommands, OverrideParams
from carpool_broker.config.configuration import DEFAULT_SOURCE, ConfigurationChange
from carpool_broker.config.locations import WorkspaceRequest
from carpool_broker.config.scan import WorkspaceScan
from carpool_broker.config.source_key import group_changes
from carpool_broker.config.workspace_moves import WorkspaceMoves
from carpool_broker.core.broker import BrokerCore
from carpool_broker.core.model import effects as bf
from carpool_broker.core.model import events as bv
from carpool_broker.core.model.capabilities import Capabilities
from carpool_broker.core.model.events import SourceId
from carpool_broker.core.requests.roots import PREFIX
from carpool_broker.storage.catalog_cache import CachedCatalog
from carpool_broker.storage.override_store import OverrideStore
from carpool_protocol.bootstrap.carrier_contract import NAMING_VERSION
from carpool_protocol.carrier.attach_line import Attach, ResumeSession, WorkspaceChanged
from carpool_protocol.config.reading.load import ConfigFile
from carpool_protocol.ids import AskId, PoolKey, ServerName, SessionId, SupervisorName, whole_of
from carpool_protocol.link.messages import Call, Catalog, PoolSpec, Root, SetPools
from carpool_protocol.link.peer import LinkEvent
from carpool_supervisor.core.supervisor import SupervisorCore
from tests.kit.synchronous_configuration import SynchronousConfiguration
from tests.world.sim.agents import CAPABILITIES, SimAgent
from tests.world.sim.broker import SimBroker
from tests.world.sim.oracles.violation import Violation
from tests.world.sim.stateless_agents import AnyAgents, StatelessAgents
from tests.world.sim.traits import catalog
from tests.world.sim.workspace_files import (
    ITS,
    OFFLINE,
    PROJECTS,
    VARIABLES,
    FileLaunch,
    ServerProgram,
    SessionLocation,
    WorkspaceFiles,
)
from tests.world.sim.world import World

HERE = SourceId("free")
BACK_S = 1.5
"""So long after a move leases may be held where it was made from: frames take up to 0.3 s each way."""
MOMENT_S = 1e-6
PATIENCE_S = 2.0
"""So long a carrier has to say variables."""
SLOW_DISKS = 0.2
"""Of the looks at where a session moves."""
LINGERS_S = 60.0
"""A call may leave for where its session was when it was made, so long ago at most."""


class WorkspaceSession:
    """One agent as its carrier knows it."""

    def __init__(
        self, agent: AnyAgents, cwd: str, workspace: str, environ: dict[str, str], *, tells: bool
    ) -> None:
        self.agent = agent
        self.cwd = cwd
        self.workspace = workspace
        self.environ = environ
        self.tells = tells
        self.asked = 0
        self.moved: WorkspaceChanged | None = None
        self.came = 0
        self.roots: tuple[Root, ...] = ()
        """What its agent says when it is asked for them."""
        self.sources: list[tuple[SourceId, float]] = []
        """What it was resolved from, and since when."""

    def attach(self, base: str) -> Attach:
        """The attach line, to the first broker or to a later one."""
        shared = isinstance(self.agent, StatelessAgents) and len(self.agent.persons) > 1
        resume = ResumeSession(session="", secret="", moved=self.moved) if self.came else None
        return Attach(
            version=NAMING_VERSION,
            carrier="door" if shared else "shim",
            cwd=f"{base}/{self.cwd}" if self.cwd else "",
            workspace=self.workspace,
            streams=shared,
            resume=resume,
        )


class StableNames:
    """Of pools and sources: what they are called here, the same in each run of a seed."""

    def __init__(self) -> None:
        self._keys: dict[PoolKey, PoolKey] = {}
        self._sources: dict[SourceId, SourceId] = {DEFAULT_SOURCE: DEFAULT_SOURCE}

    def source(self, real: SourceId) -> SourceId:
        """Of a source."""
        return self._sources.setdefault(real, SourceId(f"source-{len(self._sources)}"))

    def real_source(self, name: SourceId) -> SourceId:
        """The source that is called so."""
        return next(real for real, known in self._sources.items() if known == name)

    def key(self, real: PoolKey, server: str) -> PoolKey:
        """Of a pool that is the first of its launch."""
        return self._named(real, f"{server}:{len(self._keys)}")

    def other(self, real: PoolKey, plain: PoolKey, word: str) -> PoolKey:
        """Of another pool of the same launch."""
        return self._named(real, f"{plain}:{word}")

    def _named(self, real: PoolKey, name: str) -> PoolKey:
        if real not in self._keys:
            self._keys[real] = PoolKey(name)
        return self._keys[real]

    def known(self, real: PoolKey) -> PoolKey | None:
        """The name of a pool; None: it has none yet."""
        return self._keys.get(real)


class WorkspaceWorld(World):
    """See the module."""

    broker: "WorkspaceBroker"

    def __init__(self, seed: int, *args: Any, **settings: Any) -> None:
        self.dice = Random(f"house {seed}")
        self.directory = Path(tempfile.mkdtemp(prefix="carpool-world-"))
        self.people: dict[str, ServerProgram] = {}
        self.places = WorkspaceFiles(self.directory, self.dice, self.people)
        self.names = StableNames()
        self.launches: dict[PoolKey, PoolSpec] = {}
        """By the name of a pool: what it was first wanted as."""
        self.kept: dict[PoolKey, Catalog] = {}
        """What pools have told, as it lies on disk."""
        self.legal: dict[SourceId, dict[ServerName, set[PoolKey]]] = {}
        """Where calls of sessions of a source may ever go."""
        self.tenants: dict[int, WorkspaceSession] = {}
        self.moves: dict[int, SessionId] = {}
        """Requests to move that are open at this broker."""
        self.moved = self.checked = 0
        self.linked = 0.0
        """Since when this broker's supervisor takes calls."""
        self.furnish()
        super().__init__(seed, *args, **settings)

    def furnish(self) -> None:
        """Write the first files."""
        self.places.write_user()

    def demolish(self) -> None:
        """Remove the files."""
        shutil.rmtree(self.directory)

    def new_broker(self, before: SimBroker | None = None) -> "WorkspaceBroker":
        """See `World`."""
        self.moves.clear()
        return WorkspaceBroker(self, before)

    def read_config(self) -> None:
        """What everybody shares, at the start of a broker."""
        self.broker.follow([self.broker.configuration.resolve_source(DEFAULT_SOURCE)])

    def reload(self) -> None:
        """The broker sees that files have changed."""
        if self.broker.alive and not self.broker.stopped:
            self.broker.reload()

    # --- who is where -----------------------------------------------------------------------------------

    def tenant_of(self, came: bv.SessionOpened) -> WorkspaceSession:
        """The agent of this session: one who comes first says with its source where it is, as
        `cwd` or `cwd|workspace`.
        """
        agent = self.carriers[came.session].agent
        tenant = self.tenants.get(id(agent))
        if tenant is None:
            cwd, _, workspace = came.source.partition("|")
            shared = isinstance(agent, StatelessAgents) and len(agent.persons) > 1
            environ = {name: f"{self.dice.choice(('red', 'blue'))}-{name}" for name in VARIABLES}
            environ = {name: value for name, value in environ.items() if self.dice.random() < 0.7}
            tenant = self.tenants[id(agent)] = WorkspaceSession(
                agent,
                "" if shared else cwd,
                workspace if workspace in self.places.named else "",
                {} if shared else environ,
                tells=not shared and self.dice.random() < 0.7,
            )
        return tenant

    def of(self, session: SessionId) -> WorkspaceSession | None:
        """The agent of a session that is here."""
        agent = self.agents.get(whole_of(session))
        return None if agent is None else self.tenants.get(id(agent))

    def use_workspace(self, agent: AnyAgents, workspace: str) -> None:
        """`carpool/use_workspace`: of a session that keeps its carrier."""
        broker, session, tenant = self.broker, agent.session, self.tenants[id(agent)]
        if session not in self.agents or broker.moving.move_objection(session, workspace):
            return
        self.moved += 1
        number = self.moved
        self.moves[number] = session

        def then(_why: str) -> None:
            if self.moves.pop(number, None) != session:
                raise Violation(f"{session} was told twice that it has moved")
            since = (self.book.mishaps, len(tenant.sources), self.now)
            self.later(BACK_S, lambda: self._has_given_back(session, tenant, since))

        broker.moving.move(session, WorkspaceChanged(workspace), then)

    def agent(
        self,
        source: SourceId = HERE,
        *,
        careless: bool = False,
        capabilities: Capabilities | None = None,
    ) -> SimAgent:
        """Half of them have roots."""
        declared = capabilities or self.rng.choice(CAPABILITIES)
        declared = replace(declared, roots=self.rng.random() < 0.5)
        return super().agent(source, careless=careless, capabilities=declared)

    # --- the rules --------------------------------------------------------------------------------------

    def _has_given_back(
        self, session: SessionId, tenant: WorkspaceSession, since: tuple[int, int, float]
    ) -> None:
        """What a session had leased where it was before is nobody's soon after it has moved."""
        is_linked = self.broker.core.supervisor_sync.is_linked()
        heard = max(since[2], self.linked) if is_linked else self.now
        left_s = BACK_S - self.book.pauses.took_s(heard, self.now)
        if left_s > MOMENT_S:  # one that was stopped already as it moved, or not linked, has not heard yet
            self.later(left_s, lambda: self._has_given_back(session, tenant, since))
            return
        now = (self.book.mishaps, len(tenant.sources))
        if since[:2] != now or self.of(session) is not tenant or self.broker.life:
            return  # something else has happened, or pools may stay for those who come back to a later broker
        source = tenant.sources[-1][0]
        for pool in (
            self.supervisor.core.pool_reports() if self.broker.alive and self.supervisor.alive else ()
        ):
            if pool.key in self.legal_at(source, pool.server):
                continue
            if pool.key not in self.broker.core.supervisor_sync.wanted_pools:
                continue  # a reload had taken it away: its instances drain, and so do their leases
            for shown in pool.instances:
                is_held = shown.holder and whole_of(shown.holder) == session
                if is_held and not self.supervisor.instances[shown.id].unanswered:
                    raise Violation(f"{session} has moved and holds instance {shown.id} of {pool.key} still")

    def look(self, core: BrokerCore | SupervisorCore, event: Struct, effects: Sequence[Any]) -> None:
        """Also: whether what leaves the broker may."""
        super().look(core, event, effects)
        if not isinstance(core, BrokerCore):
            return
        if isinstance(event, bv.RecordReceived):
            self.linked = self.now
        for effect in effects:
            if isinstance(effect, Call):
                self._judge_call(effect)
            elif isinstance(effect, SetPools):
                self._judge_wanted(effect)
            elif isinstance(effect, bf.Reply | bf.ReplyStateless) and not effect.is_error:
                self._judge_list(core, effect)

    def _judge_wanted(self, set_pools: SetPools) -> None:
        readings = self.broker.readings()
        for spec in set_pools.pools:
            command = spec.argv[0]
            if command.startswith(ITS) and not self.places.may_run(command, readings):
                raise Violation(f"{spec.key} is wanted, a project's that nobody trusts")

    def _judge_call(self, call: Call) -> None:
        tenant = self.of(call.session)
        if tenant is None:
            return
        spec = self.launches[call.key]
        lately = self.now - LINGERS_S
        ended = [*(since for _, since in tenant.sources[1:]), self.now]
        sources = [source for (source, _), end in zip(tenant.sources, ended, strict=True) if end >= lately]
        if not any(call.key in self.legal_at(source, spec.server) for source in sources):
            raise Violation(f"{call.session} calls {call.key}, which it does not see at {sources}")
        self._judge_value(call.session, tenant, spec)
        self.checked += 1

    def legal_at(self, source: SourceId, server: ServerName) -> set[PoolKey]:
        """Where calls of this server may go."""
        return self.legal.setdefault(source, {}).setdefault(server, set())

    def _judge_value(self, session: SessionId, tenant: WorkspaceSession, spec: PoolSpec) -> None:
        value = spec.env.get("V", "")
        if value and value not in {*tenant.environ.values(), *self.places.env_values}:
            raise Violation(f"{session} is served by {spec.key}, which has a value of somebody else")

    def _judge_list(self, core: BrokerCore, reply: bf.Reply | bf.ReplyStateless) -> None:
        if b'"tools":[' not in bytes(reply.body)[:20]:
            return
        source = core.sessions[reply.session].source
        for tool in msgspec.json.decode(reply.body)["tools"]:
            server, _, rest = tool["name"].partition("__")
            if not rest or tool.get("title") == OFFLINE:
                continue
            pools = {str(key) for key in self.legal_at(source, ServerName(server))}
            if tool["title"] not in pools:
                raise Violation(f"{reply.session} reads {tool['name']} of {tool['title']}, not of {pools}")


class WorkspaceBroker(SimBroker):
    """A broker that reads files."""

    world: WorkspaceWorld  # type: ignore[assignment]

    def __init__(self, world: WorkspaceWorld, before: SimBroker | None = None) -> None:
        super().__init__(world, before)  # type: ignore[arg-type]
        places = world.places
        if places.broken:  # no broker would begin with it
            places.write_user()
        self.configuration = SynchronousConfiguration(
            ConfigFile(places.file, asked_for=True),
            {"HOME": places.base},
            places.store,
            secret=b"the same in every life",
            kept=self._kept,
            board=OverrideStore(f"{places.base}/switches.json", "world"),
        )
        self.moving = WorkspaceMoves(self.configuration, self.follow, self, self)
        self.switching = OverrideCommands(self.configuration, self.follow)
        self.read: dict[SourceId, bv.SourceRead] = {}
        """The last of each source, with real keys."""

    # --- configuration ----------------------------------------------------------------------------------

    def reload(self) -> list[str]:
        """As the shell does it."""
        self.follow(self.configuration.read_again())
        self.moving.configuration_changed(list(self.core.sessions))
        self.configuration_is_right()
        return self.configuration.problem.splitlines()

    def turn(self, server: str, *, on: bool | None, session: str = "") -> None:
        """`carpool enable` or `disable`."""
        try:
            problems = self.reload() if on is None else []
            self.switching.switch(OverrideParams(server, on, session), list(self.core.sessions), problems)
        except CannotOverrideError:
            return
        self.configuration_is_right()

    def follow(self, followed: Sequence[ConfigurationChange | bv.PausedServersChanged]) -> None:
        """What follows goes to the core."""
        for event in group_changes(followed):
            if isinstance(event, bv.SourcesRead):
                super().feed(bv.SourcesRead(tuple(map(self._told, event.readings))))
            elif isinstance(event, bv.SourceRead):
                super().feed(self._told(event))
            elif isinstance(event, bv.PausedServersChanged):
                super().feed(event)
            elif isinstance(event, bv.SourceUnused):
                super().feed(bv.SourceUnused(self.world.names.source(event.source)))
            elif isinstance(event, bv.SourceDropped):
                del self.read[event.source]
                super().feed(replace(event, source=self.world.names.source(event.source)))
            else:
                source = self.world.names.source(event.source)
                tenant = self.world.of(event.session)
                if tenant is not None:
                    tenant.sources.append((source, self.world.now))
                super().feed(replace(event, source=source))

    def _told(self, read: bv.SourceRead) -> bv.SourceRead:
        """With names of this world instead of hashes, and with its policies."""
        names, world = self.world.names, self.world
        self.read[read.source] = read
        source = names.source(read.source)
        keys: dict[PoolKey, PoolKey] = {}
        for spec in read.specs:
            keys[spec.key] = names.key(spec.key, spec.server)
            for others, word in ((read.twins, "asking"), (read.stateless, "newest")):
                if spec.key in others:
                    real = others[spec.key].key
                    keys[real] = names.other(real, keys[spec.key], word)

        def ours(spec: PoolSpec) -> PoolSpec:
            person = world.people[spec.argv[0]]
            ours = replace(spec, key=keys[spec.key], policy=person.policy)
            before = world.launches.setdefault(ours.key, ours)
            if (before.argv, before.env, before.cwd, before.roots) != (
                ours.argv,
                ours.env,
                ours.cwd,
                ours.roots,
            ):
                raise Violation(f"{ours.key} is another launch than before")
            world.see(ours.key, person.traits)
            world.legal_at(source, ours.server).add(ours.key)
            return ours

        entries = tuple(replace(entry, key=keys[entry.key]) for entry in read.scope.servers)
        return replace(
            read,
            source=source,
            scope=replace(read.scope, servers=entries),
            specs=tuple(map(ours, read.specs)),
            twins={keys[key]: ours(spec) for key, spec in read.twins.items()},
            stateless={keys[key]: ours(spec) for key, spec in read.stateless.items()},
            kept={keys[key]: replace(each, key=keys[key]) for key, each in read.kept.items()},
            max_processes=world.max_processes,
        )

    def _kept(self, real: PoolKey) -> CachedCatalog | None:
        key = self.world.names.known(real)
        found = None if key is None else self.world.kept.get(key)
        return None if found is None else CachedCatalog(replace(found, key=real), "earlier")

    def readings(self) -> dict[str, str]:
        """By project that is followed: the digest of what was last read of its file; empty where it could
        not be read.
        """
        projects = self.configuration.layers.workspaces.projects
        found = ((name, projects.get(self.world.places.file_of(name))) for name in PROJECTS)
        return {name: each.digest if each.config else "" for name, each in found if each is not None}

    def configuration_is_right(self) -> None:
        """Each session's configuration comes to what stands in the files."""
        if not self.alive:  # it has died of what it was just about to do
            return
        world, switches = self.world, self.configuration.overrides
        switches.check()
        strangers = switches.session_overrides.keys() - world.agents.keys()
        if strangers and not self.life:
            raise Violation(f"servers are switched for {strangers}, who are gone")
        self.moving.check()
        readings = self.readings()
        for session, agent in world.agents.items():
            guest, tenant = self.configuration.session_context(session), world.tenants.get(id(agent))
            if guest is None or tenant is None:
                continue
            on = {**switches.global_overrides, **dict(switches.of_session(session))}
            cwd = f"{world.places.base}/{tenant.cwd}" if tenant.cwd else ""
            moved = tenant.workspace if guest.workspace_change is None else guest.workspace_change.workspace
            spot = SessionLocation(cwd, moved, _uris(guest.roots))
            expected = world.places.seen(spot, guest.environment, on, readings)  # type: ignore[arg-type]
            found = {spec.server: _launch(spec) for spec in self.read[guest.source].specs}
            plain = {ServerName(name): replace(each, variable="") for name, each in expected.items()}
            if found != plain:
                raise Violation(f"{session} at {cwd} ({moved}) is to see {plain}, and sees {found}")

    # --- sessions ---------------------------------------------------------------------------------------

    def feed(self, event: bv.AnyEvent) -> None:
        """Also: sessions have their place in the configuration."""
        if self.stopped or not self.alive:
            super().feed(event)
            return
        if isinstance(event, bv.SessionOpened):
            event = self._enters(event)
        elif isinstance(event, bv.SessionClosed):
            self.moving.session_closed(event.session)
        super().feed(event)
        if (
            isinstance(event, bv.SessionClosed)
            and self.configuration.session_context(event.session) is not None
        ):
            self.follow(self.configuration.session_closed(event.session))
        elif isinstance(event, bv.InitializeRequested) and event.capabilities.roots:
            super().feed(bv.InitializedReceived(event.session))

    def _enters(self, came: bv.SessionOpened) -> bv.SessionOpened:
        tenant = self.world.tenant_of(came)
        attach = tenant.attach(self.world.places.base)
        tenant.came += 1
        asked = self.configuration.wanted_variables(attach)
        environment = {name: tenant.environ[name] for name in asked if name in tenant.environ}
        source, followed = self.configuration.session_opened(
            came.session, attach, {} if attach.streams else environment
        )
        ours = self.world.names.source(source)
        tenant.sources = [(ours, self.world.now)]
        self.follow(followed)
        guest = self.configuration.session_context(came.session)
        return replace(came, source=ours, wanders=guest is not None and guest.follows_roots, keeps=True)

    def request_environment(self, session: SessionId, names: list[str]) -> int:
        """See `moving.Carriers`: it says them soon, too late, or never."""
        tenant, dice = self.world.of(session), self.world.rng
        if tenant is None or not tenant.tells:
            return 0
        tenant.asked += 1
        question = tenant.asked
        values = {name: tenant.environ[name] for name in names if name in tenant.environ}

        def hear(said: dict[str, str]) -> None:
            if self.alive and self.configuration.session_context(session) is not None:
                self.moving.environment_received(session, question, said)
                self.configuration_is_right()

        delay_s = dice.uniform(0.01, 0.5) if dice.random() < 0.85 else PATIENCE_S + 1.0
        self.world.later(delay_s, lambda: self.awake(lambda: hear(values)))
        if delay_s > PATIENCE_S:
            self.world.later(PATIENCE_S, lambda: self.awake(lambda: hear({})))
        return question

    def scan(
        self,
        workspace_request: WorkspaceRequest,
        then: Callable[[WorkspaceScan], None],
        *,
        spell: bool = False,
    ) -> None:
        """See `moving.Looks`: some disks take their time."""

        def see() -> None:
            self.configuration.scan(workspace_request, then, spell=spell)

        def see_late() -> None:
            if self.alive:
                see()
                self.configuration_is_right()

        if self.world.rng.random() < SLOW_DISKS:
            self.world.later(self.world.rng.uniform(0.01, 2.0), lambda: self.awake(see_late))
        else:
            see()

    def announce_workspace(self, session: SessionId, change: WorkspaceChanged) -> None:
        """See `moving.Carriers`."""
        tenant = self.world.of(session)
        assert tenant is not None
        tenant.moved = change

    # --- the rest ---------------------------------------------------------------------------------------

    def _write(self, effect: bf.LocalEffect) -> None:
        if isinstance(effect, bf.ApplyRoots):
            self.moving.roots_received(effect.session, effect.roots, changed=effect.changed)
            self.configuration_is_right()
        elif isinstance(effect, bf.ForgetSource):
            source = self.world.names.real_source(effect.source)
            self.follow(self.configuration.forget_source(source, effect.why))
        elif isinstance(effect, bf.SendAsk) and effect.ask.startswith(PREFIX):
            self._ask_roots(effect.session, effect.ask)
        else:
            super()._write(effect)

    def _ask_roots(self, session: SessionId, ask: AskId) -> None:
        agent, tenant = self.world.agents[session], self.world.of(session)
        assert tenant is not None
        roots = tenant.roots if self.world.rng.random() < 0.9 else None
        self.world.say_later(
            self.world.rng.uniform(0.01, 0.4), agent, lambda: bv.RootsAnswered(agent.session, ask, roots)
        )

    def heard(self, name: SupervisorName, messages: list[LinkEvent]) -> None:
        """Catalogs are kept on disk."""
        for message in messages:
            if isinstance(message, Catalog) and self.alive:
                self._keep(message)
        super().heard(name, messages)

    def _keep(self, told: Catalog) -> None:
        """As it was told, or as an earlier version of the server had told it."""
        world = self.world
        if world.rng.random() < 0.7:
            world.kept[told.key] = told
        else:
            world.kept[told.key] = catalog(
                told.key, world.traits(told.key), world.rng.randint(0, 3), told.era
            )


def _launch(spec: PoolSpec) -> FileLaunch:
    value = spec.env.get("V", "")
    return FileLaunch(spec.argv[0], "".join(spec.argv[1:]), "", value, spec.cwd, _uris(spec.roots))


def _uris(roots: Sequence[Root] | None) -> tuple[str, ...] | None:
    return None if roots is None else tuple(root.uri for root in roots)
