"""Levels and subscriptions: what the supervisor is told, and who hears of what."""

from itertools import chain

from carpool_broker.core.model.scope import Scope, ScopeEntry
from carpool_broker.core.subscriptions.subscription_table import (
    MAX_SUBSCRIPTIONS,
    SubscriptionTable,
)
from carpool_protocol.ids import ABSENT, PoolKey, RawJson, ServerName, SessionId
from carpool_protocol.link.messages import ChangeResourceSubscriptions, SetLevel, SetResourceSubscriptions
from carpool_protocol.wire.uri_normalization import MAX_CHARS
from tests.behaviours import behaviour
from tests.kit.bytecodes import count_bytecodes

A, B = SessionId("a"), SessionId("b")
FS, WEB = ServerName("fs"), ServerName("web")
FS_KEY, WEB_KEY, NEW_FS = PoolKey("fs:1"), PoolKey("web:1"), PoolKey("fs:2")


def scope(**keys: PoolKey) -> Scope:
    return Scope(tuple(ScopeEntry(server=ServerName(name), key=key) for name, key in keys.items()))


class Two:
    """Two sessions: `a` sees both servers, `b` only the file system."""

    def __init__(self) -> None:
        self.scopes = {A: scope(fs=FS_KEY, web=WEB_KEY), B: scope(fs=FS_KEY)}
        self.counted = dict.fromkeys(self.scopes, 0)
        self.interests = SubscriptionTable(self.scopes.__getitem__, lambda *_: True, self.count, str)

    def count(self, session: SessionId, size_bytes: int) -> None:
        self.counted[session] += size_bytes

    def told(self, key: PoolKey, uri: str) -> list[tuple[SessionId, RawJson, str, str]]:
        """Who is told of a change: session, holder, what that is subscribed to and how it was spelled."""
        subscribed = self.interests.subscribed(key, uri)
        owners = dict.fromkeys(owner for each in subscribed for owner in self.interests.owners(each))
        of_all = dict(self.interests.subscribers(key, uri, subscribed))
        by_owner = [self.interests.subscribers(key, uri, subscribed, owner) for owner in owners]
        assert of_all == dict(chain.from_iterable(by_owner))
        return [(session, holder, *of) for session, held in of_all.items() for holder, of in held.items()]

    def news(self) -> list[SetLevel | SetResourceSubscriptions | ChangeResourceSubscriptions]:
        return list(self.interests.take_changes())


@behaviour("logging:level-per-session")
def test_a_pool_gets_the_most_verbose_level_that_anybody_who_sees_it_wants() -> None:
    two = Two()
    assert two.interests.set_level(A, "warning")
    assert two.news() == [SetLevel(FS_KEY, "warning"), SetLevel(WEB_KEY, "warning")]
    assert two.interests.set_level(B, "debug")
    assert two.news() == [SetLevel(FS_KEY, "debug")]
    two.interests.session_closed(B)
    assert two.news() == [SetLevel(FS_KEY, "warning")]
    two.interests.session_closed(A)
    assert two.news() == [SetLevel(FS_KEY, ""), SetLevel(WEB_KEY, "")]


def test_levels_and_subscriptions_are_sent_once_and_again_to_a_new_supervisor() -> None:
    two = Two()
    two.interests.set_level(B, "info")
    two.interests.subscribe(B, FS, "file:///x", "file:///x")
    first = two.news()
    assert first == [SetLevel(FS_KEY, "info"), SetResourceSubscriptions(FS_KEY, ["file:///x"])]
    assert two.news() == []
    two.interests.mark_unsent(lambda _: True)
    assert two.news() == first


@behaviour("subscriptions:price-of-a-change")
def test_the_work_of_another_level_does_not_grow_with_the_levels_of_other_sessions() -> None:
    def price(others: int) -> int:
        two = Two()
        for number in range(others):
            session = SessionId(f"other{number}")
            two.scopes[session] = two.scopes[B]
            two.interests.set_level(session, "info")
        two.news()

        def change() -> None:
            for level in ("debug", "error"):
                two.interests.set_level(A, level)
                two.news()
            two.interests.session_closed(A)
            two.news()

        return count_bytecodes(change)

    price(1)  # the second time caches of the process are warm
    assert price(500) == price(1)


def test_a_level_goes_along_when_a_pool_is_replaced() -> None:
    two = Two()
    two.interests.set_level(B, "info")
    two.news()
    two.scopes[B] = scope(fs=NEW_FS)
    two.interests.scopes_changed()
    assert two.news() == [SetLevel(FS_KEY, ""), SetLevel(NEW_FS, "info")]
    two.interests.check(two.scopes)


