"""What no honest client does to the door: over real sockets, and with random bytes cut anywhere."""

import asyncio
import itertools
import time
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carpool.http.client_budget import ClientBudget
from carpool.http.connection import HttpConnection
from carpool.http.core.access import ANY_PRINCIPAL, NO_PRINCIPAL, AccessRules, hash_of
from carpool.http.core.core import HttpCore
from carpool.http.core.effects import HttpRequest, HttpRules
from carpool.http.core.limits import MAX_HEAD_BYTES, MIN_CHUNK_BYTES, SMALL_CHUNKS, HttpLimits
from carpool.http.core.request_turns import PIECE_BYTES, REQUEST_COST, TURN_COST, TURN_S, RequestTurns
from carpool.http.server import HttpDoorServer
from tests.behaviours import behaviour
from tests.client.http.core.test_misuse import FakeConnection
from tests.client.http.door_core_rig import DoorCoreRig, request
from tests.client.http.test_connection import GET, LONG_BYTES, Client, RecordingHandler, played, until

CHUNKED = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"


def answered(*parts: bytes, status: int) -> RecordingHandler:
    """One client says this and hears that status first."""

    async def play(_: RecordingHandler, client: Client) -> None:
        for part in parts:
            await client.send(part)
        assert (await client.answer())[0] == status

    return played(play)


# --- requests that two readers could understand in two ways ---


def test_what_comes_behind_a_chunked_body_adds_nothing_to_the_headers() -> None:
    trailed = CHUNKED + b"1\r\na\r\n0\r\nAuthorization: Bearer x\r\nHost: evil\r\n\r\n"
    taker = answered(trailed + GET, status=200)
    assert [each.headers for each in taker.requests] == [
        {"host": "x", "transfer-encoding": "chunked"},
        {"host": "x"},
    ]


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: identity\r\nTransfer-Encoding: chunked\r\n", 501),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: gzip, chunked\r\n", 501),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: xchunked\r\n", 501),
        (b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n", 501),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n", 400),
        (b"POST / HTTP/1.1\r\nContent-Length: 3\r\nContent-Length: 3\r\n", 400),
        (b"POST / HTTP/1.1\r\nContent-Length: +3\r\n", 400),
        (b"POST / HTTP/1.1\r\nContent-Length: 3, 3\r\n", 400),
        (b"POST / HTTP/1.1\r\nContent-Length : 3\r\n", 400),
        (b"POST / HTTP/1.1\r\nX: a\r\n b\r\n", 400),
        (b"POST / HTTP/1.1\r\nX: a\x00b\r\n", 400),
        (b"POST / HTTP/1.1\nX: a\r\n", 400),
        (b"POST / HTTP/2.0\r\nX: a\r\n", 505),
        (b"GET /\r\n", 505),
        (b"CONNECT a:80 HTTP/1.1\r\nHost: a\r\n", 501),
    ],
)
def test_what_can_be_read_in_two_ways_is_refused(head: bytes, status: int) -> None:
    assert not answered(head + b"\r\n", b"0\r\n\r\n", status=status).requests


def test_two_hosts_are_no_host_of_ours() -> None:
    desk = DoorCoreRig()
    assert desk.status(desk.send("GET", "/health", host="evil, a.localhost")) == 421


@pytest.mark.parametrize(
    "host",
    [
        *("localhost.evil", "a@localhost", "a@b.localhost", "evil/.localhost", "[::1]x80", "[localhost]"),
        *(
            "localhost:80:80",
            "localhost:x",
            "127.0.0.1.evil",
            " ",
            "",
            "loc\xe4lhost",
            "a" * 300 + ".localhost",
        ),
    ],
)
@behaviour("http:host-origin")
def test_tricks_with_the_host_are_misdirected(host: str) -> None:
    desk = DoorCoreRig()
    assert desk.status(desk.send("GET", "/health", host=host)) == 421


@pytest.mark.parametrize(
    "host", ["LOCALHOST", "localhost.", "localhost:", "[::1]:8808", "[::1]", "127.1.2.3:1"]
)
def test_other_spellings_of_this_machine_are_good(host: str) -> None:
    assert AccessRules().host_allowed(host)


@pytest.mark.parametrize(
    "origin",
    [
        *(
            "http://localhost@evil",
            "http://evil@localhost",
            "http://localhost.evil",
            "http://localhost/x",
            "null",
        ),
        *(
            "http://localhost, http://evil",
            "http://evil, http://localhost",
            "file://localhost",
            "http://",
            "",
        ),
        *("http://localhost#", "http://evil?localhost", "javascript:localhost", "http://[::1]evil"),
    ],
)
def test_tricks_with_the_origin_do_not_let_a_page_in(origin: str) -> None:
    assert not AccessRules().origin_allowed(origin)


