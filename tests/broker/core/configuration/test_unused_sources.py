"""Sources without a session: how long they stay, and that nothing of them starts by itself."""

from typing import Any

from msgspec.structs import replace

from carpool_broker.core.configuration.unused_sources import LEFT_LONG_AGO, MAX_UNUSED, TOO_MANY_LEFT
from carpool_broker.core.model import events as ev
from carpool_broker.core.model.effects import ForgetSource
from carpool_broker.core.model.events import SourceId
from carpool_broker.core.model.scope import Scope
from carpool_protocol.ids import PoolKey, SessionId
from carpool_protocol.link.messages import Policy, PoolSpec, PoolState, SetPools
from tests.behaviours import behaviour
from tests.kit.broker_rig import ONE, TWO, BrokerRig, entries_of, pool_spec, source_read

PROJECT = SourceId("project")
IDLE_S = 20.0
STAYS = Policy(min_instances=1, auto_connect=True, idle_s=IDLE_S)


class UnusedRig(BrokerRig):
    """A broker with a supervisor, and sources that sessions bring."""

    def __init__(self) -> None:
        super().__init__()
        self.read("a:0")
        self.supervisor_comes()

    def bring(self, source: SourceId = PROJECT, key: str = "p:1", policy: Policy = STAYS) -> list[Any]:
        """Sessions bring a source with one server."""
        spec = replace(pool_spec(key), policy=policy)
        return self.feed(source_read(Scope(entries_of([key])), [spec], source, of_sessions=True))

    def come(self, session: SessionId = ONE, source: SourceId = PROJECT, **more: Any) -> list[Any]:
        """A session of an agent uses a source."""
        return self.attach(session, source=source, **more)

    def leave(self, session: SessionId = ONE, source: SourceId = PROJECT) -> list[Any]:
        """The last session of a source ends."""
        return self.feed(ev.SessionClosed(session)) + self.feed(ev.SourceUnused(source))


def pool_of(effects: list[Any], key: str = "p:1") -> PoolSpec:
    """The pool as the supervisor was last told it."""
    (*_, last) = [effect for effect in effects if isinstance(effect, SetPools)]
    return {spec.key: spec for spec in last.pools}[PoolKey(key)]


def forgotten(effects: list[Any]) -> list[ForgetSource]:
    return [effect for effect in effects if isinstance(effect, ForgetSource)]


def starts(policy: Policy) -> tuple[int, bool]:
    return policy.min_instances, policy.auto_connect


@behaviour("looking:starts-nothing")
def test_a_source_starts_servers_by_itself_only_from_its_first_agent_to_its_last() -> None:
    rig = UnusedRig()
    assert starts(pool_of(rig.bring()).policy) == (0, False)
    assert not [effect for effect in rig.come(TWO, control=True) if isinstance(effect, SetPools)]
    assert starts(pool_of(rig.come()).policy) == (1, True)
    assert starts(pool_of(rig.feed(ev.SessionClosed(ONE))).policy) == (0, False)


@behaviour("looking:starts-nothing")
def test_a_pool_that_an_agent_and_an_operator_use_starts_as_the_agent_s_configuration_says() -> None:
    rig = UnusedRig()
    rig.bring(SourceId("shell"), policy=replace(STAYS, min_instances=2))
    rig.come(TWO, SourceId("shell"), control=True)
    rig.bring()
    assert starts(pool_of(rig.come()).policy) == (1, True)
    rig.bring(key="p:2")
    effects = rig.bring(SourceId("shell"), "p:2", policy=replace(STAYS, min_instances=2))
    assert starts(pool_of(effects, "p:2").policy) == (1, True), "it is the one that replaces p:1 there, too"


@behaviour("looking:starts-nothing")
def test_a_changed_server_that_no_agent_uses_is_replaced_without_a_start() -> None:
    rig = UnusedRig()
    rig.bring()
    rig.come(TWO, control=True)
    rig.serve("p:1")
    effects = rig.bring(key="p:2")
    assert [spec.key for spec in pool_list(effects)] == ["a:0", "p:2"]
    assert not rig.core.sources.pools_to_discover()


def pool_list(effects: list[Any]) -> list[PoolSpec]:
    (*_, last) = [effect for effect in effects if isinstance(effect, SetPools)]
    return last.pools


@behaviour("pools:outlive-sessions")
def test_a_source_whose_servers_rest_is_forgotten_with_its_last_session() -> None:
    rig = UnusedRig()
    rig.bring()
    rig.come()
    rig.pool("p:1", "cold")
    assert forgotten(rig.leave()) == [ForgetSource(PROJECT, LEFT_LONG_AGO)]


@behaviour("pools:outlive-sessions")
def test_a_source_stays_for_the_idle_time_of_its_servers_after_its_last_agent() -> None:
    states: tuple[PoolState, ...] = ("serving", "breaker_open", "backing_off")
    for state in states:
        rig = UnusedRig()
        rig.bring()
        rig.come()
        rig.pool("p:1", state)
        assert not forgotten(rig.leave())
        assert not forgotten(rig.wait(IDLE_S - 1))
        rig.come()
        assert not forgotten(rig.wait(2 * IDLE_S))
        assert not forgotten(rig.leave())
        assert forgotten(rig.wait(IDLE_S + 1)) == [ForgetSource(PROJECT, LEFT_LONG_AGO)]


@behaviour("pools:outlive-sessions", "looking:starts-nothing")
def test_an_operator_who_looks_does_not_prolong_the_stay() -> None:
    rig = UnusedRig()
    rig.bring()
    rig.come()
    rig.pool("p:1", "serving")
    rig.leave()
    for look_s in (IDLE_S - 5, 2):
        rig.wait(look_s)
        rig.come(TWO, control=True)
        assert not forgotten(rig.leave(TWO))
    assert forgotten(rig.wait(4)) == [ForgetSource(PROJECT, LEFT_LONG_AGO)]


def test_a_source_that_is_held_by_an_operator_past_its_time_goes_with_the_operator() -> None:
    rig = UnusedRig()
    rig.bring()
    rig.come()
    rig.pool("p:1", "serving")
    rig.come(TWO, control=True)
    rig.feed(ev.SessionClosed(ONE))
    assert not forgotten(rig.wait(2 * IDLE_S))
    assert forgotten(rig.leave(TWO)) == [ForgetSource(PROJECT, LEFT_LONG_AGO)]


def test_the_source_that_was_left_first_makes_room_for_the_next() -> None:
    rig = UnusedRig()
    sources = [SourceId(f"source-{number}") for number in range(MAX_UNUSED + 1)]
    gone: list[ForgetSource] = []
    for number, source in enumerate(sources):
        rig.bring(source, f"p:{number}")
        rig.come(source=source)
        rig.pool(f"p:{number}", "serving")
        gone += forgotten(rig.leave(source=source))
    assert gone == [ForgetSource(sources[0], TOO_MANY_LEFT)]


@behaviour("pools:outlive-sessions")
def test_the_supervisor_hears_why_the_servers_of_a_forgotten_source_end() -> None:
    rig = UnusedRig()
    rig.bring()
    (told,) = [
        effect
        for effect in rig.feed(ev.SourceDropped(PROJECT, LEFT_LONG_AGO))
        if isinstance(effect, SetPools)
    ]
    assert (told.why_missing, [spec.key for spec in told.pools]) == (LEFT_LONG_AGO, ["a:0"])
