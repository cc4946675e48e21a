"""The sizes of lines without a result, however they begin."""

import pytest

from carpool_protocol.machine.journal import Journal
from carpool_protocol.machine.journal_shapes import MAX_NAMES_CHARS, kept_bytes
from carpool_protocol.wire.jsonrpc import InvalidLine, decode
from carpool_protocol.wire.lines import OverlongLine
from carpool_supervisor.core.model.events import (
    AnswerUnreadable,
    OwnEvent,
    ServerAnswered,
    ServerLineRejected,
)
from carpool_supervisor.era.line_sizes import MAX_LINE_BYTES, MAX_NOTIFICATION_BYTES, overlong
from tests.behaviours import behaviour
from tests.supervisor.era.test_costly_lines import ASK, ELICITATION, ERROR, LINES, NOTICE, SAMPLING, read

ERAS = ["handshake", "stateless"]
DISGUISES = [b'"result":null,', b'"result":0,"result":null,']
"""Members before the others, with which a line begins as if it held a result."""


def sized(line: bytes, size_bytes: int) -> bytes:
    return line.replace(b"%b", b"x" * (size_bytes - len(line) + 2))


def checked(line: bytes) -> OverlongLine | None:
    message = decode(line)
    assert not isinstance(message, InvalidLine)
    return overlong(line, message)


@behaviour("lines:no-result-no-room")
@pytest.mark.parametrize("hidden", [b"", *DISGUISES])
@pytest.mark.parametrize(
    ("line", "most"),
    [
        (b'"method":"notifications/message","params":{"data":"%b"}}', MAX_NOTIFICATION_BYTES),
        (b'"id":7,"method":"sampling/createMessage","params":{"m":"%b"}}', MAX_LINE_BYTES),
        (b'"id":7,"error":{"code":1,"message":"%b"}}', MAX_LINE_BYTES),
    ],
    ids=["notification", "request", "error"],
)
def test_the_limit_is_that_of_the_message(line: bytes, most: int, hidden: bytes) -> None:
    whole = b'{"jsonrpc":"2.0",%b' % hidden + line
    assert checked(sized(whole, most)) is None
    refused = checked(sized(whole, most + 1))
    assert refused is not None
    assert refused.size_bytes == most + 1
    assert refused.id == (None if most == MAX_NOTIFICATION_BYTES else b"7")


@behaviour("lines:no-result-no-room")
@pytest.mark.parametrize("era", ERAS)
def test_a_long_result_is_read_and_a_long_error_ends_its_call(era: str) -> None:
    content = b'"resultType":"complete","content":[{"type":"text","text":"%b"}]'
    events = told(era, sized(b'{"jsonrpc":"2.0","id":5,"result":{' + content + b"}}", MAX_LINE_BYTES + 9))
    assert [type(event) for event in events] == [ServerAnswered]
    events = told(
        era, sized(b'{"jsonrpc":"2.0","id":5,"error":{"code":1,"message":"%b"}}', MAX_LINE_BYTES + 9)
    )
    [ended] = events
    assert isinstance(ended, AnswerUnreadable)
    assert ended.fault == "answer_too_large"


@behaviour("lines:no-result-no-room")
@pytest.mark.parametrize("hidden", DISGUISES)
@pytest.mark.parametrize("era", ERAS)
def test_a_request_that_begins_as_a_result_is_refused(era: str, hidden: bytes) -> None:
    line = b'{"jsonrpc":"2.0",%b' % hidden + b'"params":{"%b":1},"id":"q","method":"sampling/createMessage"}'
    events, out, _ = read(era, sized(line, MAX_LINE_BYTES + 1))
    assert [type(event) for event in events] == [ServerLineRejected]
    if era == "handshake":
        [refusal] = out
        assert b'"id":"q","error":{"code":-32600' in refusal


def told(era: str, line: bytes) -> list[OwnEvent]:
    return read(era, line)[0]


LONG = '"\U0001f600{}"'.format("x" * 200_000).encode()
"""A text that takes four bytes of memory for each of its characters."""
ID = "\U0001f600".encode() + b"x" * 1000
IDS = b",".join(b'{"elicitationId":"%b%d"}' % (ID, at) for at in range(100))
NAMES: dict[str, bytes] = {
    **LINES,
    "level": NOTICE % (b"message", b'"level":%b,"data":1'),
    "cancelled ask": NOTICE % (b"cancelled", b'"requestId":%b'),
    "ended elicitation": NOTICE % (b"elicitation/complete", b'"elicitationId":%b'),
    "asked elicitation": ASK % (ELICITATION, b'"mode":"url","url":"u","message":"a","elicitationId":%b'),
    "task": NOTICE % (b"tasks/status", b'"taskId":%b,"status":"working"'),
    "task of this era": NOTICE % (b"tasks", b'"taskId":%b,"status":"working"'),
    "related task": ASK
    % (SAMPLING, b'"messages":[],"_meta":{"io.modelcontextprotocol/related-task":{"taskId":%b}}'),
    "trace": ASK % (SAMPLING, b'"messages":[],"_meta":{"traceparent":%b}'),
    "token": ASK % (SAMPLING, b'"messages":[],"_meta":{"progressToken":%b}'),
    "updated": NOTICE % (b"resources/updated", b'"uri":%b'),
    "ids of URLs": ERROR % (b"-32042", b'"elicitations":[%b]' % IDS),
}


@behaviour("lines:no-result-no-room")
@pytest.mark.parametrize("line", NAMES.values(), ids=NAMES)
@pytest.mark.parametrize("era", ERAS)
def test_a_journal_keeps_little_of_a_line_with_a_long_name(era: str, line: bytes) -> None:
    journal = Journal()
    for event in read(era, line.replace(b"%b", LONG))[0]:
        journal.record(0.0, event, [])
    assert sum(kept_bytes(event) for _, event, _ in journal._ring) < 5 * MAX_NAMES_CHARS
