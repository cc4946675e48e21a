"""Agents of a run with faults: they call, and write into the ledger what became of each call.

An agent on the socket of a broker speaks the handshake era; an agent of the HTTP door speaks the stateless
era, each call on a connection of its own. Owns how a call is said and its answer read. Bounded: a call that
is not answered within `ANSWER_S` counts as never answered.

Knows nothing of: faults, figures (`fault_ledger`).
"""

import json
import time
from itertools import count
from typing import Any, Final

import trio

from bench.fault_ledger import CUT_OFF, TalliedCall
from bench.other_agent import MAX_LINE_BYTES
from carpool_protocol.wire.lines import LineBuffer

ANSWER_S: Final = 150.0
MODERN: Final = "2026-07-28"
_ABOUT: Final = {"name": "faults", "version": "1"}
_NAPS_S: Final = 0.7
_marks = count(1)


class FaultAgent:
    """The common part of both kinds of agents. `calls`: the ledger into which each call is written."""

    def __init__(self, name: str, calls: list[TalliedCall]) -> None:
        self.name = name
        self.calls = calls

    async def call(self, server: str, *, target: str = "", nap: bool = False, size_bytes: int = 0) -> None:
        """Call a server's `run` and write down what became of it. `target`: the server by default. `nap`: it
        works for a while. `size_bytes`: of the answer.
        """
        mark = f"{self.name}-{next(_marks)}"
        work_s = _NAPS_S if nap else 0.0
        sent = TalliedCall(mark, target or server, time.monotonic(), work_s, size_bytes)
        self.calls.append(sent)
        arguments: dict[str, Any] = {"mark": mark}
        arguments |= {"how": "nap", "nap_s": work_s} if nap else {}
        arguments |= {"bytes": size_bytes} if size_bytes else {}
        with trio.move_on_after(ANSWER_S):
            message = await self._ask("tools/call", {"name": f"{server}__run", "arguments": arguments})
            sent.ended_s = time.monotonic()
            note_answer(sent, message)

    async def _ask(self, method: str, params: dict[str, Any]) -> dict[str, Any] | None:
        """Say a request and return the answer; None: the agent's own connection broke."""
        raise NotImplementedError


def note_answer(sent: TalliedCall, message: dict[str, Any] | None) -> None:
    """Write the answer down. None: the connection of the agent has broken."""
    if message is None:
        sent.code = CUT_OFF
        return
    result = message.get("result", {})
    fault = result.get("_meta", {}).get("carpool/error")
    if "error" in message:
        told = message["error"].get("data")
        fault = told.get("carpool/error", told) if isinstance(told, dict) else None
        fault = fault or {"code": str(message["error"].get("code")), "delivered": ""}
    if fault is not None:
        sent.code, sent.delivered = str(fault.get("code")), fault.get("delivered", "")
    elif not result["content"][0]["text"].startswith(f"{sent.mark} "):
        sent.code = "answer_of_another_call"


class FaultSocketAgent(FaultAgent):
    """An agent on the socket of a broker, which lives as long as the run."""

    def __init__(self, name: str, calls: list[TalliedCall]) -> None:
        super().__init__(name, calls)
        self._stream: trio.SocketStream
        self._turn = trio.Lock()
        self._ids = count(1)
        self._waiting: dict[int, trio.Event] = {}
        self._answers: dict[int, dict[str, Any]] = {}
        self.doubles = 0
        """Answers that nobody waited for."""

    async def start(self, path: str, nursery: trio.Nursery) -> None:
        """Connect and greet; it listens in the nursery."""
        self._stream = await trio.open_unix_socket(path)
        nursery.start_soon(self._listen)
        await self._ask("initialize", _greeting())
        await self._say({"method": "notifications/initialized"})

    async def _say(self, message: dict[str, Any]) -> None:
        async with self._turn:
            await self._stream.send_all(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")

    async def _ask(self, method: str, params: dict[str, Any]) -> dict[str, Any] | None:
        number = next(self._ids)
        self._waiting[number] = trio.Event()
        try:
            await self._say({"id": number, "method": method, "params": params})
            await self._waiting[number].wait()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return None
        finally:
            del self._waiting[number]
        return self._answers.pop(number, None)

    async def _listen(self) -> None:
        lines = LineBuffer(MAX_LINE_BYTES)
        async with self._stream:
            try:
                async for data in self._stream:
                    for line in lines.feed(bytes(data)):
                        if isinstance(line, bytes):
                            self._take(line)
            except trio.BrokenResourceError:
                pass
        for event in self._waiting.values():
            event.set()

    def _take(self, line: bytes) -> None:
        message = json.loads(line)
        if "method" in message:
            return
        number = message.get("id")
        if number in self._waiting and number not in self._answers:
            self._answers[number] = message
            self._waiting[number].set()
        else:
            self.doubles += 1


class FaultHttpAgent(FaultAgent):
    """An agent of the HTTP door at a port of this machine."""

    def __init__(self, name: str, calls: list[TalliedCall], port: int, path: str) -> None:
        super().__init__(name, calls)
        self._port = port
        self._path = path

    async def _ask(self, method: str, params: dict[str, Any]) -> dict[str, Any] | None:
        data = bytearray()
        try:
            async with await trio.open_tcp_stream("127.0.0.1", self._port) as stream:
                await stream.send_all(self._request(method, params))
                async for part in stream:
                    data += part
        except (OSError, trio.BrokenResourceError):
            return None
        return read_response(bytes(data))

    def _request(self, method: str, params: dict[str, Any]) -> bytes:
        meta = {
            "io.modelcontextprotocol/protocolVersion": MODERN,
            "io.modelcontextprotocol/clientInfo": _ABOUT,
            "io.modelcontextprotocol/clientCapabilities": {},
        }
        message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": meta}}
        body = json.dumps(message).encode()
        head = (
            f"POST {self._path} HTTP/1.1\r\nHost: 127.0.0.1:{self._port}\r\nConnection: close\r\n"
            "Content-Type: application/json\r\nAccept: application/json, text/event-stream\r\n"
            f"MCP-Protocol-Version: {MODERN}\r\nMcp-Method: {method}\r\nMcp-Name: {params['name']}\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        return head.encode() + body


def read_response(data: bytes) -> dict[str, Any] | None:
    """Return the message of an HTTP response: its body, or the last message of its events. None: it is not
    whole.
    """
    head, found, body = data.partition(b"\r\n\r\n")
    if not found:
        return None
    lowered = head.lower()
    if b"\r\ntransfer-encoding: chunked" in lowered:
        if not body.endswith(b"0\r\n\r\n"):
            return None
        body = _unchunked(body)
    if b"\r\ncontent-type: text/event-stream" in lowered:
        lines = [line[5:].strip() for line in body.split(b"\n") if line.startswith(b"data:")]
        body = next((line for line in reversed(lines) if line), b"")
    try:
        message: dict[str, Any] = json.loads(body)
    except ValueError:
        return None
    return message


def _unchunked(body: bytes) -> bytes:
    parts: list[bytes] = []
    at = 0
    while True:
        end = body.index(b"\r\n", at)
        size = int(body[at:end], 16)
        if not size:
            return b"".join(parts)
        parts.append(body[end + 2 : end + 2 + size])
        at = end + 4 + size


def _greeting() -> dict[str, Any]:
    return {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": _ABOUT}
