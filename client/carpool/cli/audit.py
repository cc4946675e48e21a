"""The verb `audit`: shows past calls and operators' acts with their outcomes, read from the files themselves.

Works when the daemon is dead. Owns which lines are chosen and how they are shown to people; their content is
docs/audit.md's. Refuses to know who writes the files.
"""

import fnmatch
import os
import time
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any, Final

import click
import msgspec

from carpool.cli.logs import LINES, typed_moment
from carpool.cli.main import environment, json_option
from carpool.control.place import runtime_place
from carpool.logs.audit_summary import AuditSummary, CallGroup, Grouping
from carpool.logs.log_tail import FOLLOW_S, LogTail, all_lines
from carpool.terminal import display, screen
from carpool.terminal.verb_output import fail, print_json
from carpool_protocol.bootstrap import paths
from carpool_protocol.config.reading.load import find_config_file, load_config
from carpool_protocol.faults.outcomes import ANSWERED

Line = dict[str, Any]

_decode = msgspec.json.Decoder(Line).decode


@click.command()
@click.option("--agent", default="", metavar="PATTERN", help="Of agents with this name, or this session's.")
@click.option("--server", default="", metavar="PATTERN", help="Calls of this server.")
@click.option("--tool", default="", metavar="PATTERN", help="Calls of this tool, prompt or URI.")
@click.option(
    "--outcome",
    default="",
    metavar="PATTERN",
    help="What came of it: ok, error, tool_error, cancelled, a fault; `failed` means no result.",
)
@click.option("--since", default="", metavar="TIME", help="From then on: 2026-11-22T14:00, 14:00, 30m, 2d.")
@click.option("--token", default="", metavar="PATTERN", help="Of this bearer token.")
@click.option("--acts", is_flag=True, help="What operators did, and no calls.")
@click.option(
    "--by",
    type=click.Choice(["agent", "tool", "outcome"]),
    help="Sums: calls, errors, times and sizes of each.",
)
@click.option(
    "-n",
    "count",
    type=click.IntRange(0),
    default=LINES,
    show_default=True,
    help="The last N of them; with --by the N with the most calls.",
)
@click.option("-f", "--follow", "follow", is_flag=True, help="Go on with what is added, until Ctrl-C.")
@json_option
def audit(
    *,
    agent: str,
    server: str,
    tool: str,
    outcome: str,
    since: str,
    token: str,
    acts: bool,
    by: Grouping | None,
    count: int,
    follow: bool,
    as_json: bool,
) -> None:
    """Show who called what, and what came of it: the last calls that have ended, and what operators did.

    PATTERN may hold * and ?.
    """
    if follow and (as_json or by):
        raise click.UsageError("-f goes on for ever, --json and --by print one document: not both")
    if acts and by:
        raise click.UsageError("--by sums calls, and --acts leaves calls out: say one of them")
    path = paths.audit_file(runtime_place().logs)
    wanted = AuditFilter(
        agent, server, tool, outcome, typed_moment(since) if since else "", token=token, acts=acts
    )
    if not follow and not os.path.exists(path):
        if as_json:
            print_json([])
        fail(_why_missing(path))
    if by:
        summary = AuditSummary((line for line in read_all(path) if wanted.matches(line)), by)
        _show_summary(summary, by, count, as_json=as_json)
        return
    tail = LogTail(path)
    tail.last_lines(0)
    found = [*deque((line for line in read_all(path) if wanted.matches(line)), maxlen=count)]
    if as_json:
        print_json(found)
        return
    click.echo(table(found) if found or not follow else "", nl=bool(found) or not follow)
    while follow:
        time.sleep(FOLLOW_S)
        for line in parsed(tail.new_lines()):
            if wanted.matches(line):
                click.echo("  ".join(map(display.printable, row(line))))


def _why_missing(path: str) -> str:
    """Return why there is no audit file, and what to do."""
    where = find_config_file(environment())
    loaded = load_config(where)
    if loaded.config is None:
        return f"there is no audit at {path}, and {where.path} cannot be read; see `carpool check`"
    if loaded.config.audit.on:
        return (
            f"there is no audit at {path}: carpool has not run since `audit.on` is true; see `carpool status`"
        )
    return (
        f'the audit is off; to turn it on, write "audit": {{"on": true}} into {where.path}. '
        "A running carpool takes that over at once"
    )


def _show_summary(summary: AuditSummary, by: Grouping, count: int, *, as_json: bool) -> None:
    groups = summary.groups[:count]
    if as_json:
        print_json({"by": by, "groups": [_group_json(each) for each in groups], "missed": summary.missed})
        return
    click.echo(summary_table(groups, by))
    if more := len(summary.groups) - len(groups):
        click.echo(f"and {more} more; -n shows them")
    if summary.missed:
        click.echo(f"({summary.missed} calls are missing here)")


def summary_table(groups: list[CallGroup], by: Grouping) -> str:
    """Return the groups as a table for people."""
    if not groups:
        return "no call fits"
    heads = [
        by.upper(),
        "CALLS",
        "OK",
        "TOOL ERRORS",
        "ERRORS",
        "REFUSED",
        "CANCELLED",
        "P50",
        "P99",
        "IN",
        "OUT",
    ]
    rows = [
        [
            display.one_line(" ".join(filter(None, each.key.values())) or "-", 60),
            each.calls,
            *each.counts.values(),
            _took(each.duration_s(0.5)),
            _took(each.duration_s(0.99)),
            display.size(each.bytes_in),
            display.size(each.bytes_out),
        ]
        for each in groups
    ]
    spare = ("OUT", "IN", "TOOL ERRORS", "CANCELLED", "OK", "P50")
    return display.columns(heads, rows, right=set(heads[1:]), spare=spare)


