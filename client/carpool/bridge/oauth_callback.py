"""The browser's way back from a login: one listener on loopback (RFC 8252, 7.3).

Owns which request is the one that counts, and what the browser is shown. Invariant: only a request with the
`state` of this login counts, so neither a page nor a process that finds the port can end the login (RFC 6749,
10.12). Bounded in bytes and time; the whole of it is bounded by the caller.

Knows nothing of: what the code is good for, who chooses the state.
"""

import hmac
from contextlib import suppress
from typing import Final
from urllib.parse import parse_qs, urlsplit

import trio
from mcp.client.auth import OAuthFlowError
from mcp.shared.auth import AuthorizationCodeResult

PATH: Final = "/callback"
_HEAD_BYTES: Final = 16 * 1024
_HEAD_S: Final = 10.0


class OAuthCallback:
    """The one request of the browser that counts; others (an icon) are answered and passed over.

    Connections are served side by side: browsers open some on which they say nothing.
    """

    def __init__(self, listener: trio.SocketListener) -> None:
        self._listener = listener
        self._came = trio.Event()
        self._query: dict[str, str] = {}
        self._state = ""

    def expect_state(self, authorization_url: str) -> None:
        """Wait for the `state` of this authorization request from now on."""
        self._state = parse_qs(urlsplit(authorization_url).query).get("state", [""])[0]

    async def result(self) -> AuthorizationCodeResult:
        """Raises `OAuthFlowError` where the user, or the server, has said no."""
        self._came = trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._accept, nursery)
            await self._came.wait()
            nursery.cancel_scope.cancel()
        code, query = self._query.get("code"), self._query
        if code is None:
            raise OAuthFlowError(_denied(query.get("error")))
        return AuthorizationCodeResult(code=code, state=query.get("state"), iss=query.get("iss"))

    async def _accept(self, beside: trio.Nursery) -> None:
        """Leaves the listener open: a server that wants more rights has the SDK ask once more."""
        while True:
            beside.start_soon(self._serve_connection, await self._listener.accept())

    async def _serve_connection(self, stream: trio.SocketStream) -> None:
        with suppress(trio.BrokenResourceError), trio.move_on_after(_HEAD_S):
            async with stream:
                await self._answer(stream)

    async def _answer(self, stream: trio.SocketStream) -> None:
        query = await _query_of(stream)
        if query is None or self._came.is_set():
            return
        state = query.get("state", "")
        if not self._state or not hmac.compare_digest(state.encode(), self._state.encode()):
            await stream.send_all(_NOT_THIS_LOGIN)
            return
        try:
            await stream.send_all(_page("code" in query))
        finally:
            self._query = query
            self._came.set()


_NOT_THIS_LOGIN: Final = b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


def _page(logged_in: bool) -> bytes:
    done = "You are logged in. Go back to the terminal." if logged_in else "There is no login."
    page = f"<!doctype html><title>carpool</title><p>{done}</p>".encode()
    return (
        b"HTTP/1.1 200 OK\r\ncontent-type: text/html; charset=utf-8\r\nconnection: close\r\n"
        b"content-length: %d\r\n\r\n%b" % (len(page), page)
    )


def _denied(error: str | None) -> str:
    said = error if error is not None and error.replace("_", "").isalnum() else "no code came back"
    return f"the authorization server said {said[:60]}"


async def _query_of(stream: trio.SocketStream) -> dict[str, str] | None:
    """The parameters of a request for the callback; None for any other."""
    head = b""
    while b"\r\n" not in head and len(head) < _HEAD_BYTES:
        part = await stream.receive_some(4096)
        if not part:
            return None
        head += part
    words = head.partition(b"\r\n")[0].decode("latin-1").split(" ")
    if len(words) != 3 or words[0] != "GET":
        return None
    try:
        parts = urlsplit(words[1])
    except ValueError:  # no URL
        return None
    if parts.path != PATH:
        await stream.send_all(b"HTTP/1.1 404 Not Found\r\nconnection: close\r\ncontent-length: 0\r\n\r\n")
        return None
    return {key: values[0] for key, values in parse_qs(parts.query).items()}
