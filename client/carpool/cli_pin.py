"""The verb `pin`: which tools of pinned servers are held back, what has changed, and approving it.

Owns how a change is shown: by lines, with everything spelled out that a terminal would not show, since a
person decides by it. Refuses to know what holding a tool back does.
"""

import difflib
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, Final

import click
import msgspec

from carpool import display
from carpool.cli import ask, fail, json_option, open_door, print_json
from carpool.door import Door
from carpool_protocol.config.problems import did_you_mean

Facts = dict[str, Any]

_AROUND: Final = 2
"""So many lines that are the same are shown around a change."""
_WHY: Final = {
    "new": "is new",
    "changed": "has changed",
    "unreadable": "cannot be compared: what was approved cannot be read",
}


@click.command()
@click.argument("verb", type=click.Choice(["status", "diff", "approve"]), default="status")
@click.argument("server", required=False)
@click.argument("tools", nargs=-1)
@json_option
def pin(verb: str, server: str | None, tools: tuple[str, ...], as_json: bool) -> None:
    """Show pinned servers (status), what has changed there (diff), or approve it: all of SERVER, or TOOLS."""
    if verb == "approve" and not server:
        raise click.UsageError("say which SERVER; `carpool pin diff` shows what has changed")
    with open_door(control=True) as door:
        pinned: list[Facts] = ask(door, "carpool/pin", {"verb": "status"})["pinned"]
        meant = _meant(pinned, server)
        if verb == "approve":
            _approve(door, meant, tools, as_json=as_json)
            return
    if as_json:
        print_json([_read(each) for each in meant])
    elif verb == "status":
        click.echo(status_page(meant))
    else:
        click.echo("\n\n".join(diffs(meant, tools)) or "nothing is held back: all tools are as approved")


def _meant(pinned: list[Facts], server: str | None) -> list[Facts]:
    meant = [each for each in pinned if server in (None, each["server"])]
    if server and not meant:
        names = sorted({each["server"] for each in pinned})
        close = did_you_mean(server, names)
        hint = f"did you mean {close}?" if close else f"pinned are: {', '.join(names) or 'none'}"
        fail(f'no server {server!r} is pinned ("pin": true in its configuration); {hint}')
    return meant


def _approve(door: Door, meant: list[Facts], tools: Sequence[str], *, as_json: bool) -> None:
    done: list[Facts] = []
    for each in meant:
        held = {one["tool"]: one["digest"] for one in each["held"] if not tools or one["tool"] in tools}
        if held:
            said = ask(door, "carpool/pin", {"verb": "approve", "pin": each["pin"], "tools": held})
            done.append({"server": each["server"], "pin": each["pin"], "approved": said["approved"]})
    approved = [tool for each in done for tool in each["approved"]]
    if as_json:
        print_json(done)
    else:
        click.echo(
            f"approved: {display.printable(', '.join(approved))}" if approved else "nothing to approve"
        )
    unknown = [
        tool for tool in tools if not any(tool == one["tool"] for each in meant for one in each["held"])
    ]
    if unknown:
        fail(f"not held back, so not approved: {', '.join(unknown)}; `carpool pin diff` shows what is")
    asked = sum(len(each["held"]) for each in meant) if not tools else len(tools)
    if len(approved) < asked:
        fail("some have changed again meanwhile, and are still held back; look at `carpool pin diff` again")


def _read(each: Facts) -> Facts:
    """For programs: definitions as JSON, where they are."""
    held = [{**one, "before": _decoded(one["before"]), "now": _decoded(one["now"])} for one in each["held"]]
    return {**each, "held": held}


def _decoded(text: str) -> object:
    try:
        return msgspec.json.decode(text) if text else None
    except (msgspec.MsgspecError, RecursionError, UnicodeEncodeError):
        return text


def status_page(pinned: list[Facts]) -> str:
    """For people."""
    if not pinned:
        return 'no server is pinned; write "pin": true into one and its tools are held back when they change'
    rows = [
        [
            each["server"],
            each["approved"] if each["met"] else "-",
            ", ".join(f"{one['tool']} ({one['why']})" for one in each["held"]) or "-",
        ]
        for each in pinned
    ]
    parts = [display.columns(["SERVER", "APPROVED", "HELD BACK"], rows, right={"APPROVED"})]
    parts += [display.printable(f"{each['server']}: {each['problem']}") for each in pinned if each["problem"]]
    if any(not each["met"] for each in pinned):
        parts.append("-  it has not run since it was pinned: what it lists first counts as approved")
    if any(each["held"] for each in pinned):
        parts.append(
            "`carpool pin diff SERVER` shows what has changed, `carpool pin approve SERVER` approves it"
        )
    return "\n\n".join(parts)


def diffs(pinned: list[Facts], tools: Sequence[str] = ()) -> Iterator[str]:
    """What is held back, tool by tool."""
    for each in pinned:
        for one in each["held"]:
            if not tools or one["tool"] in tools:
                yield "\n".join(
                    [display.spelled(f"{each['server']}: {one['tool']} {_WHY[one['why']]}"), *_diff(one)]
                )


def _diff(one: Facts) -> Iterator[str]:
    if one["why"] == "changed" and not one["before"]:
        yield "  (the approved definition was not kept: it held a value of an environment)"
    before, now = _lines(one["before"]), _lines(one["now"])
    changes = difflib.unified_diff(before, now, lineterm="", n=_AROUND)
    for line in islice(changes, 2, None):  # its head; a line of the definition may begin like that, too
        yield f"  {display.spelled(line)}"


def _lines(text: str) -> list[str]:
    """A definition as people compare it: texts by their own lines, everything else as indented JSON."""
    whole = _decoded(text)
    if not isinstance(whole, dict):
        return text.splitlines()
    found: list[str] = []
    for key, value in whole.items():
        if isinstance(value, str):
            found += [f"{key}:", *(f"    {line}" for line in value.split("\n"))]
        else:
            found += f"{key}: {msgspec.json.format(msgspec.json.encode(value)).decode()}".split("\n")
    return found
