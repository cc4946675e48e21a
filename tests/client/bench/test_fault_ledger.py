"""The account of a run with faults: what counts as a broken promise, and what the figures of a row are."""

from collections import Counter

import pytest

from bench.fault_ledger import CUT_OFF, TalliedCall, broken, figures, longest_pause_s, quantile


def answered(mark: str, sent_s: float, ended_s: float, *, work_s: float = 0.0, size: int = 0) -> TalliedCall:
    return TalliedCall(mark, "b", sent_s, work_s, size, ended_s)


def failed(mark: str, sent_s: float, ended_s: float, code: str, delivered: str) -> TalliedCall:
    call = TalliedCall(mark, "b", sent_s, ended_s=ended_s, code=code)
    call.delivered = delivered  # type: ignore[assignment]
    return call


def test_a_run_without_faults_breaks_nothing() -> None:
    row = figures([answered("a", 0.0, 0.5), answered("b", 1.0, 1.1)], Counter(["a", "b"]))
    assert (row.sent, row.ok, row.errors, row.broken) == (2, 2, {}, 0)


@pytest.mark.parametrize(
    ("call", "ran", "name"),
    [
        (TalliedCall("a", "b", 0.0), [], "lost"),
        (answered("a", 0.0, 1.0), ["a", "a"], "twice"),
        (failed("a", 0.0, 1.0, "node_lost", "maybe"), ["a", "a"], "twice"),
        (failed("a", 0.0, 1.0, "node_away", "no"), ["a"], "no_but_ran"),
        (answered("a", 0.0, 1.0), [], "ok_not_ran"),
    ],
)
def test_each_broken_promise_is_counted_once_and_under_its_name(
    call: TalliedCall, ran: list[str], name: str
) -> None:
    row = figures([call], Counter(ran))
    assert getattr(row, name) == row.broken == broken([row]) == 1


def test_an_error_is_no_broken_promise_if_its_delivery_is_told_rightly() -> None:
    calls = [failed("a", 0.0, 20.0, "node_lost", "maybe"), failed("b", 0.0, 3.0, "node_lost", "maybe")]
    calls += [failed("c", 21.0, 21.1, "node_away", "no")]
    row = figures(calls, Counter(["a"]))
    assert row.broken == 0
    assert row.errors == {"node_lost/maybe": 2, "node_away/no": 1}
    assert (row.maybe, row.maybe_ran, row.error_after_s) == (2, 1, 20.0)


def test_a_call_whose_agent_lost_its_own_connection_is_not_lost() -> None:
    row = figures([failed("a", 0.0, 9.0, CUT_OFF, "")], Counter(["a"]))
    assert (row.broken, row.error_after_s) == (0, 0.0)


def test_the_work_of_a_server_and_big_answers_are_not_in_the_times_of_small_calls() -> None:
    calls = [answered("a", 0.0, 0.8, work_s=0.7), answered("b", 0.0, 30.0, size=1_000_000)]
    row = figures(calls, Counter(["a", "b"]))
    assert row.p50_s == row.p99_s == pytest.approx(0.1)
    assert (row.big, row.big_bytes) == (["30.0 s"], 1_000_000)


def test_a_pause_begins_when_a_call_waits_and_ends_with_a_good_answer() -> None:
    calls = [answered("a", 0.0, 0.1), answered("b", 5.0, 5.2), answered("c", 6.0, 9.0)]
    assert longest_pause_s(calls) == pytest.approx(3.0)


def test_errors_do_not_end_a_pause() -> None:
    calls = [answered("a", 0.0, 0.1), failed("b", 1.0, 21.0, "node_lost", "maybe")]
    calls += [failed("c", 22.0, 22.0, "node_away", "no"), answered("d", 30.0, 30.5)]
    assert longest_pause_s(calls) == pytest.approx(29.5)


def test_a_run_that_ends_without_a_good_answer_is_one_pause() -> None:
    calls = [failed("a", 1.0, 21.0, "node_lost", "maybe"), failed("b", 22.0, 23.0, "node_away", "no")]
    assert longest_pause_s(calls) == pytest.approx(22.0)


def test_work_that_takes_its_time_is_no_pause() -> None:
    assert longest_pause_s([answered("a", 0.0, 0.8, work_s=0.7)]) == pytest.approx(0.1)


def test_the_quantile_of_few_values_is_one_of_them() -> None:
    assert quantile([], 0.5) == 0.0
    assert quantile([1.0], 0.99) == 1.0
    assert quantile([1.0, 2.0, 3.0, 4.0], 0.5) == 2.0
    assert quantile([float(each) for each in range(1, 101)], 0.99) == 99.0
