"""The scenarios of `bench.cluster_faults`: which load, and which fault when.

Owns two tables: faults of processes and of the link between nodes (`CLUSTER`), and faults of the way between
an agent and the HTTP door (`DOOR`). Knows nothing of: how a fault is made, what is measured.
"""

from collections.abc import Awaitable, Callable
from typing import Final, Literal

from msgspec import Struct

from bench.cable_proxy import CableProxy
from bench.linked_nodes import DAEMONS, LinkedNodes, LinkKind

FAULT_S: Final = 5.0
"""When the fault begins, in seconds after the load."""
KB: Final = 1000
MB: Final = 1_000_000


class BigCalls(Struct, frozen=True):
    """Answers of megabytes, all asked for at one moment."""

    count: int
    size_bytes: int
    at_s: float = 3.0
    in_same_sessions: bool = False
    """They are asked for by the agents of the small calls, one each; else by agents of their own."""


class FaultLoad(Struct, frozen=True):
    """The calls of agents at A. Each agent calls once in `every_s`, one agent after the other."""

    agents: int
    every_s: float
    calls: tuple[Literal["b", "b nap", "c", "a"], ...]
    """The servers that an agent calls at the same time; `b nap` is a call that takes 0.7 s at server b."""


class LinkStep(Struct, frozen=True):
    """Something that happens to the nodes."""

    at_s: float
    act: Callable[[LinkedNodes], Awaitable[None]]


class FaultScenario(Struct, frozen=True, kw_only=True):
    """One run over three nodes."""

    name: str
    text: str
    seconds: float
    steps: tuple[LinkStep, ...] = ()
    load: FaultLoad
    big: BigCalls | None = None
    calls_before: int = 0
    """The calls to B that each agent has made before the load, one by one: the link is used then."""
    looks: bool = False
    """True: the bench runs `carpool status` at A 3 s and 23 s after the fault begins, and shows its text."""
    only: tuple[LinkKind, ...] = ("nats", "zmq")


class DoorStep(Struct, frozen=True):
    """Something that happens to the way between some agents and the HTTP door."""

    at_s: float
    act: Callable[[CableProxy], None]


class DoorScenario(Struct, frozen=True, kw_only=True):
    """One run over one node with an HTTP door: agents behind a cable, and agents without one beside them."""

    name: str
    text: str
    seconds: float
    steps: tuple[DoorStep, ...]
    size_bytes: int
    """The agents behind the cable ask for answers of this size, too, beginning just before the fault."""
    big_every_s: float


ALL: Final = FaultLoad(10, 1.0, ("b", "b nap", "c", "a"))
MANY: Final = FaultLoad(10, 1.0, ("b",))
FEW: Final = FaultLoad(8, 3.0, ("b", "b", "b"))


def kill(at_s: float, *roles: str) -> LinkStep:
    """Kill processes of B."""

    async def act(nodes: LinkedNodes) -> None:
        await nodes.kill_b(*roles)

    return LinkStep(at_s, act)


def start_b(at_s: float) -> LinkStep:
    """Start B again."""

    async def act(nodes: LinkedNodes) -> None:
        await nodes.b.up()

    return LinkStep(at_s, act)


def stop_b_for(at_s: float, for_s: float) -> tuple[LinkStep, ...]:
    """Stop all processes of B, and let them go on."""

    async def stop(nodes: LinkedNodes) -> None:
        await nodes.stop_b()

    async def go_on(nodes: LinkedNodes) -> None:
        nodes.continue_b()

    return LinkStep(at_s, stop), LinkStep(at_s + for_s, go_on)


def nats_away(at_s: float, for_s: float) -> tuple[LinkStep, ...]:
    """Kill the NATS server, and start it again."""

    async def end(nodes: LinkedNodes) -> None:
        nodes.nats.kill()

    async def start(nodes: LinkedNodes) -> None:
        nodes.nats.launch()

    return LinkStep(at_s, end), LinkStep(at_s + for_s, start)


def network(at_s: float, act: Callable[[CableProxy], None]) -> LinkStep:
    """Change the cable of B."""

    async def step(nodes: LinkedNodes) -> None:
        act(nodes.proxy)

    return LinkStep(at_s, step)


def slow(at_s: float, delay_s: float, bytes_per_s: float = float("inf")) -> LinkStep:
    """Give the cable of B a delay and a bandwidth."""
    return network(at_s, lambda proxy: proxy.slow(delay_s=delay_s, bytes_per_s=bytes_per_s))


def slow_for(for_s: float, delay_s: float, bytes_per_s: float = float("inf")) -> tuple[LinkStep, ...]:
    """Do so for a while."""
    return slow(FAULT_S, delay_s, bytes_per_s), slow(FAULT_S + for_s, 0.0)


def stall_for(at_s: float, for_s: float) -> tuple[LinkStep, ...]:
    """Stall both directions of B's cable for a while."""
    return network(at_s, CableProxy.stall), network(at_s + for_s, CableProxy.heal)


