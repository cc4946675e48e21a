"""Which connections a door leaves to the next one, in which order, and how the others end."""

import pytest

from carpool.http.core.leave_order import ConnectionState, can_be_left, ending_of, is_settled, leave_order
from tests.behaviours import behaviour

IDLE = ConnectionState(may_be_left=True)
HELD = ConnectionState(may_be_left=True, has_request=True, is_held=True)
AT_A_SERVER = ConnectionState(may_be_left=True, has_request=True)
ARRIVING = ConnectionState(may_be_left=False, is_arriving=True)
UNSENT = ConnectionState(may_be_left=False)
FAILED = ConnectionState(may_be_left=False, is_failed=True)


@behaviour("handover:keep-alive")
def test_connections_with_a_request_come_first_and_otherwise_the_oldest() -> None:
    states = [("a", IDLE), ("b", HELD), ("c", FAILED), ("d", AT_A_SERVER), ("e", HELD)]
    assert leave_order(states) == ["b", "d", "e", "a", "c"]


@behaviour("handover:keep-alive")
def test_idle_connections_of_clients_with_a_token_come_before_those_of_strangers() -> None:
    owned = ConnectionState(may_be_left=True, has_owner=True)
    assert leave_order([("a", IDLE), ("b", owned), ("c", HELD), ("d", owned)]) == ["c", "b", "d", "a"]


@behaviour("handover:requests")
@pytest.mark.parametrize(
    ("state", "is_left", "ending"),
    [
        (IDLE, True, "end"),
        (HELD, True, "refuse held"),
        (AT_A_SERVER, False, "end after answer"),
        (ARRIVING, False, "refuse arriving"),
        (UNSENT, False, "end"),
        (FAILED, False, "end"),
    ],
)
def test_a_connection_is_left_between_requests_and_otherwise_ends_as_its_client_understands(
    state: ConnectionState, is_left: bool, ending: str
) -> None:
    assert can_be_left(state) is is_left
    assert ending_of(state) == ending


@behaviour("handover:requests")
def test_the_door_waits_while_a_request_arrives_or_an_answer_is_on_its_way() -> None:
    assert is_settled([IDLE, HELD, FAILED])
    for state in (AT_A_SERVER, ARRIVING, UNSENT):
        assert not is_settled([IDLE, state])
    assert is_settled([])
