"""The answers of carpool's own tools that wait for their turn.

Owns whose answer is made next. An answer takes the longer the more tools, resources and prompts there are,
and an agent may ask for hundreds at once: so each is made between two bursts, one at a time, and other events
are handled in between. Principals take turns, and the sessions of one do; a session without a principal
stands for itself. A search of a long list needs an index, which is made in pieces: one index at a time, and
principals whose answers need none pass. If the list changes meanwhile, the search is answered in one step
from the new list. An agent that leaves much unread gets no further answer until it reads.

Invariants: each call is answered once, also when the process ends; what waits for one principal is bounded,
and a call beyond the bound is refused.

Knows nothing of: what is answered, how a refusal is worded, lines to agents.
"""

from collections import deque
from collections.abc import Callable
from typing import Final

import trio

from carpool_broker.builtin_tools.search import CannotSearchError, ToolSearch, server_tags
from carpool_broker.core.model.effects import AnswerBuiltin
from carpool_broker.core.model.session import SessionOwner
from carpool_broker.core.registry.view import View
from carpool_protocol.ids import SessionId
from carpool_protocol.machine.memory_shares import MemoryUse

MAX_WAITING: Final = 4096
"""The answers that may wait for one principal. The HTTP door lets one have 1,024 requests open."""
MAX_WAITING_BYTES: Final = 32 * 1024 * 1024
"""The bytes of the arguments of all that wait, shared by the principals: one alone may have half."""
MAX_LAST: Final = 256
"""When the process ends, so many are answered at once, in a second at most. The others are refused."""


class _WaitingAnswer:
    __slots__ = ("effect", "needs_index")

    def __init__(self, effect: AnswerBuiltin, *, needs_index: bool) -> None:
        self.effect = effect
        self.needs_index = needs_index
        """False also once the index was made for it."""


class _WaitingOfOne:
    """The answers that wait for one principal, by session. The session whose turn is next stands first."""

    __slots__ = ("count", "sessions")

    def __init__(self) -> None:
        self.sessions: dict[SessionId, deque[_WaitingAnswer]] = {}
        self.count = 0

    def add(self, answer: _WaitingAnswer) -> None:
        """Let an answer wait."""
        self.count += 1
        self.sessions.setdefault(answer.effect.session, deque()).append(answer)

    def take(self, session: SessionId) -> AnswerBuiltin:
        """Remove the first answer of this session, which stands behind the others then."""
        answers = self.sessions.pop(session)
        effect = answers.popleft().effect
        self.count -= 1
        if answers:
            self.sessions[session] = answers
        return effect


class BuiltinAnswerQueue:
    """The waiting answers of one broker."""

    def __init__(
        self,
        finder: ToolSearch,
        *,
        view_of: Callable[[SessionId], View | None],
        is_behind: Callable[[SessionId], bool],
        answer: Callable[[AnswerBuiltin], None],
        refuse: Callable[[AnswerBuiltin, str], None],
    ) -> None:
        """`view_of`: returns what a session sees; None if it has ended. `is_behind`: the agent of a session
        leaves much unread. `answer`, `refuse`: write an answer, or this fault in its place, now.
        """
        self._finder = finder
        self._view_of = view_of
        self._is_behind = is_behind
        self._answer = answer
        self._refuse = refuse
        self._use: MemoryUse[SessionOwner] = MemoryUse()
        self._waiting: dict[SessionOwner, _WaitingOfOne] = {}
        """By principal or session, the one whose turn is next first."""
        self._indexing: tuple[_WaitingAnswer, View] | None = None
        """The search whose index is being made, and what its session saw when that began."""
        self._wakeup = trio.Event()

    def call_received(self, effect: AnswerBuiltin, owner: SessionOwner, *, needs_index: bool) -> None:
        """A call of one of carpool's own tools is to be answered. `needs_index`: it is a search."""
        waiting = self._waiting.get(owner) or _WaitingOfOne()
        size_bytes = len(effect.rest)
        if waiting.count >= MAX_WAITING or self._use.exceeds_share(MAX_WAITING_BYTES, owner, size_bytes):
            self._refuse(effect, "too_many_calls")
            return
        self._use.add(owner, size_bytes)
        waiting.add(_WaitingAnswer(effect, needs_index=needs_index))
        self._waiting[owner] = waiting
        self._wakeup.set()

    def unread_changed(self) -> None:
        """An agent reads again, so that its answers may go on."""
        if self._waiting:
            self._wakeup.set()

    def is_waiting(self, session: SessionId) -> bool:
        """True if an answer waits for this session."""
        return any(session in each.sessions for each in self._waiting.values())

    async def run(self, settle: Callable[[], None]) -> None:
        """Make waiting answers until cancelled. `settle`: called after each answer, so that output can
        leave.
        """
        while True:
            await self._wakeup.wait()
            self._wakeup = trio.Event()
            while True:
                effect = self._take_next()
                if effect is not None:
                    self._answer(effect)
                    settle()
                elif self._indexing is None:
                    break  # nothing waits, but for agents to read
                self._index_more()
                await trio.lowlevel.checkpoint()

    def answer_all(self) -> None:
        """The process ends: answer or refuse all that waits, now."""
        left = MAX_LAST
        while (effect := self._take_next(is_last=True)) is not None:
            if left > 0:
                self._answer(effect)
            else:
                self._refuse(effect, "closing")
            left -= 1

    def _take_next(self, *, is_last: bool = False) -> AnswerBuiltin | None:
        """Remove and return the call that is answered next. `is_last`: whether or not it has to wait."""
        for owner, waiting in self._waiting.items():
            for session, answers in waiting.sessions.items():
                if not is_last:
                    if self._is_behind(session):
                        continue
                    if not self._is_ready(answers[0]):
                        break
                del self._waiting[owner]
                effect = waiting.take(session)
                self._use.add(owner, -len(effect.rest))
                if waiting.sessions:
                    self._waiting[owner] = waiting  # behind the others
                return effect
        return None

    def _is_ready(self, answer: _WaitingAnswer) -> bool:
        """True if this answer can be made in one step. For the first that cannot, an index is begun."""
        if not answer.needs_index:
            return True
        view = self._view_of(answer.effect.session)
        if view is None or self._finder.is_indexed(view.tools, server_tags(view)):
            return True
        if self._indexing is None:
            self._indexing = answer, view
        return False

    def _index_more(self) -> None:
        """Make one more piece of the index that is being made."""
        if self._indexing is None:
            return
        answer, view = self._indexing
        try:
            is_made = self._finder.index_more(view.tools, server_tags(view))
        except CannotSearchError:
            is_made = True  # the answer says so
        if is_made:
            answer.needs_index = False
            self._indexing = None
