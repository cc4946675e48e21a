"""A broker that a test plays by hand: it accepts, hears, says and dies when it is told to. In a thread.

`play(client, script)` runs an agent in this process's event loop against a script in a thread. Every wait is
bounded; what goes wrong in the script fails the test. Knows nothing of MCP.
"""

import json
import socket
import tempfile
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, BinaryIO

import anyio

from carpool.api import Carpool
from carpool_protocol.bootstrap import paths
from carpool_protocol.bootstrap.carrier_contract import name_of
from carpool_protocol.carrier.attach_line import Settled, settled_line

Json = dict[str, Any]
LIMIT_S = 20.0


class ScriptedBroker:
    """Where agents come to. One after the other: `accept` waits for the next one."""

    def __init__(self, directory: str) -> None:
        self._path = paths.agents_socket(directory)
        self._listener: socket.socket | None = None
        self.heard: list[Json] = []
        """Every message of the connection that is open, without the attach line."""
        self.names: list[int] = []
        """Of the agent's lines on the connection that is open (`carrier_contract`), in their order."""
        self.hello: Json = {}
        """Params of the last attach line."""
        self.open()

    def open(self) -> None:
        """Listen."""
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.settimeout(LIMIT_S)
        self._listener.bind(self._path)
        self._listener.listen(8)

    def shut(self) -> None:
        """Listen no more."""
        if self._listener is not None:
            self._listener.close()
            Path(self._path).unlink()
        self._listener = None

    def accept(self, *, env: tuple[str, ...] = (), session: str = "s1", greet: bool = True) -> None:
        """The next connection; says yes to it."""
        assert self._listener is not None
        self._socket, _ = self._listener.accept()
        self._socket.settimeout(LIMIT_S)
        self._lines: BinaryIO = self._socket.makefile("rb")
        self.heard = []
        self.hello = self.hear()["params"]
        self.heard, self.names = [], []
        if greet:
            params = {"version": 1, "session": session, "env": env, "secret": "0.x", "supervisor": "e1"}
            self.tell("carpool/attached", params)

    def greeted(self, **how: Any) -> None:
        """`accept`, and the handshake of MCP."""
        self.accept(**how)
        self.answer(self.expect("initialize"), {"protocolVersion": "2025-11-25", "instructions": "Hello."})
        self.expect("notifications/initialized")

    def hear(self) -> Json:
        """The next message."""
        line = self._lines.readline()
        assert line.endswith(b"\n"), f"the agent has gone; heard: {self.heard}"
        message: Json = json.loads(line)
        self.heard.append(message)
        if not str(message.get("method")).startswith("carpool/"):
            self.names.append(name_of(line[:-1]))
        return message

    def expect(self, method: str) -> Json:
        """The next message, which is one of this method."""
        message = self.hear()
        assert message.get("method") == method, message
        return message

    def write(self, data: bytes) -> None:
        self._socket.sendall(data)

    def say(self, message: Json) -> None:
        self.write(json.dumps({"jsonrpc": "2.0", **message}, separators=(",", ":")).encode() + b"\n")

    def tell(self, method: str, params: Json) -> None:
        self.say({"method": method, "params": params})

    def answer(self, request: Json, result: Any) -> None:
        self.say({"id": request["id"], "result": result})

    def text(self, request: Json, text: str) -> None:
        """Answer a call with a text."""
        self.answer(request, {"content": [{"type": "text", "text": text}]})

    def settle(self, up: int, *, open: list[int], kept: list[int]) -> None:  # noqa: A002 - its name
        """Say how far things are: lines by their numbers, from 1."""
        is_open, is_kept = [[self.names[number - 1] for number in lines] for lines in (open, kept)]
        self.write(settled_line(Settled("e1", self.names[up - 1], 1, is_open, is_kept, [], [])))

    def take_off(self) -> tuple[socket.socket, BinaryIO]:
        """The connection, for later: another one comes meanwhile."""
        return self._socket, self._lines

    def put_on(self, taken: tuple[socket.socket, BinaryIO]) -> None:
        """Go on with this one."""
        self._socket, self._lines = taken

    def die(self) -> None:
        """Close, without a word."""
        self._lines.close()
        self._socket.close()

    def until_gone(self) -> None:
        """The agent closes; what it says before counts as heard."""
        for line in self._lines:
            self.heard.append(json.loads(line))
        self.die()


def play(
    backend: str,
    client: Callable[[str], Awaitable[None]],
    script: Callable[[ScriptedBroker], None],
) -> None:
    """Run both to their ends. `client` gets the runtime directory."""
    # Not pytest's tmp_path: a socket's path is at most 103 bytes long.
    with tempfile.TemporaryDirectory(prefix="cpd-", dir="/tmp") as directory:
        desk = ScriptedBroker(directory)
        failed: list[BaseException] = []

        def perform() -> None:
            try:
                script(desk)
            except BaseException as error:  # noqa: BLE001 - raised again below
                failed.append(error)
                desk.die()
            finally:
                desk.shut()

        async def limited() -> None:
            with anyio.fail_after(LIMIT_S):
                await client(directory)

        thread = threading.Thread(target=perform)
        thread.start()
        try:
            anyio.run(limited, backend=backend)
        finally:
            thread.join(LIMIT_S)
            if failed:
                raise failed[0]
        assert not thread.is_alive()


async def happened(event: threading.Event) -> None:
    """Return once the script has set it. Bounded by `play`."""
    while not event.is_set():  # noqa: ASYNC110  # a thread sets it
        await anyio.sleep(0.01)


def carpool(directory: str, **settings: Any) -> Carpool:
    """An agent that finds only this desk."""
    return Carpool(runtime_dir=directory, start=False, **{"cwd": directory, **settings})
