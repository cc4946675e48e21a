"""The broker's core: an event in, the whole list of effects out."""

from typing import Any

import msgspec
import pytest

from carpool_broker.core.model import events as ev
from carpool_broker.core.model.bounds import SessionBounds
from carpool_broker.core.model.effects import AnswerInitialize, Reply, SendListChanged, SetSupervisorEpoch
from carpool_broker.core.model.events import SourceId
from carpool_broker.core.model.scope import DisabledServer
from carpool_protocol.ids import ABSENT, EMPTY_OBJECT, CallId, PoolKey, RawJson, ServerName, SessionId
from carpool_protocol.link.messages import (
    Call,
    CallAnswered,
    CancelCall,
    DiscoverCatalog,
    OpenSessions,
    PoolChanged,
    PoolState,
    SessionEnded,
    SetPools,
)
from tests.behaviours import behaviour
from tests.kit.broker_rig import EPOCH, BrokerRig, supervisor_comes

ONE, TWO = SessionId("s1"), SessionId("s2")
DAEMON = SourceId("daemon")


class TwoServersRig(BrokerRig):
    """A core with a supervisor, and servers `a` and `b`."""

    def __init__(self, *keys: str) -> None:
        super().__init__()
        self.read(*(keys or ("a:1", "b:1")))
        self.supervisor_comes()

    def read(self, *keys: str, source: SourceId = DAEMON, **more: Any) -> list[Any]:
        off = {ServerName(name): why for name, why in more.pop("disabled", {}).items()}
        return super().read(*keys, source=source, disabled=off, **more)

    def come(self, session: SessionId = ONE) -> list[Any]:
        self.attach(session)
        return self.greet(session)

    def ready(self) -> None:
        self.come()
        self.catalog("a:1", "x")
        self.catalog("b:1", "y")

    def lists(self, request: str = "9", session: SessionId = ONE, cursor: str | None = None) -> list[Any]:
        return self.list_tools(session, request, cursor)

    def call(self, name: str, request: str = "1", session: SessionId = ONE) -> list[Any]:
        return self.request(name, request, session)


def names(reply: Reply) -> list[str]:
    return [tool["name"] for tool in msgspec.json.decode(reply.body)["tools"]]


def code(reply: Reply) -> str:
    body = msgspec.json.decode(reply.body)
    meta = body["data"] if reply.is_error else body["_meta"]["carpool/error"]
    return str(meta["code"])


def test_a_greeting_is_answered_at_once_and_starts_discovery() -> None:
    effects = TwoServersRig().come()
    assert [e.key for e in effects if isinstance(e, DiscoverCatalog)] == ["a:1", "b:1"]
    (greet,) = [e for e in effects if isinstance(e, AnswerInitialize)]
    assert (greet.id, greet.version) == (b"0", "2025-11-25")


@behaviour("versions:negotiated-apart")
def test_an_unknown_version_is_answered_with_the_newest_and_a_second_greeting_with_an_error() -> None:
    rig = TwoServersRig()
    rig.feed(ev.SessionOpened(session=ONE, source=DAEMON, agent="", pid=1, carrier="shim"))
    (greet,) = [
        e
        for e in rig.feed(ev.InitializeRequested(ONE, RawJson(b"0"), "2099-01-01", "x"))
        if isinstance(e, AnswerInitialize)
    ]
    assert greet.version == "2025-11-25"
    (reply,) = rig.feed(ev.InitializeRequested(ONE, RawJson(b"1"), "2025-11-25", "x"))
    assert reply.is_error


def test_only_a_ping_is_served_before_the_greeting() -> None:
    rig = TwoServersRig()
    rig.feed(ev.SessionOpened(session=ONE, source=DAEMON, agent="", pid=1, carrier="shim"))
    assert rig.feed(ev.PingRequested(ONE, RawJson(b"p"))) == [Reply(ONE, RawJson(b"p"), False, EMPTY_OBJECT)]
    assert [code(e) for e in rig.lists() + rig.call("a__x")] == ["not_initialized", "not_initialized"]


