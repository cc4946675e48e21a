"""A network namespace that has loopback alone, for agent programs that must not reach the network.

`Loopback` holds one keeper process in the namespace. `prefix` goes in front of each command that shall run
there, and `listen` makes a socket in there that this process serves. Where the system gives no namespace,
`isolated` is false, the prefix is empty and the sockets are on this machine's loopback.

Knows nothing of: programs, models.
"""

import shutil
import socket
import subprocess
import sys
from types import TracebackType
from typing import Final, Self

_KEEPER: Final = r"""
import array, ctypes, fcntl, os, socket, struct, sys
door = socket.socket(fileno=0)
uid, gid = os.geteuid(), os.getegid()
libc = ctypes.CDLL(None, use_errno=True)
NEWUSER, NEWNET = 0x10000000, 0x40000000
own = uid != 0 or libc.unshare(NEWNET) != 0
if own:
    if libc.unshare(NEWUSER | NEWNET) != 0:
        sys.exit("no namespace")
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)
with socket.socket() as probe:
    SIOCGIFFLAGS, SIOCSIFFLAGS, UP = 0x8913, 0x8914, 1
    flags = struct.unpack("16sh", fcntl.ioctl(probe, SIOCGIFFLAGS, struct.pack("16sh", b"lo", 0)))[1]
    fcntl.ioctl(probe, SIOCSIFFLAGS, struct.pack("16sh", b"lo", flags | UP))
door.send(b"user" if own else b"net")
while door.recv(16):
    with socket.create_server(("127.0.0.1", 0), backlog=64) as made:
        socket.send_fds(door, [b"socket"], [made.fileno()])
"""


class Loopback:
    """One namespace, as a context manager; at its end the keeper is gone."""

    def __init__(self) -> None:
        self.isolated = False
        self.prefix: list[str] = []
        self._keeper: subprocess.Popen[bytes] | None = None
        self._door: socket.socket | None = None

    def __enter__(self) -> Self:
        nsenter = shutil.which("nsenter")
        if not sys.platform.startswith("linux") or nsenter is None:
            return self
        here, there = socket.socketpair()
        with there:
            self._keeper = subprocess.Popen(
                [sys.executable, "-S", "-E", "-c", _KEEPER], stdin=there.fileno(), stderr=subprocess.DEVNULL
            )
        self._door = here
        said = here.recv(16)
        if said:
            spaces = ["--user", "--preserve-credentials"] if said == b"user" else []
            prefix = [nsenter, "--target", str(self._keeper.pid), *spaces, "--net", "--"]
            self.isolated = (
                subprocess.run([*prefix, "true"], capture_output=True, check=False).returncode == 0
            )
            self.prefix = prefix if self.isolated else []
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._door is not None:
            self._door.close()
        if self._keeper is not None:
            self._keeper.wait(timeout=30)

    def listen(self) -> socket.socket:
        """A listening socket on 127.0.0.1 in the namespace."""
        if not self.isolated or self._door is None:
            return socket.create_server(("127.0.0.1", 0), backlog=64)
        self._door.send(b"socket")
        _, fds, _, _ = socket.recv_fds(self._door, 16, 1)
        return socket.socket(fileno=fds[0])

    def interfaces(self) -> list[str]:
        """The interfaces that a process in the namespace sees."""
        done = subprocess.run(
            [*self.prefix, "cat", "/proc/net/dev"], capture_output=True, text=True, check=True
        )
        return [line.partition(":")[0].strip() for line in done.stdout.splitlines()[2:]]
