"""What the supervisor is asked for operators, and what it answers.

Owns the tokens of these questions and which of them are open. A question ends when it is answered, when the
supervisor goes or after its time, whichever is first: nobody waits for ever.

A file of its own because four others ask with it.

Knows nothing of: what is asked, who asks, pools.
"""

from collections.abc import Callable

import trio

from carpool_broker.admin.methods import ControlError
from carpool_protocol.link.messages import AnyMessage, JournalRead, OperationEnded, SharingExplained, Surveyed

QueryAnswer = Surveyed | OperationEnded | SharingExplained | JournalRead
"""What the supervisor answers to questions of operators."""


class SupervisorQueries:
    """`send` puts a message on the link and flushes it; `supervisors`: those that are linked."""

    def __init__(
        self, send: Callable[[AnyMessage], None], supervisors: Callable[[], list[tuple[str, int]]]
    ) -> None:
        self.send = send
        self.supervisors = supervisors
        self._tokens = 0
        self._open_queries: dict[int, tuple[trio.Event, list[QueryAnswer]]] = {}

    def require_supervisor(self) -> None:
        """Raises `ControlError` while there is none."""
        if not self.supervisors():
            raise ControlError("supervisor_away", "")

    async def query(self, make: Callable[[int], AnyMessage], limit_s: float) -> QueryAnswer | None:
        """The answer to what `make` gives for the token; None: there came none."""
        self._tokens += 1
        token = self._tokens
        event = trio.Event()
        answers: list[QueryAnswer] = []
        self._open_queries[token] = (event, answers)
        try:
            self.send(make(token))
            with trio.move_on_after(limit_s):
                await event.wait()
        finally:
            del self._open_queries[token]
        return answers[0] if answers else None

    def answer_received(self, message: QueryAnswer) -> None:
        """An answer of the supervisor; one that nobody waits for any more is dropped."""
        waiting = self._open_queries.get(message.token)
        if waiting is not None:
            waiting[1].append(message)
            waiting[0].set()

    def supervisor_lost(self) -> None:
        """No answer comes any more."""
        for event, _ in self._open_queries.values():
            event.set()