def test_a_list_waits_for_every_catalog_and_is_answered_with_the_last_of_them() -> None:
    rig = TwoServersRig()
    rig.come()
    assert [type(e) for e in rig.lists()] == [DiscoverCatalog, DiscoverCatalog]
    assert rig.catalog("a:1", "x") == []
    (reply,) = rig.catalog("b:1", "y")
    assert names(reply) == ["a__x", "b__y"]


@behaviour("lists:bounded-wait")
def test_a_list_does_not_wait_for_a_server_that_fails_nor_longer_than_its_patience() -> None:
    rig = TwoServersRig()
    rig.come()
    rig.lists()
    rig.catalog("a:1", "x")
    (reply,) = rig.pool("b:1", "backing_off")
    assert names(reply) == ["a__x"]
    rig = TwoServersRig()
    rig.come()
    rig.lists()
    rig.catalog("a:1", "x")
    assert rig.wait(9.9) == []
    (reply,) = rig.wait(0.1)
    assert names(reply) == ["a__x"]
    (changed,) = rig.catalog("b:1", "y")
    assert changed == SendListChanged(ONE)


@behaviour("lists:changes-told")
def test_an_agent_with_an_old_list_is_told_once_and_others_not_at_all() -> None:
    rig = TwoServersRig()
    rig.ready()
    rig.come(TWO)
    rig.lists()
    assert rig.catalog("a:1", "x", "z") == [SendListChanged(ONE)]
    assert rig.catalog("a:1", "x") == []


@behaviour("lists:away-and-back", "lists:reason-at-once")
def test_a_server_that_gives_up_leaves_the_list_and_a_call_to_it_says_why() -> None:
    rig = TwoServersRig()
    rig.ready()
    rig.lists()
    assert rig.pool("a:1", "given_up", "it is broken") == [SendListChanged(ONE)]
    (reply,) = rig.lists()
    assert names(reply) == ["b__y"]
    (refused,) = rig.call("a__x")
    assert code(refused) == "given_up"
    assert rig.pool("a:1", "serving") == [SendListChanged(ONE)]


def test_the_refusal_of_a_uri_that_no_server_lists_says_why_it_names_a_server_that_fails() -> None:
    rig = TwoServersRig()
    rig.come()
    rig.catalog("a:1", "x")
    rig.pool("b:1", "backing_off", "It exited with 1.")
    (refused,) = rig.request("file:///x", method="resources/read")
    assert code(refused) == "backing_off"
    assert b"No server lists this URI. This one may have it" in refused.body
    assert b"It exited with 1." in refused.body
    (refused,) = rig.call("b__x", "2")
    assert b"No server lists this URI" not in refused.body


@behaviour("silence:breaker")
def test_a_server_whose_breaker_is_open_is_away_and_a_call_hears_how_long_it_still_is() -> None:
    rig = TwoServersRig()
    rig.ready()
    rig.feed(PoolChanged(PoolKey("a:1"), "breaker_open", "it is broken", 60.0))
    rig.wait(20.0)
    missed, refused = rig.call("a__x")
    assert missed == DiscoverCatalog(PoolKey("a:1"))
    assert code(refused) == "breaker_open"
    assert b'"retry_after_s":40.0' in refused.body
    assert names(rig.lists()[-1]) == ["b__y"]


def test_a_call_that_no_other_node_takes_is_refused_in_words_about_nodes() -> None:
    rig = TwoServersRig()
    rig.ready()
    rig.feed(PoolChanged(PoolKey("a:1"), "breaker_open", "Its last error: x.", 2.0, is_remote=True))
    _, refused = rig.call("a__x")
    assert code(refused) == "node_away"
    assert b"Try again in a moment" in refused.body
    assert b'"retry_after_s":2.0' in refused.body


