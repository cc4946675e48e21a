"""The sentence about the whole of carpool, where something beside the broker is away."""

import pytest

from carpool.control.verdict import is_well
from carpool.readings.health_line import health_line
from tests.behaviours import behaviour

FINE = {"healthy": True, "reason": "ok", "door": None, "cluster": None}


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({}, "all is well"),
        ({"cluster": {"is_up": True}}, "all is well"),
        ({"cluster": {"is_up": False}}, "serving; this node does not reach its cluster"),
        (
            {"workspaces": [{"problems": []}, {"problems": ["/p/.mcp.json:1: unclosed"]}]},
            "serving; a project's file is broken: /p/.mcp.json:1: unclosed",
        ),
        ({"door": {"url": ""}}, "serving agents on the socket; the HTTP door is not open"),
    ],
)
def test_all_is_well_only_if_door_cluster_and_projects_are(more: dict[str, object], said: str) -> None:
    facts = {**FINE, **more}
    assert health_line(facts) == said
    assert is_well(facts) == (said == "all is well")


@behaviour("hooks:named")
@pytest.mark.parametrize(
    ("on_failure", "effect"), [("deny", "its calls are refused"), ("allow", "its calls are let through")]
)
def test_a_hook_that_fails_is_named_with_what_happens_to_its_calls(on_failure: str, effect: str) -> None:
    hook = {"name": "guard", "on_failure": on_failure, "problem": "it raised ValueError"}
    facts = {**FINE, "reason": "hooks_failing", "hooks": [{"name": "fine", "problem": ""}, hook]}
    assert health_line(facts) == f"serving; hook guard fails, {effect}: it raised ValueError"
    assert not is_well(facts)


@behaviour("supervisors:several")
def test_a_supervisor_that_is_away_is_named_with_its_servers_while_another_one_serves() -> None:
    away = {"reason": "supervisor_away", "healthy": False}
    one = {**FINE, **away, "supervisors": [{"id": "sup1", "pid": 1}]}
    assert health_line({**one, "supervisors_away": [{"id": "sup2", "servers": ["git", "time"]}]}) == (
        "serving in part: the supervisor sup2 is away and is started again by itself, "
        "and until then calls to git, time wait"
    )
    assert health_line({**one, "supervisors_away": [{"id": "sup2", "servers": []}]}).endswith("has no server")
    assert health_line({**FINE, **away, "supervisors": []}) == (
        "no server can be reached: the supervisor is away and is started again by itself"
    )


def test_calls_that_wait_for_a_process_that_cannot_be_started_are_told_with_the_servers() -> None:
    servers = {"git": {"shortage": "Carpool can run 3 processes."}, "time": {"shortage": ""}}
    facts = {**FINE, "reason": "no_room_to_start", "servers": servers}
    assert health_line(facts) == "serving; calls wait for a process of git. Carpool can run 3 processes."


def test_a_broker_without_a_free_descriptor_is_told_with_its_limit() -> None:
    facts = {**FINE, "reason": "descriptors_used_up", "descriptors": {"limit": 1024}}
    assert "no new agent is let in: all 1024 descriptors" in health_line(facts)
    assert not is_well(facts)
