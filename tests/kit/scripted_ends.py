"""Both peers of the sessions between two nodes, played by a test: agents' supervisors, and a broker.

Owns the far ends of pipes and of the broker's socket: how fast each is read and written, what was said at
each, and the check that each end hears exactly what its partner has said, in order. The broker drops
connections that do not read, as the real one does.

Knows nothing of: nodes, links, credit, MCP.
"""

import asyncio
import json
import os
import socket
from collections.abc import Callable
from typing import Any, Final

from carpool_protocol.bootstrap import paths
from carpool_protocol.carrier.attach_line import attached_line, ended_line, refused_line

READ_BYTES: Final = 1 << 16
CHECK_S: Final = 1.0
"""How often the broker looks for connections that do not read."""


class ScriptedEnd:
    """One end of a session, on real descriptors."""

    def __init__(self, name: str, read_fd: int, write_fd: int, close: Callable[[], None]) -> None:
        self.name = name
        self.partner: ScriptedEnd | None = None
        """The end at the other node."""
        self.said = bytearray()
        """Everything that is to be written at this end."""
        self.written = 0
        """The bytes of it that the kernel has taken."""
        self.heard = 0
        """The bytes of the partner that have come."""
        self.is_over = False
        self.is_writing = True
        self._is_reading = False
        self._reads, self._writes, self._close = read_fd, write_fd, close
        self._is_waiting = False
        self._loop = asyncio.get_running_loop()
        os.set_blocking(read_fd, False)
        os.set_blocking(write_fd, False)
        self.read_on()

    # --- what it says ----------------------------------------------------------------------------------

    def say(self, data: bytes) -> None:
        """Write this, now or when there is room."""
        self.said += data
        self._write()

    def write_on(self) -> None:
        """Write again what waits, after `stop_writing`."""
        self.is_writing = True
        self._write()

    def stop_writing(self) -> None:
        """Hold back what is to be said, if need be in the middle of a line."""
        self.is_writing = False
        self._wait(on=False)

    def _write(self) -> None:
        while self.is_writing and not self.is_over and self.written < len(self.said):
            try:
                sent = os.write(self._writes, bytes(self.said[self.written : self.written + READ_BYTES]))
            except BlockingIOError:
                self._wait(on=True)
                return
            except (BrokenPipeError, ConnectionResetError):
                self.end()
                return
            self.written += sent
        self._wait(on=False)

    def _wait(self, *, on: bool) -> None:
        if on and not self._is_waiting:
            self._loop.add_writer(self._writes, self._write)
        elif not on and self._is_waiting:
            self._loop.remove_writer(self._writes)
        self._is_waiting = on

    # --- what it hears ---------------------------------------------------------------------------------

    def read_on(self) -> None:
        """Read what comes."""
        if not self._is_reading and not self.is_over:
            self._is_reading = True
            self._loop.add_reader(self._reads, self._read)

    def stop_reading(self) -> None:
        """Read nothing."""
        if self._is_reading:
            self._is_reading = False
            self._loop.remove_reader(self._reads)

    def _read(self) -> None:
        try:
            data = os.read(self._reads, READ_BYTES)
        except BlockingIOError:
            return
        except ConnectionResetError:
            data = b""
        if data:
            self._heard(data)
        else:
            self.end()

    def _heard(self, data: bytes) -> None:
        assert self.partner is not None, f"{self.name} heard {data[:50]!r}, and nobody speaks to it"
        expected = self.partner.said[self.heard : self.heard + len(data)]
        assert data == expected, f"{self.name} heard what {self.partner.name} has not said next"
        self.heard += len(data)

    @property
    def is_behind(self) -> bool:
        """True if something is to be written that the kernel does not take."""
        return self.written < len(self.said)

    @property
    def unheard(self) -> int:
        """Return the bytes that the kernel has taken at this end and the partner has not heard."""
        return self.written - (self.partner.heard if self.partner is not None else 0)

    def end(self) -> None:
        """Close this end."""
        if not self.is_over:
            self.is_over = True
            self.stop_reading()
            self._wait(on=False)
            self._close()


class ScriptedSupervisor:
    """A supervisor of one machine, at the socket of its node's process."""

    def __init__(self, path: str) -> None:
        self._loop = asyncio.get_running_loop()
        self._sock = socket.socket(socket.AF_UNIX)
        self._sock.connect(path)
        self._sock.setblocking(False)
        self._inbox = b""
        self.told: list[dict[str, Any]] = []
        """The answers of the node's process."""
        self._loop.add_reader(self._sock, self._read)

    def open(self, instance: int, node: str, server: str) -> ScriptedEnd:
        """Ask for a session. Returns the supervisor's end of its pipes."""
        (stdin, to_stdin), (from_stdout, stdout), (from_stderr, stderr) = os.pipe(), os.pipe(), os.pipe()
        line = {"open": instance, "node": node, "server": server}
        theirs = [stdin, stdout, stderr]
        socket.send_fds(self._sock, [json.dumps(line).encode() + b"\n"], theirs)
        own = (to_stdin, from_stdout, from_stderr)

        def close(fds: tuple[int, ...]) -> None:
            for fd in fds:
                os.close(fd)

        close(tuple(theirs))
        return ScriptedEnd(f"agent {instance}", from_stdout, to_stdin, lambda: close(own))

    def end(self, instance: int) -> None:
        """End the session of an instance."""
        self._sock.send(json.dumps({"end": instance}).encode() + b"\n")

    def answers(self, kind: str, instance: int) -> list[dict[str, Any]]:
        """Return what was told about an instance. `kind`: opened, failed or ended."""
        return [each for each in self.told if each.get(kind) == instance]

    def _read(self) -> None:
        data = self._sock.recv(READ_BYTES)
        if not data:
            self._loop.remove_reader(self._sock)
        *lines, self._inbox = (self._inbox + data).split(b"\n")
        self.told += map(json.loads, lines)

    def close(self) -> None:
        """Die: the connection closes."""
        self._loop.remove_reader(self._sock)
        self._sock.close()