def half_open_for(at_s: float, for_s: float) -> tuple[LinkStep, ...]:
    """Stall what B sends for a while: B hears and is not heard."""
    return network(at_s, lambda proxy: proxy.stall("there")), network(at_s + for_s, CableProxy.heal)


def _refuse_all(proxy: CableProxy) -> None:
    proxy.refuse()
    proxy.cut()


def refuse_for(at_s: float, for_s: float) -> tuple[LinkStep, ...]:
    """Reset all connections and refuse new ones for a while."""

    return network(at_s, _refuse_all), network(at_s + for_s, CableProxy.heal)


def cuts(at_s: float, times: int, every_s: float) -> tuple[LinkStep, ...]:
    """Reset all connections so many times."""
    return tuple(network(at_s + place * every_s, CableProxy.cut) for place in range(times))


def crowded(
    name: str,
    text: str,
    seconds: float,
    link: LinkStep,
    big: BigCalls,
    *more: LinkStep,
    load: FaultLoad = FEW,
    calls_before: int = 0,
) -> FaultScenario:
    """A link that is slow from the beginning, big answers over it, and small calls beside them."""
    return FaultScenario(
        name=name,
        text=text,
        seconds=seconds,
        load=load,
        big=big,
        steps=(link, *more),
        calls_before=calls_before,
    )


CLUSTER: Final = (
    FaultScenario(name="none", text="no fault", seconds=12, load=ALL),
    FaultScenario(
        name="kill_supervisor",
        text="kill -9 supervisor of B",
        seconds=25,
        load=ALL,
        steps=(kill(FAULT_S, "supervisor"),),
    ),
    FaultScenario(
        name="kill_broker", text="kill -9 broker of B", seconds=25, load=ALL, steps=(kill(FAULT_S, "broker"),)
    ),
    FaultScenario(
        name="kill_node",
        text="kill -9 node process of B",
        seconds=25,
        load=ALL,
        steps=(kill(FAULT_S, "node"),),
    ),
    FaultScenario(
        name="kill_b_25s",
        text="kill -9 all of B, up again after 25 s",
        seconds=50,
        load=ALL,
        looks=True,
        steps=(kill(FAULT_S, *DAEMONS), start_b(FAULT_S + 25)),
    ),
    FaultScenario(
        name="kill_b_1s",
        text="kill -9 all of B, up again after 1 s",
        seconds=25,
        load=ALL,
        steps=(kill(FAULT_S, *DAEMONS), start_b(FAULT_S + 1)),
    ),
    FaultScenario(
        name="nats_1s",
        text="NATS server killed, back after 1 s",
        seconds=25,
        load=ALL,
        only=("nats",),
        steps=nats_away(FAULT_S, 1),
    ),
    FaultScenario(
        name="nats_30s",
        text="NATS server killed, back after 30 s",
        seconds=60,
        load=ALL,
        only=("nats",),
        looks=True,
        steps=nats_away(FAULT_S, 30),
    ),
    FaultScenario(name="stop_5s", text="SIGSTOP B 5 s", seconds=25, load=ALL, steps=stop_b_for(FAULT_S, 5)),
    FaultScenario(
        name="stop_20s", text="SIGSTOP B 20 s", seconds=45, load=ALL, steps=stop_b_for(FAULT_S, 20)
    ),
    FaultScenario(
        name="stop_60s",
        text="SIGSTOP B 60 s",
        seconds=85,
        load=ALL,
        looks=True,
        steps=stop_b_for(FAULT_S, 60),
    ),
    FaultScenario(
        name="delay_200ms", text="200 ms each way, 15 s", seconds=25, load=ALL, steps=slow_for(15, 0.2)
    ),
    FaultScenario(
        name="slow_50k",
        text="200 ms, 50 KB/s, 25 s",
        seconds=35,
        load=ALL,
        steps=slow_for(25, 0.2, 50 * KB),
    ),
    FaultScenario(name="stall_10s", text="stall 10 s", seconds=35, load=ALL, steps=stall_for(FAULT_S, 10)),
    FaultScenario(
        name="half_open_10s",
        text="B not heard for 10 s (half open)",
        seconds=35,
        load=ALL,
        steps=half_open_for(FAULT_S, 10),
    ),
    FaultScenario(name="cut_3", text="cut 3 times", seconds=25, load=ALL, steps=cuts(FAULT_S, 3, 4)),
    FaultScenario(
        name="stall_5x3s",
        text="5 stalls of 3 s",
        seconds=45,
        load=ALL,
        steps=tuple(step for place in range(5) for step in stall_for(FAULT_S + 6 * place, 3)),
    ),
    FaultScenario(
        name="refused_30s",
        text="partition 30 s (refused)",
        seconds=65,
        load=ALL,
        looks=True,
        steps=refuse_for(FAULT_S, 30),
    ),
    FaultScenario(
        name="silent_30s",
        text="partition 30 s (silent)",
        seconds=65,
        load=ALL,
        looks=True,
        steps=stall_for(FAULT_S, 30),
    ),
    FaultScenario(
        name="big5m_200k",
        text="50 ms, 200 KB/s, one 5 MB answer",
        seconds=40,
        load=ALL,
        big=BigCalls(1, 5 * MB),
        steps=(slow(0, 0.05, 200 * KB),),
    ),
    FaultScenario(
        name="big5m_50k",
        text="200 ms, 50 KB/s, one 5 MB answer",
        seconds=85,
        load=ALL,
        big=BigCalls(1, 5 * MB),
        steps=(slow(0, 0.2, 50 * KB),),
    ),
    crowded("big1m_20k", "100 ms, 20 KB/s, one 1 MB answer", 65, slow(0, 0.1, 20 * KB), BigCalls(1, MB)),
    crowded("big1m_10k", "100 ms, 10 KB/s, one 1 MB answer", 65, slow(0, 0.1, 10 * KB), BigCalls(1, MB)),
    crowded("big1m_4k", "100 ms, 4 KB/s, one 1 MB answer", 65, slow(0, 0.1, 4 * KB), BigCalls(1, MB)),
    crowded(
        "five_1m_200k", "50 ms, 200 KB/s, five 1 MB answers", 45, slow(0, 0.05, 200 * KB), BigCalls(5, MB)
    ),
    crowded(
        "five_1m_200k_used",
        "the same after 4,000 small calls without that limit",
        45,
        slow(0, 0.05, 200 * KB),
        BigCalls(5, MB),
        calls_before=300,
    ),
    crowded(
        "ten_1m_200k",
        "50 ms, 200 KB/s, ten 1 MB answers, small calls in the same sessions",
        60,
        slow(0, 0.05, 200 * KB),
        BigCalls(10, MB, in_same_sessions=True),
        load=MANY,
    ),
    crowded(
        "ten_1m_200k_used",
        "50 ms, 200 KB/s, ten 1 MB answers in the same sessions, after 4,000 small calls",
        60,
        slow(0, 0.05, 200 * KB),
        BigCalls(10, MB, in_same_sessions=True),
        load=MANY,
        calls_before=400,
    ),
    crowded(
        "ten_1m_50k",
        "100 ms, 50 KB/s, ten 1 MB answers, small calls in the same sessions",
        64,
        slow(0, 0.1, 50 * KB),
        BigCalls(10, MB, in_same_sessions=True),
        load=MANY,
    ),
    crowded(
        "ten_1m_50k_used",
        "100 ms, 50 KB/s, ten 1 MB answers in the same sessions, after 4,000 small calls",
        64,
        slow(0, 0.1, 50 * KB),
        BigCalls(10, MB, in_same_sessions=True),
        load=MANY,
        calls_before=400,
    ),
    crowded(
        "big1m_cuts_50k",
        "100 ms, 50 KB/s, one 1 MB answer, cut every 3 s for 45 s",
        65,
        slow(0, 0.1, 50 * KB),
        BigCalls(1, MB),
        *cuts(FAULT_S, 15, 3),
    ),
)


