"""An agent over HTTP (handshake era) as two streams of lines, for `tests.kit.line_agent.Agent`.

What is sent line by line is POSTed, each message on a connection of its own; every message that comes back,
as JSON or on a stream of events, comes out as one line. A POST that finds no door, or whose connection ends
without its answer, is counted (`cut`), one with another status than 2xx is kept (`refused`). Knows nothing of
daemons, nor what a message means beyond `initialize` (the session id is in the headers of its answer).
"""

import json
from contextlib import suppress
from urllib.parse import urlsplit

import trio
import trio.testing

_HEAD_END = b"\r\n\r\n"
_LAST_CHUNK = b"0\r\n\r\n"


class HttpLines(trio.abc.SendStream):
    """One agent's way in. `run` it in a nursery; `up` is what it sends, `down` what it hears."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.session = ""
        self.cut = 0
        self.refused: list[int] = []
        self._send, self.down = trio.testing.memory_stream_one_way_pair()
        self._nursery: trio.Nursery | None = None
        self._greeted = trio.Event()
        self._rest = b""
        self._turn = trio.Lock()
        self._halves: list[trio.SocketStream] = []

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """POST what is now a whole line; keep the rest."""
        *whole, self._rest = (self._rest + data).split(b"\n")
        for line in whole:
            await self._post(line)

    async def wait_send_all_might_not_block(self) -> None:
        """Every message has a connection of its own."""

    async def aclose(self) -> None:
        """Cut every connection."""
        if self._nursery is not None:
            self._nursery.cancel_scope.cancel()
        for stream in self._halves:
            await trio.aclose_forcefully(stream)
        await self._send.aclose()

    async def run(self) -> None:
        """Until `aclose`."""
        async with trio.open_nursery() as self._nursery:
            await trio.sleep_forever()

    async def leave(self) -> None:
        """End the session, if there is one, and hear that it has ended."""
        if self.session:
            stream, data = await self._connected(b"", "DELETE")
            async with stream:
                await stream.send_all(data)
                while await stream.receive_some(1 << 16):
                    pass

    # --- one exchange ----------------------------------------------------------------------------------

    async def half(self, line: bytes) -> "Half":
        """Half of a POST; the rest is sent by `Half.finish`."""
        stream, data = await self._connected(line)
        self._halves.append(stream)
        cut = len(data) - len(line) // 2
        await stream.send_all(data[:cut])
        return Half(self, stream, data[cut:])

    async def _post(self, line: bytes) -> None:
        first = b'"initialize"' in line
        if not first:
            await self._greeted.wait()  # the others need the session's id
        try:
            stream, data = await self._connected(line)
            await stream.send_all(data)
        except (OSError, trio.BrokenResourceError):  # nobody listens there
            self.cut += 1
        else:
            self.listen(stream)

    def listen(self, stream: trio.SocketStream) -> None:
        """Hear what comes back on this connection."""
        assert self._nursery is not None
        self._nursery.start_soon(self._hear, stream)

    async def _connected(self, body: bytes, method: str = "POST") -> tuple[trio.SocketStream, bytes]:
        parts = urlsplit(self.url)
        assert parts.hostname is not None
        assert parts.port is not None
        stream = await trio.open_tcp_stream(parts.hostname, parts.port)
        session = f"Mcp-Session-Id: {self.session}\r\n" if self.session else ""
        head = (
            f"{method} {parts.path} HTTP/1.1\r\nHost: {parts.netloc}\r\nConnection: close\r\n{session}"
            "Content-Type: application/json\r\nAccept: application/json, text/event-stream\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        return stream, head.encode() + body

    async def _hear(self, stream: trio.SocketStream) -> None:
        data, said, ended = b"", 0, False
        async with stream:
            with suppress(trio.BrokenResourceError):
                while part := await stream.receive_some(1 << 16):
                    data += part
                    head, found, body = data.partition(_HEAD_END)
                    if found:
                        said += await self._heard(head, body, said)
                ended = True
        head, _, body = data.partition(_HEAD_END)
        if b"chunked" in head.lower() and not body.endswith(_LAST_CHUNK):
            ended = False
        status = int(head.split()[1]) if head else 0
        if status and status // 100 != 2:
            self.refused.append(status)
        elif not ended or (status != 202 and not said):
            self.cut += 1

    async def _heard(self, head: bytes, body: bytes, said: int) -> int:
        """Pass on what is whole and new; how many messages."""
        headers = {
            name.strip().lower(): value.strip()
            for name, _, value in (line.partition(":") for line in head.decode().split("\r\n")[1:])
        }
        if found := headers.get("mcp-session-id"):
            self.session = found
            self._greeted.set()
        if headers.get("transfer-encoding") == "chunked":
            body = _unchunked(body)
        elif len(body) < int(headers.get("content-length", "0")):
            return 0
        if headers.get("content-type", "").startswith("text/event-stream"):
            *events, _ = body.replace(b"\r\n", b"\n").split(b"\n\n")
            messages = [
                line.removeprefix(b"data:").strip()
                for event in events
                for line in event.split(b"\n")
                if line.startswith(b"data:") and line.removeprefix(b"data:").strip()
            ]
        else:
            messages = [body.strip()] if body.strip() else []
        for message in messages[said:]:
            # One line a message: what the door writes has no line end inside.
            json.loads(message)
            async with self._turn:
                await self._send.send_all(message + b"\n")
        return len(messages) - said


class Half:
    """A POST of which half is sent."""

    def __init__(self, lines: HttpLines, stream: trio.SocketStream, rest: bytes) -> None:
        self._lines, self._stream, self._rest = lines, stream, rest

    async def finish(self) -> None:
        """Send the rest; where the door has gone it is cut."""
        try:
            await self._stream.send_all(self._rest)
        except trio.BrokenResourceError:
            self._lines.cut += 1
            await self._stream.aclose()
        else:
            self._lines.listen(self._stream)


def _unchunked(body: bytes) -> bytes:
    """The chunks that are whole."""
    whole = b""
    while True:
        size, found, rest = body.partition(b"\r\n")
        if not found or not size or len(rest) < (length := int(size, 16)) + 2 or not length:
            return whole
        whole, body = whole + rest[:length], rest[length + 2 :]
