"""Agents that declare their capabilities with each call, in front of servers of either era."""

import json
from typing import Any

import pytest
from msgspec.structs import replace

from carpool_protocol.ids import ABSENT, CallId, RawJson, SessionId, WireId
from carpool_protocol.link.messages import (
    AskOpened,
    Call,
    CallAnswered,
    CancelCall,
    LogForSession,
    Need,
    Root,
)
from carpool_supervisor.core.model import events as ev
from carpool_supervisor.core.model.attribution import ROOTS, AskFacts
from carpool_supervisor.core.model.effects import KeepServerLog, RecordEvidence
from carpool_supervisor.core.model.events import AnswerUnreadable, ServerAnswered, ServerAsked
from carpool_supervisor.era.list_hints import CacheHint, read_cache_hint
from carpool_supervisor.era.server_requests import Declared, capabilities_of
from tests.behaviours import behaviour
from tests.kit.effects import of_kind
from tests.supervisor.core.test_stateless_servers import ELICIT, KEY, ME, StatelessServerRig
from tests.supervisor.era.test_stateless import (
    ASKING,
    FORM,
    ONE,
    PRE,
    SAMPLE,
    URL,
    StatelessAdapterRig,
    call,
    line,
)

PARAMS = RawJson(b'{"level":"info","data":"x"}')
URLS = (RawJson(b'{"mode":"url","url":"u","elicitationId":"E"}'),)


def said(*can: Need, level: str = "", method: str = "tools/call") -> Call:
    return replace(call(method), can=list(can), log_level=level)


def told(written: dict[str, Any]) -> Any:
    return written["params"]["_meta"][PRE + "clientCapabilities"]


# --- what the server is told -----------------------------------------------------------------------------


@behaviour("eras:own-capabilities")
def test_a_server_is_told_what_the_agent_behind_each_call_can_be_asked_and_nothing_more() -> None:
    talk = StatelessAdapterRig(ASKING)
    assert told(talk.call(said())) == {}
    assert told(talk.call(said("elicitation.url"))) == {"elicitation": {"url": {}}}
    assert told(talk.call(said("sampling", "roots"))) == {"sampling": {}, "roots": {}}
    everything = told(talk.call(call()))
    assert everything == {"sampling": {"tools": {}}, "elicitation": {"form": {}, "url": {}}}
    assert told(talk.call(said("sampling", "sampling.tools", "elicitation.form", "elicitation.url"))) == (
        everything
    )


def test_roots_of_the_configuration_are_told_to_every_agents_server() -> None:
    talk = StatelessAdapterRig(Declared(roots=(Root("file:///w"),)))
    assert told(talk.call(said("elicitation.form"))) == {"elicitation": {"form": {}}, "roots": {}}


def test_capabilities_without_any_entry_are_an_empty_object() -> None:
    assert capabilities_of([]) == b"{}"


@behaviour("eras:own-log-level")
def test_a_call_says_its_own_log_level_and_none_where_its_agent_wants_none() -> None:
    talk = StatelessAdapterRig(ASKING)
    talk.adapter.level_line("debug")
    key = PRE + "logLevel"
    assert talk.call(said(level="error"))["params"]["_meta"][key] == "error"
    assert key not in talk.call(said())["params"]["_meta"]
    assert talk.call(call())["params"]["_meta"][key] == "debug"
    assert talk.call(replace(call(), log_level="alert"))["params"]["_meta"][key] == "alert"


# --- what the server wants -------------------------------------------------------------------------------


def test_an_ask_says_the_servers_own_key_and_no_elicitation_id_is_made_for_an_agent_that_has_none() -> None:
    talk = StatelessAdapterRig(ASKING)
    talk.fit(tools={})
    talk.call(said("elicitation.url", "sampling"))
    events, _ = talk.wants(where=URL, draft=SAMPLE)
    assert [each.name for each in events] == ["where", "draft"]
    assert "elicitationId" not in json.loads(events[0].params)


def test_a_key_that_is_too_long_to_be_told_is_not_told_and_still_goes_back_to_its_server() -> None:
    talk, key = StatelessAdapterRig(ASKING), "k" * 2000
    talk.fit(tools={})
    talk.call(said("sampling"))
    [asked], _ = talk.wants(**{key: SAMPLE})
    assert asked.name == ""
    again = talk.give(asked.id, {})
    assert again is not None
    assert again["params"]["inputResponses"] == {key: {}}


