"""The table of states and events of an instance."""

import pytest

from carpool_protocol.faults.fault_answers import InvalidTransition
from carpool_supervisor.core.model.lifecycle import (
    ACTIVE,
    ENDING,
    MEANING,
    TABLE,
    InstanceState,
    LifecycleEvent,
    next_state,
)


def test_every_state_is_written_and_has_a_meaning() -> None:
    assert set(TABLE) == set(InstanceState) == set(MEANING)


def test_every_state_is_reached_and_every_life_can_end() -> None:
    reached = {InstanceState.SPAWNING}
    for _ in InstanceState:
        reached |= {after for state in reached for after in TABLE[state].values()}
    assert reached == set(InstanceState)
    assert all(
        TABLE[state][LifecycleEvent.EXITED] is InstanceState.GONE
        for state in InstanceState
        if state is not InstanceState.GONE
    )


def test_an_ended_instance_changes_no_more() -> None:
    assert TABLE[InstanceState.GONE] == {}


def test_no_way_leads_back_to_service_from_an_end() -> None:
    after_end = set(ENDING) | {InstanceState.DRAINING}
    for _ in InstanceState:
        after_end |= {after for state in after_end for after in TABLE[state].values()}
    assert not after_end & ACTIVE


def test_whatever_is_asked_to_end_gets_the_next_step_of_the_ladder() -> None:
    assert all(LifecycleEvent.GRACE_OVER in TABLE[state] for state in ENDING)


@pytest.mark.parametrize("state", InstanceState)
@pytest.mark.parametrize("happening", LifecycleEvent)
def test_a_transition_outside_the_table_is_a_bug_that_names_state_and_event(
    state: InstanceState, happening: LifecycleEvent
) -> None:
    if happening in TABLE[state]:
        assert next_state(state, happening, "x") is TABLE[state][happening]
    else:
        with pytest.raises(InvalidTransition, match=f"{happening} cannot happen in state {state}"):
            next_state(state, happening, "instance 1")
