"""What a server reached by URL may write at once."""

import gzip
import itertools
from contextlib import aclosing

import httpx2
import pytest

from carpool.bridge.event_bounds import (
    MAX_BODY_BYTES,
    MAX_BODY_PARTS,
    EventBounds,
    with_bounds,
)
from tests.behaviours import behaviour

LINE = b"data: {}\n"


@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n", b"\r\r"])
@pytest.mark.parametrize("cut", range(5))
def test_each_event_is_counted_by_itself_however_its_end_is_cut(end: bytes, cut: int) -> None:
    bounds = EventBounds()
    event = b"data: " + b"[" * (MAX_BODY_PARTS // 3) + end
    stream = event * 8
    cuts = [0, *(len(event) * number - cut for number in range(1, 9)), len(stream)]
    assert all(bounds.feed(stream[begin:stop]) for begin, stop in itertools.pairwise(cuts))


def test_an_event_that_does_not_end_is_refused_by_its_bytes() -> None:
    bounds = EventBounds()
    part = bytes(MAX_BODY_BYTES // 4)
    assert [bounds.feed(part) for _ in range(5)] == [True, True, True, True, False]


def test_an_event_of_too_many_parts_is_refused_whole_or_in_pieces() -> None:
    assert not EventBounds().feed(b"data: " + b"[" * (MAX_BODY_PARTS + 1) + b"\n\n")
    assert EventBounds().feed(b'data: "' + b"1,2\\n" * MAX_BODY_PARTS + b'"\n\n'), "a table in a string"
    bounds = EventBounds()
    assert [bounds.feed(b"[" * (MAX_BODY_PARTS // 2)) for _ in range(3)] == [True, True, False]


@behaviour("remote:failures")
async def test_a_packed_stream_is_counted_unpacked_and_ends_as_if_it_were_broken() -> None:
    events = gzip.compress(b"data: 1\n\ndata: " + b"[" * (MAX_BODY_PARTS + 1))
    headers = {"content-type": "text/event-stream", "content-encoding": "gzip", "mcp-session-id": "s"}
    response = httpx2.Response(
        200, headers=headers, stream=httpx2.ByteStream(events), request=httpx2.Request("GET", "http://far/")
    )
    bounded = with_bounds(response)
    assert dict(bounded.headers) == {"content-type": "text/event-stream", "mcp-session-id": "s"}
    async with aclosing(bounded.aiter_bytes()) as parts:
        with pytest.raises(httpx2.RemoteProtocolError):
            async for _ in parts:
                pass
    await bounded.aclose()
    assert response.is_closed


async def test_a_stream_within_the_bounds_passes_as_it_is() -> None:
    response = httpx2.Response(
        200, headers={"content-type": "text/event-stream"}, content=b"data: 1\n\n",
        request=httpx2.Request("GET", "http://far/"),
    )  # fmt: skip
    assert await with_bounds(response).aread() == b"data: 1\n\n"
