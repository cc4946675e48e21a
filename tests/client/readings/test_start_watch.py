"""The verdict on servers that are being started, from the broker's status at single moments."""

from typing import Any

import pytest

from carpool.readings.start_watch import LISTS_S, DecidedStart, StartWatch
from tests.behaviours import behaviour

COLD: dict[str, Any] = {"state": "cold", "restarts": 0, "last_error": "", "instances": []}
STARTING = {**COLD, "state": "starting", "instances": [{"id": "a#1"}]}
SERVING = {**STARTING, "state": "serving", "tools": 2, "lists": {"from": "server"}}


def failed(restarts: int, error: str, state: str = "backing_off") -> dict[str, Any]:
    return {**COLD, "state": state, "restarts": restarts, "last_error": error}


def told(
    *readings: tuple[float, dict[str, Any] | None],
    before: dict[str, Any] | None = None,
    limit_s: float = 60.0,
) -> DecidedStart | None:
    """The verdict on one server after these readings, each with its time; None: it is still starting."""
    watch = StartWatch({"a": limit_s}, {"servers": {"a": before or COLD}}, 0.0)
    found: list[DecidedStart] = []
    for now, row in readings:
        found += watch.status_read({"servers": {} if row is None else {"a": row}}, now)
    assert bool(found) != bool(watch.undecided())
    return found[0] if found else None


@behaviour("starts:told")
def test_a_server_that_serves_is_told_with_its_tools_and_the_time_of_its_start() -> None:
    found = told((0.5, STARTING), (1.3, SERVING))
    assert found is not None
    assert (found.ok, found.text) == (True, "2 tools, 0.8 s")
    one = {**SERVING, "tools": 1}
    assert (told((0.4, one)) or found).text == "1 tool, 0.4 s"
    assert (told((0.4, SERVING), before=SERVING) or found).text == "2 tools"


@behaviour("starts:told")
def test_a_server_that_has_greeted_gets_some_time_to_list_its_tools() -> None:
    greeted = {**SERVING, "tools": 0, "lists": {"from": ""}}
    assert told((1, greeted), (2, greeted)) is None
    assert told((1, greeted), (1 + LISTS_S, greeted)) is not None


@behaviour("starts:told")
def test_a_failure_that_repeats_itself_word_for_word_ends_the_wait() -> None:
    """Two of eight servers failed five times with the same words."""
    again = {**failed(1, "no such file"), "state": "starting"}
    assert told((1, failed(1, "no such file")), (2, again)) is None
    found = told((1, failed(1, "no such file")), (2, again), (3, failed(2, "no such file")))
    assert found is not None
    assert (found.ok, found.text) == (False, "no such file")
    assert told((1, failed(1, "busy")), (2, failed(2, "locked"))) is None
    assert told((1, failed(1, "busy")), (2, failed(2, "locked")), (3, failed(3, "locked"))) is not None


@behaviour("starts:told")
def test_failures_from_before_the_start_do_not_count() -> None:
    before = failed(3, "no such file", "stopped")
    row = {**STARTING, "restarts": 3, "last_error": "no such file"}
    assert told((1, row), (2, failed(4, "no such file")), before=before) is None


@behaviour("starts:told")
@pytest.mark.parametrize("state", ["breaker_open", "given_up", "misconfigured", "unset", "disabled"])
def test_a_server_that_is_not_started_any_more_is_decided_at_once(state: str) -> None:
    found = told((1, failed(0, "why", state)))
    assert found is not None
    assert (found.ok, found.text) == (False, "why")


@behaviour("starts:told")
def test_a_server_that_the_status_does_not_know_is_decided_at_once() -> None:
    found = told((1, None))
    assert found is not None
    assert (found.ok, found.text) == (False, "")


@behaviour("starts:told")
def test_the_limit_of_a_server_may_count_from_its_own_start_and_not_from_that_of_those_before_it() -> None:
    watch = StartWatch({"a": 60.0, "b": 60.0}, {"servers": {"a": COLD, "b": COLD}}, 0.0, of_all=False)
    assert [*watch.status_read({"servers": {"a": STARTING, "b": COLD}}, 50.0)] == []
    (first,) = watch.status_read({"servers": {"a": STARTING, "b": COLD}}, 110.0)
    assert first.server == "a"
    assert [*watch.status_read({"servers": {"b": STARTING}}, 120.0)] == []
    assert [*watch.status_read({"servers": {"b": STARTING}}, 179.0)] == []
    (second,) = watch.status_read({"servers": {"b": STARTING}}, 180.0)
    assert second.server == "b"


@behaviour("starts:told")
def test_a_server_that_does_not_greet_is_decided_by_its_limit() -> None:
    assert told((59, STARTING)) is None
    found = told((60, STARTING))
    assert found is not None
    assert (found.ok, found.text) == (False, "it has not greeted after 60 s")
    late = told((60, {**STARTING, "last_error": "killed"}))
    assert late is not None
    assert late.text == "killed"


@behaviour("starts:told")
def test_a_server_that_has_nothing_to_run_works() -> None:
    offline = {**COLD, "state": "offline", "tools": 2, "lists": {"from": "file"}}
    found = told((0.1, offline))
    assert found is not None
    assert (found.ok, found.text) == (True, ""), "the answer to the request to start it has the words"
