"""`subscriptions/listen`: what is granted, what is said on which listen, and how it ends.

Source: MCP 2026-07-28, basic/utilities/subscriptions.
"""

import json
from typing import Any

from carpool_broker.core.limits.memory_budgets import MAX_SUBSCRIPTION_BYTES
from carpool_broker.core.model import events as ev
from carpool_broker.core.model.effects import (
    AcknowledgeListen,
    ReplyStateless,
    SendListChanged,
    SendResourceUpdated,
)
from carpool_broker.core.model.events import ListNotification
from carpool_broker.core.subscriptions.listen_streams import MAX_LISTENS, MAX_URIS
from carpool_broker.core.subscriptions.subscription_table import ENDS_PAUSE_S, MAX_SUBSCRIPTIONS
from carpool_protocol.ids import EMPTY_OBJECT, Epoch, RawJson, SessionId
from carpool_protocol.link.messages import DiscoverCatalog, ResourceChanged, SetResourceSubscriptions
from carpool_protocol.wire.uri_normalization import MAX_CHARS
from tests.behaviours import behaviour
from tests.broker.stateless_rig import ONE, PLAIN, TWO, A, B, StatelessRig
from tests.kit.broker_rig import supervisor_comes

R1, R2 = RawJson(b"1"), RawJson(b"2")
FILE = "file:///a"


def listen(
    rig: StatelessRig,
    request: RawJson = R1,
    *families: ListNotification,
    uris: tuple[str, ...] = (),
    session: SessionId = ONE,
) -> list[Any]:
    return rig.feed(ev.ListenRequested(session, request, PLAIN, families, uris))


def updated(rig: StatelessRig, uri: str = FILE) -> list[Any]:
    return rig.feed(ResourceChanged(A, uri, EMPTY_OBJECT))


def error(effects: list[Any]) -> bytes:
    (reply,) = effects
    assert isinstance(reply, ReplyStateless)
    assert (reply.is_error, reply.method) == (True, "subscriptions/listen")
    return bytes(reply.body)


# --- what is granted ------------------------------------------------------------------------------------


def test_only_what_can_be_delivered_is_granted_and_that_is_said_first() -> None:
    rig = StatelessRig()
    effects = listen(rig, R1, "tools", "prompts", uris=(FILE, "nowhere:/x"))
    assert effects == [AcknowledgeListen(ONE, R1, ("tools",), (FILE,)), SetResourceSubscriptions(A, [FILE])]


def test_a_server_without_subscriptions_grants_none() -> None:
    rig = StatelessRig()
    rig.catalog(A, "x", features=["tools", "resources"])
    assert listen(rig, R1, uris=(FILE,)) == [AcknowledgeListen(ONE, R1, (), ())]


def test_listens_that_come_from_an_earlier_broker_say_that_lists_may_be_others_now() -> None:
    """What became of them while no broker was there nobody was told."""
    rig = StatelessRig(told=False)
    listen(rig, R1, "tools", "prompts")
    listen(rig, R2, "tools", uris=(FILE,))
    back = rig.feed(ev.SessionResumed(ONE, Epoch(""), (), ()))
    said = [each for each in back if isinstance(each, SendListChanged)]
    assert said == [SendListChanged(ONE, family, R1) for family in ("tools", "prompts")]
    later = [*rig.catalog(A, "x"), *rig.catalog(B, "y")]
    at = later.index(AcknowledgeListen(ONE, R2, ("tools",), (FILE,)))
    assert SendListChanged(ONE, "tools", R2) in later[at:], "once it is in force, and behind that"


def test_uris_of_servers_that_have_not_told_their_catalogs_wait_for_them() -> None:
    rig = StatelessRig(told=False)
    assert listen(rig, R1, "tools", uris=(FILE,)) == [DiscoverCatalog(A), DiscoverCatalog(B)]
    assert AcknowledgeListen(ONE, R1, ("tools",), (FILE,)) in rig.catalog(A, "x")


def test_but_not_for_ever() -> None:
    rig = StatelessRig(told=False)
    listen(rig, R1, "tools", uris=("other:/x",))
    assert rig.wait(9.0) == []
    (said,) = rig.wait(2.0)
    assert said == AcknowledgeListen(ONE, R1, ("tools",), ())


def test_a_listen_for_lists_waits_for_no_catalog() -> None:
    rig = StatelessRig(told=False)
    assert listen(rig, R1, "tools") == [AcknowledgeListen(ONE, R1, ("tools",), ())]


def test_an_id_that_is_in_use_is_refused() -> None:
    rig = StatelessRig()
    listen(rig, R1, "tools")
    assert b"duplicate_request_id" in error(listen(rig, R1, "tools"))
    (refused,) = rig.call_tool("1")
    assert b"duplicate_request_id" in refused.body


def test_there_is_a_bound_to_listens_and_to_what_one_names() -> None:
    rig = StatelessRig()
    many = tuple(f"file:///{number}" for number in range(MAX_URIS + 1))
    assert json.loads(error(listen(rig, R1, uris=many)))["code"] == -32602
    for number in range(MAX_LISTENS):
        rig.core.handle(ev.ListenRequested(ONE, RawJson(b"l%d" % number), PLAIN, (), ()), rig.now)
    assert b"too_many_calls" in error(listen(rig, R1))


def test_there_is_a_bound_to_what_all_listens_of_a_session_name() -> None:
    rig = StatelessRig()
    full = MAX_SUBSCRIPTIONS // MAX_URIS
    for number in range(full):
        many = tuple(f"other:/{number}/{uri}" for uri in range(MAX_URIS))
        rig.core.handle(ev.ListenRequested(ONE, RawJson(b"l%d" % number), PLAIN, (), many), rig.now)
    assert b"too_many_calls" in error(listen(rig, R1, uris=(FILE,)))
    assert listen(rig, R1, "tools") == [AcknowledgeListen(ONE, R1, ("tools",), ())]
    rig.feed(ev.RequestCancelled(ONE, RawJson(b"l0"), ""))
    assert SetResourceSubscriptions(A, [FILE]) in listen(rig, R2, uris=(FILE,))


