"""The rows of the counters, and their bounds against names that agents and servers make up."""

from hypothesis import given, settings
from hypothesis import strategies as st

from carpool_broker.core.counters.counter_table import (
    MAX_NAME_CHARS,
    MAX_NAMES,
    MAX_OTHER_ROWS,
    MAX_ROWS,
    MAX_ROWS_OF_AGENT,
    CounterTable,
)
from carpool_protocol.counters.call_counts import OTHER
from tests.behaviours import behaviour


def count(table: CounterTable, agent: str = "x", server: str = "git", tool: str = "log") -> None:
    table.row(table.agent_counters(agent, "", "", "shim"), server, tool).rest.answers += 1


def total(table: CounterTable) -> int:
    return sum(row.counts.calls for row in table.snapshot({}, {}))


def test_the_same_agent_server_and_tool_have_one_row() -> None:
    table = CounterTable()
    for agent, server, tool in [("x", "git", "log"), ("x", "git", "log"), ("y", "git", "log")]:
        count(table, agent, server, tool)
    rows = {(row.agent.agent, row.server, row.tool): row.counts.calls for row in table.snapshot({}, {})}
    assert rows == {("x", "git", "log"): 2, ("y", "git", "log"): 1}


@behaviour("counters:bounded")
def test_a_hostile_server_with_endless_tools_gets_one_row_for_the_rest() -> None:
    table = CounterTable()
    for number in range(3 * MAX_ROWS_OF_AGENT):
        count(table, tool=f"tool {number}")
    count(table, "y")
    table.check()
    rows = {(row.agent.agent, row.server, row.tool): row.counts.calls for row in table.snapshot({}, {})}
    assert len(rows) == MAX_ROWS_OF_AGENT + 2
    assert rows[OTHER, "git", OTHER] == 2 * MAX_ROWS_OF_AGENT
    assert rows["y", "git", "log"] == 1, "another agent has its own row all the same"


@behaviour("counters:nodes")
def test_rows_for_the_rest_tell_calls_here_from_those_at_other_nodes() -> None:
    table = CounterTable()
    for number in range(2 * MAX_ROWS_OF_AGENT):
        count(table, tool=f"tool {number}")
    of = table.agent_counters("x", "", "", "shim")
    table.row(of, "git", "log", "alpha").rest.answers += 1
    table.check()
    nodes = {(row.server, row.tool): row.node for row in table.snapshot({}, {}) if row.node}
    assert nodes == {("git", OTHER): OTHER}
    assert any(row.tool == OTHER and not row.node for row in table.snapshot({}, {}))


@behaviour("counters:bounded")
def test_one_holder_with_endless_names_takes_no_rows_of_others() -> None:
    table = CounterTable()
    for number in range(3 * MAX_ROWS):
        count(table, f"agent {number}")
    table.row(table.agent_counters("x", "ci", "token", "http"), "git", "log").rest.answers += 1
    table.check()
    rows = list(table.snapshot({}, {}))
    assert len(rows) == MAX_NAMES + 2
    assert any(row.agent.token == "token" for row in rows)
    assert total(table) == 3 * MAX_ROWS + 1


@behaviour("counters:bounded")
def test_all_names_are_bounded_in_number_and_length() -> None:
    table = CounterTable()
    for number in range(2 * MAX_ROWS):
        holder = table.agent_counters("a" * 1000 + str(number), f"profile {number}", "", "shim")
        table.row(holder, f"server {number}", "t" * 1000).rest.answers += 1
    table.check()
    rows = list(table.snapshot({}, {}))
    assert len(rows) <= MAX_ROWS + MAX_OTHER_ROWS + 1
    assert max(len(row.tool) for row in rows) == MAX_NAME_CHARS
    assert total(table) == 2 * MAX_ROWS


NAMES = st.text("ab", max_size=3)


@settings(max_examples=50)
@given(st.lists(st.tuples(NAMES, NAMES, NAMES), max_size=200))
def test_the_total_of_all_rows_is_the_number_of_counted_calls(calls: list[tuple[str, str, str]]) -> None:
    table = CounterTable()
    for agent, server, tool in calls:
        count(table, agent, server, tool)
    table.check()
    assert total(table) == len(calls)


@behaviour("counters:nodes")
def test_rows_of_nodes_are_bounded_like_all_others_and_the_rest_is_of_no_node() -> None:
    table = CounterTable()
    one = table.agent_counters("x", "", "", "shim")
    for number in range(2 * MAX_ROWS_OF_AGENT):
        table.row(one, "git", "log", f"node-{number}").rest.answers += 1
    table.check()
    rows = {row.node: row.counts.calls for row in table.snapshot({}, {})}
    assert len(rows) == MAX_ROWS_OF_AGENT + 1
    assert rows[OTHER] == MAX_ROWS_OF_AGENT
    assert table.row(one, "git", "log") is not table.row(one, "git", "log", "node-1")
