"""One query to all supervisors for all who ask the same at once, and one page for all who read it at once.

Owns which round of the query is open, and who waits for which. Who asks while a round is open waits for the
next one, so that nobody is told what was found before they asked; that round begins once the open one is
answered, or has held it up for `HOLD_UP_S`. A round for which nobody waits any more does not begin. So what
supervisors and broker do for status pages does not grow with the number of those who ask, and go.

Invariants: at most one round is open that is not held up; an asker waits no longer than its limit.

Knows nothing of: the content of the query and of its answers, pages.
"""

from collections.abc import Callable, Hashable, Mapping
from typing import Final

import trio
from msgspec import Raw

from carpool_broker.admin.supervisor_queries import NoAnswer, OpenQuery, QueryAnswer, SupervisorQueries
from carpool_protocol.link.messages import AnyMessage

HOLD_UP_S: Final = 0.5
"""A round that is not answered holds the next one up no longer than this: as long as `/health` waits."""

Answers = dict[str, QueryAnswer | NoAnswer]
"""The answers of a round by supervisor, or why there is none."""


class _Round:
    """One query, and how many wait for it."""

    __slots__ = ("answers", "began_at", "begun", "done", "linked", "query", "waiting")

    def __init__(self, linked: Mapping[str, int]) -> None:
        self.linked = dict(linked)
        self.answers: Answers = dict.fromkeys(linked, "late")
        self.begun = trio.Event()
        self.done = trio.Event()
        self.began_at = 0.0
        self.query: OpenQuery | None = None
        self.waiting = 0


class SharedQuery:
    """A query to all linked supervisors that many ask."""

    def __init__(
        self,
        queries: SupervisorQueries,
        make: Callable[[int], AnyMessage],
        heard: Callable[[Answers], None] = lambda _: None,
    ) -> None:
        """`make`: builds the message for a token. `heard`: gets the answers of each round that is complete,
        also where nobody waits for them any more, unless other supervisors are linked by then.
        """
        self._queries = queries
        self._make = make
        self._heard = heard
        self._open: _Round | None = None
        """The round that holds the next one up."""
        self._next: _Round | None = None
        """The round for those who have asked since that began."""

    async def ask(self, limit_s: float) -> Answers:
        """Return the answers of a round that begins after this call, as far as they come in time. Empty: no
        supervisor is linked.
        """
        joined = self._join()
        joined.waiting += 1
        try:
            with trio.move_on_after(limit_s):
                if joined is self._next:
                    await self._until_begun(joined)
                await joined.done.wait()
        finally:
            joined.waiting -= 1
            self._forget_unwanted(joined)
        return joined.answers

    def _join(self) -> _Round:
        joined = self._next
        if joined is None:
            joined = self._next = _Round(self._queries.supervisors())
            if self._open is None:
                self._begin_next()
        return joined

    async def _until_begun(self, joined: _Round) -> None:
        assert self._open is not None
        with trio.move_on_at(self._open.began_at + HOLD_UP_S):
            await joined.begun.wait()
        if joined is self._next:
            self._begin_next()

    def _begin_next(self) -> None:
        """Begin the next round. The open one holds nobody up any more."""
        held_up, begun = self._open, self._next
        assert begun is not None
        self._open, self._next = begun, None
        if held_up is not None:
            self._forget_unwanted(held_up)
        begun.linked = dict(self._queries.supervisors())
        if not begun.linked:
            self._open, begun.answers = None, {}
            begun.begun.set()
            begun.done.set()
            return
        begun.began_at = trio.current_time()
        begun.begun.set()
        query = OpenQuery(begun.linked, lambda: self._answered(begun))
        begun.query, begun.answers = query, query.answers
        self._queries.begin(query, lambda token: self._queries.send(self._make(token)))

    def _answered(self, answered: _Round) -> None:
        """All whom this round asked have answered, or are lost."""
        answered.done.set()
        self._end_query(answered)
        if answered.linked == self._queries.supervisors():
            self._heard(answered.answers)
        if answered is self._open:
            self._open = None
            if self._next is not None:
                self._begin_next()

    def _forget_unwanted(self, unwanted: _Round) -> None:
        """Forget a round for which nobody waits, unless it holds the next one up."""
        if not unwanted.waiting and unwanted is not self._open:
            self._end_query(unwanted)
            if unwanted is self._next:
                self._next = None

    def _end_query(self, ended: _Round) -> None:
        if ended.query is not None:
            self._queries.end(ended.query)
            ended.query = None


class SharedPages:
    """Pages that are made once for all who want them in one pass of the event loop."""

    def __init__(self) -> None:
        self._wanted: dict[Hashable, list[Raw]] = {}
        """By key, for those who go on in the next pass: empty until the first of them has made the page."""

    async def page(self, key: Hashable, make: Callable[[], Raw]) -> Raw:
        """Return the page with this key, made after this call by `make` or by that of another asker."""
        made = self._wanted.setdefault(key, [])
        await trio.lowlevel.checkpoint()
        if not made:
            if self._wanted.get(key) is made:
                del self._wanted[key]  # who comes later gets a page that is made later
            made.append(make())
        return made[0]
