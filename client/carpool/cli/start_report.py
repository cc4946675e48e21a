"""Starts servers once, and tells of each which is decided if it works.

Used by `carpool check --start`, which also prints the table, and `carpool setup`. Owns the request, the
table, and the lines that repair a server which does not work. Knows nothing of: which fault is which problem
(`carpool.doctor`).
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import click
from msgspec import Struct

from carpool.check.layers import CheckedLayers
from carpool.cli.daemon import request_operation
from carpool.cli.main import broker_request_or_fail
from carpool.control.control_client import ControlClient
from carpool.doctor.diagnose import Facts, diagnose
from carpool.readings.start_watch import StartWatch
from carpool.terminal import display
from carpool.terminal.table import Cell
from carpool_protocol.bootstrap.release import RELEASE


class ServerStart(Struct, frozen=True):
    """One server, started once."""

    server: str
    ok: bool
    text: str
    problem: str = ""
    """The id of its problem (docs/problems.md); empty if it has none."""
    repair: str = ""


TRIAL_S: Final = 60.0
"""The longest wait for the servers. A first start may take longer, and goes on."""
FIRST_S: Final = 10.0
"""After this long the servers that are still starting are named."""
STARTING: Final = f"starting each server once, which may take {TRIAL_S:g} s"
_POLL_S: Final = 0.2
_LINE_CHARS: Final = 300
_SET: Final = "Set the variable where the agent starts, or put it into the `env_file`."
_LOOK: Final = "See `carpool logs {0}`, then run `carpool start {0}`."

WaitsFor = Callable[[str], str]
"""Returns the reason why a server that is silent for `FIRST_S` will not greet; empty: it may."""
Tell = Callable[[ServerStart, Mapping[str, Any]], None]
"""Takes a server as soon as it is decided, with its row in the broker's status."""


def start_servers(
    client: ControlClient,
    found: CheckedLayers,
    tell: Tell,
    limits: Mapping[str, float] | None = None,
    waits_for: WaitsFor = lambda _: "",
) -> list[ServerStart]:
    """Start servers, and wait until each of them is decided; name on stderr those that take long.

    `found`: the configuration, which tells the problems of some; `limits`: by server, how long its start may
    take; None: all servers, within `TRIAL_S` together.
    """
    before = broker_request_or_fail(client, "carpool/status", {})
    names = None if limits is None else list(limits)
    answer = request_operation(client, {"verb": "start", "servers": names, "within_s": 0.0})
    said = {str(row["server"]): str(row["text"]) for row in answer.get("results") or ()}
    began, of_all = time.monotonic(), limits is None
    if limits is None:
        limits = dict.fromkeys(said, TRIAL_S)
    watch, starts = StartWatch(limits, before, began, of_all=of_all), []
    is_told = False
    while watch.undecided():
        time.sleep(_POLL_S)
        status, now = broker_request_or_fail(client, "carpool/status", {}), time.monotonic()
        decided = list(watch.status_read(status, now))
        if now - began >= FIRST_S:
            waiting = [(name, why) for name in watch.undecided() if (why := waits_for(name))]
            decided += [watch.give_up(name, why) for name, why in waiting]
        for each in decided:
            result = {"server": each.server, "ok": each.ok, "text": each.text or said.get(each.server, "")}
            (start,) = server_starts([result], status, found)
            starts.append(start)
            tell(start, each.row)
        if not is_told and now - began >= FIRST_S and (late := watch.undecided()):
            is_told = True
            most_s = max(limits[name] for name in late) - FIRST_S
            text = f"still starting: {', '.join(late)}; waiting for up to {most_s:g} s more"
            click.echo(display.wrapped(text), err=True)
    order = list(limits)
    return sorted(starts, key=lambda each: order.index(each.server))


def start_line(start: ServerStart) -> str:
    """Return the line that tells one server: `time: 2 tools, 0.8 s`."""
    mark = display.coloured("ok", "green") if start.ok else display.coloured("no", "red")
    return f"{mark}  {display.printable(start.server)}: {display.one_line(start.text, _LINE_CHARS)}"


def server_starts(
    results: Sequence[dict[str, Any]], status: dict[str, Any], found: CheckedLayers
) -> list[ServerStart]:
    """Return the results with the problem and the repair of each server that does not work."""
    facts = Facts(
        installed=RELEASE, misconfigured=found.misconfigured, absent=dict(found.absent.items()), status=status
    )
    problems = {each.server: each for each in diagnose(facts) if each.server and each.id != "calls-failing"}
    starts = []
    for result in results:
        server, ok, text = result["server"], bool(result["ok"]), str(result["text"])
        row = (status.get("servers") or {}).get(server) or {}
        error = str(row.get("last_error") or "")
        text += "" if ok or not error or error in text else f" (its last error: {error})"
        problem = problems.get(server)
        if problem is not None:
            starts.append(ServerStart(server, ok, text, problem.id, problem.repair))
        elif ok:
            starts.append(ServerStart(server, ok, text))
        else:
            state = row.get("state")
            kind, repair = ("variable-unset", _SET) if state == "unset" else ("server-failing", _LOOK)
            starts.append(ServerStart(server, ok, text, kind, repair.format(server)))
    return starts


def start_table(starts: Sequence[ServerStart]) -> str:
    """Return the table; empty if there is no server."""
    rows = [
        [each.server, Cell("yes", "green") if each.ok else Cell("no", "red"), each.problem] for each in starts
    ]
    return display.columns(["SERVER", "WORKS", "PROBLEM"], rows)


def print_starts(starts: Sequence[ServerStart]) -> None:
    """Print the table, and on stderr what is wrong with a server and how to repair it."""
    if table := start_table(starts):
        click.echo(table)
    for each in starts:
        if not each.ok:
            click.echo(display.wrapped(f"{each.server}: {each.text}", "", "  "), err=True)
        if each.repair:
            click.echo(display.wrapped(each.repair, "  -> ", "     "), err=True)
