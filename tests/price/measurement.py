"""Measures the price of each kind of call on a private carpool.

A burst of calls passes through carpool in lock step (`lock_step`) while each process counts what it runs.
What is left of heartbeats and timeouts falls into some bursts and adds to them. So of each function the
`AGREEING` bursts with the least of it count, and more bursts follow until those agree.

Owns the number of bursts and the choice among them. Knows nothing of: which price is too high.
"""

from collections.abc import Sequence
from typing import Final

from tests.kit.source_graft import SourceGraft
from tests.price.counted_carpool import CountedCarpool, CountedFunction
from tests.price.lock_step import LockStep, wait_until_idle
from tests.price.price_list import (
    FunctionPrice,
    PriceList,
    Way,
    function_name,
    library_versions,
    total,
)
from tests.price.priced_calls import PRICED_CALLS, BurstingAgents, PricedCall

WARM_UP: Final = 2
"""The first bursts fill caches and are not counted."""
AGREEING: Final = 3
FEWEST_BURSTS: Final = 5
AGREEMENT: Final = 0.004
"""Bursts agree if the sums of their least functions differ by less than this part."""
MOST_BURSTS: Final = 60
"""Enough for the busiest machine, unless calls differ from burst to burst."""

_NOTHING: Final = FunctionPrice(0, 0)

Burst = dict[str, Way]
"""What each process did for one burst, by function, in whole numbers."""


def measure(kinds: Sequence[PricedCall] = PRICED_CALLS, graft: SourceGraft | None = None) -> PriceList:
    """Return the prices of these kinds of call, in a carpool with this module in place of one of its own."""
    carpool = CountedCarpool(graft)
    try:
        prices = {kind.name: _price_of(kind, carpool) for kind in kinds}
    finally:
        carpool.close()
    functions = {name for processes in prices.values() for way in processes.values() for name in way}
    return PriceList.of(library_versions(functions), prices)


def _price_of(kind: PricedCall, carpool: CountedCarpool) -> dict[str, Way]:
    agents = BurstingAgents(kind, carpool.directory)
    try:
        for _ in range(WARM_UP):
            _count_burst(kind, agents, carpool)
        bursts: list[Burst] = []
        while len(bursts) < MOST_BURSTS and not do_agree(kind, bursts):
            bursts.append(_count_burst(kind, agents, carpool))
    finally:
        agents.close()
    return price_of_bursts(kind, bursts)


def _count_burst(kind: PricedCall, agents: BurstingAgents, carpool: CountedCarpool) -> Burst:
    with LockStep(carpool.pids.values()) as lock_step:

        def pass_once() -> None:
            for process in kind.way:
                lock_step.give_turn(carpool.pids[process])

        agents.make_burst(pass_once)
    wait_until_idle(carpool.pids.values())
    return {process: _way_of(carpool.take_counts(process)) for process in kind.processes}


def _way_of(rows: Sequence[CountedFunction]) -> Way:
    way: Way = {}
    for row in rows:
        name = function_name(row.file, row.name)
        entries, bytecodes = way.get(name, (0, 0))
        way[name] = FunctionPrice(entries + row.entries, bytecodes + row.bytecodes)
    return way


def price_of_bursts(kind: PricedCall, bursts: Sequence[Burst]) -> dict[str, Way]:
    """Return what one call does in each process."""
    return {
        process: {
            name: FunctionPrice(price.entries / kind.calls, price.bytecodes / kind.calls)
            for name, price in _nth_least(bursts, process, AGREEING - 1).items()
        }
        for process in kind.processes
    }


def do_agree(kind: PricedCall, bursts: Sequence[Burst]) -> bool:
    """True if enough bursts say the same of each process."""
    if len(bursts) < FEWEST_BURSTS:
        return False
    for process in kind.processes:
        least, agreed = (total(_nth_least(bursts, process, nth)) for nth in (0, AGREEING - 1))
        if agreed > least * (1 + AGREEMENT):
            return False
    return True


def _bytecodes(price: FunctionPrice) -> float:
    return price.bytecodes


def _nth_least(bursts: Sequence[Burst], process: str, nth: int) -> Way:
    """Return of each function what it did in the burst with the `nth` least of it."""
    ways = [burst[process] for burst in bursts]
    names = {name for way in ways for name in way}
    found = {name: sorted((way.get(name, _NOTHING) for way in ways), key=_bytecodes)[nth] for name in names}
    return {name: price for name, price in found.items() if price.bytecodes}
