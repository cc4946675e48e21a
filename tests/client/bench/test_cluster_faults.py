"""The parts of `bench.cluster_faults` that need no nodes: scenarios, reading of answers, report."""

import json
from collections import Counter
from typing import Any

import pytest

from bench.cluster_faults import ScenarioRow, chosen, markdown, report, rows_of
from bench.fault_agents import ANSWER_S, note_answer, read_response
from bench.fault_ledger import CUT_OFF, TalliedCall
from bench.fault_scenarios import CLUSTER, DOOR, FAULT_S


def row_of(*calls: TalliedCall, ran: str = "", link: str = "nats", **more: Any) -> ScenarioRow:
    rows = rows_of(("b", "c"), calls, Counter(ran.split()))
    return ScenarioRow(name="stall", text="a stall", link=link, rows=rows, **more)


def test_each_scenario_has_a_name_of_its_own_and_ends_after_its_last_step() -> None:
    names = [each.name for each in (*CLUSTER, *DOOR)]
    assert len(names) == len(set(names))
    ends = [(each, each.steps[-1].at_s) for each in CLUSTER if each.steps]
    ends += [(each, each.steps[-1].at_s) for each in DOOR]  # type: ignore[misc]
    assert [each.name for each, at_s in ends if at_s > each.seconds] == []


def test_a_scenario_that_is_looked_at_lasts_until_the_second_look() -> None:
    assert all(each.seconds > FAULT_S + 23.0 for each in CLUSTER if each.looks)


def test_the_door_and_the_link_meet_each_fault_of_the_cable() -> None:
    acts = {"slow", "stall", "half_open", "cut", "refuse"}
    names = " ".join(each.name for each in CLUSTER), " ".join(each.name for each in DOOR)
    assert [{act for act in acts if act in of} for of in names] == [acts, acts]


def test_the_whole_table_takes_less_than_an_hour_for_a_link() -> None:
    for kind in ("nats", "zmq"):
        assert sum(each.seconds for each in CLUSTER if kind in each.only) < 3600
    assert all(each.seconds <= ANSWER_S for each in (*CLUSTER, *DOOR))


def test_a_link_and_names_choose_the_runs() -> None:
    assert [(run.name, link) for run, link in chosen(["none", "stall_10s"], "zmq")] == [
        ("none", "zmq"),
        ("stall_10s", "zmq"),
    ]
    assert {link for _, link in chosen([], None)} == {"nats", "zmq", "door"}
    assert [link for _, link in chosen(["nats_1s"], None)] == ["nats"]
    assert chosen(["nats_1s"], "zmq") == []
    assert [link for _, link in chosen(["door_cut"], None)] == ["door"]


def test_an_unknown_scenario_is_refused_with_the_names_that_there_are() -> None:
    with pytest.raises(SystemExit, match=r"no such scenario: nothing; there are: .*stall_10s"):
        chosen(["nothing"], None)


@pytest.mark.parametrize(
    ("message", "code", "delivered"),
    [
        ({"result": {"content": [{"type": "text", "text": "m 1"}]}}, "", ""),
        ({"result": {"content": [{"type": "text", "text": "m2 1"}]}}, "answer_of_another_call", ""),
        (
            {
                "result": {
                    "isError": True,
                    "_meta": {"carpool/error": {"code": "node_away", "delivered": "no"}},
                }
            },
            "node_away",
            "no",
        ),
        (
            {"error": {"code": -1, "data": {"code": "too_large", "delivered": "no"}}},
            "too_large",
            "no",
        ),
        ({"error": {"code": -32600}}, "-32600", ""),
        (None, CUT_OFF, ""),
    ],
)
def test_an_answer_is_written_down_with_its_error_and_delivery(
    message: dict[str, Any] | None, code: str, delivered: str
) -> None:
    sent = TalliedCall("m", "b", 0.0)
    note_answer(sent, message)
    assert (sent.code, sent.delivered) == (code, delivered)


def test_a_response_is_read_from_a_body_chunks_or_events_and_not_while_a_part_is_missing() -> None:
    said = {"id": 1, "result": {}}
    body = json.dumps(said).encode()
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
    assert read_response(head + b"\r\n" + body) == said
    assert read_response(head + b"\r\n" + body[:-3]) is None
    assert read_response(head) is None
    events = b'event: message\ndata: {"method":"x"}\n\nevent: message\ndata: ' + body + b"\n\n"
    chunks = b"%x\r\n%b\r\n%x\r\n%b\r\n" % (20, events[:20], len(events) - 20, events[20:])
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    assert read_response(head + chunks + b"0\r\n\r\n") == said
    assert read_response(head + chunks) is None


def test_a_report_has_the_counts_of_each_target_and_the_states() -> None:
    calls = [
        TalliedCall("m1", "b", 0.0, ended_s=1.0),
        TalliedCall("m2", "b", 0.0, ended_s=20.5, code="node_lost", delivered="maybe"),
        TalliedCall("m3", "c", 0.0, ended_s=0.1),
    ]
    said = report(row_of(*calls, ran="m1 m2 m3", looks=["after 3 s: status, exit code 0: serving ... ok"]))
    assert "to b: sent 2, ok 1, 1 node_lost/maybe; of 1 maybe 1 ran; lost 0, twice 0" in said
    assert "an error after at most 20.5 s" in said
    assert "to c: sent 1, ok 1, no error" in said
    assert said.endswith("after 3 s: status, exit code 0: serving ... ok")


def test_the_bytes_on_the_cable_are_told_for_each_megabyte_that_was_answered() -> None:
    big = TalliedCall("m", "b", 0.0, size_bytes=1_000_000, ended_s=26.0)
    assert "1.50 MB for each MB" in report(row_of(big, ran="m", carried_bytes=1_500_000))
    big.code, big.delivered = "timed_out", "maybe"
    said = report(row_of(big, ran="m", carried_bytes=1_500_000))
    assert "1.50 MB, and no big answer came" in said
    assert "big answers: timed_out at 26.0 s" in said


def test_an_answer_that_nobody_waits_for_breaks_a_promise() -> None:
    assert row_of(TalliedCall("m", "b", 0.0, ended_s=1.0), ran="m", doubles=1).broken == 1


def test_the_table_has_a_row_for_each_scenario_with_the_figures_of_its_first_target() -> None:
    bigs = [
        TalliedCall(f"m{at}", "b", 0.0, size_bytes=1_000_000, ended_s=took)
        for at, took in enumerate((9.5, 26.0, 75.0))
    ]
    bigs[2].code, bigs[2].delivered = "timed_out", "maybe"
    lines = markdown([row_of(*bigs, ran="m0 m1 m2", carried_bytes=3_000_000)]).splitlines()
    assert len({line.count("|") for line in lines}) == 1
    cells = [cell.strip() for cell in lines[2].strip("|").split("|")]
    assert cells[:6] == ["a stall", "nats", "3", "2", "1 timed_out/maybe", "1 of 1"]
    assert cells[-2:] == ["9.5 s to 26.0 s, 1 timed_out at 75.0 s", "1.50"]
