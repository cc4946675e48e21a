"""Budgets of memory that agents use in the broker, all sessions together: arguments of open calls, and
unread answers.

Owns both sums and the decision whether more may be added. One rule holds for both: a session may use as much
as is left for all others. So the first that floods gets half, the next one half of the rest, and the sum
never exceeds the budget. Small things are never refused, because their number is bounded otherwise
(docs/rules.md, rule 3).

The transport reports unread bytes once per MiB (`UnreadChanged`); answers sent between two reports are added
here. While an agent leaves much unread, its calls wait, progress and log messages are dropped (and counted,
for the log), and of the changes of each resource only the last one is kept.

Invariants (`check`): the sums are those of the sessions. Refuses to know: sockets, what a call is, how a
refusal is worded.
"""

from collections.abc import Callable, Iterable
from typing import Final

from carpool_broker.core.model.effects import AnyEffect, LogLine, SendResourceUpdated
from carpool_broker.core.model.session import OpenCall, Session

COUNTED_BYTES: Final = 4096
"""Arguments up to this size are not counted: a session has a few hundred calls at most."""
GUARANTEED_BYTES: Final = 256 * 1024
"""A session may have this many bytes of arguments open, whatever others use."""
SMALL_ANSWER_BYTES: Final = 64 * 1024
"""Answers up to this size are always kept."""
UNREAD_STEP_BYTES: Final = 1024 * 1024
"""An agent that leaves more than this unread gets nothing that it can do without, and none of its calls is
sent.
"""


class ArgumentBudget:
    """The arguments of all open calls. A call counts from when it is opened until it is answered or
    cancelled.
    """

    def __init__(self) -> None:
        self.size_bytes = 0

    def call_opened(self, open_call: OpenCall) -> None:
        """Count this call, if its arguments are large."""
        if open_call.size_bytes > COUNTED_BYTES:
            self.size_bytes += open_call.size_bytes
            open_call.session.argument_bytes += open_call.size_bytes

    def call_closed(self, open_call: OpenCall) -> None:
        """The arguments of this call are no longer kept."""
        if open_call.size_bytes > COUNTED_BYTES:
            self.size_bytes -= open_call.size_bytes
            open_call.session.argument_bytes -= open_call.size_bytes

    def exceeds(self, open_call: OpenCall, max_bytes: int) -> bool:
        """True if this call, which is counted, exceeds what its session may have open."""
        if open_call.size_bytes <= COUNTED_BYTES:
            return False
        mine = open_call.session.argument_bytes
        return mine > GUARANTEED_BYTES and mine > max_bytes - (self.size_bytes - open_call.size_bytes)

    def check(self, sessions: Iterable[Session]) -> None:
        """Assert every invariant."""
        assert self.size_bytes == sum(each.argument_bytes for each in sessions)


class UnreadBudget:
    """The bytes that agents have not read."""

    def __init__(self, out: Callable[[AnyEffect], None]) -> None:
        self._emit = out
        self.size_bytes = 0

    def unread_changed(self, session: Session, unread_bytes: int) -> None:
        """The transport reports how many bytes wait for this agent; 0 if it reads."""
        self.size_bytes += unread_bytes - session.unread_bytes
        session.unread_bytes = unread_bytes
        if unread_bytes <= UNREAD_STEP_BYTES:
            late, session.postponed = session.postponed, {}
            for each in late.values():
                self._emit(each)
            self._report_dropped(session)

    def may_keep_answer(self, session: Session, size_bytes: int, max_bytes: int) -> bool:
        """Return whether an answer of this size is kept for an agent that does not read; it counts then."""
        mine = session.unread_bytes + size_bytes
        if size_bytes > SMALL_ANSWER_BYTES and mine > max_bytes - self.size_bytes:
            return False
        self.size_bytes += size_bytes
        session.unread_bytes = mine
        return True

    def drop_notification(self, session: Session) -> bool:
        """Return whether a progress or log message is dropped now; then it is counted."""
        if session.unread_bytes <= UNREAD_STEP_BYTES:
            return False
        session.left_out += 1
        return True

    def drop_repeated_update(self, effect: SendResourceUpdated, session: Session) -> None:
        """Return whether this update of a resource is postponed: an agent that does not read gets the last
        one of each.
        """
        if session.unread_bytes > UNREAD_STEP_BYTES:
            session.postponed[effect.uri, effect.listen] = effect
        else:
            self._emit(effect)

    def session_closed(self, session: Session) -> None:
        """The session has closed."""
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
