"""What agents' lines become: the broker's side of the door.

Owns the way from a line, or a message of the HTTP door, to events of the core; who is an operator, and which
`carpool/…` requests are open. Decides nothing about calls.

Knows nothing of: sockets, the supervisor, how what agents are told is worded (`outbound`).
"""

from collections.abc import Awaitable, Callable

import msgspec
import trio

from carpool_broker.admin.methods import ControlError
from carpool_broker.config.blocking_io import StartSoon
from carpool_broker.config.configuration import Configuration
from carpool_broker.config.workspace_moves import Looks, Moving
from carpool_broker.core.broker import BrokerCore
from carpool_broker.core.model import effects, events
from carpool_broker.era import handshake, repeated_lines
from carpool_broker.transport.delivery_log import Passage
from carpool_broker.transport.multiplexed import placed
from carpool_broker.transport.outbound import Write
from carpool_broker.transport.resume import Returning
from carpool_broker.transport.server_interface import Host
from carpool_broker.transport.socket_io import LINE_CAP_BYTES
from carpool_broker.transport.streams import Stream
from carpool_protocol.carrier.attach import Attach, Moved
from carpool_protocol.carrier.streams import Open, Refused
from carpool_protocol.faults.faults import fault, for_method
from carpool_protocol.ids import EMPTY_OBJECT, RawJson, SessionId
from carpool_protocol.runtime.pump import Pump
from carpool_protocol.wire.jsonrpc import error_body_line, result_line
from carpool_protocol.wire.lines import OverlongLine

USE_WORKSPACE = "carpool/use_workspace"
"""`{"workspace": NAME | DIRECTORY}`, answered with `{"name", "root"}` once the session is there. An operator
may add `"session"`.
"""
LOOKS = frozenset({"carpool/tools", "carpool/resolve", "carpool/servers", "carpool/resources"})
"""What any agent on the socket may ask of its own view: it can list and call all of that anyway."""
MAX_LOOKS = 64
"""So many of them may a session have open."""


class _UseWorkspace(msgspec.Struct):
    workspace: str
    session: str = ""


_use_workspace = msgspec.json.Decoder(_UseWorkspace)


