"""Queries to supervisors on behalf of operators, with their answers.

Owns the tokens of open queries. A query ends with its answers, with the loss of those that owe one, or after
its time limit, so none waits for ever. One that is asked while its supervisor is not linked ends at once.

A file of its own because five others use it.

Knows nothing of: the content of queries, the operators, pools.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Literal

import trio

from carpool_broker.admin.methods import ControlError
from carpool_protocol.link.messages import (
    AnyMessage,
    CallsLocated,
    JournalRead,
    OperationEnded,
    SharingExplained,
    Surveyed,
)

QueryAnswer = Surveyed | OperationEnded | SharingExplained | JournalRead | CallsLocated
"""The answers of supervisors to queries of operators."""

NoAnswer = Literal["late", "lost", "away"]
"""Why there is no answer: the time is over, the supervisor died before it answered, or it was not there."""


class OpenQuery:
    """One query: who owes an answer, and the answers."""

    def __init__(self, asked: Collection[str], on_done: Callable[[], None]) -> None:
        """`on_done` is called once nobody owes an answer."""
        self.token = 0
        """What names it to supervisors; 0: it has not begun."""
        self.owed = set(asked)
        self.answers: dict[str, QueryAnswer | NoAnswer] = dict.fromkeys(asked, "late")
        self._on_done = on_done

    def answered(self, supervisor: str, answer: QueryAnswer | NoAnswer) -> None:
        """Take the answer of one of them, or its loss. Another one than the first is dropped."""
        if supervisor in self.owed:
            self.owed.remove(supervisor)
            self.answers[supervisor] = answer
            if not self.owed:
                self._on_done()


class SupervisorQueries:
    """Open queries. `send`: puts a message on the links of those whom it concerns, and flushes them;
    `supervisors`: returns the linked ones, `{name: pid}`; `recipients`: returns the names of those whom a
    message concerns (default: all that are linked).
    """

    def __init__(
        self,
        send: Callable[[AnyMessage], None],
        supervisors: Callable[[], Mapping[str, int]],
        recipients: Callable[[AnyMessage], Collection[str]] | None = None,
    ) -> None:
        self.send = send
        self.supervisors = supervisors
        self._recipients = recipients
        self._tokens = 0
        self._open_queries: dict[int, OpenQuery] = {}

    def require_supervisor(self) -> None:
        """Raise `ControlError` if no supervisor is linked."""
        if not self.supervisors():
            raise ControlError("supervisor_away", "")

    async def query(self, make: Callable[[int], AnyMessage], limit_s: float) -> QueryAnswer | NoAnswer:
        """Send the message that `make` builds for a token to the one supervisor whom it concerns, and return
        the answer if it comes in time.
        """
        return await self.query_by(lambda token: self.send(make(token)), limit_s, make(0))

    async def query_by(
        self, ask: Callable[[int], None], limit_s: float, about: AnyMessage
    ) -> QueryAnswer | NoAnswer:
        """Call `ask`, which sends a token to the supervisor whom the message `about` concerns; return the
        answer if it comes in time.
        """
        recipients = self._linked_recipients(about)
        if not recipients:
            return "away"
        answers = await self._query(ask, limit_s, recipients)
        return answers[recipients[0]]

    async def query_all(
        self, make: Callable[[int], AnyMessage], limit_s: float
    ) -> dict[str, QueryAnswer | NoAnswer]:
        """Send the message that `make` builds for a token to all linked supervisors, and return the answers
        by supervisor, with those that came in time. Empty: none is linked.
        """
        linked = list(self.supervisors())
        return await self._query(lambda token: self.send(make(token)), limit_s, linked) if linked else {}

    def _linked_recipients(self, message: AnyMessage) -> list[str]:
        linked = self.supervisors()
        if self._recipients is None:
            return list(linked)
        return [name for name in self._recipients(message) if name in linked]

    async def _query(
        self, ask: Callable[[int], None], limit_s: float, asked: Collection[str]
    ) -> dict[str, QueryAnswer | NoAnswer]:
        done = trio.Event()
        query = OpenQuery(asked, done.set)
        try:
            self.begin(query, ask)
            with trio.move_on_after(limit_s):
                await done.wait()
        finally:
            self.end(query)
        return query.answers

    def begin(self, query: OpenQuery, ask: Callable[[int], None]) -> None:
        """Begin a query: `ask` sends its token to those who owe an answer. It is open until `end`."""
        self._tokens += 1
        query.token = self._tokens
        self._open_queries[query.token] = query
        ask(query.token)

    def end(self, query: OpenQuery) -> None:
        """End a query: an answer that still comes is dropped."""
        self._open_queries.pop(query.token, None)

    def answer_received(self, supervisor: str, message: QueryAnswer) -> None:
        """Take an answer of a supervisor. One without an open query is dropped."""
        query = self._open_queries.get(message.token)
        if query is not None:
            query.answered(supervisor, message)

    def supervisor_lost(self, supervisor: str) -> None:
        """End what this supervisor owes to open queries without an answer."""
        for query in list(self._open_queries.values()):
            query.answered(supervisor, "lost")
