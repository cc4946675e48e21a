"""`python -m bench.reattach`: the broker is killed again and again while agents call (docs/decisions/0019).

A private carpool, a server that notes each call it runs, agents behind `carpool connect` with calls in flight
all the time. Checked: every request is answered exactly once, and well; no call ran twice; no agent was
started again. Reported: the pause, from each kill to each agent's next answer. Bounded: so many kills, each
within `LIMIT_S`. Knows nothing of: how carriers and brokers do that.
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import trio

from carpool.control.control_client import ControlClient
from carpool.launcher.own_command import carpool_argv
from carpool.launcher.sandbox import PrivateCarpool

OBSERVER = Path(__file__).parents[1] / "tests" / "live" / "observer.py"
LIMIT_S = 60.0
IN_FLIGHT = 2
"""Calls of each agent at any time."""
WORK_S = 0.2
"""So long each call is at the server."""


class ShimAgent:
    """One shim, and what came back through it."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.sent = 0
        self.answers: Counter[str] = Counter()
        self.bad: list[Any] = []
        self.last = 0.0
        """When the last answer came."""
        self.is_over = False
        self._process: trio.Process

    async def run(self, private: PrivateCarpool, begin: trio.Event, stop: trio.Event) -> None:
        """Call until `stop`, then wait for what is in flight."""
        self._process = await trio.lowlevel.open_process(
            [*carpool_argv(), "connect"], env=private.environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._hear)
                about = {"name": "bench", "version": "1"}
                params = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": about}
                await self._say({"id": "greet", "method": "initialize", "params": params})
                await self._until(lambda: self.answers["greet"])
                await self._say({"method": "notifications/initialized"})
                await begin.wait()
                while not stop.is_set():
                    await self._until(lambda: self.sent - (len(self.answers) - 1) < IN_FLIGHT)
                    text = f"a{self.number}.{self.sent}"
                    self.sent += 1
                    arguments = {"count": 1, "delay_s": WORK_S, "text": text}
                    call = {"name": "good__steps", "arguments": arguments}
                    await self._say({"id": text, "method": "tools/call", "params": call})
                await self._until(lambda: len(self.answers) - 1 == self.sent)
                self.is_over = True
                nursery.cancel_scope.cancel()
        finally:
            self._process.kill()
            with trio.CancelScope(shield=True):
                await self._process.wait()

    async def _say(self, message: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        await self._process.stdin.send_all(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")

    async def _until(self, condition: Any) -> None:
        with trio.fail_after(LIMIT_S):
            while not condition():
                self._news = trio.Event()
                await self._news.wait()

    async def _hear(self) -> None:
        assert self._process.stdout is not None
        rest = b""
        async for data in self._process.stdout:
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                message = json.loads(line)
                if "method" not in message:
                    self._answered(message)
            self._news.set()
        raise SystemExit(f"bench: the shim of agent {self.number} has ended")

    def _answered(self, message: dict[str, Any]) -> None:
        self.last = trio.current_time()
        self.answers[message["id"]] += 1
        if message["id"] != "greet":
            result = message.get("result", {})
            if result.get("isError") or result.get("content", [{}])[0].get("text") != message["id"]:
                self.bad.append(message)


def ask(private: PrivateCarpool, method: str, params: dict[str, Any]) -> Any:
    """One request on a connection of its own."""
    with ControlClient(private.directory, control=True) as door:
        door.initialize()
        return msgspec.json.decode(door.request(method, params, LIMIT_S))


async def broker_pid(private: PrivateCarpool, not_this: int) -> int:
    """The broker that serves now; waits for another one than the last."""
    with trio.fail_after(LIMIT_S):
        while True:
            try:
                facts = await trio.to_thread.run_sync(ask, private, "carpool/status", {})
            except Exception:  # noqa: BLE001 - it is being born
                await trio.sleep(0.02)
                continue
            pid = int(facts["broker"]["pid"])
            if pid != not_this and facts["supervisors"]:
                return pid
            await trio.sleep(0.02)


async def measure(private: PrivateCarpool, agents: int, kills: int, every_s: float) -> dict[str, Any]:
    """The whole run."""
    crowd = [ShimAgent(number) for number in range(agents)]
    begin, stop = trio.Event(), trio.Event()
    pauses: list[float] = []
    async with trio.open_nursery() as nursery:
        for agent in crowd:
            nursery.start_soon(agent.run, private, begin, stop)
        with trio.fail_after(LIMIT_S):
            while not all(agent.answers for agent in crowd):  # noqa: ASYNC110 - once, at the start
                await trio.sleep(0.05)
        begin.set()
        pid = 0
        for _ in range(kills):
            await trio.sleep(every_s)
            pid = await broker_pid(private, pid)
            killed = trio.current_time()
            os.kill(pid, signal.SIGKILL)
            with trio.fail_after(LIMIT_S):
                waiting = list(crowd)
                while waiting:
                    await trio.sleep(0.005)
                    pauses += [agent.last - killed for agent in waiting if agent.last > killed]
                    waiting = [agent for agent in waiting if agent.last <= killed]
        await trio.sleep(every_s)
        stop.set()
    call = {"name": "good__seen", "arguments": {}}
    said = await trio.to_thread.run_sync(ask, private, "tools/call", call)
    ran = Counter(text for text in json.loads(said["content"][0]["text"])["order"] if text.startswith("a"))
    sent = [f"a{agent.number}.{at}" for agent in crowd for at in range(agent.sent)]
    answers = Counter[str]()
    for agent in crowd:
        answers.update(agent.answers)
    facts = await trio.to_thread.run_sync(ask, private, "carpool/status", {})
    return {
        "agents": agents,
        "kills": kills,
        "calls": len(sent),
        "not_answered_once": sum(answers[text] != 1 for text in sent),
        "answered_badly": [message for agent in crowd for message in agent.bad][:5],
        "ran_twice": sum(count > 1 for count in ran.values()),
        "never_ran": sum(ran[text] == 0 for text in sent),
        "server_restarts": facts["servers"]["good"]["restarts"],
        "pause_p50_s": round(statistics.median(pauses), 3),
        "pause_worst_s": round(max(pauses), 3),
    }


def furnished() -> PrivateCarpool:
    """A carpool with the server of the run, not up yet."""
    private = PrivateCarpool("cpr-")
    server = {"command": sys.executable, "args": ["-S", "-E", str(OBSERVER)]}
    private.config_file.write_text(
        json.dumps({"mcpServers": {"good": {**server, "pool": {"max": 1}, "sharing": "concurrent"}}})
    )
    return private


def wrong(found: dict[str, Any]) -> bool:
    """Whether anything was lost, doubled or run twice."""
    return any(found[key] for key in ("not_answered_once", "answered_badly", "ran_twice", "never_ran"))


def main() -> int:
    """Run it. 1 when anything was lost, doubled or run twice."""
    parser = argparse.ArgumentParser(prog="python -m bench.reattach", description=__doc__)
    parser.add_argument("--agents", type=int, default=64)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--every-s", type=float, default=2.5, help="Seconds of calm before each kill.")
    arguments = parser.parse_args()
    private = furnished()
    try:
        private.up()
        found = trio.run(measure, private, arguments.agents, arguments.kills, arguments.every_s)
    finally:
        for line in private.close():
            print(line, file=sys.stderr)
    print(json.dumps(found, indent=1))
    return int(wrong(found))


if __name__ == "__main__":
    sys.exit(main())
