"""Long work in slices, so that nobody else waits for all of it.

Owns how much is done in one turn. The work is a generator that says now and then what it has cost since it
last did, in units of about a microsecond; what fits into one slice is done at once. Without a clock: so a
journal replays, and tests count.

Knows nothing of: what the work is, who takes the next turn.
"""

from collections.abc import Generator
from typing import Final, Generic, TypeVar

T = TypeVar("T")

SLICE_UNITS: Final = 5_000
"""One turn, about 5 ms: a call that passes meets up to four of them."""

STEP_ENTRIES: Final = 256
"""So many entries are handled before the work says what they cost."""

Steps = Generator[int, None, T]


class SlicedWork(Generic[T]):
    """Work that is under way."""

    __slots__ = ("_steps", "result")

    def __init__(self, steps: Steps[T]) -> None:
        self._steps = steps
        self.result: T
        """What comes of it, once `run_slice` has said that it is done."""

    def run_slice(self) -> bool:
        """The next slice. Whether it was the last."""
        room_units = SLICE_UNITS
        try:
            while room_units > 0:
                room_units -= next(self._steps)
        except StopIteration as end:
            self.result = end.value
            return True
        return False


def run_all_slices(steps: Steps[T]) -> T:
    """All of it at once."""
    work = SlicedWork(steps)
    while not work.run_slice():
        pass
    return work.result
