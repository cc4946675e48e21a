"""`python -m bench.cluster_faults`: what faults of processes and of the network cost calls across nodes.

Three nodes on this machine over NATS or ZeroMQ, B behind a cable (`linked_nodes`); agents at A call servers
of B, C and A while a fault of the table happens (`fault_scenarios`). Further scenarios have one node, whose
HTTP door some agents reach over such a cable. Each scenario has nodes of its own and prints its row: what was
sent, how it ended, what of it really ran, and how long agents waited. A call that is lost, runs twice, or is
told as not delivered and ran makes the command exit with 1. Bounded: by the seconds of each scenario, and by
the time after which a call counts as lost. Ends what it started. Appends the rows to
`bench/out/cluster_faults.jsonl`.

Knows nothing of: how carpool survives anything.
"""

import argparse
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import msgspec
import trio
from msgspec import Struct

from bench.cable_proxy import CableProxy
from bench.fault_agents import FaultAgent, FaultHttpAgent, FaultSocketAgent
from bench.fault_ledger import Figures, TalliedCall, figures
from bench.fault_scenarios import CLUSTER, DOOR, FAULT_S, MB, DoorScenario, FaultScenario
from bench.linked_nodes import LinkedNodes, LinkKind, TalliedCarpool
from tests.kit.open_door import open_door

OUT: Final = Path(__file__).with_name("out") / "cluster_faults.jsonl"
LINKS: Final[tuple[LinkKind, ...]] = ("nats", "zmq")
LOOKS_S: Final = (3.0, 23.0)
"""The seconds after the beginning of the fault at which the states are read."""
HEALTHY: Final = "without cable"
FAULTY: Final = "behind cable"
DOOR_AGENTS: Final = (8, 3)
"""Without a cable, and behind it."""
START_S: Final = 90.0


class ScenarioRow(Struct, kw_only=True):
    """The result of one scenario."""

    name: str
    text: str
    link: str
    rows: dict[str, Figures]
    """By target: the node of the server, or the kind of agents. The first one is that of the fault."""
    doubles: int = 0
    """Answers that came when nobody waited for one."""
    carried_bytes: int = 0
    """The bytes that B sent over its cable while the load ran, or that were sent to agents behind a cable."""
    looks: list[str] = []

    @property
    def broken(self) -> int:
        """The number of broken promises."""
        return sum(row.broken for row in self.rows.values()) + self.doubles

    @property
    def carried_per_answered(self) -> float | None:
        """The bytes on the cable for each byte of big answers; None: no big answer came."""
        answered = sum(row.big_bytes for row in self.rows.values())
        return self.carried_bytes / answered if answered else None


# --- the runs -------------------------------------------------------------------------------------


async def run_scenario(scenario: FaultScenario, kind: LinkKind) -> ScenarioRow:
    """Start nodes, load them, let the fault happen, and return the row."""
    nodes = LinkedNodes(kind)
    calls: list[TalliedCall] = []
    row = ScenarioRow(name=scenario.name, text=scenario.text, link=kind, rows={})
    try:
        async with trio.open_nursery() as outer:
            with trio.fail_after(START_S):
                await nodes.start(outer)
                agents = await _socket_agents(scenario, nodes, outer)
            with trio.fail_after(START_S):
                async with trio.open_nursery() as nursery:
                    for agent in agents:
                        nursery.start_soon(_call_before, agent, scenario.calls_before)
            for agent in agents:
                agent.calls = calls
            before = nodes.proxy.cable.there.carried_bytes
            async with trio.open_nursery() as nursery:
                _start_load(scenario, agents, nursery)
                for step in scenario.steps:
                    nursery.start_soon(_at, step.at_s, partial(step.act, nodes))
                for after_s in LOOKS_S if scenario.looks else ():
                    nursery.start_soon(_at, FAULT_S + after_s, partial(_look, nodes, row, after_s))
            row.carried_bytes = nodes.proxy.cable.there.carried_bytes - before
            row.doubles = sum(agent.doubles for agent in agents)
            outer.cancel_scope.cancel()
        ran = nodes.ran()
        for target in dict.fromkeys(
            name for name in ("b", "c", "a") for call in calls if call.target == name
        ):
            row.rows[target] = figures([call for call in calls if call.target == target], ran)
    finally:
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(nodes.close)
    return row


def rows_of(targets: Sequence[str], calls: Sequence[TalliedCall], ran: Counter[str]) -> dict[str, Figures]:
    """Return the figures of each target that was called. `ran`: how often each mark was written down."""
    of = {target: [call for call in calls if call.target == target] for target in targets}
    return {target: figures(its, ran) for target, its in of.items() if its}


