"""How often agents are told that their lists have changed while many servers start together."""

from typing import Any

from carpool_broker.core.model.effects import SendListChanged
from carpool_broker.core.requests.notifications import GATHER_QUIET_S, GATHER_S
from carpool_protocol.ids import SessionId
from tests.behaviours import behaviour
from tests.broker.crowded_broker import CrowdedBroker

ONE = SessionId("s0")
LIST_WAIT_S = 10.0


def told(effects: list[Any]) -> int:
    """The number of notifications."""
    return sum(isinstance(each, SendListChanged) for each in effects)


def partial_list(servers: int, sessions: int = 1) -> CrowdedBroker:
    """Agents have waited for their first list and got one without any server."""
    broker = CrowdedBroker(sessions, servers, known=False)
    broker.wait(LIST_WAIT_S)
    return broker


@behaviour("lists:start-told-together")
def test_an_agent_that_lists_whenever_it_is_told_is_told_three_times_at_most_of_100_servers() -> None:
    broker = partial_list(100)
    count = 0
    for server in broker.servers:
        count += (now := told([*broker.tell(server), *broker.wait(0.14)]))
        if now:
            broker.list_tools(ONE)
    count += told(broker.wait(GATHER_S))
    assert 1 <= count <= 3
    assert len(broker.core.view_of(ONE).tools) == 100 * broker.tools


@behaviour("lists:start-told-together")
def test_the_last_server_that_starts_is_told_at_once_with_those_before() -> None:
    broker = partial_list(3, sessions=2)
    first, second, last = broker.servers
    assert told(broker.tell(first)) == told(broker.tell(second)) == 0
    assert told(broker.tell(last)) == 2, "each agent once"
    assert told(broker.wait(GATHER_S)) == 0


def test_a_server_that_never_tells_its_list_delays_the_others_for_two_seconds_only() -> None:
    broker = partial_list(3)
    assert told(broker.tell(broker.servers[0])) == 0
    assert told(broker.wait(GATHER_QUIET_S)) == 1


def test_a_server_that_fails_delays_nothing() -> None:
    broker = partial_list(2)
    broker.state(broker.servers[1], "backing_off")
    assert told(broker.tell(broker.servers[0])) == 1


def test_a_change_of_a_server_that_is_known_is_told_at_once_while_another_one_starts() -> None:
    broker = partial_list(3)
    broker.tell(broker.servers[0])
    broker.wait(GATHER_QUIET_S)
    broker.list_tools(ONE)
    assert told(broker.tell(broker.servers[0], "other words")) == 1


def test_an_agent_that_has_listed_again_meanwhile_is_not_told() -> None:
    broker = partial_list(3)
    broker.tell(broker.servers[0])
    broker.list_tools(ONE)
    assert told(broker.wait(GATHER_S)) == 0
