"""The broker as a process: performs what the core decides.

Owns the wiring: agent server, link, configuration, control, timers, lifeline. Decides nothing about calls,
names or rights.

Knows nothing of: pids and pipes of servers, the meaning of agents' lines (`inbound`), the text of lines to
agents (`outbound`).
"""

import logging
import os
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path

import trio

from carpool_broker.admin.control import ControlMethods
from carpool_broker.admin.status import hook_rows
from carpool_broker.admin.status_query import Process
from carpool_broker.admin.supervisor_queries import SupervisorQueries
from carpool_broker.config.configuration import DEFAULT_SOURCE, Configuration, ConfigurationChange
from carpool_broker.config.locations import workspace_label
from carpool_broker.config.secret_filter import SecretFilter
from carpool_broker.config.source_key import group_changes
from carpool_broker.config.watcher import EVERYTHING, ConfigWatcher
from carpool_broker.config.workspace_moves import WorkspaceMoves
from carpool_broker.config.workspaces import WatchedFiles
from carpool_broker.core.broker import BrokerCore
from carpool_broker.core.idle_exit import IdleExit
from carpool_broker.core.model import effects, events
from carpool_broker.core.model.supervisors import ONLY
from carpool_broker.core.supervisor_routes import SupervisorRoutes
from carpool_broker.hooks.runner import HookRunner
from carpool_broker.hooks.spec import rule_of
from carpool_broker.storage.approval_store import ApprovalStore
from carpool_broker.storage.audit_log import AuditLog
from carpool_broker.storage.catalog_cache import CatalogCache
from carpool_broker.tracing.trace_exporter import TraceExporter
from carpool_broker.transport.agent_server import AgentServer
from carpool_broker.transport.connections import Connections
from carpool_broker.transport.inbound import AgentLines
from carpool_broker.transport.incarnation import Incarnation
from carpool_broker.transport.outbound import AgentOutput
from carpool_protocol.bootstrap import paths
from carpool_protocol.bootstrap.release import RELEASE
from carpool_protocol.ids import CallId, Epoch, SessionId, SupervisorName
from carpool_protocol.link.messages import (
    LINK_VERSION,
    AnyMessage,
    AskOpened,
    CallFailed,
    CallsLocated,
    CallsRecorded,
    Catalog,
    Credit,
    Hello,
    JournalRead,
    OperationEnded,
    SearchPathTold,
    SharingExplained,
    Surveyed,
    UseLoginShell,
)
from carpool_protocol.link.peer import BROKER, LINK_WINDOW_BYTES, LinkEvent, PeerDown, PeerRefused, PeerUp
from carpool_protocol.link.transport import Link
from carpool_protocol.link.zmq import ZmqLink
from carpool_protocol.machine.stop_commands import STOP, STOP_FOR_RESTART, STOP_FOR_RESTART_NOW
from carpool_protocol.runtime.lifeline import Lifeline
from carpool_protocol.runtime.node_join import node_pid
from carpool_protocol.runtime.pace import ALONE_S, Pace
from carpool_protocol.runtime.poller import ReadySet
from carpool_protocol.runtime.process import bound_log
from carpool_protocol.runtime.pump import OUTPUTS_PER_FLUSH, CorePump
from carpool_protocol.runtime.search_path import server_directories
from carpool_protocol.runtime.steady_clock import SteadyClock

log = logging.getLogger("carpool.broker")

WRITTEN_CALLS = 64
"""Number of written answers that are reported at once. Fewer are reported at the next tick (`Pace`)."""
MAX_LOSSES = 4096
"""Maximum number of calls with `state_lost` whose answer has not been written yet."""
_LAST_GOOD = "the configuration is broken, the last good one stays in force: %s"
_STARTED_AGAIN = "carpool is started again"
_STOPPED = "carpool was stopped; connect the agent again to start it"
ENDS = {STOP: _STOPPED, STOP_FOR_RESTART: _STARTED_AGAIN, STOP_FOR_RESTART_NOW: _STARTED_AGAIN}
"""The text for carriers that keep lines, by the launcher's stop command."""
FLUSH_TIMEOUT_S = 2.0
"""How long the broker waits at its end for carriers that can resume to read their lines."""


