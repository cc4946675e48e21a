"""The door's core between `hold` and its end: what is kept for the next door, and what is not."""

import json
from typing import Any

import pytest

from carpool.http.core.core import HttpCore
from carpool.http.core.effects import HttpRequest, HttpRules
from carpool_protocol.carrier.streams import CloseStream, StreamOpened
from carpool_protocol.faults.fault_answers import fault, fault_answer
from tests.behaviours import behaviour
from tests.client.http.door_core_rig import (
    BOTH,
    DoorCoreRig,
    Json,
    modern,
    modern_headers,
    notification,
    request,
)

LIST = modern(7, "tools/list")
PING = request(3, "ping")
CALL = request(2, "tools/call", name="a", arguments={})


@pytest.fixture
def desk() -> DoorCoreRig:
    return DoorCoreRig()


def hold(desk: DoorCoreRig) -> None:
    """Hold, and answer what the door asks the broker because of that."""
    desk.told.clear()
    desk.take(desk.core.hold_requests(desk.now))
    _, _ = desk.word()
    s, _, x = desk.heard("ping")
    held_before = desk.all_held
    desk.answer(s, x)
    assert (held_before, desk.all_held) == (False, True), "before, the broker may have more to read"
    desk.told.clear()


def refused(code: str, method: str) -> Json:
    """The answer of a broker that has refused a call or another request."""
    is_error, body = fault_answer(fault(code, server="good"), method)
    return {"error" if is_error else "result": json.loads(body)}


def stateless(desk: DoorCoreRig) -> tuple[int, int]:
    """An open request of the stateless era: its stream and its number."""
    x = desk.post(LIST, **modern_headers("tools/list"))
    s, _ = desk.word()
    assert desk.heard("tools/list")[2] == x
    desk.say(s, StreamOpened("s-1", "s1", "0.mac", "e1"))
    return s, x


@behaviour("handover:requests")
def test_a_stateless_request_that_comes_while_the_door_holds_is_kept_as_it_came(desk: DoorCoreRig) -> None:
    hold(desk)
    x = desk.post(LIST, **modern_headers("tools/list"))
    assert json.loads(desk.held[x]) == LIST
    assert x not in desk.answers
    assert not desk.told


@behaviour("handover:requests")
def test_a_session_that_would_begin_while_the_door_holds_begins_at_the_next_door(desk: DoorCoreRig) -> None:
    hold(desk)
    begins = request(1, "initialize", protocolVersion="2025-11-25")
    x = desk.post(begins)
    assert json.loads(desk.held[x]) == begins
    assert not desk.told


@behaviour("handover:requests")
def test_without_sessions_the_handshake_era_is_kept_as_well() -> None:
    desk = DoorCoreRig(HttpRules(stateless=True))
    hold(desk)
    x = desk.post(CALL)
    assert json.loads(desk.held[x]) == CALL
    assert not desk.told


@behaviour("handover:requests")
@pytest.mark.parametrize("method", ["tools/call", "prompts/get"])
def test_a_call_of_a_session_is_refused_as_not_delivered_while_the_door_holds(
    desk: DoorCoreRig, method: str
) -> None:
    """The session ends with the broker, so the next door could not run it."""
    session, _ = desk.initialized()
    hold(desk)
    x = desk.post(request(2, method, name="a", arguments={}), mcp_session_id=session)
    told = desk.body(x)
    fault = told["error"]["data"] if "error" in told else told["result"]["_meta"]["carpool/error"]
    assert (desk.status(x), told["id"], fault["code"], fault["delivered"]) == (200, 2, "closing", "no")
    assert not desk.told
    assert not desk.held


@behaviour("handover:requests")
@pytest.mark.parametrize("method", ["tools/call", "ping"])
def test_a_request_of_a_session_that_the_next_door_goes_on_with_is_kept(
    desk: DoorCoreRig, method: str
) -> None:
    """As after a change of settings: the broker stays."""
    session, _ = desk.initialized()
    desk.take(desk.core.hold_requests(desk.now, sessions_end=False))
    x = desk.post(request(2, method, name="a", arguments={}), mcp_session_id=session)
    assert json.loads(desk.held[x])["method"] == method
    assert x not in desk.answers


