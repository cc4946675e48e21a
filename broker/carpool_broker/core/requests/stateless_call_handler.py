"""Acts on what happens to calls of the stateless era.

Owns that a server of the handshake era is asked for log messages while a call is open that wants some: there
the level holds for the whole instance (MCP 2025-11-25, server/utilities/logging). Passes rounds on to
`input_required` and tasks to `tasks`. Refuses to know: which agent hears which message, the link.
"""

from collections.abc import Callable, Sequence

from carpool_broker.core.calls.call_listeners import CallResult
from carpool_broker.core.calls.input_required import ParkedCalls
from carpool_broker.core.calls.tasks import AgentTasks
from carpool_broker.core.model.effects import AnyEffect
from carpool_broker.core.model.session import OpenCall
from carpool_broker.core.registry.registry import Registry
from carpool_broker.core.subscriptions.subscription_table import SubscriptionTable
from carpool_protocol.ids import RawJson
from carpool_protocol.link.messages import CallAnswered
from carpool_protocol.wire.log_levels import LEVELS


class StatelessCallHandler:
    """The call table's `call_listeners.StatelessCallListener`."""

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

    def call_leaving(self, open_call: OpenCall) -> None:
        """See `StatelessCallListener`."""
        by = open_call.asked.by
        open_call.tasks = self._tasks.may_create(open_call)
        if by is None or not (by.level or open_call.is_listening):
            return
        self._unsubscribe_logs(open_call)
        catalog = self._registry.told_catalog(open_call.key)
        if by.level in LEVELS and (catalog is None or catalog.era == "handshake"):
            open_call.is_listening = (open_call.key, by.level)
            self._subscribe_logs(open_call, on=True)

    def call_closed(self, open_call: OpenCall) -> None:
        """See `StatelessCallListener`."""
        self._unsubscribe_logs(open_call)
        self._parked_calls.call_closed(open_call)

    def parked_call_ended(self, open_call: OpenCall, outcome: CallResult) -> None:
        """See `StatelessCallListener`."""
        self._parked_calls.parked_call_ended(open_call, outcome)

    def urls_required(self, open_call: OpenCall, urls: Sequence[RawJson], now: float) -> bool:
        """See `StatelessCallListener`."""
        return self._parked_calls.urls_required(open_call, urls, now)

    def task_created(self, open_call: OpenCall, answer: CallAnswered, now: float) -> CallResult | None:
        """See `StatelessCallListener`."""
        return self._tasks.task_created(open_call, answer, now)

    def task_lost(self, open_call: OpenCall) -> None:
        """See `StatelessCallListener`."""
        self._tasks.task_lost(open_call.task)

    def _unsubscribe_logs(self, open_call: OpenCall) -> None:
        if open_call.is_listening is not None:
            self._subscribe_logs(open_call, on=False)
            open_call.is_listening = None

    def _subscribe_logs(self, open_call: OpenCall, *, on: bool) -> None:
        assert open_call.is_listening is not None
        news = self._subscriptions.count_call(*open_call.is_listening, on=on)
        if news is not None and self._is_linked():
            self._emit(news)
