"""The adapter for the handshake era (2024-11-05 … 2025-11-25).

Owns the lines of calls, cancels, settings and pings, and passes each line of the server to the right part:
answers to calls (here), the greeting (`initialize`), asks (`server_requests`), calls that run as tasks
(`tasks`). Source: MCP 2025-11-25, basic/lifecycle, basic/utilities, server/tools.

Knows nothing of: agents, deadlines, processes, which session a call belongs to.
"""

from collections.abc import Iterable, Sequence
from typing import Final, Literal

from carpool_protocol.faults.fault_answers import TOOLS_CALL
from carpool_protocol.ids import ABSENT, EMPTY_OBJECT, MAX_WIRE_DIGITS, InstanceId, PoolKey, RawJson, WireId
from carpool_protocol.link.messages import Call
from carpool_protocol.wire.content import text_of
from carpool_protocol.wire.jsonrpc import (
    NOT_A_MESSAGE,
    ErrorAnswer,
    InvalidLine,
    Notification,
    Request,
    ResultAnswer,
    decode,
    error_line,
    notification_line,
    quote,
    request_line,
)
from carpool_protocol.wire.lines import OverlongLine
from carpool_protocol.wire.log_levels import known_level
from carpool_protocol.wire.params import ParamsError, call_params, meta_params, split_progress
from carpool_protocol.wire.request_targets import with_target
from carpool_protocol.wire.result_repair import no_object, repair_error, repair_tool_result, slug_in
from carpool_supervisor.core.model.events import (
    AnswerUnreadable,
    OwnEvent,
    ProbeAnswered,
    ResourceUpdated,
    ServerAnswered,
    ServerLineRejected,
    ServerLogged,
    ServerProgressed,
)
from carpool_supervisor.core.model.version_offers import VERSIONS
from carpool_supervisor.era.adapter import Decoded
from carpool_supervisor.era.greeting import read_error
from carpool_supervisor.era.initialize import InitializeGreeting
from carpool_supervisor.era.line_sizes import overlong
from carpool_supervisor.era.list_pages import CHANGED
from carpool_supervisor.era.odd_lines import (
    ANSWERED_TWICE,
    NO_OBJECT,
    READ_ANYWAY,
    answered_ids,
    batch_error,
    id_to_repeat,
    is_log_line,
    made_readable,
    messages_of,
)
from carpool_supervisor.era.ping_ids import ping_id, ping_number
from carpool_supervisor.era.progress_tokens import ProgressTokens
from carpool_supervisor.era.server_requests import NOTHING, Declared, ServerRequests, without_agents_task
from carpool_supervisor.era.tasks import TaskCalls, wire_of

_SETTINGS: Final = (b'"carpool-level-', b'"carpool-watch-')
_LATE: Final = b'"carpool-discover-'
"""Answers with this id are late: the server was greeted in the stateless era first and then in this one."""
MAX_DROPPED: Final = 1024
INVALID_REQUEST: Final = -32600


