"""Turns lines of agents into events of the core.

Owns the way from a line, or a message of the HTTP door, to events; the check for operators; and open
`carpool/…` requests. Decides nothing about calls.

Knows nothing of: sockets, the supervisor, the text of lines to agents (`outbound`).
"""

from collections.abc import Awaitable, Callable

import msgspec
import trio

from carpool_broker.admin.methods import ControlError
from carpool_broker.config.blocking_io import StartSoon
from carpool_broker.config.configuration import Configuration
from carpool_broker.config.workspace_moves import WorkspaceMoves, WorkspaceScanner
from carpool_broker.core.broker import BrokerCore
from carpool_broker.core.model import effects, events
from carpool_broker.era import handshake, repeated_lines
from carpool_broker.transport.control_turns import ControlTurns
from carpool_broker.transport.delivery_log import DeliveryLog
from carpool_broker.transport.multiplexed import with_exchange
from carpool_broker.transport.outbound import WriteAgentLine
from carpool_broker.transport.resume import SessionResume
from carpool_broker.transport.server_interface import AgentServerHost
from carpool_broker.transport.socket_io import LINE_CAP_BYTES
from carpool_broker.transport.streams import SessionStream
from carpool_protocol.carrier.attach_line import Attach, WorkspaceChanged
from carpool_protocol.carrier.streams import OpenStream, StreamRefused
from carpool_protocol.faults.fault_answers import fault, fault_answer
from carpool_protocol.ids import EMPTY_OBJECT, RawJson, SessionId
from carpool_protocol.runtime.pump import CorePump
from carpool_protocol.wire.jsonrpc import error_body_line, result_line
from carpool_protocol.wire.lines import OverlongLine
from carpool_protocol.wire.params import capitalized_sentence

USE_WORKSPACE = "carpool/use_workspace"
"""Params `{"workspace": NAME | DIRECTORY}`, answered with `{"name", "root"}` once the session has moved.

An operator may add `"session"`.
"""
SESSION_QUERIES = frozenset({"carpool/tools", "carpool/resolve", "carpool/servers", "carpool/resources"})
"""Queries about its own view that any agent on the socket may send: it can list and call all of that
anyway.
"""
MAX_SESSION_QUERIES = 64
"""Maximum number of open queries of one session."""
MAX_OPERATOR_REQUESTS = 256
"""Maximum number of open requests of one operator's session: a verb has one or two open, and the HTTP door's
session of an operator at most `shared_questions.MAX_QUESTIONS`.
"""


class _UseWorkspace(msgspec.Struct):
    workspace: str
    session: str = ""


_use_workspace = msgspec.json.Decoder(_UseWorkspace)


