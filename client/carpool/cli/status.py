"""The verbs that look at a running carpool and change nothing: `status`, `ps`.

Owns the layout of the broker's facts for people; programs get them as they are. One file, because both verbs
show the same facts with the same cells. Refuses to know where the facts come from.
"""

import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import click

from carpool.check.server_path import path_lines
from carpool.cli.main import (
    broker_request_or_fail,
    environment,
    fail_at,
    json_option,
    open_session,
    reach_broker,
)
from carpool.cli.status_filter import (
    EVERYTHING,
    INSTANCE_STATES,
    STATES,
    Facts,
    StatusFilter,
    filter_options,
    filtered,
    filtered_processes,
    unknown_name,
)
from carpool.control.control_client import ControlClientError
from carpool.control.place import runtime_place
from carpool.control.verdict import is_well, with_verdict
from carpool.launcher.http_door import HttpDoorStatus, read_door_status
from carpool.launcher.other_carpools import other_carpool_text, other_carpools
from carpool.readings.config_here import config_lines, with_config_here
from carpool.readings.health_line import MANY_DENIALS, health_line, hook_fault
from carpool.terminal import display
from carpool.terminal.table import Colour
from carpool.terminal.verb_output import EXIT_NO_BROKER, fail, print_json
from carpool_protocol.bootstrap import paths
from carpool_protocol.bootstrap.release import RELEASE

NOTHING: Facts = {
    "healthy": False,
    "reason": "",
    "silent": None,
    "broker": None,
    "supervisors": [],
    "supervisors_away": [],
    "servers": {},
    "sessions": [],
    "totals": {
        "instances": 0,
        "node_sessions": 0,
        "sessions": 0,
        "in_flight": 0,
        "calls": 0,
        "private_processes_avoided": 0,
        "memory_saved_bytes": 0,
    },
    "processes": [],
    "config": None,
    "workspaces": [],
    "hooks": [],
    "audit": None,
    "counters": None,
    "trace": None,
    "path": None,
    "descriptors": None,
    "door": None,
    "cluster": None,
}
"""The output of `status --json` if carpool does not run: the same keys, so that programs need no second
shape.
"""


BROKER_S: Final = 5.0
"""Seconds that `status` waits for the broker to admit it, and again for its answer."""
SUPERVISOR_S: Final = 2.0
"""Seconds that the broker waits for the supervisor: fewer than `status` waits for the broker."""


@click.command()
@filter_options(STATES)
@json_option
def status(
    *, servers: tuple[str, ...], sessions: tuple[str, ...], states: tuple[str, ...], as_json: bool
) -> None:
    """Show whether all is well, the servers and the sessions, or those of them that are asked for."""
    wanted = StatusFilter(servers, sessions, states)
    try:
        door = reach_broker(runtime_place(), control=True, attach_s=BROKER_S)
    except ControlClientError as error:
        if as_json:
            reason = "not_running" if error.no_broker else "broker_silent"
            silent = None if error.no_broker else {"process": "broker", "for_s": None}
            print_json({**NOTHING, "reason": reason, "silent": silent})
        elif error.no_broker:
            fail(_with_first_steps(str(error)), EXIT_NO_BROKER)
        fail_at(error)
    with door:
        directory = runtime_place().directory
        status = broker_request_or_fail(door, "carpool/status", {"within_s": SUPERVISOR_S}, BROKER_S)
        facts = with_config_here(with_door(status, read_door_status(directory)), os.environ, directory)
        facts["cluster"] = _cluster(directory)
    if unknown := unknown_name(facts, wanted):
        fail(unknown)
    if as_json:
        print_json(filtered(with_verdict(facts), wanted))
    else:
        click.echo(status_page(facts, wanted))


