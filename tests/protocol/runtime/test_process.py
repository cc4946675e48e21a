"""The lines of our own logs."""

import json
import logging
import re
from typing import Any

from carpool_protocol.runtime.process import _Format


def written(text: str, *, error: BaseException | None = None, **fields: Any) -> str:
    about = (type(error), error, None) if error else None
    record = logging.LogRecord("carpool.test", logging.WARNING, "x", 1, "git #1 %s", (text,), about)
    record.__dict__.update(fields)
    return _Format("broker").format(record)


def test_what_a_peer_said_forges_no_line_and_moves_no_cursor() -> None:
    forged = 'no\n{"at":"2026-11-22T00:00:00.000Z"}\x1b[2J\r\x7f\x9b31m\u2028\u202e\ud83d'
    line = written(forged)
    assert line.isprintable()
    assert json.loads(line)["message"] == f"git #1 {forged[:-1]}\ufffd"


def test_what_people_can_read_stays_as_it_is() -> None:
    assert written("naïve 日本").endswith('"message":"git #1 naïve 日本"}')
    assert json.loads(written("x", error=ValueError("wrong")))["message"].endswith("\nValueError: wrong")


def test_a_line_says_when_how_important_and_of_which_process() -> None:
    line = json.loads(written("x", server="git", instance=7, session="", unknown="no"))
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line.pop("at"))
    told = {"level": "warning", "process": "broker", "server": "git", "instance": 7, "message": "git #1 x"}
    assert line == told
