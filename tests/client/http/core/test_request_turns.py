"""The turns of a door's connections: who is served when, in counts of work."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carpool.http.core.request_turns import BUSY_TURN_S, REQUEST_COST, TURN_COST, TURN_S, RequestTurns
from tests.behaviours import behaviour


class TurnLoop:
    """Turns of an event loop, and the turns of connections in it."""

    def __init__(self, most: int) -> None:
        self.begun = 0
        self.cpu_s = 0.0
        """The time that all work has taken."""
        self.turns = RequestTurns(self._begin, most, lambda: self.cpu_s)
        self.order: list[str] = []
        """Whose work was done, piece by piece."""

    def _begin(self) -> None:
        self.begun += 1

    def turn(self) -> list[str]:
        """One turn of the loop: what was done in it."""
        assert self.begun == 1, "one call of `run` is awaited, and never two"
        self.begun = 0
        before = len(self.order)
        self.turns.run()
        self.turns.check()
        return self.order[before:]

    def all_turns(self) -> list[list[str]]:
        found = []
        while self.begun:
            found.append(self.turn())
        return found


class TakerOfTurns:
    """Pieces of work of one principal, which are thought to cost this, and take so long each."""

    def __init__(self, loop: TurnLoop, principal: str, *costs: int, takes_s: float = 0.0) -> None:
        self._loop, self._principal, self._costs = loop, principal, [*costs]
        self._takes_s = takes_s
        self.wait()

    def wait(self) -> None:
        if self._costs:
            self._loop.turns.add(self, self._principal)

    def take_turn(self) -> int:
        cost = self._costs.pop(0)
        self._loop.order.append(self._principal)
        self._loop.cpu_s += self._takes_s
        self.wait()
        return cost


@behaviour("http:turns")
def test_what_comes_in_one_turn_of_the_loop_is_handled_at_once_up_to_the_bound_whoever_sends_it() -> None:
    loop = TurnLoop(10 * REQUEST_COST)
    assert [loop.turns.spend(0) for _ in range(12)] == [True] * 10 + [False] * 2
    loop.turn()
    assert loop.turns.spend(0)


@behaviour("http:turns:time")
def test_a_turn_of_the_loop_is_over_when_it_has_taken_its_time_whatever_was_thought_of_the_cost() -> None:
    loop = TurnLoop(1000 * REQUEST_COST)

    def handled() -> int:
        count = 0
        while count < 100 and loop.turns.spend(0):
            count += 1
            loop.cpu_s += TURN_S / 4
        return count

    assert [handled(), handled()] == [4, 0]
    loop.turn()
    assert handled() == 4
    loop.cpu_s += 10 * TURN_S  # other work of the loop
    loop.turn()
    assert handled() == 4


@behaviour("http:turns:time")
def test_of_work_that_waits_one_turn_does_as_much_as_it_has_time_for_and_always_one_piece() -> None:
    for takes_s, pieces in ((BUSY_TURN_S / 8, 8), (TURN_S * 3, 1)):
        loop = TurnLoop(1000 * REQUEST_COST)
        for _ in range(40):
            TakerOfTurns(loop, "bob", 1, takes_s=takes_s)
        turns = [each for each in loop.all_turns() if each]
        assert {len(each) for each in turns} == {pieces}
        assert sum(map(len, turns)) == 40


@behaviour("http:turns:time")
def test_what_comes_while_others_wait_does_not_pass_them() -> None:
    loop = TurnLoop(1000 * REQUEST_COST)
    for _ in range(9):
        TakerOfTurns(loop, "bob", 1, takes_s=BUSY_TURN_S / 8)
    loop.turn()
    assert not loop.turns.spend(0)
    loop.turn()
    loop.cpu_s += BUSY_TURN_S
    assert loop.turns.spend(0), "nobody waits any more"


@behaviour("http:turns:time")
def test_a_principal_whose_requests_take_longer_than_they_seem_to_gets_no_more_time_than_others() -> None:
    loop = TurnLoop(TURN_COST)
    for _ in range(40):
        TakerOfTurns(loop, "bob", REQUEST_COST, takes_s=TURN_S / 2)
    TakerOfTurns(loop, "eve", *[REQUEST_COST] * 200)
    order = [each for turn in loop.all_turns() for each in turn]
    assert order.index("bob", 1) >= TURN_COST // 2 // REQUEST_COST


def test_what_came_before_a_request_is_complete_counts_in_the_turn_in_which_it_is_read() -> None:
    loop = TurnLoop(10 * REQUEST_COST)
    assert loop.turns.spend(0)
    loop.turns.charge(8 * REQUEST_COST)
    assert [loop.turns.spend(0) for _ in range(2)] == [True, False]


def test_a_turn_of_the_loop_in_which_nothing_was_done_is_the_last_one() -> None:
    loop = TurnLoop(10 * REQUEST_COST)
    loop.turns.spend(0)
    assert loop.all_turns() == [[]]
    loop.turns.spend(0)
    assert loop.begun == 1


@behaviour("http:turns")
def test_one_turn_of_the_loop_does_no_more_than_its_bound_however_many_connections_wait() -> None:
    loop = TurnLoop(100)
    for _ in range(1000):
        TakerOfTurns(loop, "bob", 10)
    turns = loop.all_turns()
    assert max(map(len, turns)) == 10
    assert sum(map(len, turns)) == 1000


@behaviour("http:turns")
def test_a_principal_with_few_connections_is_served_beside_one_with_thousands() -> None:
    loop = TurnLoop(100)
    for _ in range(3000):
        TakerOfTurns(loop, "bob", *[10] * 16)
    loop.turn()
    TakerOfTurns(loop, "eve", 10, 10, 10)
    assert loop.turn().count("eve") == 3


@behaviour("http:turns")
def test_connections_of_one_principal_take_turns_whatever_each_has_to_do() -> None:
    loop = TurnLoop(100)
    for _ in range(5):
        TakerOfTurns(loop, "bob", *[10] * 50)
    late = TakerOfTurns(loop, "bob", 10)
    loop.turn()
    assert not late._costs, "it is served after one piece of each other connection"


@behaviour("http:turns:bodies")
def test_a_principal_with_long_bodies_gets_no_more_work_done_than_others() -> None:
    loop = TurnLoop(100)
    for _ in range(45):
        TakerOfTurns(loop, "bob", 4000)
    TakerOfTurns(loop, "eve", *[10] * 800)
    order = [each for turn in loop.all_turns() for each in turn]
    in_between = "".join("b" if each == "bob" else "e" for each in order).rstrip("b").split("b")
    assert max(map(len, in_between)) >= 400, "one body is worth four hundred short requests"
    assert order.index("bob", 1) >= 400


@behaviour("http:turns:bodies")
def test_one_turn_of_the_loop_handles_at_most_one_body_that_is_longer_than_a_turn() -> None:
    loop = TurnLoop(100)
    for name in ("ann", "bob"):
        for _ in range(10):
            TakerOfTurns(loop, name, 4000)
    assert [turn for turn in loop.all_turns() if len(turn) > 1] == []


def test_who_had_nothing_to_do_for_long_does_not_hold_up_the_others_for_that() -> None:
    loop = TurnLoop(100)
    TakerOfTurns(loop, "bob", *[10] * 10_000)
    for _ in range(50):
        loop.turn()
    TakerOfTurns(loop, "eve", *[10] * 10_000)
    counts = Counter(each for _ in range(20) for each in loop.turn())
    assert abs(counts["bob"] - counts["eve"]) <= 2


def test_a_connection_that_fails_in_its_turn_stops_nobody_else() -> None:
    class Broken:
        def take_turn(self) -> int:
            raise RuntimeError

    loop = TurnLoop(100)
    loop.turns.add(Broken(), "bob")
    TakerOfTurns(loop, "eve", 10)
    with pytest.raises(RuntimeError):
        loop.turn()
    assert [each for turn in loop.all_turns() for each in turn] == ["eve"]


@given(
    st.dictionaries(
        st.sampled_from("abcde"),
        st.lists(st.lists(st.integers(1, 300), min_size=1, max_size=8), min_size=1, max_size=8),
        min_size=1,
    )
)
def test_all_work_is_done_and_no_principal_gets_much_more_than_another_that_waits(
    work: dict[str, list[list[int]]],
) -> None:
    loop = TurnLoop(100)
    costs: list[tuple[str, int]] = []

    class Counted(TakerOfTurns):
        def take_turn(self) -> int:
            cost = super().take_turn()
            costs.append((self._principal, cost))
            return cost

    for principal, connections in work.items():
        for pieces in connections:
            Counted(loop, principal, *pieces)
    loop.all_turns()
    left = {name: sum(map(sum, connections)) for name, connections in work.items()}
    had: Counter[str] = Counter()
    for name, cost in costs:
        waiting = [other for other, rest in left.items() if rest]
        assert had[name] <= min(had[other] for other in waiting) or name not in waiting
        had[name] += cost
        left[name] -= cost
    assert not any(left.values())
