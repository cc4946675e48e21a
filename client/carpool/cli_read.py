"""Verbs that look at a running carpool and change nothing: `status`, `ps`, `tools`.

Owns how the broker's facts are laid out for people; programs get them as they are.
Refuses to know where the facts come from.
"""

from typing import Any

import click

from carpool import display
from carpool.cli import ask, fail, fail_at, json_option, open_door, print_json, the_place
from carpool.door import Door, DoorError

Facts = dict[str, Any]

NOTHING: Facts = {
    "healthy": False,
    "reason": "",
    "broker": None,
    "supervisors": [],
    "servers": {},
    "sessions": [],
    "totals": {
        "instances": 0,
        "sessions": 0,
        "in_flight": 0,
        "calls": 0,
        "private_processes_avoided": 0,
        "memory_saved_bytes": 0,
    },
    "processes": [],
    "config": None,
}
"""`status --json` of a carpool that does not run: the same keys, so that programs need no second shape."""


@click.command()
@json_option
def status(as_json: bool) -> None:
    """Show whether all is well, the servers and the sessions."""
    try:
        door = Door(the_place().directory, control=True)
    except DoorError as error:
        if as_json:
            print_json({**NOTHING, "reason": str(error)})
        fail_at(error)
    with door:
        facts = ask(door, "carpool/status", {})
    if as_json:
        print_json(facts)
    else:
        click.echo(status_page(facts))


@click.command()
@json_option
def ps(as_json: bool) -> None:
    """Show every running process: instances of servers, and carpool's own."""
    with open_door(control=True) as door:
        rows = processes(ask(door, "carpool/status", {}))
    if as_json:
        print_json(rows)
        return
    click.echo(
        display.columns(
            ["PID", "SERVER", "ID", "GEN", "STATE", "ERA", "IN FLIGHT", "CALLS", "PSS", "RSS", "CPU %"],
            [
                [
                    row["pid"],
                    row["server"] or f"({row['role']})",
                    row["id"],
                    *(_or_dash(row[key]) for key in ("generation", "state", "era", "in_flight", "calls")),
                    *(_size(row[key]) for key in ("pss_bytes", "rss_bytes")),
                    _or_dash(row["cpu_percent"]),
                ]
                for row in rows
            ],
            right={"PID", "GEN", "IN FLIGHT", "CALLS", "PSS", "RSS", "CPU %"},
        )
    )


@click.command()
@click.argument("name", required=False)
@json_option
def tools(name: str | None, as_json: bool) -> None:
    """List the tools agents see, or explain one NAME in any spelling. Starts carpool when it does not run."""
    with open_door(control=True, start=True) as door:
        answer = ask(door, "carpool/tools", {"name": name} if name else {}, timeout_s=60)
    found: list[Facts] = answer.get("tools") or []
    problem = answer.get("error") or (
        f"no tool is called {name!r}; `carpool tools` lists all" if name else ""
    )
    if as_json:
        print_json(found)
    elif found and name:
        click.echo("\n\n".join(_explained(tool) for tool in found))
    elif found:
        rows = [[tool["name"], tool["server"], display.one_line(tool["description"])] for tool in found]
        click.echo(display.columns(["NAME", "SERVER", "DESCRIPTION"], rows))
    if not found and (name or answer.get("error")):
        fail(_sentence(problem))
    if not found and not as_json:
        click.echo("no tools: no server is configured, or none has told its tools; see `carpool status`")


_ROLES = "launcher broker supervisor spawner shim"
"""In this order."""


def processes(facts: Facts) -> list[Facts]:
    """One row per process, with the same keys for each; `None` where a fact is not known of it."""
    unknown: Facts = dict.fromkeys(
        ("generation", "state", "era", "in_flight", "calls", "rss_bytes", "pss_bytes", "cpu_percent")
    )
    rows: list[Facts] = []
    names = {supervisor["pid"]: supervisor["id"] for supervisor in facts.get("supervisors", [])}
    rows += [
        {
            **unknown,
            "role": own["role"],
            "server": "",
            "id": names.get(own["pid"], ""),
            "pid": own["pid"],
            "rss_bytes": own["rss_bytes"],
            "pss_bytes": own["pss_bytes"],
        }
        for own in sorted(facts.get("processes", []), key=lambda each: _ROLES.find(each["role"]))
    ]
    for server, each in facts.get("servers", {}).items():
        rows += [{**unknown, "role": "instance", "server": server, **one} for one in each["instances"]]
    return rows


