"""The broker as a process: performs what the core decides.

Owns the wiring: door, link, configuration, control, timers, lifeline. Decides nothing about calls,
names or rights.

Knows nothing of: pids and pipes of servers, what agents' lines mean (`inbound`), how what agents are told is
worded (`outbound`).
"""

import logging
import os
from collections.abc import Awaitable, Callable, Sequence
from importlib.metadata import version
from pathlib import Path

import trio

from carpool_broker.admin.control import Control
from carpool_broker.admin.status import hook_rows
from carpool_broker.admin.status_query import Process
from carpool_broker.admin.supervisor_queries import Inquiries
from carpool_broker.config.configuration import DAEMON, Configuration, Followed
from carpool_broker.config.locations import place_of
from carpool_broker.config.secret_filter import Withheld
from carpool_broker.config.source_key import at_once
from carpool_broker.config.watcher import EVERYTHING, Reader
from carpool_broker.config.workspace_moves import Moving
from carpool_broker.config.workspaces import Watched
from carpool_broker.core.broker import BrokerCore
from carpool_broker.core.model import effects, events
from carpool_broker.core.registry.registry import Registry
from carpool_broker.hooks.runner import Hooking
from carpool_broker.hooks.spec import rule_of
from carpool_broker.storage.approval_store import PinBoard
from carpool_broker.storage.audit_log import AuditLog
from carpool_broker.storage.catalog_cache import KeptCatalogs
from carpool_broker.transport.agent_server import Door
from carpool_broker.transport.connections import Connections
from carpool_broker.transport.inbound import Hosting
from carpool_broker.transport.incarnation import Heritage
from carpool_broker.transport.outbound import Saying
from carpool_protocol.bootstrap import paths
from carpool_protocol.ids import CallId, Epoch
from carpool_protocol.link.messages import (
    LINK_VERSION,
    AnyMessage,
    AskLoginShell,
    Catalog,
    Explained,
    Failed,
    Hello,
    Operated,
    Recounted,
    Surveyed,
)
from carpool_protocol.link.peer import BROKER, LINK_WINDOW_BYTES, LinkEvent, PeerDown, PeerRefused, PeerUp
from carpool_protocol.link.transport import Link
from carpool_protocol.link.zmq import ZmqLink
from carpool_protocol.machine.stop_commands import AGAIN, AGAIN_NOW, STOP
from carpool_protocol.runtime.lifeline import Lifeline
from carpool_protocol.runtime.poller import ReadySet
from carpool_protocol.runtime.pump import PIECE, Pump
from carpool_protocol.runtime.steady_clock import SteadyClock

log = logging.getLogger("carpool.broker")

CONFIG_LOOK_S = LOOK_S = 1.0
WRITTEN_CALLS = 64
"""So many written answers are reported at once; fewer of them within `LOOK_S`."""
MAX_LOSSES = 4096
"""So many calls that were told `state_lost` are waited for to be written."""
_LAST_GOOD = "the configuration is broken, the last good one stays: %s"
_STARTED_AGAIN = "carpool is started again"
_STOPPED = "carpool was stopped; connect the agent again to start it"
ENDS = {STOP: _STOPPED, AGAIN: _STARTED_AGAIN, AGAIN_NOW: _STARTED_AGAIN}
"""What carriers that keep are told, by the launcher's word."""
RELEASE = version("carpool")
LAST_WORDS_S = 2.0
"""So long an end that carriers come back from waits for them to take what was said."""


def _core(configuration: Configuration, heritage: Heritage, epoch: Epoch) -> BrokerCore:
    config = configuration.config
    return BrokerCore(
        Registry(mark=epoch[-6:]),
        configuration.bounds(),
        config.list_wait_s,
        life=heritage.life,
        secret=heritage.key("core"),
        audits=config.audit.on,
    )


def _audit_log(runtime_dir: str, configuration: Configuration, heritage: Heritage) -> AuditLog:
    return AuditLog(
        paths.audit_file(paths.log_dir(os.environ, runtime_dir)),
        run=heritage.key("audit").hex()[:8],
        max_bytes=configuration.config.audit.max_bytes,
        whereabouts=lambda session: place_of(configuration.whereabouts(session)),
    )


