"""Lines of logs as records: every format that carpool has written, in the order of time."""

import os
import time
from collections.abc import Iterator

import pytest

from carpool.logs.records import LogFilter, LogReader, LogRecord, merged
from carpool_protocol.files.log_format import log_line

ONE, TWO, THREE = (f"2026-11-21T22:00:0{second}.123Z" for second in (1, 2, 3))


def read(log: str, *lines: str) -> list[LogRecord]:
    return [*LogReader(log).read(lines)]


@pytest.fixture
def east() -> Iterator[None]:
    before = os.environ.get("TZ")
    os.environ["TZ"] = "XXX-2"
    time.tzset()
    yield
    del os.environ["TZ"]
    if before is not None:
        os.environ["TZ"] = before
    time.tzset()


def test_a_line_of_today_is_read_with_its_fields() -> None:
    line = log_line(
        ONE, "warning", "server", "no\nroom", {"server": "git", "instance": 7, "stream": "stdout"}
    )
    fields: dict[str, str | int] = {"server": "git", "instance": 7, "stream": "stdout"}
    assert read("server-git", line) == [LogRecord(ONE, "warning", "server", "no\nroom", fields, "server-git")]


@pytest.mark.usefixtures("east")
@pytest.mark.parametrize(
    ("log", "line", "record"),
    [
        (
            "broker",
            f"{ONE} WARNING carpool.broker s1 is dropped",
            (ONE, "warning", "broker", "s1 is dropped"),
        ),
        ("broker", f"{ONE} CRITICAL carpool.broker x", (ONE, "error", "broker", "x")),
        ("server-git", f"{ONE} #3 fatal: [carpool] x", (ONE, "info", "server", "fatal: [carpool] x")),
        ("http", f"{ONE} http: MCP is spoken", (ONE, "info", "http", "MCP is spoken")),
        (
            "launcher",
            "2026-11-22 00:00:01 launcher: up",
            ("2026-11-21T22:00:01.000Z", "info", "launcher", "up"),
        ),
        ("launcher", "2026-99-22 00:00:01 launcher: up", ("", "info", "launcher", "up")),
    ],
)
def test_a_line_of_an_earlier_version_is_read(log: str, line: str, record: tuple[str, ...]) -> None:
    assert [each[:4] for each in read(log, line)] == [record]


def test_a_line_without_a_time_has_that_of_the_line_before_it() -> None:
    lines = ["first", log_line(ONE, "error", "broker", "x", {}), "Traceback (most recent call last):", "{"]
    assert [(each.at, each.message) for each in read("broker", *lines)] == [
        ("", "first"),
        (ONE, "x"),
        (ONE, "Traceback (most recent call last):"),
        (ONE, "{"),
    ]


@pytest.mark.parametrize(
    "line",
    [
        '{"at": "\\u001b[2J", "message": "x"}',
        '{"at": 1, "message": "x"}',
        f'{{"at": "{ONE}"}}',
        f'{{"at": "{ONE}", "message": "x", "instance": "y"}}',
        "[" * 100_000,
    ],
)
def test_json_that_is_no_line_of_a_log_is_text(line: str) -> None:
    assert read("server-git", line) == [
        LogRecord("", "info", "server", line, {"server": "git"}, "server-git")
    ]


def test_all_logs_come_by_time_and_a_line_of_two_logs_once() -> None:
    broker = read("broker", log_line(TWO, "info", "broker", "b", {}))
    supervisor = read("supervisor-sup1", log_line(ONE, "info", "supervisor-sup1", "git #1 starts", {}))
    server = read(
        "server-git",
        log_line(ONE, "info", "supervisor", "git #1 starts", {"server": "git"}),
        log_line(THREE, "info", "server", "hello", {"server": "git"}),
    )
    assert [each.message for each in merged([broker, supervisor, server], None)] == [
        "git #1 starts",
        "b",
        "hello",
    ]
    assert [each.message for each in merged([broker, supervisor, server], 2)] == ["b", "hello"]
    assert [each.message for each in merged([server], None)] == ["git #1 starts", "hello"]


def test_a_line_about_a_server_that_the_log_of_the_supervisor_lacks_is_not_lost() -> None:
    supervisor = read("supervisor-sup1", log_line(THREE, "info", "supervisor-sup1", "git #1 starts", {}))
    server = read(
        "server-git",
        log_line(ONE, "info", "supervisor", "git #1 starts", {"server": "git"}),
        log_line(THREE, "info", "supervisor", "git #1 starts", {"server": "git"}),
    )
    found = [(each.at, each.log) for each in merged([supervisor, server], None)]
    assert found == [(ONE, "server-git"), (THREE, "supervisor-sup1")]


@pytest.mark.parametrize(
    ("level", "since", "chosen"),
    [("", "", "abc"), ("info", "", "bc"), ("error", "", "c"), ("", TWO, "bc"), ("error", THREE, "")],
)
def test_records_are_chosen_by_level_and_time(level: str, since: str, chosen: str) -> None:
    found = read(
        "broker",
        log_line(ONE, "debug", "broker", "a", {}),
        log_line(TWO, "info", "broker", "b", {}),
        log_line(TWO, "error", "broker", "c", {}),
    )
    wanted = LogFilter(level, since)
    assert "".join(each.message for each in found if wanted.matches(each)) == chosen
    assert wanted.is_all is (not level and not since)
