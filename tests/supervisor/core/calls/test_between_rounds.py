"""Calls between two rounds use no slot: the server does not run them, and they are sent again one
at a time.
"""

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
    WireId,
)
from carpool_protocol.link.messages import (
    AnswerAsk,
    AskOpened,
    AskWithdrawn,
    CallAnswered,
    CallFailed,
    CancelCall,
    Era,
    LogForSession,
    Policy,
    SetPools,
    Sharing,
)
from carpool_supervisor.core.calls.server_requests import MAX_OPEN_ASKS
from carpool_supervisor.core.model import events as ev
from carpool_supervisor.core.model.attribution import AskFacts
from carpool_supervisor.core.model.effects import (
    CloseStdin,
    WriteAskAnswer,
    WriteCall,
    WriteCancel,
    WriteRetry,
)
from tests.behaviours import behaviour
from tests.kit.effects import of_kind
from tests.kit.supervisor_rig import SupervisorRig, catalog_of, pool_spec

KEY: Final = PoolKey("s:1")
ME: Final = InstanceId(1)
ELICIT, SAMPLE = "elicitation/create", "sampling/createMessage"


class InputRoundsRig(SupervisorRig):
    """One instance of a server."""

    def __init__(self, sharing: Sharing = "serial", era: Era = "stateless", **policy: Any) -> None:
        super().__init__(now=0.0, broker=True)
        self.key = KEY
        self.policy = {"min_instances": 1, "max_instances": 1, "wait_s": 100.0, "probe_s": 10_000.0, **policy}
        self.era: Era = era
        self.want(sharing)
        self.greet(ME, catalog_of(KEY, features=["tools", "logging"]))

    def want(self, *sharings: Sharing) -> list[Any]:
        """The server is wanted shared like this; without: not at all."""
        policies = [Policy(sharing=sharing, **self.policy) for sharing in sharings]
        return self.feed(SetPools([pool_spec(KEY, policy, asking=True, era=self.era) for policy in policies]))

    def call(self, number: int, session: str = "a", key: PoolKey | None = None, **more: Any) -> Any:
        """The wire ids that are written for it, if any."""
        return written(super().call(number, session, key, **more))

    def wants(self, wire: int, *methods: str) -> list[Any]:
        """The server answers that it wants these first."""
        said: list[Any] = []
        for number, method in enumerate(methods or (ELICIT,)):
            said += self.ask_in_round(ME, wire, number, method)
        return said

    def asked(self, wire: int, *methods: str) -> list[AskId]:
        return [each.ask for each in of_kind(self.wants(wire, *methods), AskOpened)]

    def give(self, ask: AskId) -> list[Any]:
        return self.feed(AnswerAsk(ask, is_error=False, body=RawJson(b'{"action":"accept"}')))

    def answers(self, wire: int) -> list[Any]:
        return self.feed(ev.ServerAnswered(ME, WireId(wire), is_error=False, body=EMPTY_OBJECT))


def written(effects: list[Any]) -> list[int]:
    return [each.call.call for each in of_kind(effects, WriteCall)]


def again(effects: list[Any]) -> list[int]:
    return [each.wire for each in of_kind(effects, WriteRetry)]


@behaviour("modes:serial", "eras:rounds:lane")
def test_another_call_takes_the_slot_while_an_agent_is_asked() -> None:
    rig = InputRoundsRig()
    assert rig.call(1) == [1]
    assert rig.call(2, "b") == []
    assert written(rig.wants(1)) == [2]
    assert rig.call(3, "c") == [], "that one runs"


def test_a_call_that_comes_while_another_waits_for_its_agent_runs_at_once() -> None:
    rig = InputRoundsRig()
    rig.call(1)
    rig.wants(1, ELICIT, SAMPLE)
    assert rig.call(2, "b") == [2]


def test_an_asking_call_of_the_handshake_era_keeps_its_slot() -> None:
    rig = InputRoundsRig(era="handshake")
    rig.call(1)
    [asked] = of_kind(
        rig.feed(ev.ServerAsked(ME, RawJson(b"7"), RawJson(b"{}"), AskFacts(ELICIT), ABSENT)), AskOpened
    )
    assert rig.call(2, "b") == [], "its handler runs, and waits for the answer"
    effects = rig.give(asked.ask)
    assert of_kind(effects, WriteAskAnswer)
    assert not again(effects)


