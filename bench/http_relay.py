"""The least an HTTP door to a shared stdio server must cost: POSTs in, the server's lines out.

Every body is decoded once, its id is replaced, and it is passed on as a line; the answer goes back as plain
JSON on its own POST. On the same stack as carpool's door (decision 0015); what one turn of the loop brought
is one write to the server. No sessions, no eras, no header rules, no streams, no limits: a yardstick for the
bench, not a product. Run: `python http_relay.py PORT COMMAND [ARGS…]`.
"""

import asyncio
import sys
from typing import Any

import httptools
import msgspec

try:
    import uvloop as loops
except ImportError:
    loops = asyncio  # type: ignore[misc]

NONE = msgspec.Raw()
NO_CONTENT = b"HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n"
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"


class HttpRelayLine(msgspec.Struct):
    """One JSON-RPC message, its payload undecoded."""

    id: msgspec.Raw = NONE
    method: str = ""
    params: msgspec.Raw = msgspec.Raw(b"{}")
    result: msgspec.Raw = NONE
    error: msgspec.Raw = NONE


decode = msgspec.json.Decoder(HttpRelayLine).decode


class RelayedServer:
    """The one server, and who waits for which answer."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._stdin, self._stdout = process.stdin, process.stdout
        self._owed: dict[int, tuple[asyncio.WriteTransport, bytes]] = {}
        self._last = 0
        self._out: list[bytes] = []

    def send(self, transport: asyncio.WriteTransport, body: bytes) -> None:
        message = decode(body)
        if message.id == NONE:
            transport.write(NO_CONTENT)
            return
        self._last += 1
        self._owed[self._last] = transport, bytes(message.id)
        head = b'{"jsonrpc":"2.0","id":%d,"method":"%b","params":' % (self._last, message.method.encode())
        if not self._out:
            asyncio.get_running_loop().call_soon(self._flush)
        self._out.append(head + bytes(message.params) + b"}\n")

    def _flush(self) -> None:
        self._stdin.write(b"".join(self._out))
        self._out.clear()

    async def read(self) -> None:
        rest = b""
        while data := await self._stdout.read(1 << 16):
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                message = decode(line)
                transport, id_ = self._owed.pop(int(bytes(message.id)))
                key, value = (
                    (b"result", message.result) if message.error == NONE else (b"error", message.error)
                )
                answer = b'{"jsonrpc":"2.0","id":%b,"%b":%b}' % (id_, key, bytes(value))
                transport.write(HEAD % len(answer) + answer)


class RelayConnection(asyncio.Protocol):
    """One client's connection; one POST at a time."""

    def __init__(self, server: RelayedServer) -> None:
        self._server = server
        self._parser: Any = httptools.HttpRequestParser(self)
        self._body: list[bytes] = []

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        body = b"".join(self._body)
        self._body.clear()
        self._server.send(self._transport, body)


async def main(port: int, argv: list[str]) -> None:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*argv, stdin=pipe, stdout=pipe)
    server = RelayedServer(process)
    loop = asyncio.get_running_loop()
    listener = await loop.create_server(lambda: RelayConnection(server), "127.0.0.1", port, backlog=2048)
    async with listener:
        await server.read()


if __name__ == "__main__":
    loops.run(main(int(sys.argv[1]), sys.argv[2:]))