@pytest.mark.parametrize(
    "path",
    [
        *(
            "/mcp/s/..",
            "/mcp/s/%2e%2e",
            "/mcp/s/",
            "/mcp/s/a/b",
            "/mcp/s/a%2Fb",
            "/mcp/s/%00",
            "/mcp/s/a%0d%0ab",
        ),
        *(
            "//mcp",
            "/mcp/",
            "/MCP",
            "/%6dcp",
            "/mcp/../health",
            "/mcp/s/%ff",
            "http://127.0.0.1/mcp",
            "*",
            "",
        ),
    ],
)
def test_tricks_with_the_path_lead_nowhere(path: str) -> None:
    desk = DoorCoreRig()
    assert desk.status(desk.post(request(1, "initialize", protocolVersion="2025-11-25"), path)) == 404
    assert not desk.told


# --- more than a client may send, and what it may keep waiting ---


def test_a_head_in_two_parts_may_be_followed_at_once_by_a_long_body() -> None:
    async def play(taker: RecordingHandler, client: Client) -> None:
        taker.limits = type(taker.limits)(body_bytes=200_000)
        await client.send(b"POST / HTTP/1.1\r\nHost: x\r\n")
        await until(lambda: taker.connections and taker.connections[0]._phase == "head")
        await client.send(b"Content-Length: 100000\r\n\r\n" + b"a" * 100_000)
        assert await client.answer() == (200, b"100000")

    played(play)


