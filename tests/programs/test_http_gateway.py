"""The gateway that makes a server reachable over HTTP keeps to the protocol."""

import http.client
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest

from tests.kit.live import SERVERS
from tests.kit.ports import free_port
from tests.programs.script import Json
from tests.programs.stage import GATEWAY

HELLO = {
    "protocolVersion": "2025-11-25",
    "capabilities": {},
    "clientInfo": {"name": "test", "version": "1"},
}
Answer = tuple[int, str, list[Json]]


class GatewayClient:
    """Sends single requests."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.session = ""

    def post(self, message: Json, session: str = "") -> Answer:
        headers = {"Content-Type": "application/json", **({"Mcp-Session-Id": session} if session else {})}
        return self._ask("POST", json.dumps({"jsonrpc": "2.0", **message}), headers)

    def end(self, session: str) -> int:
        return self._ask("DELETE", "", {"Mcp-Session-Id": session})[0]

    @contextmanager
    def news(self, session: str) -> Iterator[Iterator[bytes]]:
        """The lines on the stream of the session."""
        with closing(http.client.HTTPConnection("127.0.0.1", self._port, timeout=60)) as connection:
            connection.request("GET", "/mcp", headers={"Mcp-Session-Id": session})
            with connection.getresponse() as stream:
                yield iter(stream.readline, b"")

    def _ask(self, method: str, body: str, headers: dict[str, str]) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=60)
        connection.request(method, "/mcp", body, headers)
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        events = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: ")]
        return answer.status, answer.headers.get("Mcp-Session-Id", ""), events


def request(method: str, **params: Any) -> Json:
    return {"id": 1, "method": method, "params": params}


@pytest.fixture
def client() -> Iterator[GatewayClient]:
    port = free_port()
    python = [sys.executable, "-S", "-E"]
    command = [*python, str(SERVERS / GATEWAY), str(port), *python, str(SERVERS / "odd.py")]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as gateway:
        assert gateway.stdout is not None
        assert gateway.stdout.readline() == b"listens\n"
        found = GatewayClient(port)
        try:
            _, found.session, _ = found.post(request("initialize", **HELLO))
            yield found
        finally:
            found.end(found.session)
            gateway.terminate()


def test_a_request_of_no_session_and_of_an_unknown_one_are_refused(client: GatewayClient) -> None:
    assert client.post(request("tools/list"))[0] == 400
    assert client.post(request("tools/list"), "never-was")[0] == 404


def test_a_session_is_unknown_once_it_has_been_ended(client: GatewayClient) -> None:
    _, other, _ = client.post(request("initialize", **HELLO))
    assert client.end(other) == 200
    assert client.post(request("tools/list"), other)[0] == 404
    assert client.post(request("ping"), client.session)[2] == [{"jsonrpc": "2.0", "id": 1, "result": {}}]


def test_the_progress_of_a_call_comes_before_its_answer_on_the_same_stream(client: GatewayClient) -> None:
    arguments = {"name": "steps", "arguments": {"seconds": 0.1}, "_meta": {"progressToken": "t"}}
    status, _, events = client.post(request("tools/call", **arguments), client.session)
    assert status == 200
    assert [each["params"]["message"] for each in events[:-1]] == ["step 1", "step 2", "step 3"]
    assert events[-1]["result"]["content"][0]["text"] == "steps are done, told"


def test_a_change_of_the_list_comes_on_the_stream_of_the_session(client: GatewayClient) -> None:
    with client.news(client.session) as lines:
        client.post(request("tools/call", name="grow"), client.session)
        assert any(b"notifications/tools/list_changed" in line for line in lines)
