"""HTTP/1.1 as the door speaks it: over real sockets, to a taker that answers as it is told."""

import asyncio
import contextlib
import gc
import json
import weakref
from collections.abc import Awaitable, Callable

import pytest

from carpool.http.client_budget import ClientBudget
from carpool.http.connection import HttpConnection
from carpool.http.core.effects import HttpRequest, Respond
from carpool.http.core.limits import MAX_UNSENT_BYTES, HttpLimits
from carpool.http.core.request_turns import RequestTurns
from tests.behaviours import behaviour

WAIT_S = 10.0
GET = b"GET /a?b=1 HTTP/1.1\r\nHost: x\r\n\r\n"


LONG_BYTES = 8 << 20
"""More than the system keeps for a client that does not read."""
FREE_BYTES = 100
"""The longest body at `/free`, where no token is asked for."""


class RecordingHandler:
    """Answers with the body's length, or at `/long` with `LONG_BYTES`; `/hold` waits for the test, `/stream`
    becomes a stream of events.
    """

    def __init__(self) -> None:
        self.limits = HttpLimits(body_bytes=1000)
        self.date = b""
        self.requests: list[HttpRequest] = []
        self.held: dict[int, HttpConnection] = {}
        self.gone_: list[int] = []
        self.connections: list[HttpConnection] = []
        self.full = False
        self.now = 0.0
        self.body_budget = ClientBudget()
        self.unsent_budget = ClientBudget()
        self.turns = RequestTurns(self._begin_turn)
        self.strangers = False
        self.reading: list[tuple[int, bool]] = []
        """The clients that have stopped (False) or begun to read again (True)."""

    def _begin_turn(self) -> None:
        """Have the loop take the turns, where there is one that runs."""
        with contextlib.suppress(RuntimeError):
            asyncio.get_running_loop().call_soon(self.turns.run)

    def principal_of(self, connection: HttpConnection, headers: dict[str, str]) -> str:
        return headers.get("x-principal", "")

    def reader_of(self, headers: dict[str, str]) -> str:
        return headers.get("x-principal", "")

    def body_bound(self, connection: HttpConnection, path: str, headers: dict[str, str]) -> int | Respond:
        if self.strangers:
            return Respond(0, 401, b"{}")
        return FREE_BYTES if path == "/free" else self.limits.body_bytes

    def client_connected(self, connection: HttpConnection) -> Respond | None:
        self.connections.append(connection)
        return Respond(0, 503, b"too many") if self.full else None

    def request_received(self, connection: HttpConnection, request: HttpRequest) -> int:
        self.requests.append(request)
        x = len(self.requests)
        if request.path == "/watched":
            connection.watch_reading(x)
        if request.path in {"/stream", "/watched"}:
            connection.begin_stream(())
        if request.path in {"/stream", "/watched", "/hold"}:
            self.held[x] = connection
        elif request.path == "/long":
            connection.respond(200, bytes(LONG_BYTES), "text/plain")
        else:
            connection.respond(200, b"%d" % len(request.body), "text/plain")
        return x

    def client_gone(self, x: int) -> None:
        self.gone_.append(x)

    def client_blocked(self, x: int) -> None:
        self.reading.append((x, False))

    def client_has_room(self, x: int) -> None:
        self.reading.append((x, True))

    def connection_closed(self, connection: HttpConnection) -> None:
        self.connections.remove(connection)


