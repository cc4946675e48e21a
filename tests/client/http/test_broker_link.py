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
