"""Waiting for a condition, bounded: the only place in the tests where polling is allowed."""

import time
from collections.abc import Callable
from typing import Final

import trio

END_LIMIT_S: Final = 180.0
"""A program that a test has started may take so long to end. It needs a second, on a busy machine more."""


SHORTEST_PAUSE_S: Final = 0.01
LONGEST_PAUSE_S: Final = 0.1


def pause_after(began: float) -> float:
    """Seconds to wait after a look that began then (`time.monotonic()`): a look that costs more is made less
    often, because several tests run at once and one that waits must not take the time of the others.
    """
    return min(max(3 * (time.monotonic() - began), SHORTEST_PAUSE_S), LONGEST_PAUSE_S)


async def until(predicate: Callable[[], object], what: str, timeout_s: float = 40.0) -> None:
    """Return once `predicate` is true. After `timeout_s` it fails with `what` and what was said last."""
    said: object = None
    with trio.move_on_after(timeout_s):
        while True:  # conditions of other processes set no event
            began = time.monotonic()
            if said := predicate():
                return
            await trio.sleep(pause_after(began))
    raise AssertionError(f"after {timeout_s:g} s still not: {what} (last: {said!r})")
