"""`python -m bench.overload`: what carpool does when it is asked for far more than there is.

Each scenario starts a private carpool, asks too much of it in one way while one other agent calls a good
server every 20 ms, and tells how every request ended (each exactly once), the calm agent's p50 and worst,
and the peak memory of broker, supervisor and spawner: RSS as the kernel counts its peak (`VmHWM`), PSS
sampled every 50 ms. The swarm has a lone agent beside it on the same server: its turns are how many calls
of others reached the server at most between its request and its start. `--json FILE` keeps everything, with
the memory over time.

Knows nothing of: how load is shed.
"""

import argparse
import itertools
import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from bench.calm import Calm
from bench.crowd import Crowd, CrowdAgent, CrowdAnswer
from carpool.bench import processes
from carpool.bench.spawn import until
from carpool.launcher.sandbox import PrivateCarpool

KIT = Path(__file__).parents[1] / "tests" / "kit" / "servers"
PARTS = ("broker", "supervisor", "spawner")
LIMIT_S = 180.0
MIB = 1 << 20


def server(name: str, **settings: Any) -> dict[str, Any]:
    return {"command": sys.executable, "args": ["-S", "-E", str(KIT / f"{name}.py")], **settings}


class OverloadRun:
    """One private carpool under one load."""

    def __init__(self, servers: Mapping[str, Any], scale: float, **settings: Any) -> None:
        self.scale = scale
        self.private = PrivateCarpool("cpo-")
        everything = {"good": server("echo"), **servers}
        self.private.config_file.write_text(json.dumps({"mcpServers": everything, **settings}))
        self.pids: dict[str, int] = {}
        try:
            self._begin()
        except BaseException:
            self.private.close()
            raise

    def _begin(self) -> None:
        self.private.up()
        until(self._all_seen, 20.0, "every process in status")
        self.curve: list[tuple[float, dict[str, int]]] = []
        self._began = time.monotonic()
        self.crowd = Crowd(self.private.directory, self._look)
        self.calm = Calm(self.private.directory, "good__echo", b'{"text":"x"}', 0.02)
        self.waits: list[float] = []
        for pid in self.pids.values():
            Path(f"/proc/{pid}/clear_refs").write_text("5")  # the peak begins anew (proc_pid_clear_refs)

    def _all_seen(self) -> bool:
        roles = {each["role"]: int(each["pid"]) for each in self.private.status()["processes"]}
        self.pids = {part: roles.get(part, 0) for part in PARTS}
        return all(self.pids.values())

    def count(self, full: int) -> int:
        return max(1, int(full * self.scale))

    def _look(self) -> None:
        seen = {part: processes.pss_bytes(pid) or 0 for part, pid in self.pids.items()}
        self.curve.append((time.monotonic() - self._began, seen))

    def settle(self, limit_s: float = LIMIT_S) -> None:
        """Until every request is answered, or its agent dropped; then a moment for memory to go back."""
        agents = self.crowd.agents
        self.crowd.run(limit_s, lambda: not any(each.open for each in agents if not each.dropped))
        self.waits = [took_s for took_s, _ in self.calm.heard()]
        self._look()

    def report(self, name: str) -> dict[str, Any]:
        ended = self.crowd.ended
        return {
            "scenario": name,
            "ended": {code: count for code, count in sorted(ended.items()) if count},
            "unanswered": self.crowd.unanswered(),
            "twice": self.crowd.doubles,
            "dropped_agents": sum(each.dropped for each in self.crowd.agents),
            "calm_p50_ms": round(statistics.median(self.waits) * 1000, 1),
            "calm_worst_ms": round(max(self.waits) * 1000, 1),
            "peak_rss_mib": {part: _peak_rss(pid) // MIB for part, pid in self.pids.items()},
            "peak_pss_mib": {part: max(seen[part] for _, seen in self.curve) // MIB for part in self.pids},
            "end_pss_mib": {part: seen // MIB for part, seen in self.curve[-1][1].items()},
            "curve": [(round(at, 2), seen) for at, seen in self.curve],
            "seconds": round(time.monotonic() - self._began, 1),
        }

    def close(self) -> None:
        self.calm.close()
        self.crowd.close()
        troubles = self.private.close()
        if troubles:
            raise SystemExit(f"bench: {troubles}")


def _peak_rss(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0


# --- the scenarios ---------------------------------------------------------------------------------------


def swarm(scale: float) -> dict[str, Any]:
    """500 agents with 64 calls in flight each on one slow pool, for 10 s; who is refused tries again."""
    scene = OverloadRun({"slow": server("turns")}, scale)
    lone = None
    try:
        over = False

        def again(agent: CrowdAgent) -> None:
            if not over:
                agent.call("slow__take", b'{"seconds":0.2}')

        def heard(agent: CrowdAgent, answer: CrowdAnswer) -> None:
            if answer.code:
                scene.crowd.later(1.0, lambda: again(agent))
            else:
                again(agent)

        agents = [scene.crowd.agent(heard) for _ in range(scene.count(500))]
        scene.crowd.greet()
        for agent in agents:
            for _ in range(64):
                again(agent)
        scene.crowd.run(1.0, lambda: False)
        lone = Calm(scene.private.directory, "slow__take", b'{"seconds":0}', 0.0)
        scene.crowd.run(10.0, lambda: False)
        told = lone.heard()
        over = True
        scene.settle()
        places = [tuple(map(int, text.split())) for _, text in told]
        row = scene.report("swarm")
        row["lone_calls"] = len(told)
        row["lone_p50_ms"] = round(statistics.median(took_s for took_s, _ in told) * 1000, 1)
        row["lone_worst_ms"] = round(max(took_s for took_s, _ in told) * 1000, 1)
        row["lone_worst_turns"] = max(place - now - 1 for (_, now), (place, _) in itertools.pairwise(places))
        return row
    finally:
        if lone is not None:
            lone.close()
        scene.close()


def arguments(scale: float) -> dict[str, Any]:
    """20 agents send 100 MB of arguments each, in calls of 5 MB, to a slow server."""
    scene = OverloadRun({"slow": server("turns")}, scale)
    try:
        load = b'{"seconds":2,"load":"%s"}' % (b"x" * 5_000_000)
        for _ in range(scene.count(20)):
            agent = scene.crowd.agent()
            for _ in range(20):
                agent.call("slow__keep", load)
        scene.settle()
        return scene.report("arguments")
    finally:
        scene.close()


def deaf_agent(scale: float) -> dict[str, Any]:
    """4 agents ask for 320 answers of 4 MiB each and never read."""
    scene = OverloadRun({"big": server("big")}, scale, session={"slow_reader_s": 5})
    try:
        agents = [scene.crowd.agent() for _ in range(4)]
        scene.crowd.greet()
        for agent in agents:
            agent.deaf = True
            for _ in range(scene.count(320)):
                agent.call("big__big", b'{"bytes":4194304}')
        scene.crowd.run(8.0, lambda: False)
        for agent in agents:  # the broker's end of file is behind what was never read
            agent.drop()
        scene.settle()
        log = Path(scene.private.directory, "state", "log", "broker.log")
        row = scene.report("deaf agent")
        row["log"] = [line[-120:] for line in log.read_text().splitlines() if "dropped" in line][:2]
        return row
    finally:
        scene.close()


def slow_agent(scale: float) -> dict[str, Any]:
    """An agent asks for 320 answers of 4 MiB and pauses for 10 ms after each read."""
    scene = OverloadRun({"big": server("big")}, scale)
    try:
        agent = scene.crowd.agent()
        scene.crowd.greet()
        agent.pause_s = 0.01
        for _ in range(scene.count(320)):
            agent.call("big__big", b'{"bytes":4194304}')
        scene.settle()
        return scene.report("slow agent")
    finally:
        scene.close()


def deaf_server(scale: float) -> dict[str, Any]:
    """20 agents send 64 calls of 1 MiB each to a server that never reads its stdin."""
    scene = OverloadRun({"deaf": server("never_reads", timeout_s=5, wait_s=5)}, scale)
    try:
        load = b'{"text":"%s"}' % (b"x" * MIB)
        for _ in range(scene.count(20)):
            agent = scene.crowd.agent()
            for _ in range(64):
                agent.call("deaf__echo", load)
        scene.settle()
        return scene.report("deaf server")
    finally:
        scene.close()


def flood(what: str, mib: int, *, deaf: bool = False) -> Callable[[float], dict[str, Any]]:
    """A server writes so much at once."""

    def run(scale: float) -> dict[str, Any]:
        scene = OverloadRun({"flood": server("flood", timeout_s=120)}, scale, session={"slow_reader_s": 5})
        try:
            agent = scene.crowd.agent()
            scene.crowd.greet()
            agent.call(f"flood__{what}", b'{"mib":%d}' % scene.count(mib), token=True)
            if deaf:
                scene.crowd.run(0.5, lambda: not agent.unsent)
                agent.deaf = True
                agent.watch()
                scene.crowd.run(10.0, lambda: False)
                agent.drop()
            scene.settle()
            row = scene.report(f"{what} of {scene.count(mib)} MiB{', nobody reads' if deaf else ''}")
            row["notices"] = agent.notices
            return row
        finally:
            scene.close()

    return run


SCENARIOS: dict[str, Callable[[float], dict[str, Any]]] = {
    "swarm": swarm,
    "arguments": arguments,
    "deaf-agent": deaf_agent,
    "slow-agent": slow_agent,
    "deaf-server": deaf_server,
    "line": flood("line", 1024),
    "strangers": flood("strangers", 1024),
    "junk": flood("junk", 1024),
    "logs": flood("logs", 1024),
    "progress": flood("progress", 1024),
    "progress-deaf": flood("progress", 1024, deaf=True),
    "logs-deaf": flood("logs", 1024, deaf=True),
}


def main(argv: list[str]) -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m bench.overload", description=__doc__.partition("\n")[0])
    parser.add_argument("--scenarios", default=",".join(SCENARIOS), help="with commas")
    parser.add_argument("--scale", type=float, default=1.0, help="of agents, calls and bytes (0.1: a tenth)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything, one object a scenario")
    options = parser.parse_args(argv)
    rows = []
    print("| scenario | how requests ended | dropped | calm ms | broker MiB | supervisor | spawner | s |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for name in options.scenarios.split(","):
        rows.append(SCENARIOS[name](options.scale))
        print(_said(rows[-1]), flush=True)
    if options.json is not None:
        options.json.write_text("".join(json.dumps(row) + "\n" for row in rows))
    if any(row["unanswered"] or row["twice"] for row in rows):
        raise SystemExit("bench: a request was not answered, or twice")


def _said(row: dict[str, Any]) -> str:
    """A row of the table: RSS at its peak, and PSS."""
    ended = ", ".join(f"{count:,} {code}" for code, count in row["ended"].items()) or "-"
    if "lone_calls" in row:
        ended += (
            f"; lone agent: {row['lone_calls']} calls, none refused, p50 {row['lone_p50_ms']:.0f} ms, "
            f"worst {row['lone_worst_ms']:.0f} ms, {row['lone_worst_turns']} turns at most"
        )
    memory = " | ".join(f"{row['peak_rss_mib'][part]} ({row['peak_pss_mib'][part]})" for part in PARTS)
    calm = f"{row['calm_p50_ms']}, {row['calm_worst_ms']}"
    dropped = row["dropped_agents"]
    return f"| {row['scenario']} | {ended} | {dropped} | {calm} | {memory} | {row['seconds']:.0f} |"


if __name__ == "__main__":
    main(sys.argv[1:])
