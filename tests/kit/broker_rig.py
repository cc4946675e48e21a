"""The broker's core for tests.

Owns the one place where tests build a `BrokerCore`. Knows nothing of: what a test is about.
"""

from carpool_broker.core.broker import BrokerCore
from carpool_broker.core.model.bounds import Bounds
from carpool_broker.core.registry.registry import Registry


def broker_core(
    bounds: Bounds | None = None,
    list_wait_s: float = 10.0,
    *,
    secret: bytes = b"",
    life: int = 0,
    audits: bool = False,
) -> BrokerCore:
    """A core that knows no session and no supervisor yet."""
    registry = Registry(mark="m")
    return BrokerCore(registry, bounds or Bounds(), list_wait_s, secret=secret, life=life, audits=audits)
