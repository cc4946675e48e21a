"""Agents of the stateless era: lists, discovery and plain calls. Source: MCP 2026-07-28."""

import json
from typing import Any

import pytest
from msgspec.structs import replace

from carpool_broker.core.limits.memory_budgets import UNREAD_STEP_BYTES
from carpool_broker.core.model import events as ev
from carpool_broker.core.model.capabilities import Capabilities, StatelessAgent
from carpool_broker.core.model.effects import (
    AnswerDiscover,
    AnswerInitialize,
    Reply,
    ReplyStateless,
    SendListChanged,
    SendLog,
)
from carpool_broker.core.model.events import SourceId
from carpool_broker.core.requests.list_freshness import HANDSHAKE_TTL_MS
from carpool_protocol.ids import EMPTY_OBJECT, PoolKey, RawJson, SessionId
from carpool_protocol.link.messages import (
    Call,
    CallAnswered,
    CallFailed,
    CallProgressed,
    CancelCall,
    Catalog,
    DiscoverCatalog,
    LogForSession,
    ResourceChanged,
    SessionEnded,
    SessionPoolChanged,
    SetLevel,
    SetPools,
)
from tests.behaviours import behaviour
from tests.broker.stateless_rig import ASKING, FEATURES, ONE, PLAIN, RESULT, TWO, A, B, StatelessRig

R1, R2 = RawJson(b"1"), RawJson(b"2")


def only(effects: list[Any], kind: type) -> Any:
    found = [effect for effect in effects if isinstance(effect, kind)]
    assert len(found) == 1, effects
    return found[0]


def lists(rig: StatelessRig, request: RawJson = R1, **more: Any) -> list[Any]:
    return rig.feed(ev.ListPageRequested(ONE, request, more.pop("cursor", None), by=PLAIN, **more))


def code_of(reply: ReplyStateless) -> int:
    assert reply.is_error
    return int(json.loads(reply.body)["code"])


# --- no greeting is needed ------------------------------------------------------------------------------


def test_a_request_that_says_who_it_is_needs_no_greeting() -> None:
    rig = StatelessRig()
    call = rig.call("1", by=ASKING)
    assert (call.method, call.target, call.session) == ("tools/call", "x", ONE)
    assert rig.core.sessions[ONE].agent == "able"
    answer = rig.feed(CallAnswered(call.call, is_error=False, body=RESULT))
    assert answer == [
        ReplyStateless(ONE, R1, is_error=False, body=RESULT, method="tools/call", call=call.call)
    ]


def test_a_request_without_it_still_needs_one() -> None:
    rig = StatelessRig()
    rig.call_tool("1")
    (refused,) = rig.feed(ev.ListPageRequested(ONE, R2, None))
    assert isinstance(refused, Reply)
    assert b"not_initialized" in bytes(refused.body)


def test_an_agent_that_used_the_stateless_era_gets_no_initialize_and_is_told_the_versions() -> None:
    rig = StatelessRig()
    lists(rig)
    (refused,) = rig.initialize(ONE)
    assert isinstance(refused, ReplyStateless)
    error = json.loads(refused.body)
    assert error["code"] == -32022
    assert error["data"] == {"supported": ["2026-07-28"], "requested": "2025-11-25"}


def test_an_agent_that_only_sent_discover_may_still_initialize() -> None:
    rig = StatelessRig()
    rig.feed(ev.DiscoverRequested(ONE, R1, PLAIN))
    assert isinstance(only(rig.initialize(ONE), AnswerInitialize), AnswerInitialize)


def test_a_connection_that_was_greeted_may_speak_both_eras() -> None:
    rig = StatelessRig()
    rig.initialize(ONE)
    assert only(lists(rig), ReplyStateless).method == "tools/list"
    (old,) = rig.feed(ev.ListPageRequested(ONE, R1, None))
    assert isinstance(old, Reply)
    assert not rig.core.sessions[ONE].stateless


def test_the_first_request_that_can_be_asked_moves_its_session_to_that_class() -> None:
    rig = StatelessRig()
    rig.call("1", by=PLAIN)
    assert not rig.core.sessions[ONE].asking
    rig.call("2", by=ASKING)
    assert rig.core.sessions[ONE].asking
    rig.call("3", by=PLAIN)
    assert rig.core.sessions[ONE].asking


