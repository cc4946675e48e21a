"""The oracle about turns itself: it sees who is passed over, and nobody else."""

import pytest

from carpool_protocol.ids import ABSENT, EMPTY_OBJECT, CallId, PoolKey, SessionId
from carpool_protocol.link.messages import Call
from tests.world.sim.oracles.turns import MOST_TURNS, TurnBook
from tests.world.sim.oracles.violation import Violation


def call(number: int, session: str) -> Call:
    return Call(
        CallId(number), PoolKey("s:0"), SessionId(session), "tools/call", "t", EMPTY_OBJECT, ABSENT, False
    )


def test_who_waits_through_a_turn_too_many_of_another_is_seen() -> None:
    book = TurnBook()
    book.came(call(0, "modest"))
    for number in range(1, 1 + MOST_TURNS):
        book.came(call(number, "greedy"))
        book.placed(call(number, "greedy"), alike=True)
    with pytest.raises(Violation, match="modest waits"):
        book.placed(call(9, "greedy.part"), alike=True)


def test_a_call_that_comes_back_from_a_dead_instance_and_goes_is_a_turn_of_its_session() -> None:
    book = TurnBook()
    for number, session in enumerate(("a", "a", "b", "b", "b", "b")):
        book.came(call(number, session))
    book.placed(call(0, "a"), alike=True)
    for number in (2, 3):
        book.placed(call(number, "b"), alike=True)
    book.placed(call(0, "a"), alike=True)
    for number in (4, 5):
        book.placed(call(number, "b"), alike=True)


def test_who_hears_of_a_loss_has_had_a_turn() -> None:
    book = TurnBook()
    book.came(call(0, "modest"))
    book.came(call(1, "modest"))
    for number in range(2, 2 + MOST_TURNS):
        book.came(call(number, "greedy"))
        book.placed(call(number, "greedy"), alike=True)
    book.told(CallId(0))
    book.placed(call(9, "greedy"), alike=True)
