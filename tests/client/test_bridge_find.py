"""Which transport a server has, without a network."""

from collections.abc import AsyncIterator

import httpx2
import pytest
import trio
import trio.testing

from carpool.bridge.find import _Finding
from carpool_protocol.remote import Remote
from tests.behaviours import behaviour

URL = "http://far.example/mcp"


async def without_end() -> AsyncIterator[bytes]:
    while True:
        await trio.sleep(1)
        yield b" " * 1000


@behaviour("remote:found")
@pytest.mark.parametrize(
    ("status", "kind", "transport"),
    [(200, "text/event-stream", "http"), (404, "application/json", "sse"), (405, "text/html", "sse")],
)
async def test_a_response_without_end_is_judged_all_the_same(
    autojump_clock: trio.testing.MockClock, status: int, kind: str, transport: str
) -> None:
    async def answer(request: httpx2.Request) -> httpx2.Response:
        if request.method == "POST":
            return httpx2.Response(status, headers={"content-type": kind}, content=without_end())
        endpoint = b"event: endpoint\ndata: /messages\n\n"
        return httpx2.Response(200, headers={"content-type": "text/event-stream"}, content=endpoint)

    with trio.fail_after(60):
        async with httpx2.AsyncClient(transport=httpx2.MockTransport(answer)) as client:
            place = await _Finding(Remote(server="far", url=URL), client, None).place()
    assert place == (transport, URL)