# --- calls ----------------------------------------------------------------------------------------------


def test_every_call_says_what_its_own_agent_can_be_asked_and_which_log_messages_it_wants() -> None:
    rig = StatelessRig()
    call = rig.call("1", by=StatelessAgent(Capabilities(sampling=True, url=True, roots=True), level="info"))
    assert call.can == ["sampling", "elicitation.url", "roots"]
    assert call.log_level == "info"
    assert rig.call("2", by=PLAIN).can == []


def test_agents_that_share_a_session_are_not_one_to_the_supervisor() -> None:
    rig = StatelessRig()
    rig.come(TWO, shared=True)
    one, other = (rig.call(request, session=TWO) for request in ("1", "2"))
    assert len({one.session, other.session, TWO}) == 3


def test_an_instance_for_one_call_of_a_shared_session_is_free_after_it() -> None:
    rig = StatelessRig()
    rig.come(TWO, shared=True, anonymous=True)
    call = rig.call("1", session=TWO)
    rig.mode(A, "session")  # its mode becomes known only now
    assert SessionEnded(call.session) in rig.feed(CallAnswered(call.call, is_error=False, body=RESULT))


def test_a_principal_with_a_name_holds_instances_as_a_session_does() -> None:
    rig = StatelessRig()
    rig.mode(A, "session")
    rig.come(TWO, shared=True)
    assert rig.call("1", session=TWO).session == TWO


def test_an_anonymous_session_gets_no_instance_of_its_own() -> None:
    rig = StatelessRig()
    rig.mode(A, "session")
    rig.come(TWO, shared=True, anonymous=True)
    (refused,) = rig.call_tool("1", session=TWO)
    assert b"needs_session" in refused.body
    assert rig.call("2", "b__y", session=TWO).key == B


@pytest.mark.parametrize(
    ("method", "name", "uri"),
    [("tools/call", "a__x", ""), ("resources/read", "file:///a", "file:///a")],
)
def test_failures_are_answered_in_the_stateless_form_too(method: str, name: str, uri: str) -> None:
    rig = StatelessRig()
    call = rig.call("1", name, method=method)
    (reply,) = rig.feed(CallFailed(call.call, "timed_out", "maybe", "Too slow."))
    assert isinstance(reply, ReplyStateless)
    assert (reply.method, reply.uri, reply.is_error) == (method, uri, method != "tools/call")


def test_only_a_resource_may_be_cached_and_only_for_its_servers_ttl() -> None:
    rig = StatelessRig()
    read = rig.call("1", "file:///a", method="resources/read").call
    (reply,) = rig.feed(CallAnswered(read, is_error=False, body=RESULT, ttl_ms=700, public=True))
    assert (reply.ttl_ms, reply.public) == (700, True)
    called = rig.call("2").call
    (reply,) = rig.feed(CallAnswered(called, is_error=False, body=RESULT, ttl_ms=700, public=True))
    assert (reply.ttl_ms, reply.public) == (0, False)


def test_an_id_that_is_in_use_is_refused_and_the_first_request_goes_on() -> None:
    rig = StatelessRig()
    call = rig.call("1")
    (refused,) = rig.call_tool("1")
    assert isinstance(refused, ReplyStateless)
    assert b"duplicate_request_id" in bytes(refused.body)
    (reply,) = rig.feed(CallAnswered(call.call, is_error=False, body=RESULT))
    assert reply.body == RESULT


def test_progress_names_its_request_and_a_cancelled_call_gets_no_answer() -> None:
    rig = StatelessRig()
    call = rig.call("1", token='"t"')
    (progress,) = rig.feed(CallProgressed(call.call, EMPTY_OBJECT))
    assert (progress.token, progress.request) == (b'"t"', R1)
    assert rig.feed(ev.RequestCancelled(ONE, R1, "enough")) == [CancelCall(call.call, "enough")]
    assert rig.feed(CallAnswered(call.call, is_error=False, body=RESULT)) == []


