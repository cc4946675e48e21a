"""One agent of a bench: its two descriptors, what it has open, and what is half read or half written.

Owns reads and writes that never block, and the cutting of what was read into lines.
Knows nothing of: what a line says, time, load, arms.
"""

import os
import socket

_READ_BYTES = 1 << 16
# Not more: from 128 KiB on malloc maps and unmaps memory for each read: a lone call cost twice as much.


class BenchError(Exception):
    """The bench cannot go on; the text says why and what to do next."""


class AgentDescriptors:
    """The two descriptors that an agent speaks over; closed once, together."""

    def __init__(self, read_fd: int, write_fd: int) -> None:
        self.read_fd = read_fd
        self.write_fd = write_fd
        os.set_blocking(read_fd, False)
        os.set_blocking(write_fd, False)

    @classmethod
    def of_socket(cls, sock: socket.socket) -> "AgentDescriptors":
        """Takes over the descriptor of a connected socket."""
        fd = sock.detach()
        return cls(fd, fd)

    def close(self) -> None:
        """Give both descriptors back."""
        for fd in {self.read_fd, self.write_fd} - {-1}:
            os.close(fd)
        self.read_fd = self.write_fd = -1


class BenchAgent:
    """One agent: what it has open and what it has not yet read or written."""

    __slots__ = ("chunks", "ended", "index", "next_id", "open", "out", "read_fd", "write_fd")

    def __init__(self, index: int, attachment: AgentDescriptors) -> None:
        self.index = index
        self.read_fd = attachment.read_fd
        self.write_fd = attachment.write_fd
        self.next_id = 1
        self.open: dict[int, float] = {}
        self.chunks: list[bytes] = []
        self.out = b""
        self.ended = False

    def lines(self) -> list[bytes]:
        """The whole lines of one read; empty when there is none yet or the other side has ended."""
        try:
            data = os.read(self.read_fd, _READ_BYTES)
        except BlockingIOError:
            return []
        except ConnectionError:
            data = b""
        if not data:
            self.ended = True
            return []
        if b"\n" not in data:
            self.chunks.append(data)
            return []
        if self.chunks:
            data = b"".join([*self.chunks, data])
            self.chunks.clear()
        lines = data.split(b"\n")
        rest = lines.pop()
        if rest:
            self.chunks.append(rest)
        return lines

    def write(self, data: bytes) -> None:
        """Write now what fits; the rest waits in `out` (only big bursts ever do)."""
        if self.out:
            data = self.out + data
        try:
            written = os.write(self.write_fd, data)
        except BlockingIOError:
            written = 0
        except (BrokenPipeError, ConnectionError):
            self.ended = True
            return
        self.out = data[written:] if written < len(data) else b""