@behaviour("subscriptions:bounded", "subscriptions:long-uris")
def test_what_listens_name_counts_until_they_end_whether_a_server_has_it_or_not() -> None:
    rig = StatelessRig()
    longest = "nowhere:/".ljust(MAX_CHARS, "x")
    assert b"4096 characters at most" in error(listen(rig, R1, uris=(f"{longest}x",)))
    many = tuple(f"nowhere:/{uri}".ljust(MAX_CHARS, "x") for uri in range(MAX_URIS))
    count = 0
    while isinstance((said := listen(rig, RawJson(b"l%d" % count), uris=many))[0], AcknowledgeListen):
        count += 1
    assert b"End subscriptions" in error(said)
    assert 1 <= count * MAX_URIS * MAX_CHARS <= MAX_SUBSCRIPTION_BYTES // 2
    rig.core.check()
    rig.feed(ev.RequestCancelled(ONE, RawJson(b"l0"), ""))
    assert isinstance(listen(rig, R1, uris=many)[0], AcknowledgeListen)
    rig.feed(ev.SessionClosed(ONE))
    assert rig.core.requests.subscription_budget.use.total_bytes == 0
    rig.core.check()


def test_a_resource_that_a_session_already_watches_is_not_subscribed_again_at_the_server() -> None:
    rig = StatelessRig()
    listen(rig, R1, uris=(FILE,))
    assert listen(rig, R2, uris=(FILE,)) == [AcknowledgeListen(ONE, R2, (), (FILE,))]
    assert rig.feed(ev.RequestCancelled(ONE, R1, "")) == []
    assert rig.feed(ev.RequestCancelled(ONE, R2, "")) == [SetResourceSubscriptions(A, [])]


# --- what is said ---------------------------------------------------------------------------------------


def test_every_change_of_a_list_is_said_on_every_listen_for_it_and_on_no_other() -> None:
    rig = StatelessRig()
    rig.come(TWO)
    listen(rig, R1, "tools")
    listen(rig, R2, "resources")
    listen(rig, R1, "tools", session=TWO)
    expected = [SendListChanged(ONE, "tools", R1), SendListChanged(TWO, "tools", R1)]
    assert rig.catalog(A, "x", "z") == expected
    assert rig.catalog(A, "x") == expected
    assert rig.catalog(A, "x") == []


def test_an_update_is_said_on_each_listen_that_has_the_resource_or_what_it_is_a_part_of() -> None:
    rig = StatelessRig()
    rig.catalog(A, "x")
    listen(rig, R1, uris=(FILE,))
    listen(rig, R2, "tools")
    assert updated(rig) == [SendResourceUpdated(ONE, FILE, EMPTY_OBJECT, R1)]
    assert updated(rig, f"{FILE}/part") == [SendResourceUpdated(ONE, f"{FILE}/part", EMPTY_OBJECT, R1)]
    assert updated(rig, "file:///b") == []


def test_listens_and_a_subscription_of_one_session_count_apart() -> None:
    rig = StatelessRig()
    rig.initialize(ONE)
    rig.feed(ev.SubscribeRequested(ONE, RawJson(b"7"), FILE, on=True))
    listen(rig, R1, uris=(FILE,))
    listen(rig, R2, uris=(FILE,))
    assert {each.listen for each in updated(rig)} == {b"", R1, R2}
    assert rig.feed(ev.RequestCancelled(ONE, R1, "")) == []
    assert {each.listen for each in updated(rig)} == {b"", R2}
    rig.feed(ev.SubscribeRequested(ONE, RawJson(b"8"), FILE, on=False))
    assert updated(rig) == [SendResourceUpdated(ONE, FILE, EMPTY_OBJECT, R2)]
    assert rig.feed(ev.RequestCancelled(ONE, R2, "")) == [SetResourceSubscriptions(A, [])]


# --- how it ends ----------------------------------------------------------------------------------------


def test_a_cancelled_listen_gets_no_answer_and_hears_nothing_more() -> None:
    rig = StatelessRig()
    listen(rig, R1, "tools", uris=(FILE,))
    assert rig.feed(ev.RequestCancelled(ONE, R1, "")) == [SetResourceSubscriptions(A, [])]
    assert rig.catalog(A, "x", "z") == []
    assert updated(rig) == []
    assert listen(rig, R1) == [AcknowledgeListen(ONE, R1, (), ())], "its id is free"


def test_a_waiting_listen_can_be_cancelled_too() -> None:
    rig = StatelessRig(told=False)
    listen(rig, R1, uris=(FILE,))
    assert rig.feed(ev.RequestCancelled(ONE, R1, "")) == []
    assert rig.wait(20.0) == []


def test_listens_end_with_their_session_and_outlive_a_supervisor() -> None:
    rig = StatelessRig()
    listen(rig, R1, "tools", uris=(FILE,))
    rig.feed(ev.SupervisorLost())
    assert SetResourceSubscriptions(A, [FILE]) in supervisor_comes(rig.feed)
    assert SetResourceSubscriptions(A, []) in rig.feed(ev.SessionClosed(ONE))
    rig.wait(ENDS_PAUSE_S)
    assert rig.core.next_deadline() is None


def test_a_listen_that_waits_ends_with_its_session() -> None:
    rig = StatelessRig(told=False)
    listen(rig, R1, uris=(FILE,))
    rig.feed(ev.SessionClosed(ONE))
    assert rig.core.next_deadline() is None
