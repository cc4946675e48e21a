"""The verb `pin`: shows the held definitions of pinned servers and their changes, and approves them.

Owns the display of a change: by lines, with everything spelled out that a terminal would not show, since a
person decides by it. Only what was shown is approved: on a terminal `approve` shows the change and asks; a
program names the digests that it got from `diff`. Refuses to know what holding a tool back does.
"""

import difflib
import sys
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, Final

import click
import msgspec

from carpool.cli.main import broker_request_or_fail, json_option, open_session
from carpool.control.control_client import ControlClient
from carpool.terminal import display
from carpool.terminal.verb_output import EXIT_USAGE, fail, print_json
from carpool_protocol.config.text.problems import did_you_mean

Facts = dict[str, Any]

INSTRUCTIONS: Final = "(instructions)"
DIGEST_CHARS: Final = 16
"""The characters of a digest that are shown; they are enough to name it."""
_AROUND: Final = 2
"""The number of unchanged lines that are shown around a change."""
_WHY: Final = {
    "new": "is new",
    "changed": "has changed",
    "unreadable": "cannot be compared: what was approved cannot be read",
}


@click.command()
@click.argument("verb", type=click.Choice(["status", "diff", "approve"]), default="status")
@click.argument("server", required=False)
@click.argument("tools", nargs=-1)
@click.option(
    "--digest",
    "digests",
    multiple=True,
    help="Approve what has this digest, as `diff` has shown it: for programs. Once for each.",
)
@json_option
def pin(
    verb: str, server: str | None, tools: tuple[str, ...], digests: tuple[str, ...], as_json: bool
) -> None:
    """Show pinned servers (status), what has changed there (diff), or approve it: all of SERVER, or TOOLS.

    On a terminal approve shows what has changed and asks. Elsewhere it needs a --digest.
    """
    if digests and verb != "approve":
        raise click.UsageError("--digest goes with approve")
    if any(len(digest) < DIGEST_CHARS for digest in digests):
        raise click.UsageError(f"a --digest has at least {DIGEST_CHARS} characters")
    if verb == "approve" and not server:
        raise click.UsageError("say which SERVER; `carpool pin diff` shows what has changed")
    with open_session(control=True) as door:
        pinned: list[Facts] = broker_request_or_fail(door, "carpool/pin", {"verb": "status"})["pinned"]
        meant = _meant(pinned, server)
        if verb == "approve":
            _approve(door, _chosen(meant, tools, digests, as_json=as_json), as_json=as_json)
            return
    if as_json:
        print_json([_read(each) for each in meant])
    elif verb == "status":
        click.echo(status_page(meant))
    else:
        click.echo("\n\n".join(diffs(meant, tools)) or "nothing is held back: all is as approved")


def _meant(pinned: list[Facts], server: str | None) -> list[Facts]:
    meant = [each for each in pinned if server in (None, each["server"])]
    if server and not meant:
        names = sorted({each["server"] for each in pinned})
        close = did_you_mean(server, names)
        hint = f"did you mean {close}?" if close else f"pinned are: {', '.join(names) or 'none'}"
        fail(f'no server {server!r} is pinned ("pin": true in its configuration); {hint}')
    return meant


def _chosen(
    meant: list[Facts], tools: Sequence[str], digests: Sequence[str], *, as_json: bool
) -> list[tuple[Facts, list[Facts]]]:
    """Return, for each server, the held definitions to approve: only those that somebody has seen."""
    unknown = [tool for tool in tools if not any(tool == one["tool"] for it in meant for one in it["held"])]
    if unknown:
        fail(f"not held back, so not approved: {', '.join(unknown)}; `carpool pin diff` shows what is")
    chosen = [(each, [one for one in each["held"] if not tools or one["tool"] in tools]) for each in meant]
    if digests:
        every = [one["digest"] for _, held in chosen for one in held]
        gone = [digest for digest in digests if not any(it.startswith(digest) for it in every)]
        if gone:
            fail(
                f"nothing is held back that has the digest {', '.join(gone)}: it has changed again, or is "
                "approved; look at `carpool pin diff` again"
            )
        return [
            (each, [one for one in held if one["digest"].startswith(tuple(digests))]) for each, held in chosen
        ]
    if not any(held for _, held in chosen):
        return []
    server = meant[0]["server"]
    if as_json or not sys.stdin.isatty():
        fail(
            f"nobody is there to be shown what would be approved: run `carpool pin approve {server}` in a "
            f"terminal, or say what `carpool pin diff {server}` has shown with --digest",
            EXIT_USAGE,
        )
    click.echo("\n\n".join(diffs(meant, tools)))
    if not click.confirm("\nApprove this?"):
        fail("nothing is approved")
    return chosen


