"""Starts every server once, and tells in one table which of them work.

Used by `carpool check --start` and `carpool setup`. Owns the request, the table, and the lines that repair a
server which does not work. Knows nothing of: which fault is which problem (`carpool.doctor`).
"""

from collections.abc import Sequence
from typing import Any, Final

import click
from msgspec import Struct

from carpool.check.layers import CheckedLayers
from carpool.cli.daemon import request_operation
from carpool.cli.main import broker_request_or_fail
from carpool.control.control_client import ControlClient
from carpool.doctor.diagnose import Facts, diagnose
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
_SET: Final = "Set the variable where the agent starts, or put it into the `env_file`."
_LOOK: Final = "See `carpool logs {0}`, then run `carpool start {0}`."


def start_every_server(client: ControlClient, found: CheckedLayers) -> list[ServerStart]:
    """Start all servers and wait for them; names on stderr those that take long. `found`: the configuration,
    which tells the problems of some.
    """
    results = _start(client, None, FIRST_S)
    status = broker_request_or_fail(client, "carpool/status", {})
    late = late_servers(results, status)
    if late:
        left_s = TRIAL_S - FIRST_S
        text = f"still starting: {', '.join(late)}; waiting for up to {left_s:g} s more"
        click.echo(display.wrapped(text), err=True)
        again = {row["server"]: row for row in _start(client, late, left_s)}
        results = [again.get(row["server"], row) for row in results]
        status = broker_request_or_fail(client, "carpool/status", {})
    return server_starts(results, status, found)


def _start(client: ControlClient, servers: list[str] | None, within_s: float) -> list[dict[str, Any]]:
    answer = request_operation(client, {"verb": "start", "servers": servers, "within_s": within_s})
    results: list[dict[str, Any]] = answer.get("results") or []
    return results


def late_servers(results: Sequence[dict[str, Any]], status: dict[str, Any]) -> list[str]:
    """Return the servers that have neither started nor failed yet."""
    rows = status.get("servers") or {}
    late = [row["server"] for row in results if not row["ok"]]
    return [name for name in late if (rows.get(name) or {}).get("state") in {"starting", "backing_off"}]


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
