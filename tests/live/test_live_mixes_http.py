"""Every mix of eras at the HTTP door: the official client is asked through it; tokens of rounds."""

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any, Final

import mcp
import pytest
import trio
from mcp import types

from carpool.http.core.access import hash_of
from tests.behaviours import behaviour
from tests.kit.era_matrix import MATRIX
from tests.kit.line_agent import LIMIT_S, WAIT_S, Json
from tests.kit.live import Daemon, Make
from tests.kit.open_door import open_door
from tests.kit.private_daemon import until
from tests.kit.scripted_agents import ASKABLE, said_by
from tests.kit.stateless_agent import MODERN, PREFIX
from tests.live.conftest import shared_daemon

SERVERS: Final = {"old": "sdk2-legacy", "new": "sdk2-modern"}
CONFIRM: Final = "test_input_required_result_request_state"
ROUNDS: Final = "test_input_required_result_multi_round"


def servers() -> dict[str, Json]:
    return {name: MATRIX[column].entry(sharing="concurrent") for name, column in SERVERS.items()}


@pytest.fixture(scope="module")
def door() -> Iterator[Daemon]:
    """Not `shared`: of stateless agents the door keeps one session for all, also between two tests."""
    yield from shared_daemon(servers(), http=open_door())


def url_of(daemon: Daemon, server: str) -> str:
    """Where the door serves this one server."""
    file = daemon.directory / "http.json"
    until(file.exists, "the door listens")
    found: str = json.loads(file.read_text())["url"]
    return f"{found}/s/{server}"


@behaviour("eras:every-mix", "eras:rounds")
@pytest.mark.parametrize("server", SERVERS)
@pytest.mark.parametrize("mode", ["legacy", "auto", MODERN])
# The SDK's client leaves generators of its HTTP library unfinished under trio.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.filterwarnings("ignore::mcp.shared.exceptions.MCPDeprecationWarning")
async def test_the_official_client_is_asked_and_told_progress_through_the_door(
    door: Daemon, server: str, mode: str
) -> None:
    heard: list[tuple[float, float | None, str | None]] = []

    async def elicited(context: Any, params: types.ElicitRequestParams) -> types.ElicitResult:
        said = said_by("anna", "elicitation/create", params.model_dump(by_alias=True))
        return types.ElicitResult.model_validate(said)

    async def told(progress: float, total: float | None, message: str | None) -> None:
        heard.append((progress, total, message))

    with trio.fail_after(LIMIT_S):
        async with mcp.Client(url_of(door, server), mode=mode, elicitation_callback=elicited) as client:
            assert client.protocol_version == ("2025-11-25" if mode == "legacy" else MODERN)
            found = await client.call_tool(ROUNDS)
            text = "anna on Step 1: What is your name? likes anna on Step 2: What is your favorite color?."
            assert [each.text for each in found.content if isinstance(each, types.TextContent)] == [text]
            await client.call_tool("test_tool_with_progress", progress_callback=told)
            assert heard == [(at, 100, f"{at} of 100") for at in (0, 50, 100)]


def post(url: str, params: Json, bearer: str) -> Json:
    """One stateless `tools/call`; its message, whatever the status."""
    meta = {f"{PREFIX}protocolVersion": MODERN, f"{PREFIX}clientCapabilities": ASKABLE}
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {**params, "_meta": meta}}
    headers = {
        "Content-Type": "application/json",
        "Accept": "application/json, text/event-stream",
        "MCP-Protocol-Version": MODERN,
        "Mcp-Method": "tools/call",
        "Mcp-Name": params["name"],
        **({"Authorization": f"Bearer {bearer}"} if bearer else {}),
    }
    asked = urllib.request.Request(url, json.dumps(message).encode(), headers)
    try:
        with urllib.request.urlopen(asked, timeout=WAIT_S) as answer:
            found: Json = json.loads(answer.read())
    except urllib.error.HTTPError as error:
        with error:
            found = json.loads(error.read())
    return found


@behaviour("eras:tokens")
@pytest.mark.parametrize("server", SERVERS)
def test_the_token_of_a_round_is_good_once_and_under_its_own_bearer_token_only(
    daemon: Make, server: str
) -> None:
    bearers = {name: f"{name}-{'x' * 40}" for name in ("anna", "eve")}
    tokens = {name: hash_of(each) for name, each in bearers.items()}
    one = daemon({server: servers()[server]}, http={"port": 0, "tokens": tokens})
    url = url_of(one, server)
    params: Json = {"name": CONFIRM, "arguments": {}}

    def refused(params: Json, name: str) -> None:
        assert post(url, params, bearers[name])["error"]["code"] == -32602

    first = post(url, params, bearers["anna"])["result"]
    assert first["resultType"] == "input_required"
    given = {
        key: said_by("anna", each["method"], each["params"]) for key, each in first["inputRequests"].items()
    }
    retry = {**params, "inputResponses": given, "requestState": first["requestState"]}
    refused(retry, "eve")
    refused({**retry, "arguments": {"more": 1}}, "anna")
    assert post(url, retry, bearers["anna"])["result"]["content"][0]["text"] == "state-ok, ok=True"
    refused(retry, "anna")
    assert "error" in post(url, params, "made up")
