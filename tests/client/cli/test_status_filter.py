"""The filters of `status` and `ps`: what they leave, and what they say of names that nothing has."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from carpool.cli.status import processes, status_page
from carpool.cli.status_filter import STATES, StatusFilter, filtered, filtered_processes, unknown_name
from tests.behaviours import behaviour
from tests.kit.fake_broker import STATUS, FakeBroker
from tests.kit.private_daemon import PrivateDaemon

SHIM = {"role": "shim", "pid": 31, "rss_bytes": 1, "pss_bytes": 1, "cpu_s": 0.0}
SESSION: dict[str, Any] = {
    "id": "s1",
    "agent": "claude",
    "pid": 31,
    "carrier": "shim",
    "principal": "",
    "era": "handshake",
    "profile": "",
    "in_flight": 3,
}
OVER_HTTP = {**SESSION, "id": "s2", "agent": "http", "pid": 40, "carrier": "door", "principal": "ci"}
FACTS: dict[str, Any] = {
    **STATUS,
    "sessions": [SESSION, OVER_HTTP],
    "processes": [*STATUS["processes"], SHIM],
}


@pytest.fixture
def broker(house: PrivateDaemon) -> Iterator[FakeBroker]:
    with FakeBroker(house.directory) as broker:
        yield broker


@pytest.mark.parametrize(
    ("wanted", "servers", "sessions"),
    [
        (StatusFilter(), ["time", "browser", "git"], ["s1", "s2"]),
        (StatusFilter(servers=["git"]), ["git"], []),
        (StatusFilter(states=["serving"]), ["time", "browser"], []),
        (StatusFilter(servers=["git"], states=["serving"]), [], []),
        (StatusFilter(sessions=["s2"]), [], ["s2"]),
        (StatusFilter(sessions=["ci"]), [], ["s2"]),
        (StatusFilter(sessions=["claude"], servers=["time"]), ["time"], ["s1"]),
    ],
)
def test_a_filter_leaves_what_is_asked_for(
    wanted: StatusFilter, servers: list[str], sessions: list[str]
) -> None:
    left = filtered(FACTS, wanted)
    assert list(left["servers"]) == servers
    assert [each["id"] for each in left["sessions"]] == sessions
    assert left.keys() == FACTS.keys()
    assert left["totals"] == FACTS["totals"]


@pytest.mark.parametrize(
    ("wanted", "pids"),
    [
        (StatusFilter(servers=["time"]), [21]),
        (StatusFilter(states=["serving"]), [22]),
        (StatusFilter(sessions=["claude"]), [31, 22]),
        (StatusFilter(sessions=["ci"]), []),
    ],
)
def test_a_filter_of_processes_knows_leases_and_shims(wanted: StatusFilter, pids: list[int]) -> None:
    assert [row["pid"] for row in filtered_processes(processes(FACTS), FACTS, wanted)] == pids


def test_a_shim_tells_its_session() -> None:
    assert [row["id"] for row in processes(FACTS) if row["role"] == "shim"] == ["s1"]


def test_a_name_that_nothing_has_is_told() -> None:
    assert "did you mean 'git'?" in unknown_name(FACTS, StatusFilter(servers=["gti"]))
    assert "there is no session 's9' here" in unknown_name(FACTS, StatusFilter(sessions=["s9"]))
    assert unknown_name(FACTS, StatusFilter(servers=["git"], sessions=["ci"], states=STATES)) == ""


@behaviour("cli:filters")
def test_a_page_with_a_filter_has_its_head_and_what_is_asked_for() -> None:
    page = status_page(FACTS, StatusFilter(servers=["git"]))
    assert page.startswith("carpool 0.1.0")
    assert "exit code 1" in page
    assert "breaker of git" in page
    assert "browser" not in page.partition("\n")[2]
    assert "SESSION" not in page
    assert "no server is in this state" in status_page(FACTS, StatusFilter(states=["cold"]))


@behaviour("cli:filters")
def test_sessions_over_http_tell_their_token() -> None:
    rows = [line.split() for line in status_page(FACTS, StatusFilter(sessions=["ci"])).splitlines()[4:]]
    assert rows[0][:5] == ["SESSION", "AGENT", "PID", "VIA", "TOKEN"]
    assert rows[1][:5] == ["s2", "http", "40", "door", "ci"]
    assert "TOKEN" not in status_page({**FACTS, "sessions": [SESSION]})


@behaviour("cli:filters")
def test_the_verbs_filter(house: PrivateDaemon, broker: FakeBroker) -> None:
    facts = json.loads(house.run("status", "--server", "git", "--json").stdout)
    assert (list(facts["servers"]), facts["sessions"]) == (["git"], [])
    rows = json.loads(house.run("ps", "--server", "time", "--json").stdout)["processes"]
    assert [row["pid"] for row in rows] == [21]
    assert "none of these runs" in house.run("ps", "--server", "git").stdout
    done = house.run("status", "--server", "gti")
    assert (done.returncode, "did you mean 'git'?" in done.stderr) == (1, True)
    assert house.run("status", "--state", "nope").returncode == 2
    shown = house.run("tools", "--server", "time").stdout
    assert ("time__now" in shown, "git__log" in shown) == (True, False)
    assert (
        "there is no server 'tmie' here; did you mean 'time'?"
        in house.run("tools", "--server", "tmie").stderr
    )
