"""The tables of `carpool top`: rows, rates, sparklines, order and details."""

import pytest

from carpool.readings.live_view import COLUMNS, SPARKLINE_CHARS, LiveView, Reading, TableName, sparkline
from tests.behaviours import behaviour
from tests.kit.top_readings import CLUSTER, call, counted, instance, reading, server, session, status_of


def view(*readings: Reading) -> LiveView:
    made = LiveView()
    for each in readings:
        made.add(each)
    return made


def cells(found: LiveView, table: TableName, key: str) -> dict[str, str]:
    (row,) = [row for row in found.rows(table) if row.key == key]
    return dict(zip([column.title for column in COLUMNS[table]], row.cells, strict=True))


@behaviour("top:view")
def test_a_server_has_its_state_its_open_calls_and_its_rates() -> None:
    found = cells(view(reading(10.0, 100), reading(12.0, 130)), "servers", "git")
    assert (found["STATE"], found["INST"], found["OPEN"], found["WAIT"]) == ("serving", "2", "2", "1")
    assert (found["CALLS/S"], found["ERR/S"]) == ("15.0", "0.0")
    assert found["P50"].endswith("ms")
    assert found["LAST MIN"][-1] == "█"


@behaviour("top:view")
def test_one_reading_has_no_rates_and_a_server_without_counters_none_either() -> None:
    assert cells(view(reading(1.0, 100)), "servers", "git")["CALLS/S"] == "0.0"
    off = Reading(status_of(), None, [])
    assert cells(view(off, off), "servers", "git")["P50"] == "-"
    assert LiveView().rows("servers") == []


@behaviour("top:view")
def test_after_a_death_of_the_broker_rates_are_those_of_the_next_one() -> None:
    found = view(reading(1000.0, 90_000), reading(2.0, 10, run="other"))
    assert cells(found, "servers", "git")["CALLS/S"] == "5.0"


@behaviour("top:view")
def test_counts_that_go_down_are_no_negative_rates() -> None:
    found = view(reading(1.0, 10), reading(2.0, 40), reading(3.0, 39))
    row = cells(found, "servers", "git")
    assert (row["CALLS/S"], row["LAST MIN"]) == ("0.0", "▁█▁")


@behaviour("top:view")
def test_errors_and_refusals_are_one_rate() -> None:
    def failing(at: float, errors: int) -> Reading:
        return Reading(status_of(), counted("r", at, {("git", "log"): 50}, errors), [])

    assert cells(view(failing(1.0, 0), failing(3.0, 8)), "servers", "git")["ERR/S"] == "4.0"


@behaviour("top:view")
def test_agents_have_their_leases_and_calls_their_place() -> None:
    found = view(reading(1.0, 1))
    assert cells(found, "agents", "s2")["LEASES"] == "browser"
    assert cells(found, "agents", "s1")["LEASES"] == "-"
    row = cells(found, "calls", "c17")
    assert (row["TOOL"], row["ON"], row["AGE"], row["STATE"]) == ("git/log", "#1", "3 s", "running")
    waiting = view(reading(1.0, 1, open_calls=[call("c1", instance=None, state="waiting")]))
    assert cells(waiting, "calls", "c1")["ON"] == "-"


@behaviour("top:view")
def test_tools_are_those_that_were_called_in_the_last_minute() -> None:
    found = view(reading(0.0, 0), reading(10.0, 50))
    assert cells(found, "tools", "git/log")["CALLS/S"] == "5.0"
    assert view(reading(0.0, 50), reading(10.0, 50)).rows("tools") == []


@behaviour("top:view")
def test_rows_are_sorted_by_value_and_filtered_by_text() -> None:
    servers = {name: server("serving", waiting=wait) for name, wait in (("a", 9), ("b", 10), ("c", 2))}
    found = view(reading(1.0, 1, status=status_of(**servers)))
    by_wait = [column.title for column in COLUMNS["servers"]].index("WAIT")
    rows = found.rows("servers", sorted_by=by_wait, descending=True)
    assert [row.key for row in rows] == ["b", "a", "c"]
    assert [row.key for row in found.rows("servers", containing="B")] == ["b"]


@behaviour("top:view")
def test_what_others_call_themselves_cannot_play_with_the_terminal() -> None:
    hostile = {**status_of(), "sessions": [session("s1", agent="\x1b[2J[red]x")]}
    found = cells(view(reading(1.0, 1, status=hostile)), "agents", "s1")
    assert found["AGENT"] == "\\x1b[2J[red]x"


@behaviour("top:view")
def test_details_are_about_the_row_and_none_of_what_is_gone() -> None:
    found = view(reading(1.0, 1))
    lines = found.details("servers", "browser")
    assert "leased to s2" in lines[1]
    assert found.details("servers", "jira")[-1].startswith("last error: ended with exit code 1")
    assert "agent tester" in found.details("agents", "s2")[0]
    assert "state running" in found.details("calls", "c17")[0]
    assert found.details("servers", "gone") == found.details("calls", "c1") == []
    assert LiveView().details("servers", "git") == []


