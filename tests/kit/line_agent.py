"""One agent that speaks lines of MCP, for tests under trio: over any two streams.

Owns what was sent and what came back, and fails when any request is answered twice. Knows nothing of
daemons and processes (`tests.kit.live`).
"""

import json
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import msgspec
import trio
from msgspec import Raw, Struct

from tests.kit.waits import pause_after

Json = dict[str, Any]
LIMIT_S = 160.0
"""No live test takes longer; the machine may be busy, and other tests run beside it."""
WAIT_S = 40.0
"""No single wait is longer: it fails first, and says what it waited for."""


async def settled(
    look: Callable[[], Awaitable[Json]], condition: Callable[[Json], object], what: str
) -> Json:
    """Look again and again, bounded, until `condition` holds of what is seen; what was seen then."""
    facts: Json = {}
    with trio.move_on_after(WAIT_S):
        while True:  # another process's condition sets no event
            began = time.monotonic()
            if condition(facts := await look()):
                return facts
            await trio.sleep(pause_after(began))
    raise AssertionError(f"not within {WAIT_S:g} s: {what}\n{json.dumps(facts, indent=1)}")


class _Line(Struct):
    id: Raw = Raw(b"null")


_line = msgspec.json.Decoder(_Line)
_INT_DIGITS = 1000


def _number(text: str) -> int | str:
    """Longer ones than Python reads stay text."""
    return int(text) if len(text) <= _INT_DIGITS else text


_LAST_ID = re.compile(rb'"id":("(?:[^"\\]|\\.)*"|[^,}\]]*)')


