"""Which processes that the spawner has adopted belong to which instance.

A process whose parent has ended becomes a child of the spawner (rule 2), so it is no descendant of its
instance any more. Its mark says where it belongs (`marks`). Owns which of these marks were read already: a
process never changes its instance, so each is read once, and few at a time, because a process can make its
environment megabytes long.

Knows nothing of: the memory of processes, how the table of processes is read.
"""

from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from carpool_supervisor import marks

MOST_READ: Final = 256
"""The most processes whose marks are read for one table; those of the others are read for the next ones."""

ProcessTree = dict[int, list[int]]
"""The children of each process."""


class SpawnedProcesses(Struct, frozen=True):
    """The spawner, and what it has started."""

    spawner_pid: int
    leaders: Mapping[str, int]
    """The first process of each instance, by the mark of the instance."""


class AdoptedProcesses:
    """The processes that the spawner has adopted and whose instance is known."""

    def __init__(self) -> None:
        self._marks: dict[int, str] = {}

    def return_to_instances(self, tree: ProcessTree, spawned: SpawnedProcesses) -> None:
        """Add each adopted process to the children of the first process of its instance."""
        leaders = set(spawned.leaders.values())
        adopted = [pid for pid in tree.get(spawned.spawner_pid, ()) if pid not in leaders]
        known, self._marks = self._marks, {}
        if not adopted:
            return
        by_limit = {marks.limit_of(mark): mark for mark in spawned.leaders}
        left = MOST_READ
        for pid in adopted:
            mark = known.get(pid, "")
            if mark not in spawned.leaders and left:
                left -= 1
                mark, limit = marks.instance_of(pid)
                mark = mark or by_limit.get(limit, "")
            if mark in spawned.leaders:
                self._marks[pid] = mark
                tree.setdefault(spawned.leaders[mark], []).append(pid)
