"""Calls between two rounds hold no lane: nothing of them runs, and they go on one at a time."""

from typing import Any, Final

import pytest

from carpool_protocol.ids import (
    ABSENT,
    EMPTY_OBJECT,
    AskId,
    CallId,
    InstanceId,
    PoolKey,
    RawJson,
    ServerName,
    SessionId,
    WireId,
)
from carpool_protocol.link.messages import (
    AnswerAsk,
    Answered,
    Asked,
    AskWithdrawn,
    Call,
    CancelCall,
    Catalog,
    Era,
    Failed,
    Logged,
    Policy,
    PoolSpec,
    Sharing,
    Wanted,
)
from carpool_supervisor.core.calls.server_requests import MAX_OPEN_ASKS
from carpool_supervisor.core.model import events as ev
from carpool_supervisor.core.model.attribution import AskFacts
from carpool_supervisor.core.model.effects import (
    CloseStdin,
    WriteAgain,
    WriteAskAnswer,
    WriteCall,
    WriteCancel,
)
from tests.behaviours import behaviour
from tests.kit.supervisor_rig import supervisor_core

KEY: Final = PoolKey("s:1")
ME: Final = InstanceId(1)
ELICIT, SAMPLE = "elicitation/create", "sampling/createMessage"


class Lane:
    """A supervisor core with one instance of a server."""

    def __init__(self, sharing: Sharing = "serial", era: Era = "stateless", **policy: Any) -> None:
        self.core = supervisor_core()
        self.now = 0.0
        self.policy = {"min_instances": 1, "max_instances": 1, "wait_s": 100.0, "probe_s": 10_000.0, **policy}
        self.era: Era = era
        self.do(ev.BrokerCame())
        self.want(sharing)
        self.do(ev.InstanceSpawned(ME, 100))
        features: Any = ["tools", "logging"]
        self.do(
            ev.InstanceGreeted(ME, Catalog(KEY, [], "", EMPTY_OBJECT, EMPTY_OBJECT, "v", features=features))
        )

    def want(self, *sharings: Sharing) -> list[Any]:
        """The server is wanted shared like this; without: not at all."""
        specs = [
            PoolSpec(
                key=KEY, server=ServerName("s"), argv=["s"], env={}, cwd="/", asking=True, era=self.era,
                policy=Policy(sharing=sharing, **self.policy),
            )
            for sharing in sharings
        ]  # fmt: skip
        return self.do(Wanted(specs))

    def do(self, event: ev.AnyEvent) -> list[Any]:
        effects = self.core.handle(event, self.now)
        self.core.check()
        return effects

    def wait(self, duration_s: float) -> list[Any]:
        until, done = self.now + duration_s, []
        while (due := self.core.next_deadline()) is not None and due <= until:
            self.now = max(self.now, due)
            done += self.core.tick(self.now)
            self.core.check()
        self.now = until
        return done

    def call(self, number: int, session: str = "a") -> list[int]:
        """The wire ids that are written for it, if any."""
        word = Call(
            CallId(number), KEY, SessionId(session), "tools/call", "t", RawJson(b"{}"), ABSENT,
            wants_progress=False,
        )  # fmt: skip
        return written(self.do(word))

    def wants(self, wire: int, *methods: str) -> list[Any]:
        """The server answers that it wants these first."""
        said: list[Any] = []
        for number, method in enumerate(methods or (ELICIT,)):
            ask = RawJson(b"%d/1/%d" % (wire, number))
            said += self.do(
                ev.ServerAsked(ME, ask, RawJson(b"{}"), AskFacts(method, wire=WireId(wire)), ABSENT)
            )
        return said

    def asked(self, wire: int, *methods: str) -> list[AskId]:
        return [each.ask for each in only(self.wants(wire, *methods), Asked)]

    def give(self, ask: AskId) -> list[Any]:
        return self.do(AnswerAsk(ask, is_error=False, body=RawJson(b'{"action":"accept"}')))

    def answers(self, wire: int) -> list[Any]:
        return self.do(ev.ServerAnswered(ME, WireId(wire), is_error=False, body=EMPTY_OBJECT))


def only(effects: list[Any], *kinds: type) -> list[Any]:
    return [each for each in effects if isinstance(each, kinds)]


def written(effects: list[Any]) -> list[int]:
    return [each.call.call for each in only(effects, WriteCall)]


def again(effects: list[Any]) -> list[int]:
    return [each.wire for each in only(effects, WriteAgain)]


@behaviour("modes:serial", "eras:rounds:lane")
def test_while_an_agent_is_asked_another_call_runs_in_the_lane() -> None:
    lane = Lane()
    assert lane.call(1) == [1]
    assert lane.call(2, "b") == []
    assert written(lane.wants(1)) == [2]
    assert lane.call(3, "c") == [], "that one runs"


