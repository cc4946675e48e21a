"""The scenarios, windows and rounds of a bench, and their order.

Owns the list of scenarios and the interleaving: a round starts every arm afresh, takes every scenario
through every arm one right after the other, and each round begins with another arm, so that whatever
else the machine does hits all arms alike. A sample is one window of one arm.
Knows nothing of: how an arm is built, how figures are shown.
"""

import contextlib
import math
from collections.abc import Callable, Sequence

import msgspec

from carpool.bench import processes
from carpool.bench.agents import BenchAgents, Load, WindowFigures, now_s
from carpool.bench.arms import Arm
from carpool.bench.attach import BenchError
from carpool.bench.work import EchoWorkload, PayloadWorkload, Workload

BIG_BYTES = 100_000


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    """A number of agents with `in_flight` open calls each; `payload_bytes` asks for answers of that size."""

    name: str
    agents: int
    in_flight: int
    payload_bytes: int = 0

    def work(self, arm: Arm) -> Workload:
        """Return the calls that the agents make."""
        if self.payload_bytes:
            return PayloadWorkload(arm.tool("payload"), self.payload_bytes)
        return EchoWorkload(arm.tool("echo"))


SCENARIOS = (
    Scenario(name="1x1", agents=1, in_flight=1),
    Scenario(name="1x64", agents=1, in_flight=64),
    Scenario(name="8x1", agents=8, in_flight=1),
    Scenario(name="64x1", agents=64, in_flight=1),
    Scenario(name="200x1", agents=200, in_flight=1),
    Scenario(name="100KB 1x8", agents=1, in_flight=8, payload_bytes=BIG_BYTES),
)


class WindowSample(msgspec.Struct, frozen=True, kw_only=True):
    """One window of one arm. `cpu_us_per_call` is per role, all processes of the role together."""

    arm: str
    scenario: str
    round: int
    calls: int
    seconds: float
    calls_per_s: float
    p50_s: float
    p90_s: float
    p99_s: float
    max_s: float
    errors: dict[str, int]
    unanswered: int
    driver_cpu_us_per_call: float
    cpu_us_per_call: dict[str, float]
    pss_bytes: dict[str, list[int]]


class FirstCalls(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds from the start of an agent (its server or shim, where it has one) to its first answer."""

    arm: str
    round: int
    cold_s: float
    """The server does not run yet. For the relay, which starts its server at once, the same as warm."""
    warm_s: float
    """The server runs, the agent is new."""


def quantile(ordered: Sequence[float], share: float) -> float:
    """The nearest-rank quantile of sorted values; nan of none."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else math.nan


class ProcessCosts:
    """CPU of an arm's processes over a window, and their memory at its end."""

    def __init__(self) -> None:
        self._roles: dict[str, list[int]] = {}
        self._before: dict[int, float] = {}
        self.cpu_s: dict[str, float] = {}
        self.pss_bytes: dict[str, list[int]] = {}

    def watch(self, roles: dict[str, list[int]]) -> None:
        """Set the processes whose costs are measured: role to pids."""
        self._roles = roles

    def begin(self) -> None:
        self._before = processes.cpu_of(pid for pids in self._roles.values() for pid in pids)

    def end(self) -> None:
        """Only processes seen at both ends count: one that ended in the window is left out."""
        for role, pids in self._roles.items():
            after = processes.cpu_of(pids)
            both = [after[pid] - self._before[pid] for pid in after if pid in self._before]
            if both:
                self.cpu_s[role] = sum(both)

    def measure_memory(self) -> None:
        for role, pids in self._roles.items():
            sizes = [size for pid in pids if (size := processes.pss_bytes(pid)) is not None]
            if sizes:
                self.pss_bytes[role] = sizes


def sample_of(
    arm: str, scenario: str, number: int, measured: WindowFigures, costs: ProcessCosts
) -> WindowSample:
    """Put one window into figures."""
    calls = max(1, measured.calls)
    ordered = measured.latencies_s
    return WindowSample(
        arm=arm,
        scenario=scenario,
        round=number,
        calls=measured.calls,
        seconds=measured.seconds,
        calls_per_s=measured.calls / measured.seconds if measured.seconds else 0.0,
        p50_s=quantile(ordered, 0.50),
        p90_s=quantile(ordered, 0.90),
        p99_s=quantile(ordered, 0.99),
        max_s=ordered[-1] if ordered else math.nan,
        errors=measured.errors,
        unanswered=measured.unanswered,
        driver_cpu_us_per_call=measured.driver_cpu_s / calls * 1e6,
        cpu_us_per_call={role: spent / calls * 1e6 for role, spent in costs.cpu_s.items()},
        pss_bytes=costs.pss_bytes,
    )


def measure(
    arm: Arm,
    scenario: Scenario,
    *,
    seconds: float,
    warmup_s: float,
    number: int = 0,
    work: Workload | None = None,
    tick: Callable[[int, float], None] = lambda _done, _elapsed_s: None,
) -> WindowSample:
    """One window of a started arm with agents of its own. `work` stands in for the scenario's."""
    agents, in_flight = arm.shape(scenario.agents, scenario.in_flight)
    costs = ProcessCosts()
    try:
        crowd = BenchAgents(arm.attach(agents))
        try:
            crowd.greet()
            measured = crowd.run_load(
                work or scenario.work(arm),
                Load(in_flight=in_flight, seconds=seconds, warmup_s=warmup_s),
                at_warm=lambda: costs.watch(arm.roles()),  # by now every instance of the window runs
                at_start=costs.begin,
                at_end=costs.end,
                tick=tick,
            )
            costs.measure_memory()
        finally:
            crowd.close()
    finally:
        arm.detach()
    return sample_of(arm.name, scenario.name, number, measured, costs)


def first_call_s(arm: Arm) -> float:
    """Seconds from attaching one new agent to its first answer of the echo tool."""
    began_s = now_s()
    try:
        crowd = BenchAgents(arm.attach(1))
        try:
            crowd.greet()
            reply = crowd.request("tools/call", {"name": arm.tool("echo"), "arguments": {"text": "first"}})
            took_s = now_s() - began_s
        finally:
            crowd.close()
    finally:
        arm.detach()
    if "error" in reply or reply["result"].get("isError"):
        raise BenchError(f"the first call through {arm.name} failed")
    return took_s


def run_rounds(
    make_arms: Callable[[], Sequence[Arm]],
    scenarios: Sequence[Scenario],
    *,
    rounds: int,
    seconds: float,
    warmup_s: float,
    say: Callable[[str], None],
) -> tuple[list[WindowSample], list[FirstCalls]]:
    """Every scenario through every arm, `rounds` times, interleaved."""
    samples: list[WindowSample] = []
    firsts: list[FirstCalls] = []
    for number in range(rounds):
        with contextlib.ExitStack() as ending:
            arms = list(make_arms())
            arms = arms[number % len(arms) :] + arms[: number % len(arms)]
            for arm in arms:
                ending.callback(arm.stop)
                arm.start()
                cold_s = first_call_s(arm)
                firsts.append(FirstCalls(arm=arm.name, round=number, cold_s=cold_s, warm_s=first_call_s(arm)))
            for scenario in scenarios:
                for arm in arms:
                    say(f"round {number + 1} of {rounds}: {scenario.name} {arm.name}")
                    samples.append(measure(arm, scenario, seconds=seconds, warmup_s=warmup_s, number=number))
    return samples, firsts
