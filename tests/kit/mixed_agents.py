"""The agents of a scene: one through each way in, each with what it has asked and what became of that.

Owns an agent's way in (socket, shim, a process behind a shim, HTTP), its sending of half a request, and the
judgement of an answer against the ledger of a `tally` server. Knows nothing of phases and victims.
"""

import json
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Final

import trio

from tests.kit.http_lines import HttpLines
from tests.kit.line_agent import WAIT_S, Json, LineAgent, fault_of, spoken
from tests.kit.live import Daemon
from tests.kit.waits import until

SOCKET, SHIM, AGENT, HTTP = "socket", "shim", "agent", "http"
ENDED: Final = "ended"
"""The way in has ended, and with it whatever was open: no answer can come."""
ANSWERED: Final = "answered"
SAMPLING: Final[Json] = {"sampling": {}}
GREETING: Final[Json] = {
    "protocolVersion": "2025-11-25",
    "capabilities": SAMPLING,
    "clientInfo": {"name": "live", "version": "1"},
}
_PROCESS = Path(__file__).with_name("agent_process.py")
_LOST_WAY = (trio.BrokenResourceError, trio.ClosedResourceError)


class ExecutionLedger:
    """What the server has executed, from the file that it keeps."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def lines(self) -> list[str]:
        return self.path.read_text().splitlines() if self.path.exists() else []

    def executed(self, mark: str) -> int:
        return self.lines().count(mark)

    async def until(self, *marks: str) -> None:
        """Wait until all of these are in it."""
        await until(lambda: set(marks) <= set(self.lines()), f"{marks} executed", WAIT_S)


class MixedAgent:
    """One agent of a scene."""

    def __init__(self, name: str, agent: LineAgent, out: trio.abc.SendStream, pid: int = 0) -> None:
        self.name = name
        """Its way in."""
        self.agent = agent
        self.pid = pid
        """Of its own process or its shim, if there is one."""
        self._out = out
        self._finish: Callable[[], Awaitable[None]] | None = None

    @property
    def http(self) -> HttpLines | None:
        return self._out if isinstance(self._out, HttpLines) else None

    async def greet(self) -> None:
        await self.agent.greet("2025-11-25", SAMPLING)

    async def greet_and_run(self, server: str, mark: str) -> bytes:
        """Say all of it without waiting for an answer."""
        await self.agent.request("initialize", GREETING)
        await self.agent.tell("notifications/initialized")
        return await self.run(server, mark)

    async def run(self, server: str, mark: str, how: str = "at once", gate: Path | None = None) -> bytes:
        """Send a call; the bytes of its id."""
        arguments = {"mark": mark, "how": how, **({"gate": str(gate)} if gate else {})}
        return await self.agent.start(f"{server}__run", arguments)

    async def half(self, server: str, mark: str) -> bytes:
        """Send half of a call; `finish` sends the rest."""
        params = {"name": f"{server}__run", "arguments": {"mark": mark}}
        return await self._half(mark, "tools/call", params)

    async def half_greet(self) -> bytes:
        """Send half of a greeting; `finish` sends the rest."""
        return await self._half("hello", "initialize", GREETING)

    async def _half(self, id_: str, method: str, params: Json) -> bytes:
        line = json.dumps({"jsonrpc": "2.0", "id": id_, "method": method, "params": params}).encode()
        if isinstance(self._out, HttpLines):
            self._finish = (await self._out.half(line)).finish
        else:
            out, rest = self._out, line[len(line) // 2 :] + b"\n"
            await out.send_all(line[: len(line) // 2])
            self._finish = lambda: out.send_all(rest)
        return json.dumps(id_).encode()

    async def finish(self) -> None:
        """Send the other half, if there is one."""
        if self._finish is not None:
            await self._finish()
            self._finish = None

    async def said(self) -> None:
        """Answer all that servers have asked."""
        for ask in self.agent.asks:
            content = {"type": "text", "text": f"said to {ask['params']['messages'][0]['content']['text']}"}
            await self.agent.say(
                ask, {"result": {"role": "assistant", "content": content, "model": self.name}}
            )

    @property
    def is_cut(self) -> bool:
        """It cannot hear any more, or what it was to hear has been cut off."""
        http = self.http
        return self.agent.ended.is_set() if http is None else bool(http.cut or http.refused)

    async def lost_its_way(self) -> None:
        """Wait until this agent cannot hear any more."""
        await until(lambda: self.is_cut, f"{self.name} is cut", WAIT_S)

    async def fares(
        self, id_: bytes, mark: str, outcome: str, ledger: ExecutionLedger, *, count: int = 0
    ) -> None:
        """This call ends as `outcome` (an error's code, or one of the words above; `|` between several that
        may be), and honestly.

        `count`: it is the so manieth of its instance; 0 where that is not known.
        """
        words = outcome.split("|")
        if ENDED in words and len(words) > 1:
            await until(lambda: id_ in self.agent.answers or self.is_cut, f"{mark} is over", WAIT_S)
            if id_ not in self.agent.answers:
                words = [ENDED]
        if words == [ENDED]:
            await self.lost_its_way()
            answer = self.agent.answers.get(id_)  # over HTTP there may be one, which says that it is lost
            assert answer is None or outcome_of(answer) != ANSWERED, answer
            assert ledger.executed(mark) <= 1, f"{mark} was executed more than once"
            return
        answer = await self.agent.answer(id_)
        became, executed = outcome_of(answer), ledger.executed(mark)
        assert became in words, f"{mark}: {became}, not {outcome}: {answer}"
        if became == ANSWERED:
            said = answer["result"]["content"][0]["text"]
            assert said == f"{mark} {count}" if count else said.startswith(f"{mark} "), answer
        assert executed in executions(answer), f"{mark}: executed {executed} times, {answer}"


def outcome_of(answer: Json) -> str:
    """`answered`, or the code of carpool's own error."""
    if "error" in answer:
        code: str = answer["error"].get("data", {}).get("code", "")
        return code
    if not answer["result"].get("isError"):
        return ANSWERED
    found: str = fault_of(answer["result"])["code"]
    return found