@behaviour("cluster:refusals")
def test_a_call_that_no_node_ever_takes_is_refused_without_the_advice_to_try_again() -> None:
    rig = TwoServersRig()
    rig.ready()
    why = "Its last error: node b does not offer it."
    rig.feed(PoolChanged(PoolKey("a:1"), "breaker_open", why, 2.0, cannot_start=True, is_remote=True))
    _, refused = rig.call("a__x")
    assert code(refused) == "not_offered"
    assert b"Try again" not in refused.body
    assert b'"retry_after_s":null' in refused.body


@behaviour("silence:breaker-on-demand")
def test_a_list_or_greeting_makes_the_supervisor_try_a_server_whose_breaker_is_not_closed() -> None:
    states: tuple[PoolState, ...] = ("breaker_open", "half_open")
    for state in states:
        rig = TwoServersRig()
        rig.ready()
        rig.pool("a:1", state)
        assert DiscoverCatalog(PoolKey("a:1")) in rig.lists()
        assert DiscoverCatalog(PoolKey("a:1")) in rig.come(TWO)
        rig.pool("a:1", "serving")
        assert DiscoverCatalog(PoolKey("a:1")) not in rig.lists("10")


@behaviour("silence:breaker-probes")
def test_when_it_is_half_open_it_stays_off_the_lists_and_a_call_by_name_goes_through() -> None:
    rig = TwoServersRig()
    rig.ready()
    rig.pool("a:1", "breaker_open")
    assert rig.pool("a:1", "half_open") == []
    assert names(rig.lists()[-1]) == ["b__y"]
    (call,) = rig.call("a__x")
    assert isinstance(call, Call)
    assert rig.pool("a:1", "serving") == [SendListChanged(ONE)]


@pytest.mark.parametrize("state", ["breaker_open", "half_open"])
def test_agents_read_what_happened_to_a_server_and_not_the_name_of_a_state(state: PoolState) -> None:
    rig = TwoServersRig()
    rig.pool("a:1", "breaker_open")
    rig.pool("a:1", state)
    (greet,) = [each for each in rig.come() if isinstance(each, AnswerInitialize)]
    assert "Not available now: a (it failed several times)" in greet.instructions
    assert not [word for word in ("half", "breaker", "circuit") if word in greet.instructions]


def test_a_call_whose_name_can_only_be_of_one_untold_server_has_that_one_told_first() -> None:
    rig = TwoServersRig()
    rig.come()
    assert rig.call("b__y")[-1] == DiscoverCatalog(PoolKey("b:1"), first=True)


def test_a_name_that_may_be_a_servers_that_never_told_its_tools_is_refused_for_its_breaker() -> None:
    rig = TwoServersRig()
    rig.come()
    rig.catalog("b:1", "y")
    states: tuple[PoolState, ...] = ("breaker_open", "half_open")
    for state in states:
        rig.pool("a:1", state)
        missed, refused = rig.call("a__x")
        assert missed == DiscoverCatalog(PoolKey("a:1"))
        assert code(refused) == "breaker_open"


@behaviour("switch:live")
def test_a_disabled_server_leaves_the_list_and_a_call_to_it_says_who_switched_it_off() -> None:
    rig = TwoServersRig()
    rig.ready()
    rig.lists()
    changed = rig.read("b:1", disabled={"a": DisabledServer("Somebody did it.")})
    assert [effect.session for effect in changed if isinstance(effect, SendListChanged)] == [ONE]
    (reply,) = rig.call("a__x")
    assert (code(reply), reply.is_error) == ("disabled", False)
    assert b"Somebody did it." in reply.body
    assert b"`carpool enable a`" in reply.body
    (reply,) = rig.call("c__x", "2")
    assert code(reply) == "unknown_tool"
    rig.read("a:1", "b:1")
    rig.catalog("a:1", "x")
    assert [type(effect) for effect in rig.call("a__x", "3")] == [Call]


