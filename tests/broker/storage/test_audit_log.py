"""The file of the audit: its lines, its bounds, and what a broken disk does."""

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carpool_broker.core.model.effects import WriteAudit
from carpool_broker.storage.audit_log import FILES, AuditLog
from carpool_protocol.ids import CallId, PoolKey, RawJson, ServerName, SessionId, call_of
from carpool_protocol.link.messages import CallOrigin
from tests.behaviours import behaviour

WHO = CallOrigin(SessionId("s1"), "claude", 42, "shim", "", "reader")
OK = RawJson(b'{"content":[],"isError":false}')


def record(number: int = 1, **more: Any) -> WriteAudit:
    given_ = {"outcome": "ok", "delivered": "yes", "duration_s": 0.25, "bytes_in": 7, "body": OK, **more}
    who, server, target = given_.pop("who", WHO), given_.pop("server", "git"), given_.pop("target", "log")
    return WriteAudit(
        who, CallId(number), "tools/call", ServerName(server), PoolKey("git:1"), target, **given_
    )


def audit(path: Path, max_bytes: int = 1 << 20) -> AuditLog:
    return AuditLog(
        str(path / "log" / "audit.jsonl"),
        run="r1",
        max_bytes=max_bytes,
        whereabouts=lambda _: "shop",
        now_text=lambda: "2026-11-22T14:00:00.000Z",
    )


def lines(log: AuditLog) -> list[Any]:
    return [json.loads(line) for line in Path(log.path).read_text().splitlines()]


@behaviour("audit:every-call")
def test_a_line_says_who_what_when_how_long_how_large_and_what_came_of_it(tmp_path: Path) -> None:
    log = audit(tmp_path)
    log.add(record(call_of(1, 17), trace="a" * 32))
    log.flush()
    assert lines(log) == [
        {
            "at": "2026-11-22T14:00:00.000Z", "id": "c1.17", "run": "r1",
            "session": "s1", "agent": "claude", "pid": 42, "via": "shim", "principal": "",
            "profile": "reader", "workspace": "shop",
            "method": "tools/call", "server": "git", "name": "log",
            "outcome": "ok", "delivered": "yes", "duration_s": 0.25, "bytes_in": 7, "bytes_out": len(OK),
            "trace": "a" * 32,
        }
    ]  # fmt: skip
    assert stat.S_IMODE(os.stat(log.path).st_mode) == 0o600
    log.close()


@pytest.mark.parametrize(
    ("body", "outcome"),
    [
        (b'{"content":[],"isError":true}', "tool_error"),
        (b'{"content":[],"isError" : true}', "tool_error"),
        (b'{"content":[],"isError":false,"structuredContent":{"isError":true}}', "ok"),
        (b'{"content":[{"type":"text","text":"\\"isError\\":true"}],"isError":false}', "ok"),
        (b'{"content":[]}', "ok"),
    ],
)
def test_a_tool_that_says_it_failed_is_told_from_one_that_did_not(
    tmp_path: Path, body: bytes, outcome: str
) -> None:
    log = audit(tmp_path)
    log.add(record(body=RawJson(body)))
    log.flush()
    log.close()
    assert lines(log)[0]["outcome"] == outcome


@given(agent=st.text(), tool=st.text(), workspace=st.text())
@behaviour("audit:no-values")
def test_whatever_an_agent_calls_itself_and_its_tools_a_record_is_one_line_of_json(
    tmp_path_factory: pytest.TempPathFactory, agent: str, tool: str, workspace: str
) -> None:
    log = audit(tmp_path_factory.mktemp("audit"))
    log._whereabouts = lambda _: workspace
    log.add(record(who=CallOrigin(SessionId("s1"), agent), target=tool))
    log.add(record(2, who=CallOrigin(SessionId("s1"), agent + "\ud800"), target=tool + "\udfff"))
    log.flush()
    log.close()
    text = Path(log.path).read_bytes()
    assert text.count(b"\n") == 2
    first = json.loads(text.split(b"\n")[0])
    assert (first["agent"], first["name"], first["workspace"]) == (agent, tool, workspace)


def test_old_files_go_and_all_together_stay_below_the_bound(tmp_path: Path) -> None:
    log = audit(tmp_path, max_bytes=64 * 1024)
    for number in range(1, 601):
        log.add(record(number))
        log.flush()
    log.close()
    files = sorted(Path(log.path).parent.iterdir())
    assert len(files) == FILES
    assert sum(file.stat().st_size for file in files) <= 64 * 1024
    assert lines(log)[-1]["id"] == "c600"


@behaviour("audit:broken-disk")
def test_unwritten_records_are_counted_and_logged_once_and_the_file_says_so_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = audit(tmp_path)
    blocker = tmp_path / "log"
    blocker.write_text("not a directory")
    for number in (1, 2, 3):
        log.add(record(number))
        log.flush()
        log.retry()
    assert (log.missed, len([each for each in caplog.records if "misses calls" in each.message])) == (3, 1)
    assert "cannot be written" in log.problem
    blocker.unlink()
    log.retry()
    log.add(record(4))
    log.flush()
    log.close()
    assert [each.get("missed", each.get("id")) for each in lines(log)] == [3, "c4"]
    assert (log.problem, log.missed) == ("", 3)


def test_a_full_disk_loses_lines_and_nothing_else(tmp_path: Path) -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("no /dev/full on this system")
    log = audit(tmp_path)
    log.path = str(full)
    log.add(record())
    log.flush()
    log.close()
    assert log.missed == 1
    assert "No space left" in log.problem


def test_a_file_that_was_moved_away_is_made_anew(tmp_path: Path) -> None:
    log = audit(tmp_path)
    log.add(record(1))
    log.flush()
    Path(log.path).rename(tmp_path / "mine")
    log.retry()
    log.add(record(2))
    log.flush()
    log.close()
    assert [each["id"] for each in lines(log)] == ["c2"]


def test_answers_of_many_bytes_do_not_leave_long_before_their_lines(tmp_path: Path) -> None:
    log = audit(tmp_path)
    log.add(record(body=RawJson(b" " * 300_000)))
    assert [each["bytes_out"] for each in lines(log)] == [300_000]
    log.close()
