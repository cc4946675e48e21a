"""Calls of tools that run as tasks only, in the handshake era: the task is hidden, and the call gets one
answer like any other.

Owns the tools that need a task, the tasks of one instance, and the lines for them: the call with `task`; then
`tasks/result`, which blocks until the task has ended and brings the server's asks meanwhile; `tasks/cancel`
for a cancel. A server whose `tasks/result` fails, or returns too early against the specification, is asked
`tasks/get`. `tasks/result` is repeated when the server reports a new status or answers a ping, because this
module has no clock. Source: MCP 2025-11-25, basic/utilities/tasks; tried with server-everything 2026.8.31 and
the Python SDK 1.29.

Invariants: a task belongs to one wire id; our requests about it carry that wire id, so an answer finds its
call with any task id of the server; a call has one task, and gets one answer (a second answer of the server
is one to nothing). Knows nothing of: agents, the session behind an ask, deadlines. Decision:
docs/decisions/0011.
"""

import re
from collections.abc import Callable, Iterable
from typing import Final, Literal

from carpool_protocol.ids import EMPTY_OBJECT, InstanceId, RawJson, WireId
from carpool_protocol.link.messages import Call, Offer
from carpool_protocol.wire.content import change_members, mentions, text_of, value_of
from carpool_protocol.wire.jsonrpc import ErrorAnswer, ResultAnswer, notification_line, quote, request_line
from carpool_protocol.wire.params import call_params
from carpool_protocol.wire.result_repair import repair_error, repair_tool_result
from carpool_supervisor.core.model.events import (
    AnswerUnreadable,
    OwnEvent,
    ServerAnswered,
    ServerLineRejected,
    ServerProgressed,
    TaskCreated,
)
from carpool_supervisor.era.adapter import Decoded
from carpool_supervisor.era.greeting import Initialized
from carpool_supervisor.era.server_requests import without_agents_task, without_task

TASKS_SINCE: Final = "2025-11-25"
TTL_MARGIN_S: Final = 60.0
"""A task lives this much longer than its call may take, so that its result can still be fetched."""
MAX_OVER: Final = 1024
"""Ended calls whose tasks still run at the server; older ones are forgotten."""
MAX_ID_CHARS: Final = 1024
"""A longer id of a task is refused: each request about the task repeats it."""

_ENDED: Final = frozenset({"completed", "failed", "cancelled"})
_GRAIN: Final = 1e-6
"""The progress of one change of status. It is tiny, so that progress of the server's own that comes later is
greater.
"""

_our_id = re.compile(rb'"carpool-task-(result|get|cancel)-([0-9]{1,18})(?:-([0-9]{1,9}))?"').fullmatch


class _Task:
    """One call that runs as a task."""

    __slots__ = ("asked", "counted", "error", "id", "is_over", "progress", "requests", "wire")

    def __init__(self, wire_id: WireId) -> None:
        self.wire = wire_id
        self.id = b""
        """The server's id of the task, raw; empty until the call is answered with it."""
        self.requests: dict[bytes, int] = {}
        """How many requests of each method were made about it. An id is never used again (basic, "Requests"),
        so late answers to earlier requests are ignored.
        """
        self.asked = False
        """`tasks/result` is open."""
        self.error: RawJson | None = None
        """The error of `tasks/result`, until `tasks/get` says if the task has ended too."""
        self.is_over = False
        """Its call was cancelled."""
        self.counted = False
        """The server reports progress of its own."""
        self.progress = 0
        """Changes of status that were reported as progress."""