def _with_first_steps(problem: str) -> str:
    """Return the problem, a carpool that runs elsewhere with the same configuration, and the first steps if
    nothing is configured.
    """
    from carpool.cli.first_run import has_servers, nothing_configured  # late: few users have no server

    own, directory = paths.config_file(os.environ), runtime_place().directory
    elsewhere = other_carpools(os.environ, directory, own)
    problem = "\n".join([problem, *(display.printable(other_carpool_text(each)) for each in elsewhere)])
    return problem if has_servers(os.environ) else f"{problem}\n{nothing_configured(os.environ)}"


def with_door(facts: Facts, door: HttpDoorStatus | None) -> Facts:
    """Return the broker's facts with those of the HTTP door, which no broker knows."""
    return {**facts, "door": None if door is None else door._asdict()}


@click.command()
@filter_options(INSTANCE_STATES)
@json_option
def ps(
    *, servers: tuple[str, ...], sessions: tuple[str, ...], states: tuple[str, ...], as_json: bool
) -> None:
    """Show every running process: instances of servers, and carpool's own, or those that are asked for.

    Sessions at other nodes of the cluster are no processes of this machine; they are listed apart.
    """
    wanted = StatusFilter(servers, sessions, states)
    with open_session(control=True) as door:
        facts = broker_request_or_fail(door, "carpool/status", {})
    if unknown := unknown_name(facts, wanted):
        fail(unknown)
    rows = filtered_processes(processes(facts), facts, wanted)
    if as_json:
        print_json({"processes": rows})
        return
    click.echo(ps_page(filtered(facts, wanted), rows))


_ROLES = "launcher broker supervisor spawner node door hook shim"
"""The roles of processes, in the order of their rows."""


_PS_KEYS = (
    *("generation", "state", "era", "in_flight", "calls", "rss_bytes", "pss_bytes", "cpu_percent"),
    *("uptime_s", "sharing", "verified", "holder", "holder_agent", "holder_pid", "asks", "why", "node"),
)
UNVERIFIED = "?  nobody has looked yet whether the server may be shared like this; see `carpool why SERVER`"


def processes(facts: Facts) -> list[Facts]:
    """Return one row per process, with the same keys for each; an unknown fact is `None`."""
    unknown: Facts = dict.fromkeys(_PS_KEYS)
    rows: list[Facts] = []
    names = {supervisor["pid"]: supervisor["id"] for supervisor in facts.get("supervisors", [])}
    names |= {each["pid"]: each["id"] for each in facts.get("sessions", []) if each.get("carrier") == "shim"}
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
        # Pools of one server (workspaces, classes of agents) may be shared in different ways.
        pools = {one: pool for pool in each.get("pools") or () for one in pool.get("instances", ())}
        for one in each["instances"]:
            pool = pools.get(one["id"], each)
            mode = {"sharing": pool["sharing"], "verified": pool.get("verified", True)}
            role = NODE_SESSION if one.get("node") else "instance"
            rows.append({**unknown, "role": role, "server": server, **mode, **one, "pid": one["pid"] or None})
    return rows


NODE_SESSION: Final = "node_session"
"""The role of an instance that is a session at another node."""
LOST = "a project cannot be read, so its servers are not there: "


def _trace_notes(trace: Mapping[str, Any]) -> list[str]:
    """Return what is wrong with the export of traces."""
    problem, dropped = display.printable(str(trace.get("problem") or "")), trace.get("dropped")
    if problem and not trace.get("on"):
        return [f"no trace is exported: {problem}"]
    if dropped:
        return [f"{_count(dropped, 'span')} of traces are lost: {problem or 'they are exported again'}"]
    return []


def _of_workspaces(workspaces: list[Facts]) -> Iterator[str]:
    """Yield sentences about projects for their authors and users."""
    for each in workspaces:
        if each["trust"] in ("untrusted", "changed"):
            from carpool_protocol.config.reading.trust import waits_for_trust  # late: few have a project

            yield display.printable(
                waits_for_trust(each["file"], each["root"], each["trust"], each["servers"])
            )
        # "nothing": no earlier reading is in force either.
        lost = LOST if each["trust"] == "nothing" else ""
        yield from (lost + display.one_line(text, 200) for text in each["problems"])
        yield from (display.one_line(text, 200) for text in each["warnings"])