@behaviour("switch:live")
def test_the_name_of_a_disabled_server_that_says_the_most_is_meant() -> None:
    rig = TwoServersRig("b:1")
    rig.come()
    rig.catalog("b:1", "y")
    off = {
        "a": DisabledServer("Short."),
        "a_b": DisabledServer("Long."),
        "named": DisabledServer("Prefix.", "p"),
        "bare": DisabledServer("Bare.", ""),
    }
    rig.read("b:1", disabled=off)
    for name, why in (("a__x", "Short."), ("a_b__x", "Long."), ("p__x", "Prefix."), ("any", "Bare.")):
        (reply,) = rig.call(name)
        assert (code(reply), why.encode() in reply.body) == ("disabled", True), name


@behaviour("switch:live")
def test_calls_that_have_left_go_on_when_their_server_is_disabled_and_others_are_told() -> None:
    rig = TwoServersRig()
    rig.ready()
    rig.core.call_table.bounds = SessionBounds(max_open_calls=1)
    (sent,) = [effect for effect in rig.call("a__x", "1") if isinstance(effect, Call)]
    assert not [effect for effect in rig.call("a__x", "2") if isinstance(effect, Call)], "it waits"
    (reply,) = [
        each for each in rig.read("b:1", disabled={"a": DisabledServer("Off.")}) if isinstance(each, Reply)
    ]
    assert (reply.id, code(reply)) == (b"2", "disabled")
    (reply,) = [
        each
        for each in rig.feed(CallAnswered(sent.call, is_error=False, body=EMPTY_OBJECT))
        if isinstance(each, Reply)
    ]
    assert reply.id == b"1"


def test_a_call_goes_to_the_pool_under_the_servers_own_name_and_its_answer_back() -> None:
    rig = TwoServersRig()
    rig.ready()
    (call,) = rig.call("a__x", "1.0")
    assert call == Call(
        CallId(1), PoolKey("a:1"), ONE, "tools/call", "x", EMPTY_OBJECT, ABSENT, wants_progress=False,
        request=RawJson(b"1.0"),
    )  # fmt: skip
    answer = RawJson(b'{"content":[]}')
    assert rig.feed(CallAnswered(CallId(1), is_error=False, body=answer)) == [
        Reply(ONE, RawJson(b"1.0"), False, answer, CallId(1))
    ]


@behaviour("http:bounds-at-once")
@pytest.mark.parametrize(("bound", "sent"), [(1, 0), (3, 2), (9, 2)])
def test_calls_that_wait_go_when_their_session_may_have_more_open(bound: int, sent: int) -> None:
    rig = TwoServersRig()
    rig.feed(ev.LimitsRead(SessionBounds(max_open_calls=1), 10.0))
    rig.ready()
    for request in ("1", "2", "3"):
        rig.call("a__x", request)
    followed = rig.feed(ev.SessionBoundRaised(ONE, bound))
    assert len([each for each in followed if isinstance(each, Call)]) == sent
    rig.feed(ev.SessionBoundRaised(ONE, 1))
    rig.core.check()


@behaviour("calls:own-ids")
def test_equal_ids_of_two_agents_never_meet() -> None:
    rig = TwoServersRig()
    rig.ready()
    rig.come(TWO)
    rig.call("a__x", "1", ONE)
    rig.call("a__x", "1", TWO)
    (reply,) = rig.feed(CallAnswered(CallId(2), is_error=False, body=EMPTY_OBJECT))
    assert (reply.session, reply.id) == (TWO, b"1")


def test_an_id_that_is_open_is_refused_and_its_first_call_goes_on() -> None:
    rig = TwoServersRig()
    rig.ready()
    rig.call("a__x", "1")
    (refused,) = rig.call("a__x", "1")
    assert code(refused) == "duplicate_request_id"
    (reply,) = rig.feed(CallAnswered(CallId(1), is_error=False, body=EMPTY_OBJECT))
    assert not reply.is_error


