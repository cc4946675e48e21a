"""The contract of every core: events in, effects out, time as an argument.

Owns the interface only. A machine has no clock, no randomness and no I/O: fresh ids and jitter are fields of
the event, so the same inputs give the same outputs and a journal replays exactly. Refuses to know the events
and effects of any core.
"""

from collections.abc import Sequence
from typing import Final, Protocol, TypeVar

from msgspec import Struct

E_contra = TypeVar("E_contra", contravariant=True)
F = TypeVar("F")

FULL_CHECK_EVERY: Final = 64
"""Number of events between two checks of all invariants.

After each event only the records that it touched are checked. The cost of a full check grows with all records
and would be most of the run.
"""


class Ticked(Struct, frozen=True):
    """A call of `tick`, as the journal records it."""


class Machine(Protocol[E_contra, F]):
    """A core as the pump drives it. `now` is monotonic seconds and never decreases."""

    def handle(self, event: E_contra, now: float) -> list[F]:
        """Apply one event. Returns the effects that the shell must perform now, in order."""
        ...

    def tick(self, now: float) -> list[F]:
        """Act on every deadline that is not after `now`. Returns effects as `handle` does."""
        ...

    def next_deadline(self) -> float | None:
        """The time of the next `tick`, or None. Called once per burst, so it must be cheap."""
        ...

    def check(self) -> None:
        """Assert every invariant. An AssertionError is a bug in carpool."""
        ...

    def check_touched(self, event: E_contra | Ticked, effects: Sequence[F]) -> None:
        """Assert the invariants of the records that this event, just applied, and its effects name.

        Its cost grows with what was touched, not with all records.
        """
        ...