def test_a_method_without_an_announced_capability_is_not_served() -> None:
    rig = StatelessRig(told=False)
    rig.catalog(A, "x", features=["tools"])
    rig.catalog(B, "y", features=["tools"])
    (listed,) = lists(rig, family="prompts")
    assert (listed.method, code_of(listed)) == ("prompts/list", -32601)
    (called,) = rig.call_tool("2", "p", method="prompts/get")
    assert code_of(called) == -32601
    (unknown,) = rig.call_tool("3", "nowhere")
    assert code_of(unknown) == -32602


def test_a_fresh_cached_resource_is_answered_without_the_server() -> None:
    rig = StatelessRig()
    rig.come(TWO)
    read = rig.call("1", "file:///a", method="resources/read").call
    rig.feed(CallAnswered(read, is_error=False, body=RESULT, ttl_ms=700))
    rig.wait(0.2)
    (again,) = rig.call_tool("2", "file:///a", method="resources/read")
    assert (again.body, again.ttl_ms, again.public) == (RESULT, 500, False)
    rig.call("3", "file:///a", method="resources/read", session=TWO)  # it is not public
    rig.wait(1.0)
    rig.call("4", "file:///a", method="resources/read")


@behaviour("pressure:unread-answers")
def test_an_agent_that_leaves_much_unread_gets_nothing_from_the_cache_and_its_call_waits() -> None:
    rig = StatelessRig()
    read = rig.call("1", "file:///a", method="resources/read").call
    rig.feed(CallAnswered(read, is_error=False, body=RESULT, ttl_ms=700))
    rig.feed(ev.UnreadChanged(ONE, UNREAD_STEP_BYTES + 1))
    assert rig.call_tool("2", "file:///a", method="resources/read") == []
    (call,) = rig.feed(ev.UnreadChanged(ONE, 0))
    assert isinstance(call, Call)


@behaviour("stateless:private")
def test_agents_without_a_token_who_share_a_session_share_no_private_answer() -> None:
    rig = StatelessRig()
    rig.come(TWO, shared=True, anonymous=True)
    for number, public in enumerate((False, True)):
        read = rig.call(str(number), "file:///a", method="resources/read", session=TWO).call
        rig.feed(CallAnswered(read, is_error=False, body=RESULT, ttl_ms=700, public=public))
    (again,) = rig.call_tool("9", "file:///a", method="resources/read", session=TWO)
    assert again.public, "what is everybody's is given again"


def test_a_call_says_whose_token_it_came_with() -> None:
    rig = StatelessRig()
    rig.feed(
        ev.SessionOpened(
            session=TWO,
            source=SourceId("daemon"),
            agent="",
            pid=1,
            carrier="door",
            shared=True,
            principal="ann",
        )
    )
    assert rig.call("1", "a__x", session=TWO).principal == "ann"
    assert rig.call("2", "a__x").principal == ""


def test_a_read_that_says_more_than_the_uri_is_neither_kept_nor_answered_with_what_was_kept() -> None:
    rig = StatelessRig()
    more = RawJson(b'{"range":[0,9]}')
    part = rig.call("1", "file:///a", method="resources/read", rest=more).call
    rig.feed(CallAnswered(part, is_error=False, body=RESULT, ttl_ms=700))
    whole = rig.call("2", "file:///a", method="resources/read").call
    rig.feed(CallAnswered(whole, is_error=False, body=RESULT, ttl_ms=700))
    rig.call("3", "file:///a", method="resources/read", rest=more)
    rig.call("4", "file:///a", method="resources/read", given={"q": RESULT})
    assert len(rig.call_tool("5", "file:///a", method="resources/read")) == 1


def test_a_changed_resource_is_read_again() -> None:
    rig = StatelessRig()
    for number in range(3):
        read = rig.call(str(number), "file:///a", method="resources/read").call
        rig.feed(CallAnswered(read, is_error=False, body=RESULT, ttl_ms=700))
        if number:
            rig.feed(ResourceChanged(A, "file:///a", EMPTY_OBJECT))
        else:
            rig.catalog(A, "x")


# --- lists and discovery --------------------------------------------------------------------------------


