"""The messages of carpool to systemd: it is ready, it is alive, it stops (sd_notify(3)); and descriptors that
systemd keeps over a restart (systemd.service(5), FileDescriptorStoreMax) or opens for it (systemd.socket(5)).

Owns the socket and the variables of the protocols, which no process of carpool and no server gets to see. A
service manager that does not listen holds nothing up. A few lines in place of a library: the launcher uses
the standard library only.

Refuses to know: when carpool is ready, what descriptors are for, units (`cli.service`).
"""

import contextlib
import os
import select
import socket
from collections.abc import Mapping, MutableMapping
from typing import Final

SOCKET: Final = "NOTIFY_SOCKET"
WATCHDOG: Final = "WATCHDOG_USEC"
LISTEN: Final = ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES", "LISTEN_PIDFDID")
"""The variables that tell of descriptors (sd_listen_fds(3))."""
VARIABLES: Final = (SOCKET, WATCHDOG, "WATCHDOG_PID", *LISTEN)
"""The variables of the protocols."""
FIRST_FD: Final = 3
"""Descriptors begin here (sd_listen_fds(3), SD_LISTEN_FDS_START)."""
_BARRIER_S: Final = 2.0
_MOST_DIGITS: Final = 3
RESTART_STATUS: Final = 75
"""The exit code with which a service asks to be started again (`RestartForceExitStatus`)."""


class ServiceManager:
    """The service manager that has started this process, if one has."""

    def __init__(self, environ: MutableMapping[str, str]) -> None:
        """Takes the variables of the protocol out of `environ`."""
        found = {name: environ.pop(name, "") for name in VARIABLES}
        self._address = found[SOCKET]
        self._has_watchdog = bool(found[WATCHDOG])
        self._given = _given(found)

    def take_given(self) -> list[int]:
        """Return the descriptors that it gave to this process, which owns them now."""
        given, self._given = self._given, []
        for fd in given:
            os.set_inheritable(fd, False)
        return given

    @property
    def is_there(self) -> bool:
        """True if a service manager waits for what this process says."""
        return bool(self._address)

    def ready(self) -> None:
        """Tell that the service is ready."""
        self._send(b"READY=1")

    def stopping(self) -> None:
        """Tell that the service ends."""
        self._send(b"STOPPING=1")

    def alive(self) -> None:
        """Tell that the service is alive, if the unit has a watchdog. To be called at each look (`pace`)."""
        if self._has_watchdog:
            self._send(b"WATCHDOG=1")

    def store(self, name: str, fd: int) -> None:
        """Have it keep this descriptor over the next start, in place of what it keeps under this name. A unit
        without `FileDescriptorStoreMax` keeps none.
        """
        self.forget(name)
        # Without FDPOLL=0 it would drop a socket whose other end is closed, such as the left connections.
        self._send(f"FDSTORE=1\nFDNAME={name}\nFDPOLL=0".encode(), fd)

    def forget(self, name: str) -> None:
        """Have it close what it keeps under this name."""
        self._send(f"FDSTOREREMOVE=1\nFDNAME={name}".encode())

    def wait_until_read(self) -> None:
        """Wait, not long, until it has read every message: this process ends (sd_notify_barrier(3))."""
        if not self._address:
            return
        ours, its = os.pipe()
        try:
            self._send(b"BARRIER=1", its)
        finally:
            os.close(its)
        poll = select.poll()
        poll.register(ours, 0)
        poll.poll(_BARRIER_S * 1000)
        os.close(ours)

    def _send(self, state: bytes, *fds: int) -> None:
        if not self._address:
            return
        address = f"\0{self._address[1:]}" if self._address.startswith("@") else self._address
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            sock.setblocking(False)
            sock.connect(address)
            if fds:
                socket.send_fds(sock, [state], fds)
            else:
                sock.send(state)


def _given(variables: Mapping[str, str]) -> list[int]:
    """Return the descriptors that are meant for this process."""
    count = variables["LISTEN_FDS"]
    if variables["LISTEN_PID"] != str(os.getpid()) or not count.isdecimal() or len(count) > _MOST_DIGITS:
        return []
    return list(range(FIRST_FD, FIRST_FD + int(count)))


def keep_variables(source: Mapping[str, str], target: MutableMapping[str, str]) -> None:
    """Copy the variables of the protocol for the launcher that takes this process's place."""
    target.update({name: source[name] for name in VARIABLES if source.get(name)})
