"""Near ends of sessions: pipes of a supervisor, and a connection to the broker."""

import asyncio
import contextlib
import contextvars
import os
import tempfile
from typing import Any

from carpool.api.attach import AttachTarget
from carpool.cluster.core.local_sessions import NearEndEvents
from carpool.cluster.line_budget import LineBudget
from carpool.cluster.near_ends import BrokerEnd, PipesEnd, UnsentBytes, attach_line
from carpool_protocol.bootstrap import paths
from carpool_protocol.carrier.attach_line import attached_line
from tests.kit.node_links import until


class FarEnd:
    """What the other node would see."""

    def __init__(self, room_bytes: int = 1 << 20) -> None:
        self.room_bytes = room_bytes
        self.sent = b""
        self.passed = 0
        self.ended: list[str] = []
        self.events = NearEndEvents(lambda: self.room_bytes, self._send, self._passed, self.ended.append)

    def _send(self, data: bytes) -> None:
        self.room_bytes -= len(data)
        self.sent += data

    def _passed(self, size_bytes: int) -> None:
        self.passed += size_bytes


def pipes() -> tuple[list[int], tuple[int, int, int]]:
    """The node's ends of stdin, stdout and stderr, and the supervisor's."""
    (stdin, to_stdin), (from_stdout, stdout), (from_stderr, stderr) = os.pipe(), os.pipe(), os.pipe()
    return [stdin, stdout, stderr], (to_stdin, from_stdout, from_stderr)


def close(*fds: int) -> None:
    for fd in fds:
        os.close(fd)


def test_pipes_are_read_as_far_as_there_is_room_and_further_later() -> None:
    async def run() -> None:
        theirs, (to_stdin, from_stdout, from_stderr) = pipes()
        far = FarEnd(room_bytes=4)
        end = PipesEnd(theirs, far.events)
        os.write(to_stdin, b"123456")
        await until(lambda: far.sent == b"1234")
        far.room_bytes = 10
        end.read_on()
        await until(lambda: far.sent == b"123456")
        end.end("")
        close(to_stdin, from_stdout, from_stderr)

    asyncio.run(run())


def test_what_a_full_pipe_does_not_take_follows_in_order() -> None:
    async def run() -> None:
        theirs, (to_stdin, from_stdout, from_stderr) = pipes()
        far = FarEnd()
        end = PipesEnd(theirs, far.events)
        data = os.urandom(300_000)
        end.pass_bytes(data[:200_000])
        end.pass_bytes(data[200_000:])
        assert far.passed < len(data)
        os.set_blocking(from_stdout, False)
        read = b""

        def is_all_read() -> bool:
            nonlocal read
            with contextlib.suppress(BlockingIOError):
                read += os.read(from_stdout, 1 << 16)
            return len(read) == len(data)

        await until(is_all_read)
        assert (read, far.passed) == (data, len(data))
        end.end("")
        close(to_stdin, from_stdout, from_stderr)

    asyncio.run(run())


def test_a_supervisor_that_closes_stdin_ends_the_session_and_an_ended_session_closes_the_pipes() -> None:
    async def run() -> None:
        theirs, (to_stdin, from_stdout, from_stderr) = pipes()
        far = FarEnd()
        PipesEnd(theirs, far.events)
        os.close(to_stdin)
        await until(lambda: far.ended == [""])
        close(from_stdout, from_stderr)
        theirs, (to_stdin, from_stdout, from_stderr) = pipes()
        PipesEnd(theirs, far.events).end("the node is lost")
        assert os.read(from_stdout, 1000) == b""
        assert os.read(from_stderr, 1000) == b""
        assert far.ended == [""], "what it was told it does not tell"
        close(to_stdin, from_stdout, from_stderr)

    asyncio.run(run())


class CountedBytes(bytes):
    """Counts the bytes that slices of it copy, and slices of these."""

    copied = 0

    def __getitem__(self, key: Any) -> Any:
        found = super().__getitem__(key)
        CountedBytes.copied += len(found)
        return CountedBytes(found)


def test_a_long_line_that_leaves_in_small_credits_is_not_copied_again_for_each_of_them() -> None:
    CountedBytes.copied = 0
    line = b"".join(b"%d " % number for number in range(200_000))
    far = FarEnd(room_bytes=0)
    unsent = UnsentBytes(far.events)
    unsent.add(CountedBytes(line))
    unsent.add(b"next")
    while unsent.size_bytes:
        far.room_bytes = 16 * 1024
        unsent.send()
    assert far.sent == line + b"next"
    assert CountedBytes.copied <= 2 * len(line)


def test_a_connection_to_the_broker_can_be_ended_by_a_timer() -> None:
    """As by one that finds a node lost."""
    problems: list[Any] = []

    async def run(directory: str) -> None:
        closed = asyncio.Event()

        async def broker(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readline()
            writer.write(attached_line("s1", [], "secret", "epoch"))
            await reader.read()
            writer.close()
            closed.set()

        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: problems.append(context))
        server = await asyncio.start_unix_server(broker, paths.agents_socket(directory))
        far = FarEnd()
        place, line = AttachTarget(directory, {}), attach_line("alpha", "beta", "git", "")
        end = BrokerEnd(place, line, far.events, node="beta", budget=LineBudget())
        await asyncio.sleep(0)
        end.pass_bytes(b"{}\n")  # with which the attach line goes
        await until(lambda: end.is_attached)
        loop.call_soon(end.end, "lost", context=contextvars.Context())
        async with asyncio.timeout(10):
            await closed.wait()
        server.close()
        assert far.ended == []

    with tempfile.TemporaryDirectory(prefix="cp-", dir="/tmp") as directory:
        asyncio.run(run(directory))
    assert problems == []


def test_a_session_that_is_over_waits_no_longer_for_the_broker() -> None:
    """Sessions that another node opens and ends while the broker is away must not pile up."""

    async def run(directory: str) -> None:
        waits = asyncio.Event()

        async def no_broker() -> None:
            waits.set()
            await asyncio.Event().wait()

        far = FarEnd()
        place, line = AttachTarget(directory, {}), attach_line("alpha", "beta", "git", "")
        end = BrokerEnd(place, line, far.events, node="beta", budget=LineBudget())
        end._connection.open = no_broker  # type: ignore[method-assign]
        await waits.wait()
        end.end("lost")
        async with asyncio.timeout(10):
            await end._tasks
        await until(lambda: asyncio.all_tasks() == {asyncio.current_task()})
        assert far.ended == []

    with tempfile.TemporaryDirectory(prefix="cp-", dir="/tmp") as directory:
        asyncio.run(run(directory))
