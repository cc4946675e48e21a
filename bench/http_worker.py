"""HTTP workers that never repeat a connection or a request, and a count of what each request came to.

Half of them work in sessions of the handshake era, the others are stateless; of each half, every second one
uses one connection for everything and the others a new one for each request. Plain sockets in place of an
HTTP library: those repeat requests by themselves.

Knows nothing of: what happens to carpool meanwhile.
"""

import asyncio
import json
import time
from collections import Counter
from typing import Any, Final, NamedTuple

VERSION: Final = "2026-07-28"
META: Final = {
    "io.modelcontextprotocol/protocolVersion": VERSION,
    "io.modelcontextprotocol/clientCapabilities": {},
}
GREETING: Final = {
    "protocolVersion": "2025-11-25",
    "capabilities": {},
    "clientInfo": {"name": "w", "version": "1"},
}
LIMIT_S: Final = 120.0
"""A request without an answer for so long has none."""


class HttpAnswer(NamedTuple):
    """One HTTP answer."""

    status: int
    headers: dict[str, str]
    body: bytes

    def message(self) -> Any:
        """Return the last JSON message in it."""
        text = self.body.decode()
        if self.headers.get("content-type", "").startswith("text/event-stream"):
            text = [line[6:] for line in text.split("\n") if line.startswith("data: ") and line[6:]][-1]
        return json.loads(text)


class Connection:
    """One connection of one worker."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def ask(self, head: bytes, body: bytes) -> HttpAnswer:
        """Send a request and return the answer to it. Raises `OSError` or `EOFError` if none comes."""
        self._writer.write(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        await self._writer.drain()
        first, *lines = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        fields = (line.split(": ", 1) for line in lines if line)
        headers = {name.lower(): value for name, value in fields}
        if headers.get("transfer-encoding") == "chunked":
            said = await self._chunks()
        else:
            said = await self._reader.readexactly(int(headers.get("content-length", "0")))
        return HttpAnswer(int(first.split()[1]), headers, said)

    async def _chunks(self) -> bytes:
        parts = []
        while size := int(await self._reader.readline(), 16):
            parts.append(await self._reader.readexactly(size))
            await self._reader.readline()
        await self._reader.readline()
        return b"".join(parts)

    async def has_more(self) -> bool:
        """True if something has come that nobody asked for."""
        try:
            return bool(await asyncio.wait_for(self._reader.read(1), 0.001))
        except TimeoutError:
            return False
        except OSError:
            return False

    def is_closed(self) -> bool:
        """True if the other end has closed it."""
        return self._reader.at_eof()

    def close(self) -> None:
        """Close it."""
        self._writer.close()


class HttpWorker:
    """One worker. `counts` says what its requests came to, `calls` of each call the words for it."""

    def __init__(self, number: int, port: int, *, keeps: bool, in_session: bool) -> None:
        self.number = number
        self.counts: Counter[str] = Counter()
        self.calls: dict[str, str] = {}
        self.waits: list[float] = []
        """How long each answer took, in seconds."""
        self._port = port
        self._keeps = keeps
        self.in_session = in_session
        self._session = ""
        self._connection: Connection | None = None

    async def run(self, stop: asyncio.Event, tool: str, arguments: dict[str, Any]) -> None:
        """Call the tool with a text of its own each time, until `stop`."""
        at = 0
        while not stop.is_set():
            if self.in_session and not self._session:
                await self._initialize()
                continue
            text = f"w{self.number}.{at}"
            at += 1
            self.calls[text] = "no answer"
            reply = await self._post("tools/call", {"name": tool, "arguments": {**arguments, "text": text}})
            if reply is not None:
                self.calls[text] = self._outcome(text, reply)
                self.counts[self.calls[text]] += 1
                if reply.status == 404:
                    self._session = ""
        if self._connection is not None:
            self._connection.close()

    def _outcome(self, text: str, reply: HttpAnswer) -> str:
        if reply.status != 200:
            return {404: "session ended (404)", 503: "not delivered (503)"}.get(
                reply.status, f"status {reply.status}"
            )
        result = reply.message().get("result", {})
        if not result.get("isError") and result.get("content", [{}])[0].get("text") == text:
            return "good"
        fault = (result.get("_meta") or {}).get("carpool/error", {})
        return f"{fault.get('code', 'another answer')}, delivered {fault.get('delivered', 'maybe')}"

    async def _initialize(self) -> None:
        reply = await self._post("initialize", GREETING)
        if reply is not None and reply.status == 200:
            self._session = reply.headers["mcp-session-id"]
            self.counts["session opened"] += 1
            await self._post("notifications/initialized", None)
        elif reply is not None:
            self.counts[f"initialize: {reply.status}"] += 1

    async def _post(self, method: str, params: dict[str, Any] | None) -> HttpAnswer | None:
        """Send one request and return its answer; None if there was none, which is counted."""
        message: dict[str, Any] = {"jsonrpc": "2.0", "method": method}
        if params is not None:
            message |= {"id": 1, "params": params}
        head = f"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1:{self._port}\r\nContent-Type: application/json\r\n"
        head += "Accept: application/json, text/event-stream\r\n"
        if self._session:
            head += f"Mcp-Session-Id: {self._session}\r\n"
        elif not self.in_session:
            message["params"] = {**(params or {}), "_meta": META}
            name = message["params"]["name"]
            head += f"MCP-Protocol-Version: {VERSION}\r\nMcp-Method: {method}\r\nMcp-Name: {name}\r\n"
        if not self._keeps:
            head += "Connection: close\r\n"
        connection = await self._connected()
        if connection is None:
            return None
        self.counts["requests"] += 1
        began = time.monotonic()
        try:
            async with asyncio.timeout(LIMIT_S):
                reply = await connection.ask(head.encode(), json.dumps(message).encode())
        except (OSError, EOFError) as error:
            self.counts[f"no answer ({type(error).__name__})"] += 1
            self._drop()
            return None
        self.waits.append(time.monotonic() - began)
        self.counts["answers"] += 1
        if await connection.has_more():
            self.counts["two answers"] += 1
        if not self._keeps or reply.headers.get("connection") == "close":
            self._drop()
        return reply

    async def _connected(self) -> Connection | None:
        if self._connection is not None and self._connection.is_closed():
            self.counts["closed while idle"] += 1
            self._drop()
        if self._connection is None:
            try:
                self._connection = Connection(*await asyncio.open_connection("127.0.0.1", self._port))
            except OSError as error:
                self.counts[f"refused ({type(error).__name__})"] += 1
                await asyncio.sleep(0.02)
                return None
            self.counts["connections"] += 1
        return self._connection

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None


def workers(count: int, port: int) -> list[HttpWorker]:
    """Return so many workers, of the four kinds in turn."""
    return [
        HttpWorker(number, port, keeps=number % 2 == 0, in_session=number % 4 < 2) for number in range(count)
    ]
