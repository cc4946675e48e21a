"""The report at the end of `carpool demo`: one table for people, one object for programs.

Owns the words and the layout, at most 80 columns. Everything shown was measured in this run, or is
arithmetic that is shown with it. Pure. Knows nothing of: how it was measured (`run`), the end.
"""

import textwrap
from typing import Any

from carpool.demo import figures
from carpool.demo.figures import OTHER, VICTIM, PrivateFigures, SharedFigures
from carpool.demo.questions import MODULES
from carpool.terminal import display

Facts = dict[str, Any]

NEXT = (
    "Your own servers: `carpool setup` moves those of your programs to carpool, and\n"
    "`carpool add NAME COMMAND` adds one."
)
"""The next step for a reader who has seen enough."""

_WIDTH = 80


def facts(
    agents: int, memory_kind: str, cpus: int | None, private: PrivateFigures, shared: SharedFigures
) -> Facts:
    """Everything the demo found, with stable keys: `--json`, and what `table` lays out."""
    firsts = [shared.first_s, *shared.later_s]
    kill = figures.kill(shared.struck, VICTIM, shared.killed_s)
    ended = figures.answers([*private.lap, *shared.lap, *shared.steady, *shared.struck])
    own_bytes = sum(shared.own.values())
    instance_bytes = sum(shared.instances.values())
    return {
        "agents": agents,
        "servers": list(MODULES),
        "memory_kind": memory_kind,
        "cpus": cpus,
        "carpool": {
            "processes": {
                "servers": shared.instance_count,
                "own": len(shared.own),
                "shims": agents,
                "together": shared.instance_count + len(shared.own) + agents,
            },
            "memory_bytes": {
                "servers": instance_bytes,
                "own": own_bytes,
                "shims": shared.shim_bytes,
                "together": instance_bytes + own_bytes + shared.shim_bytes,
                "each_further_agent": shared.shim_bytes // agents,
            },
            "each_bytes": {**shared.own, **shared.instances},
        },
        "private": {
            "processes": agents * len(MODULES),
            "measured_bytes": private.memory.measured_bytes,
            "each_further_bytes": private.memory.each_further_bytes,
            "scaled_bytes": private.memory.scaled_bytes,
        },
        "first_answer_s": {
            "first_agent": shared.first_s,
            "later_agents_p50": figures.middle(shared.later_s),
            "worst": max(firsts),
            "private_p50": figures.middle(private.firsts_s),
        },
        "alone_p50_s": {
            name: {
                "carpool": figures.alone(shared.lap, name),
                "private": figures.alone(private.lap, name),
            }
            for name in MODULES
        },
        "together": {
            name: _fields(figures.speed(shared.steady, name, shared.from_s, shared.to_s)) for name in MODULES
        },
        "kill": {"server": VICTIM, "pid": shared.pid, "new_pid": shared.new_pid, **_fields(kill)},
        "sessions_after_kill": shared.sessions,
        "answers": _fields(ended),
    }


def problems(found: Facts) -> list[str]:
    """Return the reasons why this run is no success, whatever its figures; empty if it is one."""
    wrong = []
    ended = found["answers"]
    if ended["wrong"] or ended["failed"] or not ended["right"]:
        wrong.append(f"{ended['wrong']} answers were wrong and {ended['failed']} calls failed for good")
    if found["sessions_after_kill"] != found["agents"]:
        wrong.append(
            f"{found['sessions_after_kill']} of {found['agents']} agents were attached after the kill"
        )
    if found["kill"]["back_after_s"] is None:
        wrong.append("the killed server never answered again")
    return wrong


# --- for people -----------------------------------------------------------------------------------------


def opening(agents: int) -> str:
    """Return the introduction to the demo, for a reader who does not know carpool."""
    servers = " and ".join(MODULES)
    text = (
        f"{_count(agents, 'agent')}, {len(MODULES)} MCP servers ({servers}). Usually every agent starts its"
        f" own copy of every server: {agents * len(MODULES)} server processes. With carpool each "
        "server runs once, supervised, and all agents share it. Here are both, measured now."
    )
    return textwrap.fill(text, _WIDTH) + "\n"


def table(found: Facts) -> str:
    """The whole result."""
    parts = [_memory_part(found), _speed_part(found), _load_part(found), _kill_part(found)]
    return "\n\n".join(parts)


