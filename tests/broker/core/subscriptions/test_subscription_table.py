"""Levels and subscriptions: what the supervisor is told, and who hears of what."""

from carpool_broker.core.model.scope import Scope, ScopeEntry
from carpool_broker.core.subscriptions.subscription_table import MAX_SUBSCRIPTIONS, SubscriptionTable
from carpool_protocol.ids import ABSENT, PoolKey, ServerName, SessionId
from carpool_protocol.link.messages import SetLevel, SetResourceSubscriptions
from tests.behaviours import behaviour

A, B = SessionId("a"), SessionId("b")
FS, WEB = ServerName("fs"), ServerName("web")
FS_KEY, WEB_KEY, NEW_FS = PoolKey("fs:1"), PoolKey("web:1"), PoolKey("fs:2")


def scope(**keys: PoolKey) -> Scope:
    return Scope(tuple(ScopeEntry(server=ServerName(name), key=key) for name, key in keys.items()))


class Two:
    """Two sessions: `a` sees both servers, `b` only the file system."""

    def __init__(self) -> None:
        self.scopes = {A: scope(fs=FS_KEY, web=WEB_KEY), B: scope(fs=FS_KEY)}
        self.interests = SubscriptionTable(lambda session: self.scopes[session], lambda *_: True)

    def news(self) -> list[SetLevel | SetResourceSubscriptions]:
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
    assert two.news() == [SetResourceSubscriptions(FS_KEY, ["file:///a"])]
    two.interests.unsubscribe(A, FS, "file:///never")
    assert two.news() == []


@behaviour("subscriptions:subscribers-only")
def test_only_subscribers_hear_of_a_change_each_in_its_own_spelling() -> None:
    two = Two()
    two.interests.subscribe(A, FS, "file:///x", "carpool+fs+file:///x")
    two.interests.subscribe(B, FS, "file:///y", "file:///y")
    assert list(two.interests.subscribers(FS_KEY, "file:///x")) == [(A, ABSENT, "carpool+fs+file:///x", True)]
    assert list(two.interests.subscribers(WEB_KEY, "file:///x")) == []


@behaviour("subscriptions:subscribers-only")
def test_a_subscriber_of_a_directory_hears_of_its_files_and_not_of_its_neighbours() -> None:
    two = Two()
    two.interests.subscribe(A, FS, "file:///dir", "file:///dir")
    assert list(two.interests.subscribers(FS_KEY, "file:///dir/file")) == [
        (A, ABSENT, "file:///dir/file", False)
    ]
    assert list(two.interests.subscribers(FS_KEY, "file:///dirt/file")) == []


def test_a_subscription_goes_along_when_its_servers_pool_is_replaced() -> None:
    two = Two()
    two.interests.subscribe(B, FS, "file:///x", "file:///x")
    two.news()
    two.scopes[B] = scope(fs=NEW_FS)
    assert two.news() == [
        SetResourceSubscriptions(FS_KEY, []),
        SetResourceSubscriptions(NEW_FS, ["file:///x"]),
    ]
    assert list(two.interests.subscribers(NEW_FS, "file:///x")) == [(B, ABSENT, "file:///x", True)]


def test_a_session_may_subscribe_to_so_many_resources_and_no_more() -> None:
    two = Two()
    for number in range(MAX_SUBSCRIPTIONS):
        assert two.interests.has_room(A)
        two.interests.subscribe(A, FS, f"file:///{number}", "")
    assert not two.interests.has_room(A)
    assert two.interests.has_room(B)
    two.interests.unsubscribe(A, FS, "file:///0")
    assert two.interests.has_room(A)
