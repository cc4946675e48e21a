"""What follows from the course of a call of the stateless era, part by part.

Owns that log messages are wanted of a server of the handshake era while a call is open that wants some: there
the level is one for the whole instance (MCP 2025-11-25, server/utilities/logging). What calls want in rounds
is `input_required`'s, what they go on as `tasks`'.

Knows nothing of: who hears which message, the link.
"""

from collections.abc import Callable, Sequence

from carpool_broker.core.calls.call_listener import Outcome
from carpool_broker.core.calls.input_required import Parked
from carpool_broker.core.calls.tasks import Tasks
from carpool_broker.core.model.effects import AnyEffect
from carpool_broker.core.model.session import Owed
from carpool_broker.core.registry.registry import Registry
from carpool_broker.core.subscriptions.subscription_table import LEVELS, Interests
from carpool_protocol.ids import RawJson
from carpool_protocol.link.messages import Answered


class Course:
    """See `call_listener.Aftermath`."""

    def __init__(
        self,
        registry: Registry,
        interests: Interests,
        parked: Parked,
        linked: Callable[[], bool],
        out: Callable[[AnyEffect], None],
        *,
        tasks: Tasks,
    ) -> None:
        self._registry = registry
        self._interests = interests
        self._parked = parked
        self._tasks = tasks
        self._linked = linked
        self._out = out

    def leaves(self, owed: Owed) -> None:
        """See `Aftermath`."""
        by = owed.asked.by
        owed.tasks = self._tasks.may_begin(owed)
        if by is None or not (by.level or owed.heard):
            return
        self._unheard(owed)
        catalog = self._registry.catalog(owed.key)
        if by.level in LEVELS and (catalog is None or catalog.era == "handshake"):
            owed.heard = (owed.key, by.level)
            self._count(owed, on=True)

    def closed(self, owed: Owed) -> None:
        """See `Aftermath`."""
        self._unheard(owed)
        self._parked.closed(owed)

    def ended(self, owed: Owed, outcome: Outcome) -> None:
        """See `Aftermath`."""
        self._parked.ended(owed, outcome)

    def sent_to_urls(self, owed: Owed, urls: Sequence[RawJson], now: float) -> bool:
        """See `Aftermath`."""
        return self._parked.sent_to_urls(owed, urls, now)

    def task_began(self, owed: Owed, answer: Answered, now: float) -> Outcome | None:
        """See `Aftermath`."""
        return self._tasks.began(owed, answer, now)

    def task_lost(self, owed: Owed) -> None:
        """See `Aftermath`."""
        self._tasks.lost(owed.task)

    def _unheard(self, owed: Owed) -> None:
        if owed.heard is not None:
            self._count(owed, on=False)
            owed.heard = None

    def _count(self, owed: Owed, *, on: bool) -> None:
        assert owed.heard is not None
        news = self._interests.count_call(*owed.heard, on=on)
        if news is not None and self._linked():
            self._out(news)
