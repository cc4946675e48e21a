"""Agents on the broker's socket that ask for more than there is, and count what comes of each request.

Owns what was asked and how it ended: every request is answered exactly once, or its agent was dropped. One
thread, one selector, so hundreds of agents fit beside what they load. An agent may stop reading (`deaf`).

Knows nothing of: which server does what, memory.
"""

import json
import selectors
import socket
import time
from collections import Counter, deque
from collections.abc import Callable
from itertools import islice
from typing import Any

import msgspec

from carpool_protocol.bootstrap import paths

READ_BYTES = 1 << 18
_GREETING = (
    b'{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-06-18",'
    b'"capabilities":{},"clientInfo":{"name":"crowd","version":"1"}}}\n'
    b'{"jsonrpc":"2.0","method":"notifications/initialized"}\n'
)


class _Head(msgspec.Struct):
    id: int | None = None
    method: str = ""


_head = msgspec.json.Decoder(_Head)


class CrowdAnswer(msgspec.Struct, frozen=True):
    """How one request ended."""

    id: int
    code: str
    """`""`: a good answer; else carpool's code, or `tool error`."""
    text: str
    """The first 100 characters of the answer's text."""
    took_s: float


class CrowdAgent:
    """One agent. `on_answer` hears of each request that ended."""

    def __init__(
        self, crowd: "Crowd", on_answer: "Callable[[CrowdAgent, CrowdAnswer], None] | None" = None
    ) -> None:
        self._crowd = crowd
        self._on_answer = on_answer
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.connect(paths.agents_socket(crowd.directory))
        self.sock.setblocking(False)
        self.deaf = False
        """It reads nothing."""
        self.read_bytes = READ_BYTES
        self.pause_s = 0.0
        """After each read it reads nothing for this long."""
        self.dropped = False
        self.greeted = False
        self.open: dict[int, float] = {}
        self.ended: Counter[str] = Counter()
        self.doubles = 0
        self.notices = 0
        self._next = 1
        self._out: deque[bytes] = deque((_GREETING,))
        self._sent = 0
        """Of the first of these."""
        self._parts: list[bytes] = []
        self._watched = 0
        self.watch()

    def call(self, tool: str, arguments: bytes, *, token: bool = False) -> int:
        """Ask; the request's id."""
        id_ = self._next
        self._next += 1
        meta = b',"_meta":{"progressToken":%d}' % id_ if token else b""
        head = b'{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"%s","arguments":' % (
            id_,
            tool.encode(),
        )
        self._out += (head, arguments, meta + b"}}\n")
        self.open[id_] = time.monotonic()
        self.watch()
        return id_

    @property
    def unsent(self) -> int:
        """So many pieces of lines are not written yet."""
        return len(self._out)

    def watch(self) -> None:
        """Have the selector look for what is of interest now."""
        wanted = 0 if self.deaf else selectors.EVENT_READ
        if self._out:
            wanted |= selectors.EVENT_WRITE
        if self.dropped or wanted == self._watched:
            return
        if not self._watched:
            self._crowd.selector.register(self.sock, wanted, self)
        elif not wanted:
            self._crowd.selector.unregister(self.sock)
        else:
            self._crowd.selector.modify(self.sock, wanted, self)
        self._watched = wanted

    def ready(self, events: int) -> None:
        try:
            if events & selectors.EVENT_WRITE and self._out:
                self._push()
            if events & selectors.EVENT_READ:
                data = self.sock.recv(self.read_bytes)
                if not data:
                    raise ConnectionResetError
                self._take(data)
                if self.pause_s:
                    self.deaf = True
                    self._crowd.later(self.pause_s, self._listen)
        except BlockingIOError:
            pass
        except OSError:
            self.drop()
        self.watch()

    def _push(self) -> None:
        if len(self._out[0]) < READ_BYTES:  # small ones go together
            few = list(islice(self._out, 200))
            sent = self._sent + self.sock.send(b"".join(few)[self._sent :])
        else:
            sent = self._sent + self.sock.send(memoryview(self._out[0])[self._sent :])
        while self._out and sent >= len(self._out[0]):
            sent -= len(self._out.popleft())
        self._sent = sent

    def _listen(self) -> None:
        self.deaf = False
        self.watch()

    def drop(self) -> None:
        """The broker has let go of it, or it goes."""
        if not self.dropped:
            self.dropped = True
            if self._watched:
                self._crowd.selector.unregister(self.sock)
            self.sock.close()

    def _take(self, data: bytes) -> None:
        *whole, rest = data.split(b"\n")
        for part in whole:
            line = b"".join((*self._parts, part))
            self._parts.clear()
            head = _head.decode(line)
            if head.method:
                self.notices += 1
            elif head.id == 0:
                self.greeted = True
            else:
                self._ended(head.id, line)
        if rest:
            self._parts.append(rest)

    def _ended(self, id_: int | None, line: bytes) -> None:
        began = self.open.pop(id_, None) if id_ is not None else None
        if id_ is None or began is None:
            self.doubles += 1
            return
        code, text = _judged(line)
        self.ended[code or "answered"] += 1
        if self._on_answer is not None:
            self._on_answer(self, CrowdAnswer(id_, code, text, time.monotonic() - began))


