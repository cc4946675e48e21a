"""The near ends of sessions: pipes of a supervisor, and a connection to this node's broker.

Owns reading, writing and waiting at both. An end reads only what the other node has room for, and tells how
much of the other node's bytes it has passed on.

Knows nothing of: nodes, links, MCP.
"""

import asyncio
import os
from collections import deque
from collections.abc import Sequence
from typing import Final

import msgspec

from carpool.api.attach import AttachTarget
from carpool.api.connection import BrokerConnection
from carpool.cluster.core.local_sessions import NearEnd, NearEndEvents
from carpool.cluster.line_budget import HELD_BYTES, LONG_BYTES, LineBudget
from carpool.errors import CarpoolError
from carpool_protocol.bootstrap.carrier_contract import ATTACH_VERSION

READ_BYTES: Final = 64 * 1024
MAX_UNSENT_BYTES: Final = 1024 * 1024
"""A broker's connection is not read while so much of a session waits for the other node."""


class PipesEnd:
    """The pipes of an instance of this node's supervisor. Closes them."""

    session: Final = ""

    def __init__(self, fds: Sequence[int], events: NearEndEvents) -> None:
        """`fds`: stdin, which is read, stdout and stderr, which are written, as by a server's process."""
        self._loop = asyncio.get_running_loop()
        self._stdin, self._stdout, self._stderr = fds
        self._events = events
        self._waiting: deque[bytes | memoryview] = deque()
        self._is_reading = False
        self._is_blocked = False
        """The pipe was full: the loop says when it has room."""
        self._is_over = False
        for fd in fds:
            os.set_blocking(fd, False)
        self.read_on()

    def read_on(self) -> None:
        """Read while there is room."""
        if not self._is_over and not self._is_reading:
            self._is_reading = True
            self._loop.add_reader(self._stdin, self._readable)

    def _readable(self) -> None:
        room = min(self._events.room_bytes(), READ_BYTES)
        if room <= 0:
            self._stop_reading()
            return
        try:
            data = os.read(self._stdin, room)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            self._events.send(data)
        else:
            self._finish("", tell=True)

    def _stop_reading(self) -> None:
        if self._is_reading:
            self._is_reading = False
            self._loop.remove_reader(self._stdin)

    def pass_bytes(self, data: bytes) -> None:
        """Write bytes of the other node to the pipe, now or when it has room."""
        if self._is_over:
            return
        self._waiting.append(data)
        if len(self._waiting) == 1:
            self._write()

    def _write(self) -> None:
        while self._waiting:
            data = self._waiting[0]
            try:
                sent = os.write(self._stdout, data)
            except BlockingIOError:
                self._loop.add_writer(self._stdout, self._write)
                self._is_blocked = True
                return
            except OSError:
                self._finish("", tell=True)
                return
            self._events.passed(sent)
            if sent < len(data):
                self._waiting[0] = memoryview(data)[sent:]
            else:
                self._waiting.popleft()
        if self._is_blocked:
            self._loop.remove_writer(self._stdout)
            self._is_blocked = False

    def end(self, text: str) -> None:
        """Close the pipes. What waits for room in a full pipe is lost with the session."""
        self._finish(text, tell=False)

    def _finish(self, text: str, *, tell: bool) -> None:
        if self._is_over:
            return
        self._is_over = True
        self._stop_reading()
        self._loop.remove_writer(self._stdout)
        for fd in (self._stdin, self._stdout, self._stderr):
            os.close(fd)
        if tell:
            self._events.ended(text)


def attach_line(own: str, node: str, server: str, profile: str) -> bytes:
    """Return the attach line of an agent of another node, for one server. `own`: the name of this node."""
    attach = {
        "version": ATTACH_VERSION,
        "carrier": "node",
        "pid": os.getpid(),
        "agent": node,
        "node": own,
        "profile": profile,
        "server": server,
        "keeps": True,
        "tells": False,
    }
    return b'{"jsonrpc":"2.0","method":"carpool/attach","params":%s}\n' % msgspec.json.encode(attach)


class UnsentBytes:
    """Bytes of a session that wait for room at the other node. `events`: of their end."""

    def __init__(self, events: NearEndEvents) -> None:
        self._events = events
        self._waiting: deque[memoryview] = deque()
        """Views, so that the rest of a long line is not copied for each portion of credit."""
        self.size_bytes = 0

    def add(self, data: bytes) -> None:
        """Add bytes behind those that wait, and send what has room."""
        self._waiting.append(memoryview(data))
        self.size_bytes += len(data)
        self.send()

    def send(self) -> None:
        """Send what has room."""
        while self._waiting and (room := self._events.room_bytes()) > 0:
            data = self._waiting.popleft()
            if len(data) > room:
                self._waiting.appendleft(data[room:])
                data = data[:room]
            self.size_bytes -= len(data)
            self._events.send(bytes(data))


