"""A line of a server costs a bounded number of steps, whatever it holds (rules 16 and 17)."""

from collections.abc import Callable

import pytest

from carpool_protocol.ids import ABSENT, CallId, InstanceId, PoolKey, RawJson, SessionId, WireId
from carpool_protocol.link.messages import Call
from carpool_supervisor.core.model.events import AnswerUnreadable, OwnEvent, ServerAsked
from carpool_supervisor.era.adapter import EraAdapter
from carpool_supervisor.era.handshake import HandshakeAdapter
from carpool_supervisor.era.input_rounds import MAX_KEPT_BYTES
from carpool_supervisor.era.server_requests import Declared
from carpool_supervisor.era.stateless import StatelessAdapter
from tests.behaviours import behaviour
from tests.kit.bytecodes import count_bytecodes
from tests.kit.costly_values import COSTLY

ME = InstanceId(1)
KEY = PoolKey("s:1")
ASKING = Declared(asking=True, life=b"x" * 32)
MOST_BYTECODES = 10_000
"""A fraction of a millisecond. Work in C, a pass over the line each, is not counted."""

ANSWER = b'{"jsonrpc":"2.0","id":5,"result":{%b}}'
ERROR = b'{"jsonrpc":"2.0","id":5,"error":{"code":%b,"message":"m","data":{%b}}}'
NOTICE = b'{"jsonrpc":"2.0","method":"notifications/%b","params":{%b}}'
INPUT = (
    b'"resultType":"input_required","requestState":"a","inputRequests":{"a":{"method":"%b","params":{%b}}}'
)
SAMPLING = b"sampling/createMessage"
ELICITATION = b"elicitation/create"
ASK = b'{"jsonrpc":"2.0","id":"q","method":"%b","params":{%b}}'

LINES: dict[str, bytes] = {
    "content": ANSWER % b'"content":%b',
    "meta of a result": ANSWER % b'"_meta":{"x":%b},"content":[]',
    "mark": ANSWER % b'"_meta":{"carpool/error":%b},"content":[]',
    "name of the server": ANSWER % b'"_meta":{"io.modelcontextprotocol/serverInfo":%b},"content":[]',
    "structured content": ANSWER % b'"isError":false,"structuredContent":%b,"content":null',
    "text": ANSWER % b'"text":"a","x":%b',
    "result": ANSWER % b'"result":%b',
    "hints": ANSWER % b'"ttlMs":5,"content":[],"x":%b',
    "task": ANSWER % b'"task":{"taskId":"T","x":%b}',
    "URLs first": ERROR % (b"-32042", b'"elicitations":%b'),
    "data of an error": ERROR % (b"-32603", b'"delivered":"no","x":%b'),
    "sampling": ASK % (SAMPLING, b'"messages":%b,"_meta":{"a":1}'),
    "meta of a sampling": ASK % (SAMPLING, b'"messages":[],"_meta":{"traceparent":"a","a":%b}'),
    "task of a sampling": ASK
    % (SAMPLING, b'"messages":[],"_meta":{"io.modelcontextprotocol/related-task":{"taskId":"T","x":%b}}'),
    "elicitation": ASK % (ELICITATION, b'"message":"a","requestedSchema":%b'),
    "progress": NOTICE % (b"progress", b'"progressToken":"s-5","progress":1,"x":%b'),
    "log": NOTICE % (b"message", b'"level":"info","data":%b'),
    "update": NOTICE % (b"resources/updated", b'"uri":"file:///x","x":%b'),
    "cancel": NOTICE % (b"cancelled", b'"requestId":"q","reason":%b'),
    "end of an elicitation": NOTICE % (b"elicitation/complete", b'"elicitationId":"q","x":%b'),
    "status of a task": NOTICE % (b"tasks/status", b'"taskId":"T","status":"working","x":%b'),
    "form": ANSWER % (INPUT % (ELICITATION, b'"message":"a","requestedSchema":%b')),
    "required sampling": ANSWER % (INPUT % (SAMPLING, b'"messages":[],"_meta":{"a":%b}')),
    "state": ANSWER % b'"resultType":"input_required","requestState":%b',
    "garbage": ANSWER % b'"content":%b' + b"x",
}


def handshake() -> EraAdapter:
    adapter = HandshakeAdapter(ME, KEY, "1.0", ASKING, max_total_s=100.0)
    adapter.greeting_line()
    greeting = b'"protocolVersion":"2025-11-25","capabilities":{"tools":{},"resources":{"subscribe":true}}'
    adapter.feed([b'{"jsonrpc":"2.0","id":"carpool-initialize-1","result":{%b}}' % greeting])
    return adapter


