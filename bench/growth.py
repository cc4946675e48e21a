"""`python -m bench.growth`: operations at 10, 100 and 1,000 agents, servers or tools, and how their cost
grows.

Three tables. *Growth*: CPU seconds of the broker (a row may name another process) for one operation, at each
size, and the exponent: the slope of the line through the points in log-log. 1 means that ten times as many
cost ten times as much. *One changed tool*: three crowds of agents hold the list of 20 servers, and one tool
changes: the broker's CPU for telling them, and the longest wait meanwhile of a call of a further agent at
another server. *A start*: 100 servers that were never seen start together while an agent lists, and lists
again whenever it is told. With `--before REVISION` the last two are measured with that revision as well, in
turns. `--write` puts the tables between the marks of docs/benchmarks.md.

A row is added to `ROWS`: a function from a size to seconds. Bounded; ends what it started.
Knows nothing of: how lists are compared.
"""

import argparse
import contextlib
import itertools
import json
import math
import selectors
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from bench import growth_offers
from bench.other_agent import GREETING, LIMIT_S, LIST, Agent, OtherAgent
from bench.revisions import HERE, Tree, process_cpu_s

SIZES: Final = (10, 100, 1000)
REPEATS: Final = 5
"""Each operation is done so often; the figure is the least, because other work only adds."""
PAGE: Final = HERE / "docs" / "benchmarks.md"
BEGIN: Final = "<!-- Made by `python -m bench.growth --write`: begin -->"
END: Final = "<!-- Made by `python -m bench.growth --write`: end -->"
ABOUT: Final = "Does one thing well, with the arguments that its schema names, and says what it did. "
SERVER: Final = """
import json, sys
count, about = int(sys.argv[1]), sys.argv[2]
version = 0
schema = {"type": "object", "properties": {"path": {"type": "string"}, "count": {"type": "integer"}}}
rest = [{"name": f"t{at}", "description": about, "inputSchema": schema} for at in range(1, count)]
def send(message):
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\\n"); sys.stdout.flush()
for line in sys.stdin:
    message = json.loads(line)
    method, id_ = message.get("method"), message.get("id")
    if id_ is None or method is None:
        continue
    if method == "initialize":
        result = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {"listChanged": True}},
                  "serverInfo": {"name": "many", "version": "1"}}
    elif method == "tools/list":
        result = {"tools": [{"name": "t0", "description": f"{about}{version}", "inputSchema": schema}, *rest]}
    else:
        path = message["params"]["arguments"].get("path", "")
        result = {"content": [{"type": "text", "text": "done" + "x" * int(path if path.isdigit() else 0)}]}
    send({"id": id_, "result": result})
    if method == "tools/call" and message["params"]["arguments"].get("path") == "change":
        version += 1
        send({"method": "notifications/tools/list_changed"})
"""


