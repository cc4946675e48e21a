"""Log levels and subscribed resources of instances, and the agent of a log message."""

from random import Random
from typing import Any

import pytest

from carpool_protocol.ids import CallId, InstanceId, PoolKey, RawJson, SessionId
from carpool_protocol.link.messages import (
    CancelCall,
    Catalog,
    ChangeResourceSubscriptions,
    Era,
    Feature,
    LogForSession,
    Policy,
    ResourceChanged,
    SetLevel,
    SetPools,
    SetResourceSubscriptions,
)
from carpool_protocol.wire.log_levels import LEVELS
from carpool_protocol.wire.uri_normalization import MAX_CHARS
from carpool_supervisor.core.model.effects import AnyEffect, KeepServerLog, WriteLevel, WriteSubscriptions
from carpool_supervisor.core.model.events import (
    MAX_NOTICE_BYTES,
    BrokerConnected,
    InstanceExited,
    ResourceUpdated,
    ServerLogged,
    StdinBlocked,
)
from carpool_supervisor.core.subscriptions import (
    BURST_LINES,
    LINES_S,
    MAX_LATE,
    PAUSE_S,
    REFILL_S,
)
from tests.behaviours import behaviour
from tests.kit.supervisor_rig import SupervisorRig, catalog_of, pool_spec

KEY = PoolKey("s:1")
FIRST, SECOND = InstanceId(1), InstanceId(2)
PARAMS = RawJson(b'{"level":"info","data":"x"}')


class SubscribedPoolRig(SupervisorRig):
    """One pool."""

    def __init__(self, *features: Feature, era: Era = "handshake") -> None:
        self.features = list(features)
        self.wanted = SetPools([pool_spec(KEY, Policy(min_instances=1, first_delay_s=0.1), era=era)])
        super().__init__(now=0.0, broker=True)
        self.key = KEY
        self.feed(self.wanted)

    def greet(self, instance: InstanceId, told: Catalog | None = None) -> list[Any]:
        return super().greet(instance, told or catalog_of(KEY, features=self.features))


def heard(effects: list[AnyEffect]) -> list[AnyEffect]:
    return [
        each
        for each in effects
        if isinstance(each, (WriteLevel, WriteSubscriptions, ResourceChanged, LogForSession, KeepServerLog))
    ]


def test_an_instance_is_told_at_once_and_one_that_comes_later_when_it_greets() -> None:
    rig = SubscribedPoolRig("logging", "resources.subscribe")
    assert heard(rig.feed(SetLevel(KEY, "info"))) == []
    assert heard(rig.feed(SetResourceSubscriptions(KEY, ["x:1"]))) == []
    assert heard(rig.greet(FIRST)) == [WriteLevel(FIRST, "info"), WriteSubscriptions(FIRST, ("x:1",), ())]
    assert heard(rig.feed(SetLevel(KEY, "debug"))) == [WriteLevel(FIRST, "debug")]
    assert heard(rig.feed(SetResourceSubscriptions(KEY, ["x:2"]))) == [
        WriteSubscriptions(FIRST, ("x:2",), ("x:1",))
    ]


def test_a_difference_is_passed_on_as_far_as_it_is_one() -> None:
    rig = SubscribedPoolRig("resources.subscribe")
    rig.greet(FIRST)
    rig.feed(SetResourceSubscriptions(KEY, ["x:1", "x:2"]))
    change = ChangeResourceSubscriptions(KEY, ["x:2", "x:3"], ["x:1", "x:9"])
    assert heard(rig.feed(change)) == [WriteSubscriptions(FIRST, ("x:3",), ("x:1",))]
    assert rig.core.pools[KEY].uris == {"x:2", "x:3"}
    assert heard(rig.feed(change)) == []
    assert heard(rig.feed(ChangeResourceSubscriptions(PoolKey("t:1"), ["x:1"], []))) == [], "of no pool"


