"""Budgets that the tokens of one door share: none takes from the others what the door keeps for them."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from carpool.http.core.access import ANY_PRINCIPAL, GENERATED_PRINCIPAL, AccessRules, hash_of
from carpool.http.core.kept_messages import MAX_KEPT_PARAMS_BYTES
from carpool.http.core.shared_budgets import SharedBudget
from carpool_protocol.carrier.streams import OpenStream, StreamOpened
from tests.behaviours import behaviour
from tests.client.http.door_core_rig import DoorCoreRig, modern, modern_headers, notification, request

ANN, BOB = {"authorization": "Bearer a"}, {"authorization": "Bearer b"}


def fill(budget: SharedBudget, principal: str, size: int = 1) -> int:
    """Reserve until there is no room; how often there was."""
    taken = 0
    while budget.share_of(principal).reserve(size):
        taken += 1
    return taken


@behaviour("http:shares:kept")
def test_a_principal_gets_half_of_a_budget_and_the_next_half_of_the_rest() -> None:
    budget = SharedBudget(80)
    assert [fill(budget, name, 10) for name in ("ann", "bob", "cid")] == [4, 2, 1]
    budget.share_of("ann").release(40)
    assert fill(budget, "bob", 10) == 2, "it grows with what others give back"


def test_a_principal_is_full_once_it_has_more_than_its_share_and_not_before() -> None:
    share = SharedBudget(80).share_of("ann")
    full = []
    for more in (40, 1, -1):
        share.count(more)
        full.append(share.is_full)
    assert full == [False, True, False], "half of it is its share; what came must be kept, and nothing more"


@pytest.mark.parametrize("principal", [ANY_PRINCIPAL, GENERATED_PRINCIPAL])
def test_where_there_is_one_user_its_programs_get_all_of_a_budget(principal: str) -> None:
    budget = SharedBudget(80)
    assert fill(budget, principal) == 80


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["ann", "bob", ANY_PRINCIPAL]), st.integers(-30, 60)), max_size=40))
def test_a_budget_is_never_exceeded_and_counts_what_each_principal_has(steps: list[tuple[str, int]]) -> None:
    budget, used = SharedBudget(100), Counter[str]()
    for principal, more in steps:
        share = budget.share_of(principal)
        if more < 0:
            less = min(-more, used[principal])
            share.release(less)
            used[principal] -= less
        elif share.reserve(more):
            used[principal] += more
        budget.check(used)
        assert budget.used <= budget.size


def two_tokens() -> DoorCoreRig:
    return DoorCoreRig(gate=AccessRules(tokens={"ann": hash_of("a"), "bob": hash_of("b")}))


def begin(desk: DoorCoreRig, session: str, token: dict[str, str], **params: object) -> tuple[str, int]:
    """A session that a later broker can resume."""
    x = desk.post(request(1, "initialize", protocolVersion="2025-11-25", **params), **token)
    s = desk.word()[0]
    desk.say(s, StreamOpened(session, f"s-{session}", "0.mac", "e1"))
    desk.answer(s, x, 1, protocolVersion="2025-11-25")
    desk.post(notification("notifications/initialized"), mcp_session_id=session, **token)
    desk.told.clear()
    return session, s


@behaviour("http:shares:kept")
def test_a_token_that_leaves_much_open_takes_from_no_other_its_survival_of_a_dead_broker() -> None:
    desk = two_tokens()
    desk.core._table._budget.size = 40_000
    ann, _ = begin(desk, "ann", ANN)
    floods = [
        desk.post(request(n, "tools/call", x="x" * 1000), mcp_session_id=ann, **ANN) for n in range(2, 102)
    ]
    desk.told.clear()
    bob, s = begin(desk, "bob", BOB)
    call = desk.post(request(2, "tools/call", x="x" * 1000), mcp_session_id=bob, **BOB)
    stateless = desk.post(modern(1, "prompts/get", name="p"), **modern_headers("prompts/get", "p"), **BOB)
    shared = next(s for s, message, _ in desk.told if isinstance(message, OpenStream))
    desk.say(shared, StreamOpened("x", "s6", "0.mac", "e1"))
    desk.take(desk.core.broker_lost(desk.now))
    lost = [x for x in floods if x in desk.answers]
    assert 0 < len(lost) < len(floods)
    assert {desk.status(x) for x in lost} == {502}
    desk.take(desk.core.broker_connected(desk.now))
    desk.answer(s, call, 2)
    desk.answer(shared, stateless, 1)
    assert (desk.status(call), desk.status(stateless)) == (200, 200)
    assert desk.post(request(3, "ping"), mcp_session_id=bob, **BOB) not in desk.answers


@behaviour("http:shares:kept")
def test_a_session_with_a_long_greeting_is_not_kept_for_the_next_broker_and_others_are() -> None:
    desk = two_tokens()
    long, _ = begin(desk, "long", ANN, pad="x" * MAX_KEPT_PARAMS_BYTES)
    short, _ = begin(desk, "short", ANN, pad="x" * (MAX_KEPT_PARAMS_BYTES // 2))
    assert desk.core._table._budget.used < MAX_KEPT_PARAMS_BYTES
    desk.take(desk.core.broker_lost(desk.now))
    desk.take(desk.core.broker_connected(desk.now))
    assert desk.status(desk.post(request(2, "ping"), mcp_session_id=long, **ANN)) == 404
    assert desk.post(request(2, "ping"), mcp_session_id=short, **ANN) not in desk.answers


@behaviour("http:shares:kept")
@pytest.mark.parametrize("transport", ["2025", "2025 detached", "2024"])
def test_nothing_is_kept_of_requests_that_their_client_cancelled(transport: str) -> None:
    desk = DoorCoreRig()
    if transport == "2024":
        desk.send("GET", "/sse", accept="text/event-stream")
        desk.say(desk.word()[0], StreamOpened("sid"))
        path, named = "/messages?session=sid", {}
    else:
        begin(desk, "sid", {})
        path, named = "/mcp", {"mcp_session_id": "sid"}
    stream = desk.core._table.sessions["sid"]
    used = desk.core._table._budget.used
    for n in range(2, 12):
        x = desk.post(request(n, "tools/list", pad="x" * 1000), path, **named)
        if transport == "2025 detached":
            desk.gone(x)
        assert desk.core._table._budget.used > used + 2000, "the request, and what its answer would keep"
        desk.post(notification("notifications/cancelled", requestId=n), path, **named)
        assert not stream.kept.pending
        assert desk.core._table._budget.used == used


@behaviour("http:shares:kept")
def test_of_a_cancelled_array_the_requests_that_are_not_cancelled_are_kept() -> None:
    desk = DoorCoreRig()
    _, s = desk.initialized("2025-03-26", "sid")
    kept = desk.core._table.sessions["sid"].kept
    before = len(kept.lines())
    x = desk.post([request(n, "resources/subscribe", uri=f"a:{n}") for n in (2, 3)], mcp_session_id="sid")
    desk.post(notification("notifications/cancelled", requestId=2), mcp_session_id="sid")
    assert [*kept.pending[x]] == [b"3"]
    desk.answer(s, x, 3)
    assert b"a:3" in kept.lines()[before]
    assert not kept.pending
    assert len(kept.lines()) == before + 1
