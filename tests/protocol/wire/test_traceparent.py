"""The trace context in a `_meta`: legal or not, found or not. Source: W3C Trace Context level 1."""

import json

import pytest

from carpool_protocol.ids import ABSENT, RawJson
from carpool_protocol.wire.params import split_call
from carpool_protocol.wire.traceparent import TraceParent, parse_traceparent, traceparent_in

TRACE, SPAN = "a" * 32, "b" * 16
LEGAL = f"00-{TRACE}-{SPAN}-01"


def test_a_legal_context_comes_apart() -> None:
    assert parse_traceparent(LEGAL) == TraceParent(TRACE, SPAN, "01")


def test_of_a_later_version_the_part_counts_that_version_00_knows() -> None:
    assert parse_traceparent("cc" + LEGAL[2:] + "-more") == TraceParent(TRACE, SPAN, "01")
    assert traceparent_in(b'{"traceparent":"cc-%b-%b-01-secret"}' % (TRACE.encode(), SPAN.encode())) == LEGAL


@pytest.mark.parametrize(
    "bad",
    [
        "",
        "garbage",
        LEGAL.upper(),
        LEGAL + "-more",
        LEGAL + "\n",
        "ff" + LEGAL[2:],
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        LEGAL[:-1],
        LEGAL.replace("a", "à"),
        f"00-{'٣' * 32}-{SPAN}-01",
    ],
)
def test_an_illegal_context_is_none(bad: str) -> None:
    assert parse_traceparent(bad) is None
    assert traceparent_in(json.dumps({"traceparent": bad}).encode()) == ""


@pytest.mark.parametrize(
    "meta",
    [
        ABSENT,
        b"{}",
        b'{"traceparent":1}',
        b'{"traceparent":null}',
        b'{"x":"traceparent"}',
        b'{"x":{"traceparent":"%b"}}' % LEGAL.encode(),
        b'{"Traceparent":"%b"}' % LEGAL.encode(),
    ],
)
def test_a_meta_without_one_of_its_own_says_none(meta: bytes) -> None:
    assert traceparent_in(meta) == ""


def test_no_escape_and_no_double_in_what_a_sender_wrote_hides_it() -> None:
    written = b'{"traceparent":"x","tracep\\u0061rent":"00-%b-%b-01"}' % (
        TRACE.replace("a", "\\u0061").encode(),
        SPAN.encode(),
    )
    split = split_call(RawJson(b'{"name":"t","_meta":%b}' % written))
    assert traceparent_in(split.meta) == LEGAL  # type: ignore[union-attr]


def test_half_a_surrogate_pair_beside_it_does_not_hide_it() -> None:
    assert traceparent_in(b'{"x":"\\ud83d","traceparent":"%b"}' % LEGAL.encode()) == LEGAL