def test_a_list_waits_for_catalogs_and_says_how_long_it_holds() -> None:
    rig = StatelessRig(told=False)
    assert lists(rig) == [DiscoverCatalog(A), DiscoverCatalog(B)]
    assert [type(effect) for effect in rig.catalog(A, "x")] == []
    (reply,) = rig.catalog(B, "y")
    assert (reply.method, reply.ttl_ms, reply.public) == ("tools/list", HANDSHAKE_TTL_MS, False)
    assert json.loads(reply.body) == {"tools": [{"name": "a__x"}, {"name": "b__y"}]}


def test_a_list_that_changes_without_a_word_does_not_hold() -> None:
    rig = StatelessRig()
    rig.catalog(A, "x", features=["tools"])
    assert only(lists(rig), ReplyStateless).ttl_ms == 0
    resources = only(lists(rig, R2, family="resources"), ReplyStateless)
    assert resources.ttl_ms == HANDSHAKE_TTL_MS, "nobody has resources that could change"


def test_a_list_of_many_servers_holds_as_long_as_the_least_of_them_says_and_is_public_if_all_are() -> None:
    rig = StatelessRig()
    rig.catalog(A, "x", ttl_ms=20_000, public=True)
    assert not only(lists(rig), ReplyStateless).public
    rig.catalog(B, "y", ttl_ms=5_000, public=True)
    rig.wait(2.0)
    reply = only(lists(rig), ReplyStateless)
    assert (reply.ttl_ms, reply.public) == (3_000, True)


def test_an_answer_to_an_agent_with_a_token_is_never_public() -> None:
    rig = StatelessRig()
    rig.catalog(A, "x", ttl_ms=20_000, public=True)
    rig.catalog(B, "y", ttl_ms=20_000, public=True)
    anybody, ann = SessionId("s8"), SessionId("s9")
    rig.come(anybody, shared=True, anonymous=True)
    rig.come(ann, shared=True)
    for session, is_public in ((anybody, True), (ann, False)):
        listed = only(
            rig.feed(ev.ListPageRequested(session, RawJson(b"@1 1"), None, by=PLAIN)), ReplyStateless
        )
        told = only(rig.feed(ev.DiscoverRequested(session, RawJson(b"@2 1"), PLAIN)), AnswerDiscover)
        assert (listed.public, told.public) == (is_public, is_public)
        assert (listed.ttl_ms, told.ttl_ms) == (20_000, 20_000)
    read = rig.call("@3 1", "file:///a", method="resources/read", session=ann).call
    (reply,) = rig.feed(CallAnswered(read, is_error=False, body=RESULT, ttl_ms=700, public=True))
    assert (reply.ttl_ms, reply.public) == (700, False)


def test_a_catalog_that_has_run_out_is_served_and_asked_for_again_once() -> None:
    rig = StatelessRig()
    rig.catalog(A, "x", ttl_ms=1_000)
    rig.wait(1.5)
    assert DiscoverCatalog(A, again=True) in lists(rig)
    assert DiscoverCatalog(A, again=True) not in lists(rig)
    rig.catalog(A, "x", ttl_ms=1_000)
    assert only(lists(rig), ReplyStateless).ttl_ms == 1_000
    rig.wait(1.0)
    assert DiscoverCatalog(A, again=True) in lists(rig)


def test_a_cursor_that_was_never_given_out_is_refused() -> None:
    (refused,) = lists(StatelessRig(), cursor="nonsense")
    assert code_of(refused) == -32602


def test_no_bare_notification_reaches_an_agent_of_the_stateless_era() -> None:
    rig = StatelessRig()
    lists(rig)
    assert [e for e in rig.catalog(A, "x", "z") if isinstance(e, SendListChanged)] == []


def test_discovery_tells_what_there_is_and_waits_no_longer_than_agents_do() -> None:
    rig = StatelessRig(told=False)
    rig.catalog(A, "x", features=["tools"])
    assert rig.feed(ev.DiscoverRequested(ONE, R1, PLAIN)) == [DiscoverCatalog(B)]
    (said,) = rig.wait(2.0)
    assert isinstance(said, AnswerDiscover)
    assert "prompts" in said.features, "the other may turn out to have some"
    assert said.ttl_ms == 0
    rig.catalog(B, "y", features=["tools"])
    (said,) = rig.feed(ev.DiscoverRequested(ONE, R1, PLAIN))
    assert said.features == ("tools", "tools.listChanged")


