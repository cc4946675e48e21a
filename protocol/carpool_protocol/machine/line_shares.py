"""One budget for all unfinished long lines that a process reads, shared by their owners (rule 3).

Decides which readers are held while the budget is spent, and which of them send too slowly. An owner is a
process, a node or a server; it may have many readers. Invariants: while the budget is not spent nobody is
held; an owner whose lines are within its share, the budget divided by the number of owners, is never held; of
the readers of all owners above their share only the oldest line goes on, so one of them always can end, or
with `each_owner` the oldest of each, so that an owner which stands still holds up no other. A line that goes
on although its owner is above its share has a minimum rate. Owners that come one after the other can each
fill a share, so together more than the budget: past twice the budget the owner with the most loses its lines.

Knows nothing of: sockets and pipes, a clock, how a reader is held or ended.
"""

from collections.abc import Hashable
from typing import Final, Generic, TypeVar

Reader = TypeVar("Reader", bound=Hashable)
Owner = TypeVar("Owner", bound=Hashable)

MIN_RATE_BYTES: Final = 64 * 1024
MIN_RATE_S: Final = 10.0
"""Others wait for a line only while it grows by `MIN_RATE_BYTES` in this time."""


class _Line(Generic[Owner]):
    """The unfinished line of one reader."""

    __slots__ = ("counted_bytes", "owner", "since", "size_bytes")

    def __init__(self, owner: Owner) -> None:
        self.owner = owner
        self.size_bytes = 0
        self.counted_bytes = 0
        """Its size when its rate was last found sufficient."""
        self.since: float | None = None
        """The time of that, later by the time for which the reader was held; None before the first look."""


class LineShares(Generic[Reader, Owner]):
    """All unfinished long lines of one process."""

    def __init__(self, budget_bytes: int, *, each_owner: bool = False) -> None:
        """`each_owner`: one line of each owner above its share goes on, not one of all."""
        self.budget_bytes = budget_bytes
        self._each_owner = each_owner
        self._lines: dict[Reader, _Line[Owner]] = {}
        """The oldest line first."""
        self._by_owner: dict[Owner, int] = {}
        """The bytes of the lines of each owner."""
        self.total_bytes = 0
        self._held: frozenset[Reader] = frozenset()
        self._going: frozenset[Reader] = frozenset()
        """The readers that go on although their owner is above its share."""
        self._looked_at = 0.0

    @property
    def held(self) -> frozenset[Reader]:
        """The readers that must not read now."""
        return self._held

    def line_grew(self, reader: Reader, owner: Owner, size_bytes: int) -> None:
        """The unfinished line of this reader has this size now."""
        line = self._lines.get(reader)
        if line is None:
            line = self._lines[reader] = _Line(owner)
        elif line.owner != owner:
            self._count(line, 0)
            line.owner = owner
        self._count(line, size_bytes)
        self._share()

    def line_ended(self, reader: Reader) -> bool:
        """The line is complete, or its reader is gone. False: there was no such line."""
        line = self._lines.pop(reader, None)
        if line is None:
            return False
        self._count(line, 0)
        self._share()
        return True

    def is_waited_for(self, reader: Reader) -> bool:
        """True if others are held until the line of this reader ends."""
        return reader in self._going

    def slow_readers(self, now: float) -> list[Reader]:
        """Readers to end: others are held for their lines, which grow too slowly. Called every few seconds.

        The rate of a line is known before others wait for it. Time for which its reader is held does not
        count.
        """
        passed_s, self._looked_at = now - self._looked_at, now
        for reader, line in self._lines.items():
            if line.since is None or line.size_bytes - line.counted_bytes >= MIN_RATE_BYTES:
                line.since, line.counted_bytes = now, line.size_bytes
            elif reader in self._held:
                line.since = min(now, line.since + passed_s)
        if not self._held:
            return []
        since_of = {going: self._lines[going].since for going in self._going}
        return [each for each, since in since_of.items() if since is not None and now - since > MIN_RATE_S]

    def excess_readers(self) -> list[Reader]:
        """Readers to end, of the owners with the most: all lines together have twice the budget."""
        ended: list[Reader] = []
        too_many = self.total_bytes - 2 * self.budget_bytes
        for owner in sorted(self._by_owner, key=self._by_owner.__getitem__, reverse=True):
            for reader, line in self._lines.items():
                if too_many <= 0:
                    return ended
                if line.owner == owner:
                    ended.append(reader)
                    too_many -= line.size_bytes
        return ended

    def _count(self, line: _Line[Owner], size_bytes: int) -> None:
        self.total_bytes += size_bytes - line.size_bytes
        left = self._by_owner.get(line.owner, 0) + size_bytes - line.size_bytes
        line.size_bytes = size_bytes
        if left:
            self._by_owner[line.owner] = left
        else:
            self._by_owner.pop(line.owner, None)

    def _share(self) -> None:
        if self.total_bytes <= self.budget_bytes:
            self._held = self._going = frozenset()
            return
        share_bytes = self.budget_bytes // len(self._by_owner)
        above = {
            reader: line.owner
            for reader, line in self._lines.items()
            if self._by_owner[line.owner] > share_bytes
        }
        oldest: dict[Owner, Reader] = {}
        for reader, owner in above.items():
            oldest.setdefault(owner, reader)
        goes_on = [*oldest.values()] if self._each_owner else [*oldest.values()][:1]
        self._going = frozenset(goes_on)
        self._held = frozenset(above.keys() - self._going)

    def check(self) -> None:
        """Assert that the sums are those of the lines."""
        sums: dict[Owner, int] = {}
        for line in self._lines.values():
            sums[line.owner] = sums.get(line.owner, 0) + line.size_bytes
        assert self._by_owner == sums
        assert self.total_bytes == sum(sums.values())
