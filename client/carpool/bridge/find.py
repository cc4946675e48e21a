"""Which transport a server has and where, when the configuration says `"transport": "url"`.

Owns the order of the questions. A URL without a path is that of a host: its well-known document is read
(`card`). Any other is tried as it is: Streamable HTTP with a POST, then HTTP+SSE with a GET (MCP
2025-11-25, basic/transports "Backwards Compatibility"), then the host's document. What a document names on
another origin is used only where nothing secret would follow: neither headers nor a login. Nor does it have
the login that the user has there for another server (`Remote.named_by`).

Knows nothing of: conversations, the SDK.
"""

import re
from contextlib import aclosing
from typing import Any, Final
from urllib.parse import urlsplit

import httpx2
import msgspec
import trio
from msgspec.structs import replace

from carpool.bridge.bearer import Bearer, LoginError
from carpool.bridge.card import PATHS, Place, is_well_known, place_in
from carpool.bridge.honest_client import CONNECT_S, bounded
from carpool.bridge.meaning import unreached
from carpool.bridge.words import Trouble
from carpool_protocol.remote import Remote, host_of

_MAX_DOCUMENT_BYTES: Final = 256 * 1024
_EVENT_S: Final = 5.0
"""So long the first event of HTTP+SSE is waited for."""
_PROBE: Final = {
    "jsonrpc": "2.0",
    "id": "carpool-probe",
    "method": "server/discover",
    "params": {
        "_meta": {
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientCapabilities": {},
        }
    },
}
_PROBE_HEADERS: Final = {
    "accept": "application/json, text/event-stream",
    "mcp-protocol-version": "2026-07-28",
    "mcp-method": "server/discover",
}
_ENDPOINT: Final = re.compile(rb"^event: ?endpoint\r?$", re.MULTILINE)
_NOT_HERE: Final = frozenset({400, 404, 405})


class NotFoundError(Exception):
    """There is no server to be found, or none that can be reached."""

    def __init__(self, trouble: Trouble) -> None:
        super().__init__(trouble.text)
        self.trouble = trouble


async def found(remote: Remote, bearer: Bearer | None) -> Remote:
    """The same server with its transport and its URL. Raises `NotFoundError`."""
    if remote.transport != "url":
        return remote
    async with httpx2.AsyncClient(headers=remote.headers, auth=bearer, timeout=CONNECT_S) as client:
        try:
            place = await _Finding(remote, client, bearer).place()
        except LoginError as error:
            raise NotFoundError(error.trouble) from None
        except (httpx2.RequestError, httpx2.InvalidURL) as error:
            raise NotFoundError(unreached(remote.url, error)) from None
    named_by = remote.url if _origin(place[1]) != _origin(remote.url) else ""
    return replace(remote, transport=place[0], url=place[1], named_by=named_by)


class _Finding:
    def __init__(self, remote: Remote, client: httpx2.AsyncClient, bearer: Bearer | None) -> None:
        self._remote = remote
        self._client = client
        self._bearer = bearer

    async def place(self) -> Place:
        url = self._remote.url
        parts = urlsplit(url)
        origin = f"{parts.scheme}://{parts.netloc}"
        if is_well_known(url):
            place = await self._documented(url)
            if place is None:
                raise NotFoundError(Trouble(f"the document at {host_of(url)} names no MCP server"))
            return place
        documents = [origin + path for path in PATHS]
        if parts.path in {"", "/"}:
            return await self._first(documents) or await self._tried(url) or ("http", url)
        return await self._tried(url) or await self._first(documents) or ("http", url)

    async def _first(self, documents: list[str]) -> Place | None:
        for each in documents:
            if (place := await self._documented(each)) is not None:
                return place
        return None

    async def _documented(self, url: str) -> Place | None:
        """What the document says, if there is one."""
        async with self._client.stream("GET", url, headers={"accept": "application/json"}) as response:
            if response.status_code != 200:
                return None
            body = await bounded(response, _MAX_DOCUMENT_BYTES)
        try:
            document: Any = msgspec.json.decode(body or b"")
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
            return None
        place = place_in(document, url)
        if place is not None and _origin(place[1]) != _origin(url) and self._holds_secrets():
            raise NotFoundError(
                Trouble(
                    f"the document at {host_of(url)} names another host, {host_of(place[1])}, which must "
                    "not get the headers of this server: write its URL into the configuration if it is right"
                )
            )
        return place

    def _holds_secrets(self) -> bool:
        return bool(self._remote.headers) or (self._bearer is not None and self._bearer.is_known)

    async def _tried(self, url: str) -> Place | None:
        """The transport that answers at this URL."""
        async with self._client.stream("POST", url, json=_PROBE, headers=_PROBE_HEADERS) as response:
            if response.status_code not in _NOT_HERE or await _speaks_json_rpc(response):
                return "http", url
        async with self._client.stream("GET", url, headers={"accept": "text/event-stream"}) as stream:
            kind = stream.headers.get("content-type", "")
            if stream.status_code == 200 and kind.startswith("text/event-stream") and await _endpoint(stream):
                return "sse", url
        return None


async def _endpoint(stream: httpx2.Response) -> bool:
    """The stream begins as that of HTTP+SSE does (MCP 2024-11-05, basic/transports)."""
    with trio.move_on_after(_EVENT_S):
        seen = b""
        async with aclosing(stream.aiter_bytes()) as parts:
            async for part in parts:
                seen += part
                if _ENDPOINT.search(seen) is not None or len(seen) > _MAX_DOCUMENT_BYTES:
                    break
        return _ENDPOINT.search(seen) is not None
    return False


async def _speaks_json_rpc(response: httpx2.Response) -> bool:
    if not response.headers.get("content-type", "").startswith("application/json"):
        return False
    with trio.move_on_after(_EVENT_S):
        return b'"jsonrpc"' in (await bounded(response, _MAX_DOCUMENT_BYTES) or b"")
    return False


def _origin(url: str) -> tuple[str, str, int]:
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    return parts.scheme, parts.hostname or "", port
