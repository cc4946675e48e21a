"""The door's line to the broker, against a broker that a test plays on a real socket."""

import asyncio
import socket
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from carpool.http.broker_link import BrokerLink
from carpool_protocol.carrier.attach_line import attached_line
from tests.behaviours import behaviour

LOOPS: dict[str, Callable[[Coroutine[Any, Any, None]], None]] = {"asyncio": asyncio.run}
try:
    import uvloop
except ImportError:
    pass
else:
    LOOPS["uvloop"] = uvloop.run
FRAMES = 2000


@behaviour("reattach:http")
@pytest.mark.parametrize("loop", LOOPS)
def test_what_a_broker_wrote_before_it_died_is_read_though_writing_to_it_fails(
    loop: str, tmp_path: Path
) -> None:
    """It has reported those answers as written: nobody else has them."""
    path = str(tmp_path / "s")
    heard: list[bytes] = []
    ends: list[str] = []

    async def main() -> None:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path)
            listener.listen()
            line: BrokerLink

            def ready() -> None:
                # Within one turn: the broker says a lot and dies, and before we look we write.
                peer, _ = listener.accept()
                peer.setblocking(False)
                said = b"".join(b'[1,{"n":%d}]\n' % number for number in range(FRAMES))
                assert peer.send(said + b'[1,{"half') > len(said)
                peer.close()
                line.write(b"[1,{}]\n")
                line._flush()
                line.write(b"[1,{}]\n")
                line._flush()

            running = asyncio.get_running_loop()
            line = BrokerLink(ready, heard.append, ends.append)
            transport, _ = await running.create_unix_connection(lambda: line, path)
            line.data_received(attached_line("s1", []))
            async with asyncio.timeout(10):
                await line.ended
            assert transport.is_closing()

    LOOPS[loop](main())
    assert [*heard] == [b'[1,{"n":%d}]' % number for number in range(FRAMES)], "all, and no half line"
    assert len(ends) == 1


def test_a_line_that_we_end_ourselves_is_not_read_to_its_end(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    heard: list[bytes] = []

    async def main() -> None:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path)
            listener.listen()
            running = asyncio.get_running_loop()
            line = BrokerLink(lambda: None, heard.append, lambda _why: None)
            await running.create_unix_connection(lambda: line, path)
            peer, _ = listener.accept()
            peer.sendall(b'{"method":"carpool/refused","params":{"text":"no"}}\n[1,{}]\n')
            async with asyncio.timeout(10):
                await line.ended
            peer.close()

    asyncio.run(main())
    assert not heard


class SlowTransport:
    """A transport whose other end reads when the test says so."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.unread = 0
        self.high = 0

    def set_write_buffer_limits(self, high: int) -> None:
        self.high = high

    def write(self, data: bytes) -> None:
        self.written += data.splitlines()
        self.unread += len(data)
        if self.unread > self.high:
            self.link.pause_writing()

    def read_all(self) -> None:
        self.unread = 0
        self.link.resume_writing()

    link: BrokerLink

    def is_closing(self) -> bool:
        return False


@behaviour("http:shares")
def test_principals_take_turns_when_the_broker_reads_slower_than_lines_come() -> None:
    async def main() -> None:
        link = BrokerLink(lambda: None, lambda _: None, lambda _: None)
        wire = SlowTransport()
        wire.link, link._transport = link, wire
        wire.high = 1_000_000
        long = b"a" * 1_500_000 + b"\n"
        for _ in range(20):
            link.write(long, "ann")
            link._flush()
        assert len(wire.written) == 1
        assert link.is_congested
        link.write(b"1\n", "bob")
        link.write(b"2\n", "bob")
        assert not link.is_blocked_for("bob")
        assert not link.is_blocked_for("ann")
        for _ in range(10):
            link.write(long, "ann")
        assert link.is_blocked_for("ann"), "more waits than is left for others"
        assert not link.is_blocked_for("bob")
        for _ in range(3):
            wire.read_all()
        assert wire.written[1:5] == [long[:-1], b"1", long[:-1], b"2"]
        for _ in range(40):
            wire.read_all()
        assert len(wire.written) == 32
        assert not link.is_blocked_for("ann")
        link.write(b"3\n", "bob")
        link._flush()
        assert wire.written[-1] == b"3"

    asyncio.run(main())