def stateless() -> EraAdapter:
    adapter = StatelessAdapter(ME, KEY, "1.0", ASKING)
    adapter.greeting_line()
    greeting = b'"resultType":"complete","supportedVersions":["2026-07-28"],"capabilities":{"tools":{}}'
    adapter.feed([b'{"jsonrpc":"2.0","id":"carpool-discover-1","result":{%b}}' % greeting])
    return adapter


ERAS: dict[str, Callable[[], EraAdapter]] = {"handshake": handshake, "stateless": stateless}


def read(era: str, line: bytes) -> tuple[list[OwnEvent], list[bytes], int]:
    """The events and lines for a line of a server that runs call 5, and the bytecodes it costs."""
    adapter = ERAS[era]()
    call = Call(
        CallId(1), KEY, SessionId("s"), "tools/call", "t", RawJson(b"{}"), ABSENT, wants_progress=True
    )
    adapter.call_line(WireId(5), call)
    found: list[tuple[list[OwnEvent], list[bytes]]] = []
    count = count_bytecodes(lambda: found.append(adapter.feed([line])))
    return *found[0], count


@behaviour("lines:bounded-scan", "answers:bounded-rewrite")
@pytest.mark.parametrize("value", COSTLY.values(), ids=COSTLY)
@pytest.mark.parametrize("line", [line for name, line in LINES.items() if name != "garbage"])
@pytest.mark.parametrize("era", ERAS)
def test_a_line_costs_a_bounded_number_of_steps(era: str, line: bytes, value: bytes) -> None:
    assert read(era, line.replace(b"%b", value))[2] < MOST_BYTECODES


@behaviour("lines:bounded-scan")
@pytest.mark.parametrize("value", COSTLY.values(), ids=COSTLY)
@pytest.mark.parametrize("era", ERAS)
def test_a_line_that_cannot_be_read_costs_a_bounded_number_of_steps(era: str, value: bytes) -> None:
    events, _, count = read(era, LINES["garbage"].replace(b"%b", value))
    assert count < 100 * MOST_BYTECODES
    assert [type(event) for event in events] == [AnswerUnreadable]


@behaviour("answers:bounded-rewrite")
@pytest.mark.parametrize("name", ["sampling", "meta of a sampling", "elicitation"])
def test_a_request_with_too_many_parts_is_refused_as_a_whole(name: str) -> None:
    events, [refusal], _ = read("handshake", LINES[name].replace(b"%b", COSTLY["towers"]))
    assert events == []
    assert b'"id":"q","error":{"code":-32602,' in refusal
    assert b"the params have more than 20,000 parts" in refusal
    events, out, _ = read("handshake", LINES[name].replace(b"%b", COSTLY["text"]))
    assert [type(event) for event in events] == [ServerAsked]
    assert out == []


@behaviour("answers:bounded-rewrite")
@pytest.mark.parametrize(
    ("era", "name", "text"),
    [
        ("stateless", "form", "inputRequests has more than 20,000 parts."),
        ("stateless", "required sampling", "inputRequests has more than 20,000 parts."),
        ("handshake", "URLs first", "The error that sends its agent to URLs has more than 20,000 parts."),
    ],
)
def test_an_answer_that_asks_for_something_in_too_many_parts_is_too_large(
    era: str, name: str, text: str
) -> None:
    events, out, _ = read(era, LINES[name].replace(b"%b", COSTLY["objects"]))
    [event] = events
    assert isinstance(event, AnswerUnreadable)
    assert event.fault == "answer_too_large"
    assert event.text.endswith(text)
    assert out == []


@behaviour("rounds:bounded-state")
@pytest.mark.parametrize("more", [0, 1])
@pytest.mark.parametrize("key", [b'"a"', b'"' + b"k" * 1000 + b'"'], ids=["short key", "long key"])
def test_what_a_round_keeps_of_its_answer_is_bounded(key: bytes, more: int) -> None:
    state = b'"%b"' % (b"x" * (MAX_KEPT_BYTES - len(key) - 2 + more))
    form = b'{"method":"elicitation/create","params":{"message":"a","requestedSchema":{}}}'
    parts = b'"resultType":"input_required","requestState":%b,"inputRequests":{%b:%b}' % (state, key, form)
    events, out, _ = read("stateless", ANSWER % parts)
    [event] = events
    if more:
        assert isinstance(event, AnswerUnreadable)
        assert event.fault == "answer_too_large"
        assert "requestState and the keys of inputRequests have more than 1,048,576 bytes" in event.text
    else:
        assert isinstance(event, ServerAsked)
    assert out == []
