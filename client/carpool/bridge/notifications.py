"""The stream on which a server sends messages that belong to no call.

A GET (MCP 2025-11-25, basic/transports "Listening for Messages"), or the POST of a listen (MCP 2026-07-28,
basic/utilities/subscriptions).

Owns the pause before the stream is opened again, for the whole session: the SDK gives up after two attempts,
and later messages of the server would be lost. A server that offers no stream (405) is left to the SDK. Owns
also how often streams may end right after they began: the SDK opens the next one when the server wants it
(`retry`), also at once and without end.

Knows nothing of: requests, the content of messages.
"""

import socket
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any, Final

import httpx2
import trio

_FIRST_PAUSE_S: Final = 1.0
_LONGEST_PAUSE_S: Final = 30.0
_LASTING_S: Final = 5.0
"""A stream that lasted so long was one, though it may have said nothing."""
_BRIEF_S: Final = 1.0
_MOST_BRIEF: Final = 5
"""So many streams in a row may end so soon; then the next ones begin a second apart."""
_NOT_OFFERED: Final = frozenset({400, 404, 405, 406, 410, 501})
_KEEP_ALIVE: Final = (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 4))
"""A network that has gone without a word is noticed after two minutes."""


class StreamPace:
    """Streams of one kind: how soon after one the next may begin, where nothing has failed."""

    def __init__(self) -> None:
        self._brief = 0
        """Streams in a row that ended soon."""

    async def wait_for_turn(self) -> None:
        """Returns when it is time for the next one."""
        if self._brief >= _MOST_BRIEF:
            await trio.sleep(_BRIEF_S)

    def with_pace(self, response: httpx2.Response, ended: Callable[[bool], None] = lambda _: None) -> None:
        """Its stream is one of these. `ended`: as in `EndOnErrorStream`."""
        since = trio.current_time()

        def its_end(heard: bool) -> None:
            self._brief = self._brief + 1 if trio.current_time() - since < _BRIEF_S else 0
            ended(heard)

        response.stream = EndOnErrorStream(response.stream, its_end)


class GetStreams:
    """Attempts of one session to open the GET stream on which the server sends notifications."""

    def __init__(self) -> None:
        self._pace = StreamPace()
        self._task: trio.lowlevel.Task | None = None
        self._misses = 0
        """Attempts in a row that brought nothing."""

    def is_listen_request(self, request: httpx2.Request) -> bool:
        """This GET listens; others resume the stream of a call. The SDK listens in one task, first without
        an id of an event.
        """
        task = trio.lowlevel.current_task()
        if self._task is None and "last-event-id" not in request.headers:
            self._task = task
        return self._task is task

    async def wait_for_turn(self) -> None:
        """Returns when it is time for the next attempt."""
        if self._misses:
            await trio.sleep(min(_FIRST_PAUSE_S * 2.0 ** min(self._misses - 1, 10), _LONGEST_PAUSE_S))
        else:
            await self._pace.wait_for_turn()

    async def checked_response(
        self, response: httpx2.Response | None, request: httpx2.Request
    ) -> httpx2.Response:
        """The response that the SDK gets: the stream, an empty one after a failure, or the refusal.

        `response`: as received; None: the request failed.
        """
        if response is not None and response.status_code == 200:
            self.stream_opened(response)
            return response
        if response is not None and response.status_code in _NOT_OFFERED:
            return response
        if response is not None:
            await response.aclose()
        self.attempt_failed()
        return httpx2.Response(200, headers={"content-type": "text/event-stream"}, request=request)

    def stream_opened(self, response: httpx2.Response) -> None:
        """Watch the stream of a successful attempt, for its end and its pace."""
        since = trio.current_time()
        keep_alive(response)
        self._pace.with_pace(response, lambda heard: self._stream_ended(since, heard=heard))

    def attempt_failed(self) -> None:
        """Count a failed attempt; the next one waits longer."""
        self._misses += 1

    def _stream_ended(self, since: float, *, heard: bool) -> None:
        lasted = trio.current_time() - since >= _LASTING_S
        self._misses = 0 if heard or lasted else self._misses + 1


class EndOnErrorStream(httpx2.AsyncByteStream):
    """A stream whose connection may break: then it is at its end."""

    def __init__(self, inner: Any, ended: Callable[[bool], None] = lambda _: None) -> None:
        """`ended`: is told, once it is, whether anything came."""
        self._inner = inner
        self._ended = ended

    async def __aiter__(self) -> AsyncIterator[bytes]:
        heard = False
        try:
            async for part in self._inner:
                heard = True
                yield part
        except httpx2.TransportError:
            pass
        self._ended(heard)

    async def aclose(self) -> None:
        await self._inner.aclose()


def keep_alive(response: httpx2.Response) -> None:
    """Have the system look after the connection of a stream on which nothing may come for hours."""
    stream = response.extensions.get("network_stream")
    connection = stream.get_extra_info("socket") if stream is not None else None
    if connection is None:
        return
    with suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _KEEP_ALIVE:
            if hasattr(socket, name):  # macOS has not all of them
                connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
