"""Finds the transport and the URL of a server with `"transport": "url"` in the configuration.

Owns the order of the questions. A URL without a path is that of a host: its well-known document is read
(`server_card`). Any other is tried as it is: Streamable HTTP with a POST, then HTTP+SSE with a GET (MCP
2025-11-25, basic/transports "Backwards Compatibility"), then the host's document. Invariant: a document leads
to no other origin, only to the same host's https: a stranger's words would else choose which services of this
machine and its network are reached. The user says yes by writing that URL into the configuration.

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

from carpool.bridge.error_mapping import connect_trouble
from carpool.bridge.error_texts import RequestTrouble
from carpool.bridge.http_client import CONNECT_S, bounded
from carpool.bridge.oauth_token import BearerAuth, LoginError
from carpool.bridge.server_card import PATHS, Place, is_well_known, place_in
from carpool.bridge_mark import headers_of
from carpool_protocol.carrier.remote import Remote, host_of

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

    def __init__(self, trouble: RequestTrouble) -> None:
        super().__init__(trouble.text)
        self.trouble = trouble


async def find_transport(remote: Remote, bearer: BearerAuth | None) -> Remote:
    """A copy of `remote` with the transport and URL that were found. Raises `NotFoundError`."""
    if remote.transport != "url":
        return remote
    headers = {**remote.headers, **headers_of(remote.logins)}
    async with httpx2.AsyncClient(headers=headers, auth=bearer, timeout=CONNECT_S) as client:
        try:
            place = await _TransportSearch(remote, client, bearer).place()
        except LoginError as error:
            raise NotFoundError(error.trouble) from None
        except (httpx2.RequestError, httpx2.InvalidURL) as error:
            raise NotFoundError(connect_trouble(remote.url, error)) from None
    return replace(remote, transport=place[0], url=place[1])


class _TransportSearch:
    def __init__(self, remote: Remote, client: httpx2.AsyncClient, bearer: BearerAuth | None) -> None:
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
                raise NotFoundError(RequestTrouble(f"the document at {host_of(url)} names no MCP server"))
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
        """The transport and URL in the document at `url`; None: there is no such document."""
        async with self._client.stream("GET", url, headers={"accept": "application/json"}) as response:
            if response.status_code != 200:
                return None
            body = await bounded(response, _MAX_DOCUMENT_BYTES)
        try:
            document: Any = msgspec.json.decode(body or b"")
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
            return None
        place = place_in(document, url)
        if place is not None and not _leads_from(url, place[1]):
            there = _shown(place[1]) if self._holds_nothing() else host_of(place[1])
            raise NotFoundError(
                RequestTrouble(
                    f"the document at {host_of(url)} leads elsewhere, to {there}: if that is right, write it "
                    "into the `url` of this server"
                )
            )
        return place

    def _holds_nothing(self) -> bool:
        """No value of the user's was sent that a document could repeat."""
        remote, parts = self._remote, urlsplit(self._remote.url)
        plain = parts.path in {"", "/"} and not parts.query and "@" not in parts.netloc
        return plain and not remote.headers and not (self._bearer is not None and self._bearer.is_known)

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


def _leads_from(url: str, place: str) -> bool:
    """The document at `url` may name this place: one of its own origin, or of its own host's https."""
    try:
        here, there = _origin(url), _origin(place)
    except ValueError:  # a port that is none
        return False
    return there == here or (here[0], here[2], *there) == ("http", 80, "https", here[1], 443)


def _origin(url: str) -> tuple[str, str, int]:
    parts = urlsplit(url)
    port = parts.port if parts.port is not None else (443 if parts.scheme == "https" else 80)
    return parts.scheme, parts.hostname or "", port


def _shown(url: str) -> str:
    """Scheme, host and path, for people. The words are a stranger's."""
    parts = urlsplit(url)
    text = f"{parts.scheme}://{host_of(url)}{parts.path}"
    return text if text.isascii() and text.isprintable() and len(text) <= 200 else host_of(url)