@behaviour("eras:rounds")
def test_the_last_answer_of_a_round_sends_the_call_again() -> None:
    rig = InputRoundsRig()
    rig.call(1)
    first, second = rig.asked(1, ELICIT, SAMPLE)
    effects = rig.give(second)
    assert of_kind(effects, WriteAskAnswer)
    assert not again(effects)
    effects = rig.give(first)
    assert [type(each) for each in of_kind(effects, WriteAskAnswer, WriteRetry)] == [
        WriteAskAnswer,
        WriteRetry,
    ]


@behaviour("modes:serial", "eras:rounds:lane")
def test_a_call_continues_in_a_free_slot_before_new_calls() -> None:
    rig = InputRoundsRig()
    rig.call(1)
    [ask] = rig.asked(1)
    rig.call(2, "b")
    rig.call(3, "c")
    effects = rig.give(ask)
    assert of_kind(effects, WriteAskAnswer), "the server's side has the answer at once"
    assert not again(effects), "but the call is said again only when nothing else runs"
    effects = rig.answers(2)
    assert again(effects) == [1]
    assert not written(effects)
    assert written(rig.answers(1)) == [3]


def test_pending_retries_run_in_the_order_of_their_answers() -> None:
    rig = InputRoundsRig()
    asks = []
    for number in (1, 2, 3):
        rig.call(number, f"s{number}")
        asks += rig.asked(number)
    rig.call(4, "d")
    for number in (2, 0, 1):
        assert not again(rig.give(asks[number]))
    assert again(rig.answers(4)) == [3]
    assert again(rig.wants(3)) == [1], "another round of one is the turn of the next"
    assert again(rig.answers(1)) == [2]


def test_a_slot_that_a_round_frees_goes_to_a_pending_retry_first() -> None:
    rig = InputRoundsRig()
    rig.call(1)
    [ask] = rig.asked(1)
    rig.call(2, "b")
    rig.give(ask)
    rig.call(3, "c")
    effects = rig.wants(2)
    assert again(effects) == [1]
    assert not written(effects)


@behaviour("eras:rounds")
def test_a_paused_call_leaves_its_slot_to_other_calls() -> None:
    rig = InputRoundsRig()
    rig.call(1)
    rig.call(2, "b")
    assert written(rig.feed(ev.ServerNotReady(ME, WireId(1), 0.05))) == [2]
    assert not again(rig.wait(1.0))
    assert again(rig.answers(2)) == [1]


@pytest.mark.parametrize("answered", [False, True], ids=["asked", "in line"])
@behaviour("eras:rounds:lane", "eras:rounds")
def test_a_cancel_between_two_rounds_ends_the_call_at_once(answered: bool) -> None:
    rig = InputRoundsRig()
    rig.call(1)
    [ask] = rig.asked(1)
    rig.call(2, "b")
    if answered:
        rig.give(ask)
    effects = rig.feed(CancelCall(CallId(1), "enough"))
    assert [each.wire for each in of_kind(effects, WriteCancel)] == [1]
    assert not of_kind(effects, WriteRetry, WriteAskAnswer)
    assert len(of_kind(effects, AskWithdrawn)) == (not answered)
    rig.answers(1)  # what the adapter says of it
    assert not again(rig.answers(2))
    assert rig.call(3, "c") == [3]
    assert not of_kind(rig.wait(20.0), CloseStdin), "nothing of it may still run"


@behaviour("asks:in-flight:serial-waits")
def test_a_cancel_of_a_call_that_was_sent_again_taints_its_slot() -> None:
    rig = InputRoundsRig()
    rig.call(1)
    rig.give(*rig.asked(1))
    rig.feed(CancelCall(CallId(1), "enough"))
    assert rig.call(2, "b") == []


@behaviour("eras:rounds:lane")
def test_a_pending_retry_without_a_free_slot_ends_at_its_deadline_and_names_the_cause() -> None:
    rig = InputRoundsRig(timeout_s=10.0, max_total_s=100.0)
    rig.call(1)
    [ask] = rig.asked(1)
    rig.call(2, "b")
    rig.wait(5.0)
    rig.give(ask)
    failed: list[Any] = []
    for _ in range(3):
        failed += of_kind(rig.wait(4.0), CallFailed)
        rig.feed(ev.ServerProgressed(ME, WireId(2), EMPTY_OBJECT))
    assert [(each.call, each.fault, each.delivered) for each in failed] == [(1, "timed_out", "maybe")]
    assert "waited to be sent again" in failed[0].text
    assert not again(rig.answers(2))


