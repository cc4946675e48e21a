"""The verb `audit`: which lines are meant, and what people are shown of them."""

import json
from pathlib import Path
from typing import Any

import pytest

from carpool.cli.audit import AuditFilter, parsed, read_all, table

LINE: dict[str, Any] = {
    "at": "2026-11-22T13:00:00.000Z", "id": "c1", "session": "s1", "agent": "claude", "server": "git",
    "name": "log", "outcome": "ok", "delivered": "yes", "duration_s": 0.5, "bytes_in": 2, "bytes_out": 3,
}  # fmt: skip


def means(line: dict[str, Any], **wanted: str) -> bool:
    return AuditFilter(
        **{"agent": "", "server": "", "tool": "", "outcome": "", "since": "", **wanted}
    ).matches(line)


@pytest.mark.parametrize(
    ("wanted", "there"),
    [
        ({}, True),
        ({"agent": "cl*"}, True),
        ({"agent": "s1"}, True),
        ({"agent": "s2"}, False),
        ({"server": "git", "tool": "l?g"}, True),
        ({"server": "gi"}, False),
        ({"outcome": "failed"}, False),
        ({"outcome": "ok"}, True),
        ({"since": "2026-11-22T13:00:00.001Z"}, False),
    ],
)
def test_a_line_is_meant_that_fits_every_option(wanted: dict[str, str], there: bool) -> None:
    assert means(LINE, **wanted) is there


def test_all_that_went_wrong_is_one_word() -> None:
    failed = [{**LINE, "outcome": each} for each in ("tool_error", "cancelled", "not_permitted", "lost")]
    assert all(means(each, outcome="failed") for each in failed)


def test_half_a_line_is_passed_over_and_older_files_come_first(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    (tmp_path / "audit.jsonl.2").write_text(json.dumps({"id": "c1"}) + "\n")
    (tmp_path / "audit.jsonl.1").write_text(json.dumps({"id": "c2"}) + "\n" + '{"id":"c')
    path.write_text("[]\n" + json.dumps({"id": "c3"}) + "\n")
    (tmp_path / "audit.jsonl.1").write_text(json.dumps({"id": "c2"}) + "\n" + '{"id":"c\n')
    assert [line["id"] for line in read_all(str(path))] == ["c1", "c2", "c3"]
    assert [*parsed(["nonsense", "{}"])] == [{}]


def test_nothing_that_an_agent_calls_itself_plays_with_the_terminal() -> None:
    shown = table([{**LINE, "agent": "x\x1b[2Jy", "name": "\u202egnitirw"}, {"at": "a", "missed": 3}])
    assert "\x1b" not in shown
    assert "\u202e" not in shown
    assert "500.0 ms" in shown
    assert "3 calls are missing" in shown
