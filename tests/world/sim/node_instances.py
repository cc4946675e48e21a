"""Instances of the simulated world that are sessions at other nodes, and their pipes to the node's process.

Owns what a supervisor's shell does about such an instance: the real adapter of the handshake era, the pipe of
its stdin with what it has not taken, the order of events when it ends. Also the way of requests and answers
between the supervisor and the node's process.

Knows nothing of: channels, frames, the other node.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from carpool.cluster.core.local_sessions import NearEndEvents
from carpool_protocol.ids import InstanceId, RawJson, WireId
from carpool_protocol.link.messages import Call, PoolSpec
from carpool_supervisor.core.model import events as ev
from carpool_supervisor.era.handshake import HandshakeAdapter
from carpool_supervisor.era.server_requests import Declared
from carpool_supervisor.spawn.node_sessions import NOT_RUNNING, NodeSessionTable
from tests.world.sim.servers import SimInstance

if TYPE_CHECKING:
    from tests.world.sim.node_carpool import NodeCarpool
    from tests.world.sim.node_process import SimNode
    from tests.world.sim.supervisor import SimSupervisor

PIPE_BYTES: Final = 3000
"""What a pipe takes that nobody reads."""
TURN_S: Final = 0.002
"""The most that a process takes to see that there is something to read."""


class NodeAsker:
    """What one supervisor has with one life of its node's process: a `SessionAsker`."""

    def __init__(self, supervisor: "SimSupervisor", node: "SimNode") -> None:
        self._supervisor = supervisor
        self._node = node
        self.is_open = True
        self._asked: deque[Callable[[], None]] = deque()
        """What the node's process has not read yet, in order."""
        self._told: deque[dict[str, object]] = deque()
        """What the supervisor has not read yet, in order."""
        self.instances: dict[InstanceId, NodeInstance] = {}
        self.table = NodeSessionTable(self._opened, self._failed, self._ended)

    def is_of(self, supervisor: "SimSupervisor") -> bool:
        """Whether this supervisor speaks on it."""
        return self._supervisor is supervisor

    def ask(self, instance: "NodeInstance", spec: PoolSpec) -> None:
        """Ask for a session."""
        assert spec.target is not None
        target = spec.target
        self.instances[instance.id] = instance
        self.table.asked(instance.id)
        self._soon(
            lambda: self._node.sessions.open_for(self, instance.id, target.node, target.server, instance)
        )

    def end(self, instance: InstanceId) -> None:
        """Have a session ended."""
        if instance in self.table:
            self._soon(lambda: self._node.sessions.end_instance(self, instance))

    def _soon(self, act: Callable[[], None]) -> None:
        def run() -> None:
            oldest = self._asked.popleft()
            if self.is_open and self._node.alive:
                oldest()

        self._asked.append(act)
        self._node.clock.later(self._node.rng.uniform(0.0, TURN_S), run)

    def tell(self, answer: dict[str, object]) -> None:
        """See `SessionAsker`."""

        def read() -> None:
            oldest = self._told.popleft()
            if self.is_open and self._supervisor.alive:
                self._supervisor.awake(lambda: self._answered(oldest))

        self._told.append(answer)
        self._node.clock.later(self._node.rng.uniform(0.0, TURN_S), read)

    def _answered(self, answer: dict[str, object]) -> None:
        if self.is_open:
            self.table.answered(msgspec.json.encode(answer))

    def lost(self) -> None:
        """The node's process is gone."""
        self.is_open = False
        self._supervisor.awake(self.table.lost)

    def _opened(self, instance: InstanceId, node: str, number: int) -> None:
        self.instances[instance].opened(node, number)

    def _failed(self, instance: InstanceId, text: str, is_final: bool) -> None:
        self.instances.pop(instance).failed(text, is_final=is_final)

    def _ended(self, instance: InstanceId, text: str, is_final: bool) -> None:
        self.instances.pop(instance).exited(text, is_final=is_final)


