"""The table of faults, and the one door from a fault to the wire."""

import json
import re
from typing import Any

import pytest

from carpool_protocol.faults.fault_answers import (
    Bug,
    InvalidTransition,
    InvariantBroken,
    as_error,
    as_sentence,
    as_tool_result,
    fault,
    fault_answer,
    fault_of,
)
from carpool_protocol.faults.kinds import (
    INVALID_PARAMS,
    INVALID_REQUEST,
    KINDS,
    METHOD_NOT_FOUND,
    PARSE_ERROR,
    FaultKind,
)
from carpool_protocol.ids import CallId
from carpool_protocol.link.messages import CallFailed, Delivered

every_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=lambda kind: kind.slug)

PROMISED = {
    "refused": "unknown_tool unknown_prompt unknown_resource unknown_method bad_params not_found bad_cursor "
    "bad_request_state duplicate_request_id not_permitted too_large bad_line bad_request misconfigured unset "
    "needs_session untrusted not_initialized unknown_task too_many_servers denied_by_hook quarantined "
    "attach_refused",
    "unavailable": "unavailable waiting_line_full waited_too_long too_many_calls starting_failed "
    "backing_off given_up stopped paused operator_cancelled_unsent disabled draining closing supervisor_away "
    "breaker_open cannot_start node_away not_offered offline "
    "state_lost arguments_too_many too_many_a_minute hook_failed not_running",
    "lost": "lost instance_died node_lost timed_out ran_too_long cut_off operator_cancelled link_broken "
    "agent_away answer_overdue bad_answer answer_too_large needs_url url_declined unread_answers "
    "answer_denied answer_hook_failed",
}


def read(raw: bytes) -> Any:
    return json.loads(raw)


# --- the table ---------------------------------------------------------------------------------------------


def test_slugs_are_the_promised_ones_in_their_families() -> None:
    """Slugs are read by programs: one that goes or changes its family is a breaking change."""
    found: dict[str, set[str]] = {}
    for kind in KINDS.values():
        found.setdefault(kind.family, set()).add(kind.slug)
    assert found == {family: set(slugs.split()) for family, slugs in PROMISED.items()}


def test_codes_of_our_own_are_distinct_and_outside_the_reserved_ranges() -> None:
    own = [kind.code for kind in KINDS.values() if not -32768 <= kind.code <= -32000]
    assert len(own) == len(set(own))
    hundreds = {"refused": 41, "unavailable": 53, "lost": 54}
    for kind in KINDS.values():
        if kind.code in own:
            assert kind.code // 100 == hundreds[kind.family], kind.slug


def test_codes_of_the_specifications_are_used_only_where_they_name_the_case() -> None:
    borrowed = {kind.slug: kind.code for kind in KINDS.values() if kind.code < 0}
    assert borrowed == {
        "unknown_tool": INVALID_PARAMS,  # MCP 2025-06-18, server/tools, "Error Handling"
        "unknown_prompt": INVALID_PARAMS,  # the same, server/prompts
        "unknown_resource": -32002,  # the same, server/resources
        "bad_params": INVALID_PARAMS,
        "not_found": INVALID_PARAMS,
        "bad_request_state": INVALID_PARAMS,  # MCP 2026-07-28, basic/utilities/mrtr
        "unknown_task": INVALID_PARAMS,  # SEP-2663, "Protocol Errors"
        "not_permitted": INVALID_PARAMS,  # a forbidden tool looks like an unknown one
        "bad_cursor": INVALID_PARAMS,  # MCP 2025-06-18, server/utilities/pagination
        "unknown_method": METHOD_NOT_FOUND,
        "bad_line": PARSE_ERROR,  # JSON-RPC 2.0, section 5.1
        "bad_request": INVALID_REQUEST,
    }


@every_kind
def test_every_kind_says_what_happened_and_what_to_do_next(kind: FaultKind) -> None:
    for sentence in (kind.what, kind.advice):
        assert re.fullmatch(r"[A-Z].{15,}\.", sentence), sentence
        assert not re.search(r"[{}%<>|]|TODO|\bNone\b", sentence), sentence


@every_kind
def test_only_a_lost_call_may_have_been_delivered(kind: FaultKind) -> None:
    made = fault(kind.slug)
    assert made.delivered == ("maybe" if kind.family == "lost" else "no")
    assert ("Nothing was executed." in made.text) == (kind.family == "unavailable")
    assert ("may have been executed" in made.text) == (kind.family == "lost")


@every_kind
def test_a_text_names_server_and_tool_and_holds_no_placeholder(kind: FaultKind) -> None:
    text = fault(kind.slug, server="github", tool="search", detail="Exit status 3.", retry_after_s=1.25).text
    assert text.startswith(f"[github: search] {kind.what} Exit status 3. ")
    assert "Wait at least 1.2 s first." in text
    assert not re.search(r"[{}%<>]|SERVER|\bNone\b", text)


# --- the door ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        ("", ""),
        ("no such file", "no such file."),
        ("It ended.", "It ended."),
        ("It ended..", "It ended."),
        ("Why: is this the URL?.", "Why: is this the URL?"),
        ("Did you mean 'git'?", "Did you mean 'git'?"),
        ("and so on …", "and so on …"),
        ("and so on...", "and so on..."),
    ],
)
def test_a_detail_ends_with_one_mark(said: str, sentence: str) -> None:
    assert as_sentence(said) == sentence
    text = fault("bad_answer", detail=said).text
    assert (f" {sentence} " in text) is bool(sentence)
    assert ".." not in text.replace("...", "")


