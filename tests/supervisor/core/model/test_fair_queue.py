"""The queue of a pool: bounded, and fair between sessions."""

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from carpool_protocol.ids import CallId, SessionId, part_of
from carpool_supervisor.core.model.fair_queue import FairQueue
from tests.behaviours import behaviour

A, B, C = SessionId("a"), SessionId("b"), SessionId("c")


def line(*calls: tuple[SessionId, int], max_calls: int = 100, max_bytes: int = 1000) -> FairQueue:
    waiting = FairQueue(max_calls, max_bytes)
    for session, call in calls:
        assert waiting.add(session, CallId(call), 10) == []
    return waiting


def drained(waiting: FairQueue) -> list[int]:
    return [waiting.pop() for _ in range(len(waiting))]


@behaviour("wait:fair")
def test_sessions_take_turns_and_each_keeps_its_own_order() -> None:
    assert drained(line((A, 1), (A, 2), (A, 3), (B, 4), (C, 5), (B, 6))) == [1, 4, 5, 2, 6, 3]


@behaviour("wait:fair")
def test_a_thousand_calls_of_one_session_delay_another_by_one_turn() -> None:
    waiting = line(*((A, n) for n in range(1000)), max_calls=2000, max_bytes=100_000)
    assert waiting.pop() == 0
    waiting.add(B, CallId(5000), 10)
    assert [waiting.pop(), waiting.pop()] == [1, 5000]


@behaviour("wait:fair-tokens")
def test_the_sessions_of_one_token_have_one_turn_together() -> None:
    waiting = FairQueue(1000, 100_000)
    many = [SessionId(f"s{n}") for n in range(8)]
    for number in range(80):  # eight sessions of one token, each with ten calls
        waiting.add(many[number % 8], CallId(number), 10, "ann")
    for number, part in enumerate((part_of(B, 1), part_of(B, 2))):
        waiting.add(part, CallId(1000 + number), 10, "bob")
    waiting.add(C, CallId(2000), 10)
    waiting.check()
    assert waiting.count_ahead(C, CallId(2000)) == 2
    assert [waiting.pop() for _ in range(7)] == [0, 1000, 2000, 1, 1001, 2, 3]
    waiting.check()
    assert waiting.add(many[0], CallId(3000), 99_999, "ann") == [3000], "who takes most gives way"
    drained(waiting)
    waiting.check()


def test_a_full_line_drops_the_last_call_of_the_session_with_most() -> None:
    waiting = line((A, 1), (A, 2), (B, 3), max_calls=3)
    assert waiting.add(B, CallId(4), 10) == [4], "between equals the latest comer gives way"
    assert waiting.add(C, CallId(5), 10) == [2]
    assert drained(waiting) == [1, 3, 5]


def test_bytes_are_freed_by_the_session_that_takes_most_of_them() -> None:
    waiting = FairQueue(10, 100)
    assert waiting.add(A, CallId(1), 80) == []
    assert waiting.add(B, CallId(2), 10) == []
    assert waiting.add(B, CallId(3), 20) == [1]
    waiting.check()


def test_a_call_that_fits_in_no_line_is_refused_and_moves_nobody() -> None:
    waiting = line((A, 1), max_bytes=50)
    assert waiting.add(B, CallId(2), 51) == [2]
    assert drained(waiting) == [1]


def test_a_call_that_comes_back_is_the_next_of_its_session_even_over_the_bounds() -> None:
    waiting = line((A, 1), (A, 2), max_calls=2)
    waiting.put_back(A, CallId(9), 10)
    assert drained(waiting) == [9, 1, 2]


def test_a_call_taken_out_of_the_middle_leaves_the_rest_in_order() -> None:
    waiting = line((A, 1), (A, 2), (A, 3), (B, 4))
    waiting.remove(A, CallId(2))
    waiting.remove(B, CallId(4))
    waiting.check()
    assert drained(waiting) == [1, 3]


@behaviour("wait:fair")
def test_a_session_that_may_go_is_served_out_of_turn_and_then_waits_for_its_next() -> None:
    waiting = line((A, 1), (A, 2), (B, 3), (C, 4))
    assert waiting.sessions() == [A, B, C]
    assert (waiting.head(B), waiting.pop_for(B)) == (3, 3)
    assert not waiting.has_session(B)
    assert waiting.pop_for(A) == 1
    assert waiting.sessions() == [C, A]
    assert (waiting.for_session(A), waiting.for_session(B)) == ([2], [])
    waiting.check()


