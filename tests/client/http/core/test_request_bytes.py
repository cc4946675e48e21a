"""A request that was read, written and read again is the same request."""

import pytest

from carpool.http.core.effects import HttpRequest
from carpool.http.core.request_bytes import request_bytes
from tests.client.http.test_connection import Client, RecordingHandler, played


def read(data: bytes) -> tuple[RecordingHandler, list[bytes]]:
    """What a door reads of these bytes, and the bodies of its answers."""
    bodies: list[bytes] = []

    async def play(_: RecordingHandler, client: Client) -> None:
        await client.send(data)
        while len(bodies) < data.count(b"HTTP/1."):
            bodies.append((await client.answer())[1])

    return played(play), bodies


@pytest.mark.parametrize(
    "data",
    [
        b"GET /a?b=1&c HTTP/1.1\r\nHost: x\r\nAccept: text/event-stream\r\n\r\n",
        b"POST /mcp HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello",
        b"POST /mcp HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n",
        b"POST /mcp HTTP/1.1\r\nHost: x\r\nA: \xe4\r\nA: 2\r\nContent-Length: 2\r\n\r\n\x00\xff",
    ],
)
def test_a_request_written_again_is_read_as_before(data: bytes) -> None:
    (first,) = read(data)[0].requests
    again, bodies = read(request_bytes(first, modern=True))
    assert again.requests == [first]
    assert bodies == [b"%d" % len(first.body)]


def test_a_chunked_body_is_written_with_its_length_and_is_not_asked_for_again() -> None:
    one = HttpRequest(
        "POST", "/mcp", "", {"host": "x", "transfer-encoding": "chunked", "expect": "100-continue"}, b"ab"
    )
    assert b"100-continue" not in request_bytes(one, modern=True)
    (found,) = read(request_bytes(one, modern=True))[0].requests
    assert (found.body, found.headers) == (b"ab", {"host": "x", "content-length": "2"})


def test_two_requests_behind_each_other_stay_two() -> None:
    one = HttpRequest("POST", "/a", "", {"host": "x", "content-length": "9"}, b"ab")
    two = HttpRequest("GET", "/b", "q=1", {"host": "x"}, b"")
    found = read(request_bytes(one, modern=True) + request_bytes(two, modern=True))[0].requests
    assert [(each.path, each.query, each.body) for each in found] == [("/a", "", b"ab"), ("/b", "q=1", b"")]


def test_the_version_stays_because_the_client_reads_the_answer_by_it() -> None:
    old = request_bytes(HttpRequest("GET", "/", "", {"host": "x"}, b""), modern=False)
    assert old.startswith(b"GET / HTTP/1.0\r\n")