_NO_REPORT: Final = frozenset({"supervisor_away", "supervisor_silent"})
"""The reasons with which instances may be missing, or shown as last known."""


def ps_page(facts: Facts, rows: list[Facts]) -> str:
    """Return all of `carpool ps` for people. Holders and questions have columns only if there are any."""
    at_nodes = [row for row in rows if row["role"] == NODE_SESSION]
    rows = [row for row in rows if row["role"] != NODE_SESSION]
    holders = any(row["holder"] for row in rows)
    asks = any(row["asks"] for row in rows)
    heads = ["PID", "SERVER", "ID", "GEN", "STATE", "SHARING", "ERA", "IN FLIGHT", "CALLS"]
    heads += ["ASKS"] * asks + ["PSS", "RSS", "CPU %"] + ["HOLDER"] * holders
    table = [
        [
            _or_dash(row["pid"]),
            row["server"] or f"({row['role']})",
            row["id"],
            _or_dash(row["generation"]),
            display.state(row["state"] or "-"),
            _sharing(row),
            *(_or_dash(row[key]) for key in ("era", "in_flight", "calls")),
            *([_or_dash(row["asks"])] if asks else []),
            *(_size(row[key]) for key in ("pss_bytes", "rss_bytes")),
            _or_dash(row["cpu_percent"]),
            *([_holder(row)] if holders else []),
        ]
        for row in rows
    ]
    right = {"PID", "GEN", "IN FLIGHT", "CALLS", "ASKS", "PSS", "RSS", "CPU %"}
    parts = [
        display.columns(heads, table, right=right, spare=("ERA", "GEN", "RSS", "SHARING", "ID"))
        or "none of these runs"
    ]
    parts += [display.wrapped(health_line(facts))] if facts.get("reason") in _NO_REPORT else []
    parts += [_node_sessions(at_nodes)] if at_nodes else []
    parts += _waits(facts, rows)
    parts += [shut] if (shut := _breakers(facts)) else []
    parts += [off] if (off := _switches(facts)) else []
    parts += [display.wrapped(UNVERIFIED, rest="   ")] if any(map(_is_assumed, rows)) else []
    return "\n\n".join(parts)


def _node_sessions(rows: list[Facts]) -> str:
    """Return the table of sessions at other nodes, whose processes run there."""
    heads = ["NODE", "SERVER", "ID", "STATE", "IN FLIGHT", "CALLS", "HOLDER"]
    table = [
        [
            row["node"],
            row["server"],
            row["id"],
            display.state(row["state"] or "-"),
            *(_or_dash(row[key]) for key in ("in_flight", "calls")),
            _holder(row),
        ]
        for row in rows
    ]
    columns = display.columns(heads, table, right={"IN FLIGHT", "CALLS"}, spare=("ID",))
    return f"{_count(len(rows), 'session')} at other nodes:\n{columns}"


def _waits(facts: Facts, rows: list[Facts]) -> Iterator[str]:
    """Yield who waits for which server, and which instances are being replaced."""
    waiting = [
        f"{_count(server['waiting'], 'call')} for {display.printable(name)}"
        for name, server in (facts.get("servers") or {}).items()
        if server["waiting"]
    ]
    if waiting:
        yield display.wrapped(f"waiting: {', '.join(waiting)}")
    leaving = [
        f"{display.printable(row['server'])} #{row['id']} is being replaced: {display.printable(row['why'])}"
        for row in rows
        if row["why"]
    ]
    if leaving:
        yield display.wrapped_lines(leaving)


def _place(session: Facts) -> str:
    """Return the name of the session's workspace, else its directory."""
    place = session.get("workspace") or {}
    return str(place.get("name") or place.get("root") or "")