def _door(at_s: float, act: Callable[[CableProxy], None]) -> DoorStep:
    return DoorStep(at_s, act)


DOOR: Final = (
    DoorScenario(
        name="door_slow",
        text="agents behind 100 ms and 50 KB/s that read 1 MB answers",
        seconds=30,
        size_bytes=MB,
        big_every_s=100,
        steps=(_door(0, lambda proxy: proxy.slow(delay_s=0.1, bytes_per_s=50 * KB)),),
    ),
    DoorScenario(
        name="door_stalled",
        text="agents behind a stall of 15 s that wait for 5 MB answers",
        seconds=30,
        size_bytes=5 * MB,
        big_every_s=10,
        steps=(_door(FAULT_S, CableProxy.stall), _door(FAULT_S + 15, CableProxy.heal)),
    ),
    DoorScenario(
        name="door_half_open",
        text="agents that are heard and hear nothing for 15 s",
        seconds=30,
        size_bytes=MB,
        big_every_s=10,
        steps=(_door(FAULT_S, lambda proxy: proxy.stall("back")), _door(FAULT_S + 15, CableProxy.heal)),
    ),
    DoorScenario(
        name="door_cut",
        text="agents whose connections are reset every second for 15 s",
        seconds=25,
        size_bytes=MB,
        big_every_s=5,
        steps=(
            _door(0, lambda proxy: proxy.slow(bytes_per_s=MB)),
            *(_door(FAULT_S + place + 0.35, CableProxy.cut) for place in range(15)),
        ),
    ),
    DoorScenario(
        name="door_refused",
        text="agents that are reset and refused for 15 s",
        seconds=30,
        size_bytes=MB,
        big_every_s=5,
        steps=(
            _door(0, lambda proxy: proxy.slow(bytes_per_s=MB)),
            _door(FAULT_S, _refuse_all),
            _door(FAULT_S + 15, CableProxy.heal),
        ),
    ),
)