class AgentLines(AgentServerHost):
    """The host of the agent server: handles the lines of all sessions of one broker."""

    def __init__(
        self,
        core: BrokerCore,
        configuration: Configuration,
        pump: CorePump[events.AnyEvent, effects.AnyEffect],
        *,
        moving: WorkspaceMoves,
        scanner: WorkspaceScanner,
        write: WriteAgentLine,
        answer: Callable[[SessionId, str, RawJson], Awaitable[RawJson]],
        settle: Callable[[], None],
        start_soon: StartSoon,
        digest_key: bytes,
        is_answering: Callable[[SessionId], bool],
        on_unread: Callable[[], None],
    ) -> None:
        """`answer`: returns the answer to an operator's request. `settle`: ends a burst. `is_answering`: the
        shell still has an answer for this session to make. `on_unread`: the unread output of a session has
        changed.
        """
        self._core = core
        self._configuration = configuration
        self._pump = pump
        self._moving = moving
        self._scanner = scanner
        self._write = write
        self._answer = answer
        self._settle = settle
        self._start_soon = start_soon
        self._digest_key = digest_key
        self._is_answering = is_answering
        self._on_unread = on_unread
        self._open_queries: dict[SessionId, set[trio.CancelScope]] = {}
        """Open `carpool/…` requests."""
        self._turns = ControlTurns()

    def scan_workspace(self, attach: Attach, then: Callable[[], None]) -> None:
        """As `multiplexed.StreamHost.scan_workspace`."""
        self._scanner.scan(self._configuration.initial_request(attach), lambda _: then())

    def wanted_variables(self, attach: Attach) -> list[str]:
        """As `server_interface.AgentServerHost.wanted_variables`."""
        return self._configuration.wanted_variables(attach)

    def attach_objection(self, attach: Attach) -> StreamRefused | None:
        """As `multiplexed.StreamHost.attach_objection`."""
        return self._configuration.attach_objection(attach)

    def attach_note(self, attach: Attach) -> str:
        """As `server_interface.AgentServerHost.attach_note`."""
        return self._configuration.attach_note(attach)

    def session_opened(
        self,
        session: SessionId,
        attach: Attach,
        environment: dict[str, str],
        stream: OpenStream | None = None,
    ) -> None:
        """As `multiplexed.StreamHost.session_opened`."""
        source, followed = self._configuration.session_opened(session, attach, environment)
        self._pump.feed_all(followed)
        self._pump.feed(
            events.SessionOpened(
                session=session,
                source=source,
                agent=attach.agent,
                pid=attach.pid,
                carrier=attach.carrier if stream is None else "http",
                control=attach.control,
                keeps=stream is None and attach.keeps,
                wanders=(context := self._configuration.session_context(session)) is not None
                and context.follows_roots,
                fleeting=stream is None and not attach.keeps,
                shared=stream is not None and stream.kind == "shared",
                anonymous=stream is not None and stream.kind == "shared" and not stream.principal,
                max_open_calls=0 if stream is None else max(stream.max_open_calls, 0),
                node=attach.node,
                profile=attach.profile,
                other_config=attach.config if (note := self._configuration.attach_note(attach)) else "",
                note=note,
                principal="" if stream is None else stream.principal,
            )
        )

    def lines_received(
        self,
        session: SessionId,
        lines: list[bytes | OverlongLine],
        delivery_log: DeliveryLog | None = None,
        *,
        within: bool = False,
    ) -> None:
        """As `server_interface.AgentServerHost.lines_received`. `within`: the lines are the parts of a
        batch.
        """
        burst: list[events.AnyEvent] = []
        for line in lines:
            meaning = self._read_line(session, line)
            if delivery_log is not None:
                if within:
                    delivery_log.batch_part_received(meaning)
                else:
                    delivery_log.line_received(meaning, line)
            if isinstance(meaning, events.BrokerEvent):
                burst.append(meaning)
            elif meaning is not None:
                self._pump.feed_all(burst)  # feed events in order before the other line
                burst = []
                self._handle_aside(session, meaning, delivery_log)
        self._pump.feed_all(burst)

    def _read_line(
        self, session: SessionId, line: bytes | OverlongLine, *, shared: bool = False
    ) -> handshake.LineMeaning:
        if not isinstance(line, bytes):
            return handshake.read_overlong(session, line, LINE_CAP_BYTES)
        if not line:  # only for carriers that count lines
            return None
        meaning = handshake.read_line(session, line, shared=shared, key=self._digest_key)
        return handshake.bound_size(meaning) if len(line) > handshake.LONG_LINE_BYTES else meaning

    def _read_resumed_line(
        self, session: SessionId, line: bytes | OverlongLine, *, shared: bool = False
    ) -> handshake.LineMeaning:
        """The meaning of a replayed line."""
        granted = repeated_lines.read_acknowledgement(session, line) if isinstance(line, bytes) else None
        return granted or repeated_lines.as_resumed(self._read_line(session, line, shared=shared))

    def may_resume(self) -> bool:
        """As `server_interface.AgentServerHost.may_resume`."""
        return self._core.recovery.may_return

    def resume_lines(
        self,
        session: SessionId,
        lines: list[bytes | OverlongLine],
        delivery_log: DeliveryLog,
        resume: SessionResume,
    ) -> list[bytes | OverlongLine]:
        """As `server_interface.AgentServerHost.resume_lines`."""
        for place, line in enumerate(lines):
            if resume.is_complete:
                return lines[place:]
            replays = resume.is_replayed(line)
            meaning = self._read_resumed_line(session, line) if replays else self._read_line(session, line)
            delivery_log.line_received(meaning, line)
            if not replays:
                resume.add(meaning)
            elif isinstance(meaning, events.BrokerEvent):
                delivery_log.line_replayed(meaning)
                self._pump.feed(meaning)
        return []

    def session_resumed(
        self, session: SessionId, resume: SessionResume, delivery_log: DeliveryLog | None = None
    ) -> None:
        """As `server_interface.AgentServerHost.session_resumed`."""
        resumed, rest = resume.finish()
        for greeting in resume.greetings:
            self._pump.feed(greeting)
        self._pump.feed(resumed)
        for meaning in rest:
            if isinstance(meaning, events.BrokerEvent):
                self._pump.feed(meaning)
            elif meaning is not None:
                self._handle_aside(session, meaning, delivery_log)

    def message_received(
        self, stream: SessionStream, message: bytes, exchange: int, burst: list[events.AnyEvent]
    ) -> None:
        """As `multiplexed.StreamHost.message_received`."""
        meaning = self._message_meaning(stream, message, exchange)
        if isinstance(meaning, events.BrokerEvent):
            burst.append(meaning)
            if isinstance(meaning, events.RequestCancelled):
                self.feed(burst)
                stream.request_cancelled(meaning.id)
            return
        if meaning is None:
            return
        self.feed(burst)  # feed events in order before the other message
        if isinstance(meaning, handshake.UnservableLine):
            stream.write_to_exchange(meaning.line, exchange)
        elif isinstance(meaning, handshake.LineBatch):
            if self._accepts_batch(stream.id, meaning):
                for line in _split_batch(meaning):
                    self.message_received(stream, line, exchange, burst)
            else:
                stream.write_to_exchange(meaning.refusal, exchange)
        else:
            self._handle_aside(stream.id, meaning)

    def _message_meaning(
        self, stream: SessionStream, message: bytes, exchange: int, *, made: bool = False
    ) -> handshake.LineMeaning:
        read = self._read_resumed_line if made else self._read_line
        return with_exchange(stream, read(stream.id, message, shared=stream.exchanges.shared), exchange)

    def resume_message(
        self, stream: SessionStream, message: bytes, exchange: int, resume: SessionResume
    ) -> None:
        """As `multiplexed.StreamHost.resume_message`."""
        replays = resume.is_replayed(message)
        meaning = self._message_meaning(stream, message, exchange, made=replays)
        if not replays:
            if isinstance(meaning, handshake.UnservableLine):
                stream.write_to_exchange(meaning.line, exchange)
            else:
                resume.add(meaning)
        elif isinstance(meaning, events.BrokerEvent):
            stream.request_replayed(meaning)
            self._pump.feed(meaning)

    def version_of(self, session: SessionId) -> str:
        """As `multiplexed.StreamHost.version_of`."""
        return self._core.sessions[session].version

    def feed(self, burst: list[events.AnyEvent]) -> None:
        """As `multiplexed.StreamHost.feed`."""
        self._pump.feed_all(burst)
        burst.clear()

    def request_abandoned(self, session: SessionId, request: RawJson) -> None:
        """As `multiplexed.StreamHost.request_abandoned`."""
        self._pump.feed(events.RequestCancelled(session, request, "the client went away"))

    def _accepts_batch(self, session: SessionId, batch: handshake.LineBatch) -> bool:
        return bool(batch.lines) and self._core.sessions[session].version == handshake.BATCH_VERSION

    def _handle_aside(
        self,
        session: SessionId,
        meaning: handshake.ControlRequested | handshake.UnservableLine | handshake.LineBatch,
        delivery_log: DeliveryLog | None = None,
    ) -> None:
        if isinstance(meaning, handshake.UnservableLine):
            self._write(session, meaning.line)
        elif isinstance(meaning, handshake.LineBatch):
            if self._accepts_batch(session, meaning):
                self.lines_received(session, [*_split_batch(meaning)], delivery_log, within=True)
            else:
                self._write(session, meaning.refusal)
        elif meaning.method == USE_WORKSPACE:
            self._use_workspace(session, meaning)
        elif self._is_operator(session) or self._may_query(session, meaning.method):
            open_ = self._open_queries.setdefault(session, set())
            most = MAX_OPERATOR_REQUESTS if self._is_operator(session) else MAX_SESSION_QUERIES
            if len(open_) >= most:
                detail = f"At most {most} requests about carpool may be open in one session."
                self._pump.feed(events.BadLineReceived(session, meaning.id, "too_many_calls", detail))
                return
            open_.add(scope := trio.CancelScope())
            self._start_soon(self._answer_control, session, meaning, scope)
        else:
            self._pump.feed(events.BadLineReceived(session, meaning.id, "unknown_method", ""))

    def _is_operator(self, session: SessionId) -> bool:
        own_session = self._core.sessions.get(session)
        return own_session is not None and own_session.control

    def _may_query(self, session: SessionId, method: str) -> bool:
        own_session = self._core.sessions.get(session)
        return own_session is not None and own_session.carrier != "http" and method in SESSION_QUERIES

    def _use_workspace(self, session: SessionId, asked: handshake.ControlRequested) -> None:
        """Answer a request to move: any agent's about its own session, an operator's about any session."""
        try:
            wanted = _use_workspace.decode(asked.params or EMPTY_OBJECT)
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
            self._refuse(session, asked.id, f"{USE_WORKSPACE} needs a workspace: a name, or a directory.")
            return
        target = SessionId(wanted.session) if wanted.session else session
        if target != session and not self._is_operator(session):
            why = "only the command line may move other sessions"
        elif (asking := self._core.sessions.get(session)) is not None and asking.shared:
            why = "requests without a session must name their workspace in the URL"
        else:
            why = self._moving.move_objection(target, wanted.workspace)
        if why:
            self._refuse(session, asked.id, capitalized_sentence(why))
            return

        def moved(why: str) -> None:
            if why:
                self._refuse(session, asked.id, capitalized_sentence(why))
                return
            place = msgspec.json.encode(self._configuration.workspace_of(target))
            self._write(session, result_line(asked.id, RawJson(place)), asked.id, answers=True)

        self._moving.move(target, WorkspaceChanged(wanted.workspace), moved)

    def _refuse(self, session: SessionId, request: RawJson, detail: str) -> None:
        self._pump.feed(events.BadLineReceived(session, request, "bad_params", detail))

    def environment_requested(self, session: SessionId, names: list[str]) -> None:
        """As `server_interface.AgentServerHost.environment_requested`."""
        self._moving.environment_requested(session, names)

    def environment_received(self, session: SessionId, question: int, environment: dict[str, str]) -> None:
        """As `server_interface.AgentServerHost.environment_received`."""
        self._moving.environment_received(session, question, environment)

    async def _answer_control(
        self, session: SessionId, asked: handshake.ControlRequested, scope: trio.CancelScope
    ) -> None:
        with scope:
            if scope.cancel_called:
                return  # the session ended before its request was handled
            await self._turns.wait(session)
            try:
                line = result_line(asked.id, await self._answer(session, asked.method, asked.params))
            except ControlError as error:
                _, body = fault_answer(fault(error.slug, server=error.server, detail=error.detail), "")
                line = error_body_line(asked.id, body)
            self._write(session, line, asked.id, answers=True)
        self._open_queries.get(session, set()).discard(scope)
        if not scope.cancel_called:
            self._settle()

    def unread_changed(self, session: SessionId, unread_bytes: int) -> None:
        """As `server_interface.AgentServerHost.unread_changed`."""
        self._pump.feed(events.UnreadChanged(session, unread_bytes))
        self._on_unread()

    def input_ended(self, session: SessionId) -> None:
        """As `server_interface.AgentServerHost.input_ended`."""
        self._pump.feed(events.InputEnded(session))

    def owes_answers(self, session: SessionId) -> bool:
        """As `server_interface.AgentServerHost.owes_answers`."""
        return (
            bool(self._open_queries.get(session))
            or self._moving.is_moving(session)
            or self._core.owes_answers(session)
            or self._is_answering(session)
        )

    def session_closed(self, session: SessionId) -> None:
        """As `server_interface.AgentServerHost.session_closed`."""
        for scope in self._open_queries.pop(session, ()):
            scope.cancel()
        self._moving.session_closed(session)
        self._pump.feed(events.SessionClosed(session))
        self._pump.feed_all(self._configuration.session_closed(session))


def _split_batch(batch: handshake.LineBatch) -> list[bytes]:
    # JSON-RPC has no batch within a batch: it is refused as a line of its own.
    return [line for line in batch.lines if not line.startswith(b"[")]
