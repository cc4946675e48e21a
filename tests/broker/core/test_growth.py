"""No event of the broker's core works through sessions times servers, or sessions times tools.

Each case is one event in a core with so many sessions and servers. Its bytecodes are counted with few and
many of both: a pair of a session and a server must cost nothing.
"""

import gc
from collections.abc import Callable
from typing import Any

import pytest

from carpool_broker.admin.status import freshness_by_pool
from carpool_broker.core.model import events as ev
from carpool_broker.core.model.effects import SendListChanged
from carpool_broker.core.model.scope import Scope
from carpool_broker.core.registry.view_builder import make_view
from carpool_protocol.ids import ABSENT, EMPTY_OBJECT, RawJson, ServerName, SessionId
from carpool_protocol.link.messages import CallsRecorded
from carpool_protocol.wire.params import rewrite_tool
from tests.behaviours import behaviour
from tests.broker.crowded_broker import CrowdedBroker
from tests.kit.broker_rig import DAEMON, EPOCH
from tests.kit.bytecodes import count_bytecodes, joint_growth

Event = Callable[[CrowdedBroker], Callable[[], object]]
"""From a prepared core to the work that is counted."""

LAST = SessionId("last")


def _tool_changes(broker: CrowdedBroker) -> Callable[[], object]:
    return lambda: broker.tell(broker.servers[0], "other words")


def _server_leaves(broker: CrowdedBroker) -> Callable[[], object]:
    return lambda: broker.read(broker.servers[1:])


def _server_is_added(broker: CrowdedBroker) -> Callable[[], object]:
    return lambda: broker.read([*broker.servers, "zero"])


def _breaker_opens(broker: CrowdedBroker) -> Callable[[], object]:
    return lambda: broker.state(broker.servers[0], "breaker_open")


def _server_is_back(broker: CrowdedBroker) -> Callable[[], object]:
    broker.state(broker.servers[0], "breaker_open")
    for session in broker.sessions:
        broker.list_tools(session)
    return lambda: broker.state(broker.servers[0], "serving")


def _supervisor_is_lost(broker: CrowdedBroker) -> Callable[[], object]:
    return lambda: broker.feed(ev.SupervisorLost())


def _supervisor_is_lost_after_calls(broker: CrowdedBroker) -> Callable[[], object]:
    for session in broker.sessions:
        name = f"{broker.servers[0]}__t1"
        broker.feed(ev.CallRequested(session, RawJson(b"2"), name, EMPTY_OBJECT, ABSENT, ABSENT))
    return lambda: broker.feed(ev.SupervisorLost())


def _supervisor_is_back(broker: CrowdedBroker) -> Callable[[], object]:
    broker.feed(ev.SupervisorLost())

    def come() -> None:
        broker.feed(ev.SupervisorConnected(1_000_000, EPOCH))
        broker.feed(ev.RecordReceived(CallsRecorded([], [])))

    return come


def _agent_comes(broker: CrowdedBroker) -> Callable[[], object]:
    return lambda: broker.come(LAST)


def _agent_leaves(broker: CrowdedBroker) -> Callable[[], object]:
    return lambda: broker.feed(ev.SessionClosed(broker.sessions[0]))


def _first_catalog_comes_while_lists_wait(broker: CrowdedBroker) -> Callable[[], object]:
    return lambda: broker.tell(broker.servers[0])


def _last_catalog_comes_while_lists_wait(broker: CrowdedBroker) -> Callable[[], object]:
    for server in broker.servers[1:]:
        broker.tell(server)
    return lambda: broker.tell(broker.servers[0])


def _catalog_comes_while_calls_wait(broker: CrowdedBroker) -> Callable[[], object]:
    for server in broker.servers[2:]:
        broker.tell(server)
    for session in broker.sessions:
        name = f"{broker.servers[0]}__t1"
        broker.feed(ev.CallRequested(session, RawJson(b"2"), name, EMPTY_OBJECT, ABSENT, ABSENT))
    return lambda: broker.tell(broker.servers[1])


def _lists_time_out(broker: CrowdedBroker) -> Callable[[], object]:
    return lambda: broker.wait(11.0)


def _failing_servers_while_lists_wait(broker: CrowdedBroker) -> Callable[[], object]:
    for server in broker.servers[2:]:
        broker.state(server, "backing_off")
    return lambda: broker.state(broker.servers[1], "backing_off")


def _server_is_paused(broker: CrowdedBroker) -> Callable[[], object]:
    return lambda: broker.feed(ev.PausedServersChanged(frozenset({ServerName(broker.servers[0])})))


def _status_is_read(broker: CrowdedBroker) -> Callable[[], object]:
    sources = broker.core.sources

    def read() -> None:
        sources.pools_of_agents({DAEMON})
        sources.problems({DAEMON})
        freshness_by_pool(broker.core, lambda _: "")

    return read


