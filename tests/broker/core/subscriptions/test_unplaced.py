"""Subscriptions of both eras that an earlier broker has granted, and whose server is away as they come back.

Source: docs/decisions/0019; MCP 2025-11-25, server/resources "Subscriptions"; MCP 2026-07-28,
basic/utilities/subscriptions.
"""

from typing import Any

import pytest

from carpool_broker.core.model import events as ev
from carpool_broker.core.model.effects import AcknowledgeListen, Reply, SendListChanged, SendResourceUpdated
from carpool_broker.core.model.events import ListNotification, SourceId
from carpool_broker.core.subscriptions.subscription_table import ENDS_PAUSE_S, MAX_SUBSCRIPTIONS
from carpool_protocol.ids import EMPTY_OBJECT, Epoch, RawJson
from carpool_protocol.link.messages import PoolChanged, ResourceChanged, SetResourceSubscriptions
from tests.broker.stateless_rig import FEATURES, ONE, PLAIN, A, B, StatelessRig

R1, R2 = RawJson(b"1"), RawJson(b"2")
FILE = "file:///a"
CHANGED = RawJson(b'{"uri":"file:///a"}')


def back(
    rig: StatelessRig,
    *families: ListNotification,
    uris: tuple[str, ...] = (FILE,),
    wanted: tuple[ListNotification, ...] = ("tools", "prompts", "resources"),
    request: RawJson = R1,
) -> list[Any]:
    """A listen comes back that an earlier broker has granted this."""
    rig.feed(ev.ListenResumed(ONE, request, families, uris))
    said = rig.feed(ev.ListenRequested(ONE, request, PLAIN, wanted, (FILE, "file:///b", *uris[1:])))
    return [*said, *rig.feed(ev.SessionResumed(ONE, Epoch(""), (), ()))]


def subscribed(rig: StatelessRig, uri: str = FILE) -> list[Any]:
    """A subscription comes back that an earlier broker has said yes to."""
    rig.initialize(ONE)
    said = rig.feed(ev.SubscribeRequested(ONE, R2, uri, on=True, granted=True))
    return [*said, *rig.feed(ev.SessionResumed(ONE, Epoch(""), (), ()))]


def heard(rig: StatelessRig, uri: str = FILE) -> list[RawJson]:
    """On which listens (none: apart from them) a change of this is heard."""
    said = rig.feed(ResourceChanged(A, uri, EMPTY_OBJECT))
    return [each.listen for each in said if isinstance(each, SendResourceUpdated)]


def removed() -> StatelessRig:
    """`a` is not in the file as the session comes back."""
    rig = StatelessRig()
    rig.catalog(B, "y", features=["tools"])
    rig.read(B)
    return rig


# --- what was granted holds ------------------------------------------------------------------------------


def test_a_listen_hears_of_its_resource_again_when_the_server_is_back_in_the_file() -> None:
    rig = removed()
    assert AcknowledgeListen(ONE, R1, (), (FILE,)) in back(rig)
    rig.read(A, B)
    effects = rig.catalog(A, "x")
    assert SetResourceSubscriptions(A, [FILE]) in effects
    assert SendResourceUpdated(ONE, FILE, CHANGED, R1) in effects, "what became of it nobody knows"
    assert heard(rig) == [R1]
    assert SetResourceSubscriptions(A, []) in rig.feed(ev.RequestCancelled(ONE, R1, ""))


def test_a_subscription_does_so_too() -> None:
    rig = removed()
    assert Reply(ONE, R2, is_error=False, body=EMPTY_OBJECT) in subscribed(rig)
    rig.read(A, B)
    effects = rig.catalog(A, "x")
    assert SetResourceSubscriptions(A, [FILE]) in effects
    assert SendResourceUpdated(ONE, FILE, CHANGED) in effects
    assert heard(rig) == [b""]


@pytest.mark.parametrize("state", ["given_up", "stopped", "breaker_open"])
def test_and_when_a_server_that_had_failed_serves_again(state: Any) -> None:
    rig = StatelessRig(told=False)
    rig.catalog(B, "y", features=["tools"])
    rig.feed(PoolChanged(A, state, "", None, "concurrent"))
    subscribed(rig)
    back(rig)
    rig.mode(A, "concurrent")
    rig.catalog(A, "x")
    assert sorted(heard(rig)) == [b"", R1]


def test_an_unplaced_subscription_holds_until_its_server_sends_a_catalog() -> None:
    rig = StatelessRig(told=False)
    subscribed(rig)
    assert AcknowledgeListen(ONE, R1, ("tools",), (FILE,)) in back(rig, "tools"), "at once"
    rig.wait(60.0)
    rig.catalog(A, "x")
    assert sorted(heard(rig)) == [b"", R1]


def test_a_listen_that_was_not_granted_earlier_hears_of_no_change_now() -> None:
    rig = StatelessRig()
    assert AcknowledgeListen(ONE, R1, ("tools",), ()) in back(rig, "tools", uris=())
    assert heard(rig) == []
    assert not [each for each in rig.catalog(A, "x", features=[*FEATURES, "prompts", "prompts.listChanged"])
                if isinstance(each, SendListChanged)]  # fmt: skip


