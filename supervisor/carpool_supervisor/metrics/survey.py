"""The answer to `Survey`: the core's reports with memory and CPU of each process. Also measures the memory of
instances that have a memory limit.

Owns the thread that measures processes, so that reading `/proc` never delays a call, and the surveys that
wait for it: the processes are measured once for all that have come meanwhile, and not for a broker that is
gone. Knows nothing of: calls, the start and end of instances.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import trio
from msgspec.structs import replace

from carpool_protocol.ids import InstanceId
from carpool_protocol.link.messages import InstanceReport, PoolReport, ProcessReport, Survey, Surveyed
from carpool_protocol.runtime.pace import IDLE_S, until_due
from carpool_supervisor.core.model.events import MemoryMeasured
from carpool_supervisor.metrics.adopted import AdoptedProcesses, ProcessTree, SpawnedProcesses
from carpool_supervisor.metrics.process_stats import (
    ProcessSampler,
    ProcessUsage,
    children_by_parent,
    memory_of,
)

MEASURE_EVERY_S: Final = IDLE_S
"""The interval at which the memory of instances with a memory limit is measured."""


class Surveyor:
    """Measures processes and remembers their CPU time between surveys."""

    def __init__(self, spawned: Callable[[], SpawnedProcesses]) -> None:
        self._spawned = spawned
        self._adopted = AdoptedProcesses()
        self._instances = ProcessSampler()
        self._ours = ProcessSampler(families=False)
        self._one_at_a_time = trio.CapacityLimiter(1)
        self._asked: list[Survey] = []
        """The surveys that wait for the next measurement."""
        self._is_answering = False

    def add(self, asked: Survey) -> bool:
        """Let a survey wait for the next measurement. Returns True if `answer_surveys` is to be started."""
        self._asked.append(asked)
        return not self._is_answering

    def broker_gone(self) -> None:
        """Forget the surveys that wait: their broker reads no answer."""
        self._asked.clear()

    async def answer_surveys(
        self,
        reports: Callable[[], list[PoolReport]],
        answer: Callable[[Sequence[Surveyed]], None],
    ) -> None:
        """Answer the surveys until none waits. `reports`: returns those of the core now."""
        if self._is_answering:
            return
        self._is_answering = True
        try:
            while self._asked:
                asked, self._asked = self._asked, []
                answer(await self._survey(asked, reports()))
        finally:
            self._is_answering = False

    async def measure_memory(
        self, limited: Callable[[], Mapping[InstanceId, int]], heard: Callable[[MemoryMeasured], None]
    ) -> None:
        """Measure the memory of these instances periodically; costs nothing while there are none."""
        while True:
            await trio.sleep(until_due(MEASURE_EVERY_S))
            if pids := limited():
                heard(await self._measure(pids))

    async def _measure(self, pids: Mapping[InstanceId, int]) -> MemoryMeasured:
        """The memory of these instances now, without those that have just ended."""
        spawned = self._spawned()

        def probe() -> dict[int, int]:
            return memory_of(pids.values(), self._tree(spawned))

        found = await trio.to_thread.run_sync(probe, limiter=self._one_at_a_time)
        return MemoryMeasured(tuple((instance, found[pid]) for instance, pid in pids.items() if pid in found))

    def _tree(self, spawned: SpawnedProcesses) -> ProcessTree:
        """All processes, each below its parent or its instance. Blocks."""
        tree = children_by_parent()
        self._adopted.return_to_instances(tree, spawned)
        return tree

    async def _survey(self, asked: Sequence[Survey], pools: list[PoolReport]) -> list[Surveyed]:
        """Fill in the reports, the same for all. A process that has just ended is reported with zeros."""
        theirs = [instance.pid for pool in pools for instance in pool.instances if instance.pid]
        spawned = self._spawned()
        own = {os.getpid(): "supervisor", spawned.spawner_pid: "spawner"}
        roles = own | {pid: own.get(pid, "") for each in asked for pid in each.pids}

        def probe() -> tuple[dict[int, ProcessUsage], dict[int, ProcessUsage]]:
            tree = self._tree(spawned)
            return self._instances.survey(theirs, tree), self._ours.survey(pid for pid in roles if pid)

        instances, ours = await trio.to_thread.run_sync(probe, limiter=self._one_at_a_time)
        filled = [
            replace(pool, instances=[_filled(each, instances.get(each.pid)) for each in pool.instances])
            for pool in pools
        ]
        processes = [
            ProcessReport(
                role=roles[pid],
                pid=pid,
                rss_bytes=found.rss_bytes,
                pss_bytes=found.pss_bytes,
                cpu_s=found.cpu_s,
            )
            for pid, found in ours.items()
        ]
        wanted = [own.keys() | each.pids for each in asked]
        return [
            Surveyed(each.token, filled, [row for row in processes if row.pid in pids])
            for each, pids in zip(asked, wanted, strict=True)
        ]


def _filled(report: InstanceReport, found: ProcessUsage | None) -> InstanceReport:
    if found is None:
        return report
    return replace(
        report, rss_bytes=found.rss_bytes, pss_bytes=found.pss_bytes, cpu_percent=round(found.cpu_percent, 1)
    )
