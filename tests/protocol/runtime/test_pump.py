"""The pump: order of events and effects, timers on a virtual clock, and what a bug leaves behind."""

import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import trio
import trio.testing
from msgspec import Struct

from carpool_protocol.faults.fault_answers import InvariantBroken
from carpool_protocol.machine.journal import Journal, load_journal
from carpool_protocol.machine.machine import FULL_CHECK_EVERY, Ticked
from carpool_protocol.runtime.pump import CHECK_VARIABLE, JOURNAL_VARIABLE, CorePump
from tests.kit.waits import until


class NumberedEvent(Struct, frozen=True):
    number: int
    due_s: float = 0.0


class Do(Struct, frozen=True):
    what: str


class Toy:
    """A core that echoes events, and one deadline per event that asks for one."""

    def __init__(self) -> None:
        self.deadlines: list[float] = []
        self.asked_for_deadline = 0
        self.checked = 0
        self.checked_all = 0
        self.fault: Exception | None = None

    def handle(self, event: NumberedEvent, now: float) -> list[Do]:
        if event.number < 0:
            raise InvariantBroken("a negative number")
        if event.due_s:
            self.deadlines.append(now + event.due_s)
        return [Do(f"event {event.number}")]

    def tick(self, now: float) -> list[Do]:
        due = [d for d in self.deadlines if d <= now]
        self.deadlines = [d for d in self.deadlines if d > now]
        return [Do(f"due {d:g}") for d in due]

    def next_deadline(self) -> float | None:
        self.asked_for_deadline += 1
        return min(self.deadlines, default=None)

    def check(self) -> None:
        self.checked_all += 1

    def check_touched(self, event: NumberedEvent | Ticked, effects: Sequence[Do]) -> None:
        self.checked += 1
        if self.fault is not None:
            raise self.fault


class PumpRig:
    def __init__(self, **options: object) -> None:
        self.machine = Toy()
        self.journal = Journal()
        self.done: list[str] = []
        self.settled: list[str] = []
        """What had been done when the last burst was let out."""
        self.on_effect: Callable[[str], None] = lambda what: None
        self.clock: Callable[[], float] = lambda: 7.0
        self.pump: CorePump[NumberedEvent, Do] = CorePump(
            self.machine,
            self.perform,
            self.journal,
            options.pop("clock", lambda: 7.0),  # type: ignore[arg-type]
            **options,  # type: ignore[arg-type]
        )

    def settle(self) -> None:
        self.settled = list(self.done)
        self.pump.settle()

    def perform(self, effects: list[Do]) -> None:
        for effect in effects:
            self.done.append(effect.what)
            self.on_effect(effect.what)


def test_effects_are_performed_and_recorded_in_order() -> None:
    shell = PumpRig()
    shell.pump.feed(NumberedEvent(1))
    shell.pump.feed_all([NumberedEvent(2), NumberedEvent(3)])
    assert shell.done == ["event 1", "event 2", "event 3"]
    assert [entry.event["number"] for entry in shell.journal.entries()] == [1, 2, 3]
    assert {entry.now for entry in shell.journal.entries()} == {7.0}


def test_an_event_fed_while_performing_waits_its_turn() -> None:
    shell = PumpRig()
    depth = 0

    def nest(what: str) -> None:
        nonlocal depth
        depth += 1
        assert depth == 1, "recursion"
        if what == "event 1":
            shell.pump.feed(NumberedEvent(11))
            shell.pump.feed_all([NumberedEvent(12), NumberedEvent(13)])
        depth -= 1

    shell.on_effect = nest
    shell.pump.feed_all([NumberedEvent(1), NumberedEvent(2)])
    assert shell.done == ["event 1", "event 11", "event 12", "event 13", "event 2"]


def test_the_timer_ticks_at_each_deadline(autojump_clock: trio.testing.MockClock) -> None:
    async def main() -> None:
        shell = PumpRig(clock=trio.current_time)
        start = trio.current_time()
        shell.pump.feed(NumberedEvent(1, due_s=5.0))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(shell.pump.run_timers, shell.settle)
            await trio.testing.wait_all_tasks_blocked()
            shell.pump.feed_all([NumberedEvent(2, due_s=30.0), NumberedEvent(3, due_s=2.0)])
            shell.pump.settle()
            await trio.sleep(2.0)
            await trio.testing.wait_all_tasks_blocked()
            assert shell.done[3:] == [f"due {start + 2.0:g}"]
            assert shell.settled == shell.done, "what a tick decides leaves at once"
            await trio.sleep(40.0)
            assert shell.done[3:] == [f"due {start + s:g}" for s in (2.0, 5.0, 30.0)]
            nursery.cancel_scope.cancel()
        ticks = [e.now - start for e in shell.journal.entries() if e.event["type"] == "Ticked"]
        assert ticks == [2.0, 5.0, 30.0]

    trio.run(main, clock=autojump_clock)