@behaviour("top:view")
def test_details_and_the_head_are_words() -> None:
    workspace = {"name": "", "root": "/w", "tags": ["a", "b"]}
    about = session("s1", workspace=workspace, is_x=True, nothing={"name": ""}, idle_s=2.123456)
    totals = {"sessions": 1, "instances": 1, "in_flight": 1, "memory_saved_bytes": 0}
    one = server("serving", instance(1, calls=1), tools=1, restarts=1)
    found = view(reading(1.0, 1, status={**status_of(git=one), "sessions": [about], "totals": totals}))
    (line,) = found.details("agents", "s1")
    assert line == (
        "id s1  agent coder  carrier shim  pid 99  calls 12  "
        "workspace root /w, tags a, b  is_x yes  idle_s 2.1"
    )
    assert found.head().startswith("1 agent, 1 server process, 1 open call, ")
    first, second = found.details("servers", "git")
    assert first == "git: serving, concurrent, 1 tool, 1 restart"
    assert "0 open, 1 call, " in second


def test_a_server_that_is_gone_has_no_sparkline_when_it_comes_back() -> None:
    busy, without = reading(1.0, 1), reading(3.0, 90, status=status_of(a=server("serving")))
    found = view(busy, reading(2.0, 90), without, reading(4.0, 90))
    assert cells(found, "servers", "git")["LAST MIN"] == ""


@pytest.mark.parametrize(
    ("values", "bars"),
    [([], ""), ([0.0, 0.0], ""), ([1.0], "█"), ([0.0, 1.0, 2.0], "▁▅█"), ([5.0] * 60, "█" * SPARKLINE_CHARS)],
)
def test_a_sparkline_fits_its_column(values: list[float], bars: str) -> None:
    assert sparkline(values) == bars


@pytest.mark.parametrize("length", range(1, 61))
def test_a_sparkline_of_any_length_fits_and_ends_with_now(length: int) -> None:
    bars = sparkline([0.0] * (length - 1) + [1.0])
    assert 0 < len(bars) <= SPARKLINE_CHARS
    assert bars[-1] == "█"


@behaviour("top:view")
def test_every_table_fits_80_columns() -> None:
    for columns in COLUMNS.values():
        assert sum(column.width + 1 for column in columns) <= 80


@behaviour("top:nodes")
def test_nodes_have_their_sessions_load_and_offers_and_silent_ones_are_there() -> None:
    found = view(Reading(status_of(), None, [], cluster=CLUSTER))
    alpha = cells(found, "nodes", "alpha")
    assert (alpha["STATE"], alpha["AT IT"], alpha["HERE"], alpha["LOAD"]) == ("reached", "2", "1", "7")
    assert (alpha["OPEN"], alpha["RTT"], alpha["LABELS"], alpha["OFFERS"]) == (
        "4",
        "12ms",
        "gpu",
        "git browser",
    )
    assert cells(found, "nodes", "beta")["STATE"] == "this one"
    assert cells(found, "nodes", "gamma")["STATE"] == "silent"
    assert [row.key for row in found.rows("nodes", sorted_by=4, descending=True)] == [
        "alpha",
        "beta",
        "gamma",
    ]
    told = found.details("nodes", "alpha")
    assert told == ["alpha offers git, browser", "here as git-alpha", "its clock is 0.500 s behind this one"]
    assert "has not been heard" in found.details("nodes", "gamma")[0]
    assert view(Reading(status_of(), None, [])).rows("nodes") == [], "in no cluster"


@behaviour("top:nodes")
def test_a_server_and_a_call_at_another_node_name_it_and_its_lease_holder() -> None:
    held = instance(7, node="alpha", pid=0, holder="s1", holder_agent="coder")
    servers = {
        "git": server("serving", held, node="*"),
        "time": server("cold", node="*"),
        "own": server("cold"),
    }
    status = {**status_of(**servers), "totals": {**status_of()["totals"], "node_sessions": 1}}
    found = view(Reading(status, None, [call("c17", instance=7, node="alpha")]))
    names = {key: cells(found, "servers", key)["SERVER"] for key in servers}
    assert names == {"git": "git@alpha", "time": "time@*", "own": "own"}
    assert cells(found, "calls", "c17")["ON"] == "alpha"
    assert "#7 at node alpha serving: 0 open, 7 calls, leased to s1 (coder)" in found.details(
        "servers", "git"
    )
    assert "3 server processes + 1 at nodes" in found.head()


@behaviour("top:nodes")
def test_each_table_fits_eighty_columns() -> None:
    for columns in COLUMNS.values():
        assert sum(column.width + 1 for column in columns) <= 80
