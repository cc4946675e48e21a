"""The broker as a process: performs what the core decides.

Owns the wiring: door, link, configuration, control, timers, lifeline. Decides nothing about calls,
names or rights.

Knows nothing of: pids and pipes of servers, how what agents are told is worded (`saying`).
"""

import logging
import os
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path

import trio

from carpool_broker.agent_io import LINE_CAP_BYTES
from carpool_broker.carrier import Stream, placed
from carpool_broker.configuration import DAEMON, Configuration
from carpool_broker.control import Control, ControlError
from carpool_broker.core import effects, events
from carpool_broker.core.broker import BrokerCore
from carpool_broker.core.passage import Passage
from carpool_broker.core.registry import Registry
from carpool_broker.door import Door
from carpool_broker.era import handshake
from carpool_broker.heritage import Heritage
from carpool_broker.returning import Returning
from carpool_broker.saying import Saying
from carpool_protocol import paths
from carpool_protocol.attach import Attach
from carpool_protocol.faults import fault, for_method
from carpool_protocol.ids import Epoch, RawJson, SessionId
from carpool_protocol.jsonrpc import error_body_line, result_line
from carpool_protocol.lines import OverlongLine
from carpool_protocol.messages import (
    LINK_VERSION,
    AnyMessage,
    Explained,
    Hello,
    Operated,
    Recorded,
    Surveyed,
    Written,
)
from carpool_protocol.peer import BROKER, LINK_WINDOW_BYTES, LinkEvent, PeerDown, PeerRefused, PeerUp
from carpool_protocol.runtime.lifeline import Lifeline
from carpool_protocol.runtime.link import Link
from carpool_protocol.runtime.pump import PIECE, Pump
from carpool_protocol.runtime.ready import ReadySet
from carpool_protocol.runtime.steady_clock import SteadyClock
from carpool_protocol.runtime.zmq_link import ZmqLink
from carpool_protocol.stop_words import AGAIN, AGAIN_NOW, STOP
from carpool_protocol.streams import Open, Refused

log = logging.getLogger("carpool.broker")

CONFIG_LOOK_S = 1.0
WRITTEN_CALLS = 64
"""So many written answers are reported at once; fewer of them within `CONFIG_LOOK_S`."""
_STARTED_AGAIN = "carpool is started again"
ENDS = {STOP: "carpool was stopped", AGAIN: _STARTED_AGAIN, AGAIN_NOW: _STARTED_AGAIN}
"""What carriers that keep are told, by the launcher's word."""
LAST_WORDS_S = 2.0
"""So long an end that carriers come back from waits for them to take what was said."""


