"""The answers to requests that wait for an HTTP door while none can take them.

Owns the start of the short process that writes them: the launcher keeps the connections and reads no HTTP.
Standard library only.

Refuses to know: what the connections carry (`carpool.http.left_connections`), when no door follows.
"""

import contextlib
import subprocess
import sys
from typing import Final

ANSWER_S: Final = 5.0
"""The process has this long. Clients that it has not answered by then see their connection end."""


def refuse_connections(fd: int, environ: dict[str, str]) -> None:
    """Answer requests on the connections in this Unix socket as not delivered, and end the connections. The
    caller closes the socket.
    """
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        subprocess.run(
            [sys.executable, "-P", "-m", "carpool.http.left_connections", str(fd)],
            env=environ,
            pass_fds=[fd],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=ANSWER_S,
            check=False,
        )
