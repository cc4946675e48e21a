"""The door's receive budget and its comings and goings, with real sockets and without a broker."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
import trio

from carpool_broker.core.model.events import AnyEvent
from carpool_broker.transport.agent_server import ENVIRONMENT_S, AgentServer
from carpool_broker.transport.connections import DROPPED, AgentConnection
from carpool_broker.transport.delivery_log import DeliveryLog
from carpool_broker.transport.receive_budget import READ_AHEAD_BYTES
from carpool_broker.transport.streams import SessionStream
from carpool_protocol.bootstrap import peer_credentials
from carpool_protocol.bootstrap.carrier_contract import ATTACH_VERSION
from carpool_protocol.carrier.attach_line import Attach, ResumeSession, attach_line, environment_line
from carpool_protocol.carrier.streams import OpenStream, StreamRefused, control_line
from carpool_protocol.ids import RawJson, SessionId
from carpool_protocol.runtime.poller import ReadySet
from carpool_protocol.runtime.steady_clock import SteadyClock
from carpool_protocol.wire.lines import OverlongLine
from tests.behaviours import behaviour
from tests.kit.door_host import NoReturningSessions, new_door
from tests.kit.waits import until

BUDGET = 4 * READ_AHEAD_BYTES
Flood = Callable[[int, bytes], None]


class Hotel(NoReturningSessions):
    """A host that takes every line and keeps it."""

    def __init__(self) -> None:
        self.lines: dict[SessionId, list[bytes | OverlongLine]] = {}

    def wanted_variables(self, attach: Attach) -> list[str]:
        return []

    def attach_note(self, attach: Attach) -> str:
        return ""

    def attach_objection(self, attach: Attach) -> StreamRefused | None:
        return None

    def session_opened(
        self,
        session: SessionId,
        attach: Attach,
        environment: dict[str, str],
        stream: OpenStream | None = None,
    ) -> None:
        self.lines[session] = []

    def feed(self, burst: list[AnyEvent]) -> None:
        burst.clear()

    def message_received(
        self, stream: SessionStream, message: bytes, exchange: int, burst: list[AnyEvent]
    ) -> None:
        self.lines[stream.id].append(message)

    def request_abandoned(self, session: SessionId, request: RawJson) -> None:
        raise AssertionError("nobody went away")

    def lines_received(
        self, session: SessionId, lines: list[bytes | OverlongLine], delivery_log: DeliveryLog | None = None
    ) -> None:
        self.lines[session] += lines

    def unread_changed(self, session: SessionId, unread_bytes: int) -> None:
        pass

    def session_closed(self, session: SessionId) -> None:
        del self.lines[session]


@asynccontextmanager
async def opened(
    path: str, *, clock: Callable[[], float] = trio.current_time, greet: bool = True
) -> AsyncIterator[tuple[AgentServer, list[AgentConnection], Flood]]:
    """A door with four agents, and a way to have one of them send part of a line."""
    ready, hotel = ReadySet(), Hotel()
    door = new_door(path, ready, hotel, receive_budget_bytes=BUDGET, clock=clock)
    door.open()
    ends = [socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) for _ in range(4)]

    async def flood(place: int, data: bytes) -> None:
        while data:
            await trio.lowlevel.wait_writable(ends[place])
            data = data[ends[place].send(data[: 1 << 16]) :]

    try:
        with trio.fail_after(20):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(ready.run, door.connections.flush)
                nursery.start_soon(door.watch)
                agents: list[AgentConnection] = []
                for end in ends:
                    end.connect(path)
                    end.setblocking(False)
                    if greet:
                        end.sendall(b'{"jsonrpc":"2.0","method":"hello"}\n')
                        await until(lambda: len(hotel.lines) == len(agents) + 1, "it is in")
                    await until(lambda: len(door.connections.agents) == len(agents) + 1, "it is connected")
                    agents.append(list(door.connections.agents.values())[-1])
                yield door, agents, lambda place, data: nursery.start_soon(flood, place, data)
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
    door = new_door(path, ready, hotel, receive_budget_bytes=BUDGET)
    door.open()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ready.run, door.connections.flush)
        with monkeypatch.context() as patch:
            patch.setattr(peer_credentials, "peer", lambda _sock: (1, os.getuid() + 1))
            with socket.socket(socket.AF_UNIX) as stranger:
                stranger.connect(path)
                stranger.setblocking(False)
                with trio.fail_after(20):
                    await trio.lowlevel.wait_readable(stranger)
                assert stranger.recv(1) == b""
        assert "another user" in caplog.text
        assert not door.connections.agents
        with socket.socket(socket.AF_UNIX) as friend:
            friend.connect(path)
            await until(lambda: len(door.connections.agents) == 1, "who comes after is let in")
        nursery.cancel_scope.cancel()
    door.close()
    ready.close()


@behaviour("pressure:receive-budget")
async def test_when_the_budget_for_unfinished_lines_is_spent_only_the_oldest_reads_on(tmp_path: Path) -> None:
    async with opened(str(tmp_path / "agents.sock")) as (_, agents, flood):
        line = b"x" * (2 * BUDGET)
        flood(2, line)
        await until(lambda: agents[2].io.pending_bytes > READ_AHEAD_BYTES, "the third has begun")
        for place in (0, 1, 3):
            flood(place, line)
        await until(lambda: agents[2].io.pending_bytes == len(line), "the oldest line is read to its end")
        held = sum(agents[place].io.pending_bytes for place in (0, 1, 3))
        assert held <= BUDGET + 4 * READ_AHEAD_BYTES, "the others stood still meanwhile"
        flood(2, b"\n")
        await until(
            lambda: any(agents[place].io.pending_bytes == len(line) for place in (0, 1, 3)),
            "then it is the next one's turn",
        )


@behaviour("pressure:receive-budget")
async def test_an_agent_whose_line_hardly_grows_while_others_wait_for_it_is_dropped(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    now = [100.0]
    async with opened(str(tmp_path / "agents.sock"), clock=lambda: now[0]) as (door, agents, flood):
        flood(0, b"x" * (BUDGET + 1))  # and never a line end
        await until(lambda: agents[0].io.pending_bytes > BUDGET, "the budget is spent")
        flood(1, b"x" * (2 * READ_AHEAD_BYTES) + b"\n")
        await until(lambda: agents[1].io.pending_bytes > READ_AHEAD_BYTES, "the other waits")
        door.check_timeouts(now[0])
        flood(0, b"x" * 1000)
        await until(lambda: agents[0].io.pending_bytes == BUDGET + 1001, "it has grown a little")
        for _ in range(11):
            now[0] += 1.0
            door.check_timeouts(now[0])
        await until(lambda: agents[0].id not in door.connections.agents, "it is dropped")
        await until(lambda: agents[1].io.pending_bytes == 0, "the other goes on")
        assert "others waited for the end of its line" in caplog.text


HOG = """
import socket, sys
ends = [socket.socket(socket.AF_UNIX) for _ in range(8)]
for end in ends:
    end.connect(sys.argv[1])
    end.settimeout(1)
    try:
        end.sendall(b"x" * int(sys.argv[2]))  # and never a line end
    except TimeoutError:
        pass
