"""Tasks that servers of the stateless era have begun for agents (extension `io.modelcontextprotocol/tasks`).

Owns whose each task is and where it runs: under an id of ours, which nobody can guess, it is found by the
session that it was begun for, and by no other. It is there until its server keeps it no longer, until its
instance turns out to be gone, or until its session ends: then it is cancelled. Owns also which listens hear
of which task. To agents and servers of the handshake era there are none. Source: SEP-2663 of MCP 2026-07-28.

Invariants (`check`): each task has a deadline and a session that is there; the indexes agree; a listen that
hears of a task is one of its session. What is refused says the same of ids that are another's and of ids that
are nobody's.
Knows nothing of: how far a task is, what it wants, how it is worded.
Decision: docs/decisions/0016.
"""

from collections.abc import Callable, Iterable, Mapping
from hashlib import blake2b
from typing import Final, TypeVar

from carpool_broker.core.calls.call_listeners import CallResult
from carpool_broker.core.calls.call_table import CallTable
from carpool_broker.core.configuration.session_views import SessionViews
from carpool_broker.core.model.answers import error_reply
from carpool_broker.core.model.capabilities import StatelessAgent
from carpool_broker.core.model.effects import AnyEffect, ReplyStateless, SendTaskStatus
from carpool_broker.core.model.events import CallRequested
from carpool_broker.core.model.session import OpenCall, Session
from carpool_broker.core.model.timer_kinds import BrokerTimers
from carpool_broker.core.registry.answer_rewrites import needs_rewrite
from carpool_broker.core.registry.registry import Registry
from carpool_broker.core.registry.request_target import denied_by_profile, is_still_allowed
from carpool_broker.core.registry.view import View
from carpool_protocol.faults.fault_answers import TOOLS_CALL, InvariantBroken
from carpool_protocol.ids import InstanceId, PoolKey, RawJson, ServerName, SessionId, SupervisorName
from carpool_protocol.link.messages import CallAnswered, CancelTask, SetTaskSubscriptions, TaskStatusChanged
from carpool_protocol.wire.downgrade import NEWEST
from carpool_protocol.wire.stateless import missing_tasks

K = TypeVar("K")

MAX_TASKS: Final = 256
"""The greatest number of tasks of one session. Beyond it no server is told that its agent knows tasks."""
MAX_KEPT_S: Final = 24 * 3600.0
"""No task is kept longer, whatever its server says."""


class AgentTask:
    """One task."""

    __slots__ = ("id", "instance", "key", "listens", "server", "session", "theirs", "tool")

    def __init__(self, id_: str, open_call: OpenCall, answer: CallAnswered) -> None:
        self.id = id_
        self.session: SessionId = open_call.session.id
        self.server: ServerName = open_call.server
        self.key: PoolKey = open_call.key
        self.tool = open_call.target
        """The tool that began it, by its server's own name."""
        self.instance = answer.instance
        self.theirs = answer.task
        """The server's own id of the task."""
        self.listens: set[RawJson] = set()