def test_a_call_that_comes_while_another_waits_for_its_agent_runs_at_once() -> None:
    lane = Lane()
    lane.call(1)
    lane.wants(1, ELICIT, SAMPLE)
    assert lane.call(2, "b") == [2]


def test_in_the_handshake_era_a_call_that_asks_keeps_its_lane() -> None:
    lane = Lane(era="handshake")
    lane.call(1)
    [asked] = only(
        lane.do(ev.ServerAsked(ME, RawJson(b"7"), RawJson(b"{}"), AskFacts(ELICIT), ABSENT)), Asked
    )
    assert lane.call(2, "b") == [], "its handler runs, and waits for the answer"
    effects = lane.give(asked.ask)
    assert only(effects, WriteAskAnswer)
    assert not again(effects)


@behaviour("eras:rounds")
def test_the_last_answer_of_a_round_has_the_call_said_again() -> None:
    lane = Lane()
    lane.call(1)
    first, second = lane.asked(1, ELICIT, SAMPLE)
    effects = lane.give(second)
    assert only(effects, WriteAskAnswer)
    assert not again(effects)
    effects = lane.give(first)
    assert [type(each) for each in only(effects, WriteAskAnswer, WriteAgain)] == [WriteAskAnswer, WriteAgain]


@behaviour("modes:serial", "eras:rounds:lane")
def test_a_call_goes_on_when_the_lane_is_free_and_before_new_ones() -> None:
    lane = Lane()
    lane.call(1)
    [ask] = lane.asked(1)
    lane.call(2, "b")
    lane.call(3, "c")
    effects = lane.give(ask)
    assert only(effects, WriteAskAnswer), "the server's side has the answer at once"
    assert not again(effects), "but the call is said again only when nothing else runs"
    effects = lane.answers(2)
    assert again(effects) == [1]
    assert not written(effects)
    assert written(lane.answers(1)) == [3]


def test_those_that_go_on_take_turns_in_the_order_in_which_their_answers_came() -> None:
    lane = Lane()
    asks = []
    for number in (1, 2, 3):
        lane.call(number, f"s{number}")
        asks += lane.asked(number)
    lane.call(4, "d")
    for number in (2, 0, 1):
        assert not again(lane.give(asks[number]))
    assert again(lane.answers(4)) == [3]
    assert again(lane.wants(3)) == [1], "another round of one is the turn of the next"
    assert again(lane.answers(1)) == [2]


def test_a_lane_that_a_round_frees_goes_to_who_goes_on_there_first() -> None:
    lane = Lane()
    lane.call(1)
    [ask] = lane.asked(1)
    lane.call(2, "b")
    lane.give(ask)
    lane.call(3, "c")
    effects = lane.wants(2)
    assert again(effects) == [1]
    assert not written(effects)


@behaviour("eras:rounds")
def test_a_server_that_wants_a_pause_leaves_its_lane_to_others_meanwhile() -> None:
    lane = Lane()
    lane.call(1)
    lane.call(2, "b")
    assert written(lane.do(ev.ServerNotReady(ME, WireId(1), 0.05))) == [2]
    assert not again(lane.wait(1.0))
    assert again(lane.answers(2)) == [1]


@pytest.mark.parametrize("answered", [False, True], ids=["asked", "in line"])
@behaviour("eras:rounds:lane", "eras:rounds")
def test_a_cancel_between_two_rounds_is_over_at_once(answered: bool) -> None:
    lane = Lane()
    lane.call(1)
    [ask] = lane.asked(1)
    lane.call(2, "b")
    if answered:
        lane.give(ask)
    effects = lane.do(CancelCall(CallId(1), "enough"))
    assert [each.wire for each in only(effects, WriteCancel)] == [1]
    assert not only(effects, WriteAgain, WriteAskAnswer)
    assert len(only(effects, AskWithdrawn)) == (not answered)
    lane.answers(1)  # what the adapter says of it
    assert not again(lane.answers(2))
    assert lane.call(3, "c") == [3]
    assert not only(lane.wait(20.0), CloseStdin), "nothing of it may still run"


@behaviour("asks:in-flight:serial-waits")
def test_a_cancel_of_one_that_was_said_again_taints_the_lane() -> None:
    lane = Lane()
    lane.call(1)
    lane.give(*lane.asked(1))
    lane.do(CancelCall(CallId(1), "enough"))
    assert lane.call(2, "b") == []


