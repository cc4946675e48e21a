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

import msgspec
from msgspec import Struct

from carpool.cluster.links.link import LinkError
from carpool_protocol.bootstrap.extras import install_command
from carpool_protocol.files import private_files

_READY_S: Final = 10.0
_GREETING_S: Final = 1.0
"""A NATS server speaks first; another program at the port may say nothing."""
NO_ANSWER: Final = f"it does not answer within {_READY_S:.0f} s"
_PARENT_DEATH: Final = 1
"""PR_SET_PDEATHSIG of Linux."""


class _Greeting(Struct):
    """The first line of a NATS server (NATS client protocol, INFO)."""

    server_name: str = ""


class EmbeddedNats:
    """One NATS server. `directory`: where its configuration is kept, for this user alone."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._address_file = os.path.join(directory, "address")
        self._process: subprocess.Popen[bytes] | None = None
        self._server_name = ""
        """Names this start of the server: another program may listen at its port."""
        self.url = ""
        """The address with the password."""

    @property
    def pid(self) -> int:
        """The server's process; 0 if it does not run."""
        return self._process.pid if self._process is not None else 0

    async def start(self) -> None:
        """Start the server, at another port if that of the last start is taken, and wait until it answers. It
        keeps its password. Raises `LinkError`, or `TimeoutError` if it does not answer.
        """
        try:
            await self.start_again()
        except LinkError:
            port, password = self._address()
            if _is_taken(port):
                self._write_address(_free_port(), password)
            await self.start_again()

    async def start_again(self) -> None:
        """Start the server at the address that it had, and wait until it answers. Raises as `start`."""
        await self._wait_until_it_listens(self.launch())

    def launch(self) -> int:
        """Start the server and return its port. The calling thread must live as long as the server."""
        port, token = self._address()
        os.makedirs(self._directory, mode=0o700, exist_ok=True)
        path = os.path.join(self._directory, "nats.conf")
        store = os.path.join(self._directory, "store")
        self._server_name = f"carpool-{secrets.token_hex(8)}"
        private_files.replace(
            path,
            f'server_name: "{self._server_name}"\nlisten: "127.0.0.1:{port}"\n'
            f'authorization {{ token: "{token}" }}\n'
            f"jetstream {{ store_dir: {_quoted(store)}, max_file: 0, max_mem: 64M }}\n"
            "max_payload: 1MB\nlogtime: false\n".encode(),
        )
        self._process = _spawn([_find_binary(), "-c", path])
        self.url = f"nats://{token}@127.0.0.1:{port}"
        return port

    def _address(self) -> tuple[int, str]:
        """Return the port and the password of the last start, or new ones."""
        with contextlib.suppress(OSError, ValueError):
            with open(self._address_file, encoding="ascii") as file:
                port, token = file.read().split()
            return int(port), token
        found, token = _free_port(), secrets.token_hex(16)
        self._write_address(found, token)
        return found, token

    def _write_address(self, port: int, token: str) -> None:
        os.makedirs(self._directory, mode=0o700, exist_ok=True)
        private_files.replace(self._address_file, f"{port} {token}\n".encode())

    async def _wait_until_it_listens(self, port: int) -> None:
        async with asyncio.timeout(_READY_S):
            while True:
                assert self._process is not None
                if self._process.poll() is not None:
                    raise LinkError("the NATS server that carpool started ended at once: is its port taken?")
                if await _server_name(port) == self._server_name:
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


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        found: int = probe.getsockname()[1]
    return found


def _is_taken(port: int) -> bool:
    """True if another program listens at this port."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return True
    return False


async def _server_name(port: int) -> str:
    """Return the name of the NATS server that listens at this port; empty: none answers."""
    with contextlib.suppress(OSError, TimeoutError, ValueError, msgspec.MsgspecError):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            async with asyncio.timeout(_GREETING_S):
                greeting = await reader.readline()
        finally:
            writer.close()
        return msgspec.json.decode(greeting.removeprefix(b"INFO "), type=_Greeting).server_name
    return ""


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
