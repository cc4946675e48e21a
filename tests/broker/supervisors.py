"""A supervisor that greets a broker's core and remembers nothing."""

from collections.abc import Callable
from typing import Any

from carpool_broker.core.model.events import SupervisorCame
from carpool_protocol.ids import Epoch
from carpool_protocol.link.messages import Recorded

EPOCH = Epoch("e1")


def supervisor_comes(feed: Callable[[Any], Any], credit_bytes: int = 1_000_000) -> list[Any]:
    """Greeting and record. What the core wants done."""
    return [*(feed(SupervisorCame(credit_bytes, EPOCH)) or ()), *(feed(Recorded([], [])) or ())]