BATCH_ASKS = [CALL, notification("notifications/cancelled", requestId=9), request(3, "tools/list")]


@behaviour("handover:requests")
def test_the_requests_of_an_array_are_refused_as_not_delivered_while_the_door_holds(
    desk: DoorCoreRig,
) -> None:
    """Arrays are of version 2025-03-26. The broker that ends could send a call of theirs to its server."""
    session, _ = desk.initialized("2025-03-26")
    hold(desk)
    x = desk.post(BATCH_ASKS, mcp_session_id=session)
    called, listed = desk.body(x)
    assert (desk.status(x), called["id"], listed["id"]) == (200, 2, 3)
    faults = [called["result"]["_meta"]["carpool/error"], listed["error"]["data"]]
    assert [(each["code"], each["delivered"]) for each in faults] == [("closing", "no")] * 2
    assert desk.heard("notifications/cancelled")[1] == BATCH_ASKS[1], "open calls may need it"
    assert not desk.told
    assert not desk.held


@behaviour("handover:requests")
def test_the_requests_of_an_array_are_kept_for_the_next_door_if_the_session_goes_on(
    desk: DoorCoreRig,
) -> None:
    session, _ = desk.initialized("2025-03-26")
    desk.take(desk.core.hold_requests(desk.now, sessions_end=False))
    desk.told.clear()
    x = desk.post(BATCH_ASKS, mcp_session_id=session)
    assert json.loads(desk.held[x]) == [BATCH_ASKS[0], BATCH_ASKS[2]]
    assert desk.heard("notifications/cancelled")[1] == BATCH_ASKS[1]
    assert not desk.told
    assert x not in desk.answers


def test_an_array_of_what_needs_no_server_is_answered_while_the_door_holds(desk: DoorCoreRig) -> None:
    session, s = desk.initialized("2025-03-26")
    hold(desk)
    x = desk.post([PING, request(4, "ping")], mcp_session_id=session)
    for ident in (3, 4):
        assert desk.heard("ping")[2] == x
        desk.answer(s, x, ident)
    assert [each["id"] for each in desk.body(x)] == [3, 4]


def test_a_session_may_ask_for_what_needs_no_server_while_the_door_holds(desk: DoorCoreRig) -> None:
    session, s = desk.initialized()
    hold(desk)
    x = desk.post(PING, mcp_session_id=session)
    assert desk.heard("ping")[2] == x
    desk.answer(s, x, 3)
    assert desk.status(x) == 200


@behaviour("handover:requests")
def test_what_open_calls_need_passes_while_the_door_holds(desk: DoorCoreRig) -> None:
    session, s = desk.initialized()
    call = desk.post(request(2, "tools/call", name="a", arguments={}), mcp_session_id=session)
    desk.told.clear()
    hold(desk)
    desk.tell(s, request("ask-1", "elicitation/create", message="?"), call)
    for message in (
        {"jsonrpc": "2.0", "id": "ask-1", "result": {"action": "accept"}},
        notification("notifications/cancelled", requestId=2),
    ):
        x = desk.post(message, mcp_session_id=session)
        assert desk.status(x) == 202
        assert desk.heard()[1] == message
    desk.answer(s, call, 2, content=[])
    assert desk.events(call)[-1]["result"] == {"content": []}
    assert not desk.held


@behaviour("handover:requests")
def test_a_request_that_the_ending_broker_has_not_sent_is_kept_and_not_answered(desk: DoorCoreRig) -> None:
    s, x = stateless(desk)
    hold(desk)
    desk.tell(s, {"jsonrpc": "2.0", "id": 7, **refused("closing", "tools/list")}, x)
    assert json.loads(desk.held[x]) == LIST
    assert x not in desk.answers
    assert not desk.core.has_open_calls


@behaviour("handover:requests")
def test_a_call_of_a_session_that_the_ending_broker_has_not_sent_is_answered(desk: DoorCoreRig) -> None:
    session, s = desk.initialized()
    x = desk.post(CALL, mcp_session_id=session)
    hold(desk)
    desk.tell(s, {"jsonrpc": "2.0", "id": 2, **refused("closing", "tools/call")}, x)
    assert desk.status(x) == 200
    assert not desk.held