def _judged(line: bytes) -> tuple[str, str]:
    if len(line) > 1 << 20:
        return "", ""
    message: dict[str, Any] = json.loads(line)
    if "error" in message:
        data = message["error"].get("data") or {}
        return str(data.get("code", message["error"]["code"])), ""
    result = message["result"]
    said = str(result["content"][0].get("text", ""))[:100] if result.get("content") else ""
    if not result.get("isError"):
        return "", said
    fault = (result.get("_meta") or {}).get("carpool/error") or {}
    return str(fault.get("code", "tool error")), said


class Crowd:
    """Agents of one carpool. `on_tick` is called every `TICK_S` while they run."""

    TICK_S = 0.05

    def __init__(self, directory: str, on_tick: Callable[[], None]) -> None:
        self.directory = directory
        self.selector = selectors.DefaultSelector()
        self.agents: list[CrowdAgent] = []
        self._on_tick = on_tick
        self._later: list[tuple[float, Callable[[], None]]] = []

    def agent(self, on_answer: Callable[[CrowdAgent, CrowdAnswer], None] | None = None) -> CrowdAgent:
        one = CrowdAgent(self, on_answer)
        self.agents.append(one)
        return one

    def later(self, delay_s: float, do: Callable[[], None]) -> None:
        """Do this after so many seconds, if the crowd still runs then."""
        self._later.append((time.monotonic() + delay_s, do))

    def run(self, limit_s: float, until: Callable[[], bool]) -> bool:
        """Until the condition holds; False when it does not within the limit."""
        end = time.monotonic() + limit_s
        next_tick = 0.0
        while not until():
            now = time.monotonic()
            if now >= next_tick:
                next_tick = now + self.TICK_S
                self._on_tick()
                due = [do for at, do in self._later if at <= now]
                self._later = [(at, do) for at, do in self._later if at > now]
                for do in due:
                    do()
            if now >= end:
                return False
            for key, events in self.selector.select(max(0.0, next_tick - now)):
                key.data.ready(events)
        return True

    def greet(self) -> None:
        """Everybody is in."""
        if not self.run(60.0, lambda: all(each.greeted or each.dropped for each in self.agents)):
            raise SystemExit("bench: not every agent was greeted")

    def close(self) -> None:
        for each in self.agents:
            each.drop()
        self.selector.close()

    @property
    def ended(self) -> Counter[str]:
        """How all requests ended, by code."""
        return sum((each.ended for each in self.agents), Counter())

    @property
    def doubles(self) -> int:
        return sum(each.doubles for each in self.agents)

    def unanswered(self) -> int:
        """Requests of agents that are still there and that have no answer."""
        return sum(len(each.open) for each in self.agents if not each.dropped)
