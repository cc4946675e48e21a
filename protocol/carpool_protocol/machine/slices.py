"""Long work in slices, so that other events are handled in between.

Owns the size of one slice. The work is a generator that yields now and then the cost since its last yield, in
units of about a microsecond; work that fits into one slice is done at once. There is no clock, so a journal
replays and tests can count.

Knows nothing of: the kind of work, and what runs between two slices.
"""

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import Final, Generic, TypeVar

T = TypeVar("T")

SLICE_UNITS: Final = 5_000
"""Cost of one slice, about 5 ms. A call that passes waits for up to four slices."""

STEP_ENTRIES: Final = 256
"""Number of entries, or of units, that the work handles before it yields their cost."""

Steps = Generator[int, None, T]


def batched(entries: Sequence[T]) -> Iterator[Sequence[T]]:
    """The entries in batches of `STEP_ENTRIES`: work yields its cost behind each."""
    for start in range(0, len(entries), STEP_ENTRIES):
        yield entries[start : start + STEP_ENTRIES]


def handle_each(entries: Iterable[T], handle: Callable[[T], int]) -> Steps[None]:
    """Handle these entries, each of which may cost much more than others. `handle`: returns the cost of one,
    in units.
    """
    units = 0
    for entry in entries:
        units += handle(entry)
        if units >= STEP_ENTRIES:
            yield units
            units = 0
    yield units


class SlicedWork(Generic[T]):
    """Work that is in progress."""

    __slots__ = ("_steps", "result", "spent_units")

    def __init__(self, steps: Steps[T]) -> None:
        self._steps = steps
        self.spent_units = 0
        """The cost of all slices so far."""
        self.result: T
        """The result, set when `run_slice` has returned True."""

    def run_slice(self) -> bool:
        """Run the next slice. True if the work is done."""
        room_units = SLICE_UNITS
        try:
            while room_units > 0:
                units = next(self._steps)
                room_units -= units
                self.spent_units += units
        except StopIteration as end:
            self.result = end.value
            return True
        return False


def run_all_slices(steps: Steps[T]) -> T:
    """Run all slices at once and return the result."""
    work = SlicedWork(steps)
    while not work.run_slice():
        pass
    return work.result