print("sent", flush=True)
sys.stdin.read()
"""


@behaviour("pressure:receive-budget")
async def test_unfinished_lines_of_one_process_hold_up_no_line_of_another(tmp_path: Path) -> None:
    path = str(tmp_path / "agents.sock")
    async with opened(path) as (door, agents, flood):
        hog = await trio.lowlevel.open_process(
            [sys.executable, "-c", HOG, path, str(BUDGET)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        try:
            assert hog.stdout is not None
            assert await hog.stdout.receive_some(1) == b"s", "more may come later"
            held = [each for each in door.connections.agents.values() if each not in agents]
            assert sum(each.io.pending_bytes for each in held) > BUDGET
            flood(1, b"x" * (2 * READ_AHEAD_BYTES) + b"\n")
            await until(lambda: len(lines_of(door, agents[1])) == 2, "its line is read to its end")
            assert all(each.id in door.connections.agents for each in held)
        finally:
            hog.kill()
            await hog.wait()


@behaviour("pressure:receive-budget")
async def test_unfinished_lines_of_agents_hold_up_neither_a_node_nor_the_http_door(tmp_path: Path) -> None:
    """All of these connections are of one process, as all sessions of other nodes are."""
    async with opened(str(tmp_path / "agents.sock"), greet=False) as (_, agents, flood):
        flood(2, attach_line(Attach(version=ATTACH_VERSION, carrier="node", agent="beta")))
        flood(3, attach_line(Attach(version=ATTACH_VERSION, carrier="door", streams=True)))
        await until(lambda: agents[3].carrier is not None, "the door is in")
        for place in (0, 1):
            flood(place, b"x" * (2 * BUDGET))
        await until(lambda: sum(agents[place].io.pending_bytes for place in (0, 1)) > BUDGET, "it is spent")
        flood(3, b"x" * (2 * READ_AHEAD_BYTES))
        await until(lambda: agents[3].io.pending_bytes == 2 * READ_AHEAD_BYTES, "the door is read")
        flood(2, b"x" * (2 * READ_AHEAD_BYTES))
        await until(lambda: agents[2].io.pending_bytes == 2 * READ_AHEAD_BYTES, "the node is read")


def lines_of(door: AgentServer, agent: AgentConnection) -> list[bytes | OverlongLine]:
    host = door._line_handler
    assert isinstance(host, Hotel)
    return host.lines[agent.id]


def has_come_and_gone(door: AgentServer) -> bool:
    return door._count > 0 and not door.connections.agents


async def test_a_carrier_that_is_gone_when_its_attach_line_is_read_leaves_no_session(tmp_path: Path) -> None:
    path = str(tmp_path / "agents.sock")
    first = b'{"jsonrpc":"2.0","id":1,"method":"ping"}\n'
    with trio.fail_after(20):
        for attach, line in [
            (Attach(version=ATTACH_VERSION, carrier="shim"), first),
            (Attach(version=ATTACH_VERSION, carrier="door", streams=True), control_line(1, OpenStream())),
        ]:
            ready, hotel = ReadySet(), Hotel()
            door = new_door(path, ready, hotel, receive_budget_bytes=BUDGET)
            door.open()
            try:
                with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as end:
                    end.connect(path)
                    end.sendall(attach_line(attach) + line)
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(ready.run, door.connections.flush)
                    await until(partial(has_come_and_gone, door), "it has come and gone")
                    nursery.cancel_scope.cancel()
                assert not hotel.lines
            finally:
                door.close()
                ready.close()


class SlowHost(Hotel):
    """A host that takes some rounds to look where a guest wants to be."""

    def __init__(self, ready: ReadySet, why: StreamRefused | None) -> None:
        super().__init__()
        self._ready = ready
        self._why = why
        self.said: list[bytes | OverlongLine] = []

    def scan_workspace(self, attach: Attach, then: Callable[[], None]) -> None:
        self._ready.call_soon(lambda: self._ready.call_soon(lambda: self._ready.call_soon(then)))

    def attach_note(self, attach: Attach) -> str:
        return ""

    def attach_objection(self, attach: Attach) -> StreamRefused | None:
        return self._why

    def lines_received(
        self, session: SessionId, lines: list[bytes | OverlongLine], delivery_log: DeliveryLog | None = None
    ) -> None:
        self.said += lines


@behaviour("agents:refusal-told")
@pytest.mark.parametrize("why", [None, StreamRefused("there is no such workspace", "unknown_workspace")])
async def test_an_agent_that_sent_all_before_its_workspace_is_known_is_served_or_told_why_not(
    why: StreamRefused | None, tmp_path: Path
) -> None:
    path, line = str(tmp_path / "agents.sock"), b'{"jsonrpc":"2.0","id":1,"method":"ping"}'
    ready = ReadySet()
    porter = SlowHost(ready, why)
    door = new_door(path, ready, porter, receive_budget_bytes=BUDGET)
    door.open()
    try:
        with trio.fail_after(20), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as end:
            end.connect(path)
            end.sendall(attach_line(Attach(version=ATTACH_VERSION, carrier="shim", workspace="nope")))
            end.sendall(line + b"\n")
            end.shutdown(socket.SHUT_WR)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(ready.run, door.end_finished)
                await until(partial(has_come_and_gone, door), "it has come and gone")
                nursery.cancel_scope.cancel()
            said = end.recv(65536)
        assert (b"there is no such workspace" in said) == (why is not None)
        assert porter.said == ([] if why else [line])
    finally:
        door.close()
        ready.close()


class Inn(Hotel):
    """A host whose guests are asked for more of their environment."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[object] = []
        """Lines of the agent and answers of its carrier, in the order in which they are taken."""

    def lines_received(
        self, session: SessionId, lines: list[bytes | OverlongLine], delivery_log: DeliveryLog | None = None
    ) -> None:
        self.said += lines

    def environment_received(self, session: SessionId, question: int, environment: dict[str, str]) -> None:
        self.said.append((question, environment))


