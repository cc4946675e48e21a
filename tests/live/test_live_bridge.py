"""The bridge alone: a stdio server to whoever starts it, a server over a URL behind it."""

import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from carpool_protocol.carrier.remote import Remote
from tests.behaviours import behaviour
from tests.kit.line_agent import LIMIT_S, Json, LineAgent, fault_of
from tests.kit.private_daemon import ROOTS
from tests.kit.remote_server import RemoteServer, remote_server
from tests.kit.waits import until

BIG = 123456789012345678901234567890
STATELESS = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
}


@pytest.fixture(scope="module")
def shared() -> Iterator[RemoteServer]:
    with remote_server() as one:
        yield one


class Bridge(LineAgent):
    """What the supervisor is to a bridge."""

    process: trio.Process

    async def end(self) -> int:
        """End of file; the exit code."""
        await self.out.aclose()
        return await self.process.wait()


@asynccontextmanager
async def bridge(url: str, transport: str = "http", **settings: Any) -> AsyncIterator[Bridge]:
    remote = Remote(server="far", url=url, transport=transport, **settings)  # type: ignore[arg-type]
    process = await trio.lowlevel.open_process(
        [sys.executable, "-P", "-m", "carpool.bridge"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(ROOTS), **remote.to_environment()},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    one = Bridge(process.stdin, process.pid)
    one.process = process
    try:
        with trio.fail_after(LIMIT_S):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(one.read, process.stdout)
                yield one
                await process.stdin.aclose()
                await process.wait()
                nursery.cancel_scope.cancel()
    finally:
        if process.returncode is None:
            process.kill()
        with trio.CancelScope(shield=True):
            await process.wait()
        for stream in (process.stdin, process.stdout, process.stderr):
            await trio.aclose_forcefully(stream)


@pytest.mark.parametrize(
    ("path", "transport"), [("/mcp", "http"), ("/mcp", "url"), ("/sse", "sse"), ("/sse", "url")]
)
@behaviour("remote:handshake")
async def test_a_server_of_the_handshake_era_is_spoken_to_through_it(
    shared: RemoteServer, path: str, transport: str
) -> None:
    async with bridge(shared.url(path), transport, headers={"X-Own": "mine"}) as one:
        assert (await one.greet("2025-11-25", {"elicitation": {}}))["instructions"] == "Far away."
        assert "echo" in await one.tools()
        assert await one.text("echo", {"text": "ä\u2028😀"}) == "ä\u2028😀"
        assert await one.text("header", {"name": "x-own"}) == "mine"
        await one.answer(await one.start("work", {"steps": 3}, token="t"))
        told = [each["params"]["progress"] for each in one.notices if "progress" in each["method"]]
        assert told == [1, 2, 3]
        one.says = lambda ask: {"result": {"action": "accept", "content": {"name": "Ada"}}}
        assert await one.text("ask", {"question": "Who?"}) == "accept Ada"
        assert [each["method"] for each in one.asks] == ["elicitation/create"]
        assert await one.end() == 0


async def test_an_answer_over_http_and_sse_may_be_larger_than_the_sdk_would_have_it(
    shared: RemoteServer,
) -> None:
    async with bridge(shared.url("/sse"), "sse") as one:
        await one.greet()
        assert await one.text("echo", {"text": "x" * 1_500_000}) == "x" * 1_500_000


@behaviour("remote:handshake")
async def test_what_is_said_outside_of_calls_and_what_is_cancelled_arrives_and_the_session_is_ended(
    shared: RemoteServer,
) -> None:
    before = len(shared.requests())
    async with bridge(shared.url()) as one:
        await one.greet("2025-11-25")
        await until(lambda: "GET" in [each["method"] for each in shared.requests()[before:]], "it listens")
        await one.text("grow")
        await one.notice("notifications/tools/list_changed")
        assert "grown" in await one.tools()
        then = shared.seen()
        call = await one.start("hang")
        await until(lambda: shared.seen()["hanging"] > then["hanging"], "it runs")
        await one.cancel(call)
        await until(lambda: shared.seen()["cancelled"] > then["cancelled"], "it is cancelled")
        assert await one.end() == 0
    mine = shared.requests()[before:]
    sessions = {each["headers"].get("mcp-session-id") for each in mine[1:]}
    assert len(sessions) == 1
    assert mine[-1]["method"] == "DELETE"
    versions = {each["headers"].get("mcp-protocol-version") for each in mine[1:]}
    assert versions == {"2025-11-25"}


@behaviour("remote:stateless")
async def test_a_server_of_the_stateless_era_gets_the_headers_of_each_request(shared: RemoteServer) -> None:
    async with bridge(shared.url()) as one:
        before = len(shared.requests())
        found = await one.result("server/discover", {"_meta": STATELESS})
        assert found["supportedVersions"] == ["2026-07-28"]
        await one.result("tools/list", {"_meta": STATELESS})
        said = await one.result(
            "tools/call", {"name": "echo", "arguments": {"text": "hi"}, "_meta": STATELESS}
        )
        assert said["content"][0]["text"] == "hi"
        seen = [each["headers"] for each in shared.requests()[before:]]
        assert [each["mcp-method"] for each in seen] == ["server/discover", "tools/list", "tools/call"]
        assert [each.get("mcp-name") for each in seen] == [None, None, "echo"]
        assert {each["mcp-protocol-version"] for each in seen} == {"2026-07-28"}
        hanging = shared.seen()
        call = await one.request("tools/call", {"name": "hang", "arguments": {}, "_meta": STATELESS})
        await until(lambda: shared.seen()["hanging"] > hanging["hanging"], "it runs")
        await one.cancel(call)  # over HTTP: its stream is closed
        await until(lambda: shared.seen()["cancelled"] > hanging["cancelled"], "it is cancelled")


@behaviour("remote:untouched")
async def test_what_no_sdk_knows_passes_both_ways(shared: RemoteServer) -> None:
    async with bridge(shared.url("/raw")) as one:
        greeted = await one.greet()
        assert greeted["capabilities"]["vendor"] == {"a": 1}
        assert greeted["serverInfo"]["vendor"] == "kept"
        listed = await one.result("tools/list")
        assert listed["tools"][0]["vendor"] == BIG
        params: Json = {
            "name": "echo",
            "arguments": {"big": BIG, "deep": {"ä": [None, True, 1.5, "\u2028"]}},
            "vendorField": {"a": -BIG},
            "_meta": {"vendor/key": [BIG], "progressToken": 7},
        }
        result = await one.result("tools/call", params)
        assert shared.seen()["raw"]["params"] == params
        assert result["vendorField"] == {"nested": {"deeply": True}}
        assert result["_meta"] == {"vendor/key": "kept"}
        assert result["structuredContent"]["negative"] == -BIG
        assert result["content"][0]["vendor"] == {"kept": [1, None]}
        assert result["content"][0]["_meta"] == {"x/y": BIG}


@behaviour("remote:failures")
async def test_what_a_server_does_instead_of_answering_ends_the_call_honestly(shared: RemoteServer) -> None:
    async with bridge(shared.url("/raw")) as one:
        await one.greet()
        for tool, slug, delivered, says in (
            ("status500", "lost", "maybe", "answered HTTP 500 Internal Server Error"),
            ("status503", "lost", "maybe", "answered HTTP 503 Service Unavailable"),
            ("status429", "unavailable", "no", "answered HTTP 429 Too Many Requests"),
            ("status401", "unavailable", "no", "wants a login: run `carpool login far`"),
            ("cut", "lost", "maybe", "broke before the answer came"),
            ("huge", "answer_too_large", "maybe", "larger than carpool allows"),
            ("nonsense", "bad_answer", "maybe", "not in a form that MCP allows"),
            ("nothing", "bad_answer", "maybe", "not in a form that MCP allows"),
        ):
            result = await one.call(tool)
            fault = fault_of(result)
            assert (fault["code"], fault["delivered"]) == (slug, delivered), tool
            assert says in result["content"][0]["text"]
            assert fault["retry_after_s"] == (7.0 if tool == "status429" else None)
        assert await one.text("later") == "raw", "a stream that ends early is resumed"
        # What JSON over HTTP cannot carry never leaves.
        hostile = (b'"\\ud83d"', b"1e999", b"[" * 5000 + b"]" * 5000)
        for at, value in enumerate(hostile):
            params = b'{"name":"echo","arguments":{"a":%b}}' % value
            await one.line(b'{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":%b}' % (at, params))
        for at in range(2):
            assert (await one.answer(str(at).encode()))["error"]["code"] == -32602
        assert await one.text("echo") == "raw"  # none of that was its end


@behaviour("remote:failures")
@pytest.mark.parametrize("transport", ["http", "sse", "url"])
async def test_a_server_that_cannot_be_reached_is_named_without_its_path(transport: str) -> None:
    url = "http://127.0.0.1:9/secret-path?key=secret-key"
    async with bridge(url, transport) as one:
        answer = await one.ask("initialize", {})
        assert answer["error"] == {"code": 5300, "message": "cannot reach 127.0.0.1:9 (connection refused)"}


@behaviour("remote:killed")
@pytest.mark.parametrize(("path", "transport"), [("/mcp", "http"), ("/sse", "sse")])
async def test_a_server_killed_in_a_call_ends_the_call_and_then_the_bridge(path: str, transport: str) -> None:
    with remote_server() as its:
        async with bridge(its.url(path), transport) as one:
            await one.greet()
            call = await one.start("hang")
            await until(lambda: its.seen()["hanging"] == 1, "it runs")
            its.kill()
            if transport == "http":  # over HTTP+SSE the end of the process says it
                assert fault_of((await one.answer(call))["result"])["delivered"] == "maybe"
            its.start()
            assert await one.process.wait() == 1
            said = (await one.process.stderr.receive_some(1 << 16)).decode()  # type: ignore[union-attr]
            assert its.host in said
            assert "Traceback" not in said


@behaviour("remote:killed")
async def test_a_server_that_has_forgotten_the_session_ends_the_bridge_and_says_that_nothing_ran() -> None:
    with remote_server() as its:
        async with bridge(its.url()) as one:
            await one.greet()
            # Else its own listening may find out, and it ends before it has the call.
            os.kill(one.process.pid, signal.SIGSTOP)
            its.kill()
            its.start()
            call = await one.start("echo", {"text": "hi"})
            os.kill(one.process.pid, signal.SIGCONT)
            fault = fault_of((await one.answer(call))["result"])
            assert (fault["code"], fault["delivered"]) == ("state_lost", "no")
            assert await one.process.wait() == 1


@behaviour("remote:found")
async def test_a_host_is_asked_for_its_well_known_document(shared: RemoteServer) -> None:
    shared.change(set={"card": "/mcp"})
    for url in (f"http://{shared.host}", shared.url("/.well-known/mcp/server-card.json")):
        async with bridge(url, "url", headers={"X-Key": "here"}) as one:
            await one.greet()
            assert await one.text("header", {"name": "x-key"}) == "here"


@behaviour("remote:origin")
async def test_a_document_that_leads_elsewhere_is_named_and_nothing_is_sent_there(
    shared: RemoteServer,
) -> None:
    there = f"localhost:{shared.port}"
    shared.change(set={"card": f"http://{there}/mcp"})
    for headers, shown in (({"X-Key": "secret"}, there), ({}, f"http://{there}/mcp")):
        before = len(shared.requests())
        async with bridge(f"http://{shared.host}", "url", headers=headers) as one:
            answer = await one.ask("initialize", {})
            assert f"leads elsewhere, to {shown}: if that is right" in answer["error"]["message"]
        assert len(shared.requests()) == before