def status_page(facts: Facts) -> str:
    """The whole of `carpool status`, for people."""
    broker, totals = facts.get("broker") or {}, facts.get("totals") or {}
    up = display.duration(broker.get("uptime_s", 0))
    parts = [f"carpool {display.printable(str(broker.get('version', '?')))}, up {up}: {_how_it_is(facts)}"]
    servers = facts.get("servers") or {}
    parts.append(
        display.columns(
            ["SERVER", "STATE", "SHARING", "INSTANCES", "IN FLIGHT", "WAITING", "RESTARTS", "TOOLS", "PSS"],
            [_server_row(name, server) for name, server in servers.items()],
            right={"INSTANCES", "IN FLIGHT", "WAITING", "RESTARTS", "TOOLS", "PSS"},
        )
        or "no servers are configured; put them into carpool.json and see `carpool check`"
    )
    errors = [
        f"{display.printable(name)}: {display.one_line(server['last_error'], 160)}"
        for name, server in servers.items()
        if server.get("last_error")
    ]
    if errors:
        parts.append(
            "\n".join(["last errors (`carpool logs SERVER` has more):", *(f"  {e}" for e in errors)])
        )
    sessions = facts.get("sessions") or []
    keys = ("id", "agent", "pid", "era", "profile", "in_flight")
    rows = [[_or_dash(session.get(key)) for key in keys] for session in sessions]
    heads = ["SESSION", "AGENT", "PID", "ERA", "PROFILE", "IN FLIGHT"]
    parts.append(display.columns(heads, rows, right={"PID", "IN FLIGHT"}) or "no agents are attached")
    sums = (
        f"{_count(totals.get('instances', 0), 'server process', 'es')} for "
        f"{_count(totals.get('sessions', 0), 'session')}, "
        f"{totals.get('in_flight', 0)} calls in flight, {totals.get('calls', 0)} so far"
    )
    if totals.get("private_processes_avoided"):
        sums += (
            f"; {_count(totals['private_processes_avoided'], 'private process', 'es')} avoided, "
            f"{_saved(totals.get('memory_saved_bytes', 0))}"
        )
    parts.append(sums)
    return "\n\n".join(parts)


FAILING = ("given_up", "backing_off", "misconfigured")


def _how_it_is(facts: Facts) -> str:
    """The broker's `reason`, for people."""
    match facts.get("reason"):
        case "ok":
            return "all is well"
        case "servers_failing":
            servers: Facts = facts.get("servers") or {}
            names = [name for name, server in servers.items() if server["state"] in FAILING]
            return f"serving; not well: {display.printable(', '.join(names))}"
        case "config_broken":
            problem = (facts.get("config") or {}).get("problem", "")
            text = display.printable(problem, lines=True)
            return f"serving with the last good configuration; the file is broken:\n{text}"
        case "supervisor_away" | "supervisor_silent":
            return "no server can be reached: the supervisor is away and is started again by itself"
        case reason:
            return f"not well: {display.printable(str(reason or '?'))}"


def _count(number: int, what: str, plural: str = "s") -> str:
    return f"{number} {what}{'' if number == 1 else plural}"


def _server_row(name: str, server: Facts) -> list[object]:
    instances: list[Facts] = server["instances"]
    return [
        name,
        server["state"],
        server["sharing"],
        len(instances),
        sum(instance["in_flight"] for instance in instances),
        server["waiting"],
        server["restarts"],
        server["tools"],
        _size(sum(instance["pss_bytes"] for instance in instances)) if instances else "-",
    ]


def _explained(tool: Facts) -> str:
    lines = [
        f"{display.printable(tool['name'])}",
        f"  server   {display.printable(tool['server'])}",
        f"  tool     {display.printable(tool['tool'])}  (the server's own name)",
        f"  also as  {display.printable(', '.join(tool['aliases']) or '-')}",
    ]
    text = display.printable(tool["description"].strip(), lines=True)
    return "\n".join([*lines, *(f"  {line}" for line in text.splitlines())])


def _sentence(problem: object) -> str:
    if isinstance(problem, dict):
        return str(problem.get("message") or problem.get("text") or problem)
    return str(problem)


def _saved(size_bytes: int) -> str:
    """Negative while too few agents share: then it is what carpool itself costs more."""
    if size_bytes < 0:
        return f"{display.size(-size_bytes)} more memory than private ones"
    return f"{display.size(size_bytes)} saved"


def _or_dash(value: object) -> object:
    return "-" if value is None or value == "" else value


def _size(size_bytes: int | None) -> str:
    return "-" if size_bytes is None else display.size(size_bytes)
