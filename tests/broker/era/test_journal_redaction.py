"""What agents say in their own words or give to servers is in no journal of the broker's."""

import json
from typing import Any

import msgspec
import pytest

from carpool_broker.era import handshake
from carpool_protocol.ids import SessionId
from carpool_protocol.machine.journal import Journal
from tests.behaviours import behaviour

SECRET = "hunter2-hunter2"
META: dict[str, Any] = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {"secret": SECRET},
    "secret": SECRET,
}
SAID: list[dict[str, Any]] = [
    {"id": 1, "method": "tools/call", "params": {"name": "t", "arguments": {"a": SECRET}, "_meta": META}},
    {"id": 1, "method": "tools/call", "params": {"name": "t", "arguments": {"a": SECRET}, "x": SECRET}},
    {
        "id": 1,
        "method": "tools/call",
        "params": {"name": "t", "inputResponses": {"k": {"a": SECRET}}, "_meta": META},
    },
    {"id": 1, "method": "tools/call", "params": {"name": [SECRET]}},
    {"id": 1, "method": "prompts/get", "params": {"name": "p", "arguments": {"a": SECRET}}},
    {
        "id": 1,
        "method": "completion/complete",
        "params": {"ref": {"type": "ref/prompt", "name": "p"}, "argument": {"name": "a", "value": SECRET}},
    },
    {"id": 1, "method": "no/such", "params": {"a": SECRET}},
    {"id": 1, "method": "resources/read", "params": {"uri": [SECRET]}},
    {"id": 1, "method": "logging/setLevel", "params": {"level": [SECRET]}},
    {"method": "notifications/cancelled", "params": {"requestId": 1, "reason": SECRET}},
    {"method": "notifications/progress", "params": {"progressToken": "7", "progress": 1, "message": SECRET}},
    {"id": "7", "result": {"action": "accept", "content": {"password": SECRET}}},
    {"id": "7", "error": {"code": -1, "message": SECRET, "data": SECRET}},
]


@behaviour("private:no-secret-is-told")
@pytest.mark.parametrize("message", SAID, ids=lambda message: message.get("method", "an answer"))
def test_a_journal_keeps_nothing_of_what_an_agent_gives_to_a_server(message: dict[str, Any]) -> None:
    meaning = handshake.read_line(
        SessionId("s1"), json.dumps({"jsonrpc": "2.0", **message}).encode(), key=b"k"
    )
    journal = Journal()
    journal.record(1.0, meaning, [meaning])
    assert isinstance(meaning, msgspec.Struct)
    assert SECRET not in journal.dump().decode()
    assert SECRET not in "".join(entry.line() for entry in journal.entries())
