"""What stands under the SDK in a bridge, without a network: what it makes of each response."""

import gzip
import itertools
import json
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest
import trio
import trio.testing

from carpool.bridge.event_bounds import MAX_BODY_BYTES, MAX_BODY_PARTS
from carpool.bridge.http_client import BridgeHttpClient
from carpool_protocol.carrier.remote import UNFIT_CODE, Remote
from carpool_protocol.ids import RawJson
from tests.behaviours import behaviour
from tests.kit.line_agent import fault_of

URL = "http://far.example/mcp"
JSON = {"content-type": "application/json"}
EVENTS = {"content-type": "text/event-stream"}
LIMIT_S = 200.0
"""More than any pause here, where the clock jumps."""
Answer = Callable[[httpx2.Request], Coroutine[None, None, httpx2.Response]]


class FakeNetwork:
    """A client over a network that answers as `says` does."""

    def __init__(self, client: BridgeHttpClient, ours: list[RawJson]) -> None:
        self.client = client
        self.ours = ours
        """Requests that are answered by the client itself."""
        self.said: list[tuple[bytes, Any]] = []

    async def post(self, method: str = "tools/call", *, id_: object = 1, **headers: str) -> httpx2.Response:
        message = {"jsonrpc": "2.0", "method": method, **({"id": id_} if id_ is not None else {})}
        request = self.client.build_request("POST", URL, json=message, headers=headers)
        return await self.client.send(request, stream=True)

    async def get(self, **headers: str) -> httpx2.Response:
        return await self.client.send(self.client.build_request("GET", URL, headers=headers), stream=True)


@asynccontextmanager
async def net(says: Answer, transport: str = "http") -> AsyncIterator[FakeNetwork]:
    with trio.fail_after(LIMIT_S):
        async with _net(says, transport) as one:
            yield one


@asynccontextmanager
async def _net(says: Answer, transport: str) -> AsyncIterator[FakeNetwork]:
    remote = Remote(server="far", url=URL, transport=transport, headers={"x-key": "secret"})  # type: ignore[arg-type]
    async with trio.open_nursery() as nursery:
        ours: list[RawJson] = []

        async def say(request: RawJson, line: bytes) -> None:
            one.said.append((request, json.loads(line)))

        client = BridgeHttpClient(remote, None, nursery, ours.append, say if transport == "sse" else None)
        client._transport = httpx2.MockTransport(says)
        one = FakeNetwork(client, ours)
        yield one
        nursery.cancel_scope.cancel()


def giving(*responses: httpx2.Response) -> Answer:
    """These, one after the other."""
    left = list(responses)

    async def answer(request: httpx2.Request) -> httpx2.Response:
        return left.pop(0)

    return answer


async def in_parts(*parts: bytes) -> AsyncIterator[bytes]:
    """A body that is not there before it is read."""
    for part in parts:
        if part:
            yield part


async def the_fault(response: httpx2.Response) -> tuple[str, str]:
    result = json.loads(await response.aread())["result"]
    fault = fault_of(result)
    return fault["code"], fault["delivered"]


@behaviour("remote:failures")
@pytest.mark.parametrize(
    "body",
    [
        {"jsonrpc": "2.0", "id": 2, "result": {"content": []}},
        {"jsonrpc": "2.0", "id": "1", "result": {"content": []}},
        {"jsonrpc": "2.0", "id": 1},
        {"jsonrpc": "2.0", "method": "notifications/message", "params": {}},
        {"jsonrpc": "2.0", "id": 1, "method": "ping"},
    ],
)
async def test_what_is_no_answer_to_a_request_ends_it_and_is_given_to_nobody(body: Any) -> None:
    async with net(giving(*(httpx2.Response(200, json=body) for _ in range(2)))) as one:
        assert await the_fault(await one.post(id_=1)) == ("bad_answer", "maybe")
        assert one.ours == [b"1"]
        greeted = json.loads(await (await one.post("initialize")).aread())
        assert greeted["error"]["code"] == UNFIT_CODE
        assert "answered with something that is no message of MCP" in greeted["error"]["message"]


async def test_an_error_without_an_id_is_that_of_its_request() -> None:
    error = {"code": -32603, "message": "its own", "data": {"kept": 1}}
    async with net(giving(httpx2.Response(200, json={"jsonrpc": "2.0", "id": None, "error": error}))) as one:
        answer = json.loads(await (await one.post(id_="q")).aread())
        assert answer == {"jsonrpc": "2.0", "id": "q", "error": error}
        assert one.ours == []