class TaskCalls:
    """All tasks of one instance."""

    def __init__(
        self,
        instance: InstanceId,
        ttl_s: float,
        decoded: Decoded,
        erred: Callable[[WireId, RawJson], bool],
        *,
        bridge: bool = False,
    ) -> None:
        """`ttl_s`: the longest a call may take. `erred`: sees an error before the call ends with it; False:
        it has ended the call itself. `bridge`: as in `HandshakeAdapter`.
        """
        self._bridge = bridge
        self._erred = erred
        self._instance = instance
        self._ttl_ms = int((ttl_s + TTL_MARGIN_S) * 1000)
        self._decoded = decoded
        self._open: dict[WireId, _Task] = {}
        self._by_id: dict[bytes, _Task] = {}

    def __len__(self) -> int:
        return len(self._open)

    def __contains__(self, wire_id: WireId) -> bool:
        return wire_id in self._open

    # --- out -------------------------------------------------------------------------------------------

    def call_line(self, wire_id: WireId, call: Call, token: RawJson) -> bytes:
        """The call, to run as a task.

        It has a `ttl`: without one both official SDKs keep the result as long as they live.
        """
        self._open[wire_id] = _Task(wire_id)
        rest = change_members(call.params, {"task": None})[1:-1].strip()
        task = b'{%b%b"task":{"ttl":%d}}' % (rest, b"," if rest else b"", self._ttl_ms)
        return request_line(
            wire_id,
            call.method,
            call_params(call.target, RawJson(task), without_agents_task(call.meta), token),
        )

    def cancel_line(self, wire_id: WireId, reason: str) -> bytes:
        """The line that cancels the task or, while its id is unknown, the call."""
        task = self._open[wire_id]
        task.is_over = True
        over = [each for each in self._open.values() if each.is_over]
        if len(over) > MAX_OVER:
            self._drop(over[0])
        if task.id:
            return self._about(task, "cancel")
        params = b'{"requestId":%d,"reason":%b}' % (wire_id, quote(reason))
        return notification_line("notifications/cancelled", RawJson(params))

    def _about(self, task: _Task, what: Literal["result", "get", "cancel"]) -> bytes:
        nth = task.requests[what.encode()] = task.requests.get(what.encode(), 0) + 1
        again = b"-%d" % nth if nth > 1 else b""
        raw_id = RawJson(b'"carpool-task-%b-%d%b"' % (what.encode(), task.wire, again))
        return request_line(raw_id, f"tasks/{what}", RawJson(b'{"taskId":%b}' % task.id))

    def _await(self, task: _Task) -> None:
        task.asked, task.error = True, None
        self._decoded.lines.append(self._about(task, "result"))

    def _drop(self, task: _Task) -> None:
        self._open.pop(task.wire, None)
        if self._by_id.get(task.id) is task:
            del self._by_id[task.id]

    # --- in --------------------------------------------------------------------------------------------

    def has_begun(self, wire_id: WireId) -> bool:
        """True if this open call was answered with its task, so that no further answer can be one to it."""
        task = self._open.get(wire_id)
        return task is not None and bool(task.id)

    def call_answered(self, wire_id: WireId, result: RawJson) -> bool:
        """The call, whose task has not begun, was answered. False: not with a task, so this is its result."""
        task = self._open[wire_id]
        created = value_of(result, "task")
        if created is None:
            self._drop(task)
            return False
        text = text_of(created, "taskId")
        if text is None or len(text) > MAX_ID_CHARS:
            why = "without an id" if text is None else f"with an id of more than {MAX_ID_CHARS} characters"
            self._unreadable(task, f"It is a task {why}.")
            return True
        task.id = named = value_of(created, "taskId") or b""
        self._by_id[named] = task
        self._event(TaskCreated(self._instance, wire_id, text))
        if task.is_over:
            self._decoded.lines.append(self._about(task, "cancel"))
        else:
            self._await(task)
        return True

    def call_failed(self, wire_id: WireId) -> None:
        """The call failed, or its answer was unreadable."""
        task = self._open.get(wire_id)
        if task is not None:
            self._drop(task)

    def request_answered(self, message: ResultAnswer | ErrorAnswer) -> bool:
        """Handle an answer whose id is no number. Returns True if it answers a request about a task."""
        found = _our_id(message.id)
        if found is None:
            return False
        task = self._open.get(WireId(int(found[2])))
        if task is None or task.requests.get(found[1]) != int(found[3] or b"1"):
            return True
        match found[1]:
            case b"result" if task.asked:
                task.asked = False
                self._result_received(task, message)
            case b"get" if task.error is not None:
                self._status_received(task, task.error, message)
            case b"cancel" if task.id and task.is_over and not task.asked:
                self._answer(task, is_error=False, body=EMPTY_OBJECT)  # cancelled: the task runs no more
            case _:
                pass
        return True

    def _result_received(self, task: _Task, message: ResultAnswer | ErrorAnswer) -> None:
        if isinstance(message, ErrorAnswer):
            body, note = repair_error(message.error, "child" if self._bridge else "server")
            is_usable = False
        else:
            # Without content its status tells more: it may have failed.
            said = without_related(message.result)
            body, note = repair_tool_result(said, ours=self._bridge, needs_content=True)
            is_usable = bool(body)
        if note is not None and body:
            text = f"answered against the protocol: {note}"
            self._event(ServerLineRejected(self._instance, text))
        if is_usable or task.is_over:
            self._answer(task, is_error=isinstance(message, ErrorAnswer), body=body or EMPTY_OBJECT)
            return
        task.error = body
        self._decoded.lines.append(self._about(task, "get"))

    def _status_received(self, task: _Task, error: RawJson, message: ResultAnswer | ErrorAnswer) -> None:
        """`tasks/result` failed or (`error` is absent) returned nothing useful: ask if the task has ended."""
        task_status = message.result if isinstance(message, ResultAnswer) else EMPTY_OBJECT
        status = text_of(task_status, "status") or ""
        if status and status not in _ENDED:
            task.error = None  # it returned too early: asked again at the next sign of life
        elif error:
            self._answer(task, is_error=True, body=error)
        elif status in ("failed", "cancelled"):
            self._answer(task, is_error=False, body=_failure(text_of(task_status, "statusMessage"), status))
        else:
            self._unreadable(task, "Its task has ended without a result.")

    def _answer(self, task: _Task, *, is_error: bool, body: RawJson) -> None:
        self._drop(task)
        if is_error and not self._erred(task.wire, body):
            return
        self._event(ServerAnswered(self._instance, task.wire, is_error=is_error, body=body))

    def _unreadable(self, task: _Task, text: str) -> None:
        self._drop(task)
        self._event(AnswerUnreadable(self._instance, task.wire, "bad_answer", text))

    def _event(self, event: OwnEvent) -> None:
        self._decoded.events.append(event)

    def server_alive(self) -> None:
        """The server is alive: repeat the requests that returned too early."""
        for task in list(self._by_id.values()):
            if not task.asked and task.error is None and not task.is_over:
                self._await(task)

    def status_received(self, params: RawJson) -> None:
        """Handle `notifications/tasks/status`: it becomes progress, unless the server reports progress itself
        (values must grow).
        """
        task = self._by_id.get(value_of(params, "taskId") or b"")
        if task is None or task.is_over:
            return
        status = text_of(params, "status") or ""
        if (status in _ENDED or status == "input_required") and not task.asked and task.error is None:
            self._await(task)
        if status not in _ENDED and not task.counted:
            task.progress += 1
            message_text = text_of(params, "statusMessage")
            message = b"" if message_text is None else b',"message":%b' % quote(message_text)
            told = b'{"progress":%.6f%b}' % (task.progress * _GRAIN, message)
            self._event(ServerProgressed(self._instance, task.wire, RawJson(told)))

    def may_pass_progress(self, wire_id: WireId, params: RawJson) -> bool:
        """The server reports progress. False if it is less than what was already reported for its status."""
        task = self._open[wire_id]
        if not task.counted:
            try:
                value = float(value_of(params, "progress") or b"0")
            except ValueError:
                return True
            if task.progress and value <= task.progress * _GRAIN:
                return False
            task.counted = True
        return True


