"""Counts the bytecodes that a piece of work runs in this thread.

The count depends on the work alone, and not on the machine or its load. So a test can state how work grows.
Work inside functions in C (a copy, a sort, a set operation) is not counted. No garbage is collected
meanwhile: finalizers and the callbacks of test tools would count wherever a collection happens to begin.

Knows nothing of: what the work is.
"""

import gc
import itertools
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def count_bytecodes(work: Callable[[], object]) -> int:
    """Run `work` and return the number of bytecodes."""
    count = 0

    def step(frame: FrameType, event: str, _arg: Any) -> Any:
        nonlocal count
        if event == "opcode":
            count += 1
        elif event == "call":
            frame.f_trace_lines, frame.f_trace_opcodes = False, True
        return step

    former, is_collecting = sys.gettrace(), gc.isenabled()
    gc.disable()
    sys.settrace(step)
    try:
        work()
    finally:
        sys.settrace(former)
        if is_collecting:
            gc.enable()
    return count


def joint_growth(
    measure: Callable[[int, int], int], firsts: tuple[int, int], seconds: tuple[int, int]
) -> float:
    """Return how many bytecodes each pair of a first and a second thing costs in `measure(first, second)`.

    0 for work that grows with the sum of both numbers; at least 1 for a loop within a loop.
    """
    found: dict[tuple[int, int], int] = {}
    for _ in range(2):  # the second time caches of the process are warm
        for first, second in itertools.product(firsts, seconds):
            found[first, second] = measure(first, second)
    (few, many), (short, long) = firsts, seconds
    mixed = found[many, long] - found[many, short] - found[few, long] + found[few, short]
    return mixed / ((many - few) * (long - short))