class Carpool:
    """A carpool of one revision with servers of the bench."""

    def __init__(self, source: Path, servers: dict[str, int], settings: dict[str, Any] | None = None) -> None:
        """`servers`: the number of tools of each. `settings`: more settings of the file."""
        self._settings = settings or {}
        self._scratch = tempfile.TemporaryDirectory(prefix="cpg")
        place = Path(self._scratch.name)
        self._tree = Tree(source, place / "r")
        self.directory = str(place / "r")
        (place / "server.py").write_text(SERVER)
        self._program = str(place / "server.py")
        self._config = place / "carpool.json"
        self.configure(servers)
        self.agents: list[Agent] = []
        self._tree.carpool("up", "--detach", "--config", str(self._config))

    def configure(self, servers: dict[str, int]) -> None:
        """Write the configuration."""
        entries = {
            name: {
                "command": sys.executable,
                "args": ["-S", "-E", self._program, str(tools), ABOUT],
                "sharing": "concurrent",
            }
            for name, tools in servers.items()
        }
        settings = {"max_instances": len(servers) + 8, **self._settings}
        self._config.write_text(json.dumps({"mcpServers": entries, **settings}))

    def run(self, *words: str) -> str:
        """Run a verb."""
        return self._tree.carpool(*words)

    def status(self) -> dict[str, Any]:
        """Return what `carpool status --json` says."""
        found: dict[str, Any] = json.loads(self.run("status", "--json"))
        return found

    def come(self, count: int = 1) -> list[Agent]:
        """Attach agents that greet and list."""
        for _ in range(count):
            agent = Agent(self.directory)
            agent.ask(GREETING, 0)
            agent.ask(LIST, 1)
            self.agents.append(agent)
        return self.agents[len(self.agents) - count :]

    def leave(self, count: int) -> None:
        """Let the last agents go."""
        for agent in self.agents[-count:]:
            agent.sock.close()
        del self.agents[-count:]

    def list_again(self) -> None:
        """Let every agent list, and forget what it was told."""
        for agent in self.agents:
            agent.ask(LIST, 1)
            agent.told = 0

    def change_one_tool(self, by: Agent, server: str) -> None:
        """Change one tool of a server, and wait until every agent is told."""
        by.call(f"{server}__t0", "change")
        waiting = {agent for agent in self.agents if not agent.told}
        with selectors.DefaultSelector() as selector:
            for agent in waiting:
                selector.register(agent.sock, selectors.EVENT_READ, agent)
            end_s = time.monotonic() + LIMIT_S
            while waiting and time.monotonic() < end_s:
                for key, _ in selector.select(1.0):
                    key.data.lines()
                    if key.data.told:
                        waiting.discard(key.data)
                        selector.unregister(key.fd)
        if waiting:
            raise SystemExit(f"bench: {len(waiting)} agents were not told")

    def pid(self, process: Literal["broker", "supervisor"] = "broker") -> int:
        """Return that of a process of carpool."""
        status = self.status()
        found = status["broker"] if process == "broker" else status["supervisors"][0]
        return int(found["pid"])

    def close(self) -> None:
        """End everything."""
        for agent in self.agents:
            agent.sock.close()
        self._tree.carpool("down")
        self._scratch.cleanup()


@contextlib.contextmanager
def carpool(
    source: Path, servers: dict[str, int], settings: dict[str, Any] | None = None
) -> Iterator[Carpool]:
    """A carpool for the length of the block."""
    found = Carpool(source, servers, settings)
    try:
        yield found
    finally:
        found.close()


def cost_s(pid: int, work: Callable[[], object], prepare: Callable[[], object] = lambda: None) -> float:
    """Return the least CPU time of the process for the work, over `REPEATS`."""
    taken: list[float] = []
    for _ in range(REPEATS):
        prepare()
        before_s = process_cpu_s(pid)
        work()
        time.sleep(0.05)  # what follows the answer is part of it
        taken.append(process_cpu_s(pid) - before_s)
    return min(taken)


# --- growth ------------------------------------------------------------------------------------------------


class Row(NamedTuple):
    """One operation, and how to measure its cost at a size."""

    operation: str
    measure: Callable[[int], float]
    sizes: tuple[int, ...] = SIZES


def _told_by_agents(agents: int) -> float:
    with carpool(HERE, {"many": 20}) as here:
        here.come(agents)
        caller = here.come()[0]
        return cost_s(here.pid(), lambda: here.change_one_tool(caller, "many"), here.list_again)


def _told_by_tools(tools: int) -> float:
    with carpool(HERE, {"many": tools}) as here:
        here.come(10)
        caller = here.agents[0]
        return cost_s(here.pid(), lambda: here.change_one_tool(caller, "many"), here.list_again)


def _attach(agents: int) -> float:
    with carpool(HERE, {"many": 20}) as here:
        here.come(agents)
        pid = here.pid()
        found = cost_s(pid, lambda: here.come(10), lambda: here.leave(max(0, len(here.agents) - agents)))
        return found / 10


def _detach(agents: int) -> float:
    with carpool(HERE, {"many": 20}) as here:
        here.come(agents)
        return cost_s(here.pid(), lambda: here.leave(10), lambda: here.come(10)) / 10


