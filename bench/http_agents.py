"""Agents that speak HTTP, for the driver of every bench (`carpool.bench.agents`).

Owns the wrapping: a line becomes a POST on the agent's keep-alive connection, a response becomes the line in
it; so the load, the judgement of answers and the figures are those of the other arms. An agent of the
handshake era keeps the session id it was given, one of the stateless era says with each request all that its
era wants. One call in flight for each agent: a connection has one POST at a time.
Knows nothing of: arms, carpool.
"""

import json
import os
import re
import selectors
import socket
from collections.abc import Sequence
from typing import Any, Literal

from carpool.bench.agents import BenchAgents, now_s
from carpool.bench.attach import AgentDescriptors, BenchAgent, BenchError
from carpool.bench.work import EchoWorkload

Era = Literal["handshake", "stateless"]
_VERSION = "2025-11-25"
_MODERN = "2026-07-28"
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_SESSION = re.compile(rb"\r\nmcp-session-id: *([!-~]+)", re.IGNORECASE)
_CHUNKED = re.compile(rb"\r\ntransfer-encoding: *chunked", re.IGNORECASE)
_META = {
    "io.modelcontextprotocol/protocolVersion": _MODERN,
    "io.modelcontextprotocol/clientInfo": {"name": "carpool-bench", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}


def connected(port: int) -> socket.socket:
    """A connection to a port of this machine."""
    one = socket.create_connection(("127.0.0.1", port), timeout=10.0)
    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return one


class StatelessEcho(EchoWorkload):
    """`EchoWorkload` in the words of the stateless era."""

    def __init__(self, tool: str) -> None:
        super().__init__(tool)
        meta = json.dumps(_META, separators=(",", ":")).encode()
        self._tail = self._tail.replace(b',"arguments":', b',"_meta":' + meta + b',"arguments":', 1)


class HttpAgent(BenchAgent):
    """One agent; `lines` and `write` speak HTTP. `accepted` counts the 202 it got."""

    __slots__ = ("_call_head", "_era", "_head", "accepted", "buffer", "session", "status")

    def __init__(
        self,
        index: int,
        attachment: AgentDescriptors,
        era: Era,
        url_path: str,
        tool: str,
        *,
        token: str = "",
    ) -> None:
        super().__init__(index, attachment)
        self._era = era
        self.session = b""
        self.accepted = 0
        self.status = 0
        self.buffer = b""
        self._head = (
            f"POST {url_path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
            f"Accept: application/json, text/event-stream\r\n{authorization(token)}"
        ).encode()
        self._call_head = self._head_for("tools/call", tool)

    def _head_for(self, method: str, name: str = "") -> bytes:
        if self._era == "handshake":
            version = b"MCP-Protocol-Version: %b\r\n" % _VERSION.encode() if self.session else b""
            own = b"Mcp-Session-Id: %b\r\n" % self.session if self.session else b""
            return self._head + version + own + b"Content-Length: %d\r\n\r\n"
        named = f"Mcp-Name: {name}\r\n" if name else ""
        era = f"MCP-Protocol-Version: {_MODERN}\r\nMcp-Method: {method}\r\n{named}"
        return self._head + era.encode() + b"Content-Length: %d\r\n\r\n"

    def write(self, data: bytes) -> None:
        """POST a line; without one, go on with what is not yet written."""
        if data:
            body = data[:-1]
            if b'"tools/call"' in body:
                data = self._call_head % len(body) + body
            else:
                message = json.loads(body)
                if self._era == "stateless":
                    message["params"] = {**message.get("params", {}), "_meta": _META}
                    body = json.dumps(message).encode()
                data = self._head_for(message["method"]) % len(body) + body
        super().write(data)

    def lines(self) -> list[bytes]:
        """The message of the response that is whole now, if any."""
        try:
            data = os.read(self.read_fd, 1 << 16)
        except BlockingIOError:
            return []
        except ConnectionError:
            data = b""
        if not data:
            self.ended = True
            return []
        self.buffer = buffer = self.buffer + data if self.buffer else data
        end = buffer.find(b"\r\n\r\n")
        if end < 0:
            return []
        length = _LENGTH.search(buffer, 0, end + 2)
        if length is None:
            return self._streamed(end)
        whole = end + 4 + int(length[1])
        if len(buffer) < whole:
            return []
        self.buffer = buffer[whole:]
        self.status = int(buffer[9:12])
        if self.status == 202:
            self.accepted += 1
            return []
        if self._era == "handshake" and not self.session and (found := _SESSION.search(buffer, 0, end + 2)):
            self.session = found[1]
            self._call_head = self._head_for("tools/call")
        return [buffer[end + 4 : whole].replace(b"\n", b" ")]

    def _streamed(self, end: int) -> list[bytes]:
        """A response of events: the last of its messages, which is the answer."""
        if not _CHUNKED.search(self.buffer, 0, end + 2):
            raise BenchError("a response has neither a length nor chunks")
        if not self.buffer.endswith(b"0\r\n\r\n"):
            return []
        text, rest = b"", self.buffer[end + 4 :]
        while rest:
            size, _, rest = rest.partition(b"\r\n")
            text, rest = text + rest[: int(size, 16)], rest[int(size, 16) + 2 :]
        self.buffer = b""
        messages = [line[5:].strip() for line in text.split(b"\n") if line.startswith(b"data:")]
        return [each for each in messages if each][-1:]


def authorization(token: str) -> str:
    """The header line of a bearer token; empty without one."""
    return f"Authorization: Bearer {token}\r\n" if token else ""


class HttpCrowd(BenchAgents):
    """All HTTP agents of one window. With `streams`, each holds a GET stream open beside its connection.

    `token`: the bearer token of the door; empty: it needs none.
    """

    def __init__(
        self,
        attachments: Sequence[AgentDescriptors],
        era: Era,
        port: int,
        url_path: str,
        tool: str,
        *,
        streams: bool,
        token: str = "",
    ) -> None:
        super().__init__([])
        self._authorization = authorization(token).encode()
        self._attachments = list(attachments)
        self._http = [
            HttpAgent(at, each, era, url_path, tool, token=token) for at, each in enumerate(attachments)
        ]
        self._agents = list(self._http)
        for agent in self._http:
            self._selector.register(agent.read_fd, selectors.EVENT_READ, agent)
        self._era, self._port, self._path = era, port, url_path
        self._wants_streams = streams
        self._streams: list[socket.socket] = []

    def greet(self) -> None:
        """What comes before the first call: in the handshake era a session each, then the list of tools."""
        if self._era == "handshake":
            params: dict[str, Any] = {
                "protocolVersion": _VERSION,
                "capabilities": {},
                "clientInfo": {"name": "carpool-bench", "version": "1"},
            }
            for reply in self.request_all("initialize", params):
                if "result" not in reply:
                    raise BenchError(f"initialize was refused: {json.dumps(reply.get('error'))}")
            for agent in self._http:
                agent.write(b'{"jsonrpc":"2.0","method":"notifications/initialized"}\n')
            self._until_accepted()
        for reply in self.request_all("tools/list", {}):
            if "result" not in reply:
                raise BenchError(f"tools/list was refused: {json.dumps(reply.get('error'))}")
        if self._wants_streams:
            self._open_streams()

    def _until_accepted(self) -> None:
        until_s = now_s() + self._patience_s
        while any(not agent.accepted for agent in self._http):
            if now_s() > until_s or any(agent.ended for agent in self._http):
                raise BenchError("notifications/initialized was not accepted by all")
            for key, _ in self._selector.select(0.25):
                key.data.lines()

    def _open_streams(self) -> None:
        for agent in self._http:
            one = connected(self._port)
            self._streams.append(one)
            one.sendall(
                b"GET %b HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: text/event-stream\r\n"
                b"MCP-Protocol-Version: %b\r\nMcp-Session-Id: %b\r\n%b\r\n"
                % (self._path.encode(), _VERSION.encode(), agent.session, self._authorization)
            )
        for one in self._streams:
            head = one.recv(4096)
            if not head.startswith(b"HTTP/1.1 200"):
                raise BenchError(f"a GET stream was refused: {head[:60]!r}")
            one.setblocking(False)

    def cut_streams(self) -> int:
        """How many of the GET streams have been ended from the other side."""
        cut = 0
        for one in self._streams:
            try:
                while data := one.recv(1 << 16):
                    cut += data.endswith(b"0\r\n\r\n")
                cut += 1
            except BlockingIOError:
                pass
            except ConnectionError:
                cut += 1
        return cut

    def close(self) -> None:
        super().close()
        for one in self._streams:
            one.close()
