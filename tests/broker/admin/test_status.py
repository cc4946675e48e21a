"""What `status --json` says, made of facts."""

from typing import Any

import pytest
from msgspec.structs import replace

from carpool_broker.admin.counter_report import CounterFacts
from carpool_broker.admin.status import SLOW_START_AFTER_S, Lists, StatusFacts, status_page
from carpool_broker.core.counters.recent_failures import RecentCalls
from carpool_broker.core.model.events import SourceId
from carpool_broker.core.model.session import Session
from carpool_protocol.counters.snapshot import CountersSnapshot
from carpool_protocol.ids import InstanceId, PoolKey, ServerName, SessionId
from carpool_protocol.link.messages import InstanceReport, PoolReport, PoolState, ProcessReport, Surveyed
from tests.behaviours import behaviour

T = "2026-11-22T10:00:00.000Z"
A, B = ServerName("a"), ServerName("b")


def instance(number: int, pss: int, **more: Any) -> InstanceReport:
    return InstanceReport(
        id=InstanceId(number), pid=number, state="serving", generation=1, era="handshake", in_flight=0,
        calls=3, rss_bytes=2 * pss, pss_bytes=pss, cpu_percent=0.0, uptime_s=1.23456, **more,
    )  # fmt: skip


def pool(
    server: ServerName, state: PoolState, *instances: InstanceReport, key: str = "1", **more: Any
) -> PoolReport:
    facts: dict[str, Any] = {"sharing": "concurrent", "last_error": "", "stderr_tail": []}
    return PoolReport(
        key=PoolKey(f"{server}:{key}"), server=server, state=state, waiting=2, restarts=1,
        instances=list(instances), **facts | more,
    )  # fmt: skip


def session(number: int, *used: ServerName) -> Session:
    made = Session(SessionId(f"s{number}"), SourceId("daemon"), "agent", number, "shim")
    for server in used:
        made.server_use(server).is_called = True
    return made


def status(*pools: PoolReport, **more: Any) -> dict[str, Any]:
    processes = [
        ProcessReport(role="supervisor", pid=20, rss_bytes=9, pss_bytes=10, cpu_s=0.1),
        ProcessReport(role="", pid=10, rss_bytes=9, pss_bytes=5, cpu_s=0.1),
    ]
    facts: dict[str, Any] = {
        "broker_pid": 10,
        "launcher_pid": 1,
        "release": "1.0",
        "uptime_s": 5.0,
        "restarts": 2,
        "supervisors": [("sup1", 20)],
        "surveyed": Surveyed(1, list(pools), processes),
        "sessions": [],
        "calls": 7,
        "lists": {PoolKey("a:1"): Lists("earlier", 3, T)},
        "servers": {A: "", B: ""},
        "sharing": {A: "concurrent", B: "concurrent"},
        "config_file": "carpool.json",
        "config_problem": "",
        "waiting": {PoolKey("a:1"): 4},
    }
    return status_page(StatusFacts(**facts | more))


def test_the_keys_of_the_contract_are_there() -> None:
    said = status(pool(A, "serving", instance(1, 100)), sessions=[session(1, A)])
    assert said.keys() >= {"healthy", "reason", "broker", "supervisors", "servers", "sessions", "totals"}
    assert said["broker"] == {"pid": 10, "uptime_s": 5.0, "version": "1.0", "restarts": 2}
    assert said["supervisors"] == [{"id": "sup1", "pid": 20}]
    server = said["servers"]["a"]
    assert server.keys() >= {"state", "sharing", "waiting", "restarts", "tools", "last_error", "instances"}
    assert (server["state"], server["tools"], server["waiting"], server["restarts"]) == ("serving", 3, 6, 1)
    assert server["instances"][0].keys() >= {
        "id", "pid", "state", "generation", "era", "in_flight", "calls", "rss_bytes", "pss_bytes",
        "cpu_percent",
    }  # fmt: skip
    assert said["sessions"][0].keys() >= {"id", "agent", "pid", "era", "profile", "in_flight"}


