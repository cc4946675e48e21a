"""The shim's pump in a thread, with the test as agent and as broker: what must come in one round of it."""

import os
import socket
import threading

import pytest

from carpool.shim.kept_lines import KeptLines
from carpool.shim.pump import FINISHED, ShimPump
from carpool_protocol.carrier.attach_line import Settled, attached_line, ended_line, settled_line, wanted_line
from carpool_protocol.ids import Epoch
from tests.kit.private_daemon import until

SMALL_BYTES = 4096
BIG = "x" * 400_000


class _Telling(KeptLines):
    """Says something as agent and as broker while the pump is busy with a settled line of the broker."""

    def __init__(self, broker: socket.socket, agent: int) -> None:
        super().__init__()
        self._broker = broker
        self._agent = agent

    def lines_settled(self, line: bytes) -> None:
        self._broker.sendall(wanted_line(["CP_BIG"]))
        os.write(self._agent, b"the agent's\n")


def test_what_an_agent_says_follows_a_line_of_ours_that_did_not_pass_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CP_BIG", BIG)
    mine, broker = socket.socketpair()
    mine.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SMALL_BYTES)
    broker.settimeout(20)
    (stdin, agent), (heard, stdout) = os.pipe(), os.pipe()
    hello = b"h" * 100_000 + b"\n"  # it does not pass at once, so the agent is listened to after the broker
    pump = ShimPump(mine, hello, _Telling(broker, agent), stdin, stdout)
    thread = threading.Thread(target=pump.run, daemon=True)
    thread.start()
    with broker, mine, broker.makefile("rb") as lines:
        assert lines.readline() == hello
        broker.sendall(attached_line("s1", []) + b"greeted\n")
        assert os.read(heard, 100) == b"greeted\n"
        broker.sendall(settled_line(Settled(Epoch("e"), 0, 0, [], [], [], [])))
        until(lambda: len(pump._to_broker), "the line of ours waits for room")
        assert len(lines.readline()) > len(BIG)
        assert lines.readline() == b"the agent's\n"
        os.close(agent)
        assert lines.readline() == b""
        broker.sendall(ended_line(""))
        broker.shutdown(socket.SHUT_RDWR)
        thread.join(20)
    for fd in (stdin, heard, stdout):
        os.close(fd)
    assert pump._outcome == FINISHED
