"""Parked calls whose agents stay away give way while others wait for an instance."""

from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from carpool_protocol.ids import ABSENT, AskId, CallId, PoolKey, RawJson, SessionId
from carpool_protocol.link.messages import AnswerAsk, AskOpened, CallFailed, Policy, SessionEnded, SetPools
from carpool_supervisor.core.calls.parked_calls import ParkedCall, choose_parked_calls
from carpool_supervisor.core.model import events as ev
from carpool_supervisor.core.model.attribution import AskFacts
from carpool_supervisor.core.model.effects import WriteCall, WriteCancel
from carpool_supervisor.core.model.pool import MAX_AWAY_S
from tests.behaviours import behaviour
from tests.kit.effects import of_kind
from tests.kit.supervisor_rig import SupervisorRig, pool_spec, tool_call

KEY: Final = PoolKey("s:1")
ELICIT: Final = "elicitation/create"
YES: Final = RawJson(b'{"action":"accept"}')


class ParkedCallsRig(SupervisorRig):
    """Instances of one server that asks during its calls, and agents of the stateless era."""

    def __init__(self, count: int = 4, **policy: Any) -> None:
        policy = {"sharing": "serial", "wait_s": 30.0, "probe_s": 10_000.0, **policy}
        asking = pool_spec(KEY, Policy(min_instances=count, max_instances=count, **policy), asking=True)
        super().__init__(asking, now=0.0, broker=True)
        for instance in list(self.spawned):
            self.greet(instance)

    def begin(self, number: int, principal: str = "alice", **more: Any) -> list[Any]:
        """A call of an agent with this token; its handler may ask."""
        asked = replace(tool_call(number, KEY, f"s-{principal}.{number}"), principal=principal)
        return self.feed(replace(asked, **{"can": [], **more}))

    def ask(self, number: int) -> AskId:
        """The server asks the agent of this call, which is parked with that."""
        written = self.written[number]
        asked = ev.ServerAsked(
            written.instance, RawJson(b"%d" % number), RawJson(b"{}"), AskFacts(ELICIT), ABSENT
        )
        opened: list[AskOpened] = of_kind(self.feed(asked), AskOpened)
        assert [each.call for each in opened] == [number]
        return opened[0].ask

    def park(self, *numbers: int, principal: str = "alice") -> list[AskId]:
        for number in numbers:
            self.begin(number, principal)
        return [self.ask(number) for number in numbers]

    def stop(self) -> list[Any]:
        """The server answers the pings after cancels: it has stopped those calls."""
        done: list[Any] = []
        for instance in self.core.instances.by_id.values():
            if instance.stop_ping:
                done += self.feed(ev.ProbeAnswered(instance.id, instance.stop_ping))
        return done


def ended(effects: list[Any]) -> list[int]:
    return [each.call for each in of_kind(effects, CallFailed)]


def started(effects: list[Any]) -> list[int]:
    return [each.call.call for each in of_kind(effects, WriteCall)]


@behaviour("wait:parked-gives-way")
def test_the_call_of_the_agent_that_is_away_longest_gives_way_to_another_agent() -> None:
    rig = ParkedCallsRig()
    rig.park(1)
    rig.wait(1.0)
    rig.park(2, 3, 4)
    assert started(rig.begin(9, "bob")) == []
    effects = rig.wait(MAX_AWAY_S - 0.1)
    assert not of_kind(effects, CallFailed, WriteCancel)
    effects = rig.wait(0.2)
    assert [(each.call, each.fault, each.delivered) for each in of_kind(effects, CallFailed)] == [
        (1, "agent_away", "maybe")
    ]
    assert [(each.instance, each.wire) for each in of_kind(effects, WriteCancel)] == [
        (rig.on(1), rig.written[1].wire)
    ]
    effects = rig.stop() + rig.wait(5.0)
    assert started(effects) == [9]
    assert rig.on(9) == rig.on(1)
    assert not ended(rig.answer(9))
    assert ended(rig.wait(200.0)) == [], "nobody waits, so the others stay parked"


def test_a_parked_call_stays_while_nobody_else_waits() -> None:
    rig = ParkedCallsRig()
    rig.park(1, 2, 3, 4)
    rig.begin(5, "alice")
    assert ended(rig.wait(29.0)) == [], "that is another call of the same principal"
    assert ended(rig.wait(2.0)) == [5]
    assert rig.fault(5) == "waited_too_long"


