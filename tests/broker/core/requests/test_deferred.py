"""Requests that wait for catalogs: one table for all kinds, one answer for each."""

from typing import Any

from carpool_broker.core.model import events as ev
from carpool_broker.core.model.effects import Reply, ReplyStateless
from carpool_protocol.ids import ABSENT, EMPTY_OBJECT, RawJson
from tests.broker.stateless_rig import ONE, PLAIN, A, B, StatelessRig

URI = "file:///a"


def subscribe(rig: StatelessRig, request: bytes, uri: str = URI) -> list[Any]:
    return rig.feed(ev.SubscribeRequested(ONE, RawJson(request), uri, on=True))


def one_of_each_kind() -> StatelessRig:
    """All kinds of requests that wait for catalogs."""
    rig = StatelessRig(told=False)
    rig.initialize(ONE)
    subscribe(rig, b"1")
    rig.feed(ev.ListPageRequested(ONE, RawJson(b"2"), None))
    rig.feed(ev.CallRequested(ONE, RawJson(b"3"), "a__x", EMPTY_OBJECT, ABSENT, ABSENT))
    rig.feed(ev.ListenRequested(ONE, RawJson(b"4"), PLAIN, ("tools",), (URI,)))
    rig.feed(ev.DiscoverRequested(ONE, RawJson(b"5"), PLAIN))
    return rig


def waiting(rig: StatelessRig) -> list[bytes]:
    return [deferred.id for deferred in rig.core.requests.deferred.of(ONE)]


def test_all_kinds_wait_in_one_table_in_the_order_in_which_they_came() -> None:
    assert waiting(one_of_each_kind()) == [b"1", b"2", b"3", b"4", b"5"]


def test_each_is_tried_anew_when_catalogs_come_and_at_its_deadline_at_the_latest() -> None:
    rig = one_of_each_kind()
    rig.catalog(A, "x")
    rig.wait(2.5)
    assert waiting(rig) == [b"2"], "no list is complete before all have told"
    rig.catalog(B, "y")
    assert waiting(rig) == []
    late = one_of_each_kind()
    late.wait(2.5)
    assert waiting(late) == [b"1", b"2", b"3", b"4"]
    late.wait(8.0)
    assert waiting(late) == []


def test_each_can_be_cancelled_and_goes_with_its_agent() -> None:
    rig = one_of_each_kind()
    for request in (b"5", b"3", b"1"):
        rig.feed(ev.RequestCancelled(ONE, RawJson(request), ""))
    assert waiting(rig) == [b"2", b"4"]
    rig.feed(ev.SessionClosed(ONE))
    assert not rig.core.requests.deferred.all()
    assert not rig.core.timers.keys("deferred_request")


def test_each_is_answered_when_carpool_ends() -> None:
    rig = one_of_each_kind()
    ends = [it for it in rig.feed(ev.EndRequested()) if isinstance(it, Reply | ReplyStateless)]
    assert sorted(it.id for it in ends) == [b"1", b"2", b"3", b"4", b"5"]
    assert all(b"closing" in bytes(it.body) for it in ends)
    assert waiting(rig) == []


def test_two_subscriptions_of_one_id_that_wait_have_two_answers() -> None:
    rig = StatelessRig(told=False)
    rig.initialize(ONE)
    subscribe(rig, b"1")
    (refused,) = subscribe(rig, b"1", "file:///b")
    assert b"duplicate_request_id" in bytes(refused.body)
    (agreed,) = [it for it in rig.catalog(A, "x") if isinstance(it, Reply)]
    assert (agreed.id, agreed.is_error) == (b"1", False)


def test_a_call_under_the_id_of_a_subscription_that_waits_is_refused() -> None:
    rig = StatelessRig(told=False)
    rig.initialize(ONE)
    subscribe(rig, b"1")
    called = rig.feed(ev.CallRequested(ONE, RawJson(b"1"), "x", EMPTY_OBJECT, ABSENT, ABSENT))
    (refused,) = called
    assert b"duplicate_request_id" in bytes(refused.body)
