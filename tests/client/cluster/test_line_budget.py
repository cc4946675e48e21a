"""The limit on lines that a node's process holds: who waits past it, and who does not."""

from carpool.cluster.line_budget import LONG_BYTES, LineBudget
from tests.behaviours import behaviour

MIB = 1 << 20


class ReadingSession:
    """A session that reads as long as it may."""

    def __init__(self, budget: LineBudget, node: str) -> None:
        self.budget, self.node, self.held, self.was_told = budget, node, 0, 0

    def read(self, size: int = MIB) -> bool:
        """Read more if that is allowed."""
        if not self.budget.may_read(self, self.tell):
            return False
        self.held += size
        self.budget.holds(self.node, self, self.held)
        return True

    def pass_all(self) -> None:
        """Everything was passed on."""
        self.held = 0
        self.budget.holds(self.node, self, 0)

    def tell(self) -> None:
        self.was_told += 1


@behaviour("cluster:memory")
def test_past_the_limit_only_the_oldest_line_of_a_node_grows() -> None:
    budget = LineBudget(8 * MIB)
    first, *others = (ReadingSession(budget, "beta") for _ in range(20))
    for _ in range(64):
        for each in (first, *others):
            each.read(LONG_BYTES)
    assert first.held == 64 * LONG_BYTES
    assert sum(each.held for each in others) <= 8 * MIB + len(others) * 2 * LONG_BYTES


@behaviour("cluster:memory")
def test_a_node_that_takes_nothing_holds_up_its_own_sessions_and_no_others() -> None:
    budget = LineBudget(8 * MIB)
    stuck = [ReadingSession(budget, "mallory") for _ in range(20)]
    for _ in range(64):
        for each in stuck:
            each.read()
    honest = ReadingSession(budget, "beta"), ReadingSession(budget, "beta")
    for each in honest:
        assert each.read()
        assert each.read(MIB // 2)
        assert each.read(MIB // 2)
    assert not stuck[1].read()


@behaviour("cluster:memory")
def test_who_waits_is_told_when_something_was_passed_on_and_reads_again() -> None:
    budget = LineBudget(2 * MIB)
    first, second = ReadingSession(budget, "beta"), ReadingSession(budget, "beta")
    assert first.read(2 * MIB)
    assert second.read(MIB)
    assert not second.read()
    first.pass_all()
    assert second.was_told == 1
    assert second.read()


def test_sessions_that_hold_little_are_never_held_up_and_those_that_end_leave_nothing() -> None:
    budget = LineBudget(MIB)
    big, small = ReadingSession(budget, "beta"), ReadingSession(budget, "beta")
    assert big.read(4 * MIB)
    assert small.read(LONG_BYTES)
    assert small.read(0)
    budget.forget("beta", big)
    budget.forget("beta", small)
    assert budget.held_bytes == 0
