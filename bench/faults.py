"""`python -m bench.faults`: what a fault costs those who have nothing to do with it, and those who have.

Two measurements, each in a private carpool. Death: an agent has a call open in an instance, which is killed
with kill -9; the time from the kill until the agent has its answer (`instance_died`), and until its next
call, sent then, is answered by another instance (no back-off is configured). Freeze: 20 servers, on each an
agent with one call open at a time; one server is stopped (SIGSTOP) with calls open in it. The p99 of the
other agents beside that of the same agents while it ran, in interleaved pairs. Prints figures; judges
nothing.
Knows nothing of: how anything is noticed.
"""

import argparse
import json
import os
import signal
import statistics
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import trio

from carpool.bench.spawn import until
from carpool.control.control_client import ControlClient
from carpool.launcher.sandbox import PrivateCarpool
from carpool_protocol.bootstrap import paths

Json = dict[str, Any]
SERVERS = Path(__file__).parents[1] / "tests" / "kit" / "servers"
LIMIT_S = 20.0
STUCK_CALLS = 8
ABOUT = {"name": "bench", "version": "1"}
GREETING = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": ABOUT}


class SocketAgent:
    """An agent on the socket, one answer after the other."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self._rest = b""
        self._next = 0

    async def call(self, method: str, params: Json) -> int:
        """Send a request; its id."""
        self._next += 1
        message = {"jsonrpc": "2.0", "id": self._next, "method": method, "params": params}
        await self._stream.send_all(json.dumps(message).encode() + b"\n")
        return self._next

    async def tool(self, name: str, arguments: Json) -> int:
        return await self.call("tools/call", {"name": name, "arguments": arguments})

    async def answer(self, id_: int) -> Json:
        """The message that answers this request; others are passed over."""
        while True:
            line, end, rest = self._rest.partition(b"\n")
            if end:
                self._rest = rest
                message: Json = msgspec.json.decode(line)
                if message.get("id") == id_ and "method" not in message:
                    return message
                continue
            data = await self._stream.receive_some(1 << 16)
            if not data:
                raise SystemExit("bench: the broker has gone")
            self._rest += data


@asynccontextmanager
async def agent(private: PrivateCarpool) -> AsyncIterator[SocketAgent]:
    """An agent that has greeted."""
    stream = await trio.open_unix_socket(paths.agents_socket(private.directory))
    async with stream:
        one = SocketAgent(stream)
        await one.answer(await one.call("initialize", GREETING))
        await stream.send_all(b'{"jsonrpc":"2.0","method":"notifications/initialized"}\n')
        yield one


def server(name: str, *arguments: str, **settings: Any) -> Json:
    return {"command": sys.executable, "args": ["-S", "-E", str(SERVERS / name), *arguments], **settings}


def pid_of(private: PrivateCarpool, name: str) -> int:
    """The serving instance of a server, once there is one."""
    found: list[int] = []

    def look() -> bool:
        with ControlClient(private.directory, control=True) as door:
            status = msgspec.json.decode(door.request("carpool/status", {}, LIMIT_S))
        instances = status["servers"][name]["instances"]
        found[:] = [each["pid"] for each in instances if each["state"] == "serving"]
        return len(found) == 1

    until(look, LIMIT_S, f"an instance of {name}")
    return found[0]


@asynccontextmanager
async def carpool(servers: Json) -> AsyncIterator[PrivateCarpool]:
    private = PrivateCarpool("cpf-")
    try:
        private.config_file.write_text(json.dumps({"mcpServers": servers, "max_greeting": 8}))
        private.up()
        yield private
    finally:
        private.close()


# --- death -----------------------------------------------------------------------------------------------


async def deaths(times: int) -> tuple[list[float], list[float]]:
    """Seconds from each kill to the answer of the open call, and to that of the next one."""
    told, served = [], []
    restart = {"first_delay_s": 0, "max_delay_s": 0, "give_up_after": 10 * times}
    ledger = "/dev/null"
    async with (
        carpool({"tally": server("tally.py", ledger, restart=restart)}) as private,
        agent(private) as one,
    ):
        for _ in range(times):
            await one.answer(await one.tool("tally__run", {"mark": "warm"}))
            pid = pid_of(private, "tally")
            held = await one.tool("tally__run", {"mark": "held", "how": "hold", "gate": "/nowhere"})
            # Its turn at the server comes before that of the next, so it is inside when that is answered.
            await one.answer(await one.tool("tally__run", {"mark": "inside"}))
            began = time.perf_counter()
            os.kill(pid, signal.SIGKILL)
            answer = await one.answer(held)
            told.append(time.perf_counter() - began)
            if answer["result"]["_meta"]["carpool/error"]["code"] != "instance_died":
                raise SystemExit(f"bench: {answer}")
            answer = await one.answer(await one.tool("tally__run", {"mark": "next"}))
            served.append(time.perf_counter() - began)
            if answer["result"]["isError"]:
                raise SystemExit(f"bench: {answer}")
    return told, served


# --- freeze ----------------------------------------------------------------------------------------------


async def window(agents: list[tuple[str, SocketAgent]], seconds: float) -> float:
    """The p99 (seconds) of all these agents' calls in a window of so many seconds."""
    took: list[float] = []

    async def work(name: str, one: SocketAgent) -> None:
        end = time.perf_counter() + seconds
        while (began := time.perf_counter()) < end:
            answer = await one.answer(await one.tool(f"{name}__echo", {"text": "x"}))
            took.append(time.perf_counter() - began)
            if answer["result"].get("isError"):
                raise SystemExit(f"bench: {answer}")

    async with trio.open_nursery() as nursery:
        for name, one in agents:
            nursery.start_soon(work, name, one)
    return statistics.quantiles(took, n=100)[98]


