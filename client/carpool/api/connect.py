"""The way to a broker: a connected socket, or the reason why there is none.

Owns the waits between tries and the start of carpool (`carpool up --detach`, as the shim does it). When to
start it and when to give up is `shim.resume.BrokerSearch`'s. Refuses to know what is said on the socket.
"""

import errno
import os
import socket
import subprocess
import sys

import anyio

from carpool import import_path, launcher_lock
from carpool.api.attach import AttachTarget
from carpool.errors import NotRunning
from carpool.shim.resume import STOPPED, BrokerSearch
from carpool_protocol.bootstrap import paths, peer_credentials

START_TRIES = 3
_BUSY_S = 0.02


async def connect(place: AttachTarget, *, start: bool) -> socket.socket:
    """Connect to the broker, and start carpool if it does not run (`start`). Raises `NotRunning`."""
    place.make()
    for _ in range(START_TRIES):
        try:
            return await _connect(place)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ECONNREFUSED):
                raise _not_running(f"Cannot connect to the broker: {error.strerror}.") from None
        if start:
            await _start(place)
        elif launcher_lock.holder(place.directory) is not None:
            return await reconnect(place, again=True, start=False)
        else:
            raise _not_running(
                "Carpool is not running here; start it with `carpool up --detach`.", whose="user"
            )
    raise _not_running("Carpool was started but does not stay up; see `carpool logs --daemon`.")


async def reconnect(place: AttachTarget, *, again: bool, start: bool) -> socket.socket:
    """Connect to the next broker after one has died. `again`: another process is about to start it. Raises
    `NotRunning`.
    """
    search = BrokerSearch(anyio.current_time(), again=again)
    while True:
        try:
            return await _connect(place)
        except OSError as error:
            problem = error.strerror
        now = anyio.current_time()
        pause_s = search.attempt_failed(now, led=launcher_lock.holder(place.directory) is not None)
        if pause_s is not None:
            await anyio.sleep(pause_s)
            continue
        if os.path.exists(paths.down_file(place.directory)):  # noqa: ASYNC240 - as fast as any call
            raise _not_running(f"{STOPPED[:1].upper()}{STOPPED[1:]}.", whose="user")
        if start:
            await _start(place)
        if not start or search.is_over(now):
            raise _not_running(f"Cannot connect to the broker: {problem}; see `carpool logs --daemon`.")


async def _connect(place: AttachTarget) -> socket.socket:
    """Connect once. Raises `OSError` if nobody listens, `NotRunning` if another user does."""
    while True:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.setblocking(False)
        try:
            sock.connect(paths.agents_socket(place.directory))
        except BlockingIOError:  # so many wait to be accepted
            sock.close()
            await anyio.sleep(_BUSY_S)
        except OSError:
            sock.close()
            raise
        else:
            if peer_credentials.is_ours(sock):
                return sock
            sock.close()
            raise _not_running(
                f"Nothing was said to the socket in {place.directory}: {peer_credentials.NOT_OURS}."
            )


async def _start(place: AttachTarget) -> None:
    """Run `carpool up --detach`, which waits until sessions are accepted."""
    command = [sys.executable, "-P", "-m", "carpool.launcher", "--detach", "--quiet", "--checked"]
    done = await anyio.run_process(
        command,
        env=import_path.for_children(place.environ),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        check=False,
    )
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip() or "see `carpool logs --daemon`"
        raise _not_running(f"Carpool could not be started: {said.removeprefix('carpool: ')}")


def _not_running(text: str, *, whose: str = "carpool") -> NotRunning:
    return NotRunning(text, kind="not_running", whose="user" if whose == "user" else "carpool")
