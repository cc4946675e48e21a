"""The verb `story`: the history of one call, from its agent's request to the answer.

Combines all sources: the call's line in the audit, which may be old, the journals of the running broker and
supervisor, and what another node tells of a call that went there. Owns the layout; a step without words is
left out (`--json` has all of this node's journals). Refuses to know: the words for each step
(`readings.call_steps`).
"""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, Final

import click

from carpool.cli.audit import Line, read_all, row
from carpool.cli.main import broker_request_or_fail, json_option, reach_broker
from carpool.cluster.requests import stories_at_nodes
from carpool.control.control_client import ControlClientError
from carpool.control.place import runtime_place
from carpool.readings.call_steps import NodeStory, StoryStep, crossings, timeline
from carpool.terminal import display
from carpool.terminal.verb_output import EXIT_FAILED, EXIT_NO_BROKER, fail, print_json
from carpool_protocol.bootstrap import paths
from carpool_protocol.ids import call_named

Entry = dict[str, Any]


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
    live: Entry = {"run": "", "broker": [], "supervisor": [], "pids": {}, "nodes": {}}
    away: ControlClientError | None = None
    try:
        with reach_broker(place, control=True) as door:
            live = broker_request_or_fail(door, "carpool/story", {"call": call})
    except ControlClientError as error:
        away = error
    stories = stories_at_nodes(place.directory, crossings(live, number))
    steps = timeline(live, number, stories)
    # Ids begin anew with each run: the journals tell of the one that runs.
    mine = [line for line in lines if line.get("run") == live["run"]] if steps else lines
    line = mine[-1] if mine else None
    if as_json:
        own_journals = {key: live[key] for key in _LIVE}
        print_json(
            {"call": call, "audit": mine, **own_journals, "nodes": [each.as_json() for each in stories]}
        )
        return
    if line is None and not steps:
        code = EXIT_NO_BROKER if away and away.no_broker else EXIT_FAILED
        fail(f"nothing is known of {call}: {away or _UNKNOWN}", code)
    click.echo(page(call, line, steps))
    for note in _notes(stories):
        click.echo(f"\n{display.wrapped(note)}")
    if others := len(lines) - len([each for each in lines if line and each.get("run") == line.get("run")]):
        click.echo(
            f"\n{others} other calls had this id in other runs of carpool: `carpool story {call} --json`"
        )


_LIVE: Final = ("broker", "supervisor", "pids")
_UNKNOWN: Final = (
    "the journals do not hold it (one that was refused before it reached a server is in none, and old "
    "ones are forgotten), and the audit has no line of it (`audit.on`)"
)


CLOCK_NOTE_S: Final = 1.0
"""A clock that is further away than this is told."""


def _notes(stories: list[NodeStory]) -> Iterator[str]:
    """Yield what is to be said of other nodes beside their steps."""
    for each in stories:
        node = each.node
        if each.refused:
            yield f"what happened at node {node} is not known: {each.refused}"
        elif not each.steps:
            yield f"node {node} holds no steps of it any more, or did not get it"
        else:
            yield f"at node {node} it is {each.call}"
            if abs(each.ahead_s) > CLOCK_NOTE_S:
                where = "ahead of" if each.ahead_s > 0 else "behind"
                yield (
                    f"the clock of node {node} is {display.duration(abs(each.ahead_s))} {where} this one: "
                    "its steps are shown in this machine's time"
                )


def page(call: str, line: Line | None, steps: list[StoryStep]) -> str:
    """Return the story as text for people."""
    parts = []
    if line is not None:
        at, _, agent, server, tool, outcome, took, size_in, size_out = row(line)
        parts.append(
            display.wrapped_lines(
                [
                    f"{call}: {tool} of {server}, called by {agent}; ended {at} after {took}",
                    f"  {outcome}, delivered: {line.get('delivered')}, {size_in} in, {size_out} out",
                ]
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
