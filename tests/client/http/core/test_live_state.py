"""What the web page shows of one moment: its bounds, and that it is one line of JSON."""

import json
from typing import Any

import pytest

from carpool.http.core.live_state import MAX_INSTANCES, MAX_NODES, MAX_RECENT, MAX_ROWS, LiveState
from carpool.http.core.own_requests import LiveAnswers
from carpool_protocol.counters.snapshot import CountersSnapshot
from carpool_protocol.counters.summary import sum_by
from tests.behaviours import behaviour
from tests.kit.top_readings import CLUSTER, counted, instance, server, session, status_of


def counters(age_s: float = 1.0, calls: int = 0) -> CountersSnapshot:
    return counted("r", age_s, {("git", f"t{number}"): calls for number in range(40)})


@behaviour("web:frozen")
def test_what_a_state_holds_is_bounded() -> None:
    state = LiveState()
    status = status_of()
    status["sessions"] = [session(f"s{number}") for number in range(MAX_ROWS + 7)]
    status["servers"]["git"]["last_error"] = "x" * 100_000
    calls = [{"call": f"c{number}"} for number in range(MAX_RECENT + 50)]
    found = LiveAnswers(status, counters(), [], {"calls": calls, "newest": 9, "left_out": 3})
    shown = json.loads(state.add(found))
    agents = shown["tables"]["agents"]
    assert (len(agents["rows"]), agents["left_out"]) == (MAX_ROWS, 7)
    assert len(shown["recent"]) == MAX_RECENT
    assert shown["recent_left_out"] == 3
    assert len(shown["servers"]["git"]["last_error"]) == 2000


@behaviour("web:sealed")
def test_a_state_is_one_line_whatever_servers_say() -> None:
    state = LiveState()
    status = status_of()
    hostile = "</script>\r\nevent: state\ndata: {}\n\n\u2028"
    status["servers"]["git"]["last_error"] = hostile
    status["sessions"][0]["agent"] = hostile
    line = state.add(LiveAnswers(status, counters(), [], {"calls": [], "newest": 0, "left_out": 0}))
    assert b"\n" not in line
    assert b"\r" not in line
    assert json.loads(line)["servers"]["git"]["last_error"] == hostile


@behaviour("web:same")
def test_problems_are_told_with_their_place() -> None:
    status = status_of()
    status["config"] = {"file": "f", "problem": "line 3: no comma"}
    status["audit"] = {"problem": "the disk is full"}
    status["broker"] = {"restarts": 2, "version": "1", "uptime_s": 1.0}
    shown = json.loads(
        LiveState().add(LiveAnswers(status, counters(), [], {"calls": [], "newest": 0, "left_out": 0}))
    )
    assert shown["problems"] == [
        "configuration: line 3: no comma",
        "audit: the disk is full",
        "broker: 2 have died since carpool came up",
    ]


@behaviour("web:frozen")
def test_the_rows_of_a_reading_are_summed_once_for_each_dimension(monkeypatch: pytest.MonkeyPatch) -> None:
    summed: list[str] = []

    def noted(rows: Any, dimension: str) -> Any:
        summed.append(dimension)
        return sum_by(rows, dimension)

    monkeypatch.setattr("carpool.readings.live_view.sum_by", noted)
    state = LiveState()
    shown: dict[str, Any] = {}
    for second in range(1, 4):
        summed.clear()
        recent = {"calls": [], "newest": 0, "left_out": 0}
        shown = json.loads(state.add(LiveAnswers(status_of(), counters(second, 10 * second), [], recent)))
        assert sorted(summed) == ["server", "tool"]
    assert shown["calls_per_s"] == 400.0
    assert len(shown["tables"]["tools"]["rows"]) == 40


@behaviour("web:same")
def test_not_all_is_well_while_the_cluster_is_away() -> None:
    recent = {"calls": [], "newest": 0, "left_out": 0}
    found = LiveAnswers({**status_of(), "healthy": True, "reason": "ok"}, counters(), [], recent)
    shown = json.loads(LiveState().add(found, {**CLUSTER, "is_up": False}))
    assert (shown["well"], shown["healthy"]) == (False, True)
    assert shown["sentence"] == "serving; this node does not reach its cluster"
    shown = json.loads(LiveState().add(found, CLUSTER))
    assert (shown["well"], shown["sentence"]) == (True, "all is well")


@behaviour("web:same", "top:nodes")
def test_a_state_has_the_cluster_and_the_place_of_what_is_at_other_nodes() -> None:
    recent = {"calls": [], "newest": 0, "left_out": 0}
    there = server("serving", instance(7, node="alpha", pid=0), node="*")
    found = LiveAnswers(status_of(git=there, own=server("cold")), counters(), [], recent)
    shown = json.loads(LiveState().add(found, CLUSTER))
    assert shown["cluster"] == {**CLUSTER}
    assert [row[0] for row in shown["tables"]["nodes"]["rows"]] == ["alpha", "beta", "gamma"]
    assert [row[1][0] for row in shown["tables"]["servers"]["rows"]] == ["git@alpha", "own"]
    assert shown["servers"]["git"]["node"] == "*"
    assert shown["servers"]["git"]["instances"][0]["node"] == "alpha"
    without = json.loads(LiveState().add(found))
    assert (without["cluster"], without["tables"]["nodes"]["rows"]) == (None, [])
    node = {**CLUSTER["nodes"][0], "servers": [f"s{number}" for number in range(900)]}
    crowd = {
        **CLUSTER,
        "nodes": [{**node, "node": f"n{number}"} for number in range(900)],
        "silent": [{"node": f"x{number}", "for_s": 1.0} for number in range(900)],
    }
    large = json.loads(LiveState().add(found, crowd))["cluster"]
    assert len(large["nodes"]) == len(large["silent"]) == MAX_NODES
    assert len(large["nodes"][0]["servers"]) == MAX_INSTANCES