@behaviour("subscriptions:slow-server")
def test_an_instance_that_does_not_read_its_stdin_is_told_later_what_is_left_of_all_changes() -> None:
    rig = SubscribedPoolRig("logging", "resources.subscribe")
    rig.greet(FIRST)
    rig.feed(SetResourceSubscriptions(KEY, ["x:1", "x:2"]))
    rig.feed(StdinBlocked(FIRST, blocked=True))
    said: list[AnyEffect] = []
    for _ in range(100):
        said += rig.feed(ChangeResourceSubscriptions(KEY, ["x:3", "x:4"], ["x:1", "x:2"]))
        said += rig.feed(ChangeResourceSubscriptions(KEY, ["x:1"], ["x:3"]))
        said += rig.feed(ChangeResourceSubscriptions(KEY, ["x:2"], []))
        said += rig.feed(ChangeResourceSubscriptions(KEY, [], ["x:2"]))
        said += rig.feed(SetLevel(KEY, "debug"))
        said += rig.feed(SetLevel(KEY, "info"))
    assert heard(said) == []
    assert heard(rig.feed(StdinBlocked(FIRST, blocked=False))) == [
        WriteLevel(FIRST, "info"),
        WriteSubscriptions(FIRST, ("x:4",), ("x:2",)),
        ResourceChanged(KEY, "x:4", RawJson(b'{"uri":"x:4"}')),
    ], "it may have changed before the server was told that it is watched"
    rig.feed(StdinBlocked(FIRST, blocked=True))
    assert heard(rig.feed(StdinBlocked(FIRST, blocked=False))) == []


def written(effects: list[AnyEffect]) -> list[WriteSubscriptions]:
    return [each for each in effects if isinstance(each, WriteSubscriptions)]


def line_count(effects: list[AnyEffect]) -> int:
    return sum(len(each.add) + len(each.drop) for each in written(effects))


def uris(count: int, *, first: int = 0) -> list[str]:
    return [f"x:{number:05}" for number in range(first, first + count)]


@behaviour("subscriptions:loops")
def test_the_end_of_a_subscription_waits_after_another_one_and_a_subscription_does_not() -> None:
    rig = SubscribedPoolRig("resources.subscribe")
    rig.greet(FIRST)
    rig.feed(SetResourceSubscriptions(KEY, ["x:1", "x:2", "x:3"]))
    assert heard(rig.feed(ChangeResourceSubscriptions(KEY, [], ["x:1"]))) == [
        WriteSubscriptions(FIRST, (), ("x:1",))
    ], "a lone end is told at once"
    assert heard(rig.feed(ChangeResourceSubscriptions(KEY, ["x:1", "x:4"], ["x:2", "x:3"]))) == [
        WriteSubscriptions(FIRST, ("x:1", "x:4"), ())
    ]
    assert heard(rig.feed(ChangeResourceSubscriptions(KEY, ["x:3"], []))) == [], "it is still subscribed to"
    assert heard(rig.wait(PAUSE_S)) == [WriteSubscriptions(FIRST, (), ("x:2",))]
    assert heard(rig.wait(10 * PAUSE_S)) == []
    assert heard(rig.feed(ChangeResourceSubscriptions(KEY, [], ["x:1"]))) == [
        WriteSubscriptions(FIRST, (), ("x:1",))
    ]


@behaviour("subscriptions:loops")
@pytest.mark.parametrize("features", [("resources.subscribe",), ("logging",)])
def test_an_agent_that_changes_its_mind_in_a_loop_costs_the_server_a_few_lines_a_second(
    features: tuple[Feature, ...],
) -> None:
    rig = SubscribedPoolRig(*features)
    rig.greet(FIRST)
    rig.feed(SetResourceSubscriptions(KEY, ["own:1"]))
    hundred, said = uris(100), list[AnyEffect]()
    for _ in range(1000):
        said += rig.feed(ChangeResourceSubscriptions(KEY, hundred, []))
        said += rig.feed(SetLevel(KEY, "debug"))
        said += rig.feed(ChangeResourceSubscriptions(KEY, [], hundred))
        said += rig.feed(SetLevel(KEY, "error"))
        said += rig.wait(0.001)
    assert line_count(said) <= 4 * 100
    assert len([each for each in said if isinstance(each, WriteLevel)]) <= 4


