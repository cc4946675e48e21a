"""Refuses HTTP requests that wait while no HTTP door can take them.

Owns the start of the short process that writes them: launchers and verbs keep the connections and read no
HTTP. Standard library only.

Refuses to know: what the connections carry (`carpool.http.left_connections`), when no door follows.
"""

import contextlib
import select
import subprocess
import sys
from typing import Final

from carpool.launcher.http_handover import HttpHandover

ANSWER_S: Final = 5.0
"""The process has this long. Clients that it has not answered by then see their connection end."""


def refuse_handover(
    handover: HttpHandover, environ: dict[str, str], *, is_service_managers: bool = False
) -> None:
    """Answer requests that wait in a handover which no HTTP door takes, and close it: nothing listens now.
    They wait on connections that a door has left, and on those that the kernel has taken since.
    `is_service_managers`: the service manager may have the listening socket as well, and start carpool for
    what waits there.
    """
    has_more = not is_service_managers and handover.listener >= 0 and _has_backlog(handover.listener)
    if handover.connections >= 0 or has_more:
        refuse_connections(handover.connections, environ, handover.listener if has_more else -1)
    handover.close()


def _has_backlog(listener: int) -> bool:
    """True if connections wait at this listening socket."""
    ready = select.poll()
    ready.register(listener, select.POLLIN)
    return bool(ready.poll(0))


def refuse_connections(fd: int, environ: dict[str, str], listener: int = -1) -> None:
    """Answer requests on the connections in this Unix socket as not delivered, and end the connections. -1:
    there are none. `listener`: the same for connections that wait there; -1: they go on waiting. The caller
    closes both sockets.
    """
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        subprocess.run(
            [sys.executable, "-P", "-m", "carpool.http.left_connections", str(fd), str(listener)],
            env=environ,
            pass_fds=[each for each in (fd, listener) if each >= 0],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=ANSWER_S,
            check=False,
        )
