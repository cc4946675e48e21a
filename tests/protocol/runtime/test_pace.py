"""When periodic work is due: for a process in which something happens, and for one with nothing to do."""

import pytest

from carpool_protocol.runtime.pace import ALONE_S, BUSY_S, IDLE_S, REST_AFTER_S, Pace, until_due
from tests.behaviours import behaviour


class PacedProcess:
    """A process with a clock that the test sets."""

    def __init__(self) -> None:
        self.now, self.happened = 48_000.0, 0
        self.pace = Pace(lambda: self.happened, lambda: self.now)

    def woken(self, seconds: float, idle_s: float = IDLE_S) -> int:
        """How often its periodic work is done in this time."""
        end, count = self.now + seconds, 0
        while self.now < end:
            self.now += self.pace.delay_s(idle_s)
            count += 1
        return count


@behaviour("idle:wakeups")
def test_a_process_with_nothing_to_do_looks_seldom_and_one_that_is_used_looks_every_second() -> None:
    process = PacedProcess()
    process.woken(48.0)
    assert process.woken(48.0) == 48.0 / IDLE_S
    assert process.woken(48.0, ALONE_S) == 48.0 / ALONE_S
    process.happened += 1
    process.now += process.pace.delay_s()
    assert process.woken(REST_AFTER_S - 2.0) == (REST_AFTER_S - 2.0) / BUSY_S


@behaviour("idle:wakeups")
@pytest.mark.parametrize("late_s", [0.0, 0.3, 3.5])
def test_work_of_all_processes_is_due_at_the_same_moments(late_s: float) -> None:
    due = {now + until_due(IDLE_S, now) for now in (400.0 + late_s, 400.0 + late_s / 2, 400.0)}
    assert due == {404.0}
