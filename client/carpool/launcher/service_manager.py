"""The messages of carpool to systemd: it is ready, it is alive, it stops (sd_notify(3)).

Owns the socket and the variables of the protocol, which no process of carpool and no server gets to see. A
service manager that does not listen holds nothing up. Ten lines in place of a library: the launcher uses the
standard library only.

Refuses to know: when carpool is ready, units (`cli.service`).
"""

import contextlib
import socket
from collections.abc import Mapping, MutableMapping
from typing import Final

SOCKET: Final = "NOTIFY_SOCKET"
WATCHDOG: Final = "WATCHDOG_USEC"
VARIABLES: Final = (SOCKET, WATCHDOG, "WATCHDOG_PID")
"""The variables of the protocol."""
RESTART_STATUS: Final = 75
"""The exit code with which a service asks to be started again (`RestartForceExitStatus`)."""


class ServiceManager:
    """The service manager that has started this process, if one has."""

    def __init__(self, environ: MutableMapping[str, str]) -> None:
        """Takes the variables of the protocol out of `environ`."""
        found = {name: environ.pop(name, "") for name in VARIABLES}
        self._address = found[SOCKET]
        self._has_watchdog = bool(found[WATCHDOG])

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
        """Tell that the service is alive, if the unit has a watchdog. To be called every second."""
        if self._has_watchdog:
            self._send(b"WATCHDOG=1")

    def _send(self, state: bytes) -> None:
        if not self._address:
            return
        address = f"\0{self._address[1:]}" if self._address.startswith("@") else self._address
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            sock.setblocking(False)
            sock.sendto(state, address)


def keep_variables(source: Mapping[str, str], target: MutableMapping[str, str]) -> None:
    """Copy the variables of the protocol for the launcher that takes this process's place."""
    target.update({name: source[name] for name in VARIABLES if source.get(name)})