def test_the_count_ahead_of_a_call_is_its_place_in_the_order() -> None:
    calls = ((A, 1), (A, 2), (A, 3), (B, 4), (C, 5), (B, 6))
    whose = {number: session for session, number in calls}
    for place, number in enumerate(drained(line(*calls))):
        assert line(*calls).count_ahead(whose[number], CallId(number)) == place


# --- sessions that are parts of one -----------------------------------------------------------------------

P, Q, R = (part_of(C, number) for number in (1, 2, 3))


@behaviour("wait:fair")
def test_a_thousand_agents_of_one_token_delay_another_agent_by_one_turn() -> None:
    waiting = line(*((part_of(C, n), n) for n in range(1000)), max_calls=2000, max_bytes=100_000)
    assert waiting.pop() == 0
    waiting.add(B, CallId(5000), 10)
    assert waiting.sessions()[:3] == [part_of(C, 1), B, part_of(C, 2)]
    assert [waiting.pop(), waiting.pop(), waiting.pop()] == [1, 5000, 2]
    waiting.check()


def test_a_full_line_drops_a_call_of_those_who_take_most_together() -> None:
    waiting = line((A, 1), (A, 2), (P, 3), (Q, 4), max_calls=4)
    assert waiting.add(R, CallId(5), 10) == [5]
    assert waiting.add(B, CallId(6), 10) == [4]
    assert drained(waiting) == [1, 3, 6, 2]


def test_parts_take_turns_among_themselves_and_what_is_ahead_of_each_is_known() -> None:
    calls = ((P, 1), (P, 2), (A, 3), (Q, 4), (A, 5), (Q, 6), (A, 7), (R, 8))
    whose = {number: session for session, number in calls}
    order = drained(line(*calls))
    assert order == [1, 3, 4, 5, 8, 7, 2, 6]
    for place, number in enumerate(order):
        assert line(*calls).count_ahead(whose[number], CallId(number)) == place


def test_a_part_is_found_and_leaves_alone() -> None:
    waiting = line((P, 1), (Q, 2), (C, 3))
    assert (
        waiting.has_session(P),
        waiting.has_session(R),
        waiting.for_session(Q),
        waiting.for_session(R),
    ) == (True, False, [2], [])
    waiting.remove(P, CallId(1))
    waiting.check()
    assert (waiting.head(Q), waiting.pop_for(C)) == (2, 3)
    assert waiting.clear() == [2]


def test_an_empty_line_is_false_and_clears_to_nothing() -> None:
    waiting = line((A, 1), (B, 2))
    assert waiting
    assert waiting.clear() == [1, 2]
    assert not waiting
    assert waiting.clear() == []


@behaviour("wait:bounded")
@settings(deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from([A, B, C, part_of(C, 1), part_of(C, 2)]),
            st.sampled_from(["add", "pop", "back"]),
            st.integers(1, 60),
        )
    )
)
def test_bounds_hold_after_every_add_and_no_call_is_lost_or_doubled(
    steps: list[tuple[SessionId, str, int]],
) -> None:
    waiting = FairQueue(4, 100)
    inside: Counter[CallId] = Counter()
    for number, (session, what, size) in enumerate(steps):
        if what == "pop":
            if waiting:
                inside[waiting.pop()] -= 1
        elif what == "add":
            inside[CallId(number)] += 1
            for dropped in waiting.add(session, CallId(number), size):
                inside[dropped] -= 1
            assert waiting.calls <= 4
            assert waiting.size_bytes <= 100
        else:
            inside[CallId(number)] += 1
            waiting.put_back(session, CallId(number), size)
        waiting.check()
    for call in waiting.clear():
        inside[call] -= 1
    assert set(inside.values()) <= {0}


def test_the_next_session_of_each_turn_and_whose_turn_waits() -> None:
    queue = FairQueue(10, 1000)
    for number, (session, principal) in enumerate(
        (("a", "p"), ("b", "p"), ("c", ""), ("d.1", ""), ("d.2", ""))
    ):
        queue.add(SessionId(session), CallId(number), 1, principal)
    assert list(queue.next_sessions()) == ["a", "c", "d.1"]
    queue.pop_for(SessionId("a"))
    assert list(queue.next_sessions()) == ["c", "d.1", "b"]
    assert queue.has_turn(SessionId("new"), "p")
    assert queue.has_turn(SessionId("d.9"), "")
    assert not queue.has_turn(SessionId("new"), "")
