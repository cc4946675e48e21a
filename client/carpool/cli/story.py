"""The verb `story`: the history of one call, from its agent's request to the answer.

Combines all sources: the call's line in the audit, which may be old, and the journals of the running broker
and supervisor. Owns the words for each step; a step without words is left out (`--json` has everything).
Refuses to know why anything was decided.
"""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

import click

from carpool.cli.audit import Line, read_all, row
from carpool.cli.main import broker_request_or_fail, json_option, reach_broker
from carpool.control.control_client import ControlClientError
from carpool.control.place import runtime_place
from carpool.terminal import display
from carpool.terminal.verb_output import EXIT_FAILED, EXIT_NO_BROKER, fail, print_json
from carpool_protocol.bootstrap import paths
from carpool_protocol.ids import CALLS_OF_A_LIFE, call_named

Entry = dict[str, Any]


class StoryStep(NamedTuple):
    """One step of a call."""

    at: float
    """Seconds since 1970."""
    where: str
    text: str


@click.command()
@click.argument("call")
@json_option
def story(call: str, as_json: bool) -> None:
    """Tell what happened to CALL, as errors and the audit name it (c17)."""
    number = call_named(call)
    if number is None:
        raise click.UsageError("a call is named as in errors and in `carpool audit`: c17, or c1.17")
    place = runtime_place()
    lines = [line for line in read_all(paths.audit_file(place.logs)) if line.get("id") == call]
    live: Entry = {"run": "", "broker": [], "supervisor": [], "pids": {}}
    away: ControlClientError | None = None
    try:
        with reach_broker(place, control=True) as door:
            live = broker_request_or_fail(door, "carpool/story", {"call": call})
    except ControlClientError as error:
        away = error
    steps = sorted(story_steps(live, number), key=lambda step: step.at)
    # Ids begin anew with each run: the journals tell of the one that runs.
    mine = [line for line in lines if line.get("run") == live["run"]] if steps else lines
    line = mine[-1] if mine else None
    if as_json:
        print_json({"call": call, "audit": mine, **{key: live[key] for key in _LIVE}})
        return
    if line is None and not steps:
        code = EXIT_NO_BROKER if away and away.no_broker else EXIT_FAILED
        fail(f"nothing is known of {call}: {away or _UNKNOWN}", code)
    click.echo(page(call, line, steps))
    if others := len(lines) - len([each for each in lines if line and each.get("run") == line.get("run")]):
        click.echo(
            f"\n{others} other calls had this id in other runs of carpool: `carpool story {call} --json`"
        )


_LIVE: Final = ("broker", "supervisor", "pids")
_UNKNOWN: Final = (
    "the journals do not hold it (one that was refused before it reached a server is in none, and old "
    "ones are forgotten), and the audit has no line of it (`audit.on`)"
)


def page(call: str, line: Line | None, steps: list[StoryStep]) -> str:
    """Return the story as text for people."""
    parts = []
    if line is not None:
        at, _, agent, server, tool, outcome, took, size_in, size_out = row(line)
        parts.append(
            display.printable(
                f"{call}: {tool} of {server}, called by {agent}; ended {at} after {took}\n"
                f"  {outcome}, delivered: {line.get('delivered')}, {size_in} in, {size_out} out",
                lines=True,
            )
        )
        began = _began(line)
        if began is not None and not any(step.text.startswith("came") for step in steps):
            steps = [StoryStep(began, "broker", "came"), *steps] if steps else []
    if not steps:
        return "\n\n".join([*parts, "its steps are forgotten: journals hold the last few hundred calls"])
    first = steps[0].at
    rows = [[_clock(step.at), f"{(step.at - first) * 1000:.1f}", step.where, step.text] for step in steps]
    return "\n\n".join([*parts, display.columns(["AT (UTC)", "MS", "WHERE", "WHAT"], rows, right={"MS"})])


def _began(line: Line) -> float | None:
    took = line.get("duration_s")
    try:
        ended = datetime.fromisoformat(str(line.get("at"))).timestamp()
    except ValueError:
        return None
    return ended - took if isinstance(took, int | float) else None


def _clock(at: float) -> str:
    return f"{datetime.fromtimestamp(at, UTC):%H:%M:%S.%f}"[:-3]


def story_steps(live: Entry, call: int) -> Iterator[StoryStep]:
    """Yield the steps that have words."""
    pids = live["pids"]
    for entry in live["broker"]:
        for text in _at_broker(entry, call):
            yield StoryStep(entry["at"], "broker", text)
    for entry in live["supervisor"]:
        for text in _at_supervisor(entry, call, pids):
            yield StoryStep(entry["at"], "supervisor", text)


_ANSWERS: Final = ("Reply", "ReplyRewritten", "ReplyStateless")
_ARRIVALS: Final = {
    "CallRequested": "came from {session}",
    "SessionResumed": "came again from {session}",
    "CallAnswered": "its answer came from the supervisor",
    "CallFailed": "the supervisor ended it: {fault} (delivered: {delivered})",
    "CallProgressed": "told how far it is",
    "AskOpened": "its server asks the agent ({method})",
    "RequestCancelled": "its agent cancelled it",
    "SessionClosed": "its agent left",
}
"""The words for events at the broker."""


def _at_broker(entry: Entry, call: int) -> Iterator[str]:
    event = entry["event"]
    about = event.get("call", call)  # another call's end may be what lets this one go
    if event["type"] in _ARRIVALS and about == call:
        yield _ARRIVALS[event["type"]].format_map(event)
    for effect in entry["effects"]:
        if effect.get("call") != call:
            continue
        kind = effect["type"]
        if kind == "Call":
            yield f"went to the supervisor, for {effect['key'].rpartition(':')[0]}"
        elif kind == "ResumeCall":
            yield f"taken over from broker {call // CALLS_OF_A_LIFE + 1}, which died"
        elif kind == "CancelCall" and event["type"] not in {"RequestCancelled", "SessionClosed"}:
            yield "cancelled"
        elif kind == "WriteAudit":
            yield f"ended: {effect['outcome']}"
        elif kind in _ANSWERS:
            yield "answered to its agent"


def _at_supervisor(entry: Entry, call: int, pids: Entry) -> Iterator[str]:
    event = entry["event"]
    if event["type"] == "CancelCall":
        yield "is told that nobody waits for it"
    waits = event["type"] == "Call"
    for effect in entry["effects"]:
        kind = effect["type"]
        inner = effect.get("call")
        if kind == "WriteCall" and isinstance(inner, dict) and inner.get("call") == call:
            waits = False
            yield f"handed to {_instance(effect['instance'], pids)}, under wire id {effect['wire']}"
        elif kind == "Spawn" and event["type"] == "Call":
            yield f"starts instance #{effect['instance']} of {effect['server']}"
        elif kind == "WriteCancel" and event["type"] == "CancelCall":
            yield f"tells {_instance(effect['instance'], pids)} to stop it"
        elif inner == call and kind == "CallAnswered":
            waits = False
            yield "its server answered" + (" with an error" if effect["is_error"] else "")
        elif inner == call and kind == "CallFailed":
            waits = False
            yield f"ended it: {effect['fault']} (delivered: {effect['delivered']})"
        elif inner == call and kind == "AskOpened":
            yield f"its server asks ({effect['method']})"
    if waits:
        yield "waits in the line of its pool"


def _instance(instance: int, pids: Entry) -> str:
    pid = pids.get(str(instance))
    return f"instance #{instance} (pid {pid})" if pid else f"instance #{instance}"