async def _socket_agents(
    scenario: FaultScenario, nodes: LinkedNodes, outer: trio.Nursery
) -> list[FaultSocketAgent]:
    """Agents of the small calls, and after them those of the big ones. Each has called once."""
    count = scenario.load.agents
    if scenario.big is not None and not scenario.big.in_same_sessions:
        count += scenario.big.count
    agents = [FaultSocketAgent(f"{scenario.name}{number}", []) for number in range(count)]
    for agent in agents:
        await agent.start(nodes.a.agents_socket, outer)
        for server in dict.fromkeys(each.partition(" ")[0] for each in scenario.load.calls):
            await agent.call(server)
        if any(not call.is_ok for call in agent.calls):
            raise SystemExit(f"a call before the load failed: {agent.calls}")
    return agents


async def _call_before(agent: FaultSocketAgent, times: int) -> None:
    for _ in range(times):
        await agent.call("b")


def _start_load(scenario: FaultScenario, agents: Sequence[FaultSocketAgent], nursery: trio.Nursery) -> None:
    load, big = scenario.load, scenario.big
    for place, agent in enumerate(agents[: load.agents]):
        first_s = place * load.every_s / load.agents
        nursery.start_soon(
            _repeat, first_s, load.every_s, scenario.seconds, partial(_burst, agent, load.calls)
        )
    if big is not None:
        callers = agents if big.in_same_sessions else agents[load.agents :]
        for agent in callers[: big.count]:
            nursery.start_soon(_at, big.at_s, partial(agent.call, "b", size_bytes=big.size_bytes))


async def _burst(agent: FaultAgent, calls: Sequence[str]) -> None:
    async with trio.open_nursery() as nursery:
        for each in calls:
            server, _, nap = each.partition(" ")
            nursery.start_soon(partial(agent.call, server, nap=bool(nap)))


async def _at(at_s: float, act: Callable[[], Awaitable[None]]) -> None:
    await trio.sleep(at_s)
    await act()


async def _repeat(first_s: float, every_s: float, until_s: float, act: Callable[[], Awaitable[None]]) -> None:
    """Do so again and again, whether the last one has ended or not."""
    began = trio.current_time()
    async with trio.open_nursery() as nursery:
        at = first_s
        while at < until_s:
            await trio.sleep_until(began + at)
            nursery.start_soon(act)
            at += every_s


async def _look(nodes: LinkedNodes, row: ScenarioRow, after_s: float) -> None:
    row.looks += [f"after {after_s:g} s: {line}" for line in await nodes.look()]


async def run_door_scenario(scenario: DoorScenario) -> ScenarioRow:
    """Start a node with an HTTP door, load it, let the fault happen, and return the row."""
    node = TalliedCarpool("a")
    proxy = CableProxy()
    calls: list[TalliedCall] = []
    row = ScenarioRow(name=scenario.name, text=scenario.text, link="door", rows={})
    try:
        node.configure(http=open_door())
        await node.up()
        async with trio.open_nursery() as outer:
            direct = node.door_port
            cable = proxy.listen(outer, direct)
            async with trio.open_nursery() as nursery:
                for target, port, count in zip((HEALTHY, FAULTY), (direct, cable), DOOR_AGENTS, strict=True):
                    for number in range(count):
                        agent = FaultHttpAgent(f"{scenario.name}-{target[:6]}-{number}", calls, port, "/mcp")
                        burst = partial(_door_burst, agent, target)
                        nursery.start_soon(_repeat, number / count, 1.0, scenario.seconds, burst)
                        if target == FAULTY:
                            big = partial(agent.call, "a", target=target, size_bytes=scenario.size_bytes)
                            every_s = scenario.big_every_s
                            nursery.start_soon(_repeat, FAULT_S - 0.1, every_s, scenario.seconds, big)
                for step in scenario.steps:
                    nursery.start_soon(_door_step, proxy, step.at_s, step.act)
            row.carried_bytes = proxy.cable.back.carried_bytes
            outer.cancel_scope.cancel()
        row.rows = rows_of((FAULTY, HEALTHY), calls, node.ran())
    finally:
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(node.close)
    return row


async def _door_burst(agent: FaultHttpAgent, target: str) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(agent.call, "a", target=target))
        nursery.start_soon(partial(agent.call, "a", target=target, nap=True))


async def _door_step(proxy: CableProxy, at_s: float, act: Callable[[CableProxy], None]) -> None:
    await trio.sleep(at_s)
    act(proxy)


# --- the report -----------------------------------------------------------------------------------


def report(row: ScenarioRow) -> str:
    """Return the lines of a scenario."""
    lines = [f"{row.name} ({row.link}): {row.text}"]
    for target, figures_of in row.rows.items():
        lines.append(f"  to {target}: {_counts(figures_of)}")
        if figures_of.ok or figures_of.errors:
            lines.append(f"    {_times(figures_of)}")
        if figures_of.big:
            lines.append(f"    big answers: {', '.join(figures_of.big)}")
    if row.doubles:
        lines.append(f"  answers that nobody waited for: {row.doubles}")
    if row.carried_per_answered is not None:
        lines.append(f"  on the cable: {row.carried_per_answered:.2f} MB for each MB of big answers")
    elif any(each.big for each in row.rows.values()):
        lines.append(f"  on the cable: {row.carried_bytes / MB:.2f} MB, and no big answer came")
    lines += [f"  {line}" for line in row.looks]
    return "\n".join(lines)


