"""Events in turns: their order, what is written while a client does not read, and the share that waits."""

from collections import deque

from hypothesis import given
from hypothesis import strategies as st

from carpool.http.core.effects import ContinueEvents, Effect, EndEvents, WriteEvents
from carpool.http.core.event_turns import TURN_BYTES, EventTurns
from carpool.http.core.shared_budgets import SharedBudget


def test_what_a_client_has_not_read_holds_back_what_comes_after_it() -> None:
    out: list[Effect] = []
    turns = EventTurns(1, "ann", SharedBudget(1000).share_of("ann"), out)
    assert turns.write(b"a")
    turns.client_blocked()
    assert turns.write(b"b")
    assert not turns.end()
    assert out == [WriteEvents(1, b"a")]
    assert not turns.continue_turn()  # its client has not read yet
    assert turns.client_has_room()
    assert out == [WriteEvents(1, b"a"), WriteEvents(1, b"b"), EndEvents(1)]


def test_a_turn_ends_with_the_event_that_makes_it_long() -> None:
    out: list[Effect] = []
    budget = SharedBudget(100 * TURN_BYTES)
    turns = EventTurns(1, "ann", budget.share_of("ann"), out)
    long = bytes(TURN_BYTES)
    for _ in range(3):
        assert turns.write(long)
    assert out == [WriteEvents(1, long), ContinueEvents(1)]
    assert budget.used == turns.size == 2 * TURN_BYTES
    turns.continue_turn()
    assert out[2:] == [WriteEvents(1, long), ContinueEvents(1)]
    turns.drop()
    assert budget.used == 0


def test_an_event_without_room_is_not_kept_unless_it_must() -> None:
    budget = SharedBudget(100)
    turns = EventTurns(1, "ann", budget.share_of("ann"), [])
    turns.client_blocked()
    assert turns.write(bytes(40))
    assert not turns.write(bytes(40))  # half of the budget is for others
    assert turns.write(bytes(40), must=True)
    assert budget.used == 80


@given(st.lists(st.sampled_from(["short", "long", "blocked", "room", "turn"]), max_size=40))
def test_every_event_is_written_once_and_in_order_before_the_end(steps: list[str]) -> None:
    out: list[Effect] = []
    budget = SharedBudget(1000 * TURN_BYTES)
    turns = EventTurns(1, "ann", budget.share_of("ann"), out)
    written: deque[bytes] = deque()
    for at, step in enumerate(steps):
        if step in {"short", "long"}:
            written.append(b"%d" % at + bytes(TURN_BYTES if step == "long" else 1))
            assert turns.write(written[-1])
        elif step == "blocked":
            turns.client_blocked()
        elif step == "room":
            turns.client_has_room()
        else:
            turns.continue_turn()
    has_ended = turns.end() or turns.client_has_room()
    while not has_ended:
        has_ended = turns.continue_turn()
    assert [each.data for each in out if isinstance(each, WriteEvents)] == [*written]
    assert out.count(EndEvents(1)) == 1
    assert out[-1] == EndEvents(1)
    assert budget.used == turns.size == 0
