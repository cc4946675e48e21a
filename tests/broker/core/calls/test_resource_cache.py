"""Resources that are current still: who is given one, and until when."""

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from carpool_broker.core.calls.resource_cache import MAX_CHANGES, MAX_TTL_MS, CachedRead, ResourceCache
from carpool_protocol.ids import PoolKey, RawJson, SessionId
from carpool_protocol.wire.uri_normalization import MAX_CHARS
from tests.behaviours import behaviour

KEY, OTHER = PoolKey("a:1"), PoolKey("b:1")
ANN, BERT = SessionId("ann"), SessionId("bert")
BODY = RawJson(b'{"contents":[]}')


def keep(
    fresh: ResourceCache, uri: str = "x:1", session: SessionId = ANN, key: PoolKey = KEY, **more: Any
) -> None:
    now = more.pop("now", 0.0)
    body = more.pop("body", BODY)
    fresh.store(
        key,
        uri,
        session,
        body,
        now,
        **{"ttl_ms": 1000, "public": False, "since": fresh.change_count, **more},
    )
    fresh.check()


@behaviour("eras:hints")
def test_a_private_answer_is_given_to_its_own_session_while_it_is_current() -> None:
    fresh = ResourceCache()
    keep(fresh)
    assert fresh.find(KEY, "x:1", ANN, 0.25) == CachedRead(BODY, 750, public=False)
    assert fresh.find(KEY, "x:1", BERT, 0.25) is None
    assert fresh.find(KEY, "x:2", ANN, 0.25) is None
    assert fresh.find(OTHER, "x:1", ANN, 0.25) is None
    assert fresh.find(KEY, "x:1", ANN, 1.0) is None
    assert len(fresh) == 0
    fresh.check()


@behaviour("subscriptions:long-uris")
def test_a_result_for_an_overlong_uri_is_not_kept() -> None:
    fresh = ResourceCache()
    longest = "x:".ljust(MAX_CHARS, "y")
    keep(fresh, longest)
    keep(fresh, f"{longest}y")
    assert len(fresh) == 1
    assert fresh.find(KEY, longest, ANN, 0.5) is not None


@behaviour("eras:hints")
def test_a_public_answer_is_given_to_all_agents_and_a_later_private_one_replaces_it() -> None:
    fresh = ResourceCache()
    keep(fresh, public=True)
    assert fresh.find(KEY, "x:1", BERT, 0.5) == CachedRead(BODY, 500, public=True)
    keep(fresh, public=False, now=0.5)
    assert fresh.find(KEY, "x:1", BERT, 0.6) is None
    assert fresh.find(KEY, "x:1", ANN, 0.6) is not None


@behaviour("eras:hints")
@pytest.mark.parametrize(
    ("key", "updated", "stays"),
    [
        (KEY, "x:1", False),
        (KEY, "x:1/part", False),
        (KEY, "x:2", True),
        (OTHER, "x:1", True),
        (KEY, "", False),
    ],
)
def test_an_answer_that_a_change_has_overtaken_is_not_kept(key: PoolKey, updated: str, stays: bool) -> None:
    """Its server may have read the resource before it changed it, and said so first."""
    fresh = ResourceCache()
    keep(fresh, body=RawJson(b"old"))
    since = fresh.change_count
    if updated:
        fresh.resource_changed(key, updated)
    else:
        fresh.forget_pool(key)
    keep(fresh, since=since)
    assert (fresh.find(KEY, "x:1", ANN, 0.0) is not None) == stays
    keep(fresh)
    assert fresh.find(KEY, "x:1", ANN, 0.0) is not None, "what is asked for after that is current"


def test_an_answer_is_not_kept_where_it_is_not_known_what_has_changed_since_it_was_asked_for() -> None:
    fresh = ResourceCache()
    keep(fresh, since=-1)
    since = fresh.change_count
    for number in range(MAX_CHANGES):
        fresh.resource_changed(KEY, f"y:{number}")
    keep(fresh, "x:2", since=since)
    fresh.resource_changed(KEY, "y:last")
    keep(fresh, "x:3", since=since)
    found = [fresh.find(KEY, f"x:{number}", ANN, 0.0) is not None for number in (1, 2, 3)]
    assert found == [False, True, False]


@pytest.mark.parametrize("ttl_ms", [-1, 0])
def test_an_answer_without_a_time_is_not_kept_and_makes_the_one_before_it_old(ttl_ms: int) -> None:
    fresh = ResourceCache()
    keep(fresh)
    keep(fresh, ttl_ms=ttl_ms)
    assert fresh.find(KEY, "x:1", ANN, 0.0) is None


def test_a_cached_answer_expires_after_the_longest_ttl() -> None:
    fresh = ResourceCache()
    keep(fresh, ttl_ms=10**15 - 1)
    assert fresh.find(KEY, "x:1", ANN, MAX_TTL_MS / 1000 + 1) is None