async def test_an_answer_passes_with_its_session() -> None:
    body = b'{"jsonrpc":"2.0","id":1.0,"result":{"big":123456789012345678901234567890}}'
    said = httpx2.Response(200, headers={**JSON, "mcp-session-id": "s", "x-other": "o"}, content=body)
    async with net(giving(said)) as one:
        response = await one.post()
        assert await response.aread() == body
        assert response.headers["mcp-session-id"] == "s"


@behaviour("remote:failures")
@pytest.mark.parametrize("packed", [True, False])
async def test_a_body_is_read_up_to_a_limit_also_when_it_is_packed(packed: bool) -> None:
    whole = b'{"jsonrpc":"2.0","id":1,"result":"' + b"a" * MAX_BODY_BYTES + b'"}'
    read = 0

    async def parts() -> AsyncIterator[bytes]:
        nonlocal read
        content = gzip.compress(whole, 1) if packed else whole + whole
        for at in range(0, len(content), 1 << 16):
            read = at
            yield content[at : at + (1 << 16)]

    headers = {**JSON, **({"content-encoding": "gzip"} if packed else {})}
    async with net(giving(httpx2.Response(200, headers=headers, content=parts()))) as one:
        assert await the_fault(await one.post()) == ("answer_too_large", "maybe")
    assert read <= MAX_BODY_BYTES


@behaviour("remote:failures")
async def test_a_small_packed_body_of_very_many_parts_is_refused_before_anything_reads_it() -> None:
    whole = b'{"jsonrpc":"2.0","id":1,"result":{"x":[' + b"[]," * MAX_BODY_PARTS + b"0]}}"
    said = httpx2.Response(200, headers={**JSON, "content-encoding": "gzip"}, content=gzip.compress(whole))
    async with net(giving(said)) as one:
        assert await the_fault(await one.post()) == ("answer_too_large", "maybe")


@behaviour("remote:redirects")
@pytest.mark.parametrize(
    ("status", "to", "says"),
    [
        (307, "http://other.example/mcp", "redirects to http://other.example"),
        (308, "http://far.example:81/mcp", "redirects to http://far.example:81"),
        (308, "http://user:pass@far.example/mcp", "redirects as for a browser (308)"),
        (301, "https://far.example/secret-path?key=secret-key", "redirects to https://far.example: if"),
        (302, "/secret-path", "redirects as for a browser (302)"),
        (307, "/mcp", "redirects as for a browser (307)"),
    ],
)
async def test_a_redirect_away_is_named_and_not_followed(status: int, to: str, says: str) -> None:
    asked: list[str] = []

    async def answer(request: httpx2.Request) -> httpx2.Response:
        asked.append(request.url.host)
        return httpx2.Response(status, headers={"location": to})

    async with net(answer) as one:
        response = await one.post()
        text = json.loads(await response.aread())["result"]["content"][0]["text"]
        assert f"far.example {says}" in text
        assert "secret" not in text
        is_repeated_there = status in {307, 308}  # in place of what was asked; the others come after it, too
        assert await the_fault(response) == (
            ("unavailable", "no") if is_repeated_there else ("lost", "maybe")
        )
    assert set(asked) == {"far.example"}
    assert len(asked) < 10


@behaviour("remote:statuses")
@pytest.mark.parametrize("body", [b"", b"upstream connect error", b"{}"])
async def test_a_call_counts_as_not_run_only_by_a_status_that_says_so(body: bytes) -> None:
    refusing = {307, 308, 400, 401, 403, 404, 405, 407, 410, 411, 413, 414, 415, 421, 425, 426, 428, 429, 431}
    statuses = range(300, 600)
    headers = {"location": "http://other.example/"}
    async with net(
        giving(*(httpx2.Response(each, headers=headers, content=body) for each in statuses))
    ) as one:
        for status in statuses:
            fault = await the_fault(await one.post(id_=status))
            assert fault == (("unavailable", "no") if status in refusing else ("lost", "maybe")), status


@behaviour("remote:redirects")
@pytest.mark.parametrize("to", ["/mcp/", "https://far.example/mcp"])
async def test_a_redirect_on_the_same_host_is_followed_with_all_that_was_sent(to: str) -> None:
    seen: list[tuple[str, str, bytes]] = []

    async def answer(request: httpx2.Request) -> httpx2.Response:
        seen.append((request.method, request.headers["x-key"], request.content))
        if len(seen) == 1:
            return httpx2.Response(307, headers={"location": to})
        return httpx2.Response(200, json={"jsonrpc": "2.0", "id": 1, "result": {}})

    async with net(answer) as one:
        assert (await one.post()).status_code == 200
    assert len(seen) == 2
    assert seen[0] == seen[1]


