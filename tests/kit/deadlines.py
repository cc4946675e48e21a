"""Virtual time of state machines over a core: from deadline to deadline.

Owns the order of ticks, and the check that a deadline that was met does not stay due.
"""

from collections.abc import Callable, Iterator


def deadlines_until(next_deadline: Callable[[], float | None], now: float, until: float) -> Iterator[float]:
    """Yield the time of each deadline up to `until`; the caller ticks the core at each."""
    while (due := next_deadline()) is not None and due <= until:
        now = max(now, due)
        yield now
        after = next_deadline()
        assert after is None or after > now, "a deadline that is met stays due"
