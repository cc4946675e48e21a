"""Lines of a server that are no valid message: log lines, bytes that are not UTF-8, arrays of messages."""

from typing import Any

import pytest

from carpool_protocol.ids import ABSENT, CallId, RawJson, SessionId, WireId
from carpool_protocol.link.messages import Call
from carpool_protocol.wire.jsonrpc import MAX_ID_BYTES
from carpool_supervisor.core.model.events import (
    AnswerUnreadable,
    InstanceGreeted,
    ServerAnswered,
    ServerLineRejected,
    ServerLogged,
)
from carpool_supervisor.era.odd_lines import BATCH_VERSION, MAX_BATCH
from tests.behaviours import behaviour
from tests.supervisor.era.test_costly_lines import ERAS as ADAPTERS
from tests.supervisor.era.test_costly_lines import KEY, ME
from tests.supervisor.era.test_handshake import HandshakeRig, line
from tests.supervisor.era.test_stateless import StatelessAdapterRig

LOG_LINES = [
    b'{"id":7,"msg":"done"}',
    b'{"id":7,"result":{"content":[]}}',
    b'{"jsonrpc":"1.0","id":7,"result":{}}',
    b'{"level":"info","method":"GET","id":7}',
    b'{"level":"info","method":"GET"}',
]


def serving(era: str) -> Any:
    rig: Any = HandshakeRig() if era == "handshake" else StatelessAdapterRig()
    if era == "handshake":
        rig.fit("t")
    else:
        rig.fit(tools={})
    return rig


@behaviour("lines:log-lines")
@pytest.mark.parametrize("era", ["handshake", "stateless"])
@pytest.mark.parametrize("text", LOG_LINES)
def test_a_line_without_the_version_of_json_rpc_ends_no_call_and_gets_no_answer(
    text: bytes, era: str
) -> None:
    events, out = serving(era).say(text, line(id=7, result={"content": [], "resultType": "complete"}))
    assert [type(event) for event in events] == [ServerLineRejected, ServerAnswered]
    assert out == []


@behaviour("answers:repaired")
@pytest.mark.parametrize("era", ["handshake", "stateless"])
@pytest.mark.parametrize("method", ["prompts/get", "resources/read", "completion/complete"])
@pytest.mark.parametrize(
    ("result", "what"), [(5, "a number"), (None, "null"), ([], "an array"), ("x", "a string")]
)
def test_a_result_that_is_no_object_ends_its_call(result: object, what: str, method: str, era: str) -> None:
    adapter = ADAPTERS[era]()
    call = Call(CallId(1), KEY, SessionId("s"), method, "t", RawJson(b"{}"), ABSENT, wants_progress=False)
    adapter.call_line(WireId(5), call)
    [event], _ = adapter.feed([line(id=5, result=result)])
    assert event == AnswerUnreadable(ME, WireId(5), "bad_answer", f"The result was {what}, not an object.")
    adapter.call_line(WireId(6), call)
    [event], _ = adapter.feed([line(id=6, result={"x": 1})])
    assert isinstance(event, ServerAnswered)


