"""What one session may have open and waiting (rule 3), and how long it waits (rule 14)."""

from msgspec import Struct


class Bounds(Struct, frozen=True, kw_only=True):
    """Admission's limits. Changed live by a reload; what is open stays open."""

    max_open_calls: int = 64
    max_waiting_calls: int = 256
    max_waiting_bytes: int = 16 * 1024 * 1024
    wait_s: float = 30.0
    park_s: float = 300.0
    """How long a call waits for a retry with what it wants of its agent (rule 14)."""
