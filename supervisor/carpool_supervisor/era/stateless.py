"""The adapter for the stateless era (2026-07-28).

Owns the lines of calls and cancels, and passes each line of the server to the right part: answers to calls
(here), required input (`input_rounds`), tasks (`task_relay`), the greeting (`discover`), notifications
without a call (`subscriptions`). `envelope` adds and removes what only this era has. A server of this era
sends no requests: it asks in the answer to a call, so the agent behind an ask is certain. Source: MCP
2026-07-28, basic/index, basic/utilities, server/tools.

Knows nothing of: agents, deadlines, processes, which session a call belongs to.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from carpool_protocol.faults.fault_answers import TOOLS_CALL
from carpool_protocol.ids import EMPTY_OBJECT, InstanceId, PoolKey, RawJson, WireId
from carpool_protocol.link.messages import Call
from carpool_protocol.wire.content import change_members, text_of
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
from carpool_protocol.wire.result_repair import no_object, repair_error, repair_tool_result
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
from carpool_supervisor.era.adapter import Decoded
from carpool_supervisor.era.discover import DISCOVER, DiscoverGreeting
from carpool_supervisor.era.envelope import RequestEnvelope, neutral_error, own_params, read_result
from carpool_supervisor.era.input_rounds import ASKS, InputRounds, call_of
from carpool_supervisor.era.line_sizes import overlong
from carpool_supervisor.era.list_hints import NO_HINT, read_cache_hint
from carpool_supervisor.era.list_pages import CHANGED, FAMILIES
from carpool_supervisor.era.odd_lines import (
    ANSWERED_TWICE,
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
from carpool_supervisor.era.server_requests import NOTHING, Declared
from carpool_supervisor.era.subscriptions import ServerSubscriptions, cancelled_listen
from carpool_supervisor.era.task_relay import NOTIFICATION, RelayedTaskCalls

METHOD_NOT_FOUND: Final = -32601
INVALID_REQUEST: Final = -32600
NO_REQUESTS: Final = "a server sends no requests in MCP 2026-07-28: answer the call with input_required"


class StatelessAdapter:
    """One instance's conversation in the stateless era. See `EraAdapter`."""

    def __init__(
        self,
        instance: InstanceId,
        key: PoolKey,
        release: str,
        declared: Declared = NOTHING,
        *,
        bridge: bool = False,
        secret: str = "",
    ) -> None:
        """`declared`: the capabilities that the server is told. `bridge`: the process is carpool's own, so
        errors in carpool's name are believed. `secret`: as of `ProgressTokens`.
        """
        self._progress_tokens = ProgressTokens(secret)
        self._bridge = bridge
        self._instance = instance
        self._decoded = Decoded()
        self._envelope = RequestEnvelope(release, declared)
        self._subscriptions = ServerSubscriptions(instance, self._envelope, self._decoded)
        self._discovery = DiscoverGreeting(
            instance, key, self._envelope, self._decoded, self._subscriptions.begin, bridge=bridge
        )
        self._rounds = InputRounds(instance, declared, self._decoded, self._call_request_line)
        self._relayed_task_calls = RelayedTaskCalls(instance)

    # --- out -------------------------------------------------------------------------------------------

    @property
    def has_greeted(self) -> bool:
        """See `EraAdapter`."""
        return self._discovery.has_greeted

    def greeting_line(self) -> bytes:
        """`server/discover`."""
        return self._discovery.greeting_line()

    def call_line(self, wire_id: WireId, call: Call) -> bytes:
        """The line of a call."""
        if call.method in ASKS:
            self._rounds.call_written(wire_id, call)
        else:
            self._relayed_task_calls.call_written(wire_id, call)
        return self._call_request_line(RawJson(b"%d" % wire_id), wire_id, call, b"")

    def _call_request_line(self, request: RawJson, wire_id: WireId, call: Call, more: bytes) -> bytes:
        token = RawJson(self._progress_tokens.form % wire_id)
        meta, params = self._envelope.request_meta(call.meta, call), own_params(call.params, call.method)
        if call.method == TOOLS_CALL:
            params = call_params(call.target, params, meta, token)
        else:
            params = meta_params(with_target(call.method, call.target, params), meta, token)
        if more:
            params = RawJson(params[:-1] + more + b"}")
        return request_line(request, call.method, params)

    def cancel_line(self, wire_id: WireId, reason: str) -> bytes:
        """`notifications/cancelled`; empty between two rounds, when the server has nothing to cancel."""
        self._relayed_task_calls.call_ended(wire_id)
        if self._may_begin_task(self._rounds.open_call(wire_id)):
            self._relayed_task_calls.call_cancelled(wire_id)
        request = self._rounds.cancel_line(wire_id)
        if not request:
            return b""
        params = RawJson(b'{"requestId":%b,"reason":%b}' % (request, quote(reason)))
        return notification_line("notifications/cancelled", params)

    def ask_answer_line(self, ask: RawJson, *, is_error: bool, body: RawJson) -> bytes:
        """Take an input, or its failure. Writes nothing yet: see `retry_line`."""
        self._rounds.ask_answered(ask, is_error=is_error, body=body)
        return b""

    def retry_line(self, wire_id: WireId) -> bytes:
        """The call again, after a pause or with all required input."""
        return self._rounds.retry_line(wire_id)

    def ask_progress_line(self, token: RawJson, params: RawJson) -> bytes:
        """Always empty: a server of this era gives no progress token with its input requests."""
        return b""

    def level_line(self, level: str) -> bytes:
        """Always empty: each request carries the level from now on."""
        self._envelope.set_level(level)
        return b""

    def subscriptions_line(self, add: Iterable[str], drop: Iterable[str]) -> bytes:
        """A new `subscriptions/listen`."""
        return self._subscriptions.subscriptions_line(add, drop)

    def task_subscriptions_line(self, tasks: Sequence[str]) -> bytes:
        """A new `subscriptions/listen`."""
        return self._subscriptions.task_subscriptions_line(tasks)

    def cancel_task_line(self, task: str) -> bytes:
        """`tasks/cancel`; its answer is ignored."""
        params = RawJson(b'{"taskId":%b}' % quote(task))
        return self._envelope.request_line(self._envelope.next_id("task"), "tasks/cancel", params, tasks=True)

    def probe_line(self, number: int) -> bytes:
        """`server/discover`. Any answer, even an error, shows that the server is alive."""
        return self._envelope.request_line(ping_id(number), DISCOVER)

    @property
    def open_list_request(self) -> tuple[RawJson, str]:
        """See `EraAdapter`."""
        return self._discovery.open_list_request

    @property
    def is_reading(self) -> bool:
        """See `EraAdapter`."""
        return self._discovery.is_reading

    def list_timed_out(self, after_s: float) -> tuple[list[OwnEvent], list[bytes]]:
        """See `EraAdapter`."""
        self._decoded.lines = []
        self._discovery.list_timed_out(after_s)
        return self.take_events(), self._decoded.lines

    def relist_line(self, *, is_calm: bool = False) -> bytes:
        """The request for the first page of the first list."""
        return self._discovery.relist_line(is_calm=is_calm)

    def take_events(self) -> list[OwnEvent]:
        """See `EraAdapter`."""
        events, self._decoded.events = self._decoded.events, []
        return events

    def close(self) -> None:
        """See `EraAdapter`."""
        self._discovery.close()
        self._rounds.close()

    # --- in --------------------------------------------------------------------------------------------

    def feed(self, lines: Sequence[bytes | OverlongLine]) -> tuple[list[OwnEvent], list[bytes]]:
        """Read lines of the server: returns the events they mean and the lines to send back at once."""
        taken = self._decoded
        taken.lines = []
        for line in lines:
            if not isinstance(line, bytes):
                self._overlong(line)
                continue
            message = decode(line)
            if isinstance(message, InvalidLine):
                self._invalid_line(line, message)
            elif too_long := overlong(line, message):
                self._overlong(too_long)
            else:
                self._message_received(message)
        return self.take_events(), taken.lines

    def _message_received(self, message: ResultAnswer | ErrorAnswer | Notification | Request) -> None:
        match message:
            case ResultAnswer() | ErrorAnswer():
                self._answer_received(message)
            case Notification():
                self._notification_received(message)
            case Request():
                self._decoded.lines.append(error_line(message.id, METHOD_NOT_FOUND, NO_REQUESTS))

    def read_on(self) -> tuple[list[OwnEvent], list[bytes]]:
        """See `EraAdapter`."""
        self._decoded.lines = []
        self._discovery.read_on()
        return self.take_events(), self._decoded.lines

    def _answer_received(self, message: ResultAnswer | ErrorAnswer) -> None:
        found = call_of(message.id)
        if found is None:
            self._own_request_answered(message)
        elif self._rounds.is_stale(*found):
            self._reject_line(ANSWERED_TWICE)
        else:
            self._subscriptions.server_alive()
            if isinstance(message, ResultAnswer):
                self._call_answered(found[0], message.result)
            else:
                self._call_failed(found[0], message.error)

    def _call_answered(self, wire_id: WireId, result: RawJson) -> None:
        about = self._relayed_task_calls.call_ended(wire_id)
        if about is not None:
            self._decoded.events.append(self._relayed_task_calls.call_answered(wire_id, about, result))
            return
        whole = result
        kind, result = read_result(result)
        if kind == "input_required":
            self._decoded.add_line(self._rounds.input_required(wire_id, result))
            return
        first = self._rounds.is_first(wire_id)
        call = self._rounds.call_ended(wire_id)
        method = "" if call is None else call.method
        may_begin = self._may_begin_task(call) or self._relayed_task_calls.was_cancelled(wire_id)
        if kind == "task" and may_begin:
            self._decoded.events.append(self._relayed_task_calls.task_created(wire_id, whole))
            return
        if kind != "complete":
            what = "is too complex" if kind == "unreadable" else "has a resultType that carpool does not know"
            self._unreadable(wire_id, f"The result {what}.")
            return
        if method == TOOLS_CALL:
            result, note = repair_tool_result(result, ours=self._bridge)
            if not result:
                self._unreadable(wire_id, f"{note[:1].upper()}{note[1:]}." if note else "")
                return
            if note is not None:
                self._reject_line(f"answered against the protocol: {note}")
        elif text := no_object(result):
            self._unreadable(wire_id, text)
            return
        # A result that depends on an agent's input must not be cached (server/utilities/caching).
        hint = read_cache_hint(whole) if method == "resources/read" and first else NO_HINT
        self._decoded.events.append(
            ServerAnswered(self._instance, wire_id, False, result, ttl_ms=hint.ttl_ms, public=hint.public)
        )

    def _may_begin_task(self, call: Call | None) -> bool:
        return call is not None and call.tasks and self._envelope.tasks and call.method == TOOLS_CALL

    def _call_failed(self, wire_id: WireId, error: RawJson) -> None:
        error, note = repair_error(error, "child" if self._bridge else "server")
        if note is not None:
            self._reject_line(f"answered against the protocol: {note}")
        about = self._relayed_task_calls.call_ended(wire_id)
        if about is not None:
            self._decoded.events.append(self._relayed_task_calls.call_failed(wire_id, about, error))
            return
        call = self._rounds.call_ended(wire_id)
        method, same_era = ("", False) if call is None else (call.method, call.can is not None)
        body = neutral_error(method, error, same_era=same_era)
        self._decoded.events.append(ServerAnswered(self._instance, wire_id, is_error=True, body=body))

    def _own_request_answered(self, message: ResultAnswer | ErrorAnswer) -> None:
        if (number := ping_number(message.id)) is not None:
            self._decoded.events.append(ProbeAnswered(self._instance, number))
            self._subscriptions.server_alive()
        elif message.id.startswith(b'"carpool-task-'):
            pass
        elif not (self._discovery.request_answered(message) or self._subscriptions.listen_answered(message)):
            self._reject_line("answered a request that carpool never made")

    def _notification_received(self, message: Notification) -> None:
        params = message.params or EMPTY_OBJECT
        method = message.method
        if method == "notifications/progress":
            parts = split_progress(message.params)
            wire = None if isinstance(parts, ParamsError) else self._progress_tokens.wire_of(parts[0])
            if wire is not None and not isinstance(parts, ParamsError):
                told = self._rounds.total_progress(wire, parts[1])
                self._decoded.events.append(ServerProgressed(self._instance, wire, told))
        elif method == "notifications/message":
            level = known_level(text_of(params, "level"))
            self._decoded.events.append(ServerLogged(self._instance, level, message.params))
        elif method == "notifications/subscriptions/acknowledged":
            if self._subscriptions.acknowledged(params):
                self._discovery.lists_changed(FAMILIES)
                for each in sorted(self._subscriptions.watched):
                    body = RawJson(b'{"uri":%b}' % quote(each))
                    self._decoded.events.append(ResourceUpdated(self._instance, each, body))
        elif method == "notifications/cancelled":
            self._subscriptions.listen_ended(cancelled_listen(params))
        elif self._subscriptions.is_in_force(
            params
        ):  # else of a listen that is being replaced, or never asked for
            self._subscription_notified(method, params)

    def _subscription_notified(self, method: str, params: RawJson) -> None:
        """Handle a notification on the listen in force."""
        if method in CHANGED:
            self._discovery.lists_changed(CHANGED[method])
        elif method == "notifications/resources/updated":
            uri = text_of(params, "uri")
            if uri is not None:
                self._decoded.events.append(ResourceUpdated(self._instance, uri, _bare(params)))
        elif method == NOTIFICATION:
            told_of = self._relayed_task_calls.task_changed(params)
            if told_of is not None:
                self._decoded.events.append(told_of)

    # --- unreadable lines ------------------------------------------------------------------------------

    def _invalid_line(self, line: bytes, garbage: InvalidLine) -> None:
        if garbage.why == "blank":
            return
        found = call_of(garbage.id)
        answers_call = found is not None and garbage.kind == "answer"
        if not answers_call and (readable := made_readable(line, garbage)):
            self._reject_line(READ_ANYWAY)
            message = decode(readable)
            assert not isinstance(message, InvalidLine)
            self._message_received(message)
            return
        if garbage.why == "batch":
            self._batch_received(line)
            return
        if is_log_line(garbage) and (found is not None or garbage.kind == "request"):
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
        if garbage.why == "header" and self._discovery.headers_received(garbage.text):
            pass
        elif not self._answer_unreadable(garbage.id, garbage.text):
            self._reject_line(f"{NOT_A_MESSAGE}: {garbage.text}")

    def _batch_received(self, line: bytes) -> None:
        """No version of this era has arrays of messages: the calls that it answers end at once."""
        messages, other_count = messages_of(line)
        error = batch_error(len(messages) + other_count, "")
        self._reject_line(f"{NOT_A_MESSAGE}: {error}")
        for answer_id in answered_ids(messages):
            self._answer_unreadable(answer_id, error)

    def _answer_unreadable(self, answer_id: RawJson | None, text: str) -> bool:
        """An answer with this id cannot be read. Returns True if carpool waits for it."""
        found = call_of(answer_id)
        if found is None or self._rounds.is_stale(*found):
            return self._discovery.answer_unreadable(answer_id, text)
        self._rounds.call_ended(found[0])
        self._relayed_task_calls.call_ended(found[0])
        self._unreadable(found[0], f"The answer cannot be read: {text}")
        return True

    def _overlong(self, line: OverlongLine) -> None:
        text = f"a line of {line.size_bytes} bytes, more than carpool reads"
        found = call_of(line.id)
        if line.is_answer is False or found is None or self._rounds.is_stale(*found):
            if line.is_answer is False or not self._discovery.answer_unreadable(line.id, text):
                self._reject_line(f"wrote {text}")
            return
        self._rounds.call_ended(found[0])
        self._relayed_task_calls.call_ended(found[0])
        self._decoded.events.append(
            AnswerUnreadable(self._instance, found[0], "answer_too_large", f"It was {text}.")
        )

    def _unreadable(self, wire_id: WireId, text: str) -> None:
        self._decoded.events.append(AnswerUnreadable(self._instance, wire_id, "bad_answer", text))

    def _reject_line(self, text: str) -> None:
        self._decoded.events.append(ServerLineRejected(self._instance, text))


def _bare(params: RawJson) -> RawJson:
    """The params without the id of the listen that they came on."""
    return RawJson(change_members(params, {"_meta": None}))
