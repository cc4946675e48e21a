"""Which transport a server has, without a network."""

from collections.abc import AsyncIterator
from types import SimpleNamespace

import httpx2
import pytest
import trio
import trio.testing

from carpool.bridge import find
from carpool.bridge.find import _Finding, found
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


@behaviour("remote:found")
@pytest.mark.parametrize(
    ("named", "named_by"),
    [
        ("https://far.example/deep/mcp", ""),
        ("https://far.example:443/mcp", ""),
        ("https://other.example/mcp", "https://far.example"),
        ("http://far.example/mcp", "https://far.example"),
    ],
)
async def test_a_server_that_a_document_names_elsewhere_is_known_by_who_named_it(
    monkeypatch: pytest.MonkeyPatch, named: str, named_by: str
) -> None:
    def client(**_: object) -> httpx2.AsyncClient:
        document = httpx2.MockTransport(lambda _: httpx2.Response(200, json={"url": named}))
        return httpx2.AsyncClient(transport=document)

    monkeypatch.setattr(find, "httpx2", SimpleNamespace(**{**vars(httpx2), "AsyncClient": client}))
    place = await found(Remote(server="far", url="https://far.example"), None)
    assert (place.transport, place.url, place.named_by) == ("http", named, named_by)