@pytest.mark.parametrize("code", ["cut_off", "paused"])
def test_another_refusal_of_the_broker_is_an_answer(desk: DoorCoreRig, code: str) -> None:
    s, x = stateless(desk)
    hold(desk)
    desk.tell(s, {"jsonrpc": "2.0", "id": 7, **refused(code, "tools/list")}, x)
    assert desk.status(x) == 200
    assert not desk.held


def test_a_server_that_writes_the_words_of_a_refusal_has_answered(desk: DoorCoreRig) -> None:
    s, x = stateless(desk)
    hold(desk)
    desk.answer(s, x, 7, content=[], structuredContent={"code": "closing", "delivered": "no"})
    assert desk.status(x) == 200


def test_a_refusal_is_an_answer_while_the_door_does_not_hold(desk: DoorCoreRig) -> None:
    s, x = stateless(desk)
    desk.tell(s, {"jsonrpc": "2.0", "id": 7, **refused("closing", "tools/list")}, x)
    assert desk.status(x) == 200


@behaviour("handover:requests")
def test_a_refusal_ends_a_stream_of_events_that_has_begun(desk: DoorCoreRig) -> None:
    s, x = stateless(desk)
    hold(desk)
    desk.tell(s, notification("notifications/progress", progressToken=1, progress=1), x)
    desk.tell(s, {"jsonrpc": "2.0", "id": 7, **refused("closing", "tools/list")}, x)
    assert desk.events(x)[-1]["id"] == 7
    assert desk.ended == [x]
    assert not desk.held


@behaviour("handover:requests")
def test_the_end_of_a_door_ends_event_streams_and_answers_what_is_open(desk: DoorCoreRig) -> None:
    session, _ = desk.initialized()
    listens = desk.get(session)
    opened = desk.post(request(2, "tools/call", name="a", arguments={}), mcp_session_id=session)
    hold(desk)
    assert desk.core.has_open_calls
    desk.told.clear()
    desk.take(desk.core.door_ends(desk.now))
    assert desk.ended == [listens]
    assert desk.status(opened) == 502
    assert "nothing is known of its outcome" in desk.body(opened)["error"]["message"]
    assert not any(isinstance(word, CloseStream) for _, word, _ in desk.told), "the next door may ask for it"


def sse_session(desk: DoorCoreRig) -> tuple[int, int]:
    """A session of the transport of 2024-11-05: its stream, and the GET that gets all its messages."""
    get = desk.send("GET", "/sse", accept="text/event-stream")
    s, _ = desk.word()
    desk.say(s, StreamOpened("sid-9", "s9", "0.mac", "e1"))
    return s, get


@behaviour("handover:requests")
@pytest.mark.parametrize("sessions_end", [True, False])
def test_the_end_of_a_door_waits_for_calls_of_the_older_sse_transport(
    desk: DoorCoreRig, *, sessions_end: bool
) -> None:
    s, get = sse_session(desk)
    assert desk.status(desk.post(CALL, "/messages?session=sid-9")) == 202
    desk.take(desk.core.hold_requests(desk.now, sessions_end=sessions_end))
    was_open = desk.core.has_open_calls
    desk.answer(s, 0, 2, content=[])
    assert desk.events(get)[-1]["result"] == {"content": []}
    assert (was_open, desk.core.has_open_calls) == (True, False)
    desk.take(desk.core.door_ends(desk.now))
    assert desk.ended == [get]
    assert [each["id"] for each in desk.events(get)] == [2]


@behaviour("handover:requests")
def test_calls_of_the_older_sse_transport_that_are_open_at_the_end_of_a_door_get_an_error(
    desk: DoorCoreRig,
) -> None:
    s, get = sse_session(desk)
    for each in (CALL, request("x", "tools/call", name="b"), request(4, "tools/call", name="c")):
        desk.post(each, "/messages?session=sid-9")
    desk.post(notification("notifications/cancelled", requestId="x"), "/messages?session=sid-9")
    desk.answer(s, 0, 4, content=[])
    desk.take(desk.core.door_ends(desk.now))
    answered, failed = desk.events(get)
    assert answered["id"] == 4
    assert failed["id"] == 2
    assert "nothing is known of its outcome" in failed["error"]["message"]
    assert desk.ended == [get]


