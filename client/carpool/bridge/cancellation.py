"""Requests that were cancelled and are not answered: their connections are given up.

A server does not answer what was cancelled (MCP 2025-11-25, basic/utilities/cancellation), and some never
close its stream either (those on the TypeScript SDK): each cancelled call would hold a connection for as long
as the bridge lives. After `LINGER_S` it is closed, and the SDK is given an answer that goes no further: to
the supervisor the call is in flight still.

Knows nothing of: what requests are about, the stateless era (there the SDK closes a stream to cancel).
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final, TypeVar

import httpx2
import trio

from carpool.bridge.error_texts import GIVEN_UP
from carpool_protocol.ids import RawJson

T = TypeVar("T")
LINGER_S: Final = 60.0
"""Time for a late answer after a cancel; such an answer shows that the call has ended."""


class _OpenPost:
    """One request that has been sent and is not answered."""

    def __init__(self) -> None:
        self._is_given_up = False
        self._scope: trio.CancelScope | None = None

    def give_up(self) -> None:
        self._is_given_up = True
        if self._scope is not None:
            self._scope.cancel()

    async def run(self, step: Callable[[], Awaitable[T]]) -> T | None:
        """Run `step` and return its result; None once the request is given up."""
        if self._is_given_up:
            return None
        with trio.CancelScope() as self._scope:
            return await step()
        return None


class OpenPosts:
    """The requests of one client that have been sent and are not answered."""

    def __init__(self, answers: Callable[[RawJson], None]) -> None:
        """`answers`: see `BridgeHttpClient`."""
        self._answers = answers
        self._open: dict[RawJson, _OpenPost] = {}

    async def run(self, request: RawJson, step: Callable[[], Awaitable[httpx2.Response]]) -> httpx2.Response:
        """Run `step` and return its response. A given-up request gets an error, also in its stream."""
        post = self._open[request] = _OpenPost()
        is_stream = False
        try:
            response = await post.run(step)
            if response is None:
                headers = {"content-type": "application/json"}
                return httpx2.Response(200, headers=headers, content=self._last(request))
            is_stream = not isinstance(response.stream, httpx2.ByteStream)
            if is_stream:
                response.stream = _CancellableStream(response.stream, post, request, self)
            return response
        finally:
            if not is_stream:
                self.request_ended(request)

    def request_ended(self, request: RawJson) -> None:
        """Forget a request that is answered or that nobody waits for."""
        self._open.pop(request, None)

    async def request_cancelled(self, request: RawJson) -> None:
        """Give the request up if it is still open `LINGER_S` seconds after its cancel; returns after that."""
        if request in self._open:
            await trio.sleep(LINGER_S)
            if (post := self._open.pop(request, None)) is not None:
                post.give_up()

    def _last(self, request: RawJson) -> bytes:
        self._answers(request)
        return b'{"jsonrpc":"2.0","id":%b,"error":{"code":%d,"message":"given up"}}' % (request, GIVEN_UP)

    def last_event(self, request: RawJson) -> bytes:
        """The event that ends the stream of a request that is given up."""
        return b"event: message\ndata: %b\n\n" % self._last(request)


class _CancellableStream(httpx2.AsyncByteStream):
    """The stream of one request."""

    def __init__(self, inner: Any, post: _OpenPost, request: RawJson, its: OpenPosts) -> None:
        self._inner = inner
        self._post = post
        self._request = request
        self._its = its

    async def __aiter__(self) -> AsyncIterator[bytes]:
        parts = aiter(self._inner)
        while (part := await self._post.run(lambda: anext(parts, b""))) is not None:
            if not part:
                return
            yield part
        yield self._its.last_event(self._request)

    async def aclose(self) -> None:
        self._its.request_ended(self._request)
        await self._inner.aclose()
