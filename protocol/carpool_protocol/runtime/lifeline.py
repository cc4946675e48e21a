"""A daemon process's end of its lifeline: the socket pair between it and the launcher.

It carries text lines. To the launcher: `ready` once; before it perhaps `note TEXT` for the user who starts
carpool; `alive` every four seconds. A broker writes `alone` in place of `alive` once sessions of an earlier
broker can no longer come back, `supervisors N` before `ready`, and `idle` when nobody has used carpool for
`idle_exit_s`. A supervisor writes `epoch EPOCH` before it starts anything. From the launcher: `stop`,
or `stop again` if carpool is started again at once; `gone NAME` (a supervisor has died); to a broker `heir …`
before anything else (docs/decisions/0019). End of file means that the launcher is dead, and then this process
ends as well: nothing is left running.

The event loop itself sends `alive`, so a loop that hangs falls silent. A launcher that does not read (it may
be stopped) never blocks this process: lines that do not fit are dropped.

Knows nothing of: what the process does, and what the launcher does with the lines.
"""

import socket
from collections.abc import Callable

import trio

from carpool_protocol.runtime.pace import IDLE_S, until_due

ALIVE_EVERY_S = IDLE_S
FIRST_LINE_S = 10.0
_LONGEST_LINE_BYTES = 4096


def first_line(fd: int) -> str:
    """The launcher's first line. Must be called before anything else reads this lifeline.

    Blocks for at most `FIRST_LINE_S`. Raises `OSError` if no line comes (`TimeoutError` is one).
    """
    received = b""
    lifeline = socket.socket(fileno=fd)
    try:
        lifeline.settimeout(FIRST_LINE_S)
        while not received.endswith(b"\n"):
            byte = lifeline.recv(1)  # one byte at a time: all after the line is for `Lifeline`
            if not byte or len(received) > _LONGEST_LINE_BYTES:
                raise OSError("the launcher said nothing on the lifeline")
            received += byte
    finally:
        lifeline.detach()
    return received[:-1].decode("utf-8", "replace")


class Lifeline:
    """The process's end of the lifeline. Owns the descriptor `fd` until `close`."""

    def __init__(self, fd: int) -> None:
        self._socket = socket.socket(fileno=fd)
        self._socket.setblocking(False)
        self._alive = b"alive\n"
        self._unsent = b""
        self._unread = b""
        self.stop_command = ""
        """The launcher's last stop command; empty: none came, or the launcher is dead."""

    def ready(self) -> None:
        """Tell the launcher that this process is in service: a broker accepts sessions, a supervisor is
        linked.
        """
        self._send(b"ready\n")

    def note(self, text: str) -> None:
        """Send one line for the user who starts carpool, although the start succeeds."""
        self._send(f"note {text}"[: _LONGEST_LINE_BYTES // 4].encode("utf-8", "replace") + b"\n")

    def announce_epoch(self, epoch: str) -> None:
        """Tell the launcher the epoch of this supervisor, by which it finds what was started in it."""
        self._send(f"epoch {epoch}\n".encode())

    def want_supervisors(self, number: int) -> None:
        """Tell the launcher how many supervisors this carpool has."""
        self._send(f"supervisors {number}\n".encode())

    def end_return_period(self) -> None:
        """Tell the launcher, with the next sign of life, that no session of an earlier broker can come back.

        The line is repeated, so a launcher that does not read now still gets it.
        """
        self._alive = b"alone\n"

    def idle(self) -> None:
        """Tell the launcher that nobody has used carpool for the configured time."""
        self._send(b"idle\n")

    async def run(self, on_stop: Callable[[], None], on_gone: Callable[[str], None]) -> None:
        """Serve the lifeline until the launcher is gone or the caller cancels.

        `on_stop` is called for each new stop command (`stop_command`), and at the launcher's death if there
        was none. After `stop` the lifeline goes on, so that a long drain does not look like a hang. `on_gone`
        gets the name of a dead supervisor. Both must not block.
        """
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._send_alive)
            stopping = False
            while (lines := await self._read()) is not None:
                for line in lines:
                    verb, _, rest = line.partition(" ")
                    if verb == "stop" and line != self.stop_command:
                        stopping = True
                        self.stop_command = line
                        on_stop()
                    elif verb == "gone":
                        on_gone(rest)
            nursery.cancel_scope.cancel()
            if not stopping:
                on_stop()

    def close(self) -> None:
        """Close the descriptor. The launcher sees end of file."""
        self._socket.close()

    async def _send_alive(self) -> None:
        while True:
            self._send(self._alive)
            await trio.sleep(until_due(ALIVE_EVERY_S))

    def _send(self, line: bytes) -> None:
        # Only a half line must be completed. A whole line that does not fit may be dropped.
        if self._unsent:
            self._unsent = self._unsent[self._push(self._unsent) :]
        if not self._unsent:
            sent = self._push(line)
            self._unsent = line[sent:] if sent else b""

    def _push(self, data: bytes) -> int:
        try:
            return self._socket.send(data)
        except BlockingIOError:
            return 0
        except OSError:  # the launcher is gone: `_read` sees it too and ends the process
            return len(data)

    async def _read(self) -> list[str] | None:
        """The next whole lines, possibly none. None: the launcher is gone."""
        await trio.lowlevel.wait_readable(self._socket)
        try:
            data = self._socket.recv(4096)
        except BlockingIOError:
            return []
        except OSError:
            data = b""
        if not data:
            return None
        *lines, self._unread = (self._unread + data).split(b"\n")
        self._unread = self._unread[-_LONGEST_LINE_BYTES:]
        return [line.decode("utf-8", "replace") for line in lines]
