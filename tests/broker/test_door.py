"""The door's receive budget, with real sockets and without a broker."""

import os
import socket
from pathlib import Path

import pytest
import trio

from carpool_broker.carrier import Stream
from carpool_broker.core.events import AnyEvent
from carpool_broker.door import READ_AHEAD_BYTES, Door
from carpool_protocol import credentials
from carpool_protocol.attach import Attach
from carpool_protocol.ids import RawJson, SessionId
from carpool_protocol.lines import OverlongLine
from carpool_protocol.runtime.ready import ReadySet
from carpool_protocol.streams import Open, Refused
from tests.behaviours import behaviour
from tests.kit.waits import until

BUDGET = 4 * READ_AHEAD_BYTES


class Hotel:
    """A host that takes every line and keeps it."""

    def __init__(self) -> None:
        self.lines: dict[SessionId, list[bytes | OverlongLine]] = {}

    def wanted_variables(self, attach: Attach) -> list[str]:
        return []

    def objection(self, attach: Attach) -> Refused | None:
        return None

    def welcome(
        self, session: SessionId, attach: Attach, environment: dict[str, str], stream: Open | None = None
    ) -> None:
        self.lines[session] = []

    def feed(self, burst: list[AnyEvent]) -> None:
        burst.clear()

    def take_message(self, stream: Stream, message: bytes, exchange: int, burst: list[AnyEvent]) -> None:
        self.lines[stream.id].append(message)

    def give_up(self, session: SessionId, request: RawJson) -> None:
        raise AssertionError("nobody went away")

    def take(self, session: SessionId, lines: list[bytes | OverlongLine]) -> None:
        self.lines[session] += lines

    def farewell(self, session: SessionId) -> None:
        del self.lines[session]


@behaviour("pressure:receive-budget")
async def test_when_the_budget_for_unfinished_lines_is_spent_only_the_oldest_reads_on(tmp_path: Path) -> None:
    ready, hotel = ReadySet(), Hotel()
    path = str(tmp_path / "agents.sock")
    door = Door(path, ready, hotel, slow_reader_s=30.0, receive_budget_bytes=BUDGET)
    door.open(lambda: None)
    ends = [socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) for _ in range(4)]
    try:
        with trio.fail_after(20):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(ready.run, door.flush)
                for end in ends:
                    end.connect(path)
                    end.sendall(b'{"jsonrpc":"2.0","method":"hello"}\n')
                    end.setblocking(False)
                await until(lambda: len(hotel.lines) == 4, "all are in")

                async def flood(end: socket.socket, size_bytes: int) -> None:
                    sent = 0
                    while sent < size_bytes:
                        await trio.lowlevel.wait_writable(end)
                        sent += end.send(b"x" * min(size_bytes - sent, 1 << 16))

                for end in ends:
                    nursery.start_soon(flood, end, 2 * BUDGET)
                io = [agent.io for agent in door.agents.values()]
                await until(lambda: io[0].pending_bytes == 2 * BUDGET, "the oldest has read all of its line")
                held = sum(each.pending_bytes for each in io[1:])
                assert held <= BUDGET + len(ends) * READ_AHEAD_BYTES, "the others stood still meanwhile"
                ends[0].setblocking(True)
                ends[0].sendall(b"\n")
                await until(lambda: io[1].pending_bytes == 2 * BUDGET, "then it is the next one's turn")
                nursery.cancel_scope.cancel()
    finally:
        for end in ends:
            end.close()
        door.close()
        ready.close()


@behaviour("private:peers")
async def test_a_process_of_another_user_is_not_let_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ready, hotel = ReadySet(), Hotel()
    path = str(tmp_path / "agents.sock")
    door = Door(path, ready, hotel, slow_reader_s=30.0, receive_budget_bytes=BUDGET)
    door.open(lambda: None)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ready.run, door.flush)
        with monkeypatch.context() as patch:
            patch.setattr(credentials, "peer", lambda _sock: (1, os.getuid() + 1))
            with socket.socket(socket.AF_UNIX) as stranger:
                stranger.connect(path)
                stranger.setblocking(False)
                with trio.fail_after(20):
                    await trio.lowlevel.wait_readable(stranger)
                assert stranger.recv(1) == b""
        assert "another user" in caplog.text
        assert not door.agents
        with socket.socket(socket.AF_UNIX) as friend:
            friend.connect(path)
            await until(lambda: len(door.agents) == 1, "who comes after is let in")
        nursery.cancel_scope.cancel()
    door.close()
    ready.close()