@behaviour("handover:requests")
@pytest.mark.parametrize("sessions_end", [True, False])
def test_a_call_of_the_older_sse_transport_is_refused_as_not_delivered_while_the_door_holds(
    desk: DoorCoreRig, *, sessions_end: bool
) -> None:
    """The stream of its answer ends with this door."""
    s, get = sse_session(desk)
    desk.take(desk.core.hold_requests(desk.now, sessions_end=sessions_end))
    desk.told.clear()
    assert desk.status(desk.post(CALL, "/messages?session=sid-9")) == 202
    (refusal,) = desk.events(get)
    fault = refusal["result"]["_meta"]["carpool/error"]
    assert (refusal["id"], fault["code"], fault["delivered"]) == (2, "closing", "no")
    assert not desk.told
    desk.post(PING, "/messages?session=sid-9")
    assert desk.heard("ping")[0] == s
    desk.post(notification("notifications/cancelled", requestId=1), "/messages?session=sid-9")
    assert desk.heard()[1]["method"] == "notifications/cancelled"


@behaviour("handover:requests")
def test_a_stream_of_the_older_sse_transport_that_comes_while_the_door_holds_is_kept(
    desk: DoorCoreRig,
) -> None:
    hold(desk)
    x = desk.send("GET", "/sse", accept="text/event-stream")
    assert desk.held == {x: b""}
    assert not desk.told


@behaviour("handover:requests")
@pytest.mark.parametrize(
    ("body", "ident"), [(json.dumps(LIST).encode(), 7), (b"[]", None), (b"{", None), (b"", None)]
)
def test_a_request_that_cannot_be_kept_is_refused_as_not_delivered(
    desk: DoorCoreRig, body: bytes, ident: Any
) -> None:
    hold(desk)
    one = HttpRequest("POST", "/mcp", "", {"accept": BOTH}, body)
    answer = desk.core.held_refusal(5, one)
    assert (answer.x, answer.status, dict(answer.headers)) == (5, 503, {"Retry-After": "1"})
    told = json.loads(answer.body)
    assert told["id"] == ident
    assert "not delivered" in told["error"]["message"]


def test_without_a_broker_everything_has_reached_it(desk: DoorCoreRig) -> None:
    desk.take(desk.core.broker_lost(desk.now))
    desk.take(desk.core.hold_requests(desk.now))
    assert desk.all_held


@behaviour("handover:requests")
def test_a_launcher_that_restarts_carpool_after_a_change_of_settings_hears_that_requests_are_held(
    desk: DoorCoreRig,
) -> None:
    """It waits for that before it tells the broker to drain."""
    session, _ = desk.initialized()
    desk.told.clear()
    desk.take(desk.core.hold_requests(desk.now, sessions_end=False))
    s, _ = desk.word()
    first = desk.heard("ping")[2]
    desk.answer(s, first)
    desk.all_held = False
    desk.take(desk.core.hold_requests(desk.now))
    desk.answer(s, desk.heard("ping")[2])
    assert desk.all_held
    x = desk.post(CALL, mcp_session_id=session)
    assert desk.status(x) == 200, "the session ends now, so its calls are refused"


def test_a_broker_that_dies_during_the_question_has_read_everything(desk: DoorCoreRig) -> None:
    desk.take(desk.core.hold_requests(desk.now))
    held_before = desk.all_held
    desk.take(desk.core.broker_lost(desk.now))
    assert (held_before, desk.all_held) == (False, True)


def test_the_next_door_waits_longer_for_its_first_broker() -> None:
    desk = DoorCoreRig(linked=False)
    assert desk.core.waits_until("/mcp", {"host": "localhost"}, 0.0) == 3.0
    patient = HttpCore(desk.core.rules, desk.core.gate, patience_s=25.0)
    assert patient.waits_until("/mcp", {"host": "localhost"}, 0.0) == 25.0
    assert patient.waits_until("/health", {"host": "localhost"}, 0.0) == 0.0
    patient.broker_given_up(25.0)
    assert patient.waits_until("/mcp", {"host": "localhost"}, 25.0) == 28.0