async def freezes(count: int, pairs: int, seconds: float) -> list[tuple[float, float]]:
    """(p99 with all servers well, p99 of the same agents with one server frozen), pair by pair."""
    names = [f"s{at}" for at in range(count)]
    found: list[tuple[float, float]] = []
    async with (
        carpool({name: server("echo.py") for name in names}) as private,
        trio.open_nursery() as nursery,
    ):

        async def attend(name: str, *, task_status: trio.TaskStatus[SocketAgent]) -> None:
            async with agent(private) as one:
                await one.answer(await one.tool(f"{name}__echo", {"text": "warm"}))
                task_status.started(one)
                await trio.sleep_forever()

        agents = [(name, await nursery.start(attend, name)) for name in names]
        (frozen, victim), *others = agents
        pid = pid_of(private, frozen)
        await window(others, seconds / 2)
        for at in range(pairs):
            p99: dict[bool, float] = {}
            for stopped in (False, True) if at % 2 else (True, False):
                stuck: list[int] = []
                if stopped:
                    os.kill(pid, signal.SIGSTOP)
                    stuck = [await victim.tool(f"{frozen}__echo", {"text": "x"}) for _ in range(STUCK_CALLS)]
                try:
                    p99[stopped] = await window(others, seconds)
                finally:
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGCONT)
                for id_ in stuck:
                    await victim.answer(id_)
            found.append((p99[False], p99[True]))
        nursery.cancel_scope.cancel()
    return found


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.faults", description=__doc__.partition("\n")[0])
    parser.add_argument("--times", type=int, default=20, help="instances to kill (default 20)")
    parser.add_argument("--servers", type=int, default=20, help="servers, of which one is frozen")
    parser.add_argument("--pairs", type=int, default=7, help="pairs of windows (default 7)")
    parser.add_argument("--seconds", type=float, default=2.0, help="length of a window (default 2)")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    chosen = parser.parse_args(argv)
    told, served = trio.run(deaths, chosen.times)
    pairs = trio.run(freezes, chosen.servers, chosen.pairs, chosen.seconds)
    ratios = [frozen / well for well, frozen in pairs]
    if chosen.json:
        print(json.dumps({"told_s": told, "served_s": served, "p99_pairs_s": pairs, "ratios": ratios}))
        return
    for what, figures in (("the answer of its open call", told), ("another instance's answer", served)):
        median, worst = (each * 1000 for each in (statistics.median(figures), max(figures)))
        print(f"kill -9 of an instance to {what}: median {median:.1f} ms, worst {worst:.1f} ms")
    well, frozen = (statistics.median(each) * 1000 for each in zip(*pairs, strict=True))
    print(
        f"one of {chosen.servers} servers frozen: p99 of the others {frozen:.2f} ms, "
        f"{well:.2f} ms while it ran; median ratio {statistics.median(ratios):.2f} "
        f"({min(ratios):.2f} to {max(ratios):.2f})"
    )


if __name__ == "__main__":
    main(sys.argv[1:])
