"""The table of an instance's life."""

import pytest

from carpool_protocol.faults.faults import InvalidTransition
from carpool_supervisor.core.model.lifecycle import ACTIVE, ENDING, MEANING, TABLE, Happening, State, follow


def test_every_state_is_written_and_has_a_meaning() -> None:
    assert set(TABLE) == set(State) == set(MEANING)


def test_every_state_is_reached_and_every_life_can_end() -> None:
    reached = {State.SPAWNING}
    for _ in State:
        reached |= {after for state in reached for after in TABLE[state].values()}
    assert reached == set(State)
    assert all(TABLE[state][Happening.EXITED] is State.GONE for state in State if state is not State.GONE)


def test_nothing_happens_to_one_that_is_gone() -> None:
    assert TABLE[State.GONE] == {}


def test_no_way_leads_back_to_service_from_an_end() -> None:
    after_end = set(ENDING) | {State.DRAINING}
    for _ in State:
        after_end |= {after for state in after_end for after in TABLE[state].values()}
    assert not after_end & ACTIVE


def test_whatever_is_asked_to_end_gets_the_next_step_of_the_ladder() -> None:
    assert all(Happening.GRACE_OVER in TABLE[state] for state in ENDING)


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("happening", Happening)
def test_what_the_table_does_not_list_is_a_bug_that_names_both(state: State, happening: Happening) -> None:
    if happening in TABLE[state]:
        assert follow(state, happening, "x") is TABLE[state][happening]
    else:
        with pytest.raises(InvalidTransition, match=f"{happening} cannot happen in state {state}"):
            follow(state, happening, "instance 1")
