"""A second look at calls that have found their place and have not left: may they still go there?

Owns what ends them meanwhile (their server was switched off or is not there for their session any more, the
profile keeps back what they are for, a tool is held until the user approves it) and that they go to the pool
which serves their session now.

Knows nothing of: why they wait (`admission`, `hook_points`), what waits for a catalog (`dispatch`).
"""

from collections.abc import Mapping

from carpool_broker.core.calls.call_table import Ledger
from carpool_broker.core.calls.tasks import Tasks
from carpool_broker.core.configuration.session_views import Outlook
from carpool_broker.core.model.session import Owed, Session
from carpool_broker.core.registry.answer_rewrites import needed
from carpool_broker.core.registry.resolve import HELD, may_still, of_profile
from carpool_protocol.faults.faults import TOOLS_CALL
from carpool_protocol.ids import SessionId


class SecondLook:
    """For all sessions."""

    def __init__(
        self, sessions: Mapping[SessionId, Session], outlook: Outlook, ledger: Ledger, tasks: Tasks
    ) -> None:
        self._sessions = sessions
        self._outlook = outlook
        self._ledger = ledger
        self._tasks = tasks

    def at_line(self, session: Session) -> None:
        """The session sees other pools now, or has other rights."""
        for owed in list(session.waiting):
            self.may_leave(owed)

    def at_held(self) -> None:
        """Catalogs of pinned servers came: what waits for a tool that is held now is refused."""
        for session in self._sessions.values():
            for owed in list(session.waiting):
                self._is_held(owed)

    def may_leave(self, owed: Owed) -> bool:
        """Whether a call that has waited since it found its place may go there as things are now; else it is
        ended. Its pool may be another one by now.
        """
        session = owed.session
        disabled = self._outlook.sources.disabled(session.source)
        if owed.server in disabled and not owed.task:
            self._ledger.fail(owed, "disabled", disabled[owed.server].why)
            return False
        if not self._is_permitted(owed):
            self._ledger.fail(owed, "not_permitted", of_profile(session.scope))
            return False
        if self._is_held(owed):
            return False
        if owed.task:  # it is where it is
            return True
        entry = session.scope.entry_of(owed.server)
        if entry is None:  # over there it would lease an instance that nobody calls again
            self._ledger.fail(owed, "draining", "Its configuration has just changed.", 0.5)
            return False
        if entry.key != owed.key:
            owed.key = entry.key
            owed.edit = needed(self._outlook.view(session), owed.key, owed.version)
        return True

    def strays(self, owed: Owed) -> bool:
        """Whether no text tells which resource of its server a call is about (`listed_uris`)."""
        return self._outlook.view(owed.session).uris.listed_of(owed.server).strays(owed.target)

    def _is_permitted(self, owed: Owed) -> bool:
        if owed.task:
            return self._tasks.is_permitted(owed.task, owed.asked.method)
        return may_still(self._outlook.view(owed.session), owed.asked.method, owed.server, owed.target)

    def _is_held(self, owed: Owed) -> bool:
        """Whether it is for a tool that is held by now; then it is refused."""
        held = self._outlook.view(owed.session).held
        why = held.get((owed.server, owed.target)) if held and owed.asked.method == TOOLS_CALL else None
        if why is not None:
            self._ledger.fail(owed, "quarantined", HELD[why])
        return why is not None
