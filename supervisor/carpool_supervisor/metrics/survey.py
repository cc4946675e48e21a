"""The answer to `Survey`: the core's reports with memory and CPU of each process. Also measures the memory of
instances that have a memory limit.

Owns the thread that measures processes, so that reading `/proc` never delays a call. Knows nothing of: calls,
the start and end of instances.
"""

import os
from collections.abc import Callable, Mapping
from typing import Final

import trio
from msgspec.structs import replace

from carpool_protocol.ids import InstanceId
from carpool_protocol.link.messages import InstanceReport, PoolReport, ProcessReport, Survey, Surveyed
from carpool_protocol.runtime.pace import IDLE_S, until_due
from carpool_supervisor.core.model.events import MemoryMeasured
from carpool_supervisor.metrics.process_stats import ProcessSampler, ProcessUsage, memory_of

MEASURE_EVERY_S: Final = IDLE_S
"""The interval at which the memory of instances with a memory limit is measured."""


class Surveyor:
    """Measures processes and remembers their CPU time between surveys."""

    def __init__(self) -> None:
        self._instances = ProcessSampler()
        self._ours = ProcessSampler(families=False)
        self._one_at_a_time = trio.CapacityLimiter(1)

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
        found = await trio.to_thread.run_sync(memory_of, list(pids.values()), limiter=self._one_at_a_time)
        return MemoryMeasured(tuple((instance, found[pid]) for instance, pid in pids.items() if pid in found))

    async def survey(self, asked: Survey, pools: list[PoolReport], spawner_pid: int) -> Surveyed:
        """Fill in the reports. A process that has just ended is reported with zeros."""
        theirs = [instance.pid for pool in pools for instance in pool.instances if instance.pid]
        roles = {os.getpid(): "supervisor", spawner_pid: "spawner"} | dict.fromkeys(asked.pids, "")

        def probe() -> tuple[dict[int, ProcessUsage], dict[int, ProcessUsage]]:
            return self._instances.survey(theirs), self._ours.survey(pid for pid in roles if pid)

        instances, ours = await trio.to_thread.run_sync(probe, limiter=self._one_at_a_time)
        return Surveyed(
            asked.token,
            [
                replace(pool, instances=[_filled(each, instances.get(each.pid)) for each in pool.instances])
                for pool in pools
            ],
            [
                ProcessReport(
                    role=roles[pid],
                    pid=pid,
                    rss_bytes=found.rss_bytes,
                    pss_bytes=found.pss_bytes,
                    cpu_s=found.cpu_s,
                )
                for pid, found in ours.items()
            ],
        )


def _filled(report: InstanceReport, found: ProcessUsage | None) -> InstanceReport:
    if found is None:
        return report
    return replace(
        report, rss_bytes=found.rss_bytes, pss_bytes=found.pss_bytes, cpu_percent=round(found.cpu_percent, 1)
    )
