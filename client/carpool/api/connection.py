"""An agent's way to the broker that outlives brokers: lines out, lines in, and the socket under them.

Owns the socket, its two tasks and what happens when the broker dies (docs/decisions/0019): what is unsettled
is kept, the next broker is found and told. Invariants: a line reaches us whole or not at all; after the end
(`ended`) nothing comes any more, and `on_end` was called once. A session is lost where the shim would end.

Refuses to know what lines mean.
"""

import socket
from collections.abc import Callable
from contextlib import suppress

import anyio

from carpool.api.attach import AttachTarget, BrokerAttachment
from carpool.api.connect import connect, reconnect
from carpool.errors import BadCall, CarpoolError, NotRunning
from carpool.shim.kept_lines import KeptLines
from carpool.shim.resume import read_farewell, resume
from carpool.shim.shim import DEATHS

READ_BYTES = 1 << 18
OUT_BYTES = 4 << 20
"""Beyond this many unwritten bytes requests wait. Answers and cancels never wait, because they
free memory.
"""


class BrokerConnection:
    """One session's connection. `take` gets each line; `on_end` gets the reason of the end. `keeps`: it
    returns after the death of a broker, as `hello` says. `on_read` gets the size of the unfinished line after
    each read.
    """

    def __init__(
        self,
        place: AttachTarget,
        hello: bytes,
        *,
        start: bool,
        keeps: bool,
        take: Callable[[bytes], None],
        on_end: Callable[[CarpoolError], None],
        on_read: Callable[[int], None] = lambda _: None,
    ) -> None:
        self.ended: CarpoolError | None = None
        self.session = ""
        """The session's public id, as in `carpool status`."""
        self._place = place
        self._hello = hello
        self._start = start
        self._keeps = keeps
        self._on_line = take
        self._on_end = on_end
        self._on_read = on_read
        self._kept = KeptLines()
        self._socket: socket.socket | None = None
        self._attachment = BrokerAttachment(self._kept, hello, place.variables)
        self._kick = anyio.Event()
        """Set when there is something to write, or a socket to write to."""
        self._room = anyio.Event()
        self._may_read = anyio.Event()
        self._may_read.set()

    async def open(self) -> None:
        """Connect. Raises `NotRunning`."""
        self._socket = await connect(self._place, start=self._start)

    def send_line(self, line: bytes, *, alone: bool = False) -> None:
        """Send a line, with its end; after the session's end it is dropped. `alone`: no other lines are
        expected, so it is written at once; otherwise all lines of one turn of the event loop are written
        together.
        """
        if self.ended is None:
            self._attachment.send_line(line)
            if alone:
                self._write_now()
            if self._attachment.out:
                self._kick.set()

    @property
    def has_room(self) -> bool:
        """True if a broker is connected and reads."""
        return self._socket is not None and len(self._attachment.out) <= OUT_BYTES

    async def wait_for_room(self) -> None:
        """Wait while no broker is connected, or while it does not read."""
        while self.ended is None and not self.has_room:
            await self._room.wait()

    def set_reading(self, *, on: bool) -> None:
        """Read on, or read nothing: then the broker waits with what it sends."""
        if on and not self._may_read.is_set():
            self._may_read.set()
        elif not on and self._may_read.is_set():
            self._may_read = anyio.Event()

    def close(self) -> None:
        """Close the connection: the broker cancels open requests."""
        self._write_now()  # a cancel, an answer
        self._end(NotRunning("This session was closed.", kind="not_running", whose="caller"))

    async def run(self) -> None:
        """Read, and reconnect to the next broker, until the session is over."""
        deaths = 0
        while self._socket is not None:
            await self._read(self._socket)
            if self.ended is not None:
                return
            last = self._attachment
            self._disconnect()
            deaths = 0 if self._kept.has_told else deaths + 1
            error = self._broker_lost(last, deaths)
            text, again = read_farewell(last.farewell)
            if error is None and text and not again:
                error = NotRunning(_sentence(text), kind="not_running", whose="user")
            if error is None:
                try:
                    found = await reconnect(self._place, again=again, start=self._start)
                except NotRunning as gone:
                    error = gone
                else:
                    self._resume(found, last, again=again)
            if error is not None:
                self._end(error)

    def _broker_lost(self, last: BrokerAttachment, deaths: int) -> CarpoolError | None:
        if last.refusal:
            which = NotRunning if self.session else BadCall
            return which(_sentence(last.refusal), kind="attach_refused", whose="caller")
        if not self._keeps:
            return NotRunning("The broker has gone away.", kind="not_running")
        if self._kept.is_full or deaths > DEATHS:
            why = (
                "more was open than is kept for that"
                if self._kept.is_full
                else "those before it died as well"
            )
            return NotRunning(
                f"The broker has gone away, and {why}; see `carpool logs --daemon`.", kind="not_running"
            )
        return None

    def _resume(self, found: socket.socket, last: BrokerAttachment, *, again: bool) -> None:
        # Nothing is awaited here: what is said meanwhile would be said twice, or never.
        first = resume(self._kept, self._hello, again=again, untaken_bytes=last.unread_by_broker_bytes())
        self._attachment = BrokerAttachment(self._kept, first, self._place.variables)
        self._socket = found
        self._kick.set()

    async def _read(self, sock: socket.socket) -> None:
        """Read until the end of file."""
        attachment = self._attachment
        while True:
            try:
                if not self._may_read.is_set():
                    await self._may_read.wait()
                await anyio.wait_readable(sock)
                data = sock.recv(READ_BYTES)
            except (BlockingIOError, InterruptedError):
                continue
            except (OSError, anyio.ClosedResourceError):
                return
            if not data:
                return
            for line in attachment.feed(data):
                self._on_line(line)
            self._on_read(attachment.half_bytes)
            if attachment.attached is not None:
                self.session = attachment.attached.session
            if attachment.out:  # the broker asked for variables
                self._kick.set()

    def _write_now(self) -> None:
        """Write what the socket takes without waiting."""
        if self._socket is not None and self._attachment.out:
            with suppress(OSError):
                self._attachment.bytes_written(self._socket.send(self._attachment.out))

    async def write(self) -> None:
        """Write what is there to be written."""
        while True:
            await self._kick.wait()
            self._kick = anyio.Event()
            sock = self._socket
            if sock is not None:
                await self._write(sock, self._attachment)

    async def _write(self, sock: socket.socket, attachment: BrokerAttachment) -> None:
        while attachment.out and self._socket is sock:
            try:
                attachment.bytes_written(sock.send(attachment.out))
            except (BlockingIOError, InterruptedError):
                try:
                    await anyio.wait_writable(sock)
                except (OSError, anyio.ClosedResourceError):
                    return
            except OSError:
                return  # it takes nothing any more; what it has said is still to be read
            else:
                if len(attachment.out) <= OUT_BYTES:
                    self._make_room()

    def _make_room(self) -> None:
        self._room.set()
        self._room = anyio.Event()

    def _disconnect(self) -> None:
        sock, self._socket = self._socket, None
        if sock is not None:
            anyio.notify_closing(sock)
            sock.close()

    def _end(self, error: CarpoolError) -> None:
        self._disconnect()
        if self.ended is None:
            self.ended = error
            self._make_room()
            self._on_end(error)


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}{'' if text.endswith(('.', '!', '?')) else '.'}"