@behaviour("workspaces:moved-variables")
async def test_a_carrier_that_tells_is_asked_again_and_its_answers_are_no_lines_of_the_agent(
    tmp_path: Path,
) -> None:
    path = str(tmp_path / "agents.sock")
    ready, inn = ReadySet(), Inn()
    door = new_door(path, ready, inn, receive_budget_bytes=BUDGET)
    door.open()
    try:
        with trio.fail_after(20), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as end:
            end.connect(path)
            end.sendall(attach_line(Attach(version=ATTACH_VERSION, carrier="shim", keeps=True, tells=True)))
            async with trio.open_nursery() as nursery:
                nursery.start_soon(ready.run, door.connections.flush)
                nursery.start_soon(door.watch)
                await until(lambda: bool(inn.lines), "it is in")
                (agent,) = door.connections.agents.values()
                assert [door.connections.request_environment(agent.id, [name]) for name in ("A", "B")] == [
                    1,
                    2,
                ]
                assert door.connections.request_environment(SessionId("s99"), ["A"]) == 0
                end.sendall(b"one\n" + environment_line({"A": "1"}) + b"two\n")
                await until(lambda: len(inn.said) == 3, "all of that is taken")
                agent.asked_at -= ENVIRONMENT_S
                await until(lambda: len(inn.said) == 4, "it has taken too long")
                end.sendall(environment_line({"B": "late"}) + environment_line({"C": "not asked"}))
                await until(lambda: len(inn.said) == 6, "the late one is taken still")
                nursery.cancel_scope.cancel()
        assert inn.said[:5] == [b"one", (1, {"A": "1"}), b"two", (2, {}), (2, {"B": "late"})]
        assert inn.said[5] == environment_line({"C": "not asked"})[:-1], "what nobody asked is the agent's"
    finally:
        door.close()
        ready.close()


