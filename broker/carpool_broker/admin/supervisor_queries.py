"""Queries to the supervisor on behalf of operators, with their answers.

Owns the tokens of open queries. A query ends with its answer, with the loss of the supervisor or after its
time limit, so none waits for ever. One that is asked while no supervisor is linked ends at once.

A file of its own because four others use it.

Knows nothing of: the content of queries, the operators, pools.
"""

from collections.abc import Callable
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
"""The supervisor's answers to queries of operators."""

NoAnswer = Literal["late", "lost"]
"""Why a query has no answer: its time is over, or the supervisor is gone."""


class SupervisorQueries:
    """Open queries. `send`: puts a message on the link and flushes it; `supervisors`: returns the linked
    ones.
    """

    def __init__(
        self, send: Callable[[AnyMessage], None], supervisors: Callable[[], list[tuple[str, int]]]
    ) -> None:
        self.send = send
        self.supervisors = supervisors
        self._tokens = 0
        self._open_queries: dict[int, tuple[trio.Event, list[QueryAnswer | NoAnswer]]] = {}

    def require_supervisor(self) -> None:
        """Raise `ControlError` if no supervisor is linked."""
        if not self.supervisors():
            raise ControlError("supervisor_away", "")

    async def query(self, make: Callable[[int], AnyMessage], limit_s: float) -> QueryAnswer | NoAnswer:
        """Send the message that `make` builds for a token, and return the answer if it comes in time."""
        return await self.query_by(lambda token: self.send(make(token)), limit_s)

    async def query_by(self, ask: Callable[[int], None], limit_s: float) -> QueryAnswer | NoAnswer:
        """Call `ask`, which sends a token to the supervisor; return the answer if it comes in time."""
        if not self.supervisors():
            return "lost"
        self._tokens += 1
        token = self._tokens
        event = trio.Event()
        answers: list[QueryAnswer | NoAnswer] = []
        self._open_queries[token] = (event, answers)
        try:
            ask(token)
            with trio.move_on_after(limit_s):
                await event.wait()
        finally:
            del self._open_queries[token]
        return answers[0] if answers else "late"

    def answer_received(self, message: QueryAnswer) -> None:
        """Take an answer of the supervisor. One without an open query is dropped."""
        waiting = self._open_queries.get(message.token)
        if waiting is not None:
            waiting[1].append(message)
            waiting[0].set()

    def supervisor_lost(self) -> None:
        """End all open queries without an answer."""
        for event, answers in self._open_queries.values():
            answers.append("lost")
            event.set()