def test_an_agent_that_comes_back_in_time_keeps_its_call() -> None:
    rig = ParkedCallsRig(count=1)
    [ask] = rig.park(1)
    rig.begin(9, "bob")
    rig.wait(MAX_AWAY_S - 1.0)
    rig.feed(AnswerAsk(ask, is_error=False, body=YES))
    assert ended(rig.wait(15.0)) == []
    assert started(rig.answer(1)) == [9]


def test_an_agent_has_the_whole_grace_after_it_was_asked_again() -> None:
    rig = ParkedCallsRig(count=1)
    [ask] = rig.park(1)
    rig.begin(9, "bob")
    rig.wait(6.0)
    rig.feed(AnswerAsk(ask, is_error=False, body=YES))
    rig.ask(1)
    assert ended(rig.wait(MAX_AWAY_S - 0.1)) == []
    assert ended(rig.wait(0.2)) == [1]


def test_whoever_has_waited_for_a_moment_only_ends_no_call() -> None:
    rig = ParkedCallsRig(count=1)
    rig.park(1)
    rig.wait(200.0)
    rig.begin(9, "bob")
    assert ended(rig.wait(MAX_AWAY_S - 0.1)) == []
    assert ended(rig.wait(0.2)) == [1]


def test_the_grace_is_a_third_of_a_short_wait() -> None:
    rig = ParkedCallsRig(count=1, wait_s=6.0)
    rig.park(1)
    rig.begin(9, "bob")
    assert ended(rig.wait(1.9)) == []
    effects = rig.wait(0.2)
    assert ended(effects) == [1]
    assert "2 s" in rig.failed[CallId(1)].text


@behaviour("wait:parked-gives-way")
def test_as_many_give_way_as_principals_wait_and_those_that_have_most_parked_calls_first() -> None:
    rig = ParkedCallsRig()
    rig.park(1, principal="carol")
    rig.wait(1.0)
    rig.park(2, 3, 4)
    rig.begin(8, "bob")
    rig.begin(9, "dave")
    rig.begin(10, "dave")
    assert ended(rig.wait(MAX_AWAY_S + 0.1)) == [2, 3]


def test_a_call_of_an_agent_that_can_be_asked_on_its_connection_does_not_give_way() -> None:
    rig = ParkedCallsRig(count=1)
    rig.begin(1, can=None)
    rig.ask(1)
    rig.begin(9, "bob")
    assert ended(rig.wait(29.0)) == []


def test_a_call_between_two_rounds_holds_nothing_of_a_serial_server() -> None:
    rig = ParkedCallsRig(count=1)
    rig.begin(1)
    rig.ask_in_round(rig.on(1), rig.written[1].wire, 0, ELICIT)
    assert started(rig.begin(8, "bob")) == [8]
    rig.begin(9, "carol")
    assert ended(rig.wait(29.0)) == []


@behaviour("wait:parked-gives-way")
def test_a_place_of_a_concurrent_server_comes_free_as_well() -> None:
    rig = ParkedCallsRig(count=1, sharing="concurrent", max_in_flight=3)
    for number in (1, 2, 3):
        rig.begin(number)
        rig.ask_in_round(rig.on(number), rig.written[number].wire, 0, ELICIT)
    rig.begin(9, "bob")
    effects = rig.wait(MAX_AWAY_S)
    assert ended(effects) == [1]
    assert started(effects) == [9]


@behaviour("wait:parked-gives-way", "wait:last-places")
def test_a_parked_call_gives_way_where_only_places_are_left_that_are_not_for_whoever_waits() -> None:
    rig = ParkedCallsRig(count=1, sharing="concurrent", max_in_flight=16)
    for number in range(1, 15):
        rig.begin(number)
        rig.ask_in_round(rig.on(number), rig.written[number].wire, 0, ELICIT)
    assert started(rig.begin(20, "bob")) == [20]
    assert started(rig.begin(21, "bob")) == [], "of 16 places one is left, and bob has one"
    effects = rig.wait(MAX_AWAY_S)
    assert ended(effects) == [1]
    assert started(effects) == [21]


