"""The second check of calls that were resolved, and that no server has: may they still go there?

Owns what ends such a call meanwhile (its server was disabled or has left the session's view, the profile
keeps back what it is for, a tool is held until the user approves it), and that it goes to the pool that
serves its session now, also if another pool had it in its queue and was replaced. Refuses to know: why calls
wait (`admission`, `hook_points`), requests that wait for a catalog (`dispatch`).
"""

from collections.abc import Mapping

from carpool_broker.core.calls.call_table import CallTable
from carpool_broker.core.calls.tasks import AgentTasks
from carpool_broker.core.configuration.session_views import SessionViews
from carpool_broker.core.model.session import OpenCall, Session
from carpool_broker.core.registry.answer_rewrites import needs_rewrite
from carpool_broker.core.registry.request_target import HELD_REASONS, denied_by_profile, is_still_allowed
from carpool_protocol.faults.fault_answers import TOOLS_CALL
from carpool_protocol.ids import SessionId
from carpool_protocol.link.messages import CallFailed


class CallRecheck:
    """The second check of calls of all sessions."""

    def __init__(
        self,
        sessions: Mapping[SessionId, Session],
        session_views: SessionViews,
        call_table: CallTable,
        tasks: AgentTasks,
    ) -> None:
        self._sessions = sessions
        self._session_views = session_views
        self._call_table = call_table
        self._tasks = tasks

    def recheck_session(self, session: Session) -> None:
        """The session sees other pools now, or has other rights: check its queued calls."""
        for open_call in list(session.waiting):
            self.may_be_sent(open_call)

    def recheck_held(self) -> None:
        """Catalogs of pinned servers have come: refuse queued calls of tools that are held now."""
        for session in self._sessions.values():
            for open_call in list(session.waiting):
                self._refuse_if_held(open_call)

    def may_be_sent(self, open_call: OpenCall) -> bool:
        """Return whether a call that has waited may still go to its server, perhaps to another pool of it.
        Otherwise the call is ended.
        """
        session = open_call.session
        disabled = self._session_views.sources.disabled_servers(session.source)
        if open_call.server in disabled and not open_call.task:
            self._call_table.fail(open_call, "disabled", disabled[open_call.server].why)
            return False
        if not self._is_permitted(open_call):
            self._call_table.fail(open_call, "not_permitted", denied_by_profile(session.scope))
            return False
        if self._refuse_if_held(open_call):
            return False
        if open_call.task:  # it is where it is
            return True
        entry = session.scope.entry_of(open_call.server)
        if entry is None:  # over there it would lease an instance that nobody calls again
            self._call_table.fail(open_call, "draining", "Its configuration has just changed.", 0.5)
            return False
        if entry.key != open_call.key:
            open_call.key = entry.key
            open_call.edit = needs_rewrite(
                self._session_views.view_of(session), open_call.key, open_call.version
            )
        return True

    def send_again(self, failure: CallFailed, now: float) -> bool:
        """Send a call to the pool that serves its session now, if its pool was replaced before a server had
        it. Returns False if this failure has another reason, or the call was sent again before.
        """
        open_call = self._call_table.calls.get(failure.call)
        if (
            open_call is None
            or (failure.fault, failure.delivered) != ("draining", "no")
            or open_call.stage != "sent"
            or open_call.is_sent_again
            or open_call.task  # it is where it is
            or open_call.rounds
        ):
            return False
        if self.may_be_sent(open_call):
            self._call_table.send_again(open_call, now)
        else:
            self._call_table.admission.send_queued(open_call.session, now)
        return True

    def is_unclear_resource(self, open_call: OpenCall) -> bool:
        """True if the URI of a call does not tell which resource of its server is meant (`listed_uris`)."""
        return (
            self._session_views.view_of(open_call.session)
            .uris.listed_uris(open_call.server)
            .is_unclear(open_call.target)
        )

    def _is_permitted(self, open_call: OpenCall) -> bool:
        if open_call.task:
            return self._tasks.is_permitted(open_call.task, open_call.asked.method)
        return is_still_allowed(
            self._session_views.view_of(open_call.session),
            open_call.asked.method,
            open_call.server,
            open_call.target,
        )

    def _refuse_if_held(self, open_call: OpenCall) -> bool:
        """Refuse a call of a tool that is held by now. Returns False if the tool is not held."""
        held = self._session_views.view_of(open_call.session).held_tools
        why = (
            held.get((open_call.server, open_call.target))
            if held and open_call.asked.method == TOOLS_CALL
            else None
        )
        if why is not None:
            self._call_table.fail(open_call, "quarantined", HELD_REASONS[why])
        return why is not None
