"""The contract of every core: events in, effects out, time as an argument.

Owns the shape only. A machine keeps no clock, rolls no dice and does no I/O: fresh ids and jitter come in as
fields of the event, so the same inputs give the same outputs and a journal replays exactly.
"""

from collections.abc import Sequence
from typing import Final, Protocol, TypeVar

from msgspec import Struct

E_contra = TypeVar("E_contra", contravariant=True)
F = TypeVar("F")

FULL_CHECK_EVERY: Final = 64
"""Where invariants are checked: those of the records that an event touched after it, all of them after so
many events. A full check costs as much as there is, so that after each event it would be most of the run.
"""


class Ticked(Struct, frozen=True):
    """A call of `tick`, as the journal records it."""


class Machine(Protocol[E_contra, F]):
    """A core, as the pump drives it. `now` is monotonic seconds and never decreases."""

    def handle(self, event: E_contra, now: float) -> list[F]:
        """Take in one event; what the shell must do now, in order."""
        ...

    def tick(self, now: float) -> list[F]:
        """Act on every deadline that is not after `now`."""
        ...

    def next_deadline(self) -> float | None:
        """When `tick` is wanted next, or None. Called once per burst: it must be cheap."""
        ...

    def check(self) -> None:
        """Assert every invariant; an AssertionError is a bug of ours."""
        ...

    def check_touched(self, event: E_contra | Ticked, effects: Sequence[F]) -> None:
        """Assert what must hold of the records that this event, just taken, and its effects name. Cheap: it
        costs by what was touched, not by how much there is.
        """
        ...