def test_parked_calls_of_a_concurrent_server_with_room_stay() -> None:
    rig = ParkedCallsRig(count=1, sharing="concurrent", max_in_flight=3)
    rig.begin(1)
    rig.ask_in_round(rig.on(1), rig.written[1].wire, 0, ELICIT)
    assert started(rig.begin(9, "bob")) == [9]
    assert ended(rig.wait(100.0)) == [9]


def test_an_instance_of_its_own_gives_way_if_it_ends_with_the_call_and_not_if_an_agent_keeps_it() -> None:
    rig = ParkedCallsRig(count=2, sharing="session")
    rig.park(1)
    kept = replace(tool_call(2, KEY, "s-carol"), principal="carol", can=[])
    rig.feed(kept)
    rig.ask(2)
    assert rig.on(1) != rig.on(2)
    rig.begin(9, "bob")
    assert ended(rig.wait(MAX_AWAY_S + 0.1)) == [1], "alice's is the lease of one call"
    rig.feed(SessionEnded(SessionId("s-alice.1")))
    rig.exit(rig.on(1))
    for instance in list(rig.spawned):
        rig.greet(instance)
    assert 9 in rig.written
    assert ended(rig.wait(15.0)) == []


def test_a_slot_that_comes_free_already_is_counted() -> None:
    rig = ParkedCallsRig(count=2)
    rig.park(1, 2)
    rig.wait(50.0)
    rig.begin(9, "bob")
    rig.wait(MAX_AWAY_S - 1.0)
    rig.cancel(1)
    assert ended(rig.wait(3.0)) == []


def test_a_server_that_is_gone_when_a_choice_is_due_ends_no_call_of_others() -> None:
    rig = ParkedCallsRig(count=1)
    rig.park(1)
    rig.begin(9, "bob")
    rig.feed(SetPools([]))
    for number in (1, 9):
        rig.cancel(number)
    for instance in list(rig.core.instances.by_id):
        rig.exit(instance)
    assert KEY not in rig.core.pools
    assert ended(rig.wait(MAX_AWAY_S + 1.0)) == []


def test_an_operator_who_has_paused_the_server_keeps_the_parked_calls() -> None:
    rig = ParkedCallsRig(count=1)
    rig.park(1)
    rig.core.pools[KEY].paused = True
    rig.begin(9, "bob")
    assert ended(rig.wait(29.0)) == []


# --- the choice ------------------------------------------------------------------------------------------


def parked(call: int, turn: str, since: float) -> ParkedCall:
    return ParkedCall(CallId(call), SessionId(turn), since)


def test_the_choice_names_the_time_at_which_the_first_is_due() -> None:
    chosen = choose_parked_calls([parked(1, "a", 5.0)], {SessionId("b"): 2.0}, now=6.0, grace_s=10.0)
    assert (chosen.calls, chosen.due_at) == ([], 15.0)
    chosen = choose_parked_calls([parked(1, "a", 5.0)], {SessionId("a"): 2.0}, now=6.0, grace_s=10.0)
    assert (chosen.calls, chosen.due_at) == ([], None)


TURNS = st.sampled_from("abcd")
TIMES = st.integers(0, 30).map(float)


@pytest.mark.parametrize("coming", [0, 1])
@given(
    st.lists(st.tuples(TURNS, TIMES), max_size=8),
    st.dictionaries(TURNS.map(SessionId), TIMES, max_size=4),
)
def test_no_call_gives_way_to_its_own_principal_or_too_early_or_for_nobody(
    coming: int, held: list[tuple[str, float]], waiting: dict[SessionId, float]
) -> None:
    calls = [parked(number, *each) for number, each in enumerate(held)]
    chosen = choose_parked_calls(calls, waiting, now=30.0, grace_s=10.0, coming=coming)
    patient = {turn for turn, since in waiting.items() if since <= 20.0}
    of = {each.call: each for each in calls}
    assert len(chosen.calls) == len(set(chosen.calls)) <= max(0, len(patient) - coming)
    for call in chosen.calls:
        assert of[call].since <= 20.0
        assert patient - {of[call].turn}
    due = [each for each in calls if each.since <= 20.0 and patient - {each.turn}]
    if due and not coming:
        assert chosen.calls
    if not chosen.calls and not coming:
        assert chosen.due_at is None or chosen.due_at > 30.0
