"""Lines of log files as records: those of today (`log_format`) and those of earlier versions of carpool.

Owns the reading of each format, the time of a line without one, and the choice and order of records. A line
that no format fits is a record with its text as message, so nothing in a file is lost.

Knows nothing of: files, terminals.
"""

import re
from collections import deque
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from heapq import merge
from typing import NamedTuple

import msgspec

from carpool_protocol.files.log_format import LEVELS

FIELDS = ("server", "instance", "session", "call", "stream")
_AT = r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z)"
_IS_AT = re.compile(_AT)
COPY_S = 1.0
"""The supervisor writes the two lines about one event within this time."""
_DAEMON_TEXT = re.compile(rf"{_AT} (DEBUG|INFO|WARNING|ERROR|CRITICAL) \S+ (.*)", re.DOTALL)
_SERVER_TEXT = re.compile(rf"{_AT} #(\d{{1,9}}) (.*)", re.DOTALL)
_DOOR_TEXT = re.compile(rf"{_AT} (?:http|launcher): (.*)", re.DOTALL)
_LAUNCHER_TEXT = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) launcher: (.*)", re.DOTALL)


class LogRecord(NamedTuple):
    """One line of a log."""

    at: str
    """UTC; that of the line before it where a line has none; empty at the start of such a file."""
    level: str
    process: str
    message: str
    fields: dict[str, str | int]
    """Some of `FIELDS`."""
    log: str
    """The name of its log: that of the process, or `server-NAME`."""

    def as_json(self) -> dict[str, str | int]:
        """Return the record as `carpool logs --json` prints it."""
        own = {"at": self.at, "level": self.level, "process": self.process}
        return {**own, **self.fields, "message": self.message, "log": self.log}

    @property
    def is_about_server(self) -> bool:
        """True for a line that the supervisor wrote to the log of a server, and to its own as well."""
        return self.process == "supervisor" and self.log.startswith("server-")


class _Line(msgspec.Struct):
    at: str
    message: str
    process: str = ""
    level: str = "info"
    server: str = ""
    instance: int = 0
    session: str = ""
    call: str | int = ""
    stream: str = ""


_decode = msgspec.json.Decoder(_Line).decode


class LogReader:
    """The lines of one log, in their order."""

    def __init__(self, log: str) -> None:
        self._log = log
        self._server = log.removeprefix("server-") if log.startswith("server-") else ""
        self._at = ""

    def read(self, lines: Iterable[str]) -> Iterator[LogRecord]:
        """Yield a record for each line."""
        for line in lines:
            record = self._read_line(line)
            self._at = record.at
            yield record

    def _read_line(self, line: str) -> LogRecord:
        if line.startswith("{") and (record := self._read_json(line)) is not None:
            return record
        if found := _DAEMON_TEXT.fullmatch(line):
            level = "error" if found[2] == "CRITICAL" else found[2].lower()
            return LogRecord(found[1], level, self._log, found[3], {}, self._log)
        if self._server and (found := _SERVER_TEXT.fullmatch(line)):
            return self._server_record(found[1], found[3], int(found[2]))
        if found := _DOOR_TEXT.fullmatch(line):
            return LogRecord(found[1], "info", self._log, found[2], {}, self._log)
        if found := _LAUNCHER_TEXT.fullmatch(line):
            return LogRecord(_utc(found[1]) or self._at, "info", self._log, found[2], {}, self._log)
        if self._server:
            return self._server_record(self._at, line, 0)
        return LogRecord(self._at, "info", self._log, line, {}, self._log)

    def _read_json(self, line: str) -> LogRecord | None:
        try:
            found = _decode(line)
        except (msgspec.MsgspecError, RecursionError, UnicodeEncodeError):
            return None
        if not _IS_AT.fullmatch(found.at):
            return None
        level = found.level if found.level in LEVELS else "info"
        fields = {name: value for name in FIELDS if (value := getattr(found, name))}
        return LogRecord(found.at, level, found.process or self._log, found.message, fields, self._log)

    def _server_record(self, at: str, message: str, instance: int) -> LogRecord:
        fields: dict[str, str | int] = {"server": self._server}
        if instance:
            fields["instance"] = instance
        return LogRecord(at, "info", "server", message, fields, self._log)


class LogFilter:
    """The choice of records: from a level on, from a time on."""

    def __init__(self, level: str = "", since: str = "") -> None:
        self._levels = LEVELS[LEVELS.index(level) :] if level else LEVELS
        self._since = since
        self.is_all = not level and not since

    def matches(self, record: LogRecord) -> bool:
        """True if the record is chosen."""
        return record.level in self._levels and record.at >= self._since


def merged(streams: Iterable[Iterable[LogRecord]], count: int | None) -> Iterable[LogRecord]:
    """The records of all logs by time, the last `count` of them. `None`: all.

    A line of the supervisor that stands in its own log and in that of a server comes once.
    """
    # The supervisor writes its own log first.
    ordered = merge(*streams, key=lambda record: (record.at, record.is_about_server))
    once = _without_copies(ordered)
    return once if count is None else deque(once, maxlen=count)


def _without_copies(ordered: Iterable[LogRecord]) -> Iterator[LogRecord]:
    """Yield the records without those in logs of servers that the supervisor's own log has as well.

    Its own log may lack one: each log is bounded by itself.
    """
    written: dict[str, str] = {}
    for record in ordered:
        if not record.process.startswith("supervisor"):
            yield record
            continue
        message = " ".join(record.message.split())
        if not record.is_about_server:
            if record.at:
                written[message] = record.at
            yield record
        elif message not in written or _seconds_between(written[message], record.at) > COPY_S:
            yield record


def _seconds_between(earlier: str, later: str) -> float:
    return (datetime.fromisoformat(later) - datetime.fromisoformat(earlier)).total_seconds()


def _utc(local: str) -> str:
    """The time of a line of an earlier launcher, which wrote the machine's own time."""
    try:
        then = datetime.strptime(local, "%Y-%m-%d %H:%M:%S").astimezone(UTC)
    except (ValueError, OverflowError, OSError):
        return ""
    return f"{then:%Y-%m-%dT%H:%M:%S}.000Z"
