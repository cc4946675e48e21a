"""Waiting for a condition, bounded: the only place in the tests where polling is allowed."""

from collections.abc import Callable
from typing import Final

import trio

END_LIMIT_S: Final = 180.0
"""A program that a test has started may take so long to end. It needs a second, on a busy machine more."""


async def until(predicate: Callable[[], object], what: str, timeout_s: float = 40.0) -> None:
    """Return once `predicate` is true. After `timeout_s` it fails with `what` and what was said last."""
    said: object = None
    with trio.move_on_after(timeout_s):
        while not (said := predicate()):  # noqa: ASYNC110  # conditions of other processes set no event
            await trio.sleep(0.01)
        return
    raise AssertionError(f"after {timeout_s:g} s still not: {what} (last: {said!r})")
