"""Requests without an answer, by id, where agents use ids again. Source: docs/decisions/0030."""

import sys

from hypothesis import given
from hypothesis import strategies as st

from carpool.open_requests import RECENT, REFUSED, OpenRequests
from tests.behaviours import behaviour

REFUSAL = b'{"error":{"data":{%b}}}' % REFUSED


@behaviour("reattach:used-again")
def test_an_answer_is_for_the_first_use_and_a_refusal_for_the_one_after_that() -> None:
    table = OpenRequests()
    for line in (b"one", b"two", b"three"):
        table.request_sent(1, line)
    assert table.request_answered(1, REFUSAL) == b"two"
    assert table.lines() == [b"one", b"three"]
    assert table.request_answered(1, b"{}") == b"one"
    assert table.request_answered(1, REFUSAL) == b"three", "with no other in use it is about this one"
    assert table.request_answered(1, b"{}") == b""
    assert len(table) == 0


@behaviour("reattach:used-again")
def test_it_is_known_which_requests_use_an_id_that_had_an_answer_also_in_another_part_of_the_session() -> (
    None
):
    answered: dict[int, None] = {}
    one, other = OpenRequests(answered), OpenRequests(answered)
    one.request_sent(1, b"first")
    one.request_answered(1, b"{}")
    again, fresh = other.request_sent(1, b"again"), other.request_sent(2, b"fresh")
    assert other.reused_ids() == {again}
    for number in range(3, 3 + RECENT):
        one.request_answered(number, b"{}")
    assert other.reused_ids() == set(), "so long ago that the record has let go of it"
    assert fresh in other


@behaviour("lines:long-ids")
def test_what_is_remembered_of_an_answered_request_does_not_grow_with_its_id() -> None:
    answered: dict[int, None] = {}
    table = OpenRequests(answered)
    for number in range(RECENT + 1):
        ident = b'"%d%b"' % (number, b"i" * 1000)
        table.request_sent(ident, b"line")
        assert table.request_answered(ident, b"{}") == b"line"
    assert len(answered) == RECENT
    assert sum(map(sys.getsizeof, answered)) < 64 * RECENT


STEPS = st.lists(st.tuples(st.sampled_from(["said", "answered", "refused", "ended"]), st.integers(0, 2)))


@given(STEPS)
def test_what_is_left_is_what_was_said_and_had_no_answer_in_its_order(steps: list[tuple[str, int]]) -> None:
    table, left = OpenRequests(), list[tuple[int, bytes]]()
    for count, (what, ident) in enumerate(steps):
        uses = [each for each in left if each[0] == ident]
        if what == "said":
            line = b"%d" % count
            assert table.request_sent(ident, line) in table
            left.append((ident, line))
        elif what == "ended":
            assert table.request_ended(ident) == [line for _, line in uses]
            left = [each for each in left if each[0] != ident]
        else:
            gone = uses[1:2] or uses[:1] if what == "refused" else uses[:1]
            assert table.request_answered(ident, REFUSAL if what == "refused" else b"{}") == b"".join(
                line for _, line in gone
            )
            left = [each for each in left if each not in gone]
        assert table.lines() == [line for _, line in left]
        assert [(ident, line) for _, ident, line in table.entries()] == left