def _approve(client: ControlClient, chosen: list[tuple[Facts, list[Facts]]], *, as_json: bool) -> None:
    done: list[Facts] = []
    for each, held in chosen:
        if held:
            wanted = {one["tool"]: one["digest"] for one in held}
            said = broker_request_or_fail(
                client, "carpool/pin", {"verb": "approve", "pin": each["pin"], "tools": wanted}
            )
            done.append({"server": each["server"], "pin": each["pin"], "approved": said["approved"]})
    approved = [tool or INSTRUCTIONS for each in done for tool in each["approved"]]
    if as_json:
        print_json(done)
    else:
        click.echo(
            f"approved: {display.printable(', '.join(approved))}" if approved else "nothing to approve"
        )
    if len(approved) < sum(len(held) for _, held in chosen):
        fail("some have changed again meanwhile, and are still held back; look at `carpool pin diff` again")


def _read(each: Facts) -> Facts:
    """Return the facts for programs: definitions as JSON if they are JSON."""
    held = [{**one, "before": _decoded(one["before"]), "now": _decoded(one["now"])} for one in each["held"]]
    return {**each, "held": held}


def _decoded(text: str) -> object:
    try:
        return msgspec.json.decode(text) if text else None
    except (msgspec.MsgspecError, RecursionError, UnicodeEncodeError):
        return text


def status_page(pinned: list[Facts]) -> str:
    """Return the state of the pinned servers as text for people."""
    if not pinned:
        return display.wrapped(
            'no server is pinned; write "pin": true into one, and its tools and instructions are held back '
            "when they change"
        )
    rows = [
        [
            each["server"],
            each["approved"] if each["met"] else "-",
            ", ".join(f"{one['tool'] or INSTRUCTIONS} ({one['why']})" for one in each["held"]) or "-",
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
    """Yield the difference of each held tool."""
    for each in pinned:
        for one in each["held"]:
            if not tools or one["tool"] in tools:
                yield "\n".join(
                    [
                        display.spelled(f"{each['server']}: {_named(one)} {_WHY[one['why']]}")
                        + f" (digest {one['digest'][:DIGEST_CHARS]})",
                        *_diff(one),
                    ]
                )


def _named(one: Facts) -> str:
    return one["tool"] or "the text of its instructions"


def _diff(one: Facts) -> Iterator[str]:
    if one["why"] == "changed" and not one["before"]:
        yield "  (the approved definition was not kept: it held a value of an environment)"
    before, now = _lines(one["before"]), _lines(one["now"])
    changes = difflib.unified_diff(before, now, lineterm="", n=_AROUND)
    for line in islice(changes, 2, None):  # its head; a line of the definition may begin like that, too
        yield f"  {display.spelled(line)}"


def _lines(text: str) -> list[str]:
    """Split a definition into lines for comparison: texts by their own lines, the rest as indented JSON."""
    whole = _decoded(text)
    if isinstance(whole, str):  # instructions
        return whole.split("\n")
    if not isinstance(whole, dict):
        return text.splitlines()
    found: list[str] = []
    for key, value in whole.items():
        if isinstance(value, str):
            found += [f"{key}:", *(f"    {line}" for line in value.split("\n"))]
        else:
            found += f"{key}: {msgspec.json.format(msgspec.json.encode(value)).decode()}".split("\n")
    return found