class SessionBroker:
    """The broker of one machine, for sessions of other nodes' agents.

    The first line of an agent begins with the number of its instance and a blank, by which it is found. A
    connection that comes back is refused: the sessions of a broker that has died or dropped them are over.
    """

    def __init__(self, directory: str, agents: dict[int, ScriptedEnd], slow_reader_s: float) -> None:
        """`agents`: the other ends, by instance. `slow_reader_s`: a connection that does not read what waits
        for it for so long is dropped.
        """
        self._agents = agents
        self._slow_reader_s = slow_reader_s
        self._loop = asyncio.get_running_loop()
        self.sessions: dict[int, ScriptedEnd] = {}
        """The ends of sessions here, by instance."""
        self.dropped: list[int] = []
        """The instances whose sessions were dropped."""
        self._unread: dict[int, tuple[int, float]] = {}
        """What was written of sessions that have more to write, and since when it is no more."""
        self._tasks: set[asyncio.Task[None]] = set()
        self.directory = directory
        self._path = paths.agents_socket(directory)
        self._listener: socket.socket | None = None
        self.listen()
        self._check = asyncio.create_task(self._drop_slow_readers())

    def listen(self) -> None:
        """Accept connections."""
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.setblocking(False)
        self._listener.bind(self._path)
        self._listener.listen(64)
        self._loop.add_reader(self._listener, self._accept)

    def shut(self) -> None:
        """Accept none any more."""
        if self._listener is not None:
            self._loop.remove_reader(self._listener)
            self._listener.close()
            os.unlink(self._path)
            self._listener = None

    def close(self) -> None:
        """Die."""
        self.shut()
        self._check.cancel()
        for task in self._tasks:
            task.cancel()
        for end in self.sessions.values():
            end.end()

    def drop(self, instance: int, why: str) -> None:
        """End a session as the real broker does: with a last line, if the socket takes that."""
        end = self.sessions[instance]
        end.say(ended_line(why) if not end.is_behind else b"")
        end.end()

    async def _drop_slow_readers(self) -> None:
        while True:
            await asyncio.sleep(CHECK_S)
            now = self._loop.time()
            for instance, end in self.sessions.items():
                seen, since = self._unread.get(instance, (-1, now))
                if not end.is_behind or not end.is_writing or end.is_over or end.written != seen:
                    since = now
                self._unread[instance] = (end.written, since)
                if now - since > self._slow_reader_s:
                    self.dropped.append(instance)
                    self.drop(instance, "it has not read")

    def _accept(self) -> None:
        assert self._listener is not None
        sock, _ = self._listener.accept()
        sock.setblocking(False)
        task = self._loop.create_task(self._greet(sock))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _greet(self, sock: socket.socket) -> None:
        """Answer the attach line, and wait for the first bytes of the agent."""
        try:
            attach, rest = await self._line(sock, b"")
            told = json.loads(attach)["params"]
            if told.get("resume"):
                await self._loop.sock_sendall(sock, refused_line("this session is over"))
                sock.close()
                return
            await self._loop.sock_sendall(sock, attached_line("s1", [], "secret", "e1"))
            if told.get("control"):
                await self._answer_status(sock, rest)
                return
            while b" " not in rest:
                data = await self._loop.sock_recv(sock, READ_BYTES)
                if not data:
                    sock.close()
                    return
                rest += data
        except (asyncio.CancelledError, OSError):
            sock.close()
            raise
        instance = int(rest.partition(b" ")[0])
        agent = self._agents[instance]
        end = ScriptedEnd(f"broker {instance}", sock.fileno(), sock.fileno(), sock.close)
        end.partner, agent.partner = agent, end
        self.sessions[instance] = end
        end._heard(rest)

    async def _line(self, sock: socket.socket, rest: bytes) -> tuple[bytes, bytes]:
        while b"\n" not in rest:
            data = await self._loop.sock_recv(sock, READ_BYTES)
            if not data:
                raise ConnectionResetError
            rest += data
        line, _, rest = rest.partition(b"\n")
        return line, rest

    async def _answer_status(self, sock: socket.socket, rest: bytes) -> None:
        """Answer what a node's process asks about this machine's servers."""
        try:
            while True:
                line, rest = await self._line(sock, rest)
                result = {"servers": {}, "totals": {"in_flight": 0}}
                answer = {"jsonrpc": "2.0", "id": json.loads(line)["id"], "result": result}
                await self._loop.sock_sendall(sock, json.dumps(answer).encode() + b"\n")
        except ConnectionResetError:
            sock.close()
