"""What is known about the programs behind pools: the shipped list, and evidence on disk.

Owns the verdicts of this process: loaded once at the start, recorded here at once, written by a thread, one
write at a time and the newest last, so that a slow disk holds up nobody. Wall times are put in here. Nothing
in here is fatal: what cannot be read or written is said in the log, and holds until the process ends.

Knows nothing of: what evidence means (`core.sharing`), when pools hear of it (the shell feeds the core).
"""

import logging
from collections.abc import Iterable, Mapping
from typing import Final

import trio

from carpool_protocol.ids import PoolKey
from carpool_protocol.messages import Explain, Explained, PoolSpec
from carpool_protocol.wallclock import wallclock
from carpool_supervisor.core.events import PoolKnown
from carpool_supervisor.core.pool import Pool
from carpool_supervisor.core.sharing import EvidenceKind, explain, launch_identity
from carpool_supervisor.shipped import well_known
from carpool_supervisor.verdicts import EMPTY, evidence_of, load, merged, record, save

log = logging.getLogger("carpool.supervisor")

FLUSH_S: Final = 5.0
"""The end of the process waits so long for a disk, no longer."""


class Knowledge:
    """The list and the evidence of one supervisor. Everything but the writing happens in one thread."""

    def __init__(self, path: str) -> None:
        """`path`: the file (`verdicts.verdicts_file`)."""
        self._path = path
        self._verdicts = EMPTY
        self._unsaved = trio.Event()
        self._one_at_a_time = trio.CapacityLimiter(1)

    async def load(self) -> None:
        """Read the file. Before it, nothing is known but the list."""
        found, trouble = await trio.to_thread.run_sync(load, self._path, limiter=self._one_at_a_time)
        self._verdicts = merged(found, self._verdicts)
        _say(trouble)

    def about(self, spec: PoolSpec) -> PoolKnown:
        """What is known about the program of this pool."""
        evidence = evidence_of(self._verdicts, launch_identity(spec.server, spec.argv))
        return PoolKnown(spec.key, well_known().find(spec.argv), evidence)

    def observe(
        self, spec: PoolSpec, kind: EvidenceKind, detail: str, specs: Iterable[PoolSpec]
    ) -> list[PoolKnown]:
        """Something was seen of this pool's program. What is to be told, to every pool of the same."""
        identity = launch_identity(spec.server, spec.argv)
        self._verdicts = record(self._verdicts, identity, kind, wallclock(), detail)
        self._unsaved.set()
        return [self.about(each) for each in specs if launch_identity(each.server, each.argv) == identity]

    async def run(self) -> None:
        """Write what was recorded, until cancelled."""
        while True:
            await self._unsaved.wait()
            await self._save(wait=True)

    async def flush(self) -> None:
        """The end: write what is left, if the disk is quick enough."""
        with trio.move_on_after(FLUSH_S):
            if self._unsaved.is_set():
                await self._save(wait=False)

    async def _save(self, *, wait: bool) -> None:
        self._unsaved = trio.Event()
        whole, trouble = await trio.to_thread.run_sync(
            save, self._path, self._verdicts, limiter=self._one_at_a_time, abandon_on_cancel=not wait
        )
        self._verdicts = merged(whole, self._verdicts)
        _say(trouble)


def _say(trouble: str) -> None:
    if trouble:
        log.warning("%s", trouble)


def explained(pools: Mapping[PoolKey, Pool], asked: Explain) -> Explained:
    """How a pool is shared and why, as `carpool why` prints it."""
    pool = pools.get(asked.key)
    if pool is None:
        lines = ["This server has no pool at the moment: it is not configured, or not any more."]
        return Explained(asked.token, lines, "concurrent", verified=False, source="")
    lines = explain(
        pool.server,
        pool.verdict,
        configured=pool.policy.sharing,
        entry=pool.entry,
        evidence=pool.evidence,
    )
    verdict = pool.verdict
    return Explained(asked.token, lines, verdict.mode, verified=verdict.verified, source=verdict.source)
