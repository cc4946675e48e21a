"""A run of the conformance suite is good only where every required scenario checked something and held."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.conformance.results import (
    NO_RESULT,
    NOTHING_PASSED,
    SuiteError,
    complaints,
    read,
    required_scenarios,
    summary,
    table,
)

REQUIREMENTS = """\
# server:
#   - not-this
server:
  - tools-list   # both eras
  - sep-2164-resource-not-found

client:
  - tools_call
  - auth/basic-cimd

not_scored:
  - scenario: json-schema-2020-12
    leg: server
"""
TIME = "2026-11-22T03-06-45-426Z"


def leave(directory: Path, scenario: str, statuses: Sequence[str], time: str = TIME) -> None:
    """What the suite leaves of a scenario."""
    place = directory / f"server-{scenario}-{time}"
    place.mkdir()
    checks = [{"id": f"check-{at}", "status": status} for at, status in enumerate(statuses)]
    bad = [check | {"errorMessage": "went wrong"} for check in checks if check["status"] == "FAILURE"]
    fine = [check for check in checks if check["status"] != "FAILURE"]
    (place / "checks.json").write_text(json.dumps(fine + bad))


def test_only_scenarios_for_servers_are_required() -> None:
    assert required_scenarios(REQUIREMENTS) == ["tools-list", "sep-2164-resource-not-found"]


def test_requirements_without_a_server_scenario_are_refused() -> None:
    with pytest.raises(SuiteError, match="no server scenario"):
        required_scenarios("client:\n  - tools_call\n")


def test_a_run_is_good_when_every_required_scenario_passed(tmp_path: Path) -> None:
    leave(tmp_path, "tools-list", ["SUCCESS", "INFO", "SUCCESS"])
    leave(tmp_path, "sep-2164-resource-not-found", ["SUCCESS"])
    run = read(tmp_path, required_scenarios(REQUIREMENTS))
    assert run.ok
    assert run.line() == (
        "2/2 required scenarios, 3 checks passed, 0 failed, 0 warnings; not scored: 0/0 scenarios"
    )
    assert complaints([run]) == []


def test_one_failed_check_makes_its_scenario_and_the_run_bad(tmp_path: Path) -> None:
    leave(tmp_path, "tools-list", ["SUCCESS", "FAILURE"])
    run = read(tmp_path, ["tools-list"])
    assert not run.ok
    assert complaints([run]) == ["tools-list: check-1: went wrong"]


def test_a_required_scenario_that_left_no_result_is_bad(tmp_path: Path) -> None:
    leave(tmp_path, "tools-list", ["SUCCESS"])
    run = read(tmp_path, ["tools-list", "ping"])
    assert not run.ok
    assert complaints([run]) == [f"ping: {NO_RESULT}"]


@pytest.mark.parametrize("statuses", [[], ["SKIPPED"], ["INFO"]])
def test_a_required_scenario_that_checked_nothing_is_bad(tmp_path: Path, statuses: list[str]) -> None:
    leave(tmp_path, "ping", statuses)
    run = read(tmp_path, ["ping"])
    assert not run.ok
    assert complaints([run]) == [f"ping: {NOTHING_PASSED}"]


def test_a_warning_is_told_and_does_not_count(tmp_path: Path) -> None:
    leave(tmp_path, "ping", ["SUCCESS", "WARNING"])
    run = read(tmp_path, ["ping"])
    assert run.ok
    assert complaints([run]) == ["ping: check-1: warning"]


def test_a_scenario_that_is_not_scored_is_shown_and_does_not_count(tmp_path: Path) -> None:
    leave(tmp_path, "ping", ["SUCCESS"])
    leave(tmp_path, "json-schema-2020-12", ["FAILURE"])
    run = read(tmp_path, ["ping"])
    assert run.ok
    assert complaints([run]) == []
    assert run.line().endswith("not scored: 0/1 scenarios")
    assert table([run]).splitlines()[2:] == [
        "| ping | yes | 1 | 0 | 0 | yes |",
        "| json-schema-2020-12 |  | 0 | 1 | 0 | **no** |",
    ]


def test_a_table_says_where_nothing_was_checked_and_where_nothing_was_left(tmp_path: Path) -> None:
    leave(tmp_path, "tasks-status-notifications", ["SKIPPED"])
    run = read(tmp_path, ["ping"])
    assert table([run]).splitlines()[2:] == [
        "| ping | yes | 0 | 0 | 0 | left no result |",
        "| tasks-status-notifications |  | 0 | 0 | 0 | nothing was checked |",
    ]


def test_a_table_of_several_runs_says_in_how_many_a_scenario_was_good(tmp_path: Path) -> None:
    for at, statuses in enumerate((["SUCCESS"], ["FAILURE"])):
        (tmp_path / str(at)).mkdir()
        leave(tmp_path / str(at), "ping", statuses)
    runs = [read(tmp_path / str(at), ["ping"]) for at in range(2)]
    assert table(runs).splitlines()[2:] == ["| ping | yes | 1 | 1 | 0 | 1/2 |"]


def test_a_summary_adds_up_the_runs_of_each_requirement_set(tmp_path: Path) -> None:
    for at, statuses in enumerate((["SUCCESS", "SUCCESS", "WARNING"], ["FAILURE"])):
        (tmp_path / str(at)).mkdir()
        leave(tmp_path / str(at), "ping", statuses)
    runs = [read(tmp_path / str(at), ["ping"]) for at in range(2)]
    assert summary({"2025-11-25": runs, "2026-07-28": runs[:1]}).splitlines()[2:] == [
        "| 2025-11-25 | 2 | 1/2 | 2 | 1 | 1 |",
        "| 2026-07-28 | 1 | 1/1 | 2 | 0 | 1 |",
    ]


def test_a_directory_with_two_runs_is_refused(tmp_path: Path) -> None:
    leave(tmp_path, "ping", ["SUCCESS"])
    leave(tmp_path, "ping", ["FAILURE"], "2026-11-22T04-06-45-426Z")
    with pytest.raises(SuiteError, match="one run"):
        read(tmp_path, ["ping"])


@pytest.mark.parametrize("text", ["", "{", "[1]", '[{"id": "x"}]', '{"status": "SUCCESS"}'])
def test_checks_that_cannot_be_read_are_refused(tmp_path: Path, text: str) -> None:
    leave(tmp_path, "ping", [])
    (tmp_path / f"server-ping-{TIME}" / "checks.json").write_text(text)
    with pytest.raises(SuiteError, match="cannot be read"):
        read(tmp_path, ["ping"])
