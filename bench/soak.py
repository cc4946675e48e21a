"""`python -m bench.soak`: carpool for a long time, with processes killed at random, and its memory drawn.

Two private carpools side by side, each with the same servers and agents behind `carpool connect`. In the
*stormy* one broker and supervisor are killed as well. In the *calm* one only servers' processes and
agents die, so its broker and supervisor live from the first second to the last, and what they might lose
of memory is seen. Each call carries a mark that its server writes down when it runs it; at the end every
request of an agent that lives must have exactly one answer, nothing may have run twice, and what was told
as not delivered must not have run. Meanwhile new seeds of the simulated world run in a process of their
own. Bounded by `--seconds`; ends what it has started. Writes `bench/out/soak.csv`; how that is shown is
`soak_report`'s.

Knows nothing of: how carpool survives anything.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import trio

from bench import soak_report
from carpool.bench.processes import own_bytes, pss_bytes
from carpool.launcher.own_command import carpool_argv
from carpool.launcher.sandbox import PrivateCarpool, PrivateCarpoolError

TOP = Path(__file__).parents[1]
TALLY = TOP / "tests" / "kit" / "servers" / "tally.py"
OUT = Path(__file__).with_name("out") / "soak.csv"
SERVERS = ("alpha", "beta", "gamma")
SAMPLE_S = 10.0
NAPS, NAP_S = 1 / 3, 1.5
"""So many of the calls last, and so long at most: kills are to hit calls in flight."""
ANSWER_S = 120.0
"""Past this a request counts as never answered."""
STORM = ("instance", "instance", "broker", "broker", "supervisor", "shim")
CALM = ("instance", "shim")


class SoakLedger:
    """Who asked for what, and what came of it. One per carpool."""

    def __init__(self) -> None:
        self.asked = 0
        self.ends: Counter[str] = Counter()
        self.done: set[str] = set()
        """Marks whose call was answered by its server."""
        self.never: set[str] = set()
        """Marks whose call was told as not delivered."""
        self.faults: list[str] = []
        self.longest_s = 0.0

    def judge(self, written: str) -> list[str]:
        """Return the broken promises, as sentences. `written`: the marks that the servers wrote down."""
        ran = Counter(line for line in written.split() if line)
        faults = list(self.faults)
        faults += [f"{mark} ran {count} times" for mark, count in ran.items() if count > 1]
        faults += [f"{mark} was told as not delivered and ran" for mark in self.never & ran.keys()]
        faults += [f"{mark} was answered and never ran" for mark in self.done - ran.keys()]
        return faults


class SoakAgent:
    """An agent behind a shim; killed, it comes again as another."""

    def __init__(
        self,
        number: int,
        private: PrivateCarpool,
        ledger: SoakLedger,
        chance: random.Random,
        pause_s: float = 0.2,
    ) -> None:
        """`pause_s`: the longest time between two bursts of calls."""
        self.pause_s = pause_s
        self.number = number
        self.private = private
        self.ledger = ledger
        self.chance = chance
        self.pid = 0
        self.lives = 0

    async def run(self, stop: trio.Event) -> None:
        """Live, die, and live again until `stop`."""
        while not stop.is_set():
            self.lives += 1
            await self._life(stop)

    async def _life(self, stop: trio.Event) -> None:
        process = await trio.lowlevel.open_process(
            [*carpool_argv(), "connect"],
            env=self.private.environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        self.pid = process.pid
        waiting: dict[int, trio.Event] = {}
        answers: dict[int, dict[str, Any]] = {}
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._listen, process.stdout, waiting, answers, nursery.cancel_scope)
                await self._talk(process.stdin, waiting, answers, stop)
                nursery.cancel_scope.cancel()
        except* trio.BrokenResourceError:
            pass  # its shim was killed
        finally:
            self.pid = 0
            with trio.CancelScope(shield=True):
                process.kill()
                await process.wait()
                await process.stdin.aclose()
                await process.stdout.aclose()

    async def _listen(
        self,
        stdout: trio.abc.ReceiveStream,
        waiting: dict[int, trio.Event],
        answers: dict[int, dict[str, Any]],
        scope: trio.CancelScope,
    ) -> None:
        rest = b""
        async for data in stdout:
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                message = json.loads(line)
                number = message.get("id")
                if "method" in message:
                    continue
                if number in answers or number not in waiting:
                    self.ledger.faults.append(f"agent {self.number}: a second answer, or one to nobody")
                else:
                    answers[number] = message
                    waiting[number].set()
        scope.cancel()

    async def _talk(
        self,
        stdin: trio.abc.SendStream,
        waiting: dict[int, trio.Event],
        answers: dict[int, dict[str, Any]],
        stop: trio.Event,
    ) -> None:
        number = 0
        writing = trio.Lock()

        async def ask(method: str, params: dict[str, Any]) -> dict[str, Any] | None:
            nonlocal number
            number += 1
            mine = number
            waiting[mine] = trio.Event()
            line = {"jsonrpc": "2.0", "id": mine, "method": method, "params": params}
            async with writing:
                await stdin.send_all(json.dumps(line).encode() + b"\n")
            with trio.move_on_after(ANSWER_S):
                await waiting[mine].wait()
            del waiting[mine]
            answer = answers.get(mine)
            answers[mine] = {}  # that it was answered is all that counts from here on
            return answer

        about = {"name": f"soak{self.number}", "version": "1"}
        hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": about}
        if await ask("initialize", hello) is None:
            self.ledger.faults.append(f"agent {self.number}: no greeting")
            return
        await stdin.send_all(b'{"jsonrpc":"2.0","method":"notifications/initialized"}\n')
        while not stop.is_set():
            burst = self.chance.choice((1, 1, 2, 4))
            async with trio.open_nursery() as nursery:
                for _ in range(burst):
                    mark = f"{self.number}-{self.lives}-{number}-{self.chance.getrandbits(32):08x}"
                    nursery.start_soon(self._call, ask, mark)
            await trio.sleep(self.chance.uniform(0.0, self.pause_s))

    async def _call(self, ask: Any, mark: str) -> None:
        server = self.chance.choice(SERVERS)
        self.ledger.asked += 1
        began = time.monotonic()
        arguments: dict[str, Any] = {"mark": mark, "how": "at once"}
        if self.chance.random() < NAPS:
            arguments = {"mark": mark, "how": "nap", "nap_s": self.chance.uniform(0.1, NAP_S)}
        answer = await ask("tools/call", {"name": f"{server}__run", "arguments": arguments})
        self.ledger.longest_s = max(self.ledger.longest_s, time.monotonic() - began)
        if answer is None:
            self.ledger.faults.append(f"agent {self.number}: {mark} was never answered")
            return
        result = answer.get("result", {})
        error = result.get("_meta", {}).get("carpool/error")
        if "error" in answer:
            self.ledger.ends[f"error {answer['error'].get('code')}"] += 1
        elif error is None:
            self.ledger.ends["answered"] += 1
            self.ledger.done.add(mark)
            if not result["content"][0]["text"].startswith(mark):
                self.ledger.faults.append(f"agent {self.number}: {mark} got another call's answer")
        else:
            self.ledger.ends[f"{error['code']} ({error['delivered']})"] += 1
            if error["delivered"] == "no":
                self.ledger.never.add(mark)


class SoakedCarpool:
    """One private carpool with its agents."""

    def __init__(
        self, name: str, victims: tuple[str, ...], agents: int, chance: random.Random, *, supervisors: int
    ) -> None:
        self.name = name
        self.supervisors = supervisors
        self.victims = victims
        self.chance = chance
        self.private = PrivateCarpool("cps-")
        self.ledger = SoakLedger()
        self.file = self.private.base / "ledger"
        self.agents = [SoakAgent(number, self.private, self.ledger, chance) for number in range(agents)]
        self.kills: Counter[str] = Counter()

    def start(self) -> None:
        """Bring it up."""
        server = {
            "command": sys.executable,
            "args": ["-S", "-E", str(TALLY), str(self.file)],
            "sharing": "concurrent",
            "restart": {"give_up_after": 1000, "max_delay_s": 1},
        }
        config = {"mcpServers": dict.fromkeys(SERVERS, server), "supervisors": self.supervisors}
        self.private.config_file.write_text(json.dumps(config))
        self.private.up()

    async def processes(self) -> list[dict[str, Any]]:
        """As `carpool ps` shows them; none while nobody can say."""
        try:
            said = await trio.to_thread.run_sync(self.private.run_carpool, "ps", "--json")
        except PrivateCarpoolError:
            return []
        return msgspec.json.decode(said, type=dict[str, list[dict[str, Any]]])["processes"]

    async def storm(self, every_s: float, stop: trio.Event) -> None:
        """Kill one process after the other."""
        while not stop.is_set():
            with trio.move_on_after(self.chance.uniform(0.5, 1.5) * every_s):
                await stop.wait()
                return
            victim = self.chance.choice(self.victims)
            pid = await self._find(victim)
            if pid:
                os.kill(pid, signal.SIGKILL)
                self.kills[victim] += 1

    async def _find(self, victim: str) -> int:
        if victim == "shim":
            return self.chance.choice(self.agents).pid
        pids = [row["pid"] for row in await self.processes() if row["role"] == victim and row["pid"]]
        return self.chance.choice(pids) if pids else 0

    def judge(self) -> list[str]:
        """What went wrong, in sentences; empty is well."""
        return self.ledger.judge(self.file.read_text())


async def watch(private: SoakedCarpool, began: float, rows: list[dict[str, Any]], stop: trio.Event) -> None:
    """Memory of its processes, every `SAMPLE_S`."""
    while not stop.is_set():
        for row in await private.processes():
            if row["role"] in {"instance", "shim"}:
                continue
            sizes = {"pss_bytes": pss_bytes(row["pid"]), "own_bytes": own_bytes(row["pid"])}
            if None not in sizes.values():
                at_s = round(time.monotonic() - began, 1)
                rows.append(
                    {"at_s": at_s, "carpool": private.name, "role": row["role"], "pid": row["pid"], **sizes}
                )
        with trio.move_on_after(SAMPLE_S):
            await stop.wait()


async def storms(for_s: float, first: int) -> tuple[str, list[str]]:
    """Storms of the simulated world for so long: its last line, and the words about each broken seed."""
    done = await trio.run_process(
        ["nice", sys.executable, "-m", "tests.world.soak", f"{for_s:g}", str(first)],
        cwd=TOP,
        capture_stdout=True,
        check=False,
    )
    *before, last = done.stdout.decode().splitlines() or ["it said nothing"]
    if done.returncode:
        return last, [*(line for line in before if line.startswith("seed ")), last]
    return last, []


async def soak(options: argparse.Namespace) -> int:
    """The whole run; the exit code."""
    chance = random.Random(options.seed)
    carpools = [
        SoakedCarpool("calm", CALM, options.agents, chance, supervisors=options.supervisors),
        SoakedCarpool("stormy", STORM, options.agents, chance, supervisors=options.supervisors),
    ]
    rows: list[dict[str, Any]] = []
    stop, over = trio.Event(), trio.Event()
    began = time.monotonic()
    worlds = "not run"
    troubles: list[str] = []
    try:
        for private in carpools:
            private.start()
        async with trio.open_nursery() as nursery:

            async def simulate() -> None:
                nonlocal worlds
                worlds, broken = await storms(options.seconds, options.first_seed)
                troubles.extend(f"simulated world: {each}" for each in broken)

            if options.worlds:
                nursery.start_soon(simulate)
            for private in carpools:
                nursery.start_soon(private.storm, options.every, stop)
                nursery.start_soon(watch, private, began, rows, over)
                for agent in private.agents:
                    nursery.start_soon(agent.run, stop)
            await trio.sleep(options.seconds)
            stop.set()
            await trio.sleep(3.0)
            over.set()
        for private in carpools:
            troubles += [f"{private.name}: {each}" for each in private.judge()]
    finally:
        for private in carpools:
            troubles += [f"{private.name}: {each}" for each in private.private.close()]
    soak_report.write(rows, OUT)
    if options.plot:
        soak_report.draw(rows, Path(options.plot))
    report(carpools)
    print(f"simulated world: {worlds}\n")
    print(soak_report.growth(rows))
    for each in troubles[:20]:
        print(f"WRONG: {each}")
    return 1 if troubles else 0


def report(carpools: list[SoakedCarpool]) -> None:
    """What people want to know first."""
    for private in carpools:
        ledger = private.ledger
        kills = ", ".join(f"{count} {what}" for what, count in sorted(private.kills.items()))
        ends = ", ".join(f"{count} {what}" for what, count in ledger.ends.most_common())
        print(
            f"{private.name}: {ledger.asked} calls: {ends}; killed {kills}; longest {ledger.longest_s:.1f} s"
        )


def main(argv: list[str]) -> int:
    """The exit code: 1 when anything went wrong."""
    parser = argparse.ArgumentParser(prog="python -m bench.soak", description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("--every", type=float, default=5.0, help="seconds between two kills, on average")
    parser.add_argument("--agents", type=int, default=16, help="agents of each carpool")
    parser.add_argument("--supervisors", type=int, default=1, help="supervisors of each carpool")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().getrandbits(31))
    parser.add_argument(
        "--first-seed", type=int, default=random.SystemRandom().getrandbits(31), help="of the simulated world"
    )
    parser.add_argument("--no-worlds", dest="worlds", action="store_false", help="the live part only")
    parser.add_argument("--plot", default="", help="draw the memory into this SVG file")
    options = parser.parse_args(argv)
    if options.plot and (missing := soak_report.missing_for_plot()):
        parser.error(missing)
    print(f"soak: seed {options.seed}, {options.seconds:g} s", file=sys.stderr)
    return trio.run(soak, options)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
