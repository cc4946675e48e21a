"""A whole carpool in one thread: both real shells, doors and adapters, with everything slow taken out.

Agents are socket pairs, servers are objects at the other ends of real pipes, the link carries real frames
from list to list, and time is a number. So what is between an agent's bytes and a server's runs as in the
daemon, the same each time.

Knows nothing of: trio, ZeroMQ, processes; who is hostile.
"""

import json
import os
import socket
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final
from unittest import mock

import trio

from carpool_broker import process as broker_shell
from carpool_broker.config.configuration import DEFAULT_SOURCE
from carpool_broker.transport.incarnation import Incarnation
from carpool_protocol.config.reading.load import ConfigFile
from carpool_protocol.link.codec import FrameData
from carpool_protocol.link.messages import AnyMessage, Hello
from carpool_protocol.link.peer import BROKER, Peer
from carpool_protocol.runtime.poller import ReadySet
from carpool_supervisor import process as supervisor_shell
from carpool_supervisor import processes as supervisor_processes
from tests.kit.in_process_servers import READ_BYTES, InProcessServer, InProcessServers, Json, Program
from tests.kit.synchronous_configuration import SynchronousConfiguration, WatcherWithoutThreads

SUPERVISOR = "sup1"
ROUNDS = 20_000
"""More than any burst takes: past it something goes round and round."""


PROFILES: Final = {"reader": {"show": "search", "resource_tools": True}}
"""For agents that ask for it."""


class LinkEnd:
    """One end of the link, as the shells know it (`link.Link`)."""

    def __init__(self, me: Hello, _address: str) -> None:
        self.me = me
        self.now = 0.0
        self.peer = Peer(me, SUPERVISOR if me.name == BROKER else BROKER, 0.0)
        self.out: deque[FrameData] = deque()

    def send(self, _peer: str, message: AnyMessage) -> None:
        self.peer.send(message)

    def send_later(self, _peer: str, message: AnyMessage) -> None:
        self.peer.send_later(message)

    def flush(self) -> None:
        if self.peer.has_output:
            self.out += self.peer.take_frames(self.now)

    def held_bytes(self, _peer: str) -> int:
        return self.peer.held_bytes

    def forget(self, _peer: str, _why: str) -> None:
        raise AssertionError("nobody dies here")


class AgentSocket:
    """An agent's end of its socket."""

    def __init__(self, in_process_daemon: "InProcessDaemon", sock: socket.socket) -> None:
        self._whole = in_process_daemon
        self._sock = sock
        self._rest = b""
        self.lines: list[bytes] = []
        self.ended = False
        self._ids = 0

    def send(self, data: bytes) -> None:
        """Say this; whatever comes of it has happened when this returns."""
        while data and not self.ended:
            try:
                data = data[self._sock.send(data[:READ_BYTES]) :]
            except BlockingIOError:
                pass
            except (BrokenPipeError, ConnectionResetError):
                self.ended = True
            self._whole.settle()

    def read(self) -> bool:
        """Take in what was said to it. Whether there was anything."""
        if self.ended:
            return False
        try:
            data = self._sock.recv(READ_BYTES)
        except BlockingIOError:
            return False
        except ConnectionResetError:
            data = b""
        self.ended = not data
        *lines, self._rest = (self._rest + data).split(b"\n")
        self.lines += lines
        return True

    def close(self) -> None:
        self.ended = True
        self._sock.close()
        self._whole.settle()

    # --- of an agent that knows its manners ---

    def ask(self, method: str, **params: Any) -> Json:
        """A request and its answer, which must come at once and alone."""
        self._ids += 1
        before = len(self.lines)
        self.send(_line({"id": self._ids, "method": method, "params": params}))
        said = [json.loads(line) for line in self.lines[before:]]
        assert [each.get("id") for each in said] == [self._ids], f"{method} was answered with {said}"
        answer: Json = said[0]
        return answer

    def greet(self) -> None:
        self.ask("initialize", protocolVersion="2025-11-25", capabilities={}, clientInfo={"name": "good"})
        self.send(_line({"method": "notifications/initialized"}))

    def echo(self, text: str, tool: str = "good__echo") -> None:
        """A call that must be answered rightly, and nothing else said."""
        said = self.ask("tools/call", name=tool, arguments={"text": text})
        assert said["result"]["content"][0]["text"] == text, said


def _line(message: Json) -> bytes:
    return json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n"


