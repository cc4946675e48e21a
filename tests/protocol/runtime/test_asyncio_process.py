"""The lifeline of a process on asyncio: it ends with its launcher, however that died, and hears its lines."""

import asyncio
import socket

import pytest

from carpool_protocol.runtime.asyncio_process import hear_launcher


@pytest.mark.parametrize("unread", [b"", b"alive\n"])
def test_the_door_stops_when_its_launcher_is_gone(unread: bytes) -> None:
    """A Unix socket whose other end is closed with unread bytes gives a reset in place of an end of file."""
    stopped: list[bool] = []

    async def run() -> None:
        ours, theirs = socket.socketpair()
        reader, writer = await asyncio.open_connection(sock=ours)
        theirs.setblocking(False)
        if unread:
            writer.write(unread)
            await writer.drain()
        theirs.close()
        async with asyncio.timeout(20):
            await hear_launcher(reader, lambda: stopped.append(True))
        writer.close()

    asyncio.run(run())
    assert stopped == [True]


def test_the_door_stops_at_its_launchers_word() -> None:
    async def run() -> None:
        stopped = asyncio.Event()
        reader = asyncio.StreamReader()
        reader.feed_data(b"stop now\n")
        hearing = asyncio.create_task(hear_launcher(reader, stopped.set))
        async with asyncio.timeout(20):
            await stopped.wait()
        hearing.cancel()

    asyncio.run(run())


def test_a_line_that_the_process_knows_is_its_own_and_no_stop() -> None:
    heard: list[str] = []

    async def run() -> None:
        reader = asyncio.StreamReader()
        reader.feed_data(b"hold\nunknown\nstop again\nstop again now\n")
        reader.feed_eof()
        others = {"hold": lambda: heard.append("hold"), "stop again": lambda: heard.append("again")}
        await hear_launcher(reader, lambda: heard.append("stop"), others)

    asyncio.run(run())
    assert heard == ["hold", "again", "stop", "stop"], "the last one is the end of the launcher"