class AgentTasks:
    """The tasks of all sessions."""

    def __init__(
        self,
        sessions: Mapping[SessionId, Session],
        registry: Registry,
        session_views: SessionViews,
        call_table: CallTable,
        out: Callable[[AnyEffect], None],
        *,
        timers: BrokerTimers,
        secret: bytes,
        life: int,
    ) -> None:
        self._sessions = sessions
        self._timers = timers
        self._registry = registry
        self._session_views = session_views
        self._call_table = call_table
        self._emit = out
        self._secret = secret
        """Ids are made with this secret, which nobody outside knows."""
        self._life = life
        """The number of this broker, so that another broker with the same secret makes other ids."""
        self._count = 0
        self._tasks: dict[str, AgentTask] = {}
        self._of_session: dict[SessionId, dict[str, AgentTask]] = {}
        self._at: dict[InstanceId, dict[str, AgentTask]] = {}

    # --- who knows of tasks ----------------------------------------------------------------------------

    def is_served(self, view: View) -> bool:
        """True if some server of this view is known to support tasks."""
        catalogs = (self._registry.known_catalog(entry.key) for entry in view.scope.servers)
        return any(catalog is not None and catalog.tasks for catalog in catalogs)

    def may_create(self, open_call: OpenCall) -> bool:
        """True if the server is told that the agent of this call knows tasks."""
        by = open_call.asked.by
        if by is None or not by.tasks:
            return False
        if open_call.asked.method != TOOLS_CALL:
            return bool(open_call.task)
        if self._is_hooked(open_call):
            return False
        return len(self._of_session.get(open_call.session.id, ())) < max(
            MAX_TASKS, open_call.session.max_open_calls
        )

    def _is_hooked(self, open_call: OpenCall) -> bool:
        """True if hooks get the answer of this call: the result of a task would bypass them."""
        hooks = self._call_table.hook_points
        return hooks is not None and hooks.concerns_answer(open_call)

    def objection(
        self, session: Session, request: RawJson, by: StatelessAgent, method: str
    ) -> ReplyStateless | None:
        """Return why a request that names tasks is refused, whichever it names; None if it is not."""
        if by.tasks or not self._are_here(session):
            return None
        return ReplyStateless(session.id, request, is_error=True, body=missing_tasks(), method=method)

    def _are_here(self, session: Session) -> bool:
        """True if tasks are, or were, served to this session."""
        return session.id in self._of_session or self.is_served(self._session_views.view_of(session))

    # --- the life of a task ----------------------------------------------------------------------------

    def task_created(self, open_call: OpenCall, answer: CallAnswered, now: float) -> CallResult | None:
        """See `call_listeners.StatelessCallListener`."""
        by = open_call.asked.by
        if by is None or not by.tasks or self._is_hooked(open_call):
            self._emit(CancelTask(answer.instance, answer.task))
            return None
        task = AgentTask(self._new_id(), open_call, answer)
        self._tasks[task.id] = task
        self._of_session.setdefault(task.session, {})[task.id] = task
        self._at.setdefault(task.instance, {})[task.id] = task
        ttl_s = MAX_KEPT_S if answer.task_ttl_ms < 0 else min(answer.task_ttl_ms / 1000, MAX_KEPT_S)
        self._timers.arm("task", task.id, now, ttl_s)
        return CallResult(False, answer.body, task=task.id)

    def _new_id(self) -> str:
        if not self._secret:
            raise InvariantBroken("an id of a task without a secret")
        self._count += 1
        said = b"task %d of life %d" % (self._count, self._life)
        return blake2b(said, key=self._secret[:64], digest_size=16).hexdigest()

    def task_requested(self, session: Session, event: CallRequested, now: float) -> None:
        """A request about a task has come."""
        assert event.by is not None
        refused = self.objection(session, event.id, event.by, event.method)
        task = self._tasks.get(event.name)
        if refused is not None:
            self._emit(refused)
        elif not self._are_here(session):  # what is not announced is not served
            self._emit(error_reply(session, event.id, event.by, "unknown_method", method=event.method))
        elif task is None or task.session != session.id:
            self._emit(error_reply(session, event.id, event.by, "unknown_task", method=event.method))
        elif not self.is_permitted(task.id, event.method):
            why = denied_by_profile(session.scope)
            self._emit(
                error_reply(session, event.id, event.by, "not_permitted", detail=why, method=event.method)
            )
        else:
            open_call = self._call_table.open(session, event)
            open_call.server, open_call.key, open_call.target = task.server, task.key, task.theirs
            open_call.task, open_call.instance = task.id, task.instance
            open_call.edit = needs_rewrite(self._session_views.view_of(session), task.key, NEWEST)
            self._call_table.admission.admit(open_call, now)

    def is_permitted(self, task_id: str, method: str) -> bool:
        """True if its session may send this request about it now. Cancelling is always allowed."""
        task = self._tasks.get(task_id)
        if task is None or method == "tasks/cancel":
            return True
        return is_still_allowed(
            self._session_views.view_of(self._sessions[task.session]), TOOLS_CALL, task.server, task.tool
        )

    def task_lost(self, task_id: str) -> None:
        """The instance of the task is gone."""
        task = self._tasks.get(task_id)
        if task is not None:
            self._drop(task)

    def _drop(self, task: AgentTask) -> None:
        self._timers.disarm("task", task.id)
        del self._tasks[task.id]
        _take_out(self._of_session, task.session, task)
        _take_out(self._at, task.instance, task)

    def session_closed(self, session: Session) -> None:
        """The session has closed: nobody can ask for its tasks any more."""
        for task in list(self._of_session.get(session.id, {}).values()):
            self._drop(task)
            self._emit(CancelTask(task.instance, task.theirs))

    def tasks_of(self, supervisor: SupervisorName) -> set[str]:
        """Return the ids of the tasks on instances of this supervisor."""
        runs = self._call_table.links.runs
        return {task.id for task in self._tasks.values() if runs(supervisor, task.key)}

    def supervisor_lost(self, name: SupervisorName) -> None:
        """This supervisor has gone, and all of its instances with it."""
        for task_id in self.tasks_of(name):
            self._drop(self._tasks[task_id])
        runs = self._call_table.links.runs
        for session in self._sessions.values():
            for open_call in [each for each in session.waiting if each.task and runs(name, each.key)]:
                self._call_table.fail(open_call, "unknown_task")

    def expire(self, tasks: Iterable[str]) -> None:
        """Forget these tasks, which their servers may have forgotten by now."""
        for task_id in tasks:
            task = self._tasks[task_id]
            self._drop(task)
            if task.listens:
                self._send_subscriptions(task.instance)

    # --- listens ---------------------------------------------------------------------------------------

    def of_session(self, session: Session, wanted: Iterable[str]) -> tuple[str, ...]:
        """Return the tasks among these ids that belong to this session."""
        mine = self._of_session.get(session.id, {})
        return tuple(each for each in wanted if each in mine)

    def set_listening(self, ids: Iterable[str], listen: RawJson, *, on: bool) -> None:
        """A listen begins or ends to hear of these tasks."""
        touched: set[InstanceId] = set()
        for task in [self._tasks[each] for each in ids if each in self._tasks]:
            (task.listens.add if on else task.listens.discard)(listen)
            touched.add(task.instance)
        for instance in sorted(touched):
            self._send_subscriptions(instance)

    def _send_subscriptions(self, instance: InstanceId) -> None:
        theirs = {task.theirs for task in self._at.get(instance, {}).values() if task.listens}
        self._emit(SetTaskSubscriptions(instance, sorted(theirs)))

    def task_status_changed(self, event: TaskStatusChanged) -> None:
        """A server reports the status of a task."""
        for task in self._at.get(event.instance, {}).values():
            if task.theirs != event.task or not task.listens or not self.is_permitted(task.id, ""):
                continue
            session = self._sessions[task.session]
            view = self._session_views.view_of(session)
            key = task.key if needs_rewrite(view, task.key, NEWEST) else PoolKey("")
            for listen in sorted(task.listens):
                if not self._call_table.unread.drop_task_status(session, len(event.params)):
                    self._emit(SendTaskStatus(task.session, task.id, event.params, listen, key))

    def check(self) -> None:
        """Assert every invariant."""
        assert self._timers.keys("task") == self._tasks.keys()
        assert (
            sum(map(len, self._of_session.values())) == sum(map(len, self._at.values())) == len(self._tasks)
        )
        for task_id, task in self._tasks.items():
            assert task.id == task_id
            assert self._of_session[task.session][task_id] is self._at[task.instance][task_id] is task
            session = self._sessions[task.session]
            for listen in task.listens:
                assert task_id in session.listens[listen].tasks, "a listen that is over hears of a task"


def _take_out(index: dict[K, dict[str, AgentTask]], key: K, task: AgentTask) -> None:
    del index[key][task.id]
    if not index[key]:
        del index[key]