def test_a_cancelled_discovery_gets_no_answer() -> None:
    rig = StatelessRig(told=False)
    rig.feed(ev.DiscoverRequested(ONE, R1, PLAIN))
    assert rig.feed(ev.RequestCancelled(ONE, R1, "")) == []
    assert rig.wait(20.0) == []


# --- log messages ---------------------------------------------------------------------------------------


def test_a_call_that_wants_log_messages_gets_those_about_it_of_its_level() -> None:
    rig = StatelessRig()
    loud, quiet = rig.call("1", by=StatelessAgent(level="warning")), rig.call("2", by=PLAIN)
    assert rig.feed(LogForSession(ONE, "error", EMPTY_OBJECT, loud.call)) == [SendLog(ONE, EMPTY_OBJECT, R1)]
    assert rig.feed(LogForSession(ONE, "info", EMPTY_OBJECT, loud.call)) == []
    assert rig.feed(LogForSession(ONE, "emergency", EMPTY_OBJECT, quiet.call)) == []
    assert rig.feed(LogForSession(ONE, "emergency", EMPTY_OBJECT)) == [], (
        "nobody knows which request it is about"
    )


def test_a_server_logs_as_long_as_a_call_wants_that() -> None:
    rig = StatelessRig()
    first = rig.call_tool("1", by=StatelessAgent(level="warning"))
    assert first[0] == SetLevel(A, "warning"), "before the call"
    one = only(first, Call)
    two = only(rig.call_tool("2", by=StatelessAgent(level="debug")), Call)
    assert rig.feed(CallAnswered(one.call, is_error=False, body=RESULT))[:-1] == []
    assert SetLevel(A, "") in rig.feed(CallAnswered(two.call, is_error=False, body=RESULT))


def test_the_level_that_a_session_has_set_stays_when_a_call_ends_that_wanted_more() -> None:
    rig = StatelessRig()
    rig.come(TWO)
    rig.initialize(TWO)
    rig.feed(ev.LogLevelRequested(TWO, R1, "error"))
    effects = rig.call_tool("1", by=StatelessAgent(level="debug"))
    assert SetLevel(A, "debug") in effects
    ended = rig.feed(CallAnswered(only(effects, Call).call, is_error=False, body=RESULT))
    assert SetLevel(A, "error") in ended


def test_a_stateless_server_is_told_no_level_for_calls() -> None:
    rig = StatelessRig()
    told = Catalog(A, [], "", EMPTY_OBJECT, EMPTY_OBJECT, "", features=FEATURES, era="stateless")
    rig.feed(told)
    effects = rig.call_tool("1", "file:///a", method="resources/read", by=StatelessAgent(level="debug"))
    assert not [effect for effect in effects if isinstance(effect, SetLevel)]


# --- sessions of many agents ----------------------------------------------------------------------------


def test_on_a_shared_session_every_error_is_worded_for_the_stateless_era() -> None:
    rig = StatelessRig()
    rig.come(SessionId("s3"), shared=True, anonymous=True)
    (reply,) = rig.feed(ev.BadLineReceived(SessionId("s3"), RawJson(b"@1 1"), "too_large", ""))
    assert isinstance(reply, ReplyStateless)


# --- another class --------------------------------------------------------------------------------------


@behaviour("lease:never-silently")
def test_a_session_that_comes_to_be_asked_later_leaves_what_it_held_at_the_plain_pool() -> None:
    rig = StatelessRig()
    twin = PoolKey("a:1?")
    goal = rig.core.sources.sources[SourceId("daemon")].goal
    rig.feed(replace(goal, twins={A: replace(goal.specs[0], key=twin, asking=True)}))
    assert rig.call("1", by=PLAIN).key == A
    effects = rig.call_tool("2", "b__y", by=ASKING)
    assert SessionPoolChanged(ONE, A, twin) in effects
    assert [each.old for each in effects if isinstance(each, SessionPoolChanged)] == [A]
    kinds = [type(effect) for effect in effects]
    assert kinds.index(SetPools) < kinds.index(SessionPoolChanged), (
        "the supervisor knows the new pool by then"
    )
    assert not [each for each in rig.call_tool("3", by=PLAIN) if isinstance(each, SessionPoolChanged)]