@behaviour("subscriptions:loops")
def test_a_server_is_told_of_so_many_changes_in_a_second_and_none_is_lost() -> None:
    rig = SubscribedPoolRig("resources.subscribe")
    rig.greet(FIRST)
    rig.feed(SetResourceSubscriptions(KEY, ["own:1"]))
    rig.wait(1.0)
    at_once = rig.feed(ChangeResourceSubscriptions(KEY, uris(3000), []))
    assert line_count(at_once) == BURST_LINES
    assert not [each for each in at_once if isinstance(each, ResourceChanged)]
    own = rig.feed(ChangeResourceSubscriptions(KEY, ["own:2"], []))
    assert heard(own) == [], "it waits behind the others"
    later: list[AnyEffect] = []
    for _ in range(10):
        later += rig.wait(REFILL_S)
    assert line_count(later) == pytest.approx(LINES_S, abs=2)
    for _ in range(20):
        later += rig.wait(REFILL_S)
    told = [uri for each in written(at_once + later) for uri in each.add]
    assert told == [*uris(3000), "own:2"]
    changed = [each.uri for each in later if isinstance(each, ResourceChanged)]
    assert changed == told[BURST_LINES:], "they may have changed before the server was told"
    assert heard(rig.wait(10.0)) == []


@behaviour("subscriptions:loops")
def test_a_loop_over_more_resources_than_a_server_is_told_of_keeps_neither_beginnings_nor_ends_back() -> None:
    rig = SubscribedPoolRig("resources.subscribe")
    rig.greet(FIRST)
    said, most = rig.feed(SetResourceSubscriptions(KEY, ["own:1"])), 0
    for turn in range(200):
        before = uris(500, first=500 * (turn - 3)) if turn >= 3 else []
        said += rig.feed(ChangeResourceSubscriptions(KEY, uris(500, first=500 * turn), before))
        said += rig.wait(0.09)
        most = max(most, len(subscribed(said)))
    said += rig.feed(ChangeResourceSubscriptions(KEY, [], uris(1500, first=500 * 197)))
    assert line_count(said) <= BURST_LINES + 21 * LINES_S
    assert most <= MAX_LATE + 2 * BURST_LINES, "what nobody wants any more does not pile up at the server"
    own = rig.feed(ChangeResourceSubscriptions(KEY, ["own:2"], []))
    for _ in range(100):
        own += rig.wait(REFILL_S)
    assert subscribed(said + own) == {"own:1", "own:2"} == rig.core.pools[KEY].uris


@behaviour("subscriptions:loops")
def test_whatever_changes_and_whenever_a_server_reads_it_knows_in_the_end_what_is_wanted() -> None:
    random = Random(7)
    for _ in range(6):
        rig = SubscribedPoolRig("resources.subscribe", "logging")
        rig.greet(FIRST)
        said: list[AnyEffect] = []
        for _ in range(200):
            match random.randrange(5):
                case 0:
                    said += rig.feed(StdinBlocked(FIRST, blocked=random.random() < 0.5))
                case 1:
                    said += rig.wait(random.choice([0.01, 0.1, 1.0]))
                case 2:
                    said += rig.feed(SetLevel(KEY, random.choice(LEVELS)))
                case 3:
                    said += rig.feed(SetResourceSubscriptions(KEY, random.sample(uris(2000), 900)))
                case _:
                    change = [random.sample(uris(2000), random.randrange(400)) for _ in range(2)]
                    said += rig.feed(ChangeResourceSubscriptions(KEY, change[0], change[1]))
        said += rig.feed(StdinBlocked(FIRST, blocked=False))
        for _ in range(60):
            said += rig.wait(REFILL_S)
        assert subscribed(said) == rig.core.pools[KEY].uris
        levels = [each.level for each in said if isinstance(each, WriteLevel)]
        assert levels[-1:] == [rig.core.pools[KEY].level]


def subscribed(effects: list[AnyEffect]) -> set[str]:
    """What a server is subscribed to that has read all this. It is never told what it knows."""
    found: set[str] = set()
    for each in written(effects):
        assert found.isdisjoint(each.add)
        found.update(each.add)
        assert found.issuperset(each.drop)
        found.difference_update(each.drop)
    return found


