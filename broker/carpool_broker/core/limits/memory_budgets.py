"""Budgets of memory that agents use in the broker, all sessions together: arguments of open calls, unread
answers, and what they are subscribed to.

Owns the sums and the decision whether more may be added. One rule holds for all: an owner may use as much as
is left for all others (`memory_shares`). The owner of arguments is a session. That of unread answers and of
subscriptions is the principal with all its sessions: one door carries them all, and subscriptions last. Small
arguments are never refused, because their number is bounded otherwise (docs/rules.md, rule 3). Small answers
share as much again.

The transport reports unread bytes as they change (`UnreadChanged`); answers sent between two reports are
added here. While an agent leaves much unread, its calls wait, the cache does not answer them, progress and
log messages are dropped (and counted, for the log), and changes of resources wait (`resource_updates`). Asks
of servers and statuses of tasks are kept within a share of a budget of their own, much smaller than that of
answers, because an agent does not decide how many there are.

Invariants (`check`): the sums are those of the sessions. Refuses to know: sockets, what a call is, how a
refusal is worded.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable
from typing import Final

from carpool_broker.core.model.effects import AnyEffect, LogLine
from carpool_broker.core.model.session import OpenCall, Session, SessionOwner
from carpool_protocol.machine.memory_shares import MemoryUse, exceeds_share

COUNTED_BYTES: Final = 4096
"""Arguments up to this size are not counted: a session has a few hundred calls at most."""
GUARANTEED_BYTES: Final = 256 * 1024
"""A session may have this many bytes of arguments open, whatever others use."""
SMALL_ANSWER_BYTES: Final = 64 * 1024
"""Answers up to this size are kept until twice the budget is used; while their owner leaves no more than
`UNREAD_STEP_BYTES` unread, they are always kept.
"""
UNREAD_STEP_BYTES: Final = 1024 * 1024
"""An agent that leaves more than this unread gets nothing that it can do without, and none of its calls is
sent.
"""
MAX_SUBSCRIPTION_BYTES: Final = 16 * 1024 * 1024
"""The limit of the bytes of all subscriptions. The supervisor and each server keep a copy of them."""
SUBSCRIPTION_BYTES: Final = 256
"""The bytes that the record of one subscription takes beside its URI."""
MESSAGE_UNREAD_BYTES: Final = 32 * 1024 * 1024
"""The budget for asks of servers and statuses of tasks that agents have not read."""
LINE_BYTES: Final = 512
"""The bytes that the record of a line takes beside its params, and a short line that withdraws it."""
PRINCIPAL_UNREAD_BYTES: Final = 16 * 1024 * 1024
"""If more than this is unread of all sessions of a principal, they get no progress and log messages."""

"""A token with all its sessions, or one session without a token."""


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
        size_bytes, mine = open_call.size_bytes, open_call.session.argument_bytes
        if size_bytes <= COUNTED_BYTES or mine <= GUARANTEED_BYTES:
            return False
        return exceeds_share(max_bytes, self.size_bytes - size_bytes, mine - size_bytes, size_bytes)

    def check(self, sessions: Iterable[Session]) -> None:
        """Assert every invariant."""
        assert self.size_bytes == sum(each.argument_bytes for each in sessions)


class UnreadBudget:
    """The bytes that agents have not read."""

    def __init__(self, out: Callable[[AnyEffect], None]) -> None:
        self._emit = out
        self.use: MemoryUse[SessionOwner] = MemoryUse()

    def unread_changed(self, session: Session, unread_bytes: int) -> None:
        """The transport reports how many bytes wait for this agent; 0 if it reads."""
        self._add(session, unread_bytes - session.unread_bytes)
        if unread_bytes <= UNREAD_STEP_BYTES:
            self._report_dropped(session)

    def may_keep_answer(self, session: Session, size_bytes: int, max_bytes: int) -> bool:
        """Return whether an answer of this size is kept. If its agent does not read, it counts then."""
        owner = session.owner
        mine = self.use.of(owner)
        if not mine:
            return True
        is_small = size_bytes <= SMALL_ANSWER_BYTES
        budget = 2 * max_bytes if is_small else max_bytes
        is_guaranteed = is_small and mine <= UNREAD_STEP_BYTES
        if not is_guaranteed and self.use.exceeds_share(budget, owner, size_bytes):
            return False
        if session.unread_bytes:  # else the transport reports the answer, if it must wait
            self._add(session, size_bytes)
        return True

    def may_keep_message(self, session: Session, size_bytes: int) -> bool:
        """Return whether a message of this size that answers nothing is kept. If its agent does not read, it
        counts then.
        """
        return self.may_keep_answer(session, size_bytes + LINE_BYTES, MESSAGE_UNREAD_BYTES)

    def drop_task_status(self, session: Session, size_bytes: int) -> bool:
        """Return whether the status of a task is dropped now; then it is counted."""
        if self.may_keep_message(session, size_bytes):
            return False
        session.left_out += 1
        return True

    def is_behind(self, session: Session) -> bool:
        """Return whether this agent leaves so much unread that its calls wait."""
        return session.unread_bytes > UNREAD_STEP_BYTES

    def drop_notification(self, session: Session) -> bool:
        """Return whether a progress or log message is dropped now; then it is counted."""
        if session.unread_bytes <= UNREAD_STEP_BYTES and (
            self.use.total_bytes <= PRINCIPAL_UNREAD_BYTES
            or self.use.of(session.owner) <= PRINCIPAL_UNREAD_BYTES
        ):
            return False
        session.left_out += 1
        return True

    def session_closed(self, session: Session) -> None:
        """The session has closed."""
        self._add(session, -session.unread_bytes)
        self._report_dropped(session)

    def _add(self, session: Session, size_bytes: int) -> None:
        session.unread_bytes += size_bytes
        self.use.add(session.owner, size_bytes)

    def _report_dropped(self, session: Session) -> None:
        count, session.left_out = session.left_out, 0
        if count:
            who = f"{session.id}, or another session of its token," if session.principal else session.id
            text = (
                f"{who} did not read: {count} messages to {session.id} (progress, logs, tasks) were left out"
            )
            self._emit(LogLine("warning", text))

    def check(self, sessions: Iterable[Session]) -> None:
        """Assert every invariant."""
        unread: Counter[SessionOwner] = Counter()
        for each in sessions:
            unread[each.owner] += each.unread_bytes
        self.use.check(unread)


def subscription_bytes(uris: Collection[str]) -> int:
    """Return the number of bytes that subscriptions to these take."""
    return sum(map(len, uris)) + SUBSCRIPTION_BYTES * len(uris)


class SubscriptionBudget:
    """Counts the bytes of all subscriptions. Sessions with the same token share one limit."""

    def __init__(self) -> None:
        self.use: MemoryUse[SessionOwner] = MemoryUse()

    def has_room(self, session: Session, size_bytes: int, *, is_granted: bool = False) -> bool:
        """Return whether the session may be subscribed to so much more. `is_granted`: an earlier broker has
        found room for it, in whatever order it came there.
        """
        if is_granted:
            return self.use.total_bytes + size_bytes <= MAX_SUBSCRIPTION_BYTES
        return not self.use.exceeds_share(MAX_SUBSCRIPTION_BYTES, session.owner, size_bytes)

    def count(self, session: Session, size_bytes: int) -> None:
        """Count so much more; a negative number for what has ended."""
        session.subscription_bytes += size_bytes
        self.use.add(session.owner, size_bytes)

    def session_closed(self, session: Session) -> None:
        """The session has closed."""
        self.count(session, -session.subscription_bytes)

    def check(self, sessions: Iterable[Session]) -> None:
        """Assert every invariant."""
        subscribed: Counter[SessionOwner] = Counter()
        for each in sessions:
            subscribed[each.owner] += each.subscription_bytes
        self.use.check(subscribed)