def test_an_unknown_log_level_changes_nothing() -> None:
    two = Two()
    two.interests.set_level(A, "error")
    assert not two.interests.set_level(A, "loud")
    assert two.interests.wants_log(A, "error")
    assert not two.interests.wants_log(A, "warning")


@behaviour("logging:level-per-session")
def test_a_session_gets_messages_of_its_level_and_above_and_those_of_unknown_levels() -> None:
    two = Two()
    two.interests.set_level(A, "notice")
    wanted = [
        level
        for level in ("debug", "info", "notice", "emergency", "odd")
        if two.interests.wants_log(A, level)
    ]
    assert wanted == ["notice", "emergency", "odd"]
    assert not two.interests.wants_log(B, "emergency")


@behaviour("subscriptions:counted")
def test_subscriptions_of_many_sessions_are_one_union_and_end_with_the_last() -> None:
    two = Two()
    for session in (A, B):
        two.interests.subscribe(session, FS, "file:///x", "file:///x")
    two.interests.subscribe(A, FS, "file:///a", "file:///a")
    assert two.news() == [SetResourceSubscriptions(FS_KEY, ["file:///a", "file:///x"])]
    two.interests.unsubscribe(A, FS, "file:///x")
    assert two.news() == []
    two.interests.session_closed(B)
    assert two.news() == [ChangeResourceSubscriptions(FS_KEY, [], ["file:///x"])]
    two.interests.unsubscribe(A, FS, "file:///never")
    assert two.news() == []


@behaviour("subscriptions:subscribers-only")
def test_only_subscribers_hear_of_a_change_each_in_its_own_spelling() -> None:
    two = Two()
    two.interests.subscribe(A, FS, "file:///x", "carpool+fs+file:///x")
    two.interests.subscribe(B, FS, "file:///y", "file:///y")
    assert two.told(FS_KEY, "file:///x") == [(A, ABSENT, "file:///x", "carpool+fs+file:///x")]
    assert two.told(WEB_KEY, "file:///x") == []


@behaviour("subscriptions:subscribers-only")
def test_a_subscriber_of_a_directory_hears_of_its_files_and_not_of_its_neighbours() -> None:
    two = Two()
    two.interests.subscribe(A, FS, "file:///dir", "file:///dir")
    assert two.told(FS_KEY, "file:///dir/file") == [(A, ABSENT, "file:///dir", "file:///dir")]
    assert two.told(FS_KEY, "file:///dirt/file") == []


def test_a_subscription_goes_along_when_its_servers_pool_is_replaced() -> None:
    two = Two()
    two.interests.subscribe(B, FS, "file:///x", "file:///x")
    two.news()
    two.scopes[B] = scope(fs=NEW_FS)
    two.interests.scopes_changed()
    assert two.news() == [
        SetResourceSubscriptions(FS_KEY, []),
        SetResourceSubscriptions(NEW_FS, ["file:///x"]),
    ]
    assert two.told(NEW_FS, "file:///x") == [(B, ABSENT, "file:///x", "file:///x")]
    assert two.told(FS_KEY, "file:///x") == []


def subscribed(count: int) -> Two:
    """The file system has so many subscriptions of `a`, and the supervisor knows of them."""
    two = Two()
    for number in range(count):
        two.interests.subscribe(A, FS, f"file:///{number}", f"file:///{number}")
    two.news()
    return two


@behaviour("subscriptions:price-of-a-change")
def test_a_change_is_sent_without_the_subscriptions_that_stay() -> None:
    two = subscribed(1000)
    two.interests.subscribe(B, FS, "file:///new", "file:///new")
    two.interests.unsubscribe(A, FS, "file:///7")
    assert two.news() == [ChangeResourceSubscriptions(FS_KEY, ["file:///new"], ["file:///7"])]
    two.interests.session_closed(A)
    (gone,) = two.news()
    assert isinstance(gone, ChangeResourceSubscriptions)
    assert (gone.add, len(gone.drop)) == ([], 999)
    two.interests.session_closed(B)
    assert two.news() == [SetResourceSubscriptions(FS_KEY, [])]


@behaviour("subscriptions:price-of-a-change")
def test_the_work_of_a_change_does_not_grow_with_the_subscriptions_that_stay() -> None:
    def price(two: Two) -> int:
        def change() -> None:
            two.interests.subscribe(B, FS, "file:///new", "file:///new")
            two.news()
            two.interests.session_closed(B)
            two.news()

        return count_bytecodes(change)

    few, many = subscribed(10), subscribed(5000)
    price(few)  # the second time caches of the process are warm
    assert price(many) == price(few)