def test_an_early_call_waits_for_the_catalog_that_may_hold_its_name() -> None:
    rig = TwoServersRig()
    rig.come()
    assert all(isinstance(e, DiscoverCatalog) for e in rig.call("a__x"))
    (call,) = rig.catalog("a:1", "x")
    assert isinstance(call, Call)


def test_a_name_that_no_server_can_have_is_an_error_at_once() -> None:
    rig = TwoServersRig()
    rig.ready()
    (reply,) = rig.call("a__nothing")
    assert (reply.is_error, code(reply)) == (True, "unknown_tool")


def test_a_name_of_a_server_that_has_not_told_in_time_may_be_tried_again() -> None:
    rig = TwoServersRig()
    rig.come()
    rig.catalog("b:1", "y")
    rig.call("a__x")
    (reply,) = rig.wait(10.0)
    assert (code(reply), reply.is_error) == ("unavailable", False)
    fault = msgspec.json.decode(reply.body)["_meta"]["carpool/error"]
    assert (fault["server"], fault["delivered"], fault["retry_after_s"]) == ("a", "no", 1.0)
    (reply,) = rig.call("c__x", "2")
    assert code(reply) == "unknown_tool", "no server of this name is still to tell"


def test_a_cancelled_list_or_early_call_is_never_answered() -> None:
    rig = TwoServersRig()
    rig.come()
    rig.lists("9")
    rig.call("a__x", "1")
    for request in (b"9", b"1"):
        assert rig.feed(ev.RequestCancelled(ONE, RawJson(request), "")) == []
    assert rig.catalog("a:1", "x") + rig.catalog("b:1") + rig.wait(20) == []


@behaviour("failure:agent-gone")
def test_all_that_an_agent_had_open_ends_with_it() -> None:
    rig = TwoServersRig()
    rig.ready()
    rig.call("a__x", "1")
    assert rig.feed(ev.SessionClosed(ONE)) == [
        CancelCall(CallId(1), "the agent is gone", answered=True),
        SessionEnded(ONE),
    ]
    assert rig.feed(CallAnswered(CallId(1), is_error=False, body=EMPTY_OBJECT)) == []
    assert rig.core.next_deadline() is None


def test_a_new_supervisor_is_told_what_is_wanted_before_anything_else() -> None:
    rig = TwoServersRig()
    rig.come()
    rig.feed(ev.SupervisorLost())
    effects = supervisor_comes(rig.feed, 1000)
    assert isinstance(effects[0], SetPools)
    assert isinstance(effects[1], OpenSessions)
    assert effects[2] == SetSupervisorEpoch(ONE, EPOCH), "what this session had sent before is answered"
    assert [e.key for e in effects[3:]] == ["a:1", "b:1"]


def test_messages_about_an_unwanted_pool_are_dropped() -> None:
    rig = TwoServersRig()
    rig.read("b:1")
    assert rig.catalog("a:1", "x") + rig.pool("a:1", "given_up") == []
    assert not rig.core.states
    assert rig.core.registry.told_catalog(PoolKey("a:1")) is None


@behaviour("stop:answers")
def test_when_carpool_ends_every_call_and_list_is_answered_and_says_whether_it_may_have_run() -> None:
    rig = TwoServersRig()
    rig.core.call_table.bounds = SessionBounds(max_open_calls=1)
    rig.come()
    rig.catalog("a:1", "x")
    rig.call("a__x", "1")
    rig.call("a__x", "2")
    rig.call("b__y", "3")  # its catalog has not come
    assert not any(isinstance(effect, Reply) for effect in rig.lists("4"))
    done = [effect for effect in rig.feed(ev.EndRequested()) if isinstance(effect, Reply)]
    assert {effect.id: code(effect) for effect in done} == {
        b"1": "cut_off", b"2": "closing", b"3": "closing", b"4": "closing",
    }  # fmt: skip
    assert rig.feed(CallAnswered(CallId(1), is_error=False, body=EMPTY_OBJECT)) == []
