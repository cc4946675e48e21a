"""Attribution of asks: each step, and the guesses that it never makes."""

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from carpool_protocol.ids import ABSENT, RawJson, SessionId, WireId
from carpool_supervisor.core.model.attribution import (
    CAN_ASK,
    AskFacts,
    AskRefused,
    Attributed,
    InFlight,
    attribute,
    facts_of,
)
from carpool_supervisor.core.model.trace_context import TraceKey, key_of, mint, with_traceparent
from tests.behaviours import behaviour

LIFE = b"0123456789abcdef"
A, B = SessionId("s1"), SessionId("s2")
ASK = AskFacts("elicitation/create")


def key(number: int) -> TraceKey:
    return with_traceparent(ABSENT, LIFE, number)[1]


def call(
    number: int,
    session: SessionId = A,
    *,
    can_ask: bool = True,
    over: bool = False,
    trace: TraceKey | None = None,
) -> InFlight:
    return InFlight(WireId(number), session, can_ask, trace or key(number), over)


def traced(number: int, *, ours: bool = True) -> AskFacts:
    return AskFacts("sampling/createMessage", trace=key(number), ours=ours)


def test_the_methods_that_can_ask_are_those_of_the_specification() -> None:
    assert {"tools/call", "prompts/get", "resources/read", "completion/complete"} == CAN_ASK


@behaviour("asks:attribution:only-call")
def test_the_only_call_that_can_ask_is_asked() -> None:
    found = attribute(ASK, [call(1), call(2, B, can_ask=False)], {})
    assert found == Attributed(A, (WireId(1),), by="only call")


@behaviour("asks:attribution:only-session")
def test_an_ask_may_be_about_any_of_several_calls_of_one_session() -> None:
    found = attribute(ASK, [call(4), call(9), call(7)], {})
    assert found == Attributed(A, (WireId(9), WireId(7), WireId(4)), by="only session")


@behaviour("asks:attribution:refused")
def test_calls_of_two_sessions_are_refused_as_evidence() -> None:
    found = attribute(ASK, [call(1), call(2, B)], {})
    assert found == AskRefused("ambiguous")
    assert found.is_evidence


@behaviour("asks:attribution:outside-calls")
def test_an_ask_outside_any_call_is_refused_without_evidence() -> None:
    for candidates in ([], [call(1, can_ask=False)]):
        found = attribute(ASK, candidates, {})
        assert found == AskRefused("no call")
        assert not found.is_evidence


def test_roots_and_unknown_methods_are_never_passed_on() -> None:
    for method in ("roots/list", "ping", "tasks/get", "made/up"):
        found = attribute(AskFacts(method), [call(1)], {})
        assert found == AskRefused("not for agents")
        assert not found.is_evidence


@behaviour("asks:attribution:traceparent")
def test_the_context_of_a_call_coming_back_is_certain_among_many() -> None:
    many = [call(1), call(2, B), call(3)]
    assert attribute(traced(2), many, {}) == Attributed(B, (WireId(2),), by="trace")


@behaviour("asks:attribution:traceparent")
def test_a_server_with_its_own_tracer_is_known_by_the_trace_id() -> None:
    ask = AskFacts("elicitation/create", trace=TraceKey(key(2).trace, "f" * 16), ours=True)
    assert attribute(ask, [call(1), call(2, B)], {}) == Attributed(B, (WireId(2),), by="trace")


def test_two_sessions_under_one_trace_id_are_told_apart_by_span_only() -> None:
    shared = "a" * 32
    one, two = TraceKey(shared, "1" * 16), TraceKey(shared, "2" * 16)
    many = [call(1, A, trace=one), call(2, B, trace=two)]
    assert attribute(AskFacts("elicitation/create", trace=two), many, {}) == Attributed(
        B, (WireId(2),), by="trace"
    )
    other_span = AskFacts("elicitation/create", trace=TraceKey(shared, "3" * 16))
    assert attribute(other_span, many, {}) == AskRefused("ambiguous")