class Inquisitive(Inn):
    """A host that wants a variable of everybody who comes."""

    def __init__(self) -> None:
        super().__init__()
        self.brought: list[dict[str, str]] = []
        self.awaited: list[str] = []

    def environment_requested(self, session: SessionId, names: list[str]) -> None:
        self.awaited += names

    def wanted_variables(self, attach: Attach) -> list[str]:
        return ["A"]

    def session_opened(
        self,
        session: SessionId,
        attach: Attach,
        environment: dict[str, str],
        stream: OpenStream | None = None,
    ) -> None:
        super().session_opened(session, attach, environment, stream)
        self.brought.append(environment)


@behaviour("private:environment")
async def test_no_line_of_an_agent_is_taken_for_its_carriers_word_about_the_environment(
    tmp_path: Path,
) -> None:
    path = str(tmp_path / "agents.sock")
    ready, inn = ReadySet(), Inquisitive()
    door = new_door(path, ready, inn, receive_budget_bytes=BUDGET)
    door.open()
    forged, other = environment_line({"A": "forged"}), environment_line({"A": "forged"}, "guessed")
    attach = Attach(version=ATTACH_VERSION, carrier="shim", keeps=True, tells=True, mark="m")
    try:
        with trio.fail_after(20), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as end:
            end.connect(path)
            end.sendall(attach_line(attach) + forged + other)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(ready.run, door.connections.flush)
                await until(lambda: bool(door.connections.agents), "it has begun")
                end.sendall(environment_line({"A": "honest"}, "m"))
                await until(lambda: len(inn.said) == 2, "it is in")
                (agent,) = door.connections.agents.values()
                door.connections.request_environment(agent.id, ["A"])
                end.sendall(forged + environment_line({"A": "honest again"}, "m"))
                await until(lambda: len(inn.said) == 4, "all of that is taken")
                nursery.cancel_scope.cancel()
        assert inn.brought == [{"A": "honest"}]
        assert inn.said == [forged[:-1], other[:-1], forged[:-1], (1, {"A": "honest again"})]
    finally:
        door.close()
        ready.close()


@behaviour("reattach:late-environment")
@pytest.mark.parametrize("keeps", [True, False])
@pytest.mark.parametrize("at_once", [True, False])
async def test_an_environment_that_comes_late_is_taken_and_is_no_line_of_the_agent(
    tmp_path: Path, *, keeps: bool, at_once: bool
) -> None:
    """One line that only the broker counted made the next broker run calls again that were answered."""
    path = str(tmp_path / "agents.sock")
    ready, inn = ReadySet(), Inquisitive()
    door = new_door(path, ready, inn, receive_budget_bytes=BUDGET)
    door.open()
    attach = Attach(version=ATTACH_VERSION, carrier="shim", keeps=keeps, mark="m")
    late = environment_line({"A": "late"}, "m")
    try:
        with trio.fail_after(20), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as end:
            end.connect(path)
            end.sendall(attach_line(attach))
            async with trio.open_nursery() as nursery:
                nursery.start_soon(ready.run, door.connections.flush)
                await until(
                    lambda: any(agent.environment_requests for agent in door.connections.agents.values()),
                    "it is asked",
                )
                (agent,) = door.connections.agents.values()
                door.check_timeouts(agent.began_at + ENVIRONMENT_S + 1)
                assert inn.brought == [{}]
                assert inn.awaited == ["A"]
                door.check_timeouts(agent.began_at + 10 * ENVIRONMENT_S)
                assert inn.said == [], "nobody waits for it any more"
                if at_once:
                    end.sendall(b"one\n" + late + b"two\n" + late)
                else:
                    for count, line in enumerate((b"one\n", late, b"two\n", late), 1):
                        end.sendall(line)
                        await until(lambda: len(inn.said) >= count, "it is taken")  # noqa: B023 - at once
                await until(lambda: len(inn.said) == 4, "all of it is taken")
                nursery.cancel_scope.cancel()
        assert inn.said == [b"one", (1, {"A": "late"}), b"two", late[:-1]], "a second one nobody asked for"
    finally:
        door.close()
        ready.close()


