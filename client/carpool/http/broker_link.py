"""The door's line to the broker: one connection over the agents' socket, for all streams (rule 9).

Owns the attaching, the cutting into lines, the gathering of what is written in one turn of the loop, the
turns of principals where the broker reads slower than lines come, and the coming back after the broker has
died. A line that is longer than `MAX_LINE_BYTES` ends the connection.

Invariant: whatever the broker has written is read before the end is told, also where our own writing found
that it has died. It has reported those answers as written, and nobody else has them (rule 4).

Knows nothing of: what frames say.
"""

import asyncio
import os
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from carpool.http.core.shared_budgets import SharedBudget
from carpool_protocol.bootstrap import paths, peer_credentials
from carpool_protocol.bootstrap.carrier_contract import NAMING_VERSION
from carpool_protocol.carrier.attach_line import (
    Attach,
    AttachProblem,
    attach_line,
    environment_line,
    parse_attached,
)
from carpool_protocol.wire.lines import LineBuffer, OverlongLine

MAX_LINE_BYTES: Final = 256 * 1024 * 1024
MAX_UNSENT_BYTES: Final = 64 * 1024 * 1024
"""The bytes that may wait until the broker reads, shared by the principals. Requests of a principal whose
share is full are refused.
"""
_TURN_BYTES: Final = 256 * 1024
"""The transport holds up to this many bytes that the broker has not read. Further lines wait by principal."""
_FIRST_DELAY_S, _MAX_DELAY_S = 0.02, 0.25
_ATTACH_S: Final = 10.0
_READ_BYTES: Final = 256 * 1024


class BrokerLink(asyncio.Protocol):
    """The connection to the broker. `on_line` gets each frame, `on_end` is called once."""

    def __init__(
        self, on_ready: Callable[[], None], on_line: Callable[[bytes], None], on_end: Callable[[str], None]
    ) -> None:
        self._on_ready, self._on_line, self._on_end = on_ready, on_line, on_end
        self._transport: Any = None
        self._lines = LineBuffer(MAX_LINE_BYTES)
        self._attached = False
        self._unsent: list[bytes] = []
        """The lines of this turn of the loop."""
        self.is_congested = False
        """The broker reads slower than lines come."""
        self._waiting: dict[str, deque[bytes]] = {}
        """The lines that wait meanwhile, by principal; the one whose turn is next stands first."""
        self._waiting_bytes = SharedBudget(MAX_UNSENT_BYTES)
        self._why = "the broker closed the connection"
        self._ear = -1
        """A second descriptor of the connection, because the transport closes its own when it
        cannot write.
        """
        self._aborted = False
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        transport.set_write_buffer_limits(high=_TURN_BYTES)
        if not peer_credentials.is_ours(transport.get_extra_info("socket")):
            self._abort(f"nothing was said to the broker's socket: {peer_credentials.NOT_OURS}")
            return
        self._ear = os.dup(transport.get_extra_info("socket").fileno())
        # Its streams may name a workspace.
        attach = Attach(version=NAMING_VERSION, carrier="door", pid=os.getpid(), agent="http", streams=True)
        transport.write(attach_line(attach))
        asyncio.get_running_loop().call_later(_ATTACH_S, self._attach_timed_out)

    def _attach_timed_out(self) -> None:
        if not self._attached:
            self._abort(f"the broker did not take the door within {_ATTACH_S:g} s")

    def _abort(self, why: str) -> None:
        self._why = why
        self._aborted = True
        self._transport.abort()

    def data_received(self, data: bytes) -> None:
        for line in self._lines.feed(data):
            if isinstance(line, OverlongLine):
                self._abort("the broker sent a line that is too long")
                return
            if self._attached:
                self._on_line(line)
            elif not self._attach(line):
                return

    def _attach(self, line: bytes) -> bool:
        answer = parse_attached(line)
        if isinstance(answer, AttachProblem):
            self._abort(answer.text)
            return False
        if answer.env:
            self._transport.write(environment_line({}))  # agents over HTTP have no environment here
        self._attached = True
        self._on_ready()
        return True

    def connection_lost(self, _error: Exception | None) -> None:
        if not self._aborted:
            self._drain()
        if self._ear >= 0:
            os.close(self._ear)
        self._on_end(self._why)
        if not self.ended.done():
            self.ended.set_result(None)

    def _drain(self) -> None:
        while True:
            try:
                data = os.read(self._ear, _READ_BYTES)
            except OSError:  # nothing is there, or nothing more after what was unread when it died
                return
            if not data:
                return
            self.data_received(data)

    def write(self, line: bytes, principal: str = "") -> None:
        """Send at the end of this turn of the loop, together with later writes of the same turn. `principal`:
        in whose turn the line is sent if others wait.
        """
        if self.is_congested:
            self._waiting.setdefault(principal, deque()).append(line)
            self._waiting_bytes.share_of(principal).count(len(line))
            return
        if not self._unsent:
            asyncio.get_running_loop().call_soon(self._flush)
        self._unsent.append(line)

    def _flush(self) -> None:
        lines, self._unsent = self._unsent, []
        if not self._transport.is_closing():  # it has died, which is not told yet
            self._transport.write(b"".join(lines))

    def pause_writing(self) -> None:
        self.is_congested = True

    def resume_writing(self) -> None:
        self.is_congested = False
        while self._waiting and not self.is_congested:
            self._transport.write(b"".join(self._take_turns()))

    def _take_turns(self) -> list[bytes]:
        """Take lines that wait, one of each principal in turn."""
        lines: list[bytes] = []
        size = 0
        while self._waiting and size < _TURN_BYTES:
            principal = next(iter(self._waiting))
            of_principal = self._waiting.pop(principal)
            lines.append(of_principal.popleft())
            size += len(lines[-1])
            self._waiting_bytes.share_of(principal).release(len(lines[-1]))
            if of_principal:
                self._waiting[principal] = of_principal  # behind the others
        return lines

    def is_blocked_for(self, principal: str) -> bool:
        """Return True if so much waits for this principal that its requests are to be refused."""
        return self.is_congested and self._waiting_bytes.share_of(principal).is_full

    def close(self) -> None:
        """End the connection."""
        self._aborted = True
        self._transport.abort()


async def keep_connected(directory: str, make: Callable[[], BrokerLink], say: Callable[[str], None]) -> None:
    """Connect, and connect again whenever the connection ends, until cancelled."""
    loop = asyncio.get_running_loop()
    delay_s = _FIRST_DELAY_S
    while True:
        try:
            _, line = await loop.create_unix_connection(make, paths.agents_socket(directory))
        except OSError:
            pass
        else:
            began = loop.time()
            try:
                await line.ended
            finally:
                line.close()
            say("the connection to the broker has ended; connecting again")
            if loop.time() - began > _MAX_DELAY_S:
                delay_s = _FIRST_DELAY_S
        await asyncio.sleep(delay_s)
        delay_s = min(delay_s * 2, _MAX_DELAY_S)
