"""The verb `audit`: which lines are meant, and what people are shown of them."""

import json
from pathlib import Path
from typing import Any

import pytest

from carpool.cli.audit import AuditFilter, parsed, read_all, row, table
from carpool.terminal import screen
from tests.behaviours import behaviour
from tests.kit.private_daemon import PrivateDaemon

LINE: dict[str, Any] = {
    "at": "2026-11-22T13:00:00.000Z", "id": "c1", "session": "s1", "agent": "claude", "server": "git",
    "name": "log", "outcome": "ok", "delivered": "yes", "duration_s": 0.5, "bytes_in": 2, "bytes_out": 3,
}  # fmt: skip


ACT: dict[str, Any] = {
    "at": "2026-11-22T13:00:00.000Z", "act": "stop", "targets": ["git", "time"], "session": "s2", "uid": 7,
    "principal": "", "outcome": "partly", "failed": ["time"],
}  # fmt: skip


def means(line: dict[str, Any], *, acts: bool = False, **wanted: str) -> bool:
    everything = {"agent": "", "server": "", "tool": "", "outcome": "", "since": "", **wanted}
    return AuditFilter(**everything, acts=acts).matches(line)


@behaviour("operate:audited")
@pytest.mark.parametrize(
    ("wanted", "there"),
    [
        ({}, True),
        ({"server": "ti*"}, True),
        ({"server": "docs"}, False),
        ({"tool": "stop"}, False),
        ({"agent": "s2"}, True),
        ({"agent": "claude"}, False),
        ({"outcome": "failed"}, True),
        ({"outcome": "done"}, False),
        ({"since": "2026-11-22T14"}, False),
    ],
)
def test_an_act_is_chosen_by_its_targets_session_outcome_and_time(
    wanted: dict[str, Any], there: bool
) -> None:
    assert means(ACT, **wanted) is there
    assert means(ACT, acts=True, **wanted) is there


@behaviour("operate:audited")
@pytest.mark.parametrize("line", [ACT, LINE], ids=["act", "call"])
def test_acts_and_calls_are_chosen_by_the_name_of_their_token(line: dict[str, Any]) -> None:
    of_token = {**line, "principal": "ops"}
    assert means(of_token, token="o*")
    assert not means(of_token, token="other")
    assert not means({**line, "principal": ""}, token="o*")


def test_a_question_of_a_server_is_no_failure() -> None:
    assert not means({**LINE, "outcome": "input_required"}, outcome="failed")
    assert means({**LINE, "outcome": "tool_error"}, outcome="failed")


@behaviour("operate:audited")
def test_a_filter_for_acts_takes_no_calls() -> None:
    assert not means(LINE, acts=True)


@behaviour("operate:audited")
@pytest.mark.parametrize(
    ("more", "who"), [({}, "uid 7"), ({"uid": None}, "a user"), ({"principal": "ops"}, "ops")]
)
def test_a_row_of_an_act_names_the_operator(more: dict[str, Any], who: str) -> None:
    cells = row({**ACT, **more})
    assert cells[1:6] == ["-", f"operator {who} s2", "git, time", "(stop)", "partly"]
    assert row({**ACT, "targets": 1, "act": "\x1b[2J"})[3] == "-"
    assert "\x1b" not in "".join(row({**ACT, "act": "\x1b[2J", "targets": ["\x1b"]}))


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
def test_a_line_is_meant_that_fits_every_option(wanted: dict[str, Any], there: bool) -> None:
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


def test_sums_are_a_table_for_people_and_an_object_for_programs(house: PrivateDaemon) -> None:
    house.logs.mkdir(parents=True)
    lines = [
        {**LINE, "method": "tools/call"},
        {**LINE, "id": "c2", "outcome": "not_permitted", "agent": "x\x1b"},
    ]
    (house.logs / "audit.jsonl").write_text("".join(json.dumps(each) + "\n" for each in lines))
    shown = house.run("audit", "--by", "agent").stdout.splitlines()
    assert shown[0].split()[:3] == ["AGENT", "CALLS", "OK"]
    assert shown[1].split() == [
        "claude",
        "1",
        "1",
        "0",
        "0",
        "0",
        "0",
        "500.0",
        "ms",
        "500.0",
        "ms",
        "2",
        "B",
        "3",
        "B",
    ]
    assert shown[2].startswith("x\\x1b ")
    found = json.loads(house.run("audit", "--by", "tool", "--json", "--outcome", "ok").stdout)
    assert found == {
        "by": "tool",
        "groups": [
            {
                "server": "git", "tool": "log", "calls": 1, "answers": 1, "tool_errors": 0, "errors": 0,
                "refusals": 0, "cancelled": 0,
                "duration_s": {"p50": 0.5, "p99": 0.5}, "bytes_in": 2, "bytes_out": 3,
            }
        ],
        "missed": 0,
    }  # fmt: skip
    assert house.run("audit", "--by", "tool", "-n", "0").stdout == "no call fits\nand 2 more; -n shows them\n"
    assert house.run("audit", "--by", "tool", "-f").returncode == 2


def test_an_audit_that_is_off_says_so_and_how_to_turn_it_on(house: PrivateDaemon) -> None:
    done = house.run("audit", "--json")
    assert (done.returncode, done.stdout) == (1, "[]\n")
    assert 'the audit is off; to turn it on, write "audit": {"on": true} into ' in done.stderr
    file = house.base / ".config" / "carpool" / "carpool.json"
    file.parent.mkdir(parents=True)
    file.write_text('{"audit": {"on": true}}')
    done = house.run("audit")
    assert done.returncode == 1
    assert "carpool has not run since `audit.on` is true" in done.stderr


def test_a_narrow_terminal_shows_the_ids_and_shorter_times(monkeypatch: pytest.MonkeyPatch) -> None:
    line = {**LINE, "at": "2026-01-02T03:04:05.678Z", "id": "c17", "agent": "a" * 40, "server": "s" * 40}
    monkeypatch.setattr(screen, "width", lambda: 80)
    head, row_ = table([line]).splitlines()
    assert head.split()[:2] == ["AT", "ID"]
    assert row_.startswith("01-02 03:04:05  c17  ")
    assert len(row_) <= 80
    monkeypatch.setattr(screen, "width", lambda: None)
    assert table([line]).splitlines()[1].startswith("2026-01-02 03:04:05.678Z  c17  ")
