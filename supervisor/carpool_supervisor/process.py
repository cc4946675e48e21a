"""The supervisor process: performs the effects of its core.

Owns the wiring: link, ready set, processes, adapters, timers, lifeline. Decides nothing about calls, pools or
instances.

Knows nothing of: agents, names, rights.
"""

import logging
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final

import msgspec
import trio

from carpool_protocol.bootstrap import paths
from carpool_protocol.bootstrap.release import RELEASE
from carpool_protocol.ids import (
    CallId,
    Epoch,
    InstanceId,
    PoolKey,
    RawJson,
    ServerName,
    SupervisorName,
    supervisor_number,
)
from carpool_protocol.link.messages import (
    LINK_VERSION,
    AnswerAsk,
    AnswersWritten,
    Call,
    CallAtNode,
    CallsLocated,
    CancelCall,
    CancelTask,
    ChangeResourceSubscriptions,
    Credit,
    DiscoverCatalog,
    EndCall,
    ExplainSharing,
    ForwardAskProgress,
    Hello,
    JournalRead,
    LocateCalls,
    OpenSessions,
    Operate,
    PoolSpec,
    ReadJournal,
    ReportProbe,
    ResumeCall,
    SearchPathTold,
    SessionAbsent,
    SessionEnded,
    SessionNotResumable,
    SessionPoolChanged,
    SessionStateLost,
    SetLevel,
    SetPools,
    SetResourceSubscriptions,
    SetTaskSubscriptions,
    Survey,
    Surveyed,
    UseLoginShell,
)
from carpool_protocol.link.peer import BROKER, LinkEvent, PeerDown, PeerRefused, PeerUp
from carpool_protocol.link.transport import Link
from carpool_protocol.link.zmq import ZmqLink
from carpool_protocol.runtime.lifeline import Lifeline
from carpool_protocol.runtime.pace import Pace
from carpool_protocol.runtime.poller import ReadySet
from carpool_protocol.runtime.process import bound_log
from carpool_protocol.runtime.pump import OUTPUTS_PER_FLUSH, CorePump
from carpool_protocol.runtime.steady_clock import SteadyClock
from carpool_supervisor.core.model import effects, events
from carpool_supervisor.core.model.events import KnowledgeChanged, PoolKnowledge
from carpool_supervisor.core.model.sharing import EvidenceKind
from carpool_supervisor.core.model.trace_context import LIFE_BYTES
from carpool_supervisor.core.supervisor import SupervisorCore
from carpool_supervisor.knowledge.knowledge import Knowledge, explain_pool
from carpool_supervisor.knowledge.sharing_evidence import verdicts_file
from carpool_supervisor.metrics.survey import Surveyor
from carpool_supervisor.processes import Processes
from carpool_supervisor.spawn.server_path import ServerPath
from carpool_supervisor.stdio.instance_io import InstanceIos

log = logging.getLogger("carpool.supervisor")

END_S = 9.0
"""The time that instances have to end after a stop request, before they are left to the spawner: longer than
the whole stop ladder (5 s, TERM, 2 s, KILL). With `CLOSE_S` it is shorter than the launcher's limit (15 s).
"""

CLOSE_S = 4.0
"""The time that the spawner then has for them: TERM, 2 s, KILL."""

_KINDS_OF_PROBE: Final[dict[str, EvidenceKind]] = {
    "probe_diverged": "probe_diverged",
    "probe_agreed": "probe_agreed",
}