def _later_list(tools: int) -> float:
    with carpool(HERE, {"many": tools}) as here:
        agent = here.come()[0]
        return cost_s(here.pid(), lambda: agent.ask(LIST, 1))


def _status(agents: int) -> float:
    with carpool(HERE, {"many": 20}) as here:
        here.come(agents)
        return cost_s(here.pid(), here.status)


def _configuration(servers: int) -> float:
    with carpool(HERE, {}) as here:
        turns = itertools.count(1)

        def change() -> None:  # each time other tools, so that every server has another launch
            tools = next(turns)
            here.configure({f"s{at}": tools for at in range(servers)})
            here.run("reload")

        return cost_s(here.pid(), change)


ROWS: Final = (
    Row("one tool of 20 changes, of so many agents", _told_by_agents),
    Row("one tool changes, of so many, 10 agents", _told_by_tools),
    Row("an agent comes and lists, beside so many agents", _attach),
    Row("an agent leaves, beside so many agents", _detach),
    Row("a later list of so many tools", _later_list),
    Row("`status`, of so many agents", _status),
    Row("a changed configuration, of so many servers", _configuration),
    Row("a node makes its offer of so many servers (node's process)", growth_offers.make_own_offer),
    Row("a node takes up another one's offer of so many (node's process)", growth_offers.take_up_offer),
    Row("a node writes so many servers of another one (node's process)", growth_offers.write_servers),
)


def exponent(figures: Sequence[tuple[int, float]]) -> float:
    """Return the slope of the line through these points in log-log (least squares)."""
    points = [(math.log(size), math.log(max(cost, 1e-9))) for size, cost in figures]
    mean_x = sum(x for x, _ in points) / len(points)
    mean_y = sum(y for _, y in points) / len(points)
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / sum((x - mean_x) ** 2 for x, _ in points)


def growth_table(rows: Sequence[Row]) -> list[str]:
    """Measure every row; return the table."""
    lines = [
        "| operation | at 10 | at 100 | at 1,000 | exponent |",
        "|---|---|---|---|---|",
    ]
    for row in rows:
        figures = [(size, row.measure(size)) for size in row.sizes]
        cells = " | ".join(f"{1000 * cost:.2f} ms" for _, cost in figures)
        lines.append(f"| {row.operation} | {cells} | {exponent(figures):.2f} |")
        print(lines[-1], flush=True)
    return lines


# --- one changed tool, and a start -------------------------------------------------------------------------

CROWDS: Final = ((200, 20, 20), (950, 20, 20), (70, 20, 500))
"""Agents, servers, tools of each."""


class Told(NamedTuple):
    """The cost of one changed tool."""

    cpu_s: float
    wait_s: float
    """The longest wait of a call at another server."""


def one_change(source: Path, agents: int, servers: int, tools: int) -> Told | None:
    """Return the cost of one changed tool; None if the broker was replaced meanwhile."""
    with carpool(source, {"echo": 1, **{f"s{at}": tools for at in range(servers)}}) as here:
        caller = here.come()[0]
        while count_tools(caller) < servers * tools + 1:
            time.sleep(0.2)
        here.come(agents - 1)
        here.list_again()
        pid = here.pid()
        other = OtherAgent(here.directory)
        before_s = process_cpu_s(pid)
        try:
            here.change_one_tool(caller, "s0")
            cpu_s = process_cpu_s(pid) - before_s
        except (SystemExit, FileNotFoundError):
            other.kill()
            return None
        return Told(cpu_s, other.worst_s())


class Started(NamedTuple):
    """The figures of the first start of many servers."""

    first_list_s: float
    in_first_list: float
    """The part of the tools that the first list had."""
    complete_s: float
    told: int
    """The number of `list_changed`."""
    broker_cpu_s: float
    supervisor_cpu_s: float


