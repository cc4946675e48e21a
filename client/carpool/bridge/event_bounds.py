"""Bounds of what a server reached by URL may write, before the SDK turns it into Python objects.

Owns the most parts of a body or event (`json_scan.has_too_many_parts`; each part may become an object that is
many times larger), and the most bytes of one event of a stream, counted after it is unpacked. Of an event,
which comes in pieces, commas in strings cannot be told apart: there a bracket counts as `COMMAS_OF_BRACKET`
commas, so that a table in one string passes. An event that is larger ends its stream, as a broken connection
would.

Knows nothing of: requests, the content of messages, how a stream goes on (`notifications`).
"""

from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Final

import httpx2

MAX_BODY_BYTES: Final = 64 * 1024 * 1024
MAX_BODY_PARTS: Final = 1_000_000
"""They take some hundred MB as Python objects."""
COMMAS_OF_BRACKET: Final = 16
_MOST_WEIGHT: Final = COMMAS_OF_BRACKET * MAX_BODY_PARTS
_ENDS: Final = (b"\n\n", b"\r\n\r\n", b"\r\r")
_LONGEST_END: Final = max(map(len, _ENDS))


def _weight_of(piece: bytes) -> int:
    return piece.count(b",") + COMMAS_OF_BRACKET * (piece.count(b"[") + piece.count(b"{"))


class EventBounds:
    """The size of the event that a stream is within."""

    def __init__(self) -> None:
        self._size_bytes = 0
        self._weight = 0
        self._last = b""
        """The last bytes, in which an event may begin to end."""

    def feed(self, part: bytes) -> bool:
        """Count what has come. Returns False if an event is larger than it may be."""
        whole = self._last + part
        end = max(whole.rfind(each) for each in _ENDS)
        if end >= 0:
            rest = whole[end:]
            self._size_bytes, self._weight = len(rest), _weight_of(rest)
            is_within = _weight_of(part) <= _MOST_WEIGHT
        else:
            self._size_bytes += len(part)
            self._weight += _weight_of(part)
            is_within = True
        self._last = whole[1 - _LONGEST_END :]
        return is_within and self._size_bytes <= MAX_BODY_BYTES and self._weight <= _MOST_WEIGHT


class _BoundedEvents(httpx2.AsyncByteStream):
    """The unpacked bytes of a stream of events."""

    def __init__(self, response: httpx2.Response) -> None:
        self._response = response

    async def __aiter__(self) -> AsyncIterator[bytes]:
        bounds = EventBounds()
        async with aclosing(self._response.aiter_bytes()) as parts:
            async for part in parts:
                if not bounds.feed(part):
                    raise httpx2.RemoteProtocolError("an event of the server is too large")
                yield part

    async def aclose(self) -> None:
        await self._response.aclose()


def with_bounds(response: httpx2.Response) -> httpx2.Response:
    """The same response, whose stream is unpacked and ends at an event that is too large."""
    headers = [
        (name, value)
        for name, value in response.headers.multi_items()
        if name.lower() not in {"content-encoding", "content-length"}
    ]
    bounded = httpx2.Response(
        response.status_code,
        headers=headers,
        stream=_BoundedEvents(response),
        request=response.request,
        extensions=response.extensions,
    )
    bounded.next_request = response.next_request
    return bounded
