"""Deadlines against a dict: which keys fall due, when, and in which order."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from carpool_protocol.machine.deadlines import Deadlines

keys = st.integers(0, 8)
durations = st.sampled_from([0.0, 0.5, 1.0, 5.0, 60.0])


class DeadlinesMachine(RuleBasedStateMachine):
    """The model: key to (deadline, duration)."""

    def __init__(self) -> None:
        super().__init__()
        self.real: Deadlines[int] = Deadlines()
        self.model: dict[int, tuple[float, float]] = {}
        self.now = 100.0

    @rule(key=keys, duration_s=durations)
    def arm(self, key: int, duration_s: float) -> None:
        self.real.arm(key, self.now, duration_s)
        self.model[key] = (self.now + duration_s, duration_s)

    @rule(key=keys)
    def rearm(self, key: int) -> None:
        assert self.real.rearm(key, self.now) == (key in self.model)
        if key in self.model:
            duration_s = self.model[key][1]
            self.model[key] = (self.now + duration_s, duration_s)

    @rule(key=keys)
    def disarm(self, key: int) -> None:
        assert self.real.disarm(key) == (self.model.pop(key, None) is not None)

    @rule(dt=st.sampled_from([0.0, 0.1, 0.5, 1.0, 10.0]))
    def wait(self, dt: float) -> None:
        self.now += dt

    @rule()
    def collect(self) -> None:
        due = self.real.due(self.now)
        deadlines = [self.model[key][0] for key in due]
        assert deadlines == sorted(deadlines)
        assert set(due) == {key for key, (deadline, _) in self.model.items() if deadline <= self.now}
        for key in due:
            del self.model[key]

    @invariant()
    def same(self) -> None:
        self.real.check()
        assert len(self.real) == len(self.model)
        assert self.real.next_deadline() == min((d for d, _ in self.model.values()), default=None)
        for key in range(9):
            assert self.real.deadline_of(key) == self.model.get(key, (None, None))[0]
            assert (key in self.real) == (key in self.model)


DeadlinesMachine.TestCase.settings = settings(deadline=None, max_examples=60, stateful_step_count=30)
TestDeadlines = DeadlinesMachine.TestCase


def test_keys_of_one_duration_fall_due_in_the_order_they_were_armed() -> None:
    deadlines: Deadlines[str] = Deadlines()
    for i, key in enumerate("abc"):
        deadlines.arm(key, float(i), 60.0)
    deadlines.rearm("a", 3.0)
    assert deadlines.due(62.0) == ["b", "c"]
    assert deadlines.next_deadline() == 63.0


def test_odd_durations_leave_nothing_behind() -> None:
    deadlines: Deadlines[int] = Deadlines()
    for i in range(1000):
        deadlines.arm(i, 0.0, float(i))
        deadlines.disarm(i)
    assert len(deadlines._queues) <= 16
