"""Log levels and subscribed resources of instances, and the agent of a log message."""

from typing import Any

import pytest

from carpool_protocol.ids import CallId, InstanceId, PoolKey, RawJson, SessionId
from carpool_protocol.link.messages import (
    CancelCall,
    Catalog,
    ChangeResourceSubscriptions,
    Feature,
    LogForSession,
    Policy,
    ResourceChanged,
    SetLevel,
    SetPools,
    SetResourceSubscriptions,
)
from carpool_protocol.wire.uri_normalization import MAX_CHARS
from carpool_supervisor.core.model.effects import AnyEffect, KeepServerLog, WriteLevel, WriteSubscriptions
from carpool_supervisor.core.model.events import (
    BrokerConnected,
    InstanceExited,
    ResourceUpdated,
    ServerLogged,
    StdinBlocked,
)
from carpool_supervisor.core.subscriptions import MAX_UPDATE_BYTES
from tests.behaviours import behaviour
from tests.kit.supervisor_rig import SupervisorRig, catalog_of, pool_spec

KEY = PoolKey("s:1")
FIRST, SECOND = InstanceId(1), InstanceId(2)
PARAMS = RawJson(b'{"level":"info","data":"x"}')


class SubscribedPoolRig(SupervisorRig):
    """One pool."""

    def __init__(self, *features: Feature) -> None:
        self.features = list(features)
        self.wanted = SetPools([pool_spec(KEY, Policy(min_instances=1, first_delay_s=0.1))])
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
    ]
    rig.feed(StdinBlocked(FIRST, blocked=True))
    assert heard(rig.feed(StdinBlocked(FIRST, blocked=False))) == []


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
    long = RawJson(b'{"uri":"x:1","_meta":{"x":"%b"}}' % (b"x" * MAX_UPDATE_BYTES))
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