def status_page(facts: Facts, wanted: StatusFilter = EVERYTHING) -> str:
    """Return all of `carpool status` for people; with a filter its head and what is asked for."""
    broker, shown = facts.get("broker") or {}, filtered(facts, wanted)
    up = display.duration(broker.get("uptime_s", 0))
    version = display.printable(str(broker.get("version", "?")))
    so_far = SO_FAR if is_well(facts) and _has_trouble(facts) else ""
    head = display.wrapped(f"carpool {version}, up {up}: {health_line(facts)}{so_far}")
    parts = [_coloured_health(head, facts)]
    if version not in {RELEASE, "?"}:
        newer = f"carpool {RELEASE} is installed; `carpool restart --all` takes agents over to it"
        parts.append(display.wrapped(newer))
    parts += map(display.wrapped, config_lines(facts, os.environ, runtime_place().directory))
    if deaths := broker.get("restarts", 0):
        died = f"the broker has died {_count(deaths, 'time')} (`carpool logs --daemon` tells how)"
        parts.append(display.wrapped(died))
    if wanted.shows_servers():
        parts += _servers_parts(shown, wanted)
    if wanted.is_empty():
        parts += _notes(facts)
    if wanted.shows_sessions():
        parts += _sessions_parts(shown)
    if not wanted.is_empty():
        return "\n\n".join(parts)
    if hooks := hook_table(facts.get("hooks") or []):
        parts.append(hooks)
    parts.append(display.wrapped(_sums(facts.get("totals") or {})))
    if (path := facts.get("path")) is not None:
        lines = path_lines(path, facts.get("servers") or {}, os.environ)
        parts.append("\n".join(display.wrapped(line, rest="  ") for line in lines.splitlines()))
    if line := _door_line(facts.get("door")):
        parts.append(display.wrapped(line))
    if line := cluster_line(facts.get("cluster")):
        parts.append(display.wrapped(line))
    if _has_trouble(facts):
        parts.append(DOCTOR)
    return "\n\n".join(parts)


def _coloured_health(head: str, facts: Facts) -> str:
    """Return the first line with a colour for its sentence."""
    start, colon, health = head.partition(": ")
    return f"{start}{colon}{display.coloured(health, _health_colour(facts))}"


DOCTOR: Final = "`carpool doctor` says how to repair what is wrong here"
SO_FAR: Final = " so far; see `carpool doctor`"
"""The words after "all is well" if `carpool doctor` names a problem that costs no agent anything yet."""


def _has_trouble(facts: Facts) -> bool:
    """True if anything that doctor knows of may be wrong: the verdict, the door or a server's last error that
    it has not recovered from.
    """
    servers: Facts = facts.get("servers") or {}
    failed = [each for each in servers.values() if each.get("last_error")]
    if not is_well(facts) or any(each.get("left_out") for each in servers.values()):
        return True
    if not failed:
        return False
    from carpool.doctor.symptoms import is_lasting  # late: few runs need it

    return any(is_lasting(each) for each in failed)


def _no_server(facts: Facts) -> str:
    """Return what stands in place of the table of servers; empty: those of other nodes are being read."""
    config = facts.get("config") or {}
    if config.get("problem"):
        return "no server is configured"
    if config.get("here"):
        return f"no server is configured in {display.printable(config['file'])}"
    from carpool.cli.first_run import no_servers, nothing_configured  # late: few users have no server

    if facts.get("cluster") is None:
        return nothing_configured(environment())
    return no_servers(environment(), runtime_place().directory)


def _servers_parts(shown: Facts, wanted: StatusFilter) -> Iterator[str]:
    """Yield the table of servers, and what is wrong with them."""
    servers = shown.get("servers") or {}
    if table := _servers_table(servers):
        yield table
    elif wanted.is_empty():
        if said := _no_server(shown):
            yield said
    else:
        yield "no server is in this state"
    if shut := _breakers(shown):
        yield display.coloured(shut, "yellow")
    if off := _switches(shown):
        yield off
    errors = [
        display.wrapped(f"{name}: {display.one_line(server['last_error'], 400)}", "  ", "    ")
        for name, server in servers.items()
        if server.get("last_error")
    ]
    if errors:
        yield "last errors (`carpool logs SERVER` has more):\n" + display.coloured("\n".join(errors), "red")
    if held := _held_back(servers):
        yield held


