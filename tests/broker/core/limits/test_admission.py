"""The order of the rules by which a call goes now, waits or is refused; how calls wait: `test_call_table`."""

from typing import Final

import pytest

from carpool_broker.core.limits.admission import Admission, Refusal
from carpool_broker.core.limits.memory_budgets import COUNTED_BYTES, UNREAD_STEP_BYTES, ArgumentBudget
from carpool_broker.core.model.bounds import ProfileLimits, SessionBounds
from carpool_broker.core.model.events import CallRequested, SourceId
from carpool_broker.core.model.session import OpenCall, Session
from carpool_broker.core.model.supervisors import ONLY, SupervisorLinks
from carpool_broker.core.model.timer_kinds import ORDER
from carpool_protocol.ids import ABSENT, CallId, RawJson, ServerName, SessionId
from carpool_protocol.machine.timers import Timers

BOUNDS: Final = SessionBounds(max_open_calls=2, max_waiting_calls=2, max_waiting_bytes=2 * COUNTED_BYTES)
LARGE: Final = COUNTED_BYTES + 1
NOW: Final = 100.0

CONDITIONS: Final = ("too many", "draining", "quota", "queue", "busy", "no credit", "unread")
"""In the order of the rules; the last three keep a call back by the same one."""


class NoCallTable:
    """Fails if a decision has an effect."""

    def send(self, open_call: OpenCall, now: float) -> None:
        raise AssertionError("a decision sends nothing")

    def fail(
        self, open_call: OpenCall, slug: str, detail: str = "", retry_after_s: float | None = None
    ) -> None:
        raise AssertionError("a decision ends nothing")


class Rig:
    """A session with a profile, in which these conditions hold."""

    def __init__(self, *conditions: str) -> None:
        self.session = Session(SessionId("s1"), SourceId("daemon"), "", 1, "shim")
        self.session.profile = "p"
        self.arguments = ArgumentBudget()
        sessions = {self.session.id: self.session}
        self.links = SupervisorLinks()
        self.admission = Admission(
            sessions, BOUNDS, self.arguments, NoCallTable(), Timers(ORDER), links=self.links
        )
        self.links.supervisor_ready(ONLY, 10_000)
        calls_per_minute = 1 if "quota" in conditions else 100
        limits = {"p": ProfileLimits(calls_per_minute=calls_per_minute)}
        self.admission.quotas.session_opened(self.session, limits, NOW)
        self.count = 0
        if "quota" in conditions:
            assert self.admission.decide(self.call(), NOW) == "send"
            self.session.open_calls.clear()
        if "too many" in conditions:
            for _ in range(BOUNDS.max_open_calls + BOUNDS.max_waiting_calls):
                self.call()
        if "queue" in conditions:
            self.session.waiting.extend(self.call() for _ in range(BOUNDS.max_waiting_calls))
        if "busy" in conditions:
            self.session.sent = BOUNDS.max_open_calls
        if "no credit" in conditions:
            self.links.supervisor_ready(ONLY, 0)
        if "unread" in conditions:
            self.session.unread_bytes = UNREAD_STEP_BYTES + 1
        self.admission.draining = "draining" in conditions

    def call(self, size_bytes: int = 0) -> OpenCall:
        self.count += 1
        id_ = RawJson(b"%d" % self.count)
        asked = CallRequested(self.session.id, id_, "s__t", RawJson(b" " * size_bytes), ABSENT, ABSENT)
        open_call = self.session.open_calls[id_] = OpenCall(CallId(self.count), self.session, asked)
        open_call.server = ServerName("s")
        self.arguments.call_opened(open_call)
        return open_call

    def decide(self, size_bytes: int = 0) -> str:
        """The step, or the fault of the refusal."""
        return named(self.admission.decide(self.call(size_bytes), NOW))


def named(outcome: str | Refusal) -> str:
    return outcome.fault if isinstance(outcome, Refusal) else outcome


OUTCOMES: Final = {
    "too many": "too_many_calls",
    "draining": "closing",
    "quota": "too_many_a_minute",
    "queue": "too_many_calls",
    "busy": "wait",
    "no credit": "wait",
    "unread": "wait",
}


def test_a_call_that_nothing_keeps_back_goes() -> None:
    assert Rig().decide() == "send"
    assert Rig().decide(LARGE) == "send"


@pytest.mark.parametrize("first", range(len(CONDITIONS)))
def test_the_first_rule_that_applies_counts(first: int) -> None:
    later = CONDITIONS[first:]
    assert Rig(CONDITIONS[first]).decide(LARGE) == OUTCOMES[CONDITIONS[first]]
    assert Rig(*later).decide(LARGE) == OUTCOMES[CONDITIONS[first]]


def test_a_small_call_is_bounded_by_the_queue_and_not_by_what_is_open() -> None:
    assert Rig("too many").decide(LARGE) == "too_many_calls"
    assert Rig("too many").decide(COUNTED_BYTES) == "send"
    assert Rig("too many", "queue").decide() == "too_many_calls"


def test_while_carpool_drains_a_call_waits_where_its_carrier_brings_it_to_the_next_broker() -> None:
    rig = Rig("draining")
    rig.session.carrier_keeps_lines = True
    assert rig.decide() == "wait"


def test_a_call_waits_behind_one_that_waits_though_the_session_may_send() -> None:
    rig = Rig()
    first = rig.call()
    rig.session.waiting.append(first)
    assert rig.admission.may_send(rig.call())
    assert rig.admission.next_queued(rig.session) is first
    assert rig.decide() == "wait"


def test_the_queue_is_full_by_bytes_as_by_calls() -> None:
    rig = Rig("busy")
    rig.session.waiting_bytes = BOUNDS.max_waiting_bytes
    assert rig.decide() == "wait"
    assert rig.decide(1) == "too_many_calls"


@pytest.mark.parametrize(
    ("condition", "outcome"),
    [("too many", "too_many_calls"), ("draining", "closing"), ("quota", "send"), ("queue", "send"),
     ("busy", "wait"), ("no credit", "wait"), ("unread", "wait")],
)  # fmt: skip
def test_after_hooks_neither_the_quota_nor_the_queue_counts_again(condition: str, outcome: str) -> None:
    rig = Rig(condition)
    assert named(rig.admission.decide_again(rig.call(LARGE))) == outcome
