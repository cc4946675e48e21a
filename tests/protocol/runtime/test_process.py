"""The lines of our own logs."""

import logging

from carpool_protocol.runtime.process import LINE, _Format


def written(text: str, *, error: BaseException | None = None) -> str:
    about = (type(error), error, None) if error else None
    record = logging.LogRecord("carpool.test", logging.WARNING, "x", 1, "git #1 %s", (text,), about)
    return _Format(LINE).format(record)


def test_what_a_peer_said_forges_no_line_and_moves_no_cursor() -> None:
    forged = "no\n2026-11-22T00:00:00.000Z INFO carpool.broker well\x1b[2J\r\x9b31m\u2028\ud83d"
    first, second = written(forged).split("\n")
    assert first.endswith("WARNING carpool.test git #1 no")
    assert (
        second == "    2026-11-22T00:00:00.000Z INFO carpool.broker well\\x1b[2J\\x0d\\x9b31m\\u2028\\ud83d"
    )


def test_what_people_can_read_stays_as_it_is() -> None:
    assert written("naïve 日本 \tx").endswith(" git #1 naïve 日本 \tx")
    assert written("x", error=ValueError("wrong")).endswith("\nValueError: wrong")