def test_a_server_whose_pool_is_gone_has_the_failure_of_its_last_run() -> None:
    rows = status(servers={A: "", B: ""}, last_failures={A: "it broke"})["servers"]
    assert [(rows[name]["state"], rows[name]["last_error"], rows[name]["well"]) for name in (A, B)] == [
        ("cold", "it broke", True),
        ("cold", "", True),
    ]


def test_a_server_without_a_pool_is_cold_disabled_or_misconfigured() -> None:
    servers = {A: "", B: "disabled", ServerName("c"): "line 3: no such variable"}
    said = status(servers=servers)["servers"]
    assert [said[name]["state"] for name in ("a", "b", "c")] == ["cold", "disabled", "misconfigured"]
    assert said["c"]["last_error"] == "line 3: no such variable"


def test_a_server_that_waits_for_trust_is_untrusted_and_that_is_no_failure() -> None:
    said = status(servers={A: "p is not trusted yet"}, untrusted=frozenset({A}))
    assert (said["servers"]["a"]["state"], said["reason"]) == ("untrusted", "ok")
    assert said["servers"]["a"]["last_error"] == "p is not trusted yet"


def test_a_server_whose_variables_nobody_here_has_is_unset_and_that_is_no_failure() -> None:
    said = status(servers={A: "TOKEN is not set"}, unset=frozenset({A}))
    assert (said["servers"]["a"]["state"], said["reason"]) == ("unset", "ok")
    assert said["servers"]["a"]["last_error"] == "TOKEN is not set"
    said = status(pool(A, "serving", instance(1, 1)), servers={A: "TOKEN is not set"}, unset=frozenset({A}))
    assert said["servers"]["a"]["state"] == "serving", "somebody has them"
    assert status(servers={A: "disabled"}, unset=frozenset({A}))["servers"]["a"]["state"] == "disabled"


def test_tags_are_shown_as_configured() -> None:
    said = status(servers={A: "", B: "disabled"}, tags={A: ("code", "web")})["servers"]
    assert (said["a"]["tags"], said["b"]["tags"]) == (["code", "web"], [])


def test_a_server_with_several_pools_shows_the_most_active_state_and_the_sum_of_counts() -> None:
    said = status(pool(A, "draining", instance(1, 1)), pool(A, "serving", instance(2, 1), key="2"))[
        "servers"
    ]["a"]
    assert said["state"] == "serving"
    assert [each["id"] for each in said["instances"]] == [1, 2]
    assert said["restarts"] == 2


def test_an_unhealthy_status_has_a_reason_of_one_word_for_programs() -> None:
    assert (status()["healthy"], status()["reason"]) == (True, "ok")
    assert (status(supervisors=[])["healthy"], status(supervisors=[])["reason"]) == (False, "supervisor_away")
    assert status(surveyed=None)["healthy"] is False
    assert status(config_problem="line 1")["reason"] == "config_broken"
    for state in ("given_up", "breaker_open", "half_open", "backing_off"):
        assert status(pool(A, state))["reason"] == "servers_failing"


@behaviour("cluster:drain")
@pytest.mark.parametrize("state", ["given_up", "breaker_open", "half_open", "backing_off", "starting"])
def test_a_server_whose_node_takes_no_sessions_is_no_failure_of_this_carpool(state: PoolState) -> None:
    refused = replace(pool(A, state), last_error="got no session: the node is draining")
    said = status(refused, nodes={A: "*"})
    assert (said["reason"], said["servers"]["a"]["well"]) == ("ok", True)


@pytest.mark.parametrize(
    ("last_error", "uptime_s", "reason"),
    [
        ("", 1.0, "ok"),
        ("wrote a line that is no message: the line is not JSON", 1.0, "servers_failing"),
        ("", SLOW_START_AFTER_S + 1, "servers_failing"),
    ],
)
def test_a_server_that_does_not_greet_is_not_well(last_error: str, uptime_s: float, reason: str) -> None:
    starts = replace(instance(1, 100), uptime_s=uptime_s)
    said = status(replace(pool(A, "starting", starts), last_error=last_error))
    assert (said["reason"], said["servers"]["a"]["well"]) == (reason, reason == "ok")
    serves = status(replace(pool(A, "serving", starts), last_error=last_error))
    assert serves["reason"] == "ok"