@behaviour("subscriptions:price-of-a-change")
def test_the_work_of_a_change_does_not_grow_with_those_who_subscribe_to_the_same_resource() -> None:
    def price(others: int) -> int:
        two = subscribed(1)
        for number in range(others):
            session = SessionId(f"other{number}")
            two.scopes[session], two.counted[session] = two.scopes[A], 0
            two.interests.subscribe(session, FS, "file:///0", "")
        two.news()

        def change() -> None:
            two.interests.subscribe(B, FS, "file:///0", "file:///0")
            two.news()
            two.interests.unsubscribe(B, FS, "file:///0")
            two.news()

        return count_bytecodes(change)

    price(1)  # the second time caches of the process are warm
    assert price(500) == price(1)


def test_a_resource_of_two_pools_leaves_the_one_that_nobody_sees_any_more() -> None:
    two = Two()
    two.scopes[B] = scope(fs=NEW_FS)
    two.interests.subscribe(A, FS, "file:///x", "file:///x")
    two.interests.subscribe(B, FS, "file:///x", "file:///x")
    assert len(two.news()) == 2
    two.interests.session_closed(A)
    assert two.news() == [SetResourceSubscriptions(FS_KEY, [])]
    two.interests.subscribe(A, FS, "file:///x", "file:///x")
    two.interests.unsubscribe(B, FS, "file:///x")
    assert two.news() == [
        SetResourceSubscriptions(FS_KEY, ["file:///x"]),
        SetResourceSubscriptions(NEW_FS, []),
    ]


def test_a_session_that_wanted_nothing_ends_without_a_look_at_what_others_want() -> None:
    two = subscribed(10)
    two.interests.session_closed(B)
    assert not two.interests.is_stale


def test_a_pool_that_is_wanted_again_is_told_everything() -> None:
    two = subscribed(2)
    two.interests.mark_unsent(lambda key: key == FS_KEY)
    two.interests.subscribe(B, FS, "file:///new", "file:///new")
    assert two.news() == [SetResourceSubscriptions(FS_KEY, ["file:///0", "file:///1", "file:///new"])]


@behaviour("subscriptions:bounded")
def test_the_bytes_of_a_subscription_count_from_its_begin_to_its_end() -> None:
    two = subscribed(0)
    two.interests.subscribe(A, FS, "file:///x", "file:///x")
    once = two.counted[A]
    assert once > len("file:///x")
    two.interests.subscribe(A, FS, "file:///x", "carpool+fs+file:///x")
    assert two.counted[A] == two.interests.own_bytes(A) == once + len("carpool+fs+"), "as it is spelled now"
    two.interests.subscribe(A, FS, "file:///x", "file:///x", RawJson(b"1"))
    assert two.counted[A] == once + len("carpool+fs+"), "that of a listen counts with the listen"
    for _ in range(2):
        two.interests.unsubscribe(A, FS, "file:///x")
        assert two.counted[A] == 0


@behaviour("subscriptions:price-of-a-change")
def test_an_update_costs_nothing_for_sessions_that_are_not_subscribed() -> None:
    def price(others: int) -> int:
        two = subscribed(1)
        for number in range(others):
            session = SessionId(f"other{number}")
            two.scopes[session], two.counted[session] = two.scopes[B], 0
            two.interests.subscribe(session, FS, f"file:///of/{number}", "")
        return count_bytecodes(lambda: two.told(FS_KEY, "file:///0"))

    price(1)
    assert price(500) == price(1)


@behaviour("subscriptions:long-uris")
def test_of_an_update_with_an_overlong_uri_nobody_hears() -> None:
    two = Two()
    two.interests.subscribe(A, FS, "file:///dir", "file:///dir")
    longest = "file:///dir/".ljust(MAX_CHARS, "x")
    assert [session for session, *_ in two.told(FS_KEY, longest)] == [A]
    assert two.told(FS_KEY, f"{longest}x") == []


def test_a_session_may_subscribe_to_so_many_resources_and_no_more() -> None:
    two = Two()
    for number in range(MAX_SUBSCRIPTIONS):
        assert two.interests.has_room(A)
        two.interests.subscribe(A, FS, f"file:///{number}", "")
    assert not two.interests.has_room(A)
    assert two.interests.has_room(B)
    two.interests.unsubscribe(A, FS, "file:///0")
    assert two.interests.has_room(A)