@pytest.mark.parametrize(
    "start", [CHUNKED + b"1\r\na\r\n0\r\nX: ", CHUNKED + b"1;a=", b"\r\n", b"GET /?", b"GET / HTTP/1.1\r\nX"]
)
def test_what_never_ends_is_cut_off_wherever_it_is(start: bytes) -> None:
    async def play(taker: RecordingHandler, client: Client) -> None:
        await client.send(start)
        more = b"\r\n" if start == b"\r\n" else b"a"
        for _ in range(12 * MAX_HEAD_BYTES // 8192):
            await client.send(more * (8192 // len(more)))
            await asyncio.sleep(0)
        assert (await client.answer())[0] in {400, 414, 431}
        assert not taker.requests

    played(play)


def test_strangers_are_refused_before_their_long_bodies_come() -> None:
    async def play(taker: RecordingHandler, client: Client) -> None:
        taker.strangers = True
        taker.limits = type(taker.limits)(body_bytes=1_000_000)
        await client.send(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 900000\r\n\r\n")
        assert await client.answer() == (401, b"{}")

    played(play)


def test_bodies_of_all_clients_together_are_bounded() -> None:
    async def play(taker: RecordingHandler, client: Client) -> None:
        taker.body_budget = ClientBudget(1000)
        start = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 800\r\n\r\n" + b"a" * 600
        await client.send(start)
        await until(lambda: taker.body_budget.used == 600)
        port = client.writer.get_extra_info("peername")[1]
        other = Client(*await asyncio.open_connection("127.0.0.1", port))
        await other.send(start)
        assert (await other.answer())[0] == 503
        other.writer.close()
        await client.send(b"a" * 200)
        assert await client.answer() == (200, b"800")

    played(play)


@behaviour("http:shares:bodies")
def test_bodies_of_one_principal_leave_room_for_those_of_another() -> None:
    start = b"POST / HTTP/1.1\r\nHost: x\r\nX-Principal: %b\r\nContent-Length: 800\r\n\r\n" + b"a" * 400

    async def play(taker: RecordingHandler, client: Client) -> None:
        taker.body_budget = ClientBudget(1000)
        await client.send(start % b"ann")
        await until(lambda: taker.body_budget.used == 400)
        port = client.writer.get_extra_info("peername")[1]
        more = [Client(*await asyncio.open_connection("127.0.0.1", port)) for _ in range(2)]
        await more[0].send(start % b"ann")
        assert (await more[0].answer())[0] == 503, "together they would be more than three quarters"
        await more[1].send(start % b"bob")
        await until(lambda: taker.body_budget.used == 800)
        for each in more:
            each.writer.close()
        await until(lambda: taker.body_budget.used == 400)
        await client.send(b"a" * 400)
        assert (await client.answer())[0] == 503, "also with one body"
        assert taker.body_budget.used == 0

    played(play)


@behaviour("http:shares:bodies")
@given(
    st.lists(
        st.tuples(st.sampled_from([ANY_PRINCIPAL, NO_PRINCIPAL, "ann", "bob"]), st.integers(0, 60)),
        max_size=30,
    )
)
def test_no_principal_takes_the_whole_room_even_with_the_strangers(sent: list[tuple[str, int]]) -> None:
    room, used = ClientBudget(100), Counter[str]()
    part = {ANY_PRINCIPAL: 100, NO_PRINCIPAL: 12, "ann": 75, "bob": 75}
    for principal, size in sent:
        fits = used.total() + size <= 100 and used[principal] + size <= part[principal]
        assert room.reserve(principal, size) == fits
        if fits:
            used[principal] += size
        else:
            room.release(principal, size)
    for principal, size in used.items():
        room.release(principal, size)
    assert room.used == 0


@behaviour("http:shares:bodies")
def test_a_body_counts_for_the_token_of_its_own_headers_or_of_its_connection() -> None:
    tokens = {"ann": hash_of("a"), "bob": hash_of("b")}
    door = HttpDoorServer("", HttpCore(HttpRules(), AccessRules(tokens=tokens)), HttpLimits(), 16)
    wire: Any = FakeConnection()
    ann, bob = ({"host": "localhost", "authorization": f"Bearer {each}"} for each in "ab")
    door.client_connected(wire)
    assert door.principal_of(wire, {}) == NO_PRINCIPAL
    assert door.principal_of(wire, {"authorization": "Bearer c"}) == NO_PRINCIPAL
    assert door.principal_of(wire, ann) == "ann"
    door.request_received(wire, HttpRequest("GET", "/nothing", "", ann, b""))
    assert door.principal_of(wire, bob) == "ann", "the connection is counted for the same"
    readers = [door.reader_of(each) for each in (ann, bob, {}, {"authorization": "Bearer c"})]
    assert readers == ["ann", "bob", NO_PRINCIPAL, NO_PRINCIPAL]
    without_tokens = HttpDoorServer("", HttpCore(HttpRules(), AccessRules()), HttpLimits(), 16)
    assert without_tokens.principal_of(wire, ann) == without_tokens.reader_of(ann) == ANY_PRINCIPAL


@behaviour("http:unread")
def test_the_next_request_of_a_client_that_does_not_read_is_not_handled_before_it_has_read() -> None:
    async def play(taker: RecordingHandler, client: Client) -> None:
        long = b"GET /long HTTP/1.1\r\nHost: x\r\nX-Principal: ann\r\n\r\n"
        await client.send(long * 3)
        await until(lambda: taker.requests)
        await client.send(long)
        await until(lambda: len(taker.connections[0]._ahead) == 3)
        assert len(taker.requests) == 1
        assert taker.unsent_budget.used > 0
        for count in range(4):
            status, body = await client.answer()
            assert (status, len(body)) == (200, LONG_BYTES)
            assert len(taker.requests) <= count + 2
        assert len(taker.requests) == 4
        assert taker.unsent_budget.used == 0

    played(play)


@behaviour("http:unread")
def test_what_one_principal_leaves_unread_on_all_connections_is_bounded() -> None:
    async def play(taker: RecordingHandler, client: Client) -> None:
        port = client.writer.get_extra_info("peername")[1]
        long = b"GET /long HTTP/1.1\r\nHost: x\r\nX-Principal: ann\r\n\r\n"
        await client.send(long)
        await until(lambda: taker.unsent_budget.used)
        taker.unsent_budget._size = (
            taker.unsent_budget.used * 8 // 5
        )  # of that a principal has three quarters
        more = Client(*await asyncio.open_connection("127.0.0.1", port))
        await more.send(long)
        with pytest.raises((ConnectionError, EOFError)):
            await more.answer()
        more.writer.close()
        assert len((await client.answer())[1]) == LONG_BYTES
        await until(lambda: taker.unsent_budget.used == 0)

    played(play)


@pytest.mark.parametrize("size", [8 << 20, 60 * 1024], ids=["a long event", "a short event"])
@behaviour("http:unread")
def test_what_is_written_for_a_client_that_has_stopped_to_read_counts_as_unread(size: int) -> None:
    async def play(taker: RecordingHandler, client: Client) -> None:
        await client.send(b"GET /stream HTTP/1.1\r\nHost: x\r\nX-Principal: ann\r\n\r\n")
        await until(lambda: taker.held)
        (connection,) = taker.connections
        transport = connection._transport
        while not taker.unsent_budget.used:
            connection.write(bytes(32 * 1024))
        connection.write(bytes(size))
        assert taker.unsent_budget.used == transport.get_write_buffer_size() > size
        taker.unsent_budget._size = taker.unsent_budget.used * 4 // 3 + 2  # of that, three quarters
        connection.write(b"one event more")
        assert transport.get_write_buffer_size() == taker.unsent_budget.used == 0, "it is cut"
        await until(lambda: taker.gone_)

    played(play)


@behaviour("http:unread")
def test_an_answer_counts_as_unread_as_a_whole_if_the_client_stalls_at_its_head() -> None:
    async def play(taker: RecordingHandler, client: Client) -> None:
        await client.send(b"GET /watched HTTP/1.1\r\nHost: x\r\nX-Principal: ann\r\n\r\n")
        await until(lambda: taker.held)
        (connection,) = taker.connections
        while not taker.unsent_budget.used:
            connection.write(bytes(1024))
        taker.unsent_budget._size = LONG_BYTES
        connection.respond(200, bytes(LONG_BYTES), "text/plain")
        assert connection._transport.get_write_buffer_size() == taker.unsent_budget.used == 0, "it is cut"

    played(play)


@behaviour("http:turns")
def test_requests_that_come_together_are_handled_a_few_in_each_turn_of_the_loop() -> None:
    async def play(taker: RecordingHandler, client: Client) -> None:
        seen: list[int] = []
        taker.turns = RequestTurns(taker._begin_turn, 16 * REQUEST_COST)

        def look() -> None:
            seen.append(len(taker.requests))
            if len(taker.requests) < 90:
                asyncio.get_running_loop().call_soon(look)

        port = client.writer.get_extra_info("peername")[1]
        clients = [Client(*await asyncio.open_connection("127.0.0.1", port)) for _ in range(3)]
        for each in clients:
            each.writer.write(GET * 30)
        look()
        for each in clients:
            for _ in range(30):
                assert (await each.answer())[0] == 200
            each.writer.close()
        assert max(b - a for a, b in itertools.pairwise(seen)) <= 17

    played(play)


def handled_in_turns(data: list[bytes], last: int, *, takes_s: float = 0.0) -> list[int]:
    """How many requests each turn of the loop handles when the `last` bytes of all connections come together,
    each of which ends a request. `takes_s`: how long each takes.
    """
    taker = RecordingHandler()
    taker.limits = HttpLimits()
    taker.turns = RequestTurns(taker._begin_turn, cpu_s=lambda: takes_s * len(taker.requests))
    connections = [HttpConnection(taker, lambda: taker.now) for _ in data]
    for connection, whole in zip(connections, data, strict=True):
        connection.connection_made(Still())
        for start in range(0, len(whole) - last, PIECE_BYTES):
            connection.data_received(whole[start : min(start + PIECE_BYTES, len(whole) - last)])
            taker.turns.run()
            taker.turns.run()
    before = len(taker.requests)
    for connection, whole in zip(connections, data, strict=True):
        connection.data_received(whole[-last:])
    counts = [before, len(taker.requests)]
    while counts[-1] < before + len(data):
        taker.turns.run()
        counts.append(len(taker.requests))
    return [b - a for a, b in itertools.pairwise(counts)]


@behaviour("http:turns")
@pytest.mark.parametrize("part", ["head", "body", "both"])
@pytest.mark.parametrize("size", [PIECE_BYTES // 2, 3 * PIECE_BYTES])
def test_a_request_counts_by_all_its_bytes_in_the_turn_in_which_its_last_byte_comes(
    part: str, size: int
) -> None:
    head, body = {"head": (size, 0), "body": (0, size), "both": (size // 2, size // 2)}[part]
    words = b"POST / HTTP/1.1\r\nHost: x\r\nX-Long: %b\r\nContent-Length: %d\r\n\r\n"
    data = words % (b"," * head, body) + bytes(body)
    most = max(handled_in_turns([data] * 180, 2))
    assert 1 <= most <= TURN_COST // size + 1


def test_a_short_request_counts_for_itself_alone_after_a_long_one_of_its_connection() -> None:
    size = 4 * PIECE_BYTES
    long = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % size + bytes(size)
    assert max(handled_in_turns([long + GET] * 100, len(GET))) == 100


@behaviour("http:turns:time")
def test_requests_that_take_long_are_few_in_each_turn_however_short_they_are() -> None:
    assert max(handled_in_turns([GET] * 180, len(GET), takes_s=TURN_S / 4.5)) == 5


@behaviour("http:turns:time")
def test_a_door_ends_its_turns_by_the_time_that_it_has_worked(monkeypatch: pytest.MonkeyPatch) -> None:
    worked = itertools.count()
    monkeypatch.setattr(time, "thread_time", lambda: next(worked) * TURN_S / 4)

    async def begun() -> int:
        server = HttpDoorServer("", HttpCore(HttpRules(), AccessRules()), HttpLimits(), 9)
        return sum(server.turns.spend(0) for _ in range(100))

    assert 1 < asyncio.run(begun()) <= 4


@behaviour("http:turns")
def test_a_client_with_a_token_is_served_between_many_without_one() -> None:
    order: list[str] = []

    class Ordered(RecordingHandler):
        def principal_of(self, connection: HttpConnection, headers: dict[str, str]) -> str:
            return headers.get("authorization", "nobody")

        def request_received(self, connection: HttpConnection, request: HttpRequest) -> int:
            order.append(request.path)
            return super().request_received(connection, request)

    taker = Ordered()
    taker.turns = RequestTurns(taker._begin_turn, 2 * REQUEST_COST)
    transport = Still()

    def client(path: bytes, more: bytes = b"") -> None:
        connection = HttpConnection(taker, lambda: taker.now)
        connection.connection_made(transport)
        connection.data_received(b"GET %b HTTP/1.1\r\nHost: x\r\n%b\r\n" % (path, more) * 8)

    for _ in range(100):
        client(b"/nobody")
    before = len(order)
    client(b"/eve", b"AUTHORIZATION:  Bearer e\r\n")
    for _ in range(8):
        taker.turns.run()
    assert order[before:].count("/eve") >= 4
    for _ in range(1000):
        taker.turns.run()
    assert (order.count("/eve"), order.count("/nobody")) == (8, 800)


@behaviour("http:turns:bodies")
def test_of_long_bodies_that_are_complete_together_one_is_handled_in_each_turn_of_the_loop() -> None:
    taker = RecordingHandler()
    taker.limits = HttpLimits()
    for _ in range(5):
        connection = HttpConnection(taker, lambda: taker.now)
        connection.connection_made(Still())
        head = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % TURN_COST
        for data in (head, *[bytes(PIECE_BYTES)] * (TURN_COST // PIECE_BYTES)):
            taker.turns.run()
            connection.data_received(data)
    counts = [len(taker.requests)]
    while counts[-1] < 5:
        taker.turns.run()
        counts.append(len(taker.requests))
    assert max(b - a for a, b in itertools.pairwise(counts)) == 1


# --- requests that are cut into very small parts ---


def all_turns(taker: RecordingHandler) -> None:
    """Do all work that waits, as the loop would in its next turns."""
    for _ in range(3):
        taker.turns.run()
    taker.turns.check()


def fed(*parts: bytes) -> tuple[bytes, HttpConnection, RecordingHandler]:
    """What a client hears that says this, on a connection that hears nothing more."""
    taker, transport = RecordingHandler(), Still()
    taker.limits = HttpLimits()
    connection = HttpConnection(taker, lambda: taker.now)
    connection.connection_made(transport)
    for part in parts:
        for at in range(0, len(part), 10_000):
            connection.data_received(part[at : at + 10_000])
            all_turns(taker)
    return transport.written, connection, taker


@behaviour("http:small-parts")
def test_a_body_in_very_many_very_small_chunks_is_refused_before_it_is_complete() -> None:
    heard, _, taker = fed(CHUNKED, b"1\r\na\r\n" * (SMALL_CHUNKS + SMALL_CHUNKS // 8))
    assert heard.startswith(b"HTTP/1.1 400 ")
    assert b"longer chunks" in heard
    assert taker.body_budget.used == 0


@behaviour("http:small-parts")
def test_a_body_in_few_small_chunks_or_in_many_of_some_length_is_taken() -> None:
    few = b"1\r\na\r\n" * SMALL_CHUNKS
    many = b"10\r\n%b\r\n" % (b"a" * MIN_CHUNK_BYTES) * 10_000
    request = CHUNKED + few[:-6] + many + b"0\r\n\r\n"
    _, _, taker = fed(request, request)
    size = SMALL_CHUNKS - 1 + 10_000 * MIN_CHUNK_BYTES
    assert [len(each.body) for each in taker.requests] == [size, size], "each body is counted by itself"


@pytest.mark.parametrize(
    "begin", [b"GET / HTTP/1.1\r\nHost: x\r\n", CHUNKED + b"1\r\na\r\n0\r\n"], ids=["headers", "trailers"]
)
@pytest.mark.parametrize("end", [b"", b"\r\n"], ids=["unfinished", "complete"])
@behaviour("http:small-parts")
def test_very_many_tiny_headers_or_trailers_are_refused_and_not_kept(begin: bytes, end: bytes) -> None:
    heard, connection, taker = fed(begin + b"a:\r\n" * 1000 + end)
    assert heard.startswith(b"HTTP/1.1 431 ")
    assert not connection._fields
    assert not taker.requests


@behaviour("http:small-parts")
def test_what_waits_for_its_turn_behind_requests_that_are_not_handled_yet_counts_as_a_body() -> None:
    ahead = b"".join(b"GET /%d HTTP/1.1\r\nHost: x\r\n\r\n" % n for n in range(4000))

    async def play(taker: RecordingHandler, client: Client) -> None:
        await client.send(GET)
        await client.answer()
        (connection,) = taker.connections
        connection._is_stalled = True
        connection.data_received(ahead)
        assert taker.body_budget.used == len(ahead)
        await until(lambda: connection._has_enough)
        assert taker.body_budget.used > len(ahead)
        connection._is_stalled = False
        connection._await_turn()
        for _ in range(4000):
            await client.answer()

    assert [each.path for each in played(play).requests][1:] == [f"/{n}" for n in range(4000)]


@behaviour("http:small-parts")
def test_a_few_kilobytes_of_each_connection_are_read_in_a_turn_of_the_loop() -> None:
    async def play(taker: RecordingHandler, client: Client) -> None:
        taker.limits = HttpLimits()
        await client.send(CHUNKED)
        await until(lambda: taker.connections and taker.connections[0]._phase == "body")
        (connection,) = taker.connections
        sizes = [0]
        feed = connection._parser.feed_data

        class Parser:
            def feed_data(self, data: bytes) -> None:
                sizes.append(len(data))
                feed(data)

            def __getattr__(self, name: str) -> Any:
                return getattr(parser, name)

        parser = connection._parser
        replaced: Any = Parser()
        connection._parser = replaced
        body = b"1000\r\n%b\r\n" % bytes(4096) * 200
        await client.send(body + b"0\r\n\r\n")
        assert await client.answer() == (200, b"%d" % (4096 * 200))
        assert sum(sizes) > 4096 * 200
        assert max(sizes) <= 16 * 1024

    played(play)


@pytest.mark.parametrize("zeros", [0, 20, 40])
def test_zeros_before_a_length_make_no_long_body_short(zeros: int) -> None:
    length = b"0" * zeros + b"4000000"
    answered(b"POST /free HTTP/1.1\r\nHost: x\r\nContent-Length: %b\r\n\r\n" % length, status=413)


def test_long_headers_are_not_kept_for_the_next_request() -> None:
    async def play(taker: RecordingHandler, client: Client) -> None:
        await client.send(b"GET / HTTP/1.1\r\nHost: x\r\nX: %b\r\n\r\n" % (b"y" * 60_000))
        await client.answer()
        (connection,) = taker.connections
        assert (connection._headers, connection._read[0], connection.request_head[3]) == ({}, [], {})
        await client.send(GET)
        assert (await client.answer())[0] == 200

    played(play)


@behaviour("http:shares")
def test_a_long_upload_counts_for_its_token_before_it_is_complete() -> None:
    door = HttpDoorServer(
        "", HttpCore(HttpRules(), AccessRules(tokens={"ann": hash_of("a")})), HttpLimits(), 8
    )
    uploading, *others = (FakeConnection() for _ in range(9))
    wire: Any = uploading
    door.client_connected(wire)
    assert (
        door.body_bound(wire, "/mcp", {"host": "localhost", "authorization": "Bearer a"})
        == HttpLimits().body_bytes
    )
    for stranger in others[:6]:
        other: Any = stranger
        door.client_connected(other)
    assert wire in door._places.open, "strangers do not cut it off"
    assert door._places.owner(wire) == "ann"


@behaviour("http:shares:bodies")
def test_the_headers_of_requests_sent_ahead_count_as_bodies_do() -> None:
    ahead = [b"GET /%d HTTP/1.1\r\nHost: x\r\nX: %b\r\n\r\n" % (n, b"x" * 60_000) for n in range(3)]

    async def play(taker: RecordingHandler, client: Client) -> None:
        await client.send(b"GET /hold HTTP/1.1\r\nHost: x\r\n\r\n" + b"".join(ahead[:2]))
        await until(lambda: taker.body_budget.used > 120_000)
        taker.held[1].respond(200, b"1", "text/plain")
        for _ in range(3):
            await client.answer()
        assert taker.body_budget.used == 0
        taker.body_budget = ClientBudget(150_000)
        await client.send(b"GET /hold HTTP/1.1\r\nHost: x\r\n\r\n" + b"".join(ahead))
        assert await client.rest() == b"", "there is no room, and no answer may come before that to /hold"

    assert [each.path for each in played(play).requests] == ["/hold", "/0", "/1", "/hold"]


class NamingHandler(RecordingHandler):
    """Knows clients by what they show as a token."""

    def principal_of(self, connection: HttpConnection, headers: dict[str, str]) -> str:
        return headers.get("authorization", NO_PRINCIPAL)


LONG_FIELDS = b"".join(b"X-%d: %b\r\n" % (n, b"a" * 470) for n in range(60))
CHUNKED_BODY = CHUNKED + b"1\r\na\r\n0\r\n"


def sent(taker: RecordingHandler, data: bytes) -> tuple[HttpConnection, "Still"]:
    """A connection on which this has come."""
    connection, transport = HttpConnection(taker, lambda: taker.now), Still()
    connection.connection_made(transport)
    for at in range(0, len(data), 10_000):
        connection.data_received(data[at : at + 10_000])
        all_turns(taker)
    return connection, transport


@pytest.mark.parametrize("begin", [b"GET / HTTP/1.1\r\n", CHUNKED_BODY], ids=["headers", "trailers"])
@behaviour("http:shares:bodies")
def test_unfinished_heads_and_trailers_of_clients_without_a_token_are_bounded_together(begin: bytes) -> None:
    taker = NamingHandler()
    taker.body_budget = ClientBudget(80 * len(LONG_FIELDS))  # an eighth is for clients without a token
    found = [sent(taker, begin + LONG_FIELDS) for _ in range(30)]
    refused = [transport.written.startswith(b"HTTP/1.1 503 ") for _, transport in found]
    assert 4 <= refused.count(False) <= 10
    assert len(LONG_FIELDS) * refused.count(False) <= taker.body_budget.used <= taker.body_budget._size // 8
    _, other = sent(taker, b"GET / HTTP/1.1\r\nauthorization: ann\r\n" + LONG_FIELDS)
    assert not other.written, "a client with a token has its own room"
    for connection, _ in found:
        if not connection.is_failed:
            connection.data_received(b"\r\n")
            all_turns(taker)
    assert len(taker.requests) == refused.count(False)
    assert taker.body_budget.used == taker.body_budget._used_by["ann"] >= len(LONG_FIELDS)


@behaviour("http:shares:bodies")
def test_a_short_head_that_is_unfinished_is_taken_where_others_have_left_no_room() -> None:
    taker = NamingHandler()
    taker.body_budget = ClientBudget(16 * len(LONG_FIELDS))
    sent(taker, b"GET / HTTP/1.1\r\n" + LONG_FIELDS)
    assert sent(taker, b"GET / HTTP/1.1\r\n" + LONG_FIELDS)[1].written.startswith(b"HTTP/1.1 503 ")
    connection, transport = sent(taker, b"GET / HTTP/1.1\r\nHost: x\r\n")
    connection.data_received(b"Authorization: ann\r\n\r\n")
    assert transport.written.startswith(b"HTTP/1.1 200 ")


@behaviour("http:shares:bodies")
def test_what_waits_for_a_turn_counts_for_the_token_in_it() -> None:
    taker = NamingHandler()
    taker.turns.spend(TURN_COST)
    request = b"GET / HTTP/1.1\r\nHost: x\r\nAuthorization:  ann \r\n\r\n"
    connection = HttpConnection(taker, lambda: taker.now)
    connection.connection_made(Still())
    connection.data_received(request)
    assert not taker.requests
    assert taker.body_budget._used_by == {"ann": len(request)}
    taker.turns.run()
    assert taker.requests
    assert taker.body_budget.used == 0


def test_offers_of_another_protocol_one_after_another_are_all_declined() -> None:
    offer = b"GET /%d HTTP/1.1\r\nHost: x\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n"

    async def play(taker: RecordingHandler, client: Client) -> None:
        await client.send(b"".join(offer % n for n in range(2000)))
        await until(lambda: len(taker.requests) == 2000)

    assert [each.path for each in played(play).requests] == [f"/{n}" for n in range(2000)]


def test_a_request_that_comes_while_others_wait_does_not_overtake_them() -> None:
    async def play(taker: RecordingHandler, client: Client) -> None:
        await client.send(b"GET /hold HTTP/1.1\r\nHost: x\r\n\r\nGET /2 HTTP/1.1\r\nHost: x\r\n\r\n")
        await until(lambda: taker.held)
        taker.held[1].respond(200, b"1", "text/plain")
        taker.connections[0].data_received(b"GET /3 HTTP/1.1\r\nHost: x\r\n\r\n")
        for _ in range(3):
            await client.answer()

    assert [each.path for each in played(play).requests] == ["/hold", "/2", "/3"]


def test_an_answer_to_head_has_no_body_that_the_next_answer_could_be_taken_for() -> None:
    async def play(_: RecordingHandler, client: Client) -> None:
        await client.send(b"HEAD / HTTP/1.1\r\nHost: x\r\n\r\n" + GET)
        assert b"Content-Length: 1" in await client.until(b"\r\n\r\n")
        assert (await client.until(b"\r\n")).startswith(b"HTTP/1.1 200")

    played(play)


def test_a_client_of_http_1_0_that_would_like_to_go_on_is_told_that_it_ends() -> None:
    async def play(_: RecordingHandler, client: Client) -> None:
        await client.send(b"GET / HTTP/1.0\r\nHost: x\r\nConnection: keep-alive\r\n\r\n")
        assert b"Connection: close" in await client.rest()

    played(play)


def test_a_client_that_reads_slowly_but_reads_is_not_cut() -> None:
    async def play(taker: RecordingHandler, client: Client) -> None:
        await client.send(b"GET /hold HTTP/1.1\r\nHost: x\r\n\r\n")
        await until(lambda: taker.held)
        connection = taker.connections[0]
        taker.held[1].respond(200, b"a" * 32 * 1024 * 1024, "text/plain")
        for _ in range(3):
            left = connection._transport.get_write_buffer_size()
            while left - connection._transport.get_write_buffer_size() < 1024 * 1024:
                await client.reader.read(1024 * 1024)
            taker.now += 61.0
            connection.check_timeout(taker.now)
            assert not connection._failed
        taker.now += 61.0
        connection.check_timeout(taker.now)
        assert connection._failed, "nothing was read since"

    played(play)


class Still(asyncio.Transport):
    """A transport that keeps what is written, and on which nothing happens."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert not self.closed, "nothing is written after the end"
        self.written += bytes(data)

    def write_eof(self) -> None:
        pass

    def can_write_eof(self) -> bool:
        return True

    def is_closing(self) -> bool:
        return self.closed

    def pause_reading(self) -> None:
        pass

    resume_reading = pause_reading

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    def close(self) -> None:
        self.closed = True

    abort = close


_LINES = (
    *("GET / HTTP/1.1", "POST /a HTTP/1.1", "HEAD / HTTP/1.0", "CONNECT a:1 HTTP/1.1", "GET /hold HTTP/1.1"),
    *("Host: x", "Content-Length: 5", "Transfer-Encoding: chunked", "Expect: 100-continue", "Upgrade: h2c"),
    *("Connection: upgrade", "Connection: close", "X: y", "", "5", "abcde", "0"),
)
_PIECES = st.one_of(
    st.sampled_from([*(f"{line}\r\n".encode() for line in _LINES), b"hello", b"\n", b"0\r\n\r\n"]),
    st.binary(max_size=12),
)


@given(st.lists(_PIECES, max_size=30), st.lists(st.integers(1, 40), max_size=30), st.booleans())
def test_whatever_comes_and_however_it_is_cut_nothing_breaks(
    pieces: list[bytes], cuts: list[int], strangers: bool
) -> None:
    def heard(cuts: list[int]) -> list[tuple[str, str, dict[str, str], bytes]]:
        taker, transport = RecordingHandler(), Still()
        taker.strangers = strangers
        connection = HttpConnection(taker, lambda: taker.now)
        connection.connection_made(transport)
        data, at = b"".join(pieces), 0
        for cut in [*cuts, len(data) + 1]:
            if data[at : at + cut]:
                connection.data_received(data[at : at + cut])
                all_turns(taker)
            at += cut
        connection.check_timeout(1e9)
        connection.connection_lost(None)
        assert taker.body_budget.used == 0
        assert not taker.connections
        assert len(taker.gone_) == len(taker.held)
        return [(each.method, each.path, each.headers, each.body) for each in taker.requests]

    loop = asyncio.new_event_loop()
    try:
        asyncio.set_event_loop(loop)
        assert heard(cuts) == heard([]), "how it is cut makes no difference"
    finally:
        asyncio.set_event_loop(None)
        loop.close()