class LineAgent:
    """One agent. Answers are found by the bytes of their id; a second answer to one id is a failure."""

    def __init__(self, out: trio.abc.SendStream, pid: int = 0) -> None:
        self.pid = pid
        """Of the shim, if there is one."""
        self.lines: list[bytes] = []
        """Every line that came, without its end."""
        self.answers: dict[bytes, Json] = {}
        self.notices: list[Json] = []
        self.asks: list[Json] = []
        """Requests that came: what servers ask."""
        self.says: Callable[[Json], Json | None] | None = None
        """What is said to such a request, at once: `{result}` or `{error}`; None: nothing yet."""
        self.doubles: list[bytes] = []
        self.ended = trio.Event()
        """End of file from the broker."""
        self.out = out
        self._turn = trio.Lock()
        self._news = trio.Event()
        self._next = 0
        self._unanswered: list[Json] = []

    # --- speaking --------------------------------------------------------------------------------------

    async def line(self, data: bytes) -> None:
        """Bytes as they are, with a line end behind."""
        async with self._turn:
            await self.out.send_all(data + b"\n")

    async def tell(self, method: str, params: Json | None = None) -> None:
        message = {"jsonrpc": "2.0", "method": method, **({"params": params} if params is not None else {})}
        await self.line(json.dumps(message).encode())

    async def request(self, method: str, params: Json | None = None, *, id_: object = None) -> bytes:
        """Send a request; the bytes of its id."""
        if id_ is None:
            self._next += 1
            id_ = f"q{self._next}"
        message = {"jsonrpc": "2.0", "id": id_, "method": method}
        await self.line(json.dumps(message | ({"params": params} if params is not None else {})).encode())
        return json.dumps(id_).encode()

    async def start(
        self, name: str, arguments: Json | None = None, *, id_: object = None, token: object = None
    ) -> bytes:
        """Send a tool call; the bytes of its id."""
        params: Json = {"name": name, "arguments": arguments or {}}
        if token is not None:
            params["_meta"] = {"progressToken": token}
        return await self.request("tools/call", params, id_=id_)

    async def say(self, ask: Json, said: Json) -> None:
        """Answer what was asked."""
        await self.line(json.dumps({"jsonrpc": "2.0", "id": ask["id"], **said}).encode())

    async def cancel(self, id_: bytes) -> None:
        await self.tell("notifications/cancelled", {"requestId": json.loads(id_), "reason": "test"})

    # --- hearing ---------------------------------------------------------------------------------------

    async def answer(self, id_: bytes) -> Json:
        """The answer under this id; the whole message."""
        await self.until(lambda: id_ in self.answers, f"an answer to {id_!r}")
        return self.answers[id_]

    async def ask(self, method: str, params: Json | None = None, *, id_: object = None) -> Json:
        """A request and its answer; the whole message."""
        return await self.answer(await self.request(method, params, id_=id_))

    async def result(self, method: str, params: Json | None = None) -> Json:
        answer = await self.ask(method, params)
        assert "result" in answer, answer
        found: Json = answer["result"]
        return found

    async def call(self, name: str, arguments: Json | None = None) -> Json:
        """The result of a tool call; may say `isError`."""
        answer = await self.answer(await self.start(name, arguments))
        assert "result" in answer, answer
        found: Json = answer["result"]
        return found

    async def text(self, name: str, arguments: Json | None = None) -> str:
        """The text of a tool call that worked."""
        result = await self.call(name, arguments)
        assert not result.get("isError"), result
        said: str = result["content"][0]["text"]
        return said

    async def seen(self, server: str) -> Json:
        """What the observer `server` has seen."""
        found: Json = json.loads(await self.text(f"{server}__seen"))
        return found

    async def until_seen(self, server: str, condition: Callable[[Json], object], what: str) -> Json:
        """Ask the observer `server` until `condition` holds of what it has seen."""
        return await settled(lambda: self.seen(server), condition, f"{server}: {what}")

    async def inside(self, server: str, count: int) -> None:
        """Wait until exactly so many calls are inside the observer `server`."""
        await self.until_seen(server, lambda seen: seen["inside"] == count, f"{count} calls inside")

    async def greet(self, version: str = "2025-06-18", capabilities: Json | None = None) -> Json:
        params = {
            "protocolVersion": version,
            "capabilities": capabilities or {},
            "clientInfo": {"name": "live", "version": "1"},
        }
        result = await self.result("initialize", params)
        await self.tell("notifications/initialized")
        return result

    async def tools(self) -> list[str]:
        """The names of every page."""
        names: list[str] = []
        params: Json = {}
        while True:
            page = await self.result("tools/list", params)
            names += [tool["name"] for tool in page["tools"]]
            if "nextCursor" not in page:
                return names
            params = {"cursor": page["nextCursor"]}

    async def until_listed(self, condition: Any, what: str) -> list[str]:
        """List again with every notice until `condition(names)` holds."""
        names: list[str] = []
        with trio.move_on_after(WAIT_S):
            while True:
                before = len(self.notices)
                if condition(names := await self.tools()):
                    return names
                await self.until(lambda before=before: len(self.notices) > before, what)
        raise AssertionError(f"not within {WAIT_S:g} s: {what}: {names[:50]}")

    async def notice(self, method: str, since: int = 0) -> Json:
        """The first notification `method` among those after the first `since`."""

        def found() -> list[Json]:
            return [each for each in self.notices[since:] if each.get("method") == method]

        await self.until(lambda: bool(found()), f"a {method}")
        return found()[0]

    async def until(self, condition: Any, what: str) -> None:
        with trio.move_on_after(WAIT_S):
            while not condition():
                assert not self.ended.is_set(), f"the broker has gone; still not: {what}"
                await self._news.wait()
            return
        raise AssertionError(f"not within {WAIT_S:g} s: {what}; answered: {list(self.answers)[-20:]}")

    async def read(self, stream: trio.abc.ReceiveStream) -> None:
        """Take lines until the end of file."""
        parts: list[bytes] = []
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            while data := await stream.receive_some(1 << 18):
                *whole, rest = data.split(b"\n")
                for line in whole:
                    self._take(b"".join([*parts, line]))
                    parts = []
                parts.append(bytes(rest))
                await self._answer_asks()
                self._wake()
        self.ended.set()
        self._wake()

    async def _answer_asks(self) -> None:
        asks, self._unanswered = self._unanswered, []
        for ask in asks:
            if self.says is not None and (said := self.says(ask)) is not None:
                await self.say(ask, said)

    def _wake(self) -> None:
        self._news.set()
        self._news = trio.Event()

    def _take(self, line: bytes) -> None:
        self.lines.append(bytes(line))
        message: Json = json.loads(line, parse_int=_number)
        if "method" in message:
            if "id" in message:
                self.asks.append(message)
                self._unanswered.append(message)
            self.notices.append(message)
            return
        try:
            id_ = bytes(_line.decode(line).id)
        except msgspec.MsgspecError:  # a lone surrogate: our answers have their id in front
            match = _LAST_ID.search(line)
            assert match is not None
            id_ = match[1]
        if id_ in self.answers and id_ != b"null":
            self.doubles.append(id_)
        self.answers[id_] = message


@asynccontextmanager
async def spoken(
    out: trio.abc.SendStream, back: trio.abc.ReceiveStream, pid: int = 0
) -> AsyncIterator[LineAgent]:
    """An agent on two streams (or one that is both), which are closed at the end."""
    one = LineAgent(out, pid)
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(one.read, back)
            yield one
            with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                await out.aclose()
            nursery.cancel_scope.cancel()
    finally:
        await trio.aclose_forcefully(out)
        await trio.aclose_forcefully(back)
    assert not one.doubles, f"answered twice: {one.doubles}"


def fault_of(result: Json) -> Json:
    """What `_meta` says of a call that carpool has ended."""
    assert result.get("isError") is True, result
    found: Json = result["_meta"]["carpool/error"]
    assert set(found) == {"code", "delivered", "retry_after_s", "server", "tool", "call"}, found
    return found
