"""Calls that a pool had in its queue when it was replaced: they go to the pool that serves now."""

from typing import Any, Final

import pytest

from carpool_protocol.ids import EMPTY_OBJECT, PoolKey
from carpool_protocol.link.messages import AnswersWritten, Call, CallAnswered, CallFailed
from tests.broker.stateless_rig import PLAIN, A, B, StatelessRig

NEXT: Final = PoolKey("a:2")
REPLACED: Final = "Its configuration has just changed."


def refused(call: Call, fault: str = "draining") -> CallFailed:
    return CallFailed(call.call, fault, "no", REPLACED, 0.5)


def replies(effects: list[Any]) -> list[Any]:
    return [each for each in effects if hasattr(each, "body")]


class Replaced(StatelessRig):
    """A call waits at pool `A`, whose configuration changes. `keys`: the pools from then on."""

    def __init__(self, *keys: PoolKey, by: Any = PLAIN) -> None:
        super().__init__()
        self.sent = self.call(by=by)
        self.read(*keys)


def test_a_call_that_a_replaced_pool_had_in_its_queue_goes_to_the_next_pool() -> None:
    rig = Replaced(NEXT, B)
    rig.catalog(NEXT, "x")
    forgets, again = rig.feed(refused(rig.sent))
    assert isinstance(forgets, AnswersWritten), "the supervisor takes no call whose end it has in its record"
    assert forgets.calls == [rig.sent.call]
    assert forgets.oldest == rig.sent.call, "the call itself is still to come"
    assert isinstance(again, Call)
    assert (again.call, again.key, again.target) == (rig.sent.call, NEXT, "x")
    assert replies(rig.feed(CallAnswered(again.call, is_error=False, body=EMPTY_OBJECT)))


def test_a_call_that_was_refused_while_its_pool_was_not_wanted_goes_to_the_same_pool() -> None:
    rig = Replaced(A, B)
    _, again = rig.feed(refused(rig.sent))
    assert (again.call, again.key) == (rig.sent.call, A)


def test_a_call_is_sent_again_only_once() -> None:
    rig = Replaced(A, B)
    rig.feed(refused(rig.sent))
    (told,) = replies(rig.feed(refused(rig.sent)))
    assert b'"draining","delivered":"no"' in bytes(told.body)


def test_a_call_whose_server_has_left_the_configuration_is_refused() -> None:
    rig = Replaced(B)
    (told,) = replies(rig.feed(refused(rig.sent)))
    assert b'"draining","delivered":"no"' in bytes(told.body)


@pytest.mark.parametrize("fault", ["stopped", "waited_too_long", "breaker_open"])
def test_a_call_that_failed_for_another_reason_is_not_sent_again(fault: str) -> None:
    rig = Replaced(A, B)
    effects = rig.feed(refused(rig.sent, fault))
    assert not [each for each in effects if isinstance(each, Call)]
    assert replies(effects)


def test_a_call_with_a_round_of_input_is_not_sent_again() -> None:
    rig = StatelessRig()
    call, _ = rig.park()
    assert not [
        each for each in rig.feed(CallFailed(call, "draining", "no", REPLACED)) if isinstance(each, Call)
    ]


def test_a_call_that_is_cancelled_after_it_was_refused_is_not_sent() -> None:
    rig = Replaced(A, B)
    rig.core.call_table.cancel(rig.core.sessions[rig.sent.session], rig.sent.request, "", rig.now)
    assert rig.feed(refused(rig.sent)) == []