def _core(
    configuration: Configuration,
    incarnation: Incarnation,
    epoch: Epoch,
    supervisors: Sequence[SupervisorName],
) -> BrokerCore:
    config = configuration.config
    return BrokerCore(
        configuration.bounds(),
        config.list_wait_s,
        mark=epoch[-6:],
        life=incarnation.epoch,
        secret=incarnation.derive_key("core"),
        audits=config.audit.on,
        counts=config.counters,
        supervisors=supervisors,
    )


def _audit_log(runtime_dir: str, configuration: Configuration, incarnation: Incarnation) -> AuditLog:
    return AuditLog(
        paths.audit_file(paths.log_dir(os.environ, runtime_dir)),
        run=incarnation.derive_key("audit").hex()[:8],
        max_bytes=configuration.config.audit.max_bytes,
        whereabouts=lambda session: workspace_label(configuration.workspace_of(session)),
    )


class BrokerShell:
    """One broker process."""

    def __init__(
        self,
        runtime_dir: str,
        configuration: Configuration,
        incarnation: Incarnation,
        lifeline: Lifeline | None,
        kept: CatalogCache | None = None,
        *,
        approvals: ApprovalStore | None = None,
        supervisors: Sequence[SupervisorName] = (ONLY,),
    ) -> None:
        """`kept`: without it no catalog outlives this process. `approvals`: without it no approval does.
        `supervisors`: the names of all that the launcher starts.
        """
        self._configuration = configuration
        self._lifeline = lifeline
        self._catalog_cache = kept or CatalogCache("", b"")
        approvals = approvals or ApprovalStore("")
        self._nursery: trio.Nursery | None = None
        """The nursery of all tasks, while the broker serves."""
        self._stopped = trio.Event()
        self._supervisors: dict[SupervisorName, Hello] = {}
        """The connected supervisors."""
        self._unflushed = 0
        """Messages sent since the link was flushed."""
        self._reported_losses: set[CallId] = set()
        """Calls with `state_lost` whose answer has not been written yet."""
        self._idle_exit = IdleExit()
        epoch = Epoch(f"{os.getpid():x}-{os.urandom(6).hex()}")
        self._ready = ReadySet()
        hello = Hello(LINK_VERSION, epoch, BROKER, os.getpid(), RELEASE)
        self._link: Link = ZmqLink(hello, paths.link_endpoint(runtime_dir), self._ready)
        self.core = _core(configuration, incarnation, epoch, supervisors)
        self._routes = SupervisorRoutes(self.core.links, self.core.call_table.calls)
        # Each call passes here.
        names = self.core.links.names
        self._send: Callable[[AnyMessage], None] = (
            partial(self._send_to, names[0]) if len(names) == 1 else self._send_routed
        )
        self._withheld = SecretFilter(self.core, configuration, approvals)
        self._clock = SteadyClock()
        self._pace = Pace(lambda: self._ready.rounds)
        self._pump: CorePump[events.AnyEvent, effects.AnyEffect] = CorePump(
            self.core,
            self._perform,
            clock=self._clock,
            dump_to=Path(paths.log_dir(os.environ, runtime_dir)) / "journal-broker.jsonl",
        )
        self._trace_exporter = TraceExporter(RELEASE, configuration.operator_environment)
        self._runtime_dir = runtime_dir
        self._log_file = paths.daemon_log(paths.log_dir(os.environ, runtime_dir), "broker")
        self._audit_log = _audit_log(runtime_dir, configuration, incarnation)
        self._connections = Connections(self._audit_log.flush, self._clock)
        self._config_watcher = ConfigWatcher(
            configuration, self._apply_changes, self._flush_burst, self._start_soon
        )
        self._moving = WorkspaceMoves(
            configuration, self._pump.feed_all, self._connections, self._config_watcher
        )
        self._hook_runner = self._new_hooking(runtime_dir)
        self._inquiries = SupervisorQueries(self._send_now, self._linked, self._recipients)
        self._control_methods = self._new_control(incarnation, approvals)
        self._agent_server = self._new_door(runtime_dir, incarnation)
        self._saying = AgentOutput(self.core, RELEASE, self._connections.write, self._pump.feed)
        self._perform_one = self._performers()

    # --- the parts -------------------------------------------------------------------------------------

    def _new_hooking(self, runtime_dir: str) -> HookRunner:
        configuration = self._configuration
        runtime_id = paths.runtime_id(runtime_dir)
        own = configuration.own_environment()
        return HookRunner(
            self.core.sessions,
            lambda session: configuration.workspace_of(session)["root"],
            {name: value for name, value in own.items() if name != "PATH"} | {paths.DAEMON_MARK: runtime_id},
            self._pump.feed,
            self._flush_burst,
            search_path=server_directories(None, own),
            runtime_id=runtime_id,
        )

    def _new_control(self, incarnation: Incarnation, approvals: ApprovalStore) -> ControlMethods:
        process = Process(
            release=RELEASE,
            restarts=incarnation.epoch,
            warnings=self._warnings,
            hooks=lambda: hook_rows(self.core.hooks, self._hook_runner),
            audit=self._audit_log,
            trace=self._trace_exporter.facts,
            carriers=self._connections.carriers,
            descriptors=lambda: self._agent_server.descriptors(),  # noqa: PLW0108 - made later
            node_pid=lambda: node_pid(self._runtime_dir),
            peer_uid=self._connections.peer_uid,
            told_at=self._catalog_cache.told_at,
            run=f"{self._audit_log.run}.{incarnation.epoch}",
            clock=self._clock,
        )
        return ControlMethods(
            self.core,
            self._configuration,
            self._inquiries,
            process,
            reload=self._reload,
            follow=lambda followed: self._pump.feed_all(group_changes(followed)),
            approvals=approvals,
            story=self._pump.story,
            disconnect=lambda *ended: self._agent_server.disconnect_session(*ended),  # noqa: PLW0108 - made later
            clock=self._clock,
        )

    def _new_door(self, runtime_dir: str, incarnation: Incarnation) -> AgentServer:
        config = self._configuration.config
        host = AgentLines(
            self.core,
            self._configuration,
            self._pump,
            moving=self._moving,
            scanner=self._config_watcher,
            write=self._connections.write,
            answer=self._control_methods.answer,
            settle=self._flush_burst,
            start_soon=self._start_soon,
            digest_key=incarnation.derive_key("digests"),
            is_answering=self._is_answering,
            on_unread=lambda: self._saying.answer_queue.unread_changed(),  # noqa: PLW0108 - made later
        )
        return AgentServer(
            paths.agents_socket(runtime_dir),
            self._ready,
            host,
            incarnation,
            self._connections,
            slow_reader_s=config.session.slow_reader_s,
            receive_budget_bytes=config.receive_budget_bytes,
            settle=self._flush_burst,
            clock=self._clock,
        )

    def _performers(self) -> dict[type, Callable[..., None]]:
        """The function for each effect. All other effects are messages to the supervisor."""
        connections = self._connections
        return {
            **self._saying.handlers,
            effects.ApplyRoots: lambda e: self._moving.roots_received(e.session, e.roots, changed=e.changed),
            effects.ForgetSource: lambda e: self._pump.feed_all(
                self._configuration.forget_source(e.source, e.why)
            ),
            effects.SetSupervisorEpoch: lambda e: connections.set_supervisor_epoch(e.session, e.epoch),
            effects.SetStatefulServers: lambda e: connections.set_stateful_servers(e.session, e.servers),
            effects.ForgetRecordedCall: lambda e: connections.forget_recorded_call(e.session, e.call),
            effects.BeginHook: self._hook_runner.begin_run,
            effects.EndHook: self._hook_runner.end_run,
            effects.WriteAudit: self._audit_log.add,
            effects.ExportTrace: self._trace_exporter.add,
            effects.SaveApprovals: self._withheld.keep_approvals,
            effects.SendTo: lambda e: self._send_to(e.supervisor, e.message),
            effects.EndBroker: lambda _: self._stopped.set(),
            effects.LogLine: lambda e: log.log(logging.getLevelNamesMapping()[e.level.upper()], "%s", e.text),
        }

    def _start_soon(self, work: Callable[..., Awaitable[object]], *about: object) -> None:
        """Begin a task that ends with the broker."""
        assert self._nursery is not None
        self._nursery.start_soon(work, *about)

    # --- its life --------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Serve until stopped."""
        self._audit_log.set_enabled(on=self._configuration.config.audit.on)
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            await nursery.start(self._hook_runner.run)
            self._read_hooks()  # before any call, and before any answer in the record
            self._read_limits()
            self._pump.feed(events.PausedServersChanged(frozenset(self._configuration.overrides.paused)))
            self._pump.feed(self._configuration.resolve_source(DEFAULT_SOURCE))
            nursery.start_soon(self._ready.run, self._flush_burst)
            nursery.start_soon(self._pump.run_timers, self._flush_burst)
            nursery.start_soon(self._pump.run_dumps)
            nursery.start_soon(self._clock.watch, self._clock_jumped, self._pace)
            nursery.start_soon(self._agent_server.watch, self._pace)
            nursery.start_soon(self._check_periodically)
            nursery.start_soon(bound_log, self._log_file)
            nursery.start_soon(self._watch_configuration)
            nursery.start_soon(self._catalog_cache.run)
            nursery.start_soon(self._saying.answer_queue.run, self._flush_burst)
            await nursery.start(self._link.run, self._deliver, self._flush_burst)
            self._agent_server.open()
            problem = self._configuration.problem
            if problem:
                log.error(_LAST_GOOD, problem)
            if self._lifeline is not None:
                self._lifeline.want_supervisors(len(self.core.links.names))
                if problem:
                    self._lifeline.note(_LAST_GOOD % problem.partition("\n")[0])
                self._lifeline.ready()
                nursery.start_soon(self._lifeline.run, self.stop, self._supervisor_died)
            servers = len(self._configuration.config.servers)
            self._log_warnings()
            log.info("broker serves (pid %d, %d servers configured)", os.getpid(), servers)
            await self._stopped.wait()
            self._saying.answer_queue.answer_all()
            # If the launcher has died, carriers are not told to stay away.
            command = self._stop_command()
            again = command in {STOP_FOR_RESTART, STOP_FOR_RESTART_NOW}
            self._agent_server.stop_accepting(ENDS.get(command, ""), again=again)
            if again:
                with trio.move_on_after(FLUSH_TIMEOUT_S):
                    await self._connections.wait_until_sent()
            self._agent_server.close()
            await self._close_files()
            nursery.cancel_scope.cancel()

    async def _close_files(self) -> None:
        """Write what is kept on disk or goes to a collector."""
        self._audit_log.flush()
        self._audit_log.close()
        with trio.CancelScope(shield=True):
            await self._trace_exporter.close()
            await self._catalog_cache.flush()

    def stop(self) -> None:
        """End: answer every open call and close all connections, with a reason for carriers that keep lines.

        For a restart the broker first waits for open calls, until the launcher repeats the command.
        """
        command = self._stop_command()
        if command == STOP_FOR_RESTART:
            log.info("draining: carpool is started again")
            self._pump.feed(events.DrainRequested())
            self._flush_burst()
            return
        log.info("stopping")
        if not command:  # the launcher has died: a call that begins now would be lost, maybe after it ran
            self._agent_server.stop_reading()
        self._pump.feed(events.EndRequested(again=command == STOP_FOR_RESTART_NOW))
        self._flush_burst()
        self._stopped.set()

    def _end_replaced(self) -> None:
        """End as if the process had died, because carpool was updated underneath it.

        The launcher starts the new version, and carriers resume there.
        """
        if self._lifeline is not None and not self._stop_command():
            log.warning("ending, so that a broker of the new version takes over")
            self._agent_server.stop_reading()
            self._stopped.set()

    def _stop_command(self) -> str:
        return "" if self._lifeline is None else self._lifeline.stop_command

    # --- the burst -------------------------------------------------------------------------------------

    def _is_answering(self, session: SessionId) -> bool:
        return self._saying.answer_queue.is_waiting(session)

    def _flush_burst(self) -> None:
        """End a burst: everything that it caused is written now."""
        self._link.flush()
        self._connections.flush()
        self._audit_log.flush()  # for agents that are gone nothing is written
        if len(self._connections.written) >= WRITTEN_CALLS or not self._reported_losses.isdisjoint(
            self._connections.written
        ):
            self._report_written()
        if self._agent_server.finishing:
            self._agent_server.end_finished()
        self._pump.settle()

    def _report_written(self) -> None:
        """Tell the supervisor which answers the carriers have, so that its record can drop them."""
        written = self._connections.written
        if written:
            self._send_now(self.core.call_table.answers_written(written.copy()))
            self._reported_losses.difference_update(written)
            written.clear()

    def _perform(self, todo: list[effects.AnyEffect]) -> None:
        perform_one = self._perform_one
        for effect in todo:
            perform_one.get(type(effect), self._send)(effect)

    def _send_routed(self, message: AnyMessage) -> None:
        """Send a message to the supervisors that it concerns, as far as they are connected."""
        for name, each in self._routes.of(message):
            self._send_to(name, each)

    def _send_to(self, name: SupervisorName, message: AnyMessage) -> None:
        if name in self._supervisors:
            self._link.send(name, message)
            self._unflushed += 1
            if self._unflushed >= OUTPUTS_PER_FLUSH:
                self._unflushed = 0
                self._link.flush()

    def _linked(self) -> dict[str, int]:
        found = self._supervisors
        return {name: found[name].pid for name in self.core.links.names if name in found}

    def _recipients(self, message: AnyMessage) -> list[str]:
        return [name for name, _ in self._routes.of(message)]

    def _send_now(self, message: AnyMessage) -> None:
        self._send(message)
        self._link.flush()

    # --- the link --------------------------------------------------------------------------------------

    def _deliver(self, peer: str, messages: Sequence[LinkEvent]) -> None:
        name = SupervisorName(peer)
        is_linked = name in self._supervisors
        burst: list[events.AnyEvent] = []
        for message in messages:
            if isinstance(message, events.LinkEvent):
                if is_linked:
                    self._observe_message(name, message)
                    burst.append(message)
                continue
            if burst:
                self._pump.feed_all(burst)
                burst = []
            self._handle_message(name, message)
            is_linked = name in self._supervisors
        if burst:
            self._pump.feed_all(burst)

    def _handle_message(self, name: SupervisorName, message: LinkEvent) -> None:
        """Handle a message that the core does not take as it is."""
        match message:
            case PeerUp():
                self._supervisor_connected(message.hello)
            case PeerDown():
                if name in self._supervisors:
                    self._supervisor_lost(name, message.why)
            case PeerRefused():
                log.error("%s", message.text)
                if message.superseded:
                    self._end_replaced()
            case _ if name not in self._supervisors:
                pass  # a stranger, whose greeting was refused
            case Credit():
                self._pump.feed(events.CreditReceived(message.size_bytes, name))
            case CallsRecorded():
                self._pump.feed(events.RecordReceived(message, name))
            case SearchPathTold():
                self._hook_runner.search_path_told(message.directories)
            case Surveyed() | OperationEnded() | SharingExplained() | JournalRead() | CallsLocated():
                self._inquiries.answer_received(name, message)
            case _:
                log.error(
                    "the supervisor sent a message that only a broker may send: %s",
                    type(message).__name__,
                )

    def _observe_message(self, name: SupervisorName, message: LinkEvent) -> None:
        """Keep catalogs on disk, and note who asks and answers with `state_lost`.

        A written `state_lost` is reported at once: calls that are read after that run on new state.
        """
        if type(message) is Catalog:
            self._catalog_cache.catalog_received(message, self._withheld.for_pool(message.key))
        elif type(message) is CallFailed and message.fault == "state_lost":
            if len(self._reported_losses) >= MAX_LOSSES:  # calls of agents that are gone
                self._reported_losses.clear()
            self._reported_losses.add(message.call)
        elif type(message) is AskOpened:
            self._routes.ask_opened(message.ask, name)

    def _supervisor_connected(self, hello: Hello) -> None:
        name = SupervisorName(hello.name)
        if name not in self.core.links.names:
            log.error("%s connected as a supervisor, and no supervisor has this name: ignored", hello.name)
            return
        log.info("supervisor %s connected (pid %d)", name, hello.pid)
        self._supervisors[name] = hello
        # Before anything is started.
        self._send_to(name, UseLoginShell(self._configuration.config.login_shell))
        self._link.flush()
        self._pump.feed(events.SupervisorConnected(LINK_WINDOW_BYTES, hello.epoch, name))
        self._agent_server.set_supervisor_epoch(self.core.recovery.epoch)

    def _supervisor_lost(self, name: SupervisorName, why: str) -> None:
        log.warning("supervisor %s lost: %s", name, why)
        del self._supervisors[name]
        if not self._supervisors:
            self._connections.written.clear()  # the records are lost too, or will be sent anew
        self._routes.supervisor_lost(name)
        self._inquiries.supervisor_lost(name)
        self._pump.feed(events.SupervisorLost(name))
        self._agent_server.set_supervisor_epoch(self.core.recovery.epoch)

    def _supervisor_died(self, name: str) -> None:
        """The launcher saw the supervisor die, which is sooner and surer than silence."""
        self._link.peer_died(name, "the launcher says that it died")

    async def _check_periodically(self) -> None:
        while True:
            await trio.sleep(self._pace.delay_s())
            self._report_written()
            self._audit_log.retry()
            self._control_methods.counters.note_moment()
            if not self.core.recovery.may_return:
                self._control_methods.override_commands.sessions_known(self.core.sessions)
                if self._lifeline is not None:
                    self._lifeline.end_return_period()
            self._check_idle()

    def _check_idle(self) -> None:
        """Tell the launcher if nobody has used carpool for `idle_exit_s`."""
        config = self._configuration.config
        is_due = self._idle_exit.is_due(
            trio.current_time(),
            config.idle_exit_s,
            agents=sum(not each.control for each in self.core.sessions.values()),
            awaits_sessions=not self.core.recovery.everybody,
            has_http_door=config.http_wanted,
            keeps_servers=self._configuration.layers.has_servers_that_stay(),
        )
        if is_due and self._lifeline is not None:
            self._lifeline.idle()

    # --- configuration ---------------------------------------------------------------------------------

    async def _watch_configuration(self) -> None:
        while True:
            if any(not each.control for each in self.core.sessions.values()):
                await trio.sleep(self._pace.delay_s())
            else:
                await self._config_watcher.wait_for_session(self._pace.delay_s(ALONE_S))
            if changed := await self._config_watcher.find_changes():
                await self._reload(changed)
                self._flush_burst()

    def _apply_changes(self, followed: Sequence[ConfigurationChange]) -> None:
        """Feed changes of the configuration in force to the core."""
        self._pump.feed_all(group_changes(followed))
        self._moving.configuration_changed(list(self.core.sessions))

    async def _reload(self, changed: Sequence[WatchedFiles] = EVERYTHING) -> list[str]:
        """Read changed files again. Returns the problems if the configuration is broken; the last good one
        then stays.
        """
        readings = await self._config_watcher.reload(changed)
        if problem := self._configuration.problem:
            log.error(_LAST_GOOD, problem)
        else:
            log.info("configuration read again")
            self._log_warnings()
        config = self._configuration.config
        self._agent_server.slow_reader_s = config.session.slow_reader_s
        self._agent_server.receive_budget.set_size(config.receive_budget_bytes)
        self._audit_log.max_bytes = config.audit.max_bytes
        self._audit_log.set_enabled(on=config.audit.on)
        self._read_limits()
        self._send_now(UseLoginShell(config.login_shell))
        self._read_hooks()
        self._pump.feed(events.PausedServersChanged(frozenset(self._configuration.overrides.paused)))
        self._apply_changes(readings)
        return problem.splitlines()

    def _read_limits(self) -> None:
        config = self._configuration.config
        self._trace_exporter.configure(config.trace)
        traces = config.trace.sample if self._trace_exporter.is_on else None
        self._pump.feed(
            events.LimitsRead(
                self._configuration.bounds(),
                config.list_wait_s,
                audits=config.audit.on,
                counts=config.counters,
                traces=traces,
            )
        )

    def _read_hooks(self) -> None:
        self._hook_runner.hooks_read(self._configuration.hook_specs())
        self._pump.feed(events.HooksRead(tuple(map(rule_of, self._configuration.config.hooks))))

    def _log_warnings(self) -> None:
        for text in self._warnings():
            log.warning("%s", text)

    def _warnings(self) -> list[str]:
        """Return sentences about settings that have no effect, or none before a restart."""
        pending = self.core.links.pending_number(self._configuration.config.supervisors)
        return [
            *self._configuration.warnings,
            *([pending] if pending else []),
            *(
                f"the profile {name} is no longer in the file: agents with it may do nothing"
                for name in self._configuration.missing_profiles()
            ),
        ]

    def _clock_jumped(self) -> None:
        log.warning("the clock jumped: this process was stopped, or the machine slept")
