"""Log levels and watched resources towards instances, and whose a log message is."""

import pytest

from carpool_protocol.ids import ABSENT, CallId, InstanceId, PoolKey, RawJson, ServerName, SessionId
from carpool_protocol.link.messages import (
    Call,
    CancelCall,
    Catalog,
    Feature,
    Logged,
    Policy,
    PoolSpec,
    SetLevel,
    Updated,
    Wanted,
    Watch,
)
from carpool_supervisor.core.model.effects import AnyEffect, KeepLog, WriteLevel, WriteWatch
from carpool_supervisor.core.model.events import (
    AnyEvent,
    BrokerCame,
    InstanceExited,
    InstanceGreeted,
    InstanceSpawned,
    ResourceUpdated,
    ServerLogged,
)
from tests.behaviours import behaviour
from tests.kit.supervisor_rig import supervisor_core

KEY = PoolKey("s:1")
FIRST, SECOND = InstanceId(1), InstanceId(2)
PARAMS = RawJson(b'{"level":"info","data":"x"}')


class House:
    """A supervisor core with one pool."""

    def __init__(self, *features: Feature) -> None:
        self.core = supervisor_core()
        self.features = list(features)
        self.now = 0.0
        self.do(BrokerCame())
        policy = Policy(min_instances=1, first_delay_s=0.1)
        spec = PoolSpec(key=KEY, server=ServerName("s"), argv=["s"], env={}, cwd="/", policy=policy)
        self.wanted = Wanted([spec])
        self.do(self.wanted)

    def do(self, event: AnyEvent) -> list[AnyEffect]:
        effects = self.core.handle(event, self.now)
        self.core.check()
        return effects

    def greet(self, instance: InstanceId) -> list[AnyEffect]:
        self.do(InstanceSpawned(instance, 100))
        catalog = Catalog(KEY, [], "", RawJson(b"{}"), RawJson(b"{}"), "2025-11-25", features=self.features)
        return self.do(InstanceGreeted(instance, catalog))

    def call(self, number: int, session: str) -> None:
        key, rest = KEY, RawJson(b"{}")
        self.do(
            Call(
                CallId(number), key, SessionId(session), "tools/call", "t", rest, ABSENT, wants_progress=False
            )
        )

    def wait(self, seconds: float) -> list[AnyEffect]:
        self.now += seconds
        return self.core.tick(self.now)


def heard(effects: list[AnyEffect]) -> list[AnyEffect]:
    return [each for each in effects if isinstance(each, (WriteLevel, WriteWatch, Updated, Logged, KeepLog))]


def test_an_instance_is_told_at_once_and_one_that_comes_later_when_it_greets() -> None:
    house = House("logging", "resources.subscribe")
    assert heard(house.do(SetLevel(KEY, "info"))) == []
    assert heard(house.do(Watch(KEY, ["x:1"]))) == []
    assert heard(house.greet(FIRST)) == [WriteLevel(FIRST, "info"), WriteWatch(FIRST, ("x:1",), ())]
    assert heard(house.do(SetLevel(KEY, "debug"))) == [WriteLevel(FIRST, "debug")]
    assert heard(house.do(Watch(KEY, ["x:2"]))) == [WriteWatch(FIRST, ("x:2",), ("x:1",))]


def test_a_server_that_announces_neither_is_never_asked_for_it() -> None:
    house = House("tools")
    house.do(SetLevel(KEY, "info"))
    house.do(Watch(KEY, ["x:1"]))
    assert heard(house.greet(FIRST)) == []
    assert heard(house.do(Watch(KEY, ["x:2"]))) == []


@behaviour("subscriptions:renewed")
def test_after_a_restart_every_watched_resource_counts_as_changed() -> None:
    house = House("resources.subscribe")
    house.do(Watch(KEY, ["x:1", "x:2"]))
    house.greet(FIRST)
    house.do(InstanceExited(FIRST, "was killed by SIGKILL", (), "", 0.5))
    house.wait(1.0)
    told = heard(house.greet(SECOND))
    assert told[0] == WriteWatch(SECOND, ("x:1", "x:2"), ())
    assert [each.uri for each in told if isinstance(each, Updated)] == ["x:1", "x:2"]


def test_a_change_goes_to_the_broker_with_the_pool_it_is_of() -> None:
    house = House("resources.subscribe")
    house.greet(FIRST)
    params = RawJson(b'{"uri":"x:1"}')
    assert heard(house.do(ResourceUpdated(FIRST, "x:1", params))) == [Updated(KEY, "x:1", params)]


@behaviour("logging:one-session")
@pytest.mark.parametrize(
    ("sessions", "whose"), [((), None), (("a",), "a"), (("a", "a"), "a"), (("a", "b"), None)]
)
def test_a_log_message_is_an_agents_only_if_all_that_is_in_flight_is_its_own(
    sessions: tuple[str, ...], whose: str | None
) -> None:
    house = House("logging")
    house.greet(FIRST)
    for number, session in enumerate(sessions, 1):
        house.call(number, session)
    told = heard(house.do(ServerLogged(FIRST, "info", PARAMS)))
    if whose is None:
        assert told == [KeepLog(FIRST, "info", PARAMS)]
    else:
        one = CallId(1 if len(sessions) == 1 else 0)
        assert told == [Logged(SessionId(whose), "info", PARAMS, one)]


@behaviour("logging:one-session")
def test_a_cancelled_call_of_the_same_agent_keeps_no_log_message_from_it_while_another_is_live() -> None:
    house = House("logging")
    house.greet(FIRST)
    house.call(1, "a")
    house.do(CancelCall(CallId(1), "no longer wanted"))
    assert heard(house.do(ServerLogged(FIRST, "info", PARAMS))) == [KeepLog(FIRST, "info", PARAMS)]
    house.call(2, "a")
    assert heard(house.do(ServerLogged(FIRST, "info", PARAMS))) == [Logged(SessionId("a"), "info", PARAMS)]


def test_a_log_message_of_a_call_from_before_the_link_was_lost_reaches_no_namesake_of_its_session() -> None:
    house = House("logging")
    house.greet(FIRST)
    house.call(1, "a")
    house.do(BrokerCame(same=True))
    house.call(1, "a")
    assert heard(house.do(ServerLogged(FIRST, "info", PARAMS))) == [KeepLog(FIRST, "info", PARAMS)]


def test_a_call_that_ended_for_its_agent_but_may_still_run_keeps_log_messages_from_everybody() -> None:
    house = House("logging")
    house.greet(FIRST)
    house.call(1, "a")
    house.wait(61.0)  # its deadline: it is cancelled and may still run (rule 5)
    house.call(2, "b")
    assert heard(house.do(ServerLogged(FIRST, "info", PARAMS))) == [KeepLog(FIRST, "info", PARAMS)]


@behaviour("record:interests")
def test_a_broker_that_begins_says_itself_what_is_wanted_and_the_rest_is_wanted_no_more() -> None:
    house = House("logging", "resources.subscribe")
    house.greet(FIRST)
    house.do(SetLevel(KEY, "info"))
    house.do(Watch(KEY, ["a:1", "a:2"]))
    house.do(BrokerCame())
    assert heard(house.do(Watch(KEY, ["a:2", "a:3"]))) == [
        Updated(KEY, "a:2", RawJson(b'{"uri":"a:2"}')),
        WriteWatch(FIRST, ("a:3",), ("a:1",)),
    ], "what changed while no broker was there was told to nobody"
    house.do(house.wanted)
    assert house.core.pools[KEY].level == ""
    assert heard(house.do(house.wanted)) == []
    assert house.core.pools[KEY].uris == ("a:2", "a:3")