class SupervisorShell:
    """One supervisor process."""

    def __init__(self, runtime_dir: str, name: str, lifeline: Lifeline | None) -> None:
        self._logs = Path(paths.log_dir(os.environ, runtime_dir))
        self._name = name
        self._lifeline = lifeline
        epoch = self._epoch = Epoch(f"{os.getpid():x}-{os.urandom(6).hex()}")
        hello = Hello(LINK_VERSION, epoch, name, os.getpid(), RELEASE)
        self._ready = ReadySet()
        self._link: Link = ZmqLink(hello, paths.link_endpoint(runtime_dir), self._ready)
        self._broker = Epoch("")
        """The epoch of the broker that greeted last."""
        self._broker_away = False
        life = os.urandom(LIFE_BYTES)
        self.core = SupervisorCore(life, supervisor_number(SupervisorName(name)))
        self._instance_ios = InstanceIos(self._ready, self._logs, RELEASE, life, self._feed)
        self._processes = Processes(
            self._ready,
            paths.runtime_id(runtime_dir),
            epoch,
            self._instance_ios,
            node_socket=paths.node_socket(runtime_dir),
            spec_of=self._spec_of,
            feed=self._feed,
            search_path=lambda: os.pathsep.join(self._server_path.directories),
        )
        self._server_path = ServerPath(
            os.environ,
            paths.runtime_id(runtime_dir),
            epoch,
            self._processes.hold,
            self._processes.release,
            tell=lambda directories: self._link.send(BROKER, SearchPathTold(directories)),
        )
        self._clock = SteadyClock()
        dump_to = self._logs / f"journal-supervisor-{name}.jsonl"
        self._pump: CorePump[events.AnyEvent, effects.AnyEffect] = CorePump(
            self.core, self._perform, clock=self._clock, dump_to=dump_to
        )
        self._surveyor = Surveyor(self._processes.spawned)
        self._knowledge = Knowledge(verdicts_file(paths.state_dir(os.environ, runtime_dir)))
        self._specs: dict[PoolKey, PoolSpec] = {}
        self._unflushed = 0
        """Messages sent since the last flush of the link."""
        self._nursery: trio.Nursery | None = None
        self._stopping = False
        self._stop_wanted = trio.Event()
        self._stopped = trio.Event()
        self._perform_one: dict[type, Callable[..., None]] = {
            **self._instance_ios.handlers,
            **self._processes.handlers,
            effects.RecordEvidence: self._record_evidence,
            effects.RecordEra: self._record_era,
            effects.WriteLogLine: self._write_log_line,
            CallAtNode: self._send_later,
        }

    async def run(self) -> None:
        """Serve until stopped, by the lifeline or by `stop`. Ends every process it has started, and itself,
        within `END_S` and `CLOSE_S` in any case.
        """
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            if self._lifeline is not None:  # before anything is started that it may have to find
                self._lifeline.announce_epoch(self._epoch)
            await self._processes.start()
            await self._knowledge.load()
            nursery.start_soon(self._knowledge.run)
            nursery.start_soon(self._instance_ios.slow_readers.run)
            nursery.start_soon(self._ready.run, self._flush_burst)
            nursery.start_soon(self._pump.run_timers, self._flush_burst)
            nursery.start_soon(self._pump.run_dumps)
            nursery.start_soon(self._clock.watch, self._clock_jumped, Pace(lambda: self._ready.rounds))
            nursery.start_soon(bound_log, paths.daemon_log(str(self._logs), f"supervisor-{self._name}"))
            nursery.start_soon(self._processes.run, self._flush_burst)
            nursery.start_soon(self._server_path.run, self._flush_burst)
            nursery.start_soon(self._surveyor.measure_memory, self._memory_limited, self._memory_measured)
            await nursery.start(self._link.run, self._deliver, self._flush_burst)
            if self._lifeline is not None:
                self._lifeline.ready()
                nursery.start_soon(self._lifeline.run, self.stop, _ignore)
            log.info("supervisor %s serves (pid %d)", self._name, os.getpid())
            await self._stop_wanted.wait()
            with trio.move_on_after(END_S, shield=True) as patience:
                await self._stopped.wait()
            if patience.cancelled_caught:
                log.error("instances do not end; the spawner is told to end them all")
            with trio.CancelScope(shield=True):
                await self._processes.close(CLOSE_S)
                await self._knowledge.flush()
            nursery.cancel_scope.cancel()
        self._instance_ios.close()

    def stop(self) -> None:
        """End all instances, then the process."""
        if not self._stopping:
            self._stopping = True
            self._stop_wanted.set()
            log.info("stopping")
            self._pump.feed(events.StopRequested())
            self._flush_burst()

    # --- the burst -------------------------------------------------------------------------------------

    def _flush_burst(self) -> None:
        """End a burst: everything that it caused is written now."""
        self._instance_ios.flush()
        self._link.flush()
        self._pump.settle()
        held = self._link.held_bytes(BROKER)
        if self._broker_away:  # kept within the size of the record that the broker will ask for
            held += self.core.record.kept_bytes
        if self._instance_ios.read_budget.settle(held):  # events that follow leave in this burst too
            self._instance_ios.flush()
            self._link.flush()
            self._pump.settle()
        if self._stopping and self.core.has_no_process:
            self._stopped.set()

    def _perform(self, todo: list[effects.AnyEffect]) -> None:
        perform_one = self._perform_one
        for effect in todo:
            perform_one.get(type(effect), self._send)(effect)

    def _feed(self, what: Iterable[events.OwnEvent]) -> None:
        self._pump.feed_all(what)

    def _write_log_line(self, effect: effects.WriteLogLine) -> None:
        level = logging.getLevelNamesMapping()[effect.level.upper()]
        log.log(level, "%s", effect.text, extra={"server": effect.server, "instance": effect.instance})
        if effect.server:
            self._instance_ios.log_line(effect.server, effect.instance, effect.text, effect.level)

    def _send(self, message: effects.LinkEffect) -> None:
        self._link.send(BROKER, message)
        self._unflushed += 1
        if self._unflushed >= OUTPUTS_PER_FLUSH:
            self._unflushed = 0
            self._link.flush()

    def _send_later(self, message: effects.LinkEffect) -> None:
        self._link.send_later(BROKER, message)

    def _clock_jumped(self) -> None:
        log.warning(
            "the clock jumped (this process stood still, or the machine slept): every instance is probed"
        )
        self._pump.feed(events.ClockJumped())
        self._flush_burst()

    # --- the link --------------------------------------------------------------------------------------

    def _deliver(self, _peer: str, messages: Sequence[LinkEvent]) -> None:
        burst: list[events.AnyEvent] = []
        for message in messages:
            if isinstance(message, (Call, CancelCall)):
                burst.append(message)
                continue
            if burst:
                self._pump.feed_all(burst)
                burst = []
            if isinstance(message, (UseLoginShell, Operate)):
                self._server_path.message_received(message)
            self._message_received(message)
        if burst:
            self._pump.feed_all(burst)

    def _message_received(self, message: LinkEvent) -> None:
        match message:
            case PeerUp():
                log.info("broker came (pid %d, carpool %s)", message.hello.pid, message.hello.release)
                self._pump.feed(events.BrokerConnected(same=message.hello.epoch == self._broker))
                self._broker = message.hello.epoch
                self._broker_away = False
            case PeerDown():
                log.warning("broker went: %s", message.why)
                self._broker_away = True
                self._surveyor.broker_gone()
            case PeerRefused():
                log.error("%s", message.text)
                if message.superseded and self._lifeline is not None:
                    log.warning("ending, so that a supervisor of the new version takes over")
                    self.stop()
            case Survey():
                self._survey(message)
            case SetPools():
                self._set_pools(message)
            case ExplainSharing():
                spec = self._specs.get(message.key)
                self._link.send(BROKER, explain_pool(self.core.pools, message, self._knowledge, spec))
            case ReportProbe():
                self._probe_reported(message)
            case ReadJournal() | LocateCalls() | EndCall():
                self._handle_operators_message(message)
            case (
                DiscoverCatalog()
                | Operate()
                | SetLevel()
                | SetResourceSubscriptions()
                | ChangeResourceSubscriptions()
                | AnswerAsk()
                | ForwardAskProgress()
                | SessionEnded()
                | SessionAbsent()
                | SessionNotResumable()
                | SessionPoolChanged()
                | OpenSessions()
                | SessionStateLost()
                | SetTaskSubscriptions()
                | CancelTask()
                | AnswersWritten()
                | ResumeCall()
            ):
                self._pump.feed(message)
            case Credit() | UseLoginShell():
                pass  # handled by the link itself and by `_server_path`
            case _:
                log.error(
                    "the broker sent a message that only a supervisor sends: %s", type(message).__name__
                )

    def _set_pools(self, set_pools: SetPools) -> None:
        known = self._specs
        specs = {spec.key: spec for spec in set_pools.pools}
        self._specs = specs if set_pools.complete else {**known, **specs}
        self._pump.feed(set_pools)
        # Before any call is placed, because the mode holds from the first call on.
        fresh = [spec for spec in set_pools.pools if spec.key not in known]
        self._learn([self._knowledge.pool_knowledge(spec) for spec in fresh])

    def _learn(self, known: Sequence[PoolKnowledge]) -> None:
        if known:
            self._feed((KnowledgeChanged(tuple(known)),))

    def _versions(self, server: ServerName) -> list[PoolSpec]:
        """The specs of all pools of this server."""
        pools = self.core.pools.of_server(server)
        return [self._specs[pool.key] for pool in pools if pool.key in self._specs]

    def _spec_of(self, key: PoolKey) -> PoolSpec | None:
        return self._specs.get(key)

    def _handle_operators_message(self, message: ReadJournal | LocateCalls | EndCall) -> None:
        """Answer an operator's question about calls, or end a call and say where it was."""
        match message:
            case LocateCalls():
                self._link.send(BROKER, CallsLocated(message.token, self.core.locate_calls(message.calls)))
            case EndCall():
                self._link.send(BROKER, CallsLocated(message.token, self.core.locate_calls([message.call])))
                self._pump.feed(message)
            case ReadJournal():
                self._send_journal(message)

    def _send_journal(self, message: ReadJournal) -> None:
        entries = RawJson(msgspec.json.encode(self._pump.story(message.call, CallId)))
        instances = self.core.instances
        running = {each.id: each.pid for each in instances.by_id.values()}
        self._link.send(BROKER, JournalRead(message.token, entries, running, instances.node_sessions()))

    def _probe_reported(self, message: ReportProbe) -> None:
        kind = _KINDS_OF_PROBE.get(message.kind)
        if kind is None:
            log.error("the broker brought evidence of a kind that only a supervisor can see")
        else:
            self._record_evidence(effects.RecordEvidence(message.key, kind, message.detail))

    def _record_evidence(self, effect: effects.RecordEvidence) -> None:
        spec = self._specs.get(effect.key)
        if spec is not None:
            self._learn(
                self._knowledge.observe(spec, effect.kind, effect.detail, self._versions(spec.server))
            )

    def _record_era(self, effect: effects.RecordEra) -> None:
        spec = self._specs.get(effect.key)
        if spec is not None:
            self._learn(self._knowledge.observe_era(spec, effect, self._versions(spec.server)))

    def _survey(self, asked: Survey) -> None:
        if asked.counts_only:
            self._link.send(BROKER, self._with_counts(Surveyed(asked.token, [], [])))
        elif self._surveyor.add(asked):
            assert self._nursery is not None
            self._nursery.start_soon(
                self._surveyor.answer_surveys,
                self.core.pool_reports,
                self._send_surveyed,
            )

    def _send_surveyed(self, surveyed: Sequence[Surveyed]) -> None:
        for each in surveyed:
            self._link.send(BROKER, self._with_counts(each))
        self._link.flush()

    def _with_counts(self, surveyed: Surveyed) -> Surveyed:
        return msgspec.structs.replace(
            surveyed,
            search_path=self._server_path.directories,
            login_shell=self._server_path.login_shell,
            counts=self.core.targets.counters.report(),
        )

    def _memory_limited(self) -> dict[InstanceId, int]:
        """The instances that have a memory limit, and their pids."""
        every = self.core.instances.by_id.values()
        return {each.id: each.pid for each in every if each.pid and each.pool.policy.limit_rss_mb}

    def _memory_measured(self, event: events.MemoryMeasured) -> None:
        self._feed((event,))
        self._flush_burst()


def _ignore(_name: str) -> None:
    """Ignore the death of other supervisors."""