class BrokerShell:
    """One broker process."""

    def __init__(
        self,
        runtime_dir: str,
        configuration: Configuration,
        heritage: Heritage,
        lifeline: Lifeline | None,
        kept: KeptCatalogs | None = None,
        *,
        pins: PinBoard | None = None,
    ) -> None:
        """`kept`: without it no catalog outlives this process. `pins`: without it no approval does."""
        self._configuration = configuration
        self._lifeline = lifeline
        self._kept = kept or KeptCatalogs("", b"")
        pins = pins or PinBoard("")
        self._nursery: trio.Nursery | None = None
        """Of all tasks, while the broker serves."""
        self._stopped = trio.Event()
        self._supervisor: Hello | None = None
        self._unflushed = 0
        """Messages sent since the link was flushed."""
        self._losses: set[CallId] = set()
        """Calls whose agents are told `state_lost`, until that is written."""
        epoch = Epoch(f"{os.getpid():x}-{os.urandom(6).hex()}")
        self._ready = ReadySet()
        hello = Hello(LINK_VERSION, epoch, BROKER, os.getpid(), RELEASE)
        self._link: Link = ZmqLink(hello, paths.link_endpoint(runtime_dir), self._ready)
        self.core = _core(configuration, heritage, epoch)
        self._withheld = Withheld(self.core, configuration, pins)
        self._clock = SteadyClock()
        self._pump: Pump[events.AnyEvent, effects.AnyEffect] = Pump(
            self.core,
            self._perform,
            clock=self._clock,
            dump_to=Path(paths.log_dir(os.environ, runtime_dir)) / "journal-broker.jsonl",
        )
        self._audit = _audit_log(runtime_dir, configuration, heritage)
        self._connections = Connections(self._audit.flush, self._clock)
        self._reader = Reader(configuration, self._follow, self._settle, self._start_soon)
        self._moving = Moving(configuration, self._pump.feed_all, self._connections, self._reader)
        self._hooking = self._new_hooking(runtime_dir)
        self._inquiries = Inquiries(self._send_now, self._supervisors)
        self._control = self._new_control(heritage, pins)
        self._door = self._new_door(runtime_dir, heritage)
        self._saying = Saying(self.core, RELEASE, self._connections.write, self._pump.feed)
        self._perform_one = self._performers()

    # --- the parts -------------------------------------------------------------------------------------

    def _new_hooking(self, runtime_dir: str) -> Hooking:
        configuration = self._configuration
        return Hooking(
            self.core.sessions,
            lambda session: configuration.whereabouts(session)["root"],
            {**configuration.own_environment(), paths.DAEMON_MARK: paths.runtime_id(runtime_dir)},
            self._pump.feed,
            self._settle,
        )

    def _new_control(self, heritage: Heritage, pins: PinBoard) -> Control:
        process = Process(
            release=RELEASE,
            restarts=heritage.life,
            hooks=lambda: hook_rows(self.core.hooks, self._hooking),
            audit=self._audit,
            carriers=self._connections.carriers,
            told_at=self._kept.told_at,
        )
        return Control(
            self.core,
            self._configuration,
            self._inquiries,
            process,
            reload=self._reload,
            follow=lambda followed: self._pump.feed_all(at_once(followed)),
            pins=pins,
            story=self._pump.story,
        )

    def _new_door(self, runtime_dir: str, heritage: Heritage) -> Door:
        config = self._configuration.config
        host = Hosting(
            self.core,
            self._configuration,
            self._pump,
            moving=self._moving,
            looks=self._reader,
            write=self._connections.write,
            answer=self._control.answer,
            settle=self._settle,
            start_soon=self._start_soon,
            digest_key=heritage.key("digests"),
        )
        return Door(
            paths.agents_socket(runtime_dir),
            self._ready,
            host,
            heritage,
            self._connections,
            slow_reader_s=config.session.slow_reader_s,
            receive_budget_bytes=config.receive_budget_bytes,
            settle=self._settle,
            clock=self._clock,
        )

    def _performers(self) -> dict[type, Callable[..., None]]:
        """What performs each effect; all others are messages to the supervisor."""
        connections = self._connections
        return {
            **self._saying.ways,
            effects.UseRoots: lambda e: self._moving.follow_roots(e.session, e.roots, changed=e.changed),
            effects.TellServed: lambda e: connections.served_by(e.session, e.epoch),
            effects.TellStateful: lambda e: connections.stateful_at(e.session, e.servers),
            effects.LetGo: lambda e: connections.let_go(e.session, e.call),
            effects.RunHook: self._hooking.begin,
            effects.EndHook: self._hooking.end,
            effects.Audited: self._audit.take,
            effects.KeepPins: self._withheld.keep_pins,
            effects.End: lambda _: self._stopped.set(),
            effects.Note: lambda e: log.log(logging.getLevelNamesMapping()[e.level.upper()], "%s", e.text),
        }

    def _start_soon(self, work: Callable[..., Awaitable[object]], *about: object) -> None:
        """Begin a task that ends with the broker."""
        assert self._nursery is not None
        self._nursery.start_soon(work, *about)

    # --- its life --------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Serve until stopped."""
        self._audit.switch(on=self._configuration.config.audit.on)
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            await nursery.start(self._hooking.run)
            self._read_hooks()  # before any call, and before any answer that the record holds
            self._pump.feed(self._configuration.resolve(DAEMON))
            nursery.start_soon(self._ready.run, self._settle)
            nursery.start_soon(self._pump.run_timers, self._settle)
            nursery.start_soon(self._pump.run_dumps)
            nursery.start_soon(self._clock.watch, self._jumped)
            nursery.start_soon(self._door.watch)
            nursery.start_soon(self._look)
            nursery.start_soon(self._watch_configuration)
            nursery.start_soon(self._kept.run)
            nursery.start_soon(self._saying.searching.run, self._settle)
            await nursery.start(self._link.run, self._deliver, self._settle)
            self._door.open()
            problem = self._configuration.problem
            if problem:
                log.error(_LAST_GOOD, problem)
            if self._lifeline is not None:
                if problem:
                    self._lifeline.note(_LAST_GOOD % problem.partition("\n")[0])
                self._lifeline.ready()
                nursery.start_soon(self._lifeline.run, self.stop, self._supervisor_gone)
            servers = len(self._configuration.config.servers)
            self._say_warnings()
            log.info("broker serves (pid %d, %d servers configured)", os.getpid(), servers)
            await self._stopped.wait()
            self._saying.searching.finish()
            # Whoever loses us because the launcher has died is not told to stay away.
            word = self._stop_word()
            again = word in {AGAIN, AGAIN_NOW}
            self._door.take_leave(ENDS.get(word, ""), again=again)
            if again:
                with trio.move_on_after(LAST_WORDS_S):
                    await self._connections.heard_out()
            self._door.close()
            self._audit.flush()
            self._audit.close()
            with trio.CancelScope(shield=True):
                await self._kept.flush()
            nursery.cancel_scope.cancel()

    def stop(self) -> None:
        """End: every open call is answered, then agents see end of file, and carriers that keep why. An end
        that they come back from waits for what is under way, until this is said once more.
        """
        word = self._stop_word()
        if word == AGAIN:
            log.info("draining: carpool is started again")
            self._pump.feed(events.DrainMeant())
            self._settle()
            return
        log.info("stopping")
        self._pump.feed(events.EndMeant(again=word == AGAIN_NOW))
        self._settle()
        self._stopped.set()

    def _give_way(self) -> None:
        """This process is of a carpool that was updated underneath it. It goes as if it had died: the
        launcher brings up the new one, and carriers come back there.
        """
        if self._lifeline is not None and not self._stop_word():
            log.warning("ending, so that a broker of the new version takes over")
            self._stopped.set()

    def _stop_word(self) -> str:
        return "" if self._lifeline is None else self._lifeline.stop_word

    # --- the burst -------------------------------------------------------------------------------------

    def _settle(self) -> None:
        """The burst is over: everything it caused leaves now."""
        self._link.flush()
        self._connections.flush()
        self._audit.flush()  # of agents that are gone nothing is to be sent
        if len(self._connections.written) >= WRITTEN_CALLS or not self._losses.isdisjoint(
            self._connections.written
        ):
            self._say_written()
        self._pump.settle()

    def _say_written(self) -> None:
        """The record may forget the answers that are with their carriers."""
        written = self._connections.written
        if written:
            self._send_now(self.core.ledger.written(written.copy()))
            self._losses.difference_update(written)
            written.clear()

    def _perform(self, todo: list[effects.AnyEffect]) -> None:
        perform_one = self._perform_one
        for effect in todo:
            perform_one.get(type(effect), self._send)(effect)

    def _send(self, message: effects.LinkEffect) -> None:
        if self._supervisor is not None:
            self._link.send(self._supervisor.name, message)
            self._unflushed += 1
            if self._unflushed >= PIECE:
                self._unflushed = 0
                self._link.flush()

    def _supervisors(self) -> list[tuple[str, int]]:
        return [] if self._supervisor is None else [(self._supervisor.name, self._supervisor.pid)]

    def _send_now(self, message: AnyMessage) -> None:
        if self._supervisor is not None:
            self._link.send(self._supervisor.name, message)
            self._link.flush()

    # --- the link --------------------------------------------------------------------------------------

    def _deliver(self, peer: str, messages: Sequence[LinkEvent]) -> None:
        burst: list[events.AnyEvent] = []
        for message in messages:
            if isinstance(message, events.LinkEvent):
                self._overhear(message)
                burst.append(message)
                continue
            if burst:
                self._pump.feed_all(burst)
                burst = []
            match message:
                case PeerUp():
                    self._supervisor_came(message.hello)
                case PeerDown():
                    if self._supervisor is not None and self._supervisor.name == peer:
                        self._supervisor_went(message.why)
                case PeerRefused():
                    log.error("%s", message.text)
                    if message.superseded:
                        self._give_way()
                case Surveyed() | Operated() | Explained() | Recounted():
                    self._inquiries.heard(message)
                case _:
                    log.error("the supervisor said what only a broker says: %s", type(message).__name__)
        if burst:
            self._pump.feed_all(burst)

    def _overhear(self, message: LinkEvent) -> None:
        """Catalogs are kept on disk. That `state_lost` is with its carrier is to be reported at once: what is
        read after that runs on fresh state.
        """
        if type(message) is Catalog:
            self._kept.keep(message, self._withheld.of(message.key))
        elif type(message) is Failed and message.fault == "state_lost":
            if len(self._losses) >= MAX_LOSSES:  # of agents that are gone
                self._losses.clear()
            self._losses.add(message.call)

    def _supervisor_came(self, hello: Hello) -> None:
        if self._supervisor is not None and self._supervisor.name != hello.name:
            log.error("a second supervisor, %s, is not served yet", hello.name)
            return
        log.info("supervisor %s came (pid %d)", hello.name, hello.pid)
        self._supervisor = hello
        self._door.serve_by(hello.epoch)
        self._send_now(AskLoginShell(self._configuration.config.login_shell))  # before anything is to start
        self._pump.feed(events.SupervisorCame(LINK_WINDOW_BYTES, hello.epoch))

    def _supervisor_went(self, why: str) -> None:
        log.warning("supervisor went: %s", why)
        self._supervisor = None
        self._door.serve_by(Epoch(""))
        self._connections.written.clear()  # the record is gone as well, or is gone through anew
        self._inquiries.supervisor_went()
        self._pump.feed(events.SupervisorWent())

    def _supervisor_gone(self, name: str) -> None:
        """The launcher has seen it die: sooner and surer than any silence."""
        self._link.forget(name, "the launcher says that it died")

    async def _look(self) -> None:
        while True:
            await trio.sleep(LOOK_S)
            self._say_written()
            self._audit.look()
            if not self.core.recovery.may_return:
                self._control.switching.forget_others(self.core.sessions)
                if self._lifeline is not None:
                    self._lifeline.alone()

    # --- configuration ---------------------------------------------------------------------------------

    async def _watch_configuration(self) -> None:
        while True:
            await trio.sleep(CONFIG_LOOK_S)
            if changed := await self._reader.changed():
                await self._reload(changed)
                self._settle()

    def _follow(self, followed: Sequence[Followed]) -> None:
        """Other configurations are in force for those who are here."""
        self._pump.feed_all(at_once(followed))
        self._moving.look(list(self.core.sessions))

    async def _reload(self, changed: Sequence[Watched] = EVERYTHING) -> list[str]:
        """Read again what has changed. The problems, if it is broken; then the last good one stays."""
        readings = await self._reader.reload(changed)
        if problem := self._configuration.problem:
            log.error(_LAST_GOOD, problem)
        else:
            log.info("configuration read again")
            self._say_warnings()
        config = self._configuration.config
        self._door.slow_reader_s = config.session.slow_reader_s
        self._door.budget.size_bytes = config.receive_budget_bytes
        self._audit.max_bytes = config.audit.max_bytes
        self._audit.switch(on=config.audit.on)
        bounds, patience_s = self._configuration.bounds(), config.list_wait_s
        self._pump.feed(events.LimitsRead(bounds, patience_s, audits=config.audit.on))
        self._send_now(AskLoginShell(config.login_shell))
        self._read_hooks()
        self._follow(readings)
        return problem.splitlines()

    def _read_hooks(self) -> None:
        self._hooking.read(self._configuration.hook_specs())
        self._pump.feed(events.HooksRead(tuple(map(rule_of, self._configuration.config.hooks))))

    def _say_warnings(self) -> None:
        for text in self._configuration.warnings:
            log.warning("%s", text)
        for name in self._configuration.gone_profiles():
            log.warning(
                "the profile %s is not in the file any more: agents that have it may do nothing", name
            )

    def _jumped(self) -> None:
        log.warning("the clock jumped: this process stood still, or the machine slept")