@behaviour("eras:own-roots")
def test_roots_are_asked_of_an_agent_that_has_declared_them_and_else_answered_by_carpool() -> None:
    talk = StatelessAdapterRig(Declared(roots=(Root("file:///ours"),)))
    talk.fit(tools={})
    talk.call(said("roots"))
    events, out = talk.wants(r={"method": ROOTS})
    [asked] = events
    assert isinstance(asked, ServerAsked)
    assert (asked.facts, asked.needs, asked.name) == (AskFacts(ROOTS, wire=ONE), ("roots",), "r")
    assert out == []
    again = talk.give(asked.id, {"roots": [{"uri": "file:///theirs"}]})
    assert again is not None
    assert again["params"]["inputResponses"] == {"r": {"roots": [{"uri": "file:///theirs"}]}}

    talk.call(said(), WireId(2))
    events, out = talk.wants(2, r={"method": ROOTS})
    assert events == []
    assert out[0]["params"]["inputResponses"]["r"]["roots"][0]["uri"] == "file:///ours"


@pytest.mark.parametrize(
    ("can", "wanted"),
    [
        (("sampling",), FORM),
        (("elicitation.form",), URL),
        (("elicitation.url",), FORM),
        (("elicitation.form", "elicitation.url"), SAMPLE),
        (("sampling",), {**SAMPLE, "params": {**SAMPLE["params"], "tools": [{"name": "x"}]}}),
        (("sampling",), {"method": ROOTS}),
        ((), {"method": ROOTS}),
        ((), FORM),
    ],
)
def test_an_input_that_the_agent_of_a_call_did_not_declare_ends_it_even_if_other_agents_did(
    can: tuple[Need, ...], wanted: dict[str, Any]
) -> None:
    talk = StatelessAdapterRig(ASKING)
    talk.fit(tools={})
    talk.call(said(*can))
    [event], _ = talk.wants(x=wanted)
    assert isinstance(event, AnswerUnreadable)
    assert "not declared" in event.text


# --- what the server answers -----------------------------------------------------------------------------


@behaviour("eras:missing-capability")
@pytest.mark.parametrize(("caller", "code"), [(said(), -32021), (call(), -32603)])
def test_the_error_for_a_missing_capability_passes_to_agents_that_know_it(caller: Call, code: int) -> None:
    talk = StatelessAdapterRig()
    talk.fit(tools={})
    talk.call(caller)
    error = {"code": -32021, "message": "m", "data": {"requiredCapabilities": {"sampling": {}}}}
    [answered], _ = talk.say(line(id=1, error=error))
    assert isinstance(answered, ServerAnswered)
    body = json.loads(answered.body)
    assert body["code"] == code
    assert ("data" in body) == (code == -32021)


@pytest.mark.parametrize("code", [-32020, -32022])
def test_errors_between_carpool_and_the_server_are_no_agents(code: int) -> None:
    talk = StatelessAdapterRig()
    talk.fit(tools={})
    talk.call(said())
    [answered], _ = talk.say(line(id=1, error={"code": code, "message": "m"}))
    assert json.loads(answered.body)["code"] == -32603


@behaviour("eras:hints")
def test_a_resource_comes_with_its_hint_and_one_that_was_read_with_input_with_none() -> None:
    talk = StatelessAdapterRig(ASKING)
    talk.fit(tools={})
    fresh = {"resultType": "complete", "contents": [], "ttlMs": 5000, "cacheScope": "public"}
    talk.call(call("resources/read", b'{"uri":"a:b"}', target="a:b"))
    [answered], _ = talk.say(line(id=1, result=fresh))
    assert (answered.ttl_ms, answered.public) == (5000, True)
    assert b"ttlMs" not in answered.body

    talk.call(call("resources/read", b'{"uri":"a:b"}', target="a:b"), WireId(2))
    [asked], _ = talk.wants(2, x=FORM)
    again = talk.give(asked.id, {"action": "cancel"})
    assert again is not None
    [answered], _ = talk.say(line(id=again["id"], result=fresh))
    assert (answered.ttl_ms, answered.public) == (-1, False)

    talk.call(call("prompts/get"), WireId(3))
    [answered], _ = talk.say(line(id=3, result=fresh))
    assert answered.ttl_ms == -1, "only reads and lists have hints"