class BrokerShell:
    """One broker process."""

    def __init__(
        self,
        runtime_dir: str,
        configuration: Configuration,
        heritage: Heritage,
        lifeline: Lifeline | None,
    ) -> None:
        self._release = version("carpool")
        self._digest_key = heritage.key("digests")
        self._configuration = configuration
        self._lifeline = lifeline
        config = configuration.config
        epoch = Epoch(f"{os.getpid():x}-{os.urandom(6).hex()}")
        self._ready = ReadySet()
        self._link: Link = ZmqLink(
            Hello(LINK_VERSION, epoch, BROKER, os.getpid(), self._release), paths.link_endpoint(runtime_dir)
        )
        self.core = BrokerCore(
            Registry(mark=epoch[-6:]),
            configuration.bounds(),
            config.list_wait_s,
            life=heritage.life,
            secret=heritage.key("core"),
        )
        dump_to = Path(paths.log_dir(os.environ, runtime_dir)) / "journal-broker.jsonl"
        self._clock = SteadyClock()
        self._pump: Pump[events.AnyEvent, effects.AnyEffect] = Pump(
            self.core, self._perform, clock=self._clock, dump_to=dump_to
        )
        self._door = Door(
            paths.agents_socket(runtime_dir),
            self._ready,
            self,
            heritage,
            slow_reader_s=config.session.slow_reader_s,
            receive_budget_bytes=config.receive_budget_bytes,
        )
        self._control = Control(
            self.core,
            configuration,
            self._send_now,
            release=self._release,
            supervisors=self._supervisors,
            control_sessions=lambda: set(self._operators),
            reload=self._reload,
        )
        self._supervisor: Hello | None = None
        self._return_by: float | None = None
        """Until then sessions of earlier brokers may come back; None: the record has not come yet."""
        self._unflushed = 0
        """Messages sent since the link was flushed."""
        self._operators: dict[SessionId, set[trio.CancelScope]] = {}
        """Sessions of operators, with the requests they have open."""
        self._nursery: trio.Nursery | None = None
        self._stopped = trio.Event()
        saying = Saying(self.core, self._release, self._door.write, self._pump.feed)
        self._perform_one: dict[type, Callable[..., None]] = {
            **saying.ways,
            effects.UseRoots: lambda e: self._pump.feed_all(
                self._configuration.use_roots(e.session, e.roots)
            ),
            effects.TellServed: lambda e: self._door.served_by(e.session, e.epoch),
            effects.End: lambda _: self._stopped.set(),
            effects.Note: lambda e: log.log(logging.getLevelNamesMapping()[e.level.upper()], "%s", e.text),
        }

    async def run(self) -> None:
        """Serve until stopped."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            self._pump.feed(self._configuration.resolve(DAEMON))
            nursery.start_soon(self._ready.run, self._settle)
            nursery.start_soon(self._pump.run_timers, self._settle)
            nursery.start_soon(self._pump.run_dumps)
            nursery.start_soon(self._clock.watch, self._jumped)
            nursery.start_soon(self._door.watch)
            nursery.start_soon(self._watch_configuration)
            await nursery.start(self._link.run, self._deliver, self._settle)
            self._door.open(self._settle)
            if self._lifeline is not None:
                self._lifeline.ready()
                nursery.start_soon(self._lifeline.run, self.stop, self._supervisor_gone)
            servers = len(self._configuration.config.servers)
            log.info("broker serves (pid %d, %d servers configured)", os.getpid(), servers)
            await self._stopped.wait()
            # Whoever loses us because the launcher has died is not told to stay away.
            word = self._stop_word()
            again = word in {AGAIN, AGAIN_NOW}
            self._door.take_leave(ENDS.get(word, ""), again=again)
            if again:
                with trio.move_on_after(LAST_WORDS_S):
                    await self._door.heard_out()
            self._door.close()
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
        self._door.flush()
        if len(self._door.written) >= WRITTEN_CALLS:
            self._say_written()
        self._pump.settle()

    def _say_written(self) -> None:
        """The record may forget the answers that are with their carriers."""
        written = self._door.written
        if written:
            self._send_now(Written(written.copy()))
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
                if self._return_by is None and isinstance(message, Recorded) and message.last:
                    self._return_by = self._clock() + self.core.ledger.bounds.return_s
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
                case Surveyed() | Operated() | Explained():
                    self._control.heard(message)
                case _:
                    log.error("the supervisor said what only a broker says: %s", type(message).__name__)
        if burst:
            self._pump.feed_all(burst)

    def _supervisor_came(self, hello: Hello) -> None:
        if self._supervisor is not None and self._supervisor.name != hello.name:
            log.error("a second supervisor, %s, is not served yet", hello.name)
            return
        log.info("supervisor %s came (pid %d)", hello.name, hello.pid)
        self._supervisor = hello
        self._door.serve_by(hello.epoch)
        self._pump.feed(events.SupervisorCame(LINK_WINDOW_BYTES, hello.epoch))

    def _supervisor_went(self, why: str) -> None:
        log.warning("supervisor went: %s", why)
        self._supervisor = None
        self._door.serve_by(Epoch(""))
        self._door.written.clear()  # the record is gone as well
        self._control.supervisor_went()
        self._pump.feed(events.SupervisorWent())

    def _supervisor_gone(self, name: str) -> None:
        """The launcher has seen it die: sooner and surer than any silence."""
        self._link.forget(name, "the launcher says that it died")

    # --- sessions (door.Host) --------------------------------------------------------------------------

    def wanted_variables(self, attach: Attach) -> list[str]:
        """See `door.Host`."""
        return self._configuration.wanted_variables(attach)

    def objection(self, attach: Attach) -> Refused | None:
        """See `carrier.StreamHost`."""
        return self._configuration.objection(attach)

    def welcome(
        self, session: SessionId, attach: Attach, environment: dict[str, str], stream: Open | None = None
    ) -> None:
        """See `carrier.StreamHost`."""
        source, followed = self._configuration.enter(session, attach, environment)
        self._pump.feed_all(followed)
        if attach.control:
            self._operators[session] = set()
        self._pump.feed(
            events.AgentCame(
                session=session,
                source=source,
                agent=attach.agent,
                pid=attach.pid,
                carrier=attach.carrier if stream is None else "http",
                control=attach.control,
                keeps=stream is None and attach.keeps,
                shared=stream is not None and stream.kind == "shared",
                anonymous=stream is not None and stream.kind == "shared" and not stream.principal,
                max_open_calls=0 if stream is None else max(stream.max_open_calls, 0),
            )
        )

    def take(
        self,
        session: SessionId,
        lines: list[bytes | OverlongLine],
        passage: Passage | None = None,
        *,
        within: bool = False,
    ) -> None:
        """See `door.Host`. `within`: the lines came in one, as a batch."""
        burst: list[events.AnyEvent] = []
        for line in lines:
            if isinstance(line, bytes):
                if not line:  # only where they are counted
                    meaning = None
                else:
                    meaning = handshake.read(session, line, key=self._digest_key)
                    if len(line) > handshake.MAX_KEPT_BYTES:
                        meaning = handshake.bounded(meaning)
            else:
                meaning = handshake.read_overlong(session, line, LINE_CAP_BYTES)
            if passage is not None:
                if within:
                    passage.came_within(meaning)
                else:
                    passage.came(meaning, len(line) if isinstance(line, bytes) else 0)
            if isinstance(meaning, events.Event):
                burst.append(meaning)
            elif meaning is not None:
                self._pump.feed_all(burst)  # whatever comes aside comes in its turn
                burst = []
                self._aside(session, meaning, passage)
        self._pump.feed_all(burst)

    def may_return(self) -> bool:
        """See `door.Host`."""
        return self._return_by is None or self._clock() < self._return_by

    def take_back(
        self,
        session: SessionId,
        lines: list[bytes | OverlongLine],
        passage: Passage,
        returning: Returning,
    ) -> list[bytes | OverlongLine]:
        """See `door.Host`."""
        for place, line in enumerate(lines):
            if returning.is_over:
                return lines[place:]
            if isinstance(line, bytes):
                meaning = handshake.read(session, line, key=self._digest_key) if line else None
                if len(line) > handshake.MAX_KEPT_BYTES:
                    meaning = handshake.bounded(meaning)
            else:
                meaning = handshake.read_overlong(session, line, LINE_CAP_BYTES)
            passage.came(meaning, len(line) if isinstance(line, bytes) else 0)
            if not returning.replays():
                returning.take(meaning)
            elif isinstance(meaning, events.Event):
                passage.replayed(meaning)
                self._pump.feed(meaning)
        return []

    def resumed(self, session: SessionId, returning: Returning, passage: Passage | None = None) -> None:
        """See `door.Host`."""
        resumed, rest = returning.end()
        self._pump.feed(resumed)
        for meaning in rest:
            if isinstance(meaning, events.Event):
                self._pump.feed(meaning)
            elif meaning is not None:
                self._aside(session, meaning, passage)

    def take_message(
        self, stream: Stream, message: bytes, exchange: int, burst: list[events.AnyEvent]
    ) -> None:
        """See `carrier.StreamHost`."""
        meaning = self._meaning(stream, message, exchange)
        if isinstance(meaning, events.Event):
            burst.append(meaning)
            if isinstance(meaning, events.AgentCancelled):
                self.feed(burst)
                stream.cancelled(meaning.id)
            return
        if meaning is None:
            return
        self.feed(burst)  # whatever comes aside comes in its turn
        if isinstance(meaning, handshake.Unservable):
            stream.say(meaning.line, exchange)
        elif isinstance(meaning, handshake.Batch):
            if self._takes(stream.id, meaning):
                for line in _unbatched(meaning):
                    self.take_message(stream, line, exchange, burst)
            else:
                stream.say(meaning.refusal, exchange)
        else:
            self._aside(stream.id, meaning)

    def _meaning(self, stream: Stream, message: bytes, exchange: int) -> handshake.Meaning:
        shared = stream.exchanges.shared
        said = handshake.read(stream.id, message, shared=shared, key=self._digest_key)
        if len(message) > handshake.MAX_KEPT_BYTES:
            said = handshake.bounded(said)
        return placed(stream, said, exchange)

    def take_back_message(self, stream: Stream, message: bytes, exchange: int, returning: Returning) -> None:
        """See `carrier.StreamHost`."""
        meaning = self._meaning(stream, message, exchange)
        if not returning.replays():
            if isinstance(meaning, handshake.Unservable):
                stream.say(meaning.line, exchange)
            else:
                returning.take(meaning)
        elif isinstance(meaning, events.Event):
            stream.replayed(meaning)
            self._pump.feed(meaning)

    def version_of(self, session: SessionId) -> str:
        """See `carrier.StreamHost`."""
        return self.core.sessions[session].version

    def feed(self, burst: list[events.AnyEvent]) -> None:
        """See `carrier.StreamHost`."""
        self._pump.feed_all(burst)
        burst.clear()

    def give_up(self, session: SessionId, request: RawJson) -> None:
        """See `carrier.StreamHost`."""
        self._pump.feed(events.AgentCancelled(session, request, "the client went away"))

    def _takes(self, session: SessionId, batch: handshake.Batch) -> bool:
        return bool(batch.lines) and self.core.sessions[session].version == handshake.BATCHING

    def _aside(
        self,
        session: SessionId,
        meaning: handshake.ControlAsked | handshake.Unservable | handshake.Batch,
        passage: Passage | None = None,
    ) -> None:
        if isinstance(meaning, handshake.Unservable):
            self._door.write(session, meaning.line)
        elif isinstance(meaning, handshake.Batch):
            if self._takes(session, meaning):
                self.take(session, [*_unbatched(meaning)], passage, within=True)
            else:
                self._door.write(session, meaning.refusal)
        elif session in self._operators:
            assert self._nursery is not None
            self._nursery.start_soon(self._answer_control, session, meaning)
        else:
            self._pump.feed(events.AgentErred(session, meaning.id, "unknown_method", ""))

    async def _answer_control(self, session: SessionId, asked: handshake.ControlAsked) -> None:
        scopes = self._operators.get(session)
        if scopes is None:
            return  # it left before we came to its request
        with trio.CancelScope() as scope:
            scopes.add(scope)
            try:
                line = result_line(asked.id, await self._control.answer(session, asked.method, asked.params))
            except ControlError as error:
                _, body = for_method(fault(error.slug, detail=error.detail), "")
                line = error_body_line(asked.id, body)
            self._door.write(session, line, asked.id, answers=True)
            self._settle()
        scopes.discard(scope)

    def unread(self, session: SessionId, unread_bytes: int) -> None:
        """See `door.Host`."""
        self._pump.feed(events.AgentUnread(session, unread_bytes))

    def farewell(self, session: SessionId) -> None:
        """See `door.Host`."""
        for scope in self._operators.pop(session, ()):
            scope.cancel()
        self._pump.feed(events.AgentLeft(session))
        self._pump.feed_all(self._configuration.leave(session))

    # --- configuration ---------------------------------------------------------------------------------

    async def _watch_configuration(self) -> None:
        while True:
            await trio.sleep(CONFIG_LOOK_S)
            self._say_written()
            if self._lifeline is not None and not self.may_return():
                self._lifeline.alone()
            if self._configuration.changed():
                self._reload()
                self._settle()

    def _reload(self) -> list[str]:
        """Read the configuration again. The problems, if it is broken; then the last good one stays."""
        readings = self._configuration.reload()
        if readings is None:
            problem = self._configuration.problem
            log.error("the configuration is broken, the last good one stays:\n%s", problem)
            return problem.splitlines()
        log.info("configuration read again")
        config = self._configuration.config
        self._door.slow_reader_s = config.session.slow_reader_s
        self._door.receive_budget_bytes = config.receive_budget_bytes
        self._pump.feed(events.LimitsRead(self._configuration.bounds(), config.list_wait_s))
        for reading in readings:
            self._pump.feed(reading)
        return []

    def _jumped(self) -> None:
        log.warning("the clock jumped: this process stood still, or the machine slept")


def _unbatched(batch: handshake.Batch) -> list[bytes]:
    # A batch within a batch is none of JSON-RPC's: it is refused as a line of its own.
    return [line for line in batch.lines if not line.startswith(b"[")]
