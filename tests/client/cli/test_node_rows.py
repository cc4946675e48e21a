"""Servers, sessions and calls at other nodes, as `status`, `ps` and `calls` show them."""

from typing import Any

from carpool.cli.calls import calls_page
from carpool.cli.status import processes, ps_page, status_page
from tests.behaviours import behaviour
from tests.kit.fake_broker import STATUS

HERE: dict[str, Any] = {**STATUS["servers"]["time"]["instances"][0], "node": ""}
THERE: dict[str, Any] = {**HERE, "id": 7, "pid": 0, "node": "alpha", "pss_bytes": 0, "holder": "s1"}
GIT: dict[str, Any] = {**STATUS["servers"]["time"], "instances": [THERE], "node": "*"}
TIME: dict[str, Any] = {**STATUS["servers"]["time"], "instances": [HERE], "node": ""}
FACTS: dict[str, Any] = {
    **STATUS,
    "servers": {"time": TIME, "git": GIT},
    "totals": {**STATUS["totals"], "instances": 1, "node_sessions": 1},
}


@behaviour("cluster:calls")
def test_ps_lists_sessions_at_other_nodes_apart_from_processes() -> None:
    rows = processes(FACTS)
    assert [(row["role"], row["node"], row["pid"]) for row in rows if row["server"]] == [
        ("instance", "", HERE["pid"]),
        ("node_session", "alpha", None),
    ]
    ours, theirs = ps_page(FACTS, rows).split("1 session at other nodes:\n")
    assert "git" not in ours
    assert theirs.splitlines()[1].split()[:3] == ["alpha", "git", "7"]


@behaviour("cluster:calls")
def test_status_says_where_servers_of_other_nodes_run_and_what_runs_here() -> None:
    page = status_page(FACTS)
    head = next(line for line in page.splitlines() if line.startswith("SERVER"))
    rows = {
        line.split()[0]: line.split()[1] for line in page.splitlines() if line.startswith(("time ", "git "))
    }
    assert head.split()[:2] == ["SERVER", "NODE"]
    assert rows == {"time": "-", "git": "alpha"}
    assert "1 server process for" in page
    assert "1 session at other nodes" in page


@behaviour("cluster:calls")
def test_a_server_of_other_nodes_that_nobody_uses_says_where_it_may_run() -> None:
    servers = {"any": {**GIT, "instances": []}, "one": {**GIT, "instances": [], "node": "gamma"}}
    page = status_page({**FACTS, "servers": servers})
    rows = {
        line.split()[0]: line.split()[1] for line in page.splitlines() if line.startswith(("any ", "one "))
    }
    assert rows == {"any": "any", "one": "gamma"}


def test_a_carpool_in_no_cluster_has_no_column_for_nodes() -> None:
    assert "NODE" not in status_page(STATUS)
    row = {
        "call": "c1", "server": "git", "tool": "log", "method": "tools/call", "session": "s1",
        "agent": "anna", "state": "running", "waits_for": "", "age_s": 1.0, "instance": 4,
        "pid": 77, "node": "",
    }  # fmt: skip
    assert "NODE" not in calls_page({"calls": [row], "total": 1})
    there = {**row, "instance": 5, "pid": None, "node": "alpha"}
    head, *lines = calls_page({"calls": [row, there], "total": 2}).splitlines()
    at = head.index("NODE")
    assert [line[at:].split()[0] for line in lines] == ["-", "alpha"]