class HandshakeAdapter:
    """One instance's conversation in the handshake era. See `EraAdapter`."""

    def __init__(
        self,
        instance: InstanceId,
        key: PoolKey,
        release: str,
        declared: Declared = NOTHING,
        *,
        max_total_s: float = 0.0,
        bridge: bool = False,
        secret: str = "",
        version: str = VERSIONS[0],
    ) -> None:
        """`declared`: the capabilities that the server is told. `max_total_s`: the longest a call may take.
        `bridge`: the process is carpool's own, so errors in carpool's name are believed. `secret`: as of
        `ProgressTokens`. `version`: the one that the server is offered first.
        """
        self._progress_tokens = ProgressTokens(secret)
        self._token = self._progress_tokens.form
        self._bridge = bridge
        self._instance = instance
        self._own = 0
        """Counts carpool's own requests; their ids are strings."""
        self._others: set[WireId] = set()
        """Open calls of methods other than `tools/call`; their results have other forms."""
        self._dropped: dict[WireId, None] = {}
        """The latest cancelled calls among these; the server may still answer them."""
        self._decoded = Decoded()
        self._events: list[OwnEvent] = self._decoded.events
        capabilities = declared.capabilities()
        self._greeting = InitializeGreeting(
            instance, key, release, capabilities, self._decoded, bridge=bridge, version=version
        )
        self._server_requests = ServerRequests(instance, declared, self._decoded)
        self._tasks = TaskCalls(
            instance, max_total_s, self._decoded, self._server_requests.call_failed, bridge=bridge
        )

    # --- out -------------------------------------------------------------------------------------------

    @property
    def has_greeted(self) -> bool:
        """See `EraAdapter`."""
        return self._greeting.has_greeted

    def greeting_line(self) -> bytes:
        """`initialize`."""
        return self._greeting.greeting_line()

    def call_line(self, wire_id: WireId, call: Call) -> bytes:
        """The line of a call."""
        token = RawJson(self._token % wire_id)
        if call.method == TOOLS_CALL:
            task_tools = self._greeting.task_tools
            if task_tools and call.target in task_tools:
                return self._tasks.call_line(wire_id, call, token)
            meta = without_agents_task(call.meta) if call.meta else ABSENT
            return request_line(wire_id, TOOLS_CALL, call_params(call.target, call.params, meta, token))
        self._others.add(wire_id)
        params = with_target(call.method, call.target, call.params)
        return request_line(wire_id, call.method, meta_params(params, without_agents_task(call.meta), token))

    def cancel_line(self, wire_id: WireId, reason: str) -> bytes:
        """`notifications/cancelled`, or `tasks/cancel` for a task."""
        if wire_id in self._tasks:
            return self._tasks.cancel_line(wire_id, reason)
        if wire_id in self._others:
            self._others.remove(wire_id)
            self._dropped[wire_id] = None
            if len(self._dropped) > MAX_DROPPED:
                del self._dropped[next(iter(self._dropped))]
        params = RawJson(b'{"requestId":%d,"reason":%s}' % (wire_id, quote(reason)))
        return notification_line("notifications/cancelled", params)

    def ask_answer_line(self, ask: RawJson, *, is_error: bool, body: RawJson) -> bytes:
        """The answer to a request of the server."""
        return self._server_requests.answer_line(ask, is_error=is_error, body=body)

    def ask_progress_line(self, token: RawJson, params: RawJson) -> bytes:
        """`notifications/progress` for a request of the server."""
        return self._server_requests.progress_line(token, params)

    def level_line(self, level: str) -> bytes:
        """`logging/setLevel`."""
        return request_line(
            self._next_id("level"), "logging/setLevel", RawJson(b'{"level":%s}' % quote(level))
        )

    def subscriptions_line(self, add: Iterable[str], drop: Iterable[str]) -> bytes:
        """`resources/unsubscribe` and `resources/subscribe`."""
        words = [("resources/unsubscribe", uri) for uri in drop]
        words += [("resources/subscribe", uri) for uri in add]
        return b"".join(
            request_line(self._next_id("watch"), method, RawJson(b'{"uri":%s}' % quote(uri)))
            for method, uri in words
        )

    def task_subscriptions_line(self, tasks: Sequence[str]) -> bytes:
        """Always empty: agents never return for a task of this era."""
        return b""

    def cancel_task_line(self, task: str) -> bytes:
        """Always empty, as in `task_subscriptions_line`."""
        return b""

    def probe_line(self, number: int) -> bytes:
        """`ping`. Any answer, even an error, shows that the server is alive."""
        return request_line(ping_id(number), "ping", ABSENT)

    @property
    def open_list_request(self) -> tuple[RawJson, str]:
        """See `EraAdapter`."""
        return self._greeting.open_list_request

    @property
    def is_reading(self) -> bool:
        """See `EraAdapter`."""
        return self._greeting.is_reading

    def list_timed_out(self, after_s: float) -> tuple[list[OwnEvent], list[bytes]]:
        """See `EraAdapter`."""
        events, out = self._begin()
        self._greeting.list_timed_out(after_s)
        return events, out

    def relist_line(self, *, is_calm: bool = False) -> bytes:
        """The request for the first page of the first list."""
        return self._greeting.relist_line(is_calm=is_calm)

    def retry_line(self, wire_id: WireId) -> bytes:
        """Always empty: a server of this era asks in requests of its own."""
        return b""

    def take_events(self) -> Sequence[OwnEvent]:
        """Always empty: in this era only the server ends a call."""
        return ()

    def close(self) -> None:
        """See `EraAdapter`."""
        self._greeting.close()

    def _next_id(self, what: str) -> RawJson:
        self._own += 1
        return RawJson(b'"carpool-%s-%d"' % (what.encode(), self._own))

    # --- in --------------------------------------------------------------------------------------------

    def feed(self, lines: Sequence[bytes | OverlongLine]) -> tuple[list[OwnEvent], list[bytes]]:
        """Read lines of the server: returns the events they mean and the lines to send back at once."""
        events, out = self._begin()
        for line in lines:
            if not isinstance(line, bytes):
                self._overlong(line)
                continue
            message = decode(line)
            if type(message) is ResultAnswer:
                if message.id.isdigit() and len(message.id) <= MAX_WIRE_DIGITS:
                    self._call_answered(WireId(int(message.id)), message.result)
                else:
                    self._own_request_answered(message.id, message)
            elif isinstance(message, InvalidLine):
                self._invalid_line(line, message)
            elif too_long := overlong(line, message):
                self._overlong(too_long)
            else:
                self._message_received(message)
        return events, out

    def _feed_again(self, lines: Sequence[bytes]) -> None:
        """Read the lines that were found in an odd one."""
        events, out = self._events, self._decoded.lines
        more_events, more_out = self.feed(lines)
        events += more_events
        out += more_out
        self._events = self._decoded.events = events
        self._decoded.lines = out

    def read_on(self) -> tuple[list[OwnEvent], list[bytes]]:
        """See `EraAdapter`."""
        events, out = self._begin()
        self._greeting.read_on()
        return events, out

    def _begin(self) -> tuple[list[OwnEvent], list[bytes]]:
        events: list[OwnEvent] = []
        out: list[bytes] = []
        self._events = self._decoded.events = events
        self._decoded.lines = out
        return events, out

    def _call_answered(self, wire_id: WireId, result: RawJson) -> None:
        if self._tasks and wire_id in self._tasks:
            if self._tasks.has_begun(wire_id):
                self._reject_line(ANSWERED_TWICE)
            elif not self._tasks.call_answered(wire_id, result):
                self._call_answered(wire_id, result)
            return
        if self._others and wire_id in self._others:
            self._others.remove(wire_id)
            if text := no_object(result):
                self._events.append(AnswerUnreadable(self._instance, wire_id, "bad_answer", text))
                return
        elif self._dropped and wire_id in self._dropped:
            del self._dropped[wire_id]
        else:
            result, note = repair_tool_result(result, ours=self._bridge)
            if not result:
                text = f"{note[:1].upper()}{note[1:]}." if note else ""
                self._events.append(AnswerUnreadable(self._instance, wire_id, "bad_answer", text))
                return
            if note is not None:
                self._reject_line(f"answered against the protocol: {note}")
        self._events.append(self._answer(wire_id, result, is_error=False))

    def _call_failed(self, wire_id: WireId, error: RawJson) -> None:
        if self._tasks.has_begun(wire_id):
            self._reject_line(ANSWERED_TWICE)
            return
        self._call_ended(wire_id)
        error, note = repair_error(error, "child" if self._bridge else "server")
        if note is not None:
            self._reject_line(f"answered against the protocol: {note}")
        if self._server_requests.call_failed(wire_id, error):
            self._events.append(self._answer(wire_id, error, is_error=True))

    def _answer(self, wire_id: WireId, body: RawJson, *, is_error: bool) -> ServerAnswered:
        if not self._bridge:
            return ServerAnswered(self._instance, wire_id, is_error, body)
        is_lost = slug_in(body, is_error=is_error) == "state_lost"
        return ServerAnswered(self._instance, wire_id, is_error, body, state_lost=is_lost)

    def _call_ended(self, wire_id: WireId) -> None:
        self._others.discard(wire_id)
        self._tasks.call_failed(wire_id)

    def _message_received(self, message: ResultAnswer | ErrorAnswer | Request | Notification) -> None:
        match message:
            case ErrorAnswer():
                if message.id.isdigit() and len(message.id) <= MAX_WIRE_DIGITS:
                    self._call_failed(WireId(int(message.id)), message.error)
                else:
                    self._own_request_answered(message.id, message)
            case Request():
                self._server_requests.request_received(message)
            case Notification():
                self._notification_received(message)
            case ResultAnswer():  # pragma: no cover - taken in `feed`
                self._own_request_answered(message.id, message)

    def _notification_received(self, message: Notification) -> None:
        params = message.params or EMPTY_OBJECT
        if message.method == "notifications/progress":
            parts = split_progress(message.params)
            if not isinstance(parts, ParamsError):
                token, rest = parts
                wire = self._progress_tokens.wire_of(token)
                if wire is None:
                    return
                if wire not in self._tasks or self._tasks.may_pass_progress(wire, rest):
                    self._events.append(ServerProgressed(self._instance, wire, rest))
        elif message.method in CHANGED:
            self._greeting.lists_changed(CHANGED[message.method])
        elif message.method == "notifications/message":
            level = known_level(text_of(params, "level"))
            self._events.append(ServerLogged(self._instance, level, message.params))
        elif message.method == "notifications/resources/updated":
            uri = text_of(params, "uri")
            if uri is not None:
                self._events.append(ResourceUpdated(self._instance, uri, message.params))
        elif message.method == "notifications/tasks/status":
            self._tasks.status_received(params)
        else:
            self._server_requests.notification_received(message)

    def _invalid_line(self, line: bytes, garbage: InvalidLine) -> None:
        if garbage.why == "blank":
            return
        wire = _wire(garbage.id) or wire_of(garbage.id)
        answers_call = wire is not None and garbage.kind == "answer"
        if not answers_call and (readable := made_readable(line, garbage)):
            self._reject_line(READ_ANYWAY)
            self._feed_again([readable])
            return
        if garbage.why == "batch":
            self._batch_received(line)
            return
        if is_log_line(garbage) and (wire is not None or garbage.kind == "request"):
            self._reject_line(f"{NOT_A_MESSAGE}: {garbage.text}")
            return
        if garbage.kind == "request":
            if garbage.id:
                self._decoded.lines.append(
                    error_line(id_to_repeat(garbage.id), INVALID_REQUEST, garbage.text)
                )
            else:
                self._reject_line(f"{NOT_A_MESSAGE}: {garbage.text}")
            return
        if garbage.why == "header" and self._greeting.headers_received(garbage.text):
            pass
        elif not self._answer_unreadable(garbage.id, garbage.text):
            self._reject_line(f"{NOT_A_MESSAGE}: {garbage.text}")

    def _batch_received(self, line: bytes) -> None:
        """Read an array of messages; if it is not read, the calls that it answers end at once."""
        messages, other_count = messages_of(line)
        error = batch_error(len(messages) + other_count, self._greeting.version)
        for _ in range(0 if error else other_count):
            self._reject_line(f"{NOT_A_MESSAGE}: it {NO_OBJECT}")
        if not error:
            self._feed_again(messages)
            return
        self._reject_line(f"{NOT_A_MESSAGE}: {error}")
        for answer_id in answered_ids(messages):
            self._answer_unreadable(answer_id, error)

    def _answer_unreadable(self, answer_id: RawJson | None, text: str) -> bool:
        """An answer with this id cannot be read. Returns True if carpool waits for it."""
        wire = _wire(answer_id) or wire_of(answer_id)
        if wire is None:
            return self._greeting.answer_unreadable(answer_id, text)
        self._call_unreadable(answer_id, wire, "bad_answer", f"The answer cannot be read: {text}")
        return True

    def _overlong(self, line: OverlongLine) -> None:
        text = f"a line of {line.size_bytes} bytes, more than carpool reads"
        if line.is_answer is False:
            if line.id:  # a request: its sender waits for an answer
                self._decoded.lines.append(error_line(line.id, INVALID_REQUEST, text))
            self._reject_line(f"wrote {text}")
            return
        wire = _wire(line.id) or wire_of(line.id)
        if wire is not None:
            self._call_unreadable(line.id, wire, "answer_too_large", f"It was {text}.")
        elif not self._greeting.answer_unreadable(line.id, text):
            self._reject_line(f"wrote {text}")

    def _call_unreadable(
        self,
        answer_id: RawJson | None,
        wire: WireId,
        why: Literal["bad_answer", "answer_too_large"],
        text: str,
    ) -> None:
        """End a call: the answer to it, or to a request about its task, cannot be read."""
        if self._tasks.has_begun(wire) and wire_of(answer_id) is None:
            self._reject_line(ANSWERED_TWICE)
            return
        self._call_ended(wire)
        self._events.append(AnswerUnreadable(self._instance, wire, why, text))

    def _reject_line(self, text: str) -> None:
        self._events.append(ServerLineRejected(self._instance, text))

    def _own_request_answered(self, answer_id: RawJson, message: ResultAnswer | ErrorAnswer) -> None:
        wire = _wire(answer_id)
        if wire is not None:  # some servers answer "17" to 17
            if isinstance(message, ResultAnswer):
                self._call_answered(wire, message.result)
            else:
                self._call_failed(wire, message.error)
        elif (number := ping_number(answer_id)) is not None:
            self._events.append(ProbeAnswered(self._instance, number))
            self._tasks.server_alive()
        elif answer_id.startswith(_SETTINGS):
            if isinstance(message, ErrorAnswer):
                text = f"refused a log level or a subscription: {read_error(message.error).message[:200]}"
                self._reject_line(text)
        elif answer_id.startswith(_LATE):
            pass
        elif not (
            self._greeting.request_answered(answer_id, message) or self._tasks.request_answered(message)
        ):
            self._reject_line("answered a request that carpool never made")


def _wire(answer_id: RawJson | None) -> WireId | None:
    """The wire id that the id of an answer means; `"17"` counts as 17, as in the Python SDK."""
    digits = answer_id.strip(b'"') if answer_id else b""
    return WireId(int(digits)) if digits.isdigit() and len(digits) <= MAX_WIRE_DIGITS else None