def test_a_pending_retry_that_is_sent_late_has_its_whole_timeout_again() -> None:
    rig = InputRoundsRig(timeout_s=10.0, max_total_s=100.0)
    rig.call(1)
    [ask] = rig.asked(1)
    rig.call(2, "b")
    rig.give(ask)
    rig.wait(9.0)
    assert again(rig.answers(2)) == [1]
    assert not of_kind(rig.wait(9.0), CallFailed)
    assert [each.call for each in of_kind(rig.wait(2.0), CallFailed)] == [1]


def test_an_agent_that_never_answers_delays_no_call_and_its_own_continues_after_the_limit() -> None:
    rig = InputRoundsRig(ask_timeout_s=5.0)
    rig.call(1)
    rig.wants(1)
    rig.call(2, "b")
    effects = rig.wait(6.0)
    assert [each.is_error for each in of_kind(effects, WriteAskAnswer)] == [True]
    assert not again(effects)
    assert again(rig.answers(2)) == [1]


@behaviour("eras:rounds:lane")
def test_an_agent_that_is_asked_and_calls_the_same_server_waits_in_the_queue() -> None:
    rig = InputRoundsRig()
    rig.call(1)
    [ask] = rig.asked(1)
    rig.call(2, "b")
    assert rig.call(3) == []
    assert not of_kind(rig.wait(1.0), CallFailed), "its own call holds no lane: nothing waits for itself"
    assert written(rig.answers(2)) == [3]
    assert not again(rig.give(ask))
    assert again(rig.answers(3)) == [1]


def test_a_lost_instance_ends_its_pending_retries() -> None:
    rig = InputRoundsRig()
    rig.call(1)
    [ask] = rig.asked(1)
    rig.call(2, "b")
    rig.give(ask)
    effects = rig.feed(ev.InstanceExited(ME, "was killed by SIGKILL", (), "", 0.5))
    assert {each.call for each in of_kind(effects, CallFailed)} == {1, 2}
    assert not again(effects + rig.wait(1.0))


def test_a_lost_link_ends_pending_retries() -> None:
    rig = InputRoundsRig()
    rig.call(1)
    [ask] = rig.asked(1)
    rig.call(2, "b")
    rig.give(ask)
    effects = rig.feed(ev.BrokerConnected(same=True))
    assert {each.wire for each in of_kind(effects, WriteCancel)} == {1, 2}
    assert not again(effects)


def test_pending_retries_continue_on_an_instance_that_drains() -> None:
    rig = InputRoundsRig()
    rig.call(1)
    [ask] = rig.asked(1)
    rig.call(2, "b")
    rig.give(ask)
    assert not of_kind(rig.want(), CloseStdin)
    assert again(rig.answers(2)) == [1]
    effects = rig.answers(1)
    assert of_kind(effects, CallAnswered)
    assert of_kind(effects, CloseStdin)


def test_a_change_to_concurrent_sends_every_pending_retry() -> None:
    rig = InputRoundsRig()
    rig.call(1)
    [ask] = rig.asked(1)
    rig.call(2, "b")
    rig.give(ask)
    assert again(rig.want("concurrent")) == [1]


@pytest.mark.parametrize("sharing", ["concurrent", "session"])
def test_a_call_of_a_concurrent_server_continues_at_once(sharing: Sharing) -> None:
    rig = InputRoundsRig(sharing)
    rig.call(1)
    [ask] = rig.asked(1)
    assert rig.call(2) == [2]
    assert again(rig.give(ask)) == [1]


def test_a_log_message_belongs_to_the_running_call_while_another_is_pending() -> None:
    rig = InputRoundsRig()
    rig.call(1)
    rig.wants(1)
    rig.call(2, "b")
    [logged] = of_kind(rig.feed(ev.ServerLogged(ME, "info", EMPTY_OBJECT)), LogForSession)
    assert (logged.session, logged.call) == ("b", 2)


def test_an_ask_beyond_the_bound_is_refused_and_its_call_continues() -> None:
    rig = InputRoundsRig("concurrent")
    rig.call(1)
    rig.wants(1, *[ELICIT] * MAX_OPEN_ASKS)
    rig.call(2)
    effects = rig.wants(2)
    assert [each.is_error for each in of_kind(effects, WriteAskAnswer)] == [True]
    assert again(effects) == [2]