KNOWN: dict[str, Event] = {
    "one tool of one server changes": _tool_changes,
    "a server leaves the configuration": _server_leaves,
    "a server is added to the configuration": _server_is_added,
    "a breaker opens": _breaker_opens,
    "a server serves again": _server_is_back,
    "the supervisor is lost": _supervisor_is_lost,
    "the supervisor is lost after calls": _supervisor_is_lost_after_calls,
    "the supervisor is back": _supervisor_is_back,
    "an agent comes": _agent_comes,
    "an agent leaves": _agent_leaves,
    "an operator pauses a server": _server_is_paused,
    "an operator reads the status": _status_is_read,
}
UNKNOWN: dict[str, Event] = {
    "the first catalog comes while lists wait": _first_catalog_comes_while_lists_wait,
    "the last catalog comes while lists wait": _last_catalog_comes_while_lists_wait,
    "a catalog comes while calls of another server wait": _catalog_comes_while_calls_wait,
    "a server fails while lists wait": _failing_servers_while_lists_wait,
    "lists have waited long enough": _lists_time_out,
}


def _work(event: Event, sessions: int, servers: int, *, known: bool, own_sources: bool) -> int:
    broker = CrowdedBroker(sessions, servers, known=known, own_sources=own_sources)
    return count_bytecodes(event(broker))


@pytest.mark.parametrize("own_sources", [False, True], ids=["one configuration", "one for each agent"])
@pytest.mark.parametrize("name", [*KNOWN, *UNKNOWN])
def test_an_event_costs_nothing_for_each_pair_of_a_session_and_a_server(name: str, own_sources: bool) -> None:
    event = (KNOWN | UNKNOWN)[name]

    def measure(sessions: int, servers: int) -> int:
        return _work(event, sessions, servers, known=name in KNOWN, own_sources=own_sources)

    pair = joint_growth(measure, (4, 24), (5, 25))
    assert pair < 1, f"{pair:.0f} bytecodes for each session and server"


@pytest.mark.parametrize(
    "name", ["one tool of one server changes", "a breaker opens", "a server serves again"]
)
def test_an_event_costs_nothing_for_each_pair_of_a_session_and_a_tool(name: str) -> None:
    def measure(sessions: int, tools: int) -> int:
        return count_bytecodes(KNOWN[name](CrowdedBroker(sessions, 2, tools=tools)))

    pair = joint_growth(measure, (4, 24), (5, 45))
    assert pair < 1, f"{pair:.0f} bytecodes for each session and tool"


@behaviour("lists:compared-once")
def test_a_change_is_compared_once_for_all_agents_with_one_list(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []

    def counted(own: RawJson, **shown: Any) -> RawJson:
        made.append(shown["name"])
        return rewrite_tool(own, **shown)

    broker = CrowdedBroker(200, 3)
    monkeypatch.setattr("carpool_broker.core.registry.pool_catalog.rewrite_tool", counted)
    broker.tell(broker.servers[1], "other words")
    changed = f"{broker.servers[1]}__t0"
    assert set(made) == {changed}, "only the definition that differs is made"
    assert len(made) == 4, "two when the view is made, two for what all agents hold"


def test_every_agent_with_the_changed_list_is_told_once() -> None:
    broker = CrowdedBroker(30, 2)
    told = [
        each for each in broker.tell(broker.servers[0], "other words") if isinstance(each, SendListChanged)
    ]
    assert told == [SendListChanged(session, "tools") for session in broker.sessions]


def test_agents_that_hold_different_lists_are_compared_each_with_its_own() -> None:
    broker = CrowdedBroker(2, 2)
    early, late = broker.sessions
    broker.tell(broker.servers[0], "other words")
    broker.list_tools(late)
    told = [each for each in broker.tell(broker.servers[0]) if isinstance(each, SendListChanged)]
    assert told == [SendListChanged(late, "tools")], (
        "the first agent was told before and has not listed again"
    )
    broker.list_tools(early)
    assert broker.tell(broker.servers[0]) == []


def test_the_catalogs_of_many_servers_that_start_together_are_learned_in_few_views(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[Scope] = []

    def counted(scope: Scope, *args: Any, **more: Any) -> Any:
        made.append(scope)
        return make_view(scope, *args, **more)

    broker = CrowdedBroker(2, 100, tools=40, known=False)
    monkeypatch.setattr("carpool_broker.core.registry.view_builder.make_view", counted)
    for server in broker.servers:
        broker.wait(0.001)
        broker.tell(server)
    broker.wait(1.0)
    assert len(broker.core.view_of(broker.sessions[0]).tools) == 100 * 40
    assert len(made) < 40, "and not one for each server"


def test_a_hidden_server_costs_no_new_names() -> None:
    broker = CrowdedBroker(2, 3)
    before = broker.core.view_of(broker.sessions[0])
    broker.state(broker.servers[0], "stopped")
    hidden = broker.core.view_of(broker.sessions[0])
    assert {tool.server for tool in hidden.tools} == set(broker.servers[1:])
    assert hidden.tool_names is before.tool_names
    assert hidden.uris is before.uris


def test_a_garbage_collection_adds_no_bytecodes_to_a_count() -> None:
    def on_collection(_phase: str, _info: dict[str, int]) -> None:
        """Runs whenever a collection begins and ends, as the callback of a test tool does."""

    def work() -> object:
        return [[] for _ in range(100)]

    alone, thresholds = count_bytecodes(work), gc.get_threshold()
    gc.callbacks.append(on_collection)
    gc.set_threshold(1)
    try:
        assert count_bytecodes(work) == alone
    finally:
        gc.set_threshold(*thresholds)
        gc.callbacks.remove(on_collection)