@behaviour("remote:beside")
@pytest.mark.parametrize(
    ("transport", "method", "id_"),
    [("http", "notifications/cancelled", None), ("http", "", 7), ("sse", "tools/call", 7)],
)
async def test_what_a_server_is_slow_to_accept_holds_up_nothing_else(
    transport: str, method: str, id_: object
) -> None:
    arrived, accepted = trio.Event(), trio.Event()

    async def answer(request: httpx2.Request) -> httpx2.Response:
        arrived.set()
        await accepted.wait()
        return httpx2.Response(500)

    async with net(answer, transport) as one:
        assert (await one.post(method, id_=id_)).status_code == 202
        await arrived.wait()
        assert one.said == []
        accepted.set()
        await trio.testing.wait_all_tasks_blocked()
        if transport == "sse":  # there its answer is beside the transport
            ((request, line),) = one.said
            assert (request, fault_of(line["result"])["code"]) == (b"7", "lost")


@pytest.mark.parametrize("transport", ["http", "sse"])
async def test_a_server_has_heard_that_it_is_initialized_before_anything_else_goes_out(
    transport: str,
) -> None:
    accepted = False

    async def answer(request: httpx2.Request) -> httpx2.Response:
        nonlocal accepted
        await trio.testing.wait_all_tasks_blocked()
        accepted = True
        return httpx2.Response(202)

    async with net(answer, transport) as one:
        await one.post("notifications/initialized", id_=None)
        assert accepted


@behaviour("remote:listening")
async def test_listening_begins_again_however_often_it_fails_with_growing_pauses(
    autojump_clock: trio.testing.MockClock,
) -> None:
    stream = b"data: heard\n\n"
    outcomes: list[Any] = [503, 502, httpx2.ReadError("broken"), 401, b"", b"", stream, b"", stream]
    at: list[float] = []

    async def answer(request: httpx2.Request) -> httpx2.Response:
        at.append(trio.current_time())
        if isinstance(outcome := outcomes.pop(0), Exception):
            raise outcome
        if isinstance(outcome, int):
            return httpx2.Response(outcome)
        return httpx2.Response(200, headers=EVENTS, content=in_parts(outcome))

    heard: list[bytes] = []
    async with net(answer) as one:
        while outcomes:
            response = await one.get(**{"last-event-id": "e"} if heard else {})
            assert response.status_code == 200, "anything else would be the SDK's last but one attempt"
            heard.append(await response.aread())
        assert one.client.trouble is None
    assert [each for each in heard if each] == [stream, stream]
    pauses = [round(then - before) for before, then in itertools.pairwise(at)]
    assert pauses == [1, 2, 4, 8, 16, 30, 0, 1]


@behaviour("remote:listening")
@pytest.mark.parametrize("resumes", [False, True])
async def test_a_server_that_wants_each_stream_opened_again_at_once_is_not_obeyed_for_long(
    autojump_clock: trio.testing.MockClock, resumes: bool
) -> None:
    at: list[float] = []
    lasting = [False] * 9 + [True] + [False] * 2

    async def in_time(lasts: bool) -> AsyncIterator[bytes]:
        yield b"retry: 0\nid: e\ndata: \n\n"
        await trio.sleep(3 if lasts else 0)

    async def answer(request: httpx2.Request) -> httpx2.Response:
        at.append(trio.current_time())
        return httpx2.Response(200, headers=EVENTS, content=in_time(lasting[len(at) - 1]))

    async with net(answer) as one:
        for number in range(len(lasting)):
            await (await one.get(**{"last-event-id": "e"} if resumes or number else {})).aread()
    pauses = [round(then - before) for before, then in itertools.pairwise(at)]
    assert pauses == [0, 0, 0, 0, 1, 1, 1, 1, 1, 3, 0]


@behaviour("remote:listening")
async def test_a_listen_that_breaks_or_fails_has_ended_and_the_next_waits_its_turn(
    autojump_clock: trio.testing.MockClock,
) -> None:
    outcomes: list[Any] = [502, httpx2.ReadError("broken"), b"", b"data: acknowledged\n\n", b""]
    at: list[float] = []

    async def answer(request: httpx2.Request) -> httpx2.Response:
        at.append(trio.current_time())
        if isinstance(outcome := outcomes.pop(0), Exception):
            raise outcome
        if isinstance(outcome, int):
            return httpx2.Response(outcome)
        return httpx2.Response(200, headers=EVENTS, content=in_parts(outcome))

    async with net(answer) as one:
        for _ in range(2):
            said = json.loads(await (await one.post("subscriptions/listen", id_="l")).aread())
            assert said == {"jsonrpc": "2.0", "id": "l", "result": {"resultType": "complete"}}
        for _ in range(3):
            await (await one.post("subscriptions/listen")).aread()
    assert [round(then - before) for before, then in itertools.pairwise(at)] == [1, 2, 4, 0]