def _notes(facts: Facts) -> Iterator[str]:
    """Yield what is to be known of the audit, of traces and of workspaces."""
    if missing := (facts.get("audit") or {}).get("missed"):
        why = facts["audit"]["problem"] or "it is written again"
        yield display.wrapped(f"the audit misses {_count(missing, 'call')}: {display.printable(why)}")
    yield from map(display.wrapped, _trace_notes(facts.get("trace") or {}))
    if notes := list(_of_workspaces(facts.get("workspaces") or [])):
        yield display.wrapped_lines(notes)


def _sessions_parts(shown: Facts) -> Iterator[str]:
    """Yield the table of sessions; tokens have a column only if there are any."""
    sessions = shown.get("sessions") or []
    tokens = any(session.get("principal") for session in sessions)
    keys = ["id", "agent", "pid", "carrier", *(["principal"] if tokens else [])]
    keys += ["era", "profile", "workspace", "in_flight"]
    rows = [
        [_or_dash(_place(session) if key == "workspace" else session.get(key)) for key in keys]
        for session in sessions
    ]
    heads = ["SESSION", "AGENT", "PID", "VIA", *(["TOKEN"] if tokens else [])]
    heads += ["ERA", "PROFILE", "WORKSPACE", "IN FLIGHT"]
    yield (
        display.columns(heads, rows, right={"PID", "IN FLIGHT"}, spare=("ERA", "PID"))
        or "no agents are attached"
    )
    for each in sessions:
        if left := each.get("tools_left_out"):
            text = f"{each['id']}: max_tools leaves {_count(left, 'tool')} out of its list"
            yield display.wrapped_lines([text])


def _sums(totals: Facts) -> str:
    sums = (
        f"{_count(totals.get('instances', 0), 'server process', 'es')} for "
        f"{_count(totals.get('sessions', 0), 'session')}, "
        f"{totals.get('in_flight', 0)} calls in flight, {totals.get('calls', 0)} so far"
    )
    if there := totals.get("node_sessions"):
        sums += f", {_count(there, 'session')} at other nodes"
    if totals.get("private_processes_avoided"):
        sums += (
            f"; {_count(totals['private_processes_avoided'], 'private process', 'es')} avoided, "
            f"{_saved(totals.get('memory_saved_bytes', 0))}"
        )
    return sums


def _door_line(door: Facts | None) -> str:
    if not door:
        return ""
    if door["url"]:
        kept = f" (`carpool token show`; kept in {door['token_file']})" if door.get("token_file") else ""
        return display.printable(f"MCP over HTTP: {door['url']}{kept and f', with the token{kept}'}")
    again = (
        "it is tried again by itself" if door["retried"] else "it is tried again when the file has changed"
    )
    return f"the HTTP door is not open: {display.printable(door['problem'])} ({again})"


def _cluster(directory: str) -> Facts | None:
    """Return the section about the cluster; None if this machine is in none."""
    if not os.path.lexists(paths.node_file(directory)):
        return None
    # Here: what is known of nodes takes time to import, and most machines are in no cluster.
    from carpool.cluster.node_facts import cluster_section, read_facts

    return cluster_section(read_facts(directory))