class Hosting(Host):
    """All sessions of one broker process, as their door sees them."""

    def __init__(
        self,
        core: BrokerCore,
        configuration: Configuration,
        pump: Pump[events.AnyEvent, effects.AnyEffect],
        *,
        moving: Moving,
        looks: Looks,
        write: Write,
        answer: Callable[[SessionId, str, RawJson], Awaitable[RawJson]],
        settle: Callable[[], None],
        start_soon: StartSoon,
        digest_key: bytes,
    ) -> None:
        """`answer`: what an operator is told. `settle`: the burst is over."""
        self._core = core
        self._configuration = configuration
        self._pump = pump
        self._moving = moving
        self._looks = looks
        self._write = write
        self._answer = answer
        self._settle = settle
        self._start_soon = start_soon
        self._digest_key = digest_key
        self._asides: dict[SessionId, set[trio.CancelScope]] = {}
        """`carpool/…` requests that are open."""

    def look(self, attach: Attach, then: Callable[[], None]) -> None:
        """See `multiplexed.StreamHost`."""
        self._looks.look(self._configuration.wish_at_first(attach), lambda _: then())

    def wanted_variables(self, attach: Attach) -> list[str]:
        """See `server_interface.Host`."""
        return self._configuration.wanted_variables(attach)

    def objection(self, attach: Attach) -> Refused | None:
        """See `multiplexed.StreamHost`."""
        return self._configuration.objection(attach)

    def welcome(
        self, session: SessionId, attach: Attach, environment: dict[str, str], stream: Open | None = None
    ) -> None:
        """See `multiplexed.StreamHost`."""
        source, followed = self._configuration.enter(session, attach, environment)
        self._pump.feed_all(followed)
        self._pump.feed(
            events.AgentCame(
                session=session,
                source=source,
                agent=attach.agent,
                pid=attach.pid,
                carrier=attach.carrier if stream is None else "http",
                control=attach.control,
                keeps=stream is None and attach.keeps,
                wanders=(guest := self._configuration.guest(session)) is not None and guest.wanders,
                fleeting=stream is None and not attach.keeps,
                shared=stream is not None and stream.kind == "shared",
                anonymous=stream is not None and stream.kind == "shared" and not stream.principal,
                max_open_calls=0 if stream is None else max(stream.max_open_calls, 0),
                profile=attach.profile,
                principal="" if stream is None else stream.principal,
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
        """See `server_interface.Host`. `within`: the lines came in one, as a batch."""
        burst: list[events.AnyEvent] = []
        for line in lines:
            meaning = self._read(session, line)
            if passage is not None:
                if within:
                    passage.came_within(meaning)
                else:
                    passage.came(meaning, line)
            if isinstance(meaning, events.Event):
                burst.append(meaning)
            elif meaning is not None:
                self._pump.feed_all(burst)  # whatever comes aside comes in its turn
                burst = []
                self._aside(session, meaning, passage)
        self._pump.feed_all(burst)

    def _read(
        self, session: SessionId, line: bytes | OverlongLine, *, shared: bool = False
    ) -> handshake.Meaning:
        if not isinstance(line, bytes):
            return handshake.read_overlong(session, line, LINE_CAP_BYTES)
        if not line:  # only where they are counted
            return None
        meaning = handshake.read(session, line, shared=shared, key=self._digest_key)
        return handshake.bounded(meaning) if len(line) > handshake.MAX_KEPT_BYTES else meaning

    def _read_made(
        self, session: SessionId, line: bytes | OverlongLine, *, shared: bool = False
    ) -> handshake.Meaning:
        """One of the lines that made the session what it is."""
        granted = repeated_lines.granted(session, line) if isinstance(line, bytes) else None
        return granted or repeated_lines.made(self._read(session, line, shared=shared))

    def may_return(self) -> bool:
        """See `server_interface.Host`."""
        return self._core.recovery.may_return

    def take_back(
        self,
        session: SessionId,
        lines: list[bytes | OverlongLine],
        passage: Passage,
        returning: Returning,
    ) -> list[bytes | OverlongLine]:
        """See `server_interface.Host`."""
        for place, line in enumerate(lines):
            if returning.is_over:
                return lines[place:]
            replays = returning.replays(line)
            meaning = self._read_made(session, line) if replays else self._read(session, line)
            passage.came(meaning, line)
            if not replays:
                returning.take(meaning)
            elif isinstance(meaning, events.Event):
                passage.replayed(meaning)
                self._pump.feed(meaning)
        return []

    def resumed(self, session: SessionId, returning: Returning, passage: Passage | None = None) -> None:
        """See `server_interface.Host`."""
        resumed, rest = returning.end()
        for greeting in returning.greetings:
            self._pump.feed(greeting)
        self._pump.feed(resumed)
        for meaning in rest:
            if isinstance(meaning, events.Event):
                self._pump.feed(meaning)
            elif meaning is not None:
                self._aside(session, meaning, passage)

    def take_message(
        self, stream: Stream, message: bytes, exchange: int, burst: list[events.AnyEvent]
    ) -> None:
        """See `multiplexed.StreamHost`."""
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

    def _meaning(
        self, stream: Stream, message: bytes, exchange: int, *, made: bool = False
    ) -> handshake.Meaning:
        read = self._read_made if made else self._read
        return placed(stream, read(stream.id, message, shared=stream.exchanges.shared), exchange)

    def take_back_message(self, stream: Stream, message: bytes, exchange: int, returning: Returning) -> None:
        """See `multiplexed.StreamHost`."""
        replays = returning.replays(message)
        meaning = self._meaning(stream, message, exchange, made=replays)
        if not replays:
            if isinstance(meaning, handshake.Unservable):
                stream.say(meaning.line, exchange)
            else:
                returning.take(meaning)
        elif isinstance(meaning, events.Event):
            stream.replayed(meaning)
            self._pump.feed(meaning)

    def version_of(self, session: SessionId) -> str:
        """See `multiplexed.StreamHost`."""
        return self._core.sessions[session].version

    def feed(self, burst: list[events.AnyEvent]) -> None:
        """See `multiplexed.StreamHost`."""
        self._pump.feed_all(burst)
        burst.clear()

    def give_up(self, session: SessionId, request: RawJson) -> None:
        """See `multiplexed.StreamHost`."""
        self._pump.feed(events.AgentCancelled(session, request, "the client went away"))

    def _takes(self, session: SessionId, batch: handshake.Batch) -> bool:
        return bool(batch.lines) and self._core.sessions[session].version == handshake.BATCHING

    def _aside(
        self,
        session: SessionId,
        meaning: handshake.ControlAsked | handshake.Unservable | handshake.Batch,
        passage: Passage | None = None,
    ) -> None:
        if isinstance(meaning, handshake.Unservable):
            self._write(session, meaning.line)
        elif isinstance(meaning, handshake.Batch):
            if self._takes(session, meaning):
                self.take(session, [*_unbatched(meaning)], passage, within=True)
            else:
                self._write(session, meaning.refusal)
        elif meaning.method == USE_WORKSPACE:
            self._use_workspace(session, meaning)
        elif self._is_operator(session) or self._may_look(session, meaning.method):
            open_ = self._asides.setdefault(session, set())
            if len(open_) >= MAX_LOOKS and not self._is_operator(session):
                self._pump.feed(events.AgentErred(session, meaning.id, "too_many_calls", ""))
                return
            open_.add(scope := trio.CancelScope())
            self._start_soon(self._answer_control, session, meaning, scope)
        else:
            self._pump.feed(events.AgentErred(session, meaning.id, "unknown_method", ""))

    def _is_operator(self, session: SessionId) -> bool:
        mine = self._core.sessions.get(session)
        return mine is not None and mine.control

    def _may_look(self, session: SessionId, method: str) -> bool:
        mine = self._core.sessions.get(session)
        return mine is not None and mine.carrier != "http" and method in LOOKS

    def _use_workspace(self, session: SessionId, asked: handshake.ControlAsked) -> None:
        """Any agent's request about its own session, and an operator's about each."""
        try:
            wanted = _use_workspace.decode(asked.params or EMPTY_OBJECT)
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
            self._refuse(session, asked.id, f"{USE_WORKSPACE} needs a workspace: a name, or a directory.")
            return
        whose = SessionId(wanted.session) if wanted.session else session
        if whose != session and not self._is_operator(session):
            why = "only the command line moves other sessions"
        elif (asking := self._core.sessions.get(session)) is not None and asking.shared:
            why = "requests without a session name their workspace in the URL"
        else:
            why = self._moving.obstacle(whose, wanted.workspace)
        if why:
            self._refuse(session, asked.id, f"{why[0].upper()}{why[1:]}.")
            return

        def moved(why: str) -> None:
            if why:
                self._refuse(session, asked.id, f"{why[0].upper()}{why[1:]}.")
                return
            place = msgspec.json.encode(self._configuration.whereabouts(whose))
            self._write(session, result_line(asked.id, RawJson(place)), asked.id, answers=True)

        self._moving.go(whose, Moved(wanted.workspace), moved)

    def _refuse(self, session: SessionId, request: RawJson, detail: str) -> None:
        self._pump.feed(events.AgentErred(session, request, "bad_params", detail))

    def awaits_environment(self, session: SessionId, names: list[str]) -> None:
        """See `server_interface.Host`."""
        self._moving.awaits(session, names)

    def environment_came(self, session: SessionId, question: int, environment: dict[str, str]) -> None:
        """See `server_interface.Host`."""
        self._moving.heard(session, question, environment)

    async def _answer_control(
        self, session: SessionId, asked: handshake.ControlAsked, scope: trio.CancelScope
    ) -> None:
        with scope:
            if scope.cancel_called:
                return  # it left before we came to its request
            try:
                line = result_line(asked.id, await self._answer(session, asked.method, asked.params))
            except ControlError as error:
                _, body = for_method(fault(error.slug, server=error.server, detail=error.detail), "")
                line = error_body_line(asked.id, body)
            self._write(session, line, asked.id, answers=True)
            self._settle()
        self._asides.get(session, set()).discard(scope)

    def unread(self, session: SessionId, unread_bytes: int) -> None:
        """See `server_interface.Host`."""
        self._pump.feed(events.AgentUnread(session, unread_bytes))

    def farewell(self, session: SessionId) -> None:
        """See `server_interface.Host`."""
        for scope in self._asides.pop(session, ()):
            scope.cancel()
        self._moving.forget(session)
        self._pump.feed(events.AgentLeft(session))
        self._pump.feed_all(self._configuration.leave(session))


def _unbatched(batch: handshake.Batch) -> list[bytes]:
    # A batch within a batch is none of JSON-RPC's: it is refused as a line of its own.
    return [line for line in batch.lines if not line.startswith(b"[")]