def _group_json(group: CallGroup) -> Line:
    return {
        **group.key,
        "calls": group.calls,
        **group.counts,
        "duration_s": {"p50": group.duration_s(0.5), "p99": group.duration_s(0.99)},
        "bytes_in": group.bytes_in,
        "bytes_out": group.bytes_out,
    }


class AuditFilter:
    """The choice of lines."""

    def __init__(
        self,
        agent: str,
        server: str,
        tool: str,
        outcome: str,
        since: str,
        *,
        token: str = "",
        acts: bool = False,
    ) -> None:
        """`acts`: only acts of operators."""
        self._token = token
        self._acts = acts
        self._agent = agent
        self._fields = {"server": server, "name": tool}
        self._outcome = outcome
        self._since = since

    def matches(self, line: Line) -> bool:
        """True if the line is chosen.

        A line that counts missing calls is chosen if no filter but the time is set.
        """
        if str(line.get("at", "")) < self._since:
            return False
        if self._token and not _fits(self._token, line.get("principal")):
            return False
        if "act" in line:
            return self._matches_act(line)
        if self._acts:
            return False
        if self._agent and not _fits(self._agent, line.get("agent")) and self._agent != line.get("session"):
            return False
        if self._outcome == "failed":
            if line.get("outcome", "ok") in ANSWERED:
                return False
        elif self._outcome and not _fits(self._outcome, line.get("outcome")):
            return False
        return all(not each or _fits(each, line.get(key)) for key, each in self._fields.items())

    def _matches_act(self, line: Line) -> bool:
        """True if an act is chosen: by its session, its outcome and its targets; it has no agent and tool."""
        if (self._agent and self._agent != line.get("session")) or self._fields["name"]:
            return False
        if self._outcome == "failed":
            if line.get("outcome") == "done":
                return False
        elif self._outcome and not _fits(self._outcome, line.get("outcome")):
            return False
        targets, server = line.get("targets"), self._fields["server"]
        return not server or (isinstance(targets, list) and any(_fits(server, each) for each in targets))


def _fits(pattern: str, value: object) -> bool:
    return isinstance(value, str) and fnmatch.fnmatchcase(value, pattern)


def read_all(path: str) -> Iterator[Line]:
    """Yield every line of the files, the oldest first."""
    try:
        yield from parsed(all_lines(path))
    except OSError as error:
        fail(f"{path} cannot be read ({error.strerror})")


def parsed(lines: Iterable[str]) -> Iterator[Line]:
    """Yield the lines that are whole. A broker that was killed may have left half of one."""
    for text in lines:
        try:
            yield _decode(text)
        except (msgspec.MsgspecError, RecursionError, UnicodeEncodeError):
            continue


WHOLE_TIMES: Final = 110
"""A terminal with fewer columns shows times without the year and milliseconds, so that ids have room."""
HEADS = ["AT", "ID", "AGENT", "SERVER", "TOOL", "OUTCOME", "TOOK", "IN", "OUT"]


def table(found: list[Line]) -> str:
    """Return the lines as a table for people."""
    if not found:
        return "no call fits"
    rows = [row(line) for line in found]
    width = screen.width()
    if width is not None and width < WHOLE_TIMES:
        rows = [[_short_time(at), *cells] for at, *cells in rows]
    return display.columns(HEADS, rows, right={"AT", "TOOK", "IN", "OUT"}, spare=("OUT", "IN"))


def _short_time(at: str) -> str:
    """Return a time without its year and milliseconds: `2026-01-02 03:04:05.678Z` is `01-02 03:04:05`."""
    return at[5:19] if len(at) == len("2026-01-02 03:04:05.678Z") else at


def row(line: Line) -> list[str]:
    """Return the cells of one call, in the order of `HEADS`."""
    at = str(line.get("at", "?")).replace("T", " ")
    if "missed" in line:
        return [at, "-", "-", "-", f"({line['missed']} calls are missing here)", "-", "-", "-", "-"]
    if "act" in line:
        return _row_of_act(at, line)
    took, agent = line.get("duration_s"), str(line.get("agent") or "-")
    outcome, delivered = str(line.get("outcome", "?")), line.get("delivered")
    return [
        at,
        str(line.get("id", "?")),
        f"{display.one_line(agent, 24)} {line.get('session', '')}".strip(),
        str(line.get("server") or "-"),
        display.one_line(str(line.get("name") or line.get("method") or "-"), 60),
        f"{outcome} (maybe delivered)" if delivered == "maybe" else outcome,
        _took(took),
        _size(line.get("bytes_in")),
        _size(line.get("bytes_out")),
    ]


def _row_of_act(at: str, line: Line) -> list[str]:
    """Return the cells of an operator's act: its targets and the verb stand below SERVER and TOOL."""
    uid, outcome, times = line.get("uid"), str(line.get("outcome", "?")), line.get("times")
    user = f"uid {uid}" if uid is not None else "a user"
    operator = f"operator {line.get('principal') or user}"
    targets = line.get("targets")
    named = ", ".join(map(str, targets)) if isinstance(targets, list) else ""
    return [
        at,
        "-",
        f"{display.one_line(operator, 40)} {line.get('session', '')}".strip(),
        display.one_line(named or "-", 40),
        f"({display.one_line(str(line['act']), 40)})",
        f"{outcome} {times} times" if isinstance(times, int) and times > 1 else outcome,
        "-",
        "-",
        "-",
    ]


def _took(duration_s: object) -> str:
    if not isinstance(duration_s, int | float):
        return "-"
    return f"{duration_s * 1000:.1f} ms" if duration_s < 10 else display.duration(duration_s)


def _size(size_bytes: object) -> str:
    return display.size(size_bytes) if isinstance(size_bytes, int) else "-"
