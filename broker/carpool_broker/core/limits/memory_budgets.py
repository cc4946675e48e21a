"""What agents make the broker keep, all sessions together: arguments of open calls, answers left unread.

Owns both sums and who may still add to them. One rule for both: a session may have as much as is left for all
others, so that the first to flood gets half, the next half of the rest, and the sum never exceeds the budget;
what is small always gets in, for its number is bounded otherwise (rule 3).

Whose agent does not read is said by the door, every MiB (`UnreadChanged`); between two of its words what is
answered is added here. While much is unread the agent's calls wait, it hears neither progress nor log
messages (they are counted, for the log), and of the changes of each resource it hears the last, later.

Invariants (`check`): the sums are those of the sessions.
Knows nothing of: sockets, what a call is, how a refusal is worded.
"""

from collections.abc import Callable, Iterable
from typing import Final

from carpool_broker.core.model.effects import AnyEffect, LogLine, SendResourceUpdated
from carpool_broker.core.model.session import OpenCall, Session

COUNTED_BYTES: Final = 4096
"""Arguments up to this size are not counted: a session has no more than a few hundred calls."""
GUARANTEED_BYTES: Final = 256 * 1024
"""So much of arguments a session may have open whatever others do."""
SMALL_ANSWER_BYTES: Final = 64 * 1024
"""Answers up to this size are always kept."""
UNREAD_STEP_BYTES: Final = 1024 * 1024
"""An agent that leaves more unread gets nothing that it can do without, and no call of it is sent."""


class ArgumentBudget:
    """Of all open calls. A call is counted from its entry until it is answered, or cancelled."""

    def __init__(self) -> None:
        self.size_bytes = 0

    def call_opened(self, open_call: OpenCall) -> None:
        """Count this call, if it is large."""
        if open_call.size_bytes > COUNTED_BYTES:
            self.size_bytes += open_call.size_bytes
            open_call.session.argument_bytes += open_call.size_bytes

    def call_closed(self, open_call: OpenCall) -> None:
        """Its arguments are kept no more."""
        if open_call.size_bytes > COUNTED_BYTES:
            self.size_bytes -= open_call.size_bytes
            open_call.session.argument_bytes -= open_call.size_bytes

    def exceeds(self, open_call: OpenCall, max_bytes: int) -> bool:
        """Whether this call, which is counted, is more than its session may have open."""
        if open_call.size_bytes <= COUNTED_BYTES:
            return False
        mine = open_call.session.argument_bytes
        return mine > GUARANTEED_BYTES and mine > max_bytes - (self.size_bytes - open_call.size_bytes)

    def check(self, sessions: Iterable[Session]) -> None:
        """Assert every invariant."""
        assert self.size_bytes == sum(each.argument_bytes for each in sessions)


class UnreadBudget:
    """What all agents have not read."""

    def __init__(self, out: Callable[[AnyEffect], None]) -> None:
        self._emit = out
        self.size_bytes = 0

    def unread_changed(self, session: Session, unread_bytes: int) -> None:
        """The door says how much waits for this agent; 0: it reads."""
        self.size_bytes += unread_bytes - session.unread_bytes
        session.unread_bytes = unread_bytes
        if unread_bytes <= UNREAD_STEP_BYTES:
            late, session.postponed = session.postponed, {}
            for each in late.values():
                self._emit(each)
            self._report_dropped(session)

    def may_keep_answer(self, session: Session, size_bytes: int, max_bytes: int) -> bool:
        """Whether an answer of this size is kept for an agent that does not read; then it is counted."""
        mine = session.unread_bytes + size_bytes
        if size_bytes > SMALL_ANSWER_BYTES and mine > max_bytes - self.size_bytes:
            return False
        self.size_bytes += size_bytes
        session.unread_bytes = mine
        return True

    def drop_notification(self, session: Session) -> bool:
        """Whether progress and log messages are left out now; if so, this one is counted."""
        if session.unread_bytes <= UNREAD_STEP_BYTES:
            return False
        session.left_out += 1
        return True

    def drop_repeated_update(self, effect: SendResourceUpdated, session: Session) -> None:
        """A resource changed: an agent that does not read hears of the last change of each."""
        if session.unread_bytes > UNREAD_STEP_BYTES:
            session.postponed[effect.uri, effect.listen] = effect
        else:
            self._emit(effect)

    def session_closed(self, session: Session) -> None:
        """The agent is gone."""
        self.size_bytes -= session.unread_bytes
        session.unread_bytes = 0
        session.postponed.clear()
        self._report_dropped(session)

    def _report_dropped(self, session: Session) -> None:
        count, session.left_out = session.left_out, 0
        if count:
            text = f"{session.id} did not read: {count} progress and log messages to it were left out"
            self._emit(LogLine("warning", text))

    def check(self, sessions: Iterable[Session]) -> None:
        """Assert every invariant."""
        assert self.size_bytes == sum(each.unread_bytes for each in sessions)