@behaviour("eras:hints")
@pytest.mark.parametrize(
    ("uri", "updated", "stays"),
    [
        ("file:///a/b", "file:///a/b", False),
        ("file:///a/b", "file:///a", False),
        ("file:///a", "file:///a/b", False),
        ("file:///a/", "file:///a", False),
        ("x:1?page=2", "x:1", False),
        ("file:///ab", "file:///a", True),
        ("x:2", "x:1", True),
    ],
)
def test_a_change_makes_a_resource_old_and_what_it_is_a_part_of(uri: str, updated: str, stays: bool) -> None:
    fresh = ResourceCache()
    keep(fresh, uri)
    keep(fresh, uri, key=OTHER)
    fresh.resource_changed(KEY, updated)
    fresh.check()
    assert (fresh.find(KEY, uri, ANN, 0.0) is not None) == stays
    assert fresh.find(OTHER, uri, ANN, 0.0) is not None, "of another server"


def test_a_pool_that_changed_and_a_session_that_is_gone_leave_nothing() -> None:
    fresh = ResourceCache()
    keep(fresh)
    keep(fresh, "x:2", BERT)
    keep(fresh, "x:1", key=OTHER)
    fresh.session_closed(BERT)
    assert len(fresh) == 2
    fresh.forget_pool(KEY)
    assert len(fresh) == 1
    fresh.check()


def test_the_least_recently_used_go_first_and_what_is_too_large_is_not_kept() -> None:
    fresh = ResourceCache(max_bytes=100, max_entries=3)
    for uri in ("x:1", "x:2", "x:3"):
        keep(fresh, uri, body=RawJson(b" " * 20))
    fresh.find(KEY, "x:1", ANN, 0.0)
    keep(fresh, "x:4", body=RawJson(b" " * 20))
    assert fresh.find(KEY, "x:2", ANN, 0.0) is None
    keep(fresh, "x:5", body=RawJson(b" " * 80))
    assert {uri for uri in ("x:1", "x:3", "x:4", "x:5") if fresh.find(KEY, uri, ANN, 0.0)} >= {"x:5"}
    keep(fresh, "x:6", body=RawJson(b" " * 101))
    assert fresh.find(KEY, "x:6", ANN, 0.0) is None


SESSIONS = st.sampled_from([ANN, BERT])
URIS = st.sampled_from(["x:1", "x:1/2", "x:3"])


class FreshMachine(RuleBasedStateMachine):
    """Against a plain list of everything that was ever said."""

    def __init__(self) -> None:
        super().__init__()
        self.fresh = ResourceCache(max_bytes=60, max_entries=3)
        self.now = 0.0
        self.said: dict[tuple[str, SessionId | None], tuple[bytes, float]] = {}
        self.asked: list[tuple[int, set[str]]] = []
        """Moments in which something was asked for, and what has changed since."""

    @rule()
    def ask(self) -> None:
        self.asked.append((self.fresh.change_count, set()))

    @precondition(lambda self: self.asked)
    @rule(
        uri=URIS,
        session=SESSIONS,
        ttl_ms=st.integers(-1, 3000),
        public=st.booleans(),
        size=st.integers(1, 70),
        pick=st.integers(0, 9),
    )
    def keep(self, uri: str, session: SessionId, ttl_ms: int, public: bool, size: int, *, pick: int) -> None:
        body = RawJson(b"x" * size)
        since, changed = self.asked[-1 - pick % len(self.asked)]
        self.fresh.store(KEY, uri, session, body, self.now, ttl_ms=ttl_ms, public=public, since=since)
        self.said.pop((uri, session), None)
        self.said.pop((uri, None), None)
        if ttl_ms > 0 and uri not in changed:
            self.said[uri, None if public else session] = (body, self.now + ttl_ms / 1000)

    @rule(uri=URIS, session=SESSIONS)
    def find(self, uri: str, session: SessionId) -> None:
        found = self.fresh.find(KEY, uri, session, self.now)
        if found is not None:
            body, until = self.said[uri, None if found.public else session]
            assert found.body == body
            assert 1 <= found.ttl_ms <= (until - self.now) * 1000 + 1e-6

    @rule(uri=URIS)
    def changed(self, uri: str) -> None:
        self.fresh.resource_changed(KEY, uri)
        for _, changed in self.asked:
            changed.add(uri)
        for each in [each for each in self.said if each[0] == uri]:
            del self.said[each]

    @rule(duration_s=st.floats(0, 2))
    def wait(self, duration_s: float) -> None:
        self.now += duration_s

    @invariant()
    def holds(self) -> None:
        self.fresh.check()


FreshMachine.TestCase.settings = settings(max_examples=100, deadline=None)
TestFreshMachine = FreshMachine.TestCase