def test_a_tool_result_holds_text_for_the_model_and_the_facts_for_programs() -> None:
    made = fault("instance_died", detail="Exit status 3.", server="git", tool="git_log", call="c7")
    assert read(as_tool_result(made)) == {
        "content": [{"type": "text", "text": made.text}],
        "isError": True,
        "_meta": {
            "carpool/error": {
                "code": "instance_died",
                "delivered": "maybe",
                "retry_after_s": None,
                "server": "git",
                "tool": "git_log",
                "call": "c7",
            }
        },
    }


def test_an_error_carries_the_same_facts_as_data() -> None:
    made = fault("backing_off", retry_after_s=4, server="git", tool="git_log", call="c7")
    code, message, data = as_error(made)
    assert (code, message) == (5305, made.text)
    assert read(data) == read(as_tool_result(made))["_meta"]["carpool/error"]


PROTOCOL_ERRORS = {
    "unknown_tool",
    "unknown_prompt",
    "unknown_resource",
    "unknown_method",
    "bad_params",
    "not_found",
    "bad_request_state",
    "unknown_task",
    "bad_cursor",
    "not_permitted",
    "bad_line",
    "bad_request",
    "duplicate_request_id",
    "not_initialized",
    "attach_refused",
    "not_running",
}


@every_kind
def test_tools_call_gets_a_result_unless_the_request_itself_was_wrong(kind: FaultKind) -> None:
    is_error, body = fault_answer(fault(kind.slug), "tools/call")
    assert is_error == (kind.slug in PROTOCOL_ERRORS)
    assert ("code" in read(body)) == is_error
    assert ("isError" in read(body)) != is_error


@every_kind
@pytest.mark.parametrize("method", ["tools/list", "ping", "", "no/such"])
def test_every_other_method_gets_an_error(kind: FaultKind, method: str) -> None:
    made = fault(kind.slug)
    is_error, body = fault_answer(made, method)
    assert is_error
    assert read(body).keys() == {"code", "message", "data"}
    assert read(body)["code"] == kind.code
    assert read(body)["data"]["code"] == kind.slug


def test_whatever_text_comes_in_the_line_stays_one_line_of_legal_json() -> None:
    made = fault("unknown_tool", detail="a\r\nb\u2028c \ud800", server="x" * 500, tool="\0" + "é" * 500)
    for raw in (as_tool_result(made), fault_answer(made, "tools/call")[1]):
        assert min(raw) >= 0x20
        assert raw.decode("utf-8")
        assert len(raw) < 4096
    assert "a  b c ?" in made.text


# --- what the supervisor reports ---------------------------------------------------------------------------


def failed(slug: str, delivered: Delivered, text: str = "It broke.") -> CallFailed:
    return CallFailed(CallId(1), slug, delivered, text, 2.5)


def test_no_terminal_obeys_what_a_name_or_a_detail_holds() -> None:
    """C1 too: 0x9b begins a control sequence as `ESC [` does, and 0x9d a title."""
    obeyed = "".join(map(chr, (*range(0x20), *range(0x7F, 0xA0))))
    said = fault("unknown_tool", detail=f"a{obeyed}b", server=f"c{obeyed}", tool=f"d{obeyed}")
    assert not set(said.text + said.server + said.tool) & set(obeyed)


def test_a_reported_fault_keeps_its_text_and_gains_the_names() -> None:
    made = fault_of(failed("timed_out", "maybe"), server="git", tool="git_log", call="c1")
    assert (made.slug, made.delivered, made.text, made.retry_after_s) == (
        "timed_out",
        "maybe",
        "It broke.",
        2.5,
    )
    assert (made.server, made.tool, made.call) == ("git", "git_log", "c1")


@pytest.mark.parametrize(
    ("slug", "delivered", "becomes", "then"),
    [
        ("waiting_line_full", "no", "waiting_line_full", "no"),
        ("waiting_line_full", "maybe", "lost", "maybe"),
        ("instance_died", "no", "instance_died", "maybe"),
        ("of_a_later_release", "no", "unavailable", "no"),
        ("of_a_later_release", "maybe", "lost", "maybe"),
    ],
)
def test_of_two_claims_about_delivery_the_worse_one_holds(
    slug: str, delivered: Delivered, becomes: str, then: Delivered
) -> None:
    made = fault_of(failed(slug, delivered))
    assert (made.slug, made.delivered) == (becomes, then)


def test_a_report_without_text_gets_the_one_of_the_table() -> None:
    assert fault_of(failed("timed_out", "maybe", ""), server="git").text == (
        fault("timed_out", server="git", retry_after_s=2.5).text
    )


# --- bugs --------------------------------------------------------------------------------------------------


def test_a_slug_that_is_not_in_the_table_is_our_bug() -> None:
    with pytest.raises(InvariantBroken, match="no_such_slug"):
        fault("no_such_slug")


def test_a_bug_carries_its_story() -> None:
    bug = InvalidTransition("instance", "GONE", "Greeted", ("spawned", "died"))
    assert isinstance(bug, Bug)
    assert isinstance(InvariantBroken("x"), Bug)
    assert (bug.machine, bug.state, bug.event, bug.story) == (
        "instance",
        "GONE",
        "Greeted",
        ("spawned", "died"),
    )
    assert "instance: Greeted cannot happen in state GONE" in str(bug)
    assert "died" in str(bug)
