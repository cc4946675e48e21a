"""The trace context of a call: made, kept, spliced in, recognized."""

import json

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from carpool_protocol.ids import ABSENT, EMPTY_OBJECT, RawJson
from carpool_protocol.wire.traceparent import parse_traceparent
from carpool_supervisor.core.model.trace_context import (
    MAX_NUMBERS,
    TraceKey,
    issued,
    key_of,
    mint,
    next_hop,
    with_traceparent,
)
from tests.behaviours import behaviour

LIFE = b"0123456789abcdef"
OTHER_LIFE = b"fedcba9876543210"
AGENTS = "00-" + "a" * 32 + "-" + "b" * 16 + "-01"
numbers = st.one_of(st.integers(0, 50), st.integers(0, MAX_NUMBERS - 1), st.integers(0, 2**63))
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | texts | st.just("traceparent"),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(texts, inner, max_size=2),
    max_leaves=6,
)


@given(numbers)
@settings(deadline=None)
def test_a_minted_context_is_legal_deterministic_and_recognised(number: int) -> None:
    text = mint(LIFE, number)
    made = parse_traceparent(text)
    assert made is not None
    assert text == mint(LIFE, number)
    assert issued(LIFE, TraceKey(made.trace, made.span))
    assert issued(LIFE, TraceKey("c" * 32, made.span)), "an agent's trace with our span"
    assert issued(LIFE, TraceKey(made.trace, "c" * 16)), "our trace with a span of the server's tracer"
    assert not issued(OTHER_LIFE, TraceKey(made.trace, made.span))
    assert not issued(LIFE, TraceKey("c" * 32, "c" * 16))


@behaviour("asks:trace:fresh")
def test_no_two_calls_of_a_life_share_a_trace_or_a_span() -> None:
    made = [parse_traceparent(mint(LIFE, number)) for number in (*range(20_000), MAX_NUMBERS - 1)]
    assert len({each.trace for each in made if each}) == len(made)
    assert len({each.span for each in made if each}) == len(made)


def test_trace_id_and_span_id_are_never_all_zero() -> None:
    for number in (0, MAX_NUMBERS - 1, MAX_NUMBERS, 2**40, 2**63):
        assert parse_traceparent(mint(LIFE, number)) is not None


@behaviour("asks:trace:agents-own")
def test_an_agents_own_trace_is_kept_and_the_span_is_ours() -> None:
    text, kept = next_hop(AGENTS.replace("-01", "-00"), LIFE, 7)
    assert kept
    assert text.startswith("00-" + "a" * 32 + "-")
    assert text.endswith("-00"), "the agent's decision not to sample is kept"
    assert text[36:52] == mint(LIFE, 7)[36:52]


def test_a_later_version_is_read_as_far_as_it_is_known_and_goes_on_as_version_00() -> None:
    text, kept = next_hop("cc" + AGENTS[2:] + "-more", LIFE, 7)
    assert kept
    assert text.startswith("00-" + "a" * 32)
    assert len(text) == 55


@pytest.mark.parametrize("theirs", ["", "garbage"])
@pytest.mark.parametrize("said", ["garbage", AGENTS, 7])
def test_an_illegal_context_of_the_agent_is_replaced_and_its_tracestate_dropped(
    said: object, theirs: str
) -> None:
    assert next_hop(theirs, LIFE, 3) == (mint(LIFE, 3), False)
    meta = RawJson(json.dumps({"tracestate": "v=1", "traceparent": said, "mine": 1}).encode())
    sent, key = with_traceparent(meta, LIFE, 3, theirs)
    assert json.loads(sent) == {"traceparent": mint(LIFE, 3), "mine": 1}
    assert key == key_of(sent)


@pytest.mark.parametrize("theirs", ["", AGENTS])
def test_the_key_does_not_come_from_the_meta_so_that_a_journal_of_its_length_replays(theirs: str) -> None:
    said = {"traceparent": theirs, "tracestate": "v=1"} if theirs else {"x": 1}
    meta = RawJson(json.dumps(said).encode())
    _, key = with_traceparent(meta, LIFE, 3, theirs)
    assert with_traceparent(RawJson(b" " * len(meta)), LIFE, 3, theirs)[1] == key


def test_a_tracestate_without_a_context_is_dropped() -> None:
    sent, _ = with_traceparent(RawJson(b'{"tracestate":"v=1"}'), LIFE, 3)
    assert json.loads(sent) == {"traceparent": mint(LIFE, 3)}


def test_a_legal_context_keeps_its_tracestate() -> None:
    meta = RawJson(json.dumps({"tracestate": "v=1", "traceparent": AGENTS}).encode())
    sent, key = with_traceparent(meta, LIFE, 3, AGENTS)
    assert json.loads(sent) == {"traceparent": next_hop(AGENTS, LIFE, 3)[0], "tracestate": "v=1"}
    assert key.trace == "a" * 32
    assert key_of(sent) == key


@pytest.mark.parametrize("meta", [ABSENT, EMPTY_OBJECT, RawJson(b"{ }")])
def test_an_empty_meta_becomes_the_context_alone(meta: RawJson) -> None:
    sent, key = with_traceparent(meta, LIFE, 9)
    assert json.loads(sent) == {"traceparent": mint(LIFE, 9)}
    assert key_of(sent) == key


@given(st.dictionaries(texts, values, max_size=4), st.integers(0, 99))
@settings(deadline=None)
def test_everything_else_in_the_meta_stays(members: dict[str, object], number: int) -> None:
    members.pop("tracestate", None)
    members.pop("traceparent", None)
    for ascii_only in (True, False):
        meta = RawJson(json.dumps(members, ensure_ascii=ascii_only).encode())
        sent, key = with_traceparent(meta, LIFE, number)
        assert json.loads(sent) == {"traceparent": mint(LIFE, number), **members}
        assert key_of(sent) == key
        msgspec.json.decode(sent)


@behaviour("asks:trace:unforgeable")
def test_a_context_hidden_behind_escapes_does_not_overrule_ours() -> None:
    meta = RawJson(b'{"tracep\\u0061rent":"' + AGENTS.encode() + b'","x":{"traceparent":"mine"}}')
    sent, key = with_traceparent(meta, LIFE, 5, AGENTS)
    assert sent.count(b"traceparent") == 2
    assert json.loads(sent) == {"traceparent": next_hop(AGENTS, LIFE, 5)[0], "x": {"traceparent": "mine"}}
    assert key.trace == "a" * 32


def test_half_a_surrogate_pair_in_a_name_goes_on_as_it_came() -> None:
    sent, _ = with_traceparent(RawJson(b'{"\\ud83d\\"q":1}'), LIFE, 5)
    assert json.loads(sent) == {"traceparent": mint(LIFE, 5), '\ud83d"q': 1}


@pytest.mark.parametrize(
    "meta", [b"", b"{}", b"null", b"[]", b'{"traceparent":1}', b'{"traceparent":"x"}', b'{"x":"traceparent"}']
)
def test_a_server_that_sends_no_legal_context_has_none(meta: bytes) -> None:
    assert key_of(RawJson(meta)) is None