def test_a_granted_list_without_a_server_is_heard_of_once_a_server_has_it_again() -> None:
    rig = removed()
    assert AcknowledgeListen(ONE, R1, ("tools", "resources"), (FILE,)) in back(rig, "tools", "resources")
    rig.read(A, B)
    assert SendListChanged(ONE, "resources", R1) in rig.catalog(A, "x")


def test_a_subscription_whose_server_is_known_is_sent_at_once_without_an_update() -> None:
    rig = StatelessRig()
    effects = back(rig, "tools")
    assert SetResourceSubscriptions(A, [FILE]) in effects
    assert not [each for each in effects if isinstance(each, SendResourceUpdated)]
    assert not [each for each in rig.catalog(A, "x", "z") if isinstance(each, SendResourceUpdated)]


# --- places for want of a better -------------------------------------------------------------------------


def test_a_server_that_lists_a_uri_later_replaces_the_one_that_only_might_have_it() -> None:
    rig = StatelessRig()
    rig.read(B)
    back(rig)
    assert rig.feed(ResourceChanged(B, FILE, EMPTY_OBJECT)) == [
        SendResourceUpdated(ONE, FILE, EMPTY_OBJECT, R1)
    ]
    rig.read(A, B)
    effects = rig.catalog(A, "x")
    assert {SetResourceSubscriptions(A, [FILE]).key, SetResourceSubscriptions(B, []).key} <= {
        it.key for it in effects if isinstance(it, SetResourceSubscriptions)
    }
    assert heard(rig) == [R1]
    assert rig.feed(ResourceChanged(B, FILE, EMPTY_OBJECT)) == []
    assert rig.feed(ev.RequestCancelled(ONE, R1, "")) == [], "another subscription has just ended"
    assert SetResourceSubscriptions(A, []) in rig.wait(ENDS_PAUSE_S)


def test_two_spellings_of_one_resource_count_apart() -> None:
    rig = StatelessRig()
    rig.read(B)
    subscribed(rig, "carpool+b+file:///a")
    subscribed(rig)
    rig.read(A, B)
    rig.catalog(A, "x")
    rig.catalog(B, "y")
    assert heard(rig) == [b""]
    assert [each.uri for each in rig.feed(ResourceChanged(B, FILE, EMPTY_OBJECT))] == ["carpool+b+file:///a"]


# --- the end of it ---------------------------------------------------------------------------------------


def test_an_unplaced_subscription_can_be_ended() -> None:
    rig = removed()
    subscribed(rig)
    (said,) = rig.feed(ev.SubscribeRequested(ONE, RawJson(b"9"), FILE, on=False))
    assert said == Reply(ONE, RawJson(b"9"), is_error=False, body=EMPTY_OBJECT)
    rig.read(A, B)
    rig.catalog(A, "x")
    assert heard(rig) == []


def test_a_listen_that_is_cancelled_is_looked_for_no_more() -> None:
    rig = removed()
    back(rig)
    assert rig.feed(ev.RequestCancelled(ONE, R1, "")) == []
    rig.read(A, B)
    rig.catalog(A, "x")
    assert heard(rig) == []


def test_a_session_that_moves_gets_one_more_update_of_each_unplaced_subscription() -> None:
    """As of a resource that nobody serves there."""
    rig = removed()
    subscribed(rig)
    back(rig)
    said = rig.feed(ev.SessionSourceChanged(ONE, SourceId("daemon"), elsewhere=True))
    told = [each for each in said if isinstance(each, SendResourceUpdated)]
    assert told == [SendResourceUpdated(ONE, FILE, CHANGED), SendResourceUpdated(ONE, FILE, CHANGED, R1)]
    rig.read(A, B)
    rig.catalog(A, "x")
    assert heard(rig) == []


def test_an_unplaced_subscription_ends_with_its_session() -> None:
    rig = removed()
    subscribed(rig)
    back(rig)
    rig.feed(ev.SessionClosed(ONE))
    rig.read(A, B)
    assert not [each for each in rig.catalog(A, "x") if isinstance(each, SetResourceSubscriptions)]


def test_subscriptions_that_come_back_are_bounded_as_others_are() -> None:
    rig = removed()
    rig.initialize(ONE)
    for number in range(MAX_SUBSCRIPTIONS):
        uri = f"gone://{number}"
        rig.core.handle(ev.SubscribeRequested(ONE, R2, uri, on=True, granted=True), rig.now)
    (said,) = rig.feed(ev.SubscribeRequested(ONE, R2, FILE, on=True, granted=True))
    assert said.is_error


def test_a_grant_is_for_the_listen_that_comes_next_and_for_no_other() -> None:
    rig = removed()
    rig.feed(ev.ListenResumed(ONE, R1, ("tools",), (FILE,)))
    said = rig.feed(ev.ListenRequested(ONE, R2, PLAIN, ("tools",), (FILE,)))
    assert said == [AcknowledgeListen(ONE, R2, ("tools",), ())]
    rig.feed(ev.ListenResumed(ONE, R1, ("tools",), (FILE,)))
    rig.feed(ev.SessionResumed(ONE, Epoch(""), (), ()))
    said = rig.feed(ev.ListenRequested(ONE, R1, PLAIN, ("tools",), (FILE,)))
    assert said == [AcknowledgeListen(ONE, R1, ("tools",), ())]