async def test_listening_that_is_not_offered_is_left_alone() -> None:
    async with net(giving(httpx2.Response(405))) as one:
        assert (await one.get()).status_code == 405


async def test_a_stream_of_a_call_that_cannot_be_resumed_is_told_to_the_sdk() -> None:
    async with net(giving(httpx2.Response(503))) as one:
        assert (await one.get(**{"last-event-id": "e"})).status_code == 503


@behaviour("remote:cancelled")
@pytest.mark.parametrize("begun", [True, False])
async def test_a_cancelled_request_that_is_never_answered_holds_its_connection_for_a_minute(
    autojump_clock: trio.testing.MockClock, begun: bool
) -> None:
    closed_at: list[float] = []

    async def never() -> AsyncIterator[bytes]:
        yield b": there\n\n"
        try:
            await trio.sleep_forever()
        finally:
            closed_at.append(trio.current_time())

    async def answer(request: httpx2.Request) -> httpx2.Response:
        if b"cancelled" in request.content:
            return httpx2.Response(202)
        if begun:
            return httpx2.Response(200, headers=EVENTS, content=never())
        async for _ in never():
            pass
        raise AssertionError

    said = []
    async with net(answer) as one:

        async def call() -> None:
            response = await one.post(id_=7)
            said.append(await response.aread())
            await response.aclose()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(call)
            await trio.sleep(5)
            params = {"requestId": 7}
            message = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params}
            await one.client.send(one.client.build_request("POST", URL, json=message))
        assert closed_at == [65.0]
        assert b'"id":7,"error":{"code":-32800' in said[0]
        assert one.ours == [b"7"], "and nobody else is told"


@behaviour("remote:cancelled")
async def test_a_cancelled_request_that_is_answered_all_the_same_is_left_alone(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async def answer(request: httpx2.Request) -> httpx2.Response:
        await trio.sleep(20)
        return httpx2.Response(200, headers=EVENTS, content=in_parts(b"data: answer\n\n"))

    async with net(answer) as one:
        response = await one.post(id_=7)
        message = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 7}}
        await one.client.send(one.client.build_request("POST", URL, json=message))
        assert await response.aread() == b"data: answer\n\n"
        await response.aclose()
        await trio.sleep(100)
        assert one.ours == []


class FakeTcpConnection:
    """A socket that remembers what is set, and the stream of httpx over it."""

    def __init__(self) -> None:
        self.options: list[tuple[int, int, int]] = []

    def get_extra_info(self, name: str) -> "FakeTcpConnection":
        assert name == "socket"
        return self

    def setsockopt(self, *option: int) -> None:
        self.options.append((option[0], option[1], option[2]))


@behaviour("remote:listening")
async def test_the_system_looks_after_the_connection_of_a_stream() -> None:
    for method in ("get", "post"):
        connection = FakeTcpConnection()
        extensions = {"network_stream": connection}
        said = httpx2.Response(200, headers=EVENTS, content=b"", extensions=extensions)
        async with net(giving(said)) as one:
            await getattr(one, method)()
        assert (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1) in connection.options


@behaviour("remote:failures")
async def test_the_stream_of_http_and_sse_that_is_refused_says_why() -> None:
    async with net(giving(httpx2.Response(401)), "sse") as one:
        await one.get()
        trouble = await one.client.wait_until_done()
        assert "wants a login: run `carpool login far`" in trouble.text


class EndlessBody(httpx2.AsyncByteStream):
    """A body without an end; counts in `closed` when it is let go."""

    def __init__(self, closed: list[str], name: str) -> None:
        self.closed = closed
        self.name = name

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while True:
            await trio.sleep(60)
            yield b""

    async def aclose(self) -> None:
        self.closed.append(self.name)


async def test_what_nobody_reads_holds_no_connection() -> None:
    closed: list[str] = []
    refusal = httpx2.Response(
        500, headers=EVENTS, stream=EndlessBody(closed, "a refused stream to listen on")
    )
    told = httpx2.Response(
        200, headers=EVENTS, stream=EndlessBody(closed, "a notification that was answered")
    )
    async with net(giving(refusal, told)) as one:
        await one.get()
        assert closed == ["a refused stream to listen on"]
        await one.post("notifications/roots/list_changed", id_=None)
        await trio.testing.wait_all_tasks_blocked()
        assert closed[1:] == ["a notification that was answered"]