class BrokerEnd:
    """A session of another node's agent at this node's broker. It outlives brokers (docs/decisions/0019)."""

    def __init__(
        self, place: AttachTarget, line: bytes, events: NearEndEvents, *, node: str, budget: LineBudget
    ) -> None:
        """`line`: the attach line. `place` has no variables: those of agents do not travel. `node`: the
        agent's. `budget`: of all ends of this process.
        """
        self._events = events
        self._node = node
        self._budget = budget
        self._half_bytes = 0
        """The bytes of a line of the broker whose end has not come yet."""
        self._unsent = UnsentBytes(events)
        self._unpassed_bytes = 0
        self._blocked = asyncio.Event()
        """Set when the broker has no room for what was written."""
        self._connection = BrokerConnection(
            place,
            line,
            start=False,
            keeps=True,
            take=self._line_received,
            on_end=self._connection_ended,
            on_read=self._has_read,
        )
        self._is_over = False
        self._over = asyncio.Event()
        self._tasks = asyncio.create_task(self._run())

    @property
    def session(self) -> str:
        """Return the session's public id at the broker; empty: no broker has admitted it."""
        return self._connection.session

    @property
    def is_attached(self) -> bool:
        """True if a broker has admitted the session."""
        return self._connection.session != ""

    async def _run(self) -> None:
        over = asyncio.create_task(self._over.wait())
        opening = asyncio.create_task(self._connection.open())
        tasks = [over, opening]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if not opening.done():  # a session that is over waits for no broker
                return
            opening.result()
            work = (self._connection.run(), self._connection.write(), self._grant())
            tasks += [asyncio.create_task(each) for each in work]
            await asyncio.wait([over, tasks[2]], return_when=asyncio.FIRST_COMPLETED)
            self._connection.close()
        except CarpoolError as error:
            self._connection_ended(error)
        finally:
            self._budget.forget(self._node, self)
            for each in tasks:
                each.cancel()

    # --- from the broker -------------------------------------------------------------------------------

    def _line_received(self, line: bytes) -> None:
        if len(line) > LONG_BYTES:  # not copied for its end
            self._unsent.add(line)
            self._unsent.add(b"\n")
        else:
            self._unsent.add(line + b"\n")

    def _has_read(self, half_bytes: int) -> None:
        self._half_bytes = half_bytes
        self._read_while_few_wait()

    def read_on(self) -> None:
        """Send what waits for room."""
        self._unsent.send()
        self._read_while_few_wait()

    def _read_while_few_wait(self) -> None:
        if self._is_over:
            return
        unsent_bytes = self._unsent.size_bytes
        self._budget.holds(self._node, self, unsent_bytes + self._half_bytes)
        self._connection.set_reading(
            on=unsent_bytes < MAX_UNSENT_BYTES and self._budget.may_read(self, self._read_while_few_wait)
        )

    # --- to the broker ---------------------------------------------------------------------------------

    def pass_bytes(self, data: bytes) -> None:
        """Write bytes of the agent, and grant more when the broker has read them."""
        self._connection.send_line(data, alone=True)
        self._unpassed_bytes += len(data)
        if self._connection.has_room:
            self._grant_all()
        else:
            self._blocked.set()

    async def _grant(self) -> None:
        """Grant what was written while there was no room."""
        while self._connection.ended is None:
            await self._blocked.wait()
            self._blocked.clear()  # before the wait for room: it may be set before this task begins
            await self._connection.wait_for_room()
            self._grant_all()

    def _grant_all(self) -> None:
        granted, self._unpassed_bytes = self._unpassed_bytes, 0
        if granted:
            self._events.passed(granted)

    # --- the end ---------------------------------------------------------------------------------------

    def end(self, text: str) -> None:
        """Close the connection: the broker cancels what is open."""
        self._is_over = True
        self._over.set()  # a task closes it: a timer, which may call this, cannot

    def _connection_ended(self, error: CarpoolError) -> None:
        if not self._is_over:
            self._is_over = True
            self._events.ended(str(error))


class NearEnds:
    """Makes the near ends of a node's process (`NearEndMaker`). `directory`: the runtime directory of this
    machine's broker. `own`: the name of this node. `profile`: of other nodes' agents.
    """

    def __init__(self, directory: str, own: str, profile: str) -> None:
        self._directory = directory
        self._own = own
        self._profile = profile
        self._budget = LineBudget(HELD_BYTES)

    def open_pipes(self, pipes: Sequence[int], events: NearEndEvents) -> NearEnd:
        """As `NearEndMaker.open_pipes`. `pipes`: three descriptors, as of `PipesEnd`."""
        return PipesEnd(pipes, events)

    def close_pipes(self, pipes: Sequence[int]) -> None:
        """As `NearEndMaker.close_pipes`."""
        for fd in pipes:
            os.close(fd)

    def open_at_broker(self, node: str, server: str, events: NearEndEvents) -> NearEnd:
        """As `NearEndMaker.open_at_broker`."""
        line = attach_line(self._own, node, server, self._profile)
        place = AttachTarget(self._directory, {})
        return BrokerEnd(place, line, events, node=node, budget=self._budget)
