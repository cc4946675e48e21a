"""Which transport a server has, without a network."""

from collections.abc import AsyncIterator
from types import SimpleNamespace

import httpx2
import pytest
import trio
import trio.testing

from carpool.bridge import transport_probe
from carpool.bridge.transport_probe import NotFoundError, _TransportSearch, find_transport
from carpool_protocol.carrier.remote import Remote
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
            place = await _TransportSearch(Remote(server="far", url=URL), client, None).place()
    assert place == (transport, URL)


def documented(monkeypatch: pytest.MonkeyPatch, named: str, seen: list[str]) -> None:
    """Every host has a document that names this URL. `seen`: the URLs that are asked for."""

    def answer(request: httpx2.Request) -> httpx2.Response:
        seen.append(str(request.url))
        return httpx2.Response(200, json={"url": named})

    def client(**_: object) -> httpx2.AsyncClient:
        return httpx2.AsyncClient(transport=httpx2.MockTransport(answer))

    monkeypatch.setattr(transport_probe, "httpx2", SimpleNamespace(**{**vars(httpx2), "AsyncClient": client}))


@behaviour("remote:found")
@pytest.mark.parametrize(
    ("url", "named"),
    [
        ("https://far.example", "https://far.example/deep/mcp"),
        ("https://far.example", "https://far.example:443/mcp"),
        ("https://far.example", "https://FAR.example/mcp"),
        ("http://far.example", "https://far.example/mcp"),
        ("http://127.0.0.1:81", "http://127.0.0.1:81/mcp"),
    ],
)
async def test_a_document_leads_to_its_own_origin(
    monkeypatch: pytest.MonkeyPatch, url: str, named: str
) -> None:
    documented(monkeypatch, named, [])
    place = await find_transport(Remote(server="far", url=url), None)
    assert (place.transport, place.url) == ("http", named)


@behaviour("remote:origin")
@pytest.mark.parametrize(
    ("url", "named"),
    [
        ("https://far.example", "https://other.example/mcp"),
        ("https://far.example", "https://sub.far.example/mcp"),
        ("https://far.example", "http://far.example/mcp"),
        ("https://far.example", "https://far.example:8443/mcp"),
        ("https://far.example", "https://far.example:0/mcp"),
        ("https://far.example", "https://far.example:99999/mcp"),
        ("https://far.example", "https://far.example@other.example/mcp"),
        ("https://far.example", "http://127.0.0.1:8808/mcp"),
        ("https://far.example", "http://[::1]:8808/mcp"),
        ("https://far.example", "http://169.254.169.254/latest/meta-data"),
        ("https://far.example", "http://10.0.0.1/mcp"),
        ("http://far.example:81", "https://far.example/mcp"),
        ("http://127.0.0.2:8000", "http://127.0.0.1:8808/mcp"),
        ("http://127.0.0.1", "http://localhost/mcp"),
    ],
)
@pytest.mark.parametrize("headers", [{}, {"x-key": "secret"}])
async def test_a_document_leads_nowhere_else(
    monkeypatch: pytest.MonkeyPatch, url: str, named: str, headers: dict[str, str]
) -> None:
    asked: list[str] = []
    documented(monkeypatch, named, asked)
    with pytest.raises(NotFoundError) as refused:
        await find_transport(Remote(server="far", url=url, headers=headers), None)
    assert "leads elsewhere" in str(refused.value)
    assert "write it into the `url` of this server" in str(refused.value)
    assert all(each.startswith(f"{url}/.well-known/") for each in asked)


async def test_a_document_cannot_have_a_secret_of_the_user_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    documented(monkeypatch, "https://u:p@other.example/path?q=1", [])
    with pytest.raises(NotFoundError, match=r"to https://other\.example/path: if"):
        await find_transport(Remote(server="far", url="https://far.example"), None)
    for remote in (
        Remote(server="far", url="https://far.example", headers={"x-key": "path"}),
        Remote(server="far", url="https://far.example/path/.well-known/mcp.json"),
    ):
        with pytest.raises(NotFoundError, match=r"to other\.example: if"):
            await find_transport(remote, None)
