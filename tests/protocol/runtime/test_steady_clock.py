"""The clock that stands still, on clocks that a test moves."""

import pytest
import trio
from trio.testing import MockClock

from carpool_protocol.runtime.pace import IDLE_S, LATE_S, Pace
from carpool_protocol.runtime.steady_clock import JUMP_S, TICK_S, SteadyClock
from tests.behaviours import behaviour


class FakeClocks:
    """A machine's clocks: `sleeps` moves the wall only, `freezes` both, as a stopped process sees them."""

    def __init__(self) -> None:
        self.slept_s = 0.0
        self.frozen_s = 0.0
        self.clock = SteadyClock(self.monotonic, self.wall)
        self.jumped = 0

    def monotonic(self) -> float:
        return trio.current_time() + self.frozen_s

    def wall(self) -> float:
        return 1e9 + self.monotonic() + self.slept_s

    def jump(self) -> None:
        self.jumped += 1


async def watched(machine: FakeClocks, *moves: tuple[str, float]) -> list[int]:
    """How many jumps are known after each move and a few seconds."""
    seen = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(machine.clock.watch, machine.jump)
        await trio.sleep(3 * TICK_S)
        for name, size_s in moves:
            setattr(machine, name, getattr(machine, name) + size_s)
            await trio.sleep(3 * TICK_S)
            seen.append(machine.jumped)
        nursery.cancel_scope.cancel()
    return seen


async def test_time_in_which_the_process_was_frozen_is_left_out_and_told_once(
    autojump_clock: MockClock,
) -> None:
    machine = FakeClocks()
    before = machine.clock()
    assert await watched(machine, ("frozen_s", 3600.0)) == [1]
    assert machine.clock() - before < 20


@pytest.mark.parametrize(("late_s", "jumps"), [(LATE_S - 0.5, 0), (LATE_S + IDLE_S, 1)])
async def test_an_idle_process_that_wakes_late_on_a_loaded_machine_was_not_stopped(
    late_s: float, jumps: int, autojump_clock: MockClock
) -> None:
    machine = FakeClocks()
    pace = Pace(lambda: 0, machine.monotonic)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(machine.clock.watch, machine.jump, pace)
        await trio.sleep(10 * IDLE_S)  # idle by now
        machine.frozen_s += late_s
        await trio.sleep(3 * IDLE_S)
        nursery.cancel_scope.cancel()
    assert machine.jumped == jumps


@behaviour("silence:clock-jump")
async def test_a_machine_that_slept_is_seen_by_its_wall_clock_and_no_time_is_left_out(
    autojump_clock: MockClock,
) -> None:
    machine = FakeClocks()
    before, began = machine.clock(), trio.current_time()
    assert await watched(machine, ("slept_s", 3600.0), ("slept_s", -7200.0)) == [1, 2]
    assert machine.clock() - before == trio.current_time() - began


async def test_a_wall_clock_that_is_adjusted_a_little_is_no_jump(autojump_clock: MockClock) -> None:
    machine = FakeClocks()
    little = JUMP_S / 2
    assert await watched(machine, *[("slept_s", little)] * 4) == [0, 0, 0, 0]