def test_savings_are_the_servers_that_sessions_would_run_less_all_of_ours() -> None:
    totals = status(
        pool(A, "serving", instance(1, 100)),
        pool(B, "serving", instance(2, 60)),
        sessions=[session(1, A, B), session(2, A), session(3)],
    )["totals"]
    assert totals["private_processes_avoided"] == 1
    assert totals["memory_saved_bytes"] == (100 + 60 + 100) - (100 + 60) - (10 + 5)
    assert (totals["instances"], totals["sessions"], totals["calls"]) == (2, 3, 7)


@behaviour("cluster:calls")
def test_a_session_at_another_node_is_no_process_of_this_machine_and_saves_nothing_here() -> None:
    there = replace(instance(2, 0, node="alpha"), pid=0)
    said = status(
        pool(A, "serving", instance(1, 100)),
        pool(B, "serving", there),
        sessions=[session(1, A, B), session(2, A, B)],
        nodes={B: "*"},
    )
    totals = said["totals"]
    assert (totals["instances"], totals["node_sessions"]) == (1, 1)
    assert totals["private_processes_avoided"] == 1
    assert totals["memory_saved_bytes"] == 2 * 100 - 100 - (10 + 5)
    assert (said["servers"]["a"]["node"], said["servers"]["b"]["node"]) == ("", "*")
    assert [each["node"] for each in said["servers"]["b"]["instances"]] == ["alpha"]


def test_a_door_and_a_hook_are_carpools_own_processes() -> None:
    pids = (1, 10, 30, 40, 50)
    processes = [ProcessReport(role="", pid=pid, rss_bytes=9, pss_bytes=1, cpu_s=0.1) for pid in pids]
    said = status(surveyed=Surveyed(1, [], processes), doors=[30], hooks=[{"pid": 40}, {"pid": 0}])
    assert [each["role"] for each in said["processes"]] == ["launcher", "broker", "door", "hook", "shim"]
    assert said["totals"]["memory_saved_bytes"] == -len(pids)


def test_the_mode_in_force_is_the_one_that_the_supervisor_says_and_whether_anybody_has_looked() -> None:
    said = status(pool(A, "serving", sharing="serial", verified=False), sharing={A: "auto", B: "session"})[
        "servers"
    ]
    assert (said["a"]["sharing"], said["a"]["verified"]) == ("serial", False)
    assert (said["b"]["sharing"], said["b"]["verified"]) == ("session", True), "nothing runs: as configured"
    unknown = status(sharing={A: "auto", B: "session"})["servers"]["a"]
    assert (unknown["sharing"], unknown["verified"]) == ("auto", False)


@behaviour("lease:holders-shown")
def test_a_leased_instance_names_its_holder_and_what_is_asked_on_it() -> None:
    held = instance(1, 1, holder=SessionId("s4"), asks=2)
    foreign = instance(2, 1, holder=SessionId("s9"))
    said = status(pool(A, "serving", held, foreign, instance(3, 1)), sessions=[session(4)])
    keys = ("holder", "holder_agent", "holder_pid", "asks")
    assert [tuple(each[key] for key in keys) for each in said["servers"]["a"]["instances"]] == [
        ("s4", "agent", 4, 2),
        ("s9", "", 0, 0),
        ("", "", 0, 0),
    ]