@behaviour("subscriptions:loops")
def test_a_server_of_the_stateless_era_is_told_less_often_the_more_its_listens_name() -> None:
    rig = SubscribedPoolRig("resources.subscribe", "logging", era="stateless")
    rig.greet(FIRST)
    said = rig.feed(SetResourceSubscriptions(KEY, uris(8000)))
    assert [len(each.add) for each in written(said)] == [8000], "one listen names them all"
    said = rig.wait(60.0)
    for number in range(10_000):
        said += rig.feed(ChangeResourceSubscriptions(KEY, [f"y:{number}"], []))
        said += rig.wait(0.001)
    assert len(written(said)) <= 12
    said += rig.wait(10.0)
    assert line_count(said) == 10_000
    assert len(rig.core.pools[KEY].uris) == 18_000


@behaviour("subscriptions:loops")
def test_a_level_that_brings_more_messages_is_told_at_once_and_one_that_brings_fewer_waits() -> None:
    rig = SubscribedPoolRig("logging")
    rig.greet(FIRST)
    assert heard(rig.feed(SetLevel(KEY, "debug"))) == [WriteLevel(FIRST, "debug")]
    assert heard(rig.feed(SetLevel(KEY, "error"))) == [WriteLevel(FIRST, "error")]
    assert heard(rig.feed(SetLevel(KEY, "info"))) == [WriteLevel(FIRST, "info")]
    assert heard(rig.feed(SetLevel(KEY, "info"))) == [], "it knows"
    assert heard(rig.feed(SetLevel(KEY, "warning"))) == []
    assert heard(rig.feed(SetLevel(KEY, ""))) == [], "the era has no word for it"
    assert heard(rig.feed(SetLevel(KEY, "alert"))) == []
    assert heard(rig.wait(PAUSE_S)) == [WriteLevel(FIRST, "alert")]


class ComparedUri(str):
    """A URI that counts how often it is compared with another one."""

    __slots__ = ()
    comparisons = 0

    def __eq__(self, other: object) -> bool:
        ComparedUri.comparisons += 1
        return str.__eq__(self, other)

    __hash__ = str.__hash__


@behaviour("subscriptions:price-of-a-change")
def test_no_subscription_is_compared_with_all_others() -> None:
    rig = SubscribedPoolRig("resources.subscribe")
    rig.greet(FIRST)
    rig.feed(SetResourceSubscriptions(KEY, [ComparedUri(f"x:{number}") for number in range(500)]))
    ComparedUri.comparisons = 0
    others: list[str] = [ComparedUri(f"x:{number}") for number in range(250, 750)]
    (told,) = heard(rig.feed(SetResourceSubscriptions(KEY, others)))
    assert isinstance(told, WriteSubscriptions)
    assert (len(told.add), len(told.drop)) == (250, 250)
    assert ComparedUri.comparisons < 10_000


@behaviour("subscriptions:long-uris")
def test_an_update_with_an_overlong_uri_is_not_passed_on() -> None:
    rig = SubscribedPoolRig("resources.subscribe")
    rig.greet(FIRST)
    longest = "x:".ljust(MAX_CHARS, "y")
    assert len(heard(rig.feed(ResourceUpdated(FIRST, longest, PARAMS)))) == 1
    assert heard(rig.feed(ResourceUpdated(FIRST, f"{longest}y", PARAMS))) == []


@behaviour("pressure:updates")
def test_of_a_long_notification_of_a_change_the_uri_is_passed_on() -> None:
    rig = SubscribedPoolRig("resources.subscribe")
    rig.greet(FIRST)
    long = RawJson(b'{"uri":"x:1","_meta":{"x":"%b"}}' % (b"x" * MAX_NOTICE_BYTES))
    (told,) = heard(rig.feed(ResourceUpdated(FIRST, "x:1", long)))
    assert told == ResourceChanged(KEY, "x:1", RawJson(b'{"uri":"x:1"}'))


def test_a_server_that_announces_neither_is_never_asked_for_it() -> None:
    rig = SubscribedPoolRig("tools")
    rig.feed(SetLevel(KEY, "info"))
    rig.feed(SetResourceSubscriptions(KEY, ["x:1"]))
    assert heard(rig.greet(FIRST)) == []
    assert heard(rig.feed(SetResourceSubscriptions(KEY, ["x:2"]))) == []