class InProcessDaemon:
    """One carpool. Made by `in_process_daemon`."""

    def __init__(
        self, house: Path, servers: Mapping[str, Json], programs: Mapping[str, Program], **more: Json
    ) -> None:
        """`more`: of the configuration. Nothing asks a login shell: no task would hear its answer."""
        self.now = 1000.0
        self.ends: list[LinkEnd] = []
        self.lines: list[AgentSocket] = []
        file = house / "carpool.json"
        config = {"mcpServers": dict(servers), "profiles": PROFILES, "login_shell": False, **more}
        text = json.dumps(config)
        if not file.exists() or file.read_text() != text:
            file.write_text(text)
        self.operations: list[tuple[Any, ...]] = []
        self._nursery = mock.Mock(start_soon=lambda *what: self.operations.append(what))
        self._house, self._file = house, str(file)
        with self._apart():
            self.broker = self._new_broker(self.first_heritage())
            with mock.patch.object(
                supervisor_processes, "Spawner", lambda *_, **heard: self._processes(programs, heard)
            ):
                self.supervisor = supervisor_shell.SupervisorShell(str(house), SUPERVISOR, None)
        self.supervisor._nursery = self._nursery
        self.settle()

    def first_heritage(self) -> Incarnation:
        """What the first broker is given."""
        return Incarnation()

    @contextmanager
    def _apart(self) -> Iterator[None]:
        """What is made within has our link, clock and environment."""
        with ExitStack() as stack:
            house = str(self._house)
            environ = {"CARPOOL_CHECK": "1", "CARPOOL_STATE_DIR": f"{house}/state", "HOME": house}
            stack.enter_context(mock.patch.dict(os.environ, environ))
            stack.enter_context(mock.patch.object(broker_shell, "ConfigWatcher", WatcherWithoutThreads))
            for module in (broker_shell, supervisor_shell):
                stack.enter_context(mock.patch.object(module, "ZmqLink", self._end))
                stack.enter_context(mock.patch.object(module, "SteadyClock", return_value=self._clock))
            stack.enter_context(mock.patch.object(trio, "current_time", self._clock))
            yield

    def _new_broker(self, incarnation: Incarnation) -> broker_shell.BrokerShell:
        configuration = SynchronousConfiguration(ConfigFile(self._file, asked_for=True), dict(os.environ))
        broker = broker_shell.BrokerShell(str(self._house), configuration, incarnation, None)
        broker._nursery = self._nursery
        broker._pump.feed(configuration.resolve_source(DEFAULT_SOURCE))
        self.ends[0].peer.connection_opened()
        return broker

    def _clock(self) -> float:
        return self.now

    def _end(self, me: Hello, address: str, _ready: ReadySet) -> LinkEnd:
        end = LinkEnd(me, address)
        self.ends.append(end)
        return end

    def _processes(self, programs: Mapping[str, Program], heard: dict[str, Any]) -> InProcessServers:
        self.processes = InProcessServers(programs, **heard)
        return self.processes

    def connect(self) -> AgentSocket:
        """An agent's connection, as the door accepts it."""
        ours, theirs = socket.socketpair()
        for each in (ours, theirs):
            each.setblocking(False)
        with mock.patch.object(trio, "current_time", self._clock):
            self.broker._agent_server._accept(ours)
        line = AgentSocket(self, theirs)
        self.lines.append(line)
        return line

    def server(self, name: str) -> InProcessServer | None:
        """The process of this server, where one runs."""
        for instance, process in self.processes.running.items():
            if self.supervisor.core.instances.by_id[instance].pool.server == name:
                return process
        return None

    def settle(self) -> None:
        """Let everything happen that happens without time."""
        for _ in range(ROUNDS):
            done = False
            for shell in (self.broker, self.supervisor):
                while shell._ready._round():
                    done = True
                    shell._flush_burst()
            done |= self.processes.run()
            self.supervisor._flush_burst()
            done |= self._carry()
            for line in self.lines:
                done |= line.read()
            if not done:
                return
        raise AssertionError("it goes round and round")

    def _carry(self) -> bool:
        done = False
        for at, end in enumerate(self.ends):
            end.now = self.now
            end.flush()
            other, shell = self.ends[1 - at], (self.supervisor, self.broker)[at]
            while end.out:
                done = True
                heard = other.peer.receive(end.out.popleft(), self.now)
                if heard:
                    shell._deliver(end.me.name, heard)
                    shell._flush_burst()
        return done

    def wait(self, seconds: float) -> None:
        """Time passes, deadline by deadline."""
        until = self.now + seconds
        self.broker._agent_server.end_detached_sessions(self.now)
        for _ in range(ROUNDS):
            shells = (self.broker, self.supervisor)
            dues = [due for shell in shells if (due := shell.core.next_deadline()) is not None]
            due = min(dues, default=until)
            if due > until:
                break
            self.now = max(self.now, due)
            for shell in shells:
                deadline = shell.core.next_deadline()
                if deadline is not None and deadline <= self.now:
                    shell._pump._tick()
                    shell._flush_burst()
            self.settle()
            if not dues:
                break
        else:
            raise AssertionError("a deadline that is met stays due")
        self.now = until
        self.broker._agent_server.end_detached_sessions(self.now)
        self.settle()

    def close(self) -> None:
        """Let go of every descriptor."""
        for line in self.lines:
            line._sock.close()
        self.broker._agent_server.close()
        for conversation in self.supervisor._instance_ios._held.values():
            conversation.close()
        self.supervisor._instance_ios.close()
        for process in self.processes.running.values():
            process.end()
        self.broker._ready.close()
        self.supervisor._ready.close()


@contextmanager
def in_process_daemon(
    house: Path, servers: Mapping[str, Json], programs: Mapping[str, Program]
) -> Iterator[InProcessDaemon]:
    """One carpool with these servers: each entry's last word of `args` names its program."""
    one = InProcessDaemon(house, servers, programs)
    try:
        yield one
    finally:
        one.close()
