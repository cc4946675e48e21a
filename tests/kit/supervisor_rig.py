"""The supervisor's core for tests.

Owns the one place where tests build a `SupervisorCore`. Knows nothing of: what a test is about.
"""

from carpool_supervisor.core.model.trace_context import LIFE_BYTES
from carpool_supervisor.core.supervisor import SupervisorCore

LIFE = b"l" * LIFE_BYTES


def supervisor_core(life: bytes = LIFE) -> SupervisorCore:
    """A core that knows no pool and no broker yet."""
    return SupervisorCore(life)