@pytest.mark.parametrize(
    ("result", "hint"),
    [
        (b"{}", CacheHint()),
        (b'{"ttlMs":0,"cacheScope":"public"}', CacheHint(0, True)),
        (b'{"ttlMs":12,"cacheScope":"private"}', CacheHint(12)),
        (b'{"ttlMs":12.5}', CacheHint(12)),
        (b'{"ttlMs":-7}', CacheHint(0)),
        (b'{"ttlMs":"7"}', CacheHint(0)),
        (b'{"ttlMs":1e3}', CacheHint(0)),
        (b'{"ttlMs":99999999999999999999999}', CacheHint(999999999999999)),
        (b"[]", CacheHint()),
    ],
)
def test_a_hint_is_read_whatever_it_is(result: bytes, hint: CacheHint) -> None:
    assert read_cache_hint(RawJson(result)) == hint


def test_several_hints_are_as_short_and_as_private_as_any_of_them() -> None:
    assert CacheHint(5, True).least(CacheHint(3, True)) == CacheHint(3, True)
    assert CacheHint(5, True).least(CacheHint(9)) == CacheHint(5)
    assert (
        CacheHint().least(CacheHint(9, True)) == CacheHint(9, True) == CacheHint(9, True).least(CacheHint())
    )


# --- the core --------------------------------------------------------------------------------------------


def admit(rig: StatelessServerRig, number: int, session: str, *can: Need, level: str = "") -> None:
    word = replace(said(*can, level=level), call=CallId(number), key=KEY, session=SessionId(session))
    rig.feed(word)


def logged(rig: StatelessServerRig) -> Any:
    [effect] = of_kind(rig.feed(ev.ServerLogged(ME, "info", PARAMS)), LogForSession, KeepServerLog)
    return effect


def test_roots_that_a_call_came_back_for_reach_its_agent_and_are_no_sign_that_the_server_asks() -> None:
    rig = StatelessServerRig()
    admit(rig, 1, "a", "roots")
    facts = AskFacts(ROOTS, wire=WireId(1))
    effects = rig.feed(
        ev.ServerAsked(ME, RawJson(b"1/1/0"), ABSENT, facts, ABSENT, needs=("roots",), name="r")
    )
    [asked] = of_kind(effects, AskOpened)
    assert (asked.call, asked.method, asked.name, asked.needs) == (1, ROOTS, "r", ["roots"])
    assert not of_kind(effects, RecordEvidence)
    assert of_kind(rig.wants(1, 1, ELICIT), RecordEvidence), "a question to a person is one"


@behaviour("logging:one-session")
def test_a_log_message_names_the_only_call_that_may_log() -> None:
    rig = StatelessServerRig()
    admit(rig, 1, "a")
    assert isinstance(logged(rig), KeepServerLog), "its agent wants none"
    admit(rig, 2, "b", level="info")
    assert logged(rig) == LogForSession(SessionId("b"), "info", PARAMS, CallId(2))
    admit(rig, 3, "b", level="info")
    assert logged(rig) == LogForSession(SessionId("b"), "info", PARAMS)
    admit(rig, 4, "c", level="info")
    assert isinstance(logged(rig), KeepServerLog)


def test_a_log_message_that_may_be_of_a_cancelled_call_names_no_other_call() -> None:
    rig = StatelessServerRig()
    admit(rig, 1, "a", level="info")
    rig.feed(CancelCall(CallId(1), "enough"))
    admit(rig, 2, "a", level="info")
    assert logged(rig) == LogForSession(SessionId("a"), "info", PARAMS)


@behaviour("asks:elicitation:32042")
def test_urls_of_an_error_are_told_of_calls_whose_agent_has_no_such_error() -> None:
    rig = StatelessServerRig()
    admit(rig, 1, "a", "elicitation.url")
    rig.call(2, "b")
    body = RawJson(b'{"code":-32042,"message":"m"}')
    for wire, urls in ((1, URLS), (2, ())):
        rig.feed(ev.UrlElicitationRequired(ME, WireId(wire), ("E",), URLS))
        effects = rig.feed(ServerAnswered(ME, WireId(wire), is_error=True, body=body))
        assert of_kind(effects, CallAnswered) == [
            CallAnswered(CallId(wire), is_error=True, body=body, urls_first=True, urls=urls)
        ]


def test_hints_travel_with_the_answer() -> None:
    rig = StatelessServerRig()
    rig.call(1, "a")
    effects = rig.feed(ServerAnswered(ME, WireId(1), False, RawJson(b"{}"), ttl_ms=7, public=True))
    assert of_kind(effects, CallAnswered) == [
        CallAnswered(CallId(1), False, RawJson(b"{}"), ttl_ms=7, public=True)
    ]
