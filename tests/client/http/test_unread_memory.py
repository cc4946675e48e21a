"""What clients leave unread: the memory that counts, and when it ends. The test plays the system's part."""

import asyncio
import socket
from collections.abc import Iterator

import pytest

from carpool.http.connection import HttpConnection
from carpool.http.core.access import AccessRules
from carpool.http.core.core import HttpCore
from carpool.http.core.effects import HttpRules
from carpool.http.core.limits import KEEP_S, STALLED_S, UNSENT_IN_SYSTEM_BYTES, HttpLimits
from carpool.http.server import HttpDoorServer
from tests.behaviours import behaviour
from tests.client.http.test_connection import GET, LONG_BYTES, RecordingHandler, until

LONG = b"GET /long HTTP/1.1\r\nHost: x\r\n\r\n"
LAST = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"


class MeteredTransport:
    """A transport from which the system takes as many bytes as the test says. Its marks are asyncio's."""

    def __init__(self, connection: HttpConnection) -> None:
        self.connection = connection
        self.room = 0
        """The bytes that the system still takes."""
        self.unsent = 0
        self.is_aborted = self._is_closing = self._is_paused = False
        self._high = self._low = 0

    def write(self, data: bytes | memoryview) -> None:
        self.unsent += len(data)
        self.take(0)
        self._pause()

    def take(self, more: int) -> None:
        """The system takes so many bytes more."""
        self.room += more
        taken = min(self.room, self.unsent)
        self.room -= taken
        self.unsent -= taken
        if self._is_paused and self.unsent <= self._low:
            self._is_paused = False
            self.connection.resume_writing()

    def _pause(self) -> None:
        if not self._is_paused and self.unsent > self._high:
            self._is_paused = True
            self.connection.pause_writing()

    def set_write_buffer_limits(self, high: int) -> None:
        self._high, self._low = high, high // 4
        self._pause()

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def close(self) -> None:
        self._is_closing = True

    def abort(self) -> None:
        self.is_aborted = self._is_closing = True
        self.unsent = 0

    def is_closing(self) -> bool:
        return self._is_closing

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


class SlowClient:
    """A connection whose client reads when the test says so."""

    def __init__(self) -> None:
        self.taker = RecordingHandler()
        self.connection = HttpConnection(self.taker, lambda: self.taker.now)
        self.transport = MeteredTransport(self.connection)
        self.connection.connection_made(self.transport)

    @property
    def counted(self) -> int:
        return self.taker.unsent_budget.used

    def says(self, data: bytes) -> None:
        self.connection.data_received(data)
        self.taker.turns.run()

    def passes(self, seconds: float) -> None:
        self.taker.now += seconds
        self.connection.check_timeout(self.taker.now)


@pytest.fixture
def client() -> Iterator[SlowClient]:
    made = SlowClient()
    yield made
    made.connection.connection_lost(None)
    assert made.counted == 0