def cluster_line(cluster: Facts | None) -> str:
    """Return the line about the cluster; empty if this machine is in none."""
    if not cluster:
        return ""
    head = display.printable(f"node {cluster['node']} of the cluster {cluster['name']}")
    if cluster.get("has_left"):
        return display.printable(f"node {cluster['node']} is in no cluster: {cluster['problem']}")
    if cluster["problem"] and not cluster["is_up"]:
        return f"{head}: not reached; {display.printable(cluster['problem'])}"
    if not cluster["is_up"]:
        return f"{head}: not reached now"
    nodes = cluster["nodes"]
    reached = sum(each["state"] != "not reached" for each in nodes)
    missing = len(nodes) - reached + len(cluster["silent"])
    away = f", {missing} not reached" if missing else ""
    own = "; this one is draining" if cluster["is_draining"] else ""
    own += f"; {display.printable(cluster['problem'])}" if cluster["problem"] else ""
    servers = _count(len(cluster["servers"]), "server")
    return f"{head}: {_count(reached, 'other node')} reached{away}, {servers} from them{own}"


def _health_colour(facts: Facts) -> Colour:
    """Return green where all is well, yellow where carpool serves, red where it cannot."""
    if with_verdict(facts).get("healthy"):
        return "green" if is_well(facts) else "yellow"
    return "red"


def _count(number: int, what: str, plural: str = "s") -> str:
    return f"{number} {what}{'' if number == 1 else plural}"


_SPARE: Final = ("RESTARTS", "TOOLS", "WAITING", "SHARING")
"""The columns that a narrow terminal does without, in this order."""


def _servers_table(servers: Facts) -> str:
    """Return the table of servers; open questions to agents, and nodes, have a column only if there are
    any.
    """
    asks = {name: sum(each.get("asks") or 0 for each in one["instances"]) for name, one in servers.items()}
    has_nodes = any(map(_nodes_of, servers.values()))
    heads = [
        "SERVER",
        *(["NODE"] if has_nodes else []),
        "STATE",
        "SHARING",
        "INSTANCES",
        "IN FLIGHT",
        *(["ASKS"] if any(asks.values()) else []),
    ]
    heads += ["WAITING", "RESTARTS", "TOOLS", "PSS"]
    rows: list[list[object]] = []
    for name, server in servers.items():
        instances: list[Facts] = server["instances"]
        rows.append(
            [
                name,
                *([_nodes_of(server) or "-"] if has_nodes else []),
                display.state(server["state"], paused=bool(server.get("paused"))),
                _sharing(server),
                len(instances),
                sum(instance["in_flight"] for instance in instances),
                *([asks[name]] if any(asks.values()) else []),
                server["waiting"],
                server["restarts"],
                server["tools"],
                _size(sum(each["pss_bytes"] for each in instances)) if _runs_here(server) else "-",
            ]
        )
    table = display.columns(
        heads, rows, right=set(heads) - {"SERVER", "NODE", "STATE", "SHARING"}, spare=_SPARE
    )
    unsure = any(map(_is_assumed, servers.values()))
    return f"{table}\n{display.wrapped(UNVERIFIED, rest='   ')}" if unsure else table


def _nodes_of(server: Facts) -> str:
    """Return the nodes at which a server of other nodes runs for agents of this one, or may run; empty: it is
    one of this node.
    """
    nodes = sorted({each["node"] for each in server["instances"] if each.get("node")})
    of_any = "any" if server.get("node") == "*" else server.get("node") or ""
    return " ".join(nodes) or of_any


def _runs_here(server: Facts) -> bool:
    return any(not each.get("node") for each in server["instances"])


def _breakers(facts: Facts) -> str:
    """Return a line for each pool whose circuit breaker is not closed: its starts are limited."""
    lines = []
    for name, server in (facts.get("servers") or {}).items():
        for pool in server.get("pools") or ():
            if pool.get("breaker", "closed") == "closed":
                continue
            left = pool.get("retry_after_s")
            again = f", closed to starts for {display.duration(left)} more" if left is not None else ""
            state = pool["breaker"].replace("_", " ")
            lines.append(f"breaker of {name}: {state}{again}")
    return display.wrapped_lines(lines)


_INSTRUCTIONS: Final = "(instructions)"
"""The entry for a server's instructions among its held tools."""