class Client:
    """One connection of a test."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def until(self, end: bytes) -> bytes:
        return await asyncio.wait_for(self.reader.readuntil(end), WAIT_S)

    async def answer(self) -> tuple[int, bytes]:
        """Status and body of the next answer with a length."""
        head = await self.until(b"\r\n\r\n")
        size = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        return int(head.split()[1]), await asyncio.wait_for(self.reader.readexactly(size), WAIT_S)

    async def rest(self) -> bytes:
        return await asyncio.wait_for(self.reader.read(), WAIT_S)


def played(play: Callable[[RecordingHandler, Client], Awaitable[None]]) -> RecordingHandler:
    """`play` with a taker behind a listening socket, and a client; all closed afterwards."""

    async def run() -> RecordingHandler:
        taker = RecordingHandler()
        server = await asyncio.get_running_loop().create_server(
            lambda: HttpConnection(taker, lambda: taker.now), "127.0.0.1", 0
        )
        port = server.sockets[0].getsockname()[1]
        client = Client(*await asyncio.open_connection("127.0.0.1", port))
        try:
            await play(taker, client)
        finally:
            client.writer.close()
            await until(lambda: not taker.connections)
            server.close()
            await server.wait_closed()
        assert taker.body_budget.used == 0
        return taker

    return asyncio.run(run())


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not condition():  # noqa: ASYNC110 - conditions of all sorts
            await asyncio.sleep(0.001)


def test_a_connection_serves_one_request_after_another() -> None:
    async def play(taker: RecordingHandler, client: Client) -> None:
        for size in (3, 0, 5):
            await client.send(
                b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (size, b"a" * size)
            )
            assert await client.answer() == (200, b"%d" % size)
        assert len(taker.connections) == 1

    played(play)


def test_a_request_is_taken_apart() -> None:
    async def play(_: RecordingHandler, client: Client) -> None:
        await client.send(b"GET /a%20b?c=%31 HTTP/1.1\r\nHost:  x \r\nX-Two: 1\r\nx-two: 2\r\n\r\n")
        await client.answer()

    found = played(play).requests[0]
    assert (found.method, found.path, found.query) == ("GET", "/a%20b", "c=%31")
    assert found.headers == {"host": "x", "x-two": "1, 2"}


def test_a_request_may_come_in_single_bytes_and_in_chunks() -> None:
    async def play(taker: RecordingHandler, client: Client) -> None:
        head = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
        whole = head + b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
        for at in range(len(whole)):
            await client.send(whole[at : at + 1])
        assert await client.answer() == (200, b"5")
        assert taker.requests[0].body == b"abcde"

    played(play)


def test_headers_are_those_of_the_request_itself_whatever_the_one_before_had() -> None:
    chunked = b"POST /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n"
    trailer, body = b"Origin: y\r\n", b"\r\n1\r\na\r\n0\r\n"
    requests = [
        chunked + body + trailer + b"\r\n",
        chunked + trailer + body + b"\r\n",
        chunked + trailer + body + b"\r\n",
        chunked + body + b"\r\n",
    ]

    async def play(_: RecordingHandler, client: Client) -> None:
        for request in requests:
            await client.send(request)
            assert await client.answer() == (200, b"1")

    taker = played(play)
    assert ["origin" in request.headers for request in taker.requests] == [False, True, True, False]


def test_requests_sent_ahead_are_answered_in_order() -> None:
    async def play(taker: RecordingHandler, client: Client) -> None:
        await client.send(b"GET /hold HTTP/1.1\r\nHost: x\r\n\r\n" + GET)
        await until(lambda: taker.held)
        assert len(taker.requests) == 1, "the second one waits"
        taker.held[1].respond(202, b"", "text/plain")
        assert await client.answer() == (202, b"")
        assert await client.answer() == (200, b"0")

    played(play)


def test_a_stream_of_events_is_chunked_and_the_connection_goes_on() -> None:
    async def play(taker: RecordingHandler, client: Client) -> None:
        await client.send(b"GET /stream HTTP/1.1\r\nHost: x\r\n\r\n")
        head = await client.until(b"\r\n\r\n")
        assert b"Content-Type: text/event-stream" in head
        taker.held[1].write(b"data: 1\n\n")
        assert await client.until(b"\n\n\r\n") == b"9\r\ndata: 1\n\n\r\n"
        taker.held[1].end()
        assert await client.until(b"0\r\n\r\n")
        await client.send(GET)
        assert (await client.answer())[0] == 200

    played(play)


def test_a_client_of_http_1_0_gets_its_stream_until_the_end_of_the_connection() -> None:
    async def play(taker: RecordingHandler, client: Client) -> None:
        await client.send(b"GET /stream HTTP/1.0\r\nHost: x\r\n\r\n")
        assert b"chunked" not in await client.until(b"\r\n\r\n")
        taker.held[1].write(b"data: 1\n\n")
        taker.held[1].end()
        assert await client.rest() == b"data: 1\n\n"

    played(play)


def test_a_client_that_hangs_up_on_a_waiting_request_is_told_of() -> None:
    async def play(taker: RecordingHandler, client: Client) -> None:
        await client.send(b"GET /hold HTTP/1.1\r\nHost: x\r\n\r\n")
        await until(lambda: taker.held)
        client.writer.close()
        await until(lambda: taker.gone_)

    assert played(play).gone_ == [1]


def test_a_client_that_hangs_up_between_requests_is_not() -> None:
    async def play(_: RecordingHandler, client: Client) -> None:
        await client.send(GET)
        await client.answer()

    assert played(play).gone_ == []


def test_an_offer_of_http_2_is_declined_and_the_body_is_kept() -> None:
    async def play(taker: RecordingHandler, client: Client) -> None:
        head = b"POST / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n"
        await client.send(head + b"HTTP2-Settings: AAE\r\nContent-Length: 3\r\n\r\nabc" + GET)
        assert await client.answer() == (200, b"3")
        assert (await client.answer())[0] == 200
        assert taker.requests[0].body == b"abc"

    played(play)


def test_who_waits_to_be_told_to_go_on_is_told() -> None:
    async def play(_: RecordingHandler, client: Client) -> None:
        await client.send(b"POST / HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n")
        assert (await client.until(b"\r\n\r\n")).startswith(b"HTTP/1.1 100")
        await client.send(b"ab")
        assert await client.answer() == (200, b"2")

    played(play)


@behaviour("http:limits:free")
def test_a_body_that_is_longer_than_its_path_allows_is_refused_as_it_arrives() -> None:
    async def play(taker: RecordingHandler, client: Client) -> None:
        head = b"POST %b HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
        half = b"40\r\n" + b"a" * 64 + b"\r\n"
        await client.send(head % b"/other" + half + half + b"0\r\n\r\n")
        assert await client.answer() == (200, b"128")
        await client.send(head % b"/free" + half + b"0\r\n\r\n")
        assert await client.answer() == (200, b"64")
        await client.send(head % b"/free" + half)
        await client.send(half)
        assert (await client.answer())[0] == 413
        assert len(taker.requests) == 2

    played(play)


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1001\r\n\r\n", 413),
        (b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n400\r\n" + b"a" * 1024, 413),
        (b"GET / HTTP/1.1\r\nX: " + b"a" * 70_000 + b"\r\n\r\n", 431),
        (b"GET / HTTP/1.1\r\n" + b"X: a\r\n" * 200 + b"\r\n", 431),
        (b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\n\r\n", 414),
        (b"nonsense\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nbroken header\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n", 400),
    ],
)
def test_what_is_too_long_or_no_http_gets_its_status_and_the_connection_ends(
    data: bytes, status: int
) -> None:
    async def play(taker: RecordingHandler, client: Client) -> None:
        await client.send(data)
        assert (await client.answer())[0] == status
        assert await client.rest() == b""
        assert not taker.requests

    played(play)


@behaviour("http:limits")
@pytest.mark.parametrize(
    "data",
    [
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1001\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n400\r\n" + b"a" * 1024,
    ],
)
def test_a_body_that_is_too_long_is_refused_with_carpools_code_and_the_limit(data: bytes) -> None:
    async def play(_: RecordingHandler, client: Client) -> None:
        await client.send(data)
        status, body = await client.answer()
        error = json.loads(body)["error"]
        assert (status, error["code"], error["data"]["code"]) == (413, 4103, "too_large")
        assert "1000 bytes (http.max_body_bytes)" in error["message"]

    played(play)


@behaviour("http:limits")
def test_headers_that_never_end_are_cut_off() -> None:
    async def play(taker: RecordingHandler, client: Client) -> None:
        await client.send(b"GET / HTTP/1.1\r\nX: ")
        await until(lambda: taker.connections and taker.connections[0]._phase == "head")
        for _n in range(20):
            await client.send(b"a" * 8192)
        assert (await client.answer())[0] == 431

    played(play)


@pytest.mark.parametrize("start", [b"GET / HT", b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nab"])
def test_a_request_that_arrives_too_slowly_is_given_up(start: bytes) -> None:
    async def play(taker: RecordingHandler, client: Client) -> None:
        await client.send(start)
        await until(lambda: taker.connections and taker.connections[0]._phase != "between")
        await asyncio.sleep(0.02)
        taker.now += 61.0
        taker.connections[0].check_timeout(taker.now)
        assert (await client.answer())[0] == 408

    played(play)


@behaviour("http:limits")
@pytest.mark.parametrize("start", [b"GET / HT", b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nab"])
def test_what_arrives_behind_an_open_request_has_its_deadline_too(start: bytes) -> None:
    async def play(taker: RecordingHandler, client: Client) -> None:
        await client.send(b"GET /hold HTTP/1.1\r\nHost: x\r\n\r\n" + start)
        await until(lambda: taker.held and taker.connections[0]._phase != "between")
        taker.connections[0].check_timeout(taker.now + 14.0)
        assert not taker.gone_
        taker.now += 61.0
        taker.connections[0].check_timeout(taker.now)
        assert await client.rest() == b"", "an answer would be taken for the open request's"
        assert taker.gone_ == [1]
        assert taker.body_budget.used == 0

    played(play)


def test_a_waiting_request_is_not_hurried_and_an_idle_connection_is_closed_in_time() -> None:
    async def play(taker: RecordingHandler, client: Client) -> None:
        await client.send(b"GET /hold HTTP/1.1\r\nHost: x\r\n\r\n")
        await until(lambda: taker.held)
        taker.now += 10_000.0
        taker.connections[0].check_timeout(taker.now)
        taker.held[1].respond(200, b"", "text/plain")
        assert (await client.answer())[0] == 200
        taker.connections[0].check_timeout(taker.now + 119.0)
        assert taker.connections
        taker.connections[0].check_timeout(taker.now + 121.0)
        assert await client.rest() == b""

    played(play)


@behaviour("http:limits")
def test_a_client_that_reads_no_events_is_cut() -> None:
    async def play(taker: RecordingHandler, client: Client) -> None:
        await client.send(b"GET /stream HTTP/1.1\r\nHost: x\r\n\r\n")
        await until(lambda: taker.held)
        event = b"data: " + b"a" * 65536 + b"\n\n"
        for _ in range(20 * MAX_UNSENT_BYTES // len(event)):
            if taker.gone_:
                break
            taker.held[1].write(event)
            await asyncio.sleep(0)
        assert taker.gone_ == [1]

    played(play)


def test_a_client_that_takes_nothing_of_a_long_answer_is_cut_after_a_while() -> None:
    async def play(taker: RecordingHandler, client: Client) -> None:
        await client.send(b"GET /hold HTTP/1.1\r\nHost: x\r\n\r\n")
        await until(lambda: taker.held)
        taker.held[1].respond(200, b"a" * 32 * 1024 * 1024, "text/plain")
        taker.connections[0].check_timeout(59.0)
        assert taker.connections
        taker.connections[0].check_timeout(61.0)
        await until(lambda: not taker.connections)

    played(play)


@behaviour("http:tokens:unread")
def test_unread_answers_are_known_by_the_principals_of_their_requests() -> None:
    async def play(taker: RecordingHandler, client: Client) -> None:
        async def answered(path: bytes, principal: bytes, *more: bytes) -> None:
            count = len(taker.requests)
            head = [b"GET %b HTTP/1.1" % path, b"Host: x", b"X-Principal: " + principal, *more, b"", b""]
            await client.send(b"\r\n".join(head))
            await until(lambda: len(taker.requests) > count)

        await answered(b"/", b"ann")
        await client.answer()
        (connection,) = taker.connections
        assert not connection.unread_by, "all is read"
        await answered(b"/long", b"bob")
        assert connection.unread_by == {"bob"}, "not those before, whose answers are read"
        connection.resume_writing()  # as if little of it were left
        for principal in (b"cid", b"dan"):
            await answered(b"/", principal)
        assert connection.unread_by == {"bob", "cid", "dan"}
        await answered(b"/", b"eve", b"X: " + bytes(5000).replace(b"\0", b"x"))
        assert connection.unread_by == {"bob", "cid", "dan", "eve", ""}, "a long head is not kept"
        for _ in range(4):
            await client.answer()
        assert not connection.unread_by
        await answered(b"/long", b"ann")
        assert connection.unread_by == {"ann"}

    played(play)


def test_one_connection_too_many_is_told_so() -> None:
    async def play(taker: RecordingHandler, client: Client) -> None:
        await client.send(GET)
        await client.answer()
        taker.full = True
        port = client.writer.get_extra_info("peername")[1]
        late = Client(*await asyncio.open_connection("127.0.0.1", port))
        assert (await late.answer())[0] == 503
        late.writer.close()
        await until(lambda: len(taker.connections) == 1)

    played(play)


def test_a_connection_that_ended_is_freed_at_once() -> None:
    """Not by the collector: in a door it comes after thousands of connections."""

    async def play(taker: RecordingHandler, client: Client) -> None:
        await client.send(GET)
        await client.answer()
        gone = weakref.ref(taker.connections[0])
        gc.disable()
        try:
            client.writer.close()
            await until(lambda: gone() is None)
        finally:
            gc.enable()

    played(play)


@behaviour("web:frozen")
def test_the_handler_hears_when_a_watched_client_stops_reading_and_when_it_reads_again() -> None:
    async def play(taker: RecordingHandler, client: Client) -> None:
        await client.send(b"GET /watched HTTP/1.1\r\nHost: x\r\n\r\n")
        await client.until(b"\r\n\r\n")
        connection = taker.held[1]
        for _ in range(10_000):  # what the system keeps is bounded, on both sides
            if taker.reading:
                break
            connection.write(b"x" * 4096)
            await asyncio.sleep(0)
        assert taker.reading == [(1, False)]
        reading = asyncio.ensure_future(client.rest())
        await until(lambda: len(taker.reading) > 1)
        assert taker.reading[-1] == (1, True)
        connection.close_after_write()
        await reading

    played(play)
