"""Sums of audit lines: which line counts where, and percentiles."""

from typing import Any

import pytest

from carpool.logs.audit_summary import AuditSummary, count_of, group_key
from tests.behaviours import behaviour


def line(number: int, **members: Any) -> dict[str, Any]:
    return {
        "id": f"c{number}", "run": "r", "agent": "claude", "server": "git", "name": "log",
        "method": "tools/call", "outcome": "ok", "duration_s": number / 1000, "bytes_in": 2, "bytes_out": 3,
        **members,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("outcome", "counted"),
    [
        ("ok", "answers"),
        ("kept", "answers"),
        ("task", "answers"),
        ("input_required", "answers"),
        ("tool_error", "tool_errors"),
        ("error", "errors"),
        ("timed_out", "errors"),
        ("not_permitted", "refusals"),
        ("waiting_line_full", "refusals"),
        ("cancelled", "cancelled"),
        ("unclaimed", "cancelled"),
        ("an outcome of a later version", "errors"),
    ],
)
def test_each_outcome_counts_once(outcome: str, counted: str) -> None:
    assert count_of(outcome) == counted


@behaviour("audit:summary")
def test_groups_have_counts_times_and_sizes_and_the_largest_is_first() -> None:
    lines = [line(number) for number in range(1, 101)]
    lines += [line(101, name="push", outcome="lost"), line(102, name="push", duration_s=None), {"missed": 4}]
    summary = AuditSummary(lines, "tool")
    assert summary.missed == 4
    log, push = summary.groups
    assert log.key == {"server": "git", "tool": "log"}
    assert (log.calls, log.counts["answers"], log.bytes_in, log.bytes_out) == (100, 100, 200, 300)
    assert (log.duration_s(0.5), log.duration_s(0.99)) == (0.05, 0.099)
    assert (push.calls, push.counts["errors"], push.counts["answers"]) == (2, 1, 1)
    assert push.duration_s(0.99) == 0.101


def test_a_call_that_two_brokers_wrote_down_counts_once() -> None:
    again = line(1, duration_s=None, outcome="unclaimed")
    (group,) = AuditSummary([line(1), again, {**again, "run": "other"}], "agent").groups
    assert group.calls == 2
    assert group.counts["answers"] == 1


def test_a_group_is_an_agent_a_tool_a_method_or_an_outcome() -> None:
    one = line(1)
    assert group_key(one, "agent") == {"agent": "claude"}
    assert group_key(one, "outcome") == {"outcome": "ok"}
    assert group_key({**one, "method": "resources/read", "name": "file:///x"}, "tool") == {
        "server": "git",
        "tool": "(resources/read)",
    }
    assert group_key({}, "agent") == {"agent": ""}