@behaviour("eras:rounds:lane")
def test_one_that_cannot_go_on_ends_at_its_deadline_and_says_what_it_waited_for() -> None:
    lane = Lane(timeout_s=10.0, max_total_s=100.0)
    lane.call(1)
    [ask] = lane.asked(1)
    lane.call(2, "b")
    lane.wait(5.0)
    lane.give(ask)
    failed: list[Any] = []
    for _ in range(3):
        failed += only(lane.wait(4.0), Failed)
        lane.do(ev.ServerProgressed(ME, WireId(2), EMPTY_OBJECT))
    assert [(each.call, each.fault, each.delivered) for each in failed] == [(1, "timed_out", "maybe")]
    assert "turn" in failed[0].text
    assert not again(lane.answers(2))


def test_one_that_went_on_late_has_its_whole_time_again() -> None:
    lane = Lane(timeout_s=10.0, max_total_s=100.0)
    lane.call(1)
    [ask] = lane.asked(1)
    lane.call(2, "b")
    lane.give(ask)
    lane.wait(9.0)
    assert again(lane.answers(2)) == [1]
    assert not only(lane.wait(9.0), Failed)
    assert [each.call for each in only(lane.wait(2.0), Failed)] == [1]


def test_an_agent_that_never_answers_holds_up_nobody_and_its_call_goes_on_after_the_limit() -> None:
    lane = Lane(ask_timeout_s=5.0)
    lane.call(1)
    lane.wants(1)
    lane.call(2, "b")
    effects = lane.wait(6.0)
    assert [each.is_error for each in only(effects, WriteAskAnswer)] == [True]
    assert not again(effects)
    assert again(lane.answers(2)) == [1]


@behaviour("eras:rounds:lane")
def test_an_agent_that_is_asked_and_calls_the_same_server_waits_as_everybody_does() -> None:
    lane = Lane()
    lane.call(1)
    [ask] = lane.asked(1)
    lane.call(2, "b")
    assert lane.call(3) == []
    assert not only(lane.wait(1.0), Failed), "its own call holds no lane: nothing waits for itself"
    assert written(lane.answers(2)) == [3]
    assert not again(lane.give(ask))
    assert again(lane.answers(3)) == [1]


def test_when_the_instance_is_lost_nothing_goes_on() -> None:
    lane = Lane()
    lane.call(1)
    [ask] = lane.asked(1)
    lane.call(2, "b")
    lane.give(ask)
    effects = lane.do(ev.InstanceExited(ME, "was killed by SIGKILL", (), "", 0.5))
    assert {each.call for each in only(effects, Failed)} == {1, 2}
    assert not again(effects + lane.wait(1.0))


def test_a_lost_link_ends_what_is_in_line_to_go_on() -> None:
    lane = Lane()
    lane.call(1)
    [ask] = lane.asked(1)
    lane.call(2, "b")
    lane.give(ask)
    effects = lane.do(ev.BrokerCame(same=True))
    assert {each.wire for each in only(effects, WriteCancel)} == {1, 2}
    assert not again(effects)


def test_on_an_instance_that_drains_calls_still_go_on() -> None:
    lane = Lane()
    lane.call(1)
    [ask] = lane.asked(1)
    lane.call(2, "b")
    lane.give(ask)
    assert not only(lane.want(), CloseStdin)
    assert again(lane.answers(2)) == [1]
    effects = lane.answers(1)
    assert only(effects, Answered)
    assert only(effects, CloseStdin)


def test_where_calls_may_overlap_from_now_on_nothing_waits_to_go_on() -> None:
    lane = Lane()
    lane.call(1)
    [ask] = lane.asked(1)
    lane.call(2, "b")
    lane.give(ask)
    assert again(lane.want("concurrent")) == [1]


@pytest.mark.parametrize("sharing", ["concurrent", "session"])
def test_where_calls_may_overlap_a_call_goes_on_at_once(sharing: Sharing) -> None:
    lane = Lane(sharing)
    lane.call(1)
    [ask] = lane.asked(1)
    assert lane.call(2) == [2]
    assert again(lane.give(ask)) == [1]


def test_what_is_logged_while_another_call_rests_is_of_the_one_that_runs() -> None:
    lane = Lane()
    lane.call(1)
    lane.wants(1)
    lane.call(2, "b")
    [logged] = only(lane.do(ev.ServerLogged(ME, "info", EMPTY_OBJECT)), Logged)
    assert (logged.session, logged.call) == ("b", 2)


def test_what_cannot_be_asked_at_all_does_not_keep_the_call_from_going_on() -> None:
    lane = Lane("concurrent")
    lane.call(1)
    lane.wants(1, *[ELICIT] * MAX_OPEN_ASKS)
    lane.call(2)
    effects = lane.wants(2)
    assert [each.is_error for each in only(effects, WriteAskAnswer)] == [True]
    assert again(effects) == [2]