def test_a_question_of_an_answered_call_does_not_go_to_the_only_call_that_is_left() -> None:
    assert attribute(traced(1), [call(2, B)], {}) == AskRefused("no call")


def test_a_question_of_an_answered_call_does_not_go_to_another_agent_of_the_same_trace() -> None:
    agents = f"00-{'a' * 32}-{'b' * 16}-01"
    sent, _ = with_traceparent(ABSENT, LIFE, 1, agents)
    _, other = with_traceparent(ABSENT, LIFE, 2, agents)
    ask = facts_of("elicitation/create", sent, LIFE)
    assert attribute(ask, [call(2, B, trace=other)], {}) == AskRefused("no call")


def test_a_foreign_trace_context_says_nothing() -> None:
    assert attribute(traced(1, ours=False), [call(2, B)], {}) == Attributed(B, (WireId(2),), by="only call")


@behaviour("asks:attribution:task")
def test_a_task_names_its_call_before_all_else() -> None:
    ask = AskFacts("elicitation/create", related_task="T", trace=key(1), ours=True)
    assert attribute(ask, [call(1), call(2, B)], {"T": WireId(2)}) == Attributed(B, (WireId(2),), by="task")


@behaviour("asks:attribution:task")
def test_an_unknown_task_belongs_to_no_call() -> None:
    ask = AskFacts("elicitation/create", related_task="T")
    assert attribute(ask, [call(1)], {}) == AskRefused("no call")
    assert attribute(ask, [call(1)], {"T": WireId(8)}) == AskRefused("no call")


@behaviour("asks:in-flight:after-cancel")
def test_after_a_cancel_the_next_agent_is_not_asked() -> None:
    cancelled, next_one = call(1, A, over=True), call(2, B)
    assert attribute(ASK, [cancelled, next_one], {}) == AskRefused("ambiguous", tainted=True)
    assert attribute(ASK, [cancelled, next_one], {}, held=True) == AskRefused("ambiguous", tainted=True)
    assert attribute(traced(2), [cancelled, next_one], {}) == Attributed(B, (WireId(2),), by="trace")


def test_a_question_of_a_cancelled_call_is_refused_without_evidence() -> None:
    cancelled = call(1, A, over=True)
    for held in (False, True):
        for ask in (ASK, traced(1), AskFacts("elicitation/create", related_task="T")):
            found = attribute(ask, [cancelled], {"T": WireId(1)}, held=held)
            assert found == AskRefused("over", tainted=ask is ASK), "one that says whose it is taints nothing"
            assert not found.is_evidence
    assert attribute(traced(1), [cancelled, call(2, B)], {}) == AskRefused("over")
    assert attribute(ASK, [cancelled, call(2, A)], {}) == AskRefused("over", tainted=True), (
        "no guess, one session or not: another instance can answer"
    )


@behaviour("asks:in-flight:after-cancel")
def test_an_instance_that_one_session_holds_goes_on_asking_it_after_a_cancel() -> None:
    candidates = [call(1, A, over=True), call(2, A), call(3, A)]
    assert attribute(ASK, candidates, {}, held=True) == Attributed(
        A, (WireId(3), WireId(2)), by="only session"
    )


def test_a_cancelled_list_request_taints_nothing() -> None:
    assert attribute(ASK, [call(1, A, can_ask=False, over=True), call(2, B)], {}) == Attributed(
        B, (WireId(2),), by="only call"
    )


def test_the_facts_are_read_from_the_meta_of_the_request() -> None:
    meta = {"io.modelcontextprotocol/related-task": {"taskId": "T"}, "traceparent": mint(LIFE, 3)}
    found = facts_of("elicitation/create", RawJson(json.dumps(meta).encode()), LIFE)
    assert found == AskFacts("elicitation/create", "T", key(3), ours=True, whole=True)
    theirs = RawJson(b'{"traceparent":"00-%b-%b-01"}' % (b"a" * 32, b"b" * 16))
    assert facts_of("x", theirs, LIFE) == AskFacts("x", None, key_of(theirs), ours=False)


