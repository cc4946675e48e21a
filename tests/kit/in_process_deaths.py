"""A whole carpool in one thread whose broker dies, and an agent behind a carrier of ours that comes back.

Owns how a broker goes without a word (its sockets closed, what it had for the link lost) and the next one
begins with what the launcher hands on; small steps, so that a death may come between any two; and the
carrier, which is the Python client's with a socket that is read as far as the test says.

Knows nothing of: what agents ask, who is right.
"""

import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from carpool.api.attach import BrokerAttachment
from carpool.shim.kept_lines import KeptLines
from carpool.shim.resume import resume
from carpool_broker.transport.incarnation import SECRET_BYTES, Incarnation
from carpool_protocol.bootstrap.carrier_contract import ATTACH_VERSION
from carpool_protocol.carrier.attach_line import Attach, attach_line
from tests.kit.in_process_daemon import InProcessDaemon
from tests.kit.in_process_servers import READ_BYTES, Json, Program

SECRET: Final = b"s" * SECRET_BYTES
HELLO: Final = attach_line(Attach(version=ATTACH_VERSION, carrier="client", keeps=True, tells=True))


class KillableDaemon(InProcessDaemon):
    """One carpool. Nothing moves but by the steps; `settle` takes all of them."""

    def __init__(
        self, house: Path, servers: Mapping[str, Json], programs: Mapping[str, Program], **more: Json
    ) -> None:
        """`more`: of the configuration."""
        self.life = 0
        super().__init__(house, servers, programs, **more)

    def first_heritage(self) -> Incarnation:
        """See `InProcessDaemon`."""
        return Incarnation(SECRET, 0)

    def step_broker(self) -> None:
        """The broker reads what has come, and says what follows."""
        if self.broker._ready._round():
            self.broker._flush_burst()

    def step_servers(self) -> None:
        """The same of the supervisor and all servers."""
        self.processes.run()
        if self.supervisor._ready._round():
            self.supervisor._flush_burst()
        self.supervisor._flush_burst()

    def step_link(self) -> None:
        """What both have said to each other arrives."""
        self._carry()

    def report(self) -> None:
        """The second is over after which the broker says which answers are written."""
        self.broker._report_written()

    def kill_broker(self) -> None:
        """It goes without a word; the next one is there at once."""
        for agent in self.broker._agent_server.connections.agents.values():
            agent.io.close()
        self.broker._ready.close()
        self.life += 1
        self.ends[0].out.clear()
        with self._apart():
            kept = self.ends.pop()
            self.ends.clear()
            self.broker = self._new_broker(Incarnation(SECRET, self.life))
            self.ends.append(kept)

    def socket_for_agent(self) -> socket.socket:
        """The agent's end of a new connection, which the door has accepted."""
        ours, theirs = socket.socketpair()
        for each in (ours, theirs):
            each.setblocking(False)
        self.broker._agent_server._accept(ours)
        return theirs


class InProcessCarrier:
    """One agent's way to whichever broker there is. `take` gets each line for the agent."""

    def __init__(
        self,
        whole: KillableDaemon,
        variables: Callable[[list[str]], dict[str, str]],
        take: Callable[[bytes], None],
    ) -> None:
        self.kept = KeptLines()
        self._whole = whole
        self._variables = variables
        self._take = take
        self._sock = whole.socket_for_agent()
        self._attachment = BrokerAttachment(self.kept, HELLO, variables)
        self.write()

    def say(self, line: bytes) -> None:
        """A line of the agent, with its end."""
        self._attachment.send_line(line)
        self.write()

    def write(self, most: int = READ_BYTES) -> None:
        """Let the socket take what waits for it."""
        out = self._attachment.out
        try:
            while out:
                self._attachment.bytes_written(self._sock.send(bytes(out[:most])))
        except (BlockingIOError, BrokenPipeError, ConnectionResetError):
            return

    def read(self, most: int = READ_BYTES) -> bool:
        """Read so many bytes of the broker. False: it has died, and we are with the next one."""
        try:
            data = self._sock.recv(most)
        except BlockingIOError:
            return True
        except ConnectionResetError:
            data = b""
        for line in self._attachment.feed(data):
            self._take(line)
        if data:
            self.write()
            return True
        self._sock.close()
        assert not self._attachment.refusal, self._attachment.refusal
        untaken_bytes = self._attachment.unread_by_broker_bytes()
        first = resume(self.kept, HELLO, again=False, untaken_bytes=untaken_bytes)
        self._sock = self._whole.socket_for_agent()
        self._attachment = BrokerAttachment(self.kept, first, self._variables)
        self.write()
        return False

    def close(self) -> None:
        """Let go of the socket."""
        self._sock.close()