def first_start(source: Path, servers: int, tools: int) -> Started:
    """Return how 100 unknown servers start, for an agent that lists again whenever it is told."""
    with carpool(source, {f"s{at}": tools for at in range(servers)}) as here:
        pids = here.pid(), here.pid("supervisor")
        before_s = [process_cpu_s(pid) for pid in pids]
        began_s = time.perf_counter()
        agent = Agent(here.directory)
        agent.ask(GREETING, 0)
        wanted = servers * tools
        known, first_list_s, part = 0, 0.0, 0.0
        while True:
            told = agent.told
            known = count_tools(agent)
            if not first_list_s:
                first_list_s, part = time.perf_counter() - began_s, known / wanted
            if known == wanted:
                break
            while agent.told == told:
                agent.lines()
        used = [process_cpu_s(pid) - before for pid, before in zip(pids, before_s, strict=True)]
        return Started(first_list_s, part, time.perf_counter() - began_s, agent.told, *used)


def count_tools(agent: Agent) -> int:
    """Return the length of the whole list."""
    found = 0
    params: dict[str, str] = {}
    while True:
        request = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": params}
        page = json.loads(agent.ask(json.dumps(request).encode() + b"\n", 1))["result"]
        found += len(page["tools"])
        if "nextCursor" not in page:
            return found
        params = {"cursor": page["nextCursor"]}


def scenario_tables(arms: dict[str, Path]) -> list[str]:
    """Measure both scenarios with each revision, in turns; return the tables."""
    lines = [
        "| agents x servers x tools | | broker CPU | longest wait of a call elsewhere |",
        "|---|---|---|---|",
    ]
    for agents, servers, tools in CROWDS:
        for name, source in arms.items():
            told = one_change(source, agents, servers, tools)
            cells = (
                "agents were cut off, or not told in 120 s |"
                if told is None
                else f"{told.cpu_s:.2f} s | {told.wait_s:.2f} s"
            )
            lines.append(f"| {agents} x {servers} x {tools} | {name} | {cells} |")
            print(lines[-1], flush=True)
    lines += [
        "",
        "| first start, 100 x 20 tools | first list | complete | list_changed | broker CPU | supervisor |",
        "|---|---|---|---|---|---|",
    ]
    for name, source in arms.items():
        it = first_start(source, 100, 20)
        lines.append(
            f"| {name} | {it.first_list_s:.1f} s, {100 * it.in_first_list:.0f} % | {it.complete_s:.1f} s | "
            f"{it.told} | {it.broker_cpu_s:.2f} s | {it.supervisor_cpu_s:.2f} s |"
        )
        print(lines[-1], flush=True)
    return lines


def write_page(lines: Sequence[str]) -> None:
    """Put these lines between the marks of the page."""
    text = PAGE.read_text()
    head, rest = text.split(BEGIN)
    tail = rest.split(END)[1]
    PAGE.write_text("\n".join([f"{head}{BEGIN}", "", *lines, "", f"{END}{tail}"]))


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(prog="python -m bench.growth", description=__doc__.partition("\n")[0])
    parser.add_argument("--before", metavar="REVISION", help="measure the scenarios with this revision, too")
    parser.add_argument("--only", choices=["growth", "scenarios"], help="leave the other tables out")
    parser.add_argument("--write", action="store_true", help="write the tables into docs/benchmarks.md")
    options = parser.parse_args()
    lines: list[str] = []
    if options.only != "scenarios":
        lines += growth_table(ROWS)
    if options.only != "growth":
        with tempfile.TemporaryDirectory(prefix="cpg") as scratch:
            arms = {"now": HERE}
            if options.before:
                before = Path(scratch) / "before"
                subprocess.run(["git", "clone", "--quiet", str(HERE), str(before)], check=True)
                subprocess.run(["git", "-C", str(before), "checkout", "--quiet", options.before], check=True)
                arms = {"before": before, **arms}
            lines += [""] * bool(lines) + scenario_tables(arms)
    if options.write:
        write_page(lines)


if __name__ == "__main__":
    main()