class NodeInstance(SimInstance):
    """A session at another node, as its supervisor has it."""

    is_remote = True

    def __init__(
        self, world: "NodeCarpool", supervisor: "SimSupervisor", instance: InstanceId, spec: PoolSpec
    ) -> None:
        self._world = world
        super().__init__(supervisor, instance, spec.key, "handshake")
        self.supervisor = supervisor
        self.spec = spec
        self.asker_line: NodeAsker | None = None
        self.end: SimPipesEnd | None = None
        """The node's end of the pipes."""
        self._adapter = HandshakeAdapter(
            instance,
            spec.key,
            "sim",
            Declared(asking=spec.asking, life=supervisor.life),
            max_total_s=spec.policy.max_total_s,
            bridge=True,
        )
        self.pipe = bytearray()
        """What its stdin has taken and nobody has read."""
        self.is_stdin_closed = False
        self._unwritten: deque[tuple[WireId, bytes]] = deque()
        self._list_request = self._adapter.open_list_request
        self.tools: list[str] | None = None
        """As its session has told them last."""
        self._stdout = b""
        self._half_line = b""

    # --- its life ---------------------------------------------------------------------------------------

    def _spawned(self) -> None:
        node = self._world.node_process
        if node is None or not node.alive:
            self.failed(NOT_RUNNING)
            return
        self.asker_line = node.asker_of(self.supervisor)
        self.asker_line.ask(self, self.spec)

    def opened(self, node: str, number: int) -> None:
        """The node's process has a session for it."""
        if self.alive:
            self.host.feed(ev.InstanceSpawned(self.id, 0, node, number))
            self._write(self._adapter.greeting_line())

    def failed(self, text: str, *, is_final: bool = False) -> None:
        """The node's process has none."""
        if self.alive:
            self.alive = False
            text = f"got no session: {text}"
            self.host.feed(ev.SpawnFailed(self.id, text, self.host.rng.random(), not is_final))

    def exited(self, text: str, *, is_final: bool = False) -> None:
        """The session has ended: its output is read first."""
        if not self.alive:
            return
        self._read()
        unwritten = tuple(wire for wire, _ in self._unwritten if wire)
        self.alive = False
        self.host.feed(ev.InstanceExited(self.id, text, unwritten, "", self.host.rng.random(), is_final))

    def die(self, how: str) -> None:
        """Nothing can kill it but the end of its session."""

    def close_stdin(self) -> None:
        """End of file."""
        self.is_stdin_closed = True
        if self.end is not None:
            self.end.readable()

    def signal(self, name: str) -> None:
        """Any signal ends the session."""
        if self.asker_line is not None:
            self.asker_line.end(self.id)

    def pipes_closed(self) -> None:
        """The node's process has closed them."""
        self._hung_up = True
        if unwritten := [wire for wire, _ in self._unwritten if wire]:
            self._broken(*unwritten)
        if self.alive and self.host.rng.random() < 0.7:
            self.host.later(self.host.rng.uniform(0.0, TURN_S), lambda: self.host.awake(self._stdout_closed))

    def _stdout_closed(self) -> None:
        if self.alive:
            self._read()
            self.host.feed(ev.StdoutClosed(self.id))

    @property
    def is_well(self) -> bool:
        """The way to the other node may be cut: nobody knows."""
        return False

    # --- what it writes ---------------------------------------------------------------------------------

    def _write(self, line: bytes, wire: WireId = WireId(0)) -> None:  # noqa: B008 - an int
        if not line or not self.alive:
            return
        self._unwritten.append((wire, line))
        if self._hung_up:
            if wire:
                self._broken(wire)
            return
        self.fill_pipe()

    def fill_pipe(self) -> None:
        """The pipe takes what it has room for."""
        while self._unwritten and len(self.pipe) < PIPE_BYTES:
            wire, line = self._unwritten.popleft()
            room = PIPE_BYTES - len(self.pipe)
            self.pipe += line[:room]
            if len(line) > room:
                self._unwritten.appendleft((wire, line[room:]))
        is_blocked = bool(self._unwritten)
        if is_blocked != self._blocked:
            self._blocked = is_blocked
            self.host.later(0, self._tell_blocked)
        if self.end is not None:
            self.end.readable()

    def _tell_blocked(self) -> None:
        if self.alive:
            self.host.feed(ev.StdinBlocked(self.id, self._blocked))

    def write(self, wire_id: WireId, call: Call) -> None:
        """A call."""
        self.unanswered[wire_id] = call
        self._world.call_leaves(self, call)
        self._write(self._adapter.call_line(wire_id, call), wire_id)

    def cancel(self, wire_id: WireId) -> None:
        """A cancel, which is answered by nothing."""
        self.unanswered.pop(wire_id, None)
        self._write(self._adapter.cancel_line(wire_id, "no longer wanted"))
        self._tell(self._adapter.take_events())

    def again(self, wire_id: WireId) -> None:
        """A call goes on."""
        self._write(self._adapter.retry_line(wire_id))

    def probe(self, number: int) -> None:
        """A ping."""
        self._write(self._adapter.probe_line(number))

    def watch(self, add: tuple[str, ...], drop: tuple[str, ...]) -> None:
        """Subscriptions."""
        super().watch(add, drop)
        self._write(self._adapter.subscriptions_line(add, drop))

    def set_level(self, level: str) -> None:
        """A log level."""
        super().set_level(level)
        self._write(self._adapter.level_line(level))

    def relist(self, *, is_calm: bool) -> None:
        """Its lists are read again."""
        self._write(self._adapter.relist_line(is_calm=is_calm))
        self._tell_list_request()

    def give_up_list(self, after_s: float) -> None:
        """Its list does not come."""
        events, answers = self._adapter.list_timed_out(after_s)
        for line in answers:
            self._write(line)
        self._tell(events)
        self._tell_list_request()

    def ask_answered(self, request: RawJson, is_error: bool, body: RawJson) -> None:
        """The answer to a question."""
        self._write(self._adapter.ask_answer_line(request, is_error=is_error, body=body))
        self._tell(self._adapter.take_events())

    def ask_progressed(self, token: RawJson, params: RawJson) -> None:
        """How far an agent is."""
        self._write(self._adapter.ask_progress_line(token, params))

    def pause_reading(self, for_s: float) -> None:
        """Its output is read at once."""

    # --- what it reads ----------------------------------------------------------------------------------

    def receive(self, data: bytes) -> None:
        """The node's process has written this."""
        self._stdout += data
        self.host.later(self.host.rng.uniform(0.0, TURN_S), lambda: self.host.awake(self._read))

    def _read(self) -> None:
        data, self._stdout = self._stdout, b""
        if not data or not self.alive:
            return
        *lines, self._half_line = (self._half_line + data).split(b"\n")
        for line in lines:
            events, answers = self._adapter.feed([line])
            for answer in answers:
                self._write(answer)
            self._tell(events or (ev.StdoutReceived(self.id),))
            self._tell_list_request()
            while self._adapter.is_reading:
                events, answers = self._adapter.read_on()
                for answer in answers:
                    self._write(answer)
                self._tell(events)

    def _tell(self, events: Sequence[ev.OwnEvent]) -> None:
        for event in events:
            if isinstance(event, (ev.ServerAnswered, ev.AnswerUnreadable)):
                call = self.unanswered.pop(event.wire, None)
                if call is not None and isinstance(event, ev.ServerAnswered) and event.state_lost:
                    self.supervisor.sharing.told_by_server(call)
            elif isinstance(event, (ev.InstanceGreeted, ev.CatalogRead)):
                self.greeted = True
                self.tools = [tool.name for tool in event.catalog.tools]
            if self.alive:
                self.host.feed(event)

    def _tell_list_request(self) -> None:
        asked = self._adapter.open_list_request
        if asked != self._list_request:
            self._list_request = asked
            if self.alive:
                self.host.feed(ev.ListRequestChanged(self.id, asked[1]))


