"""The verb `logs`: the logs of servers and of carpool's own processes, read from the files themselves.

Works when the daemon is dead: then it is needed most. Control characters in a log are shown, never obeyed.
Refuses to know who writes the files.
"""

import os
import time
from collections import deque

import click

from carpool.cli.main import json_option
from carpool.control.place import runtime_place
from carpool.terminal import display
from carpool.terminal.verb_output import fail, print_json
from carpool_protocol.config.text.problems import did_you_mean

LINES = 50
FOLLOW_S = 0.2
"""Seconds between two looks at a file that is followed."""
_TAIL_BYTES_PER_LINE = 400
_LONGEST_LINE_BYTES = 64 * 1024


@click.command()
@click.argument("server", required=False)
@click.option("--daemon", is_flag=True, help="Carpool's own: launcher, broker, supervisors.")
@click.option(
    "-n", "count", type=click.IntRange(0), default=LINES, show_default=True, help="The last N lines."
)
@click.option("-f", "follow", is_flag=True, help="Go on with what is added, until Ctrl-C.")
@json_option
def logs(server: str | None, daemon: bool, count: int, follow: bool, as_json: bool) -> None:
    """Show the last lines of SERVER: its stderr, its starts and ends; without SERVER those of every log."""
    if server and daemon:
        raise click.UsageError("name a server or say --daemon, not both")
    if follow and as_json:
        raise click.UsageError("-f goes on for ever, --json prints one document: not both")
    folder = runtime_place().logs
    chosen = _chosen(_log_files(folder), server, daemon, folder)
    tails = {name: LogTail(path) for name, path in chosen.items()}
    last = {name: tail.last_lines(count) for name, tail in tails.items()}
    if as_json:
        print_json([{"log": name, "path": chosen[name], "lines": lines} for name, lines in last.items()])
        return
    several = len(tails) > 1
    for name, lines in last.items():
        _echo(name if several else "", lines)
    while follow:
        time.sleep(FOLLOW_S)
        for name, tail in tails.items():
            _echo(name if several else "", tail.new_lines())


class LogTail:
    """One log file, followed over its rotations. An unfinished line is held until it ends.

    Keeps no file open between two looks: only a position, and the inode of its file.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._inode = 0
        self._position = 0
        self._half = b""

    def last_lines(self, count: int) -> list[str]:
        """Return the last `count` lines, some from the rotated file if the current one is short."""
        lines: deque[bytes] = deque(maxlen=count)
        length = _length(self._path)
        self._position = max(0, length - max(1, count) * _TAIL_BYTES_PER_LINE)
        if not self._position:
            lines.extend(_end_of(self._path + ".1", count))
        cut = self._position > 0
        found = self._rest()
        lines.extend(found[1:] if cut else found)
        return _decoded(lines)

    def new_lines(self) -> list[str]:
        """Return the lines that were finished since the last look."""
        return _decoded(self._rest())

    def _rest(self) -> list[bytes]:
        data = b""
        try:
            with open(self._path, "rb") as file:
                found = os.fstat(file.fileno())
                if self._inode and found.st_ino != self._inode:
                    data = self._rest_of_rotated()
                    self._position = 0
                elif found.st_size < self._position:  # emptied
                    self._position, self._half = 0, b""
                file.seek(self._position)
                data += file.read()
                self._inode, self._position = found.st_ino, file.tell()
        except OSError:
            return []  # not there yet, or between two files
        *lines, self._half = (self._half + data).split(b"\n")
        if len(self._half) > _LONGEST_LINE_BYTES:  # a server that never ends its line
            lines, self._half = [*lines, self._half], b""
        return lines

    def _rest_of_rotated(self) -> bytes:
        try:
            with open(self._path + ".1", "rb") as file:
                if os.fstat(file.fileno()).st_ino == self._inode:
                    file.seek(self._position)
                    return file.read()
        except OSError:
            pass
        self._half = b""
        return b""


def _length(path: str) -> int:
    try:
        return os.path.getsize(path)
    except OSError:
        return 0


def _end_of(path: str, count: int) -> list[bytes]:
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.path.getsize(path) - max(1, count) * _TAIL_BYTES_PER_LINE))
            return file.read().split(b"\n")[1:-1]
    except OSError:
        return []


def _log_files(folder: str) -> dict[str, str]:
    """Return every log by the name that people use: `git`, and for carpool's own `(broker)`."""
    try:
        files = sorted(name for name in os.listdir(folder) if name.endswith(".log"))
    except OSError:
        files = []
    found = {}
    for file in files:
        name = file[: -len(".log")]
        found[name[7:] if name.startswith("server-") else f"({name})"] = os.path.join(folder, file)
    return found


def _chosen(found: dict[str, str], server: str | None, daemon: bool, folder: str) -> dict[str, str]:
    if server and server not in found:
        known = sorted(name for name in found if not name.startswith("("))
        meant = did_you_mean(server, known)
        hint = f"did you mean {meant!r}?" if meant else f"there are logs of: {', '.join(known) or 'none'}"
        fail(f"no server of the name {server!r} has been started here; {hint} (in {folder})")
    if server:
        return {server: found[server]}
    chosen = {name: path for name, path in found.items() if not daemon or name.startswith("(")}
    if not chosen:
        fail(f"there are no logs in {folder}: carpool has not run here")
    return chosen


def _echo(name: str, lines: list[str]) -> None:
    for line in lines:
        click.echo(f"{name}{' | ' if name else ''}{display.printable(line)}")


def _decoded(lines: "list[bytes] | deque[bytes]") -> list[str]:
    return [line.removesuffix(b"\r").decode("utf-8", "replace") for line in lines]