def wire_of(answer_id: RawJson | None) -> WireId | None:
    """The call whose `tasks/result` or other request has this id."""
    found = _our_id(answer_id) if answer_id else None
    return WireId(int(found[2])) if found and found[1] != b"cancel" else None


def tools_of(greeted: Initialized, tools: Iterable[Offer]) -> frozenset[str]:
    """The tools that this server runs as tasks only (`execution.taskSupport`: `required`).

    None if the server has not declared that it runs calls as tasks: the word of the tool does not count then
    (basic/utilities/tasks, "Tool-Level Negotiation").
    """
    if greeted.protocolVersion < TASKS_SINCE:
        return frozenset()
    declared = bytes(greeted.capabilities.get("tasks", b""))
    for key in ("requests", "tools", "call"):
        declared = value_of(declared, key) or b""
    if declared[:1] != b"{":
        return frozenset()
    return frozenset(offer.name for offer in tools if _is_required(offer.definition))


def _is_required(definition: RawJson) -> bool:
    if not mentions(definition, b'"taskSupport"'):
        return False
    return text_of(value_of(definition, "execution") or b"", "taskSupport") == "required"


def without_related(result: RawJson) -> RawJson:
    """The result of a task in the form of the call's own result."""
    meta = value_of(result, "_meta")
    if meta is None or meta[:1] != b"{":
        return result
    left = without_task(RawJson(meta))
    return RawJson(change_members(result, {"_meta": (lambda _: left) if left else None}))


def _failure(message: str | None, status: str) -> RawJson:
    text = message or f"The task of this tool {'was cancelled' if status == 'cancelled' else 'failed'}."
    return RawJson(b'{"content":[{"type":"text","text":%b}],"isError":true}' % quote(text))
