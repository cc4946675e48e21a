"""The metrics page: names, labels and sums, read back with the parsers of the Prometheus library."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from prometheus_client import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from carpool.cli.status import NOTHING as STATUS_NOTHING
from carpool.cli.status import status_page
from carpool.http.core import metrics_page as page
from carpool_protocol.counters.call_counts import CallCounts
from carpool_protocol.counters.snapshot import CountedAgent, CounterRow, CountersSnapshot, ServerCounts
from tests.behaviours import behaviour

DOCS = Path(__file__).parents[4] / "docs"
PLANNER = CountedAgent("planner", "", "ci", "http")
CODER = CountedAgent('co"der\n', "p", "", "shim")
FAILING = {
    "state": "given_up", "well": False, "last_error": "", "instances": [], "sharing": "auto", "waiting": 0,
    "restarts": 0, "tools": 0,
}  # fmt: skip
OPENMETRICS = "application/openmetrics-text; version=1.0.0"


def counts(calls: int, **more: Any) -> CallCounts:
    found = CallCounts(calls=calls, **more)
    for _ in range(calls):
        found.total.observe(0.003)
        found.server.observe(4000.0)
    return found


def facts(*rows: CounterRow) -> page.MetricFacts:
    snapshot = CountersSnapshot(
        enabled=True, run="r1", since="2026-11-23T10:00:00Z", age_s=5.0, rows=list(rows),
        servers={"git": ServerCounts(starts=3, deaths=1, restarts=1, asks=2, lease_waits=4)},
    )  # fmt: skip
    status = {
        "healthy": True,
        "reason": "ok",
        "broker": {"version": "0.1.0", "uptime_s": 7.0},
        "sessions": [{}, {}],
        "servers": {
            "git": {"state": "serving", "waiting": 2, "instances": [{"pss_bytes": 10}, {"pss_bytes": 5}]}
        },
    }
    return page.MetricFacts(snapshot, status)


def samples(found: Iterable[Metric]) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (each.name, tuple(sorted(each.labels.items()))): each.value
        for family in found
        for each in family.samples
    }


def read(found: page.MetricFacts) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    body, media = page.metrics_page(found, "")
    assert media.startswith("text/plain")
    return samples(parse_text(body.decode()))


ROWS = (
    CounterRow(PLANNER, "git", "log", counts(3, answers=2, errors={"timed_out": 1})),
    CounterRow(CODER, "git", "log", counts(2, answers=1, refusals={"paused": 1})),
)


@behaviour("metrics:names")
def test_rows_of_agents_are_summed_by_tool_and_by_agent() -> None:
    found = read(facts(*ROWS))
    tool = (("server", "git"), ("tool", "log"))
    assert found["carpool_calls_total", tool] == 5
    assert found["carpool_answers_total", tool] == 3
    assert found["carpool_errors_total", (("code", "timed_out"), *tool)] == 1
    assert found["carpool_refusals_total", (("code", "paused"), *tool)] == 1
    agent = (("agent", CODER.agent), ("door", "shim"), ("profile", "p"), ("token", ""))
    assert found["carpool_agent_calls_total", agent] == 2
    assert found["carpool_agent_failed_calls_total", agent] == 1
    assert found["carpool_server_restarts_total", (("server", "git"),)] == 1
    assert found["carpool_calls_waiting", (("server", "git"),)] == 2
    assert found["carpool_server_pss_bytes", (("server", "git"),)] == 15
    assert found["carpool_server_state", (("server", "git"), ("state", "serving"))] == 1
    assert found["carpool_info", (("run", "r1"), ("version", "0.1.0"))] == 1


@behaviour("counters:nodes")
def test_calls_at_other_nodes_are_counted_by_node_and_local_ones_are_not() -> None:
    there = CounterRow(PLANNER, "git", "log", counts(3, answers=2, errors={"timed_out": 1}), "alpha")
    found = read(facts(*ROWS, there))
    assert found["carpool_node_calls_total", (("node", "alpha"),)] == 3
    assert found["carpool_node_failed_calls_total", (("node", "alpha"),)] == 1
    assert len([name for name, _ in found if name == "carpool_node_calls_total"]) == 1
    assert found["carpool_calls_total", (("server", "git"), ("tool", "log"))] == 8


@behaviour("metrics:names")
def test_durations_are_cumulative_histograms_by_server() -> None:
    found = read(facts(*ROWS))

    def bucket(part: str, le: str) -> float:
        return found["carpool_call_duration_seconds_bucket", (("le", le), ("part", part), ("server", "git"))]

    assert (bucket("total", "0.0025"), bucket("total", "0.005"), bucket("total", "+Inf")) == (0, 5, 5)
    assert (bucket("server", "1800.0"), bucket("server", "+Inf")) == (0, 5)
    assert found["carpool_call_duration_seconds_count", (("part", "total"), ("server", "git"))] == 5


REASONS: dict[str, dict[str, Any]] = {
    "ok": {}, "supervisor_away": {"healthy": False}, "supervisor_silent": {"healthy": False},
    "config_broken": {"config": {"problem": "line 1"}},
    "servers_failing": {"servers": {**STATUS_NOTHING["servers"], "git": FAILING}},
    "hooks_failing": {"hooks": [{"name": "guard", "on_failure": "deny", "problem": "it exits with 1"}]},
    "calls_failing": {"counters": {"recent": {"window_s": 120.0, "servers": {}}}},
}  # fmt: skip


@behaviour("metrics:names")
@pytest.mark.parametrize("reason", REASONS)
def test_carpool_is_healthy_where_its_status_says_that_all_is_well(reason: str) -> None:
    status = {**STATUS_NOTHING, "healthy": True, "broker": {}, "reason": reason, **REASONS[reason]}
    found = read(page.MetricFacts(facts().counters, status))
    assert found["carpool_healthy", ()] == ("all is well" in status_page(status)) == (reason == "ok")
    assert found["carpool_status", (("reason", reason),)] == 1


def test_openmetrics_is_given_to_a_scraper_that_accepts_it() -> None:
    body, media = page.metrics_page(facts(*ROWS), OPENMETRICS)
    assert media.startswith("application/openmetrics-text")
    found = samples(parse_openmetrics(body.decode()))  # type: ignore[no-untyped-call]
    tool = (("server", "git"), ("tool", "log"))
    assert found["carpool_calls_total", tool] == 5
    assert found["carpool_calls_created", tool] == 1795428000.0


def test_a_broker_that_has_counted_nothing_has_a_page() -> None:
    assert read(page.MetricFacts(facts().counters, {}))["carpool_healthy", ()] == 0


@behaviour("metrics:names")
def test_the_page_on_metrics_lists_each_metric_with_its_labels() -> None:
    text = (DOCS / "metrics.md").read_text(encoding="utf-8")
    for each in (*page.COUNTERS, *page.HISTOGRAMS, *page.GAUGES):
        suffix = "_total" if each in page.COUNTERS else ""
        labels = ", ".join(f"`{label}`" for label in each.labels) or "-"
        assert f"| `{each.name}{suffix}` | {labels} | {each.help} |" in text


def test_the_pages_on_counters_and_on_metrics_define_each_count_with_the_same_words() -> None:
    text = (DOCS / "counters.md").read_text(encoding="utf-8")
    meanings = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", text, re.MULTILINE))
    pairs = (*page.TOOL_FIELDS, *page.SERVER_FIELDS, (page.ERRORS, "errors"), (page.REFUSALS, "refusals"))
    for definition, field in pairs:
        words = definition.help.removesuffix(".")
        assert meanings[field].startswith(words[0].lower() + words[1:]), field


def usual() -> page.MetricFacts:
    """A carpool with 10 servers and 100 tools that one agent calls."""
    servers = [f"server-{number}" for number in range(10)]
    rows = [
        CounterRow(PLANNER, server, f"tool-{number}", counts(1)) for server in servers for number in range(10)
    ]
    found = facts(*rows)
    status = {**found.status, "servers": {server: {"state": "serving"} for server in servers}}
    snapshot = msgspec.structs.replace(found.counters, servers=dict.fromkeys(servers, ServerCounts()))
    return page.MetricFacts(snapshot, status)


def test_the_page_on_metrics_says_how_many_series_there_are() -> None:
    text = " ".join((DOCS / "metrics.md").read_text(encoding="utf-8").split())
    one = [name for name, labels in read(facts(*ROWS)) if ("server", "git") in labels]
    histograms = sum(name.startswith("carpool_call_duration_seconds") for name in one)
    assert f"each server adds {histograms} for its histograms" in text
    names = [name for name, _ in read(usual())]
    created = sum(name.endswith("_created") for name in names)
    assert f"about {round(len(names), -2):,} series, {round(created, -2)} of them `…_created`" in text


@pytest.mark.parametrize("definition", [*page.COUNTERS, *page.HISTOGRAMS, *page.GAUGES])
def test_each_metric_ends_its_help_with_a_full_stop(definition: page.MetricDefinition) -> None:
    assert definition.help.endswith(".")
    assert definition.name.startswith("carpool_")
