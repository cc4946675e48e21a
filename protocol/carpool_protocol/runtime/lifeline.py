"""A daemon process's end of its lifeline: the socket pair between it and the launcher.

Text lines. To the launcher: `ready` once, before it perhaps `note TEXT`, which is for whoever starts carpool;
`alive` every second; of a broker to which no session of an earlier
one may come back any more, `end_return_period` in its place. From it: `stop`, or
`stop again` where carpool is started again at once; `gone NAME` (a supervisor has died); to a broker
`heir …` before anything else (docs/decisions/0019). End of file means that the launcher is dead,
and then this process ends as well: nothing is left running.

`alive` is sent by the event loop itself, so a loop that hangs falls silent.
A launcher that does not read (it may be stopped) never blocks us: what does not
fit is not sent.
"""

import socket
from collections.abc import Callable

import trio

ALIVE_EVERY_S = 1.0
FIRST_LINE_S = 10.0
_LONGEST_LINE_BYTES = 4096


def first_line(fd: int) -> str:
    """The launcher's first line, before anything else is read of this lifeline. Blocks, but not for long.

    Raises `OSError` where none comes (`TimeoutError` is one).
    """
    said = b""
    lifeline = socket.socket(fileno=fd)
    try:
        lifeline.settimeout(FIRST_LINE_S)
        while not said.endswith(b"\n"):
            byte = lifeline.recv(1)  # not one more: the rest is for `Lifeline`
            if not byte or len(said) > _LONGEST_LINE_BYTES:
                raise OSError("the launcher said nothing on the lifeline")
            said += byte
    finally:
        lifeline.detach()
    return said[:-1].decode("utf-8", "replace")


class Lifeline:
    """The child's end. Owns the descriptor `fd` from construction on; `close` gives it back."""

    def __init__(self, fd: int) -> None:
        self._socket = socket.socket(fileno=fd)
        self._socket.setblocking(False)
        self._alive = b"alive\n"
        self._unsent = b""
        self._unread = b""
        self.stop_word = ""
        """What the launcher said when it said stop; empty: it has not, or it is dead."""

    def ready(self) -> None:
        """Say that this process does its work now: a broker takes sessions, a supervisor is linked."""
        self._send(b"ready\n")

    def note(self, text: str) -> None:
        """One line that whoever starts carpool is to read, though it starts."""
        self._send(f"note {text}"[: _LONGEST_LINE_BYTES // 4].encode("utf-8", "replace") + b"\n")

    def end_return_period(self) -> None:
        """Say so from the next second on, each time: a launcher that does not read now will hear it."""
        self._alive = b"alone\n"

    async def run(self, on_stop: Callable[[], None], on_gone: Callable[[str], None]) -> None:
        """Serve the lifeline until the launcher is gone or the caller cancels.

        `on_stop` is called for each new word of the launcher's for it (`stop_word`), or at its death if there
        was none. After `stop` the lifeline is kept up, so that a long drain is not taken for silence.
        `on_gone` gets the name of a dead supervisor. Both must not block.
        """
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._send_alive)
            stopping = False
            while (lines := await self._read()) is not None:
                for line in lines:
                    verb, _, rest = line.partition(" ")
                    if verb == "stop" and line != self.stop_word:
                        stopping = True
                        self.stop_word = line
                        on_stop()
                    elif verb == "gone":
                        on_gone(rest)
            nursery.cancel_scope.cancel()
            if not stopping:
                on_stop()

    def close(self) -> None:
        """Give the descriptor back. The launcher sees end of file."""
        self._socket.close()

    async def _send_alive(self) -> None:
        while True:
            self._send(self._alive)
            await trio.sleep(ALIVE_EVERY_S)

    def _send(self, line: bytes) -> None:
        # Only a half line must be completed; a whole one that does not fit is old news later.
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
        except OSError:  # the launcher is gone: the reader sees it too, and ends us
            return len(data)

    async def _read(self) -> list[str] | None:
        """The next whole lines, maybe none yet. `None`: the launcher is gone."""
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
