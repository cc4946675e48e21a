"""What follows from the course of a call of the stateless era, part by part.

Owns that log messages are wanted of a server of the handshake era while a call is open that wants some: there
the level is one for the whole instance (MCP 2025-11-25, server/utilities/logging). What calls want in rounds
is `input_required`'s, what they go on as `tasks`'.

Knows nothing of: who hears which message, the link.
"""

from collections.abc import Callable, Sequence

from carpool_broker.core.calls.call_listener import CallResult
from carpool_broker.core.calls.input_required import ParkedCalls
from carpool_broker.core.calls.tasks import AgentTasks
from carpool_broker.core.model.effects import AnyEffect
from carpool_broker.core.model.session import OpenCall
from carpool_broker.core.registry.registry import Registry
from carpool_broker.core.subscriptions.subscription_table import LEVELS, SubscriptionTable
from carpool_protocol.ids import RawJson
from carpool_protocol.link.messages import CallAnswered


class StatelessCallHandler:
    """See `call_listener.Aftermath`."""

    def __init__(
        self,
        registry: Registry,
        interests: SubscriptionTable,
        parked: ParkedCalls,
        linked: Callable[[], bool],
        out: Callable[[AnyEffect], None],
        *,
        tasks: AgentTasks,
    ) -> None:
        self._registry = registry
        self._subscriptions = interests
        self._parked_calls = parked
        self._tasks = tasks
        self._is_linked = linked
        self._emit = out

    def call_leaving(self, owed: OpenCall) -> None:
        """See `Aftermath`."""
        by = owed.asked.by
        owed.tasks = self._tasks.may_create(owed)
        if by is None or not (by.level or owed.is_listening):
            return
        self._unsubscribe_logs(owed)
        catalog = self._registry.told_catalog(owed.key)
        if by.level in LEVELS and (catalog is None or catalog.era == "handshake"):
            owed.is_listening = (owed.key, by.level)
            self._subscribe_logs(owed, on=True)

    def call_closed(self, owed: OpenCall) -> None:
        """See `Aftermath`."""
        self._unsubscribe_logs(owed)
        self._parked_calls.call_closed(owed)

    def parked_call_ended(self, owed: OpenCall, outcome: CallResult) -> None:
        """See `Aftermath`."""
        self._parked_calls.parked_call_ended(owed, outcome)

    def urls_required(self, owed: OpenCall, urls: Sequence[RawJson], now: float) -> bool:
        """See `Aftermath`."""
        return self._parked_calls.urls_required(owed, urls, now)

    def task_created(self, owed: OpenCall, answer: CallAnswered, now: float) -> CallResult | None:
        """See `Aftermath`."""
        return self._tasks.task_created(owed, answer, now)

    def task_lost(self, owed: OpenCall) -> None:
        """See `Aftermath`."""
        self._tasks.task_lost(owed.task)

    def _unsubscribe_logs(self, owed: OpenCall) -> None:
        if owed.is_listening is not None:
            self._subscribe_logs(owed, on=False)
            owed.is_listening = None

    def _subscribe_logs(self, owed: OpenCall, *, on: bool) -> None:
        assert owed.is_listening is not None
        news = self._subscriptions.count_call(*owed.is_listening, on=on)
        if news is not None and self._is_linked():
            self._emit(news)