class SimPipesEnd:
    """The node's end of the pipes of an instance: a `NearEnd`."""

    session = ""

    def __init__(self, node: "SimNode", instance: NodeInstance, events: NearEndEvents) -> None:
        self._node = node
        self._instance = instance
        self._events = events
        self.is_over = False
        self._is_due = False
        instance.end = self
        self.readable()

    def readable(self) -> None:
        """There is something to read, or room for it."""
        if not self._is_due and not self.is_over:
            self._is_due = True
            self._node.clock.later(self._node.rng.uniform(0.0, TURN_S), self._read)

    def _read(self) -> None:
        self._is_due = False
        if self.is_over or not self._node.alive:
            return
        room = self._events.room_bytes()
        if room <= 0:
            return
        pipe = self._instance.pipe
        if pipe:
            data = bytes(pipe[:room])
            del pipe[:room]
            self._events.send(data)
            self._instance.fill_pipe()
            self.readable()
        elif self._instance.is_stdin_closed or not self._instance.supervisor.alive:
            self._finish()
            self._events.ended("")

    def pass_bytes(self, data: bytes) -> None:
        """See `NearEnd`."""
        if not self.is_over:
            self._instance.receive(data)
            self._events.passed(len(data))

    def read_on(self) -> None:
        """See `NearEnd`."""
        self.readable()

    def end(self, text: str) -> None:
        """See `NearEnd`."""
        if not self.is_over:
            self._finish()

    def _finish(self) -> None:
        self.is_over = True
        self._instance.pipes_closed()
