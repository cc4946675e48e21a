"""The recorded runs, the page made from them and the faults that are known say the same."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.programs import page, record
from tests.programs.agents.catalog import PROGRAMS
from tests.programs.bridge_places import FEATURES as BRIDGE_FEATURES
from tests.programs.bridge_places import PLACES
from tests.programs.features import FEATURES, Verdict
from tests.programs.first_turns import KINDS, PAIRS
from tests.programs.known_differences import KNOWN, reason
from tests.programs.loopback import Loopback
from tests.programs.record import Run, Taken, take, with_first_turns, with_verdicts
from tests.programs.script import Json

DOCS = Path(__file__).parents[2] / "docs"
AGENTS = record.read()
BRIDGES = record.read(record.BRIDGES)
each_agent = pytest.mark.parametrize("name", list(PROGRAMS))
each_place = pytest.mark.parametrize("name", list(PLACES))


def test_the_page_of_agent_programs_is_the_generated_one() -> None:
    assert (DOCS / "clients.md").read_text(encoding="utf-8") == page.page(), (
        "write it again: python -m tests.programs.page > docs/clients.md"
    )


# --- the record is whole -----------------------------------------------------------------------------------


def reasons(found: Json, parts: dict[str, str]) -> dict[str, str]:
    """Each part that the record lacks, and what the record says why."""
    why = {**found.get("failed", {}), **found.get("failed first turns", {})}
    return {part: found.get("not run") or why.get(run, "") for part, run in parts.items()}


@each_agent
def test_every_feature_of_a_program_is_recorded_or_the_record_says_why_not(name: str) -> None:
    found = AGENTS[name]
    wanted = {each.name: each.scenario for each in record.features_of(PROGRAMS[name])}
    lacking = {each: run for each, run in wanted.items() if each not in found.get("features", {})}
    assert all(reasons(found, lacking).values()), lacking
    assert found.get("features", {}).keys() <= wanted.keys()


@each_agent
def test_every_first_turn_of_a_program_is_recorded_or_the_record_says_why_not(name: str) -> None:
    found = AGENTS[name]
    measured = found.get(record.FIRST_TURNS, {})
    lacking = {each.name: each.name for each in KINDS if len(measured.get(each.name, ())) != PAIRS}
    assert all(reasons(found, lacking).values()), lacking
    assert measured.keys() <= {each.name for each in KINDS}


@each_place
def test_every_feature_of_a_bridge_is_recorded_or_the_record_says_why_not(name: str) -> None:
    found = BRIDGES[name]
    wanted = {each: run.name for run in record.bridge_runs(PLACES[name], Loopback()) for each in run.parts}
    lacking = {each: run for each, run in wanted.items() if each not in found.get("features", {})}
    assert all(reasons(found, lacking).values()), lacking
    assert found.get("features", {}).keys() <= wanted.keys()


@pytest.mark.parametrize("name", list(AGENTS))
def test_a_program_is_recorded_at_the_version_that_is_pinned(name: str) -> None:
    assert AGENTS[name].get("not run") or AGENTS[name]["version"] == PROGRAMS[name].version


@pytest.mark.parametrize("name", list(BRIDGES))
def test_a_bridge_is_recorded_at_the_version_that_is_pinned(name: str) -> None:
    assert BRIDGES[name].get("not run") or BRIDGES[name]["version"] == PLACES[name].program.version


# --- the record and the known differences ------------------------------------------------------------------


def compared(name: str, found: dict[str, Verdict]) -> tuple[set[str], set[str]]:
    """The features that have a fault and those whose fault is known."""
    return {each for each, verdict in found.items() if verdict.fault}, {
        each for each in found if reason(name, each)
    }


@pytest.mark.parametrize("name", list(AGENTS))
def test_every_recorded_fault_is_known_and_every_known_fault_is_recorded(name: str) -> None:
    faults, known = compared(
        name, {each: found.verdict for each, found in record.verdicts(AGENTS[name]).items()}
    )
    assert faults == known


@pytest.mark.parametrize("name", list(AGENTS))
def test_every_difference_of_first_turns_is_known_and_every_known_one_is_recorded(name: str) -> None:
    judged = page.first_turn_verdicts(AGENTS[name])
    faults, known = compared(name, {kind.feature: verdict for kind, verdict in judged.items()})
    assert faults == known


@pytest.mark.parametrize("name", list(BRIDGES))
def test_every_recorded_fault_of_a_bridge_is_known_and_every_known_one_is_recorded(name: str) -> None:
    faults, known = compared(
        name, {each: found.verdict for each, found in record.verdicts(BRIDGES[name]).items()}
    )
    assert faults == known


def test_a_known_difference_names_features_and_programs_that_exist() -> None:
    features = {*FEATURES, *BRIDGE_FEATURES, *(each.feature for each in KINDS)}
    assert {name for each in KNOWN for name in each.features} <= features
    assert {name for each in KNOWN for name in each.programs} <= {"*", *PROGRAMS, *PLACES}


def test_every_row_of_known_differences_is_seen() -> None:
    names = {*PROGRAMS, *PLACES}
    features = {*FEATURES, *BRIDGE_FEATURES, *(each.feature for each in KINDS)}
    shown = {reason(name, feature) for name in names for feature in features}
    assert [each.reason for each in KNOWN if each.reason not in shown] == []


# --- what a recording keeps --------------------------------------------------------------------------------


def failing() -> dict[str, Any]:
    raise AssertionError("the program has ended\nand more")


def run(name: str, found: Callable[[], dict[str, Any]], *parts: str) -> Run:
    return Run(name, parts, found)


def test_a_run_that_fails_ends_no_other_and_says_why() -> None:
    taken = take([run("one", failing, "a", "b"), run("two", lambda: {"c": 1}, "c")])
    assert taken == Taken({"c": 1}, {"one": "the program has ended"}, frozenset({"a", "b"}))


def test_the_verdicts_of_a_run_that_failed_stay_and_are_marked_with_their_version() -> None:
    earlier = {
        "version": "1",
        "features": {"a": ["x", "x", ""], "b": ["x", "y", "f"], "gone": ["x", "x", ""]},
        record.FIRST_TURNS: {"k": []},
    }
    taken = Taken({"a": Verdict("z", "z")}, {"one": "why"}, frozenset({"b", "never seen"}))
    found = with_verdicts(earlier, "2", taken, ["a", "b", "never seen"])
    assert found == {
        "version": "2",
        "features": {"a": ["z", "z", ""], "b": ["x", "y", "f", "1"]},
        "failed": {"one": "why"},
        record.FIRST_TURNS: {"k": []},
    }
    again = with_verdicts(found, "3", Taken({}, {"one": "why"}, frozenset({"b"})), ["a", "b"])
    assert again["features"] == {"b": ["x", "y", "f", "1"]}
    assert record.verdicts(again)["b"].kept == "1"


def test_a_whole_run_takes_the_reasons_of_earlier_ones_away() -> None:
    earlier = {"version": "1", "features": {}, "failed": {"one": "why"}, "not run": "why"}
    found = with_verdicts(earlier, "1", Taken({"a": Verdict("x", "x")}, {}, frozenset()), ["a"])
    assert found == {"version": "1", "features": {"a": ["x", "x", ""]}}


def test_the_pairs_of_a_measure_that_failed_stay() -> None:
    earlier = {"version": "1", record.FIRST_TURNS: {"a": [1], "b": [2]}}
    found = with_first_turns(earlier, Taken({"a": [3]}, {"b": "why"}, frozenset({"b"})))
    assert found == {
        "version": "1",
        record.FIRST_TURNS: {"a": [3], "b": [2]},
        "failed first turns": {"b": "why"},
    }


@pytest.mark.parametrize(
    ("words", "failed", "code"), [(["codex"], False, 0), (["codex"], True, 1), (["none"], True, 0)]
)
def test_a_recording_ends_with_1_where_a_run_failed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, words: list[str], failed: bool, code: int
) -> None:
    monkeypatch.setattr(record, "FILE", tmp_path / "record.json")
    monkeypatch.setattr(record, "missing", lambda _: "")
    runs = [run("tour", failing if failed else lambda: {"tools": Verdict("1", "1")}, "tools")]
    monkeypatch.setattr(record, "agent_runs", lambda *_: runs)
    assert record.main(words) == code
    if code:
        assert record.read()["codex"]["failed"] == {"tour": "the program has ended"}


def test_a_program_that_is_not_installed_is_recorded_as_not_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(record, "FILE", tmp_path / "record.json")
    monkeypatch.setattr(record, "missing", lambda _: "no npm is here")
    assert record.main(["codex"]) == 0
    assert record.read() == {"codex": {"not run": "no npm is here"}}