@behaviour("lines:bad-bytes")
@pytest.mark.parametrize("era", ["handshake", "stateless"])
def test_bytes_that_are_not_utf_8_cost_no_greeting_and_no_list(era: str) -> None:
    rig: Any = HandshakeRig() if era == "handshake" else StatelessAdapterRig()
    if era == "handshake":
        greeting = line(
            id=rig.initialize["id"],
            result={"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "instructions": "a ? b"},
        )
        events, out = rig.say(greeting.replace(b"?", b"\x97"))
        assert [type(event) for event in events] == [ServerLineRejected]
    else:
        out = rig.discovered(tools={})
    tools = [{"name": "a", "description": "caf?"}, {"name": "b"}]
    listing = line(id=out[-1]["id"], result={"tools": tools, "resultType": "complete"})
    events, _ = rig.say(listing.replace(b"?", b"\xe9"))
    assert [type(event) for event in events] == [ServerLineRejected, InstanceGreeted]
    assert "not valid UTF-8" in events[0].text
    catalog = events[1].catalog
    assert [offer.name for offer in catalog.tools] == ["a", "b"]
    assert "caf\ufffd".encode() in catalog.tools[0].definition
    assert catalog.instructions == ("a \ufffd b" if era == "handshake" else "Be kind.")


@pytest.mark.parametrize("era", ["handshake", "stateless"])
def test_an_answer_that_is_not_utf_8_ends_its_call_as_unreadable(era: str) -> None:
    events, _ = serving(era).say(
        b'{"jsonrpc":"2.0","id":7,"result":{"content":[{"type":"text","text":"\xe9"}]}}'
    )
    assert [type(event) for event in events] == [AnswerUnreadable]


def test_a_request_of_a_server_that_is_not_utf_8_is_answered() -> None:
    events, out = serving("handshake").say(b'{"jsonrpc":"2.0","id":7,"method":"ping","params":{"a":"\xe9"}}')
    assert [message["id"] for message in out] == [7]
    assert [type(event) for event in events] == [ServerLineRejected]


@behaviour("batches:of-servers")
@pytest.mark.parametrize("version", [BATCH_VERSION, "2025-06-18"])
def test_an_array_of_messages_is_read_from_a_server_of_the_version_that_has_them(version: str) -> None:
    rig = HandshakeRig()
    rig.accept(version, logging={})
    note = line(method="notifications/message", params={"level": "info", "data": "x"})
    answer = line(id=3, result={"content": []})
    events, out = rig.say(b" [%b,%b, %b]" % (note, answer, line(id="p", method="ping")), b"[[]]", b"[]")
    if version != BATCH_VERSION:
        kinds = [ServerLineRejected, AnswerUnreadable, ServerLineRejected, ServerLineRejected]
        assert [type(event) for event in events] == kinds
        return
    assert [message["id"] for message in out] == ["p"]
    kinds = [ServerLogged, ServerAnswered, ServerLineRejected, ServerLineRejected]
    assert [type(event) for event in events] == kinds


@behaviour("batches:of-servers")
@pytest.mark.parametrize("odd", [b"1", b"null", b'"x"', b"[]", b'[{"id":4}]'])
def test_a_member_of_an_array_that_is_no_object_is_rejected_and_the_others_are_read(odd: bytes) -> None:
    rig = HandshakeRig()
    rig.accept(BATCH_VERSION, logging={})
    answer = line(id=3, result={"content": []})
    events, _ = rig.say(b"[%b,%b,%b]" % (odd, answer, odd))
    assert [event.wire for event in events if isinstance(event, ServerAnswered)] == [3]
    rejected = [event.text for event in events if isinstance(event, ServerLineRejected)]
    assert rejected == ["wrote a line that is no message: it is in an array and is no object"] * 2


@behaviour("batches:of-servers")
@pytest.mark.parametrize("version", [BATCH_VERSION, "2025-06-18", "2026-07-28"])
def test_the_calls_that_an_array_answers_that_is_not_read_end_as_unreadable(version: str) -> None:
    rig: Any = serving("stateless") if version == "2026-07-28" else HandshakeRig()
    if isinstance(rig, HandshakeRig):
        rig.accept(version, logging={})
    note = line(method="notifications/message", params={"level": "info", "data": "x"})
    count = MAX_BATCH if version == BATCH_VERSION else 1
    answers = [line(id=7, result={"content": []}), line(id="other", result={})]
    events, _ = rig.say(b"[%b]" % b",".join([*[note] * count, *answers]))
    assert [type(event) for event in events] == [ServerLineRejected, AnswerUnreadable]
    assert (events[1].wire, events[1].fault) == (7, "bad_answer")
    assert "array" in events[0].text
    assert "array" in events[1].text


@behaviour("batches:of-servers")
@pytest.mark.parametrize("count", [MAX_BATCH, MAX_BATCH + 1, 100_000])
def test_an_array_of_too_many_messages_is_not_read(count: int) -> None:
    rig = HandshakeRig()
    rig.accept(BATCH_VERSION, logging={})
    note = line(method="notifications/message", params={"level": "info", "data": "x"})
    events, _ = rig.say(b"[%b]" % b",".join([note] * count))
    expected = [ServerLogged] * count if count <= MAX_BATCH else [ServerLineRejected]
    assert [type(event) for event in events] == expected


@behaviour("pressure:answers-of-carpool")
@pytest.mark.parametrize("era", ["handshake", "stateless"])
@pytest.mark.parametrize("method", ["ping", "sampling/createMessage", "no/such"])
def test_no_answer_repeats_a_long_id_and_the_request_is_refused(era: str, method: str) -> None:
    one = serving(era)
    for size_bytes, repeated in ((MAX_ID_BYTES, True), (MAX_ID_BYTES + 1, False)):
        request_id = "x" * (size_bytes - 2)
        events, [answer] = one.say(line(id=request_id, method=method, params={}))
        assert not events
        assert answer["id"] == (request_id if repeated else None)
        assert repeated or "error" in answer


@behaviour("pressure:answers-of-carpool")
@pytest.mark.parametrize("era", ["handshake", "stateless"])
def test_the_answer_to_an_invalid_request_repeats_no_long_id(era: str) -> None:
    _, [answer] = serving(era).say(line(id="x" * MAX_ID_BYTES, method="ping", params=7))
    assert answer["id"] is None


@behaviour("pressure:answers-of-carpool")
@pytest.mark.parametrize("era", ["handshake", "stateless"])
def test_the_answer_to_an_unknown_request_repeats_little_of_its_method(era: str) -> None:
    _, [answer] = serving(era).say(line(id=1, method="m" * 100_000))
    assert len(str(answer)) < 1000