def test_every_pool_of_a_server_is_listed_and_the_liveliest_speaks_for_it() -> None:
    said = status(
        pool(A, "cold", sharing="serial", last_error="it broke", stderr_tail=["oh"]),
        pool(A, "serving", instance(7, 1), key="2", sharing="session", asking=True),
        pool(A, "draining", instance(5, 1), key="3", sharing="concurrent", verified=False),
    )["servers"]["a"]
    assert [(each["key"], each["state"], each["sharing"]) for each in said["pools"]] == [
        ("a:1", "cold", "serial"),
        ("a:2", "serving", "session"),
        ("a:3", "draining", "concurrent"),
    ]
    assert [each["asking"] for each in said["pools"]] == [False, True, False]
    assert [each["instances"] for each in said["pools"]] == [[], [7], [5]]
    assert [each["waiting"] for each in said["pools"]] == [2 + 4, 2, 2]
    assert (said["state"], said["sharing"], said["verified"]) == ("serving", "session", True)
    assert (said["last_error"], said["stderr"]) == ("it broke", ["oh"])
    assert status(servers={A: ""})["servers"]["a"]["pools"] == []


@behaviour("workspaces:named")
def test_a_session_is_shown_with_its_workspace() -> None:
    place = {"name": "shop", "root": "/w/shop"}
    one, two = status(sessions=[session(1), session(2)], places={SessionId("s1"): place})["sessions"]
    assert (one["workspace"], two["workspace"]) == (place, {"name": "", "root": ""})


@behaviour("supervisors:several")
def test_a_supervisor_that_is_away_is_shown_with_its_servers() -> None:
    said = status(supervisors_away={"sup2": [A]})
    assert (said["healthy"], said["reason"]) == (False, "supervisor_away")
    assert said["supervisors_away"] == [{"id": "sup2", "servers": ["a"]}]
    assert [said["servers"][name]["state"] for name in (A, B)] == ["away", "cold"]
    assert said["servers"]["a"]["well"], "nothing is known against the server"
    known = status(supervisors_away={"sup2": [A, B]}, servers={A: "disabled", B: "line 3: no such variable"})
    assert [known["servers"][name]["state"] for name in (A, B)] == ["disabled", "misconfigured"]


@behaviour("hooks:named")
def test_a_hook_that_fails_is_a_reason_and_leaves_carpool_healthy() -> None:
    hook = {"pid": 40, "name": "guard", "problem": "it raised ValueError"}
    said = status(hooks=[hook])
    assert (said["healthy"], said["reason"]) == (True, "hooks_failing")
    assert status(hooks=[{**hook, "problem": ""}])["reason"] == "ok"
    assert status(hooks=[hook], supervisors=[])["reason"] == "supervisor_away"


@behaviour("faults:descriptors-for-operators")
def test_used_up_descriptors_are_a_reason_and_leave_carpool_healthy() -> None:
    used_up = {"limit": 1024, "used_up": True, "refused": 3}
    said = status(descriptors=used_up)
    assert (said["healthy"], said["reason"], said["descriptors"]) == (True, "descriptors_used_up", used_up)
    assert status(descriptors={**used_up, "used_up": False})["reason"] == "ok"
    assert status(descriptors=used_up, supervisors=[])["reason"] == "supervisor_away"


@behaviour("faults:own-shortage")
def test_a_machine_that_lets_no_process_start_is_a_reason_and_leaves_carpool_healthy() -> None:
    short = pool(A, "starting", shortage="Carpool can run 3 processes of servers now.")
    said = status(short, pool(B, "serving"))
    assert (said["healthy"], said["reason"]) == (True, "no_room_to_start")
    assert [said["servers"][name]["shortage"] for name in (A, B)] == [short.shortage, ""]
    assert status(pool(A, "serving"))["reason"] == "ok"


@behaviour("counters:failing")
def test_calls_that_mostly_fail_are_a_reason_and_leave_carpool_healthy() -> None:
    def reason(ended: int, failed: int, **more: Any) -> tuple[bool, str]:
        snapshot = CountersSnapshot(enabled=True, run="r.0", since=T, age_s=5.0, rows=[])
        recent = {"a": RecentCalls(ended, failed)}
        said = status(counters=CounterFacts(snapshot=snapshot, recent=recent, window_s=5.0), **more)
        return said["healthy"], said["reason"]

    assert reason(7, 7) == (True, "calls_failing")
    assert reason(7, 2) == (True, "ok")
    assert reason(7, 7, supervisors=[]) == (False, "supervisor_away"), "the cause is named, not its effect"