def test_what_a_tick_makes_the_shell_say_is_an_event(autojump_clock: trio.testing.MockClock) -> None:
    async def main() -> None:
        shell = PumpRig(clock=trio.current_time)
        shell.on_effect = lambda what: shell.pump.feed(NumberedEvent(2)) if what.startswith("due") else None
        async with trio.open_nursery() as nursery:
            shell.pump.feed(NumberedEvent(1, due_s=5.0))
            nursery.start_soon(shell.pump.run_timers, shell.settle)
            await trio.sleep(6.0)
            nursery.cancel_scope.cancel()
        assert [entry.event["type"] for entry in shell.journal.entries()] == [
            "NumberedEvent",
            "Ticked",
            "NumberedEvent",
        ]
        assert shell.done[-1] == "event 2"

    trio.run(main, clock=autojump_clock)


async def test_no_event_pays_for_the_timer() -> None:
    shell = PumpRig(clock=trio.current_time)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(shell.pump.run_timers, shell.settle)
        await trio.testing.wait_all_tasks_blocked()
        before = shell.machine.asked_for_deadline
        for i in range(100):
            shell.pump.feed(NumberedEvent(i, due_s=1000.0))
        assert shell.machine.asked_for_deadline == before
        shell.pump.settle()
        assert shell.machine.asked_for_deadline == before + 1
        nursery.cancel_scope.cancel()


async def test_a_machine_that_is_always_due_does_not_starve_the_others() -> None:
    shell = PumpRig(clock=trio.current_time)
    shell.machine.next_deadline = lambda: 0.0  # type: ignore[method-assign]
    with trio.fail_after(5):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(shell.pump.run_timers, shell.settle)
            for _ in range(10):
                await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()


async def test_a_journal_is_written_when_asked_for_and_the_pump_goes_on(tmp_path: Path) -> None:
    shell = PumpRig(dump_to=tmp_path / "journal")
    shell.pump.feed(NumberedEvent(1))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(shell.pump.run_dumps)
        await trio.testing.wait_all_tasks_blocked()
        os.kill(os.getpid(), signal.SIGUSR2)
        await until((tmp_path / "journal").exists, "the journal is written")
        nursery.cancel_scope.cancel()
    assert load_journal((tmp_path / "journal").read_bytes(), [NumberedEvent]) == [(7.0, NumberedEvent(1))]
    shell.pump.feed(NumberedEvent(2))
    assert shell.done == ["event 1", "event 2"]


def test_the_environment_says_how_much_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(JOURNAL_VARIABLE, "2")
    pump: CorePump[NumberedEvent, Do] = CorePump(
        Toy(), lambda _: None, clock=lambda: 7.0, dump_to=tmp_path / "journal"
    )
    pump.feed_all([NumberedEvent(1), NumberedEvent(2)])
    with pytest.raises(InvariantBroken):
        pump.feed(NumberedEvent(-1))
    assert load_journal((tmp_path / "journal").read_bytes(), [NumberedEvent]) == [
        (7.0, NumberedEvent(2)),
        (7.0, NumberedEvent(-1)),
    ]


def test_a_bug_dumps_the_journal_with_the_event_that_caused_it(tmp_path: Path) -> None:
    shell = PumpRig(dump_to=tmp_path / "journal")
    shell.pump.feed(NumberedEvent(1))
    with pytest.raises(InvariantBroken) as caught:
        shell.pump.feed(NumberedEvent(-1))
    assert load_journal((tmp_path / "journal").read_bytes(), [NumberedEvent]) == [
        (7.0, NumberedEvent(1)),
        (7.0, NumberedEvent(-1)),
    ]
    assert str(tmp_path) in caught.value.__notes__[0]


def test_a_dump_that_cannot_be_written_does_not_hide_the_bug(tmp_path: Path) -> None:
    shell = PumpRig(dump_to=tmp_path / "no" / "such" / "folder")
    with pytest.raises(InvariantBroken) as caught:
        shell.pump.feed(NumberedEvent(-1))
    assert "could not be written" in caught.value.__notes__[0]


def test_what_an_event_touched_is_checked_after_it_and_everything_now_and_then_where_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(CHECK_VARIABLE, "1")
    shell = PumpRig()
    shell.pump.feed_all([NumberedEvent(1), NumberedEvent(2)])
    assert shell.machine.checked == 2
    assert shell.machine.checked_all == 0
    shell.pump.feed_all([NumberedEvent(3)] * (FULL_CHECK_EVERY - 2))
    assert shell.machine.checked_all == 1
    shell.machine.fault = AssertionError("broken")
    with pytest.raises(AssertionError, match="broken"):
        shell.pump.feed(NumberedEvent(4))
    assert "event 4" not in shell.done
    monkeypatch.delenv(CHECK_VARIABLE)
    other = PumpRig()
    other.pump.feed(NumberedEvent(1))
    assert other.machine.checked == 0


def test_what_waited_behind_a_bug_is_never_handled() -> None:
    shell = PumpRig()

    def feed_more(what: str) -> None:
        if what == "event 1":
            shell.pump.feed(NumberedEvent(-1))
            shell.pump.feed(NumberedEvent(2))

    shell.on_effect = feed_more
    with pytest.raises(InvariantBroken):
        shell.pump.feed(NumberedEvent(1))
    assert shell.done == ["event 1"]
    assert not isinstance(shell.journal.entries()[-1], Ticked)