def executions(answer: Json) -> tuple[int, ...]:
    """How often the call behind this answer may have been executed."""
    if "result" in answer and not answer["result"].get("isError"):
        return (1,)
    fault = answer["error"]["data"] if "error" in answer else fault_of(answer["result"])
    return (0,) if fault["delivered"] == "no" else (0, 1)


def door_of(daemon: Daemon) -> tuple[str, int]:
    """The URL and the pid of the HTTP door that listens; ("", 0): none does."""
    try:
        found = json.loads((daemon.directory / "http.json").read_text())
    except FileNotFoundError:
        return "", 0
    return (found["url"], found["pid"]) if "url" in found else ("", 0)


@asynccontextmanager
async def mixed_agent(daemon: Daemon, name: str) -> AsyncIterator[MixedAgent]:
    """An agent that has not greeted, through the way in `name`."""
    if name == SOCKET:
        async with daemon.agent(greet=False) as agent:
            yield MixedAgent(name, agent, agent.out)
    elif name == SHIM:
        async with daemon.shim(greet=False) as agent:
            yield MixedAgent(name, agent, agent.out, agent.pid)
    elif name == AGENT:
        async with _process(daemon) as one:
            yield one
    else:
        lines = HttpLines(door_of(daemon)[0])
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lines.run)
            async with spoken(lines, lines.down) as agent:
                try:
                    yield MixedAgent(name, agent, lines)
                finally:
                    with trio.move_on_after(WAIT_S, shield=True), suppress(*_LOST_WAY, OSError):
                        await lines.leave()


@asynccontextmanager
async def _process(daemon: Daemon) -> AsyncIterator[MixedAgent]:
    with (daemon.base / "shims.log").open("ab") as stderr:
        process = await trio.lowlevel.open_process(
            [sys.executable, "-S", "-E", str(_PROCESS), *daemon.command("connect")],
            env=daemon.environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
        )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        async with spoken(process.stdin, process.stdout, process.pid) as agent:
            yield MixedAgent(AGENT, agent, process.stdin, process.pid)
        with trio.fail_after(WAIT_S):
            await process.wait()
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        with trio.CancelScope(shield=True):
            await process.wait()
        await process.stdin.aclose()
        await process.stdout.aclose()


async def ignoring_loss(doing: Awaitable[None]) -> None:
    """Do it, unless the way in has ended meanwhile."""
    with suppress(*_LOST_WAY):
        await doing
