"""Counts the steps that Python runs for a piece of work: lines, calls and rounds of comprehensions.

The number hardly depends on the machine and not on its load, so a test can say how work grows with the number
of records. Knows nothing of: the work.
"""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def steps_of(work: Callable[[], object]) -> int:
    """Run the work. Returns the number of steps in this thread."""
    steps = 0

    def count(_frame: FrameType, _what: str, _detail: object) -> Any:
        nonlocal steps
        steps += 1
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        work()
    finally:
        sys.settrace(before)
    return steps
