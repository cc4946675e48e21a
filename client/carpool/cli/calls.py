"""The verbs about open calls and their agents: `calls`, `cancel` and `disconnect`.

Owns the layout of the list, and the sentences about an ended call and session. Knows nothing of: the states
of a call (the broker's `admin.open_calls`), the history of a call (`story`).
"""

from typing import Any, Final

import click

from carpool.cli.main import broker_request_or_fail, json_option, open_session
from carpool.terminal import display
from carpool.terminal.verb_output import print_json
from carpool_protocol.ids import call_named

_HEADS: Final[tuple[str, ...]] = (
    "CALL",
    "STATE",
    "AGE",
    "TOOL",
    "SESSION",
    "AGENT",
    "NODE",
    "INSTANCE",
    "WAITS FOR",
)


@click.command()
@click.option("--server", default="", help="Only calls of this server.")
@click.option("--session", default="", help="Only calls of this session, as `carpool status` names it.")
@click.option(
    "--state", type=click.Choice(["waiting", "running", "asking"]), help="Only calls in this state."
)
@json_option
def calls(server: str, session: str, state: str | None, as_json: bool) -> None:
    """List the open calls: whose, which tool, for how long, and what each does or waits for."""
    params = {"server": server, "session": session, "state": state or ""}
    with open_session(control=True) as client:
        answer = broker_request_or_fail(client, "carpool/calls", params)
    if as_json:
        print_json(answer)
    else:
        click.echo(calls_page(answer))


def calls_page(answer: dict[str, Any]) -> str:
    """Return the list for people."""
    rows = answer["calls"]
    if not rows:
        return "no open calls"
    table = [_row(each) for each in rows]
    heads = _HEADS
    if not any(each.get("node") for each in rows):
        at = heads.index("NODE")
        heads, table = (*heads[:at], *heads[at + 1 :]), [(*row[:at], *row[at + 1 :]) for row in table]
    lines = [display.columns(heads, table, right={"AGE"})]
    if answer["total"] > len(rows):
        lines.append(f"{len(rows)} of {answer['total']} calls, the oldest first")
    return "\n\n".join(lines)


def _row(each: dict[str, Any]) -> tuple[object, ...]:
    subject = f"{each['server']}__{each['tool']}" if each["server"] else each["tool"]
    what = subject if each["method"] == "tools/call" else f"{each['method']} {subject}"
    where = "-" if each["instance"] is None else str(each["instance"])
    if each["pid"]:  # a session at another node has none
        where += f" (pid {each['pid']})"
    return (
        each["call"], each["state"], f"{each['age_s']:.1f} s", what, each["session"], each["agent"] or "-",
        each.get("node") or "-", where, each["waits_for"] or "-",
    )  # fmt: skip


@click.command()
@click.argument("call")
@json_option
def cancel(call: str, as_json: bool) -> None:
    """Cancel CALL, an open call as `carpool calls` names it. Its agent gets an error that says so."""
    if call_named(call) is None:
        raise click.UsageError("a call is named as in `carpool calls`: c17, or c1.17")
    with open_session(control=True) as client:
        answer = broker_request_or_fail(client, "carpool/cancel", {"call": call})
    if as_json:
        print_json(answer)
    else:
        click.echo(display.printable(cancelled_text(answer)))


def cancelled_text(answer: dict[str, Any]) -> str:
    """Return what is known of a cancelled call."""
    if answer["delivered"] == "no":
        return f"{answer['call']}: cancelled before it was sent to {answer['server'] or 'a server'}"
    return (
        f"{answer['call']}: cancelled; {answer['server']} was told and may have run it all the same: "
        "MCP does not say whether a server stops"
    )


@click.command()
@click.argument("session")
@json_option
def disconnect(session: str, as_json: bool) -> None:
    """End SESSION, as `carpool status` names it, as if its agent had left. Its open calls are cancelled."""
    with open_session(control=True) as client:
        answer = broker_request_or_fail(client, "carpool/disconnect", {"session": session})
    if as_json:
        print_json(answer)
    else:
        click.echo(display.printable(disconnected_text(answer)))


def disconnected_text(answer: dict[str, Any]) -> str:
    """Return what an ended session was, and what its agent does now."""
    count = answer["open_calls"]
    calls = f"{count} open call{'' if count == 1 else 's'}"
    agent = f" ({answer['agent']})" if answer["agent"] else ""
    said = f"{answer['session']}{agent}: disconnected; {calls} cancelled"
    if answer["open_calls"]:
        said += ", which servers may have run all the same"
    return said
