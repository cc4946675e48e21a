"""A NATS server that carpool runs itself (`"url": "new"`), on this machine, for trials and small clusters.

Owns its process, its address and its password. It listens on 127.0.0.1 with a password that is made once per
runtime directory, keeps its streams in memory, and ends with the process that started it.

Needs the extra `cluster` (the server's binary) or `nats-server` in the PATH. Knows nothing of: nodes,
subjects.
"""

import asyncio
import contextlib
import ctypes
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
from typing import Final

from carpool.cluster.links.link import LinkError
from carpool_protocol.bootstrap.extras import install_command
from carpool_protocol.files import private_files

_READY_S: Final = 10.0
_PARENT_DEATH: Final = 1
"""PR_SET_PDEATHSIG of Linux."""


class EmbeddedNats:
    """One NATS server. `directory`: where its configuration is kept, for this user alone."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._process: subprocess.Popen[bytes] | None = None
        self.url = ""
        """The address with the password."""

    @property
    def pid(self) -> int:
        """The server's process; 0 if it does not run."""
        return self._process.pid if self._process is not None else 0

    async def start(self) -> None:
        """Start the server, and wait until it answers. Raises `LinkError`."""
        await self._wait_until_it_listens(self.launch())

    def launch(self) -> int:
        """Start the server and return its port. The calling thread must live as long as the server."""
        port, token = self._address()
        os.makedirs(self._directory, mode=0o700, exist_ok=True)
        path = os.path.join(self._directory, "nats.conf")
        store = os.path.join(self._directory, "store")
        private_files.replace(
            path,
            f'listen: "127.0.0.1:{port}"\nauthorization {{ token: "{token}" }}\n'
            f"jetstream {{ store_dir: {_quoted(store)}, max_file: 0, max_mem: 64M }}\n"
            "max_payload: 1MB\nlogtime: false\n".encode(),
        )
        self._process = _spawn([_find_binary(), "-c", path])
        self.url = f"nats://{token}@127.0.0.1:{port}"
        return port

    def _address(self) -> tuple[int, str]:
        """Return the port and the password of the last start, or new ones."""
        path = os.path.join(self._directory, "address")
        with contextlib.suppress(OSError, ValueError):
            with open(path, encoding="ascii") as file:
                port, token = file.read().split()
            return int(port), token
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port_found: int = probe.getsockname()[1]
        token = secrets.token_hex(16)
        os.makedirs(self._directory, mode=0o700, exist_ok=True)
        private_files.replace(path, f"{port_found} {token}\n".encode())
        return port_found, token

    async def _wait_until_it_listens(self, port: int) -> None:
        async with asyncio.timeout(_READY_S):
            while True:
                assert self._process is not None
                if self._process.poll() is not None:
                    with contextlib.suppress(OSError):  # the next start takes another port
                        os.unlink(os.path.join(self._directory, "address"))
                    raise LinkError("the NATS server that carpool started ended at once: is its port taken?")
                with contextlib.suppress(OSError):
                    _, writer = await asyncio.open_connection("127.0.0.1", port)
                    writer.close()
                    return
                await asyncio.sleep(0.05)

    def is_running(self) -> bool:
        """True if the process runs."""
        return self._process is not None and self._process.poll() is None

    def kill(self) -> None:
        """End the server with SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def stop(self) -> None:
        """End the server."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(3.0)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()


def _find_binary() -> str:
    beside = os.path.join(os.path.dirname(sys.executable), "nats-server")
    found = beside if os.access(beside, os.X_OK) else shutil.which("nats-server")
    if found is None:
        raise LinkError(
            f"there is no nats-server: `{install_command('cluster')}`, or name the URL of a NATS server"
        )
    return found


def _spawn(command: list[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        preexec_fn=_die_with_parent if sys.platform == "linux" else None,  # noqa: PLW1509 - no thread holds a lock
        process_group=0,
    )


def _quoted(path: str) -> str:
    return '"' + path.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PARENT_DEATH, signal.SIGKILL)