def _counts(row: Figures) -> str:
    errors = ", ".join(f"{count} {name}" for name, count in row.errors.items()) or "no error"
    maybe = f"; of {row.maybe} maybe {row.maybe_ran} ran" if row.maybe else ""
    unkept = (
        f'lost {row.lost}, twice {row.twice}, "no" but ran {row.no_but_ran}, ok but not ran {row.ok_not_ran}'
    )
    return f"sent {row.sent}, ok {row.ok}, {errors}{maybe}; {unkept}"


def _times(row: Figures) -> str:
    after = f", an error after at most {row.error_after_s:.1f} s" if row.errors else ""
    return f"longest pause {row.pause_s:.1f} s, p50 {row.p50_s:.3f} s, p99 {row.p99_s:.3f} s{after}"


NONE: Final = "-"
HEAD: Final = (
    '| fault | link | sent | ok | errors | of maybe ran | lost, twice, "no" but ran | pause s | p50 / p99 s '
    "| error after s | big answers | MB for an MB |"
)


def markdown(rows: Sequence[ScenarioRow]) -> str:
    """Return the table of these scenarios, of the target of the fault."""
    lines = [HEAD, "|" + "---|" * (HEAD.count("|") - 1)]
    for row in rows:
        each = next(iter(row.rows.values()))
        per = row.carried_per_answered
        cells = (
            row.text,
            row.link,
            str(each.sent),
            str(each.ok),
            ", ".join(f"{count} {name}" for name, count in each.errors.items()) or NONE,
            f"{each.maybe_ran} of {each.maybe}" if each.maybe else NONE,
            f"{each.lost}, {each.twice}, {each.no_but_ran}",
            f"{each.pause_s:.1f}",
            f"{each.p50_s:.3f} / {each.p99_s:.3f}",
            f"{each.error_after_s:.1f}" if each.errors else NONE,
            _summary_of_big(each.big),
            NONE if per is None else f"{per:.2f}",
        )
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _summary_of_big(ends: Sequence[str]) -> str:
    """How the big calls ended: the answered ones by their times, the others by what they ended with."""
    good = sorted((end for end in ends if end.endswith(" s") and " at " not in end), key=_seconds)
    spread = [f"{good[0]} to {good[-1]}" if len(good) > 1 else good[0]] if good else []
    bad = Counter(end for end in ends if end not in good)
    return ", ".join([*spread, *(f"{count} {end}" for end, count in bad.items())]) or NONE


def _seconds(end: str) -> float:
    return float(end.removesuffix(" s"))


# --- the command ----------------------------------------------------------------------------------


def chosen(only: Sequence[str], link: str | None) -> list[tuple[FaultScenario | DoorScenario, str]]:
    """Return the runs that are wanted, each with its link. Raises `SystemExit` for an unknown name."""
    known = {each.name for each in (*CLUSTER, *DOOR)}
    if unknown := sorted(set(only) - known):
        raise SystemExit(f"no such scenario: {', '.join(unknown)}; there are: {', '.join(sorted(known))}")
    runs: list[tuple[FaultScenario | DoorScenario, str]] = [
        (scenario, kind)
        for kind in LINKS
        if link in (None, kind)
        for scenario in CLUSTER
        if kind in scenario.only and (not only or scenario.name in only)
    ]
    runs += [(each, "door") for each in DOOR if (not only and link is None) or each.name in only]
    return runs


async def _run(scenario: FaultScenario | DoorScenario, link: str) -> ScenarioRow:
    if isinstance(scenario, DoorScenario):
        return await run_door_scenario(scenario)
    return await run_scenario(scenario, "zmq" if link == "zmq" else "nats")


def main(argv: Sequence[str]) -> int:
    """Run the command. Returns 1 if a promise was broken."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.cluster_faults", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--link", choices=LINKS, help="both by default, and the HTTP door")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="these scenarios")
    parser.add_argument("--list", action="store_true", help="name the scenarios and run none")
    asked = parser.parse_args(argv)
    runs = chosen(asked.only, asked.link)
    if asked.list:
        for scenario, link in runs:
            print(f"{scenario.name:18} {link:5} {scenario.seconds:4g} s  {scenario.text}")
        return 0
    rows: list[ScenarioRow] = []
    OUT.parent.mkdir(exist_ok=True)
    for scenario, link in runs:
        began = time.monotonic()
        rows.append(trio.run(_run, scenario, link))
        print(f"{report(rows[-1])}\n  ({time.monotonic() - began:.0f} s)", flush=True)
        with OUT.open("ab") as file:
            file.write(msgspec.json.encode(rows[-1]) + b"\n")
    print(f"\n{markdown(rows)}")
    broken = sum(row.broken for row in rows)
    print(f"\nbroken promises: {broken}")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