@pytest.mark.parametrize("rest", [1, 10_000, 100_000, LONG_BYTES // 2])
@behaviour("http:unread")
def test_a_long_answer_counts_as_a_whole_until_the_last_of_it_is_sent(client: SlowClient, rest: int) -> None:
    client.transport.room = LONG_BYTES - rest
    client.says(LONG)
    sent = client.transport.unsent - rest
    assert 0 < sent < 1000, "the head"
    assert LONG_BYTES <= client.counted <= LONG_BYTES + sent
    client.says(GET)
    client.transport.take(client.transport.unsent - 1)
    assert client.counted >= LONG_BYTES
    assert len(client.taker.requests) == 1
    client.transport.take(1)
    assert client.counted == 0
    client.taker.turns.run()
    assert len(client.taker.requests) == 2


@behaviour("http:unread")
def test_a_long_answer_that_is_sent_at_once_counts_as_nothing(client: SlowClient) -> None:
    client.transport.room = LONG_BYTES * 2
    client.says(LONG)
    assert client.counted == client.transport.unsent == 0
    client.transport.room = 0
    client.says(GET)
    assert client.transport.unsent
    assert client.counted == 0, "short answers count from a bound on"


@pytest.mark.parametrize("path", [b"/stream", b"/watched"])
@behaviour("http:unread")
def test_a_long_event_counts_as_a_whole_beside_what_waits_behind_it(client: SlowClient, path: bytes) -> None:
    size = 300_000
    client.transport.room = 1000
    client.says(b"GET " + path + b" HTTP/1.1\r\nHost: x\r\n\r\n")
    client.transport.room = size - 10_000
    client.connection.write(bytes(size))
    assert size <= client.counted <= size + 1000
    client.connection.write(bytes(size))
    assert size * 2 <= client.counted <= size * 2 + 1000
    client.transport.take(client.transport.unsent - 5000)
    client.connection.write(b"short")
    assert size <= client.counted <= size + 6000
    client.connection.end()
    client.transport.take(client.transport.unsent - 1)
    assert client.counted
    client.transport.take(1)
    assert client.counted == 0


@behaviour("http:unread")
def test_what_a_closely_watched_client_leaves_unread_is_told_after_a_long_event_as_before_it(
    client: SlowClient,
) -> None:
    client.transport.room = 1000
    client.says(b"GET /watched HTTP/1.1\r\nHost: x\r\n\r\n")
    client.connection.write(bytes(300_000))
    client.transport.take(client.transport.unsent)
    client.transport.room = 0
    client.connection.write(b"short")
    assert client.taker.reading == [(1, False), (1, True), (1, False)]


@pytest.mark.parametrize("request_bytes", [GET, LAST], ids=["it idles", "it was the last"])
@behaviour("http:unread")
def test_a_connection_that_ends_with_a_short_answer_unread_is_cut_in_time(
    client: SlowClient, request_bytes: bytes
) -> None:
    client.says(request_bytes)
    if request_bytes is GET:
        client.passes(KEEP_S)
    assert client.transport.is_closing()
    client.passes(STALLED_S - 1)
    assert not client.transport.is_aborted
    client.passes(1)
    assert client.transport.is_aborted


@behaviour("http:unread")
def test_a_refusal_that_nobody_reads_ends_with_its_connection(client: SlowClient) -> None:
    client.transport.can_write_eof = lambda: False  # type: ignore[attr-defined]
    client.says(b"nothing of HTTP\r\n\r\n")
    assert client.transport.unsent
    client.passes(STALLED_S)
    client.passes(STALLED_S)
    assert client.transport.is_aborted


@behaviour("http:unread")
def test_a_connection_that_ends_is_not_cut_while_its_client_reads_a_long_answer(client: SlowClient) -> None:
    client.says(LONG)
    for _ in range(5):
        client.transport.take(LONG_BYTES // 6)
        client.passes(STALLED_S)  # it has read enough, and has as long again
        client.passes(STALLED_S - 1)
    assert client.transport.is_closing()
    assert not client.transport.is_aborted
    client.passes(STALLED_S)
    assert client.transport.is_aborted


@pytest.mark.skipif(not hasattr(socket, "TCP_NOTSENT_LOWAT"), reason="this system, or Python, has no bound")
@behaviour("http:unread")
def test_the_system_keeps_little_for_clients_of_the_door() -> None:
    async def main() -> None:
        server = HttpDoorServer("/nowhere", HttpCore(HttpRules(), AccessRules()), HttpLimits(), 16)
        listening = socket.create_server(("127.0.0.1", 0))
        port = listening.getsockname()[1]
        begun = asyncio.Event()
        running = asyncio.create_task(server.run(listening, begun.set))
        await begun.wait()
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        await until(lambda: server._places.open)
        (connection,) = server._places.open
        found = connection.socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT)
        server.stop()
        writer.close()
        await running
        assert found == UNSENT_IN_SYSTEM_BYTES

    asyncio.run(main())