def _memory_part(found: Facts) -> str:
    ours, theirs, kind = found["carpool"], found["private"], found["memory_kind"]
    processes, size = ours["processes"], ours["memory_bytes"]
    scaled = display.size(theirs["scaled_bytes"])
    copies = theirs["processes"]
    agents, count = found["agents"], len(theirs["measured_bytes"])
    further = display.size(theirs["each_further_bytes"])
    rows = [
        f"{'':<{_LABEL + 2}}{'WITH CARPOOL':>19}{'A COPY FOR EACH AGENT':>25}",
        _row("", "processes", kind, "processes", kind),
        _row(
            f"MCP servers ({', '.join(found['servers'])})",
            processes["servers"],
            display.size(size["servers"]),
            copies,
            scaled,
        ),
        _row("carpool's own", processes["own"], display.size(size["own"]), "-", "-"),
        _row("`carpool connect`, one per agent", processes["shims"], display.size(size["shims"]), "-", "-"),
        _row("together", processes["together"], display.size(size["together"]), copies, scaled),
        _row(
            "one more agent adds",
            "1",
            display.size(size["each_further_agent"]),
            len(found["servers"]),
            further,
        ),
        "",
    ]
    ratio = theirs["scaled_bytes"] / size["together"]
    rows.append(
        f"  {ratio:.1f} times less memory with carpool."
        if ratio >= 1
        else "  So few agents do not pay for carpool's own processes."
    )
    if kind == "PSS":
        rows.append("  (PSS: a page that several processes share is divided among them.)")
    else:
        rows.append("  (RSS: this system tells no PSS, so pages that processes share count for each.)")
    measured = [display.size(each) for each in theirs["measured_bytes"]]
    rows.append(f"  Copies measured for {_span(count)}: {', '.join(measured)}.")
    if agents > count:
        rows.append(
            f"  Scaled to {agents} agents: {measured[-1]} + {agents - count} more x {further} = {scaled}."
        )
    return "\n".join(rows)


def _speed_part(found: Facts) -> str:
    first = found["first_answer_s"]
    copy = _time(first["private_p50"])
    rows = [
        f"{'':<{_LABEL + 2}}{'WITH CARPOOL':>19}{'A COPY FOR EACH AGENT':>25}",
        "  from attaching to first answers",
        _row("    first agent (servers start)", "", _time(first["first_agent"]), "", copy),
    ]
    if first["later_agents_p50"] is not None:
        label = f"    {found['agents'] - 1} more at once, p50"
        rows.append(_row(label, "", _time(first["later_agents_p50"]), "", f"{copy} each"))
    rows.append("  one agent working alone, p50")
    for name, each in found["alone_p50_s"].items():
        rows.append(_row(f"    {name}", "", _time(each["carpool"]), "", _time(each["private"])))
    return "\n".join(rows)


def _load_part(found: Facts) -> str:
    label = f"{_count(found['agents'], 'agent')} calling without a pause"
    rows = [f"  {label:<{_LABEL}}{'calls/s':>9}{'p50':>10}{'p99':>13}"]
    for name, each in found["together"].items():
        cells = f"{each['per_s']:>9,.0f}{_time(each['p50_s']):>10}{_time(each['p99_s']):>13}"
        rows.append(f"  {'  ' + name:<{_LABEL}}{cells}")
    cpus = _count(found["cpus"], "CPU") if found["cpus"] else "the CPUs"
    rows.append(f"  (agents, carpool and servers share {cpus} here)")
    return "\n".join(rows)


def _kill_part(found: Facts) -> str:
    kill = found["kill"]
    lines = [
        f"  In the middle of such work: kill -9 of process {kill['pid']}, the {kill['server']} server.",
    ]
    if kill["lost"]:
        lines += [
            f"  - {_count(kill['open_calls'], 'call')} open on it. {kill['lost']} ended as lost within "
            f"{_time(kill['lost_within_s'])}, saying honestly:",
            "    maybe executed. None hung. carpool repeats none by itself: only an agent",
            "    knows whether it may.",
        ]
    else:
        lines.append("  - No call was lost: none was open on it in that moment.")
    if kill["repeated_well"]:
        again = _count(kill["repeated_well"], "call")
        lines.append(f"  - Here the agents may: {again} made again, all answered right.")
    lines += [
        f"  - carpool started process {kill['new_pid']} instead. Its first answer came "
        f"{_time(kill['back_after_s'])} after",
        "    the kill, on CPUs busy with the other calls. No agent had to reconnect.",
        f"  - Meanwhile the {OTHER} server answered {_count(kill['others_meanwhile'], 'call')}, "
        f"the slowest in {_time(kill['others_slowest_s'])}.",
    ]
    return "\n".join(lines)


_LABEL = 34
"""Width of what stands before the figures."""


def _row(label: str, *cells: object) -> str:
    one, two, three, four = (str(cell) for cell in cells)
    return f"  {label:<{_LABEL}}{one:>9}{two:>10}{three:>13}{four:>12}".rstrip()


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _span(count: int) -> str:
    return "1 agent" if count == 1 else f"1 to {count} agents"


def _time(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    if seconds >= 1:
        return f"{seconds:.1f} s"
    return f"{seconds * 1000:.0f} ms" if seconds >= 0.01 else f"{seconds * 1000:.1f} ms"


def _fields(value: Any) -> Facts:
    return {name: getattr(value, name) for name in value.__struct_fields__}