def test_meta_of_the_wrong_form_says_nothing() -> None:
    for raw in (
        b"",
        b"{}",
        b"[]",
        b'{"io.modelcontextprotocol/related-task":7}',
        b'{"io.modelcontextprotocol/related-task":{"taskId":7}}',
        b'{"traceparent":"00-zz"}',
    ):
        assert facts_of("x", RawJson(raw), LIFE) == AskFacts("x")


def test_an_agents_trace_that_carpool_kept_is_recognised_after_its_call() -> None:
    agents = f"00-{'a' * 32}-{'b' * 16}-01"
    sent, _ = with_traceparent(ABSENT, LIFE, 12, agents)
    ask = facts_of("elicitation/create", sent, LIFE)
    assert attribute(ask, [call(2, B)], {}) == AskRefused("no call")


# --- properties --------------------------------------------------------------------------------------------

sessions = st.sampled_from([SessionId(f"s{number}") for number in range(3)])
ids = st.sampled_from(["1" * 32, "2" * 32])
keys = st.builds(lambda trace, span: TraceKey(trace, span[:16]), ids, ids)
flights = st.lists(
    st.builds(
        InFlight,
        st.integers(1, 6).map(WireId),
        sessions,
        st.booleans(),
        st.none() | keys,
        st.booleans(),
    ),
    max_size=6,
    unique_by=lambda each: each.wire,
)
asks = st.builds(
    AskFacts,
    st.sampled_from(["sampling/createMessage", "elicitation/create"]),
    st.none() | st.sampled_from(["T", "U"]),
    st.none() | keys,
    st.booleans(),
)
task_tables = st.dictionaries(st.sampled_from(["T", "U"]), st.integers(1, 6).map(WireId), max_size=2)


@given(asks, flights, task_tables)
@settings(deadline=None, max_examples=150)
def test_an_asked_session_has_only_live_calls_at_the_instance(
    ask: AskFacts, candidates: list[InFlight], tasks: dict[str, WireId]
) -> None:
    found = attribute(ask, candidates, tasks)
    if isinstance(found, Attributed):
        live = {each.wire for each in candidates if each.session == found.session and not each.over}
        assert found.wires
        assert set(found.wires) <= live
        assert list(found.wires) == sorted(set(found.wires), reverse=True)


@behaviour("asks:attribution:refused")
@given(asks, flights, task_tables, st.booleans())
@settings(deadline=None, max_examples=150)
def test_an_ask_without_task_or_context_is_refused_while_another_session_may_be_meant(
    ask: AskFacts, candidates: list[InFlight], tasks: dict[str, WireId], held: bool
) -> None:
    found = attribute(ask, candidates, tasks, held=held)
    if isinstance(found, Attributed) and found.by in {"only call", "only session"}:
        assert {each.session for each in candidates if each.can_ask} == {found.session}
        assert held or not any(each.over for each in candidates if each.can_ask)


@given(asks, flights, task_tables, sessions)
@settings(deadline=None, max_examples=250)
def test_taking_other_sessions_away_never_changes_who_is_asked(
    ask: AskFacts, candidates: list[InFlight], tasks: dict[str, WireId], gone: SessionId
) -> None:
    before = attribute(ask, candidates, tasks)
    after = attribute(ask, [each for each in candidates if each.session != gone], tasks)
    if isinstance(before, Attributed) and before.session != gone:
        assert isinstance(after, Attributed)
        assert after.session == before.session


@behaviour("asks:trace:unforgeable")
@given(flights, keys, st.data())
@settings(deadline=None, max_examples=150)
def test_a_forged_equal_context_can_only_cost_an_answer(
    candidates: list[InFlight], context: TraceKey, data: st.DataObject
) -> None:
    """Whatever other agents claim as their trace, the context of a call gives its own session or nobody."""
    owner = InFlight(WireId(99), SessionId("owner"), can_ask=True, trace=context)
    ask = AskFacts("elicitation/create", trace=context, ours=True)
    found = attribute(ask, data.draw(st.permutations([*candidates, owner])), {})
    assert found == AskRefused("ambiguous") or (isinstance(found, Attributed) and found.session == "owner")
