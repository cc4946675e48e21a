"""Tasks that agents of the stateless era poll themselves.

Owns the open calls about a task, the cancelled ones that may have begun a task, and the fields of a task that
carpool reads: its id, its time to live, and if it has ended. The agent reads everything else. Input for a
task goes through `tasks/get` and `tasks/update`, not through rounds. Source: the extension
`io.modelcontextprotocol/tasks` (SEP-2663) of MCP 2026-07-28.

Takes legal JSON; no bytes raise. Knows nothing of: the session of a task, the ids that agents see, deadlines.
"""

from typing import Final

from carpool_protocol.ids import InstanceId, RawJson, WireId
from carpool_protocol.link.messages import Call
from carpool_protocol.wire.content import change_members, text_of, value_of
from carpool_protocol.wire.request_targets import TASK_ID_KEYS
from carpool_protocol.wire.stateless import SERVER_INFO
from carpool_supervisor.core.model.events import AnswerUnreadable, ServerAnswered, TaskChanged
from carpool_supervisor.era.envelope import neutral_error, read_result
from carpool_supervisor.era.list_hints import MAX_DIGITS
from carpool_supervisor.era.server_requests import without
from carpool_supervisor.era.subscriptions import SUBSCRIPTION
from carpool_supervisor.era.tasks import MAX_ID_CHARS

NOTIFICATION: Final = "notifications/tasks"
MAX_DROPPED: Final = 1024

_ENDED: Final = frozenset({"completed", "failed", "cancelled"})
_NOT_THERE: Final = b"-32602"


class RelayedTaskCalls:
    """All calls of one instance that concern tasks."""

    def __init__(self, instance: InstanceId) -> None:
        self._instance = instance
        self._calls: dict[WireId, Call] = {}
        self._dropped: dict[WireId, None] = {}
        """The latest cancelled calls that may have begun a task before the cancel reached their server."""

    def call_written(self, wire_id: WireId, call: Call) -> None:
        """A call was written; it is kept if it concerns tasks."""
        if call.method in TASK_ID_KEYS:
            self._calls[wire_id] = call

    def call_ended(self, wire_id: WireId) -> Call | None:
        """A call was answered or abandoned. Returns it if it concerned tasks."""
        return self._calls.pop(wire_id, None)

    def call_cancelled(self, wire_id: WireId) -> None:
        """A call that may begin a task was cancelled."""
        self._dropped[wire_id] = None
        if len(self._dropped) > MAX_DROPPED:
            del self._dropped[next(iter(self._dropped))]

    def was_cancelled(self, wire_id: WireId) -> bool:
        """True, once, for the answer to such a call."""
        if wire_id not in self._dropped:
            return False
        del self._dropped[wire_id]
        return True

    def task_created(self, wire_id: WireId, result: RawJson) -> ServerAnswered | AnswerUnreadable:
        """A call was answered with a task."""
        task = _id_of(result)
        if not task:
            return AnswerUnreadable(
                self._instance, wire_id, "bad_answer", "The result is a task without an id."
            )
        body = _neutral(result)
        return ServerAnswered(self._instance, wire_id, False, body, task=task, task_ttl_ms=_ttl_ms(result))

    def call_answered(
        self, wire_id: WireId, call: Call, result: RawJson
    ) -> ServerAnswered | AnswerUnreadable:
        """A call about a task was answered. (Examples in the specification have a member `task` there.)"""
        kind, _ = read_result(result)
        if result[:1] != b"{" or kind not in ("complete", "task"):
            text = "The result is no object, or has an invalid resultType."
            return AnswerUnreadable(self._instance, wire_id, "bad_answer", text)
        over = call.method == "tasks/cancel" or (call.method == "tasks/get" and _has_ended(result))
        return ServerAnswered(self._instance, wire_id, False, _neutral(result), task_over=over)

    def call_failed(self, wire_id: WireId, call: Call, error: RawJson) -> ServerAnswered:
        """A call about a task failed. A task that its server does not know has ended."""
        over = call.method == "tasks/get" and value_of(error, "code") == _NOT_THERE
        body = neutral_error(call.method, error, same_era=True)
        return ServerAnswered(self._instance, wire_id, True, body, task_over=over)

    def task_changed(self, params: RawJson) -> TaskChanged | None:
        """Read `notifications/tasks`; None if it names no task."""
        task = _id_of(params)
        if not task:
            return None
        body = _neutral(params)
        return TaskChanged(self._instance, task, _has_ended(params), body)


def _id_of(task: RawJson) -> str:
    """The id of a task; empty if it has none or it is no text."""
    text = text_of(task, "taskId") or ""
    try:
        text.encode()
    except UnicodeEncodeError:
        return ""
    return text if len(text) <= MAX_ID_CHARS else ""


def _ttl_ms(task: RawJson) -> int:
    """The time to live since the task was created; -1 if it is unlimited or not given."""
    digits = value_of(task, "ttlMs") or b""
    return int(digits) if digits.isdigit() and len(digits) <= MAX_DIGITS else -1


def _has_ended(task: RawJson) -> bool:
    return text_of(task, "status") in _ENDED


def _neutral(task: RawJson) -> RawJson:
    """The result without the members that concern only the server and carpool."""
    meta = RawJson(value_of(task, "_meta") or b"")
    left = without(without(meta, SERVER_INFO), SUBSCRIPTION) if meta[:1] == b"{" else meta
    keep = None if not left else (lambda _: left)
    return RawJson(change_members(task, {"resultType": None, "requestState": None, "_meta": keep}))