def _held_back(servers: Facts) -> str:
    """Return a line for each pinned server with something that is not approved."""
    lines = []
    for name, server in servers.items():
        pinned = server.get("pinned") or {}
        if pinned.get("problem"):
            lines.append(f"{name}: {pinned['problem']}")
        if held := pinned.get("held"):
            tools = _count(len([each for each in held if each != _INSTRUCTIONS]), "tool")
            what = f"{tools} and its instructions" if _INSTRUCTIONS in held else tools
            lines.append(f"{name}: {what} held back (`carpool pin diff {name}`)")
    return display.wrapped_lines(lines)


def _switches(facts: Facts) -> str:
    """Return a line for each server that is disabled, or enabled despite its file.

    The line says until when, and by what.
    """
    lines = []
    for name, server in (facts.get("servers") or {}).items():
        files = " and ".join(server.get("disabled_in") or ())
        if server.get("switched") == "off":
            lines.append(f"{name}: disabled (until carpool stops; `carpool enable {name}`)")
        elif server.get("switched") == "on":
            lines.append(f"{name}: enabled (until carpool stops); disabled in {files}")
        elif files:
            lines.append(f"{name}: disabled in {files}")
    for session in facts.get("sessions") or ():
        for name, how in (session.get("switched") or {}).items():
            what = "enabled" if how == "on" else "disabled"
            lines.append(f"{name}: {what} for {session['id']} (until that session ends)")
    return display.wrapped_lines(lines)


def _sharing(one: Facts) -> str:
    """Return the sharing mode, with a `?` if it is only assumed."""
    mode = one["sharing"] or "-"
    return f"{mode}?" if _is_assumed(one) else str(mode)


def _is_assumed(one: Facts) -> bool:
    """True if the sharing mode is only assumed.

    `auto` does not count: nothing is decided before the first use.
    """
    return one.get("verified") is False and one["sharing"] != "auto"


def _holder(row: Facts) -> str:
    """Return the holder of an instance's lease: the session, and its agent's name."""
    if not row["holder"]:
        return "-"
    return f"{row['holder']} {display.one_line(row['holder_agent'] or '', 24)}".rstrip()


def _saved(size_bytes: int) -> str:
    """Return the saved memory as text.

    It is negative while few agents share: then carpool itself costs more than it saves.
    """
    if size_bytes < 0:
        return f"{display.size(-size_bytes)} more memory than private ones"
    return f"{display.size(size_bytes)} saved"


def _or_dash(value: object) -> object:
    return "-" if value is None or value == "" else value


def _size(size_bytes: int | None) -> str:
    return "-" if size_bytes is None else display.size(size_bytes)


_HEADS = ["HOOK", "LOOKS", "ALLOWED", "DENIED", "REWRITTEN", "FAILED", "TIMEOUTS", "MEDIAN", "RUNS"]


def hook_table(hooks: Iterable[Mapping[str, Any]]) -> str:
    """Return the table of hooks and their problems; empty if there are no hooks."""
    rows: list[list[str]] = []
    wrong: list[str] = []
    for hook in hooks:
        median_s = hook.get("median_s")
        counts = (hook.get(key, 0) for key in ("allowed", "denied", "rewritten", "failed", "timeouts"))
        rows.append(
            [
                str(hook.get("name", "?")),
                ", ".join(hook.get("on") or []),
                *map(str, counts),
                "—" if median_s is None else f"{median_s * 1000:.1f} ms",
                str(hook.get("running", 0)),
            ]
        )
        if hook.get("problem"):
            wrong.append(display.wrapped(hook_fault(hook), rest="  "))
        elif (denied := hook.get("denied_in_a_row", 0)) >= MANY_DENIALS:
            text = f"hook {rows[-1][0]} has denied each of its last {denied} calls"
            wrong.append(display.wrapped(text, rest="  "))
    return "\n".join([table, *wrong]) if (table := _table(rows)) else ""


def _table(rows: list[list[str]]) -> str:
    return display.columns(_HEADS, rows, right=set(_HEADS[2:]))