@behaviour("subscriptions:renewed")
def test_after_a_restart_every_watched_resource_counts_as_changed() -> None:
    rig = SubscribedPoolRig("resources.subscribe")
    rig.feed(SetResourceSubscriptions(KEY, ["x:1", "x:2"]))
    rig.greet(FIRST)
    rig.feed(InstanceExited(FIRST, "was killed by SIGKILL", (), "", 0.5))
    rig.wait(1.0)
    told = heard(rig.greet(SECOND))
    assert told[0] == WriteSubscriptions(SECOND, ("x:1", "x:2"), ())
    assert [each.uri for each in told if isinstance(each, ResourceChanged)] == ["x:1", "x:2"]


def test_a_change_goes_to_the_broker_with_the_pool_it_is_of() -> None:
    rig = SubscribedPoolRig("resources.subscribe")
    rig.greet(FIRST)
    params = RawJson(b'{"uri":"x:1"}')
    assert heard(rig.feed(ResourceUpdated(FIRST, "x:1", params))) == [ResourceChanged(KEY, "x:1", params)]


@behaviour("logging:one-session")
@pytest.mark.parametrize(
    ("sessions", "whose"), [((), None), (("a",), "a"), (("a", "a"), "a"), (("a", "b"), None)]
)
def test_a_log_message_is_an_agents_only_if_all_that_is_in_flight_is_its_own(
    sessions: tuple[str, ...], whose: str | None
) -> None:
    rig = SubscribedPoolRig("logging")
    rig.greet(FIRST)
    for number, session in enumerate(sessions, 1):
        rig.call(number, session)
    told = heard(rig.feed(ServerLogged(FIRST, "info", PARAMS)))
    if whose is None:
        assert told == [KeepServerLog(FIRST, "info", PARAMS)]
    else:
        one = CallId(1 if len(sessions) == 1 else 0)
        assert told == [LogForSession(SessionId(whose), "info", PARAMS, one)]


@behaviour("logging:one-session")
def test_a_cancelled_call_of_the_same_agent_keeps_no_log_message_from_it_while_another_is_live() -> None:
    rig = SubscribedPoolRig("logging")
    rig.greet(FIRST)
    rig.call(1, "a")
    rig.feed(CancelCall(CallId(1), "no longer wanted"))
    assert heard(rig.feed(ServerLogged(FIRST, "info", PARAMS))) == [KeepServerLog(FIRST, "info", PARAMS)]
    rig.call(2, "a")
    assert heard(rig.feed(ServerLogged(FIRST, "info", PARAMS))) == [
        LogForSession(SessionId("a"), "info", PARAMS)
    ]


def test_a_log_message_of_a_call_from_before_the_link_was_lost_reaches_no_namesake_of_its_session() -> None:
    rig = SubscribedPoolRig("logging")
    rig.greet(FIRST)
    rig.call(1, "a")
    rig.feed(BrokerConnected(same=True))
    rig.call(1, "a")
    assert heard(rig.feed(ServerLogged(FIRST, "info", PARAMS))) == [KeepServerLog(FIRST, "info", PARAMS)]


def test_an_abandoned_call_keeps_log_messages_from_all_agents() -> None:
    rig = SubscribedPoolRig("logging")
    rig.greet(FIRST)
    rig.call(1, "a")
    rig.wait(61.0)  # its deadline: it is cancelled and may still run (rule 5)
    rig.call(2, "b")
    assert heard(rig.feed(ServerLogged(FIRST, "info", PARAMS))) == [KeepServerLog(FIRST, "info", PARAMS)]


@behaviour("record:interests")
def test_a_broker_that_begins_says_itself_what_is_wanted_and_the_rest_is_wanted_no_more() -> None:
    rig = SubscribedPoolRig("logging", "resources.subscribe")
    rig.greet(FIRST)
    rig.feed(SetLevel(KEY, "info"))
    rig.feed(SetResourceSubscriptions(KEY, ["a:1", "a:2"]))
    rig.feed(BrokerConnected())
    assert heard(rig.feed(SetResourceSubscriptions(KEY, ["a:2", "a:3"]))) == [
        ResourceChanged(KEY, "a:2", RawJson(b'{"uri":"a:2"}')),
        WriteSubscriptions(FIRST, ("a:3",), ("a:1",)),
    ], "what changed while no broker was there was told to nobody"
    rig.feed(rig.wanted)
    assert rig.core.pools[KEY].level == ""
    assert heard(rig.feed(rig.wanted)) == []
    assert rig.core.pools[KEY].uris == {"a:2", "a:3"}