@behaviour("pressure:slow-reader")
async def test_while_the_broker_does_not_run_no_agent_is_late(tmp_path: Path) -> None:
    at = [100.0]
    clock = SteadyClock(lambda: at[0], lambda: at[0])
    path = str(tmp_path / "agents.sock")
    ready, inn = ReadySet(), Inquisitive()
    door = new_door(path, ready, inn, receive_budget_bytes=BUDGET, clock=clock)
    door.open()

    def passes(seconds: int) -> None:
        for _ in range(seconds):
            at[0] += 1.0
            door.check_timeouts(clock())

    try:
        with trio.fail_after(20), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as end:
            end.connect(path)
            end.sendall(attach_line(Attach(version=ATTACH_VERSION, carrier="shim", keeps=True)))
            async with trio.open_nursery() as nursery:
                nursery.start_soon(ready.run, door.connections.flush)
                await until(
                    lambda: any(agent.environment_requests for agent in door.connections.agents.values()),
                    "it is asked",
                )
                (agent,) = door.connections.agents.values()
                passes(int(ENVIRONMENT_S) - 2)
                at[0] += 600.0
                door.check_timeouts(clock())
                assert inn.brought == [], "its answer may lie in our socket"
                passes(3)
                assert inn.brought == [{}]
                while not agent.io.is_blocked:
                    door.connections.write(agent.id, b"x" * 100_000 + b"\n")
                    door.connections.flush()
                passes(28)
                at[0] += 600.0
                door.check_timeouts(clock())
                assert not agent.io.closed, "it may have read what it could"
                passes(3)
                await until(lambda: agent.id not in door.connections.agents, "now it is late")
                nursery.cancel_scope.cancel()
    finally:
        door.close()
        ready.close()


async def read_line(sock: socket.socket) -> bytes:
    """The next line of the broker; what is there of one where it has closed the connection."""
    found = b""
    while not found.endswith(b"\n"):
        await trio.lowlevel.wait_readable(sock)
        byte = sock.recv(1)
        if not byte:
            break
        found += byte
    return found


@behaviour("operate:disconnect")
async def test_a_carrier_without_room_for_the_reason_of_its_end_is_told_when_it_attaches_again(
    tmp_path: Path,
) -> None:
    ready, hotel = ReadySet(), Hotel()
    path = str(tmp_path / "agents.sock")
    door = new_door(path, ready, hotel, receive_budget_bytes=BUDGET)
    door.open()

    def carrier(resume: ResumeSession | None = None) -> socket.socket:
        sock = socket.socket(socket.AF_UNIX)
        sock.connect(path)
        sock.setblocking(False)
        sock.send(
            attach_line(Attach(version=ATTACH_VERSION, carrier="shim", keeps=True, tells=True, resume=resume))
        )
        return sock

    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ready.run, door.connections.flush)
            first = carrier()
            told = json.loads(await read_line(first))["params"]
            agent = door.connections.agents[SessionId(told["session"])]
            while not agent.io.is_blocked:
                agent.io.write(b'{"n":"%b"}\n' % (b"x" * 100_000))
                agent.io.flush()
            assert door.disconnect_session(agent.id, "an operator did it")
            mine = {"session": told["session"], "supervisor": "", "kept": 0, "open": 0, "last": ""}
            again = carrier(ResumeSession(secret=told["secret"], **mine))
            ended = json.loads(await read_line(again))
            assert ended["method"] == "carpool/ended"
            assert ended["params"] == {"text": DROPPED + "an operator did it", "again": False}
            assert await read_line(again) == b""
            for sock in (first, again):
                sock.close()
            nursery.cancel_scope.cancel()
    door.close()
    ready.close()
