"""The verb `logs`: the logs of servers and of carpool's own processes by time, read from their files.

Works when the daemon is dead: then it is needed most. Control characters in a log are shown, never obeyed.
Refuses to know who writes the files, and their formats (`carpool.logs`).
"""

import time
from collections.abc import Iterable
from datetime import UTC, datetime

import click

from carpool.cli.main import json_option
from carpool.control.place import runtime_place
from carpool.logs.log_folder import log_files
from carpool.logs.log_tail import FOLLOW_S, LogTail, all_lines
from carpool.logs.moment import parse_moment
from carpool.logs.records import LogFilter, LogReader, LogRecord, merged
from carpool.terminal import display
from carpool.terminal.verb_output import fail, print_json
from carpool_protocol.config.text.problems import did_you_mean
from carpool_protocol.files.log_format import LEVELS

LINES = 50


@click.command()
@click.argument("server", required=False)
@click.option("--daemon", is_flag=True, help="Carpool's own: launcher, broker, supervisors, HTTP door.")
@click.option("--since", default="", metavar="TIME", help="From then on: 2026-11-22T14:00, 14:00, 30m, 2d.")
@click.option("--level", type=click.Choice(LEVELS), help="Lines of this level and above.")
@click.option(
    "-n",
    "count",
    type=click.IntRange(0),
    help=f"The last N lines. [default: {LINES}; all with --since]",
)
@click.option("-f", "follow", is_flag=True, help="Go on with what is added, until Ctrl-C.")
@json_option
def logs(
    *,
    server: str | None,
    daemon: bool,
    since: str,
    level: str | None,
    count: int | None,
    follow: bool,
    as_json: bool,
) -> None:
    """Show the last lines of SERVER: its output, its starts and ends; without SERVER all logs, by time."""
    if server and daemon:
        raise click.UsageError("name a server or say --daemon, not both")
    if follow and as_json:
        raise click.UsageError("-f goes on for ever, --json prints one document: not both")
    wanted = LogFilter(level or "", typed_moment(since) if since else "")
    if count is None and not since:
        count = LINES
    folder = runtime_place().logs
    chosen = _chosen(log_files(folder), server, daemon, folder)
    sources = [_LogSource(name, path) for name, path in chosen.items()]
    try:
        found = merged([source.last_records(count, wanted) for source in sources], count)
        if as_json:
            print_json([record.as_json() for record in found])
            return
        _show(found)
    except OSError as error:
        fail(f"a log in {folder} cannot be read ({error.strerror})")
    while follow:
        time.sleep(FOLLOW_S)
        added = merged([source.new_records() for source in sources], None)
        _show(record for record in added if wanted.matches(record))


def typed_moment(text: str) -> str:
    """Return the time that a person has typed, in the form of the lines (UTC). Raises `UsageError`."""
    try:
        return parse_moment(text, datetime.now(UTC))
    except (ValueError, OverflowError):
        raise click.UsageError(
            f"{display.printable(text)!r} is no time; say 2026-11-22T14:00, 14:00, 30m, 6h or 2d"
        ) from None


class _LogSource:
    """One log as records."""

    def __init__(self, name: str, path: str) -> None:
        self._path = path
        self._tail = LogTail(path)
        self._reader = LogReader(name)

    def last_records(self, count: int | None, wanted: LogFilter) -> Iterable[LogRecord]:
        """Return the last records that are wanted. `None`: all of them."""
        if count is not None and wanted.is_all:
            return self._reader.read(self._tail.last_lines(count))
        self._tail.last_lines(0)
        return (record for record in self._reader.read(all_lines(self._path)) if wanted.matches(record))

    def new_records(self) -> Iterable[LogRecord]:
        """Return the records of lines that were finished since the last look."""
        return self._reader.read(self._tail.new_lines())


def _chosen(found: dict[str, str], server: str | None, daemon: bool, folder: str) -> dict[str, str]:
    if server and f"server-{server}" not in found:
        known = sorted(name.removeprefix("server-") for name in found if name.startswith("server-"))
        meant = did_you_mean(server, known)
        hint = f"did you mean {meant!r}?" if meant else f"there are logs of: {', '.join(known) or 'none'}"
        fail(f"no server of the name {server!r} has been started here; {hint} (in {folder})")
    if server:
        return {f"server-{server}": found[f"server-{server}"]}
    chosen = {name: path for name, path in found.items() if not daemon or not name.startswith("server-")}
    if not chosen:
        fail(f"there are no logs in {folder}: carpool has not run here")
    return chosen


def _show(records: Iterable[LogRecord]) -> None:
    for record in records:
        click.echo(shown(record))


def shown(record: LogRecord) -> str:
    """Return the record as people read it; further lines of its message are indented."""
    at = f"{record.at} " if record.at else ""
    level = "" if record.level == "info" else f"{record.level.upper()} "
    lines = "\n    ".join(map(display.printable, record.message.split("\n")))
    return f"{at}{display.printable(_origin(record))} | {level}{lines}"


def _origin(record: LogRecord) -> str:
    if record.process != "server":
        return record.process
    instance, stream = record.fields.get("instance"), record.fields.get("stream", "stderr")
    server = f"{record.fields.get('server', '?')}{f' #{instance}' if instance else ''}"
    return server if stream == "stderr" else f"{server} {stream}"
