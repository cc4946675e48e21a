"""Counts of calls: sums, differences, and the bound of codes."""

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from carpool_protocol.counters.call_counts import MAX_CODES, OTHER, CallCounts, add_code

CODES = st.dictionaries(st.sampled_from(["lost", "-32602", "closing"]), st.integers(1, 9))
FIELDS = st.fixed_dictionaries(
    {
        "answers": st.integers(0, 9), "errors": CODES, "refusals": CODES, "cancelled": st.integers(0, 9),
        "bytes_in": st.integers(0, 9), "bytes_out": st.integers(0, 9),
    }
)  # fmt: skip


def counts(fields: dict[str, Any], in_flight: int = 0) -> CallCounts:
    made = CallCounts(**msgspec.json.decode(msgspec.json.encode(fields)))
    made.calls = made.ended + in_flight
    return made


def test_calls_in_flight_are_those_that_have_not_ended() -> None:
    one = counts({"answers": 2, "errors": {"lost": 1}, "refusals": {"closing": 3}, "cancelled": 4}, 5)
    assert (one.calls, one.ended, one.in_flight) == (15, 10, 5)


@given(FIELDS, FIELDS)
def test_what_came_after_an_earlier_state_is_the_difference(
    before: dict[str, Any], after: dict[str, Any]
) -> None:
    later = counts(before)
    later.merge(counts(after, 1))
    assert later.minus(counts(before)) == counts(after, 1)


def test_codes_beyond_the_bound_count_as_one() -> None:
    found: dict[str, int] = {}
    for code in range(MAX_CODES + 5):
        add_code(found, str(code))
    add_code(found, "0")
    assert len(found) == MAX_CODES + 1
    assert (found[OTHER], found["0"]) == (5, 2)


def test_a_group_survives_its_journey_as_json() -> None:
    one = counts({"answers": 1, "errors": {"lost": 2}}, 1)
    one.total.observe(0.3)
    assert msgspec.json.decode(msgspec.json.encode(one), type=CallCounts) == one
