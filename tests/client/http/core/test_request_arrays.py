"""Arrays of messages over HTTP: each request has one answer, also where others are cancelled."""

from typing import Any

import pytest

from carpool.http.core import event_streams
from carpool.http.core.access import AccessRules, hash_of
from carpool.http.core.effects import HttpRules
from carpool.http.core.event_streams import MAX_WAITING_BYTES
from carpool.http.core.streams import Exchange, OwnRequest
from carpool_protocol.carrier.streams import MESSAGE_CAP_BYTES, ExchangeEnded, StreamClosed
from tests.behaviours import behaviour
from tests.client.http.door_core_rig import DoorCoreRig, Json, notification, request


@pytest.fixture
def desk() -> DoorCoreRig:
    return DoorCoreRig()


@behaviour("http:arrays")
def test_arrays_are_for_one_version_only_and_are_answered_as_arrays(desk: DoorCoreRig) -> None:
    session, s = desk.initialized("2025-03-26")
    both = [request(2, "ping"), request(3, "ping"), notification("notifications/progress")]
    x = desk.post(both, mcp_session_id=session)
    desk.answer(s, x, 3)
    assert x not in desk.answers
    desk.answer(s, x, 2)
    assert [each["id"] for each in desk.body(x)] == [3, 2]
    newer, _ = desk.initialized("2025-06-18", "sid-2")
    assert desk.status(desk.post(both, mcp_session_id=newer)) == 400


@behaviour("http:arrays")
def test_one_cancelled_request_of_an_array_does_not_keep_the_others_waiting(desk: DoorCoreRig) -> None:
    session, s = desk.initialized("2025-03-26")
    x = desk.post([request(2, "ping"), request(3, "ping")], mcp_session_id=session)
    desk.post(notification("notifications/cancelled", requestId=2), mcp_session_id=session)
    desk.answer(s, x, 3)
    assert [each["id"] for each in desk.body(x)] == [3]


@behaviour("http:arrays")
def test_a_cancel_that_crossed_its_answer_takes_no_answer_from_others_of_an_array(
    desk: DoorCoreRig,
) -> None:
    session, s = desk.initialized("2025-03-26")
    x = desk.post([request(ident, "ping") for ident in (2, 3, 4)], mcp_session_id=session)
    desk.answer(s, x, 2)
    desk.post(notification("notifications/cancelled", requestId=2), mcp_session_id=session)
    desk.answer(s, x, 3)
    assert x not in desk.answers
    desk.answer(s, x, 4)
    assert [each["id"] for each in desk.body(x)] == [2, 3, 4]


@behaviour("http:arrays")
@pytest.mark.parametrize("begun", [False, True])
def test_the_late_answer_to_a_cancelled_request_takes_no_answer_from_others_of_its_array(
    desk: DoorCoreRig, begun: bool
) -> None:
    session, s = desk.initialized("2025-03-26")
    x = desk.post([request(ident, "ping") for ident in (2, 3, 4)], mcp_session_id=session)
    if begun:
        desk.wait(16.0)
    desk.post(notification("notifications/cancelled", requestId=2), mcp_session_id=session)
    desk.answer(s, x, 2)  # the broker had answered it before it read the cancel
    desk.answer(s, x, 3)
    assert x not in desk.answers
    assert x not in desk.ended
    desk.answer(s, x, 4)
    answered = desk.events(x) if begun else desk.body(x)
    assert [each["id"] for each in answered] == [3, 4]


@behaviour("http:arrays")
def test_an_array_of_which_only_cancelled_requests_are_left_ends_without_their_answers(
    desk: DoorCoreRig,
) -> None:
    session, s = desk.initialized("2025-03-26")
    x = desk.post([request(2, "ping"), request(3, "ping")], mcp_session_id=session)
    for ident in (2, 3):
        desk.post(notification("notifications/cancelled", requestId=ident), mcp_session_id=session)
    desk.answer(s, x, 2)
    assert x not in desk.answers
    desk.say(s, ExchangeEnded(x))
    assert desk.ended == [x]


@behaviour("http:arrays")
@pytest.mark.parametrize("array", [False, True])
def test_an_error_without_an_id_answers_the_line_that_the_broker_could_not_read(
    desk: DoorCoreRig, array: bool
) -> None:
    session, s = desk.initialized("2025-03-26")
    asked = request(2, "ping")
    x = desk.post([asked] if array else asked, mcp_session_id=session)
    desk.error(s, x, -32600, None)
    found = desk.body(x)[0] if array else desk.body(x)
    assert (desk.status(x), found["id"], found["error"]["code"]) == (200, None, -32600)


@behaviour("http:arrays")
def test_of_an_array_whose_session_ends_each_request_has_one_answer_in_whatever_order(
    desk: DoorCoreRig,
) -> None:
    session, s = desk.initialized("2025-03-26")
    x = desk.post([request(2, "ping"), request(3, "ping")], mcp_session_id=session)
    desk.wait(16.0)
    desk.answer(s, x, 3)
    desk.say(s, StreamClosed("carpool ends"))
    assert [(each["id"], "error" in each) for each in desk.events(x)] == [(3, False), (2, True)]


_LONG = "x" * 700_000


def _array_of(count: int, method: str = "tools/call") -> list[Json]:
    return [request(ident, method, name="t") for ident in range(2, 2 + count)]


@behaviour("http:arrays")
def test_an_array_with_long_answers_becomes_a_stream_that_its_client_reads_in_turns(
    desk: DoorCoreRig,
) -> None:
    session, s = desk.initialized("2025-03-26")
    x = desk.post(_array_of(5), mcp_session_id=session)
    for ident in (2, 3, 4, 5, 6):
        desk.answer(s, x, ident, text=_LONG)
    assert [each["id"] for each in desk.events(x)] == [2]  # no more before its client has read that
    desk.take(desk.core.client_blocked(x, desk.now))
    desk.continue_turns()
    desk.wait(16.0)  # neither is a comment, which would make it one that leaves much unread
    assert len(desk.streams[x]) == 1
    desk.take(desk.core.client_has_room(x))
    assert [each["id"] for each in desk.events(x)] == [2, 3]
    assert x not in desk.ended
    desk.continue_turns()
    assert [each["id"] for each in desk.events(x)] == [2, 3, 4, 5, 6]
    assert desk.ended == [x]


@behaviour("http:arrays")
def test_short_answers_to_an_array_are_one_text(desk: DoorCoreRig) -> None:
    session, s = desk.initialized("2025-03-26")
    x = desk.post(_array_of(100), mcp_session_id=session)
    for ident in range(2, 102):
        desk.answer(s, x, ident, text="x" * 10_000)
    assert len(desk.body(x)) == 100


@behaviour("http:arrays")
def test_answers_to_arrays_that_nobody_reads_have_a_bound_and_each_request_still_has_an_answer() -> None:
    tokens = {"ann": hash_of("a"), "bob": hash_of("b")}
    desk = DoorCoreRig(gate=AccessRules(tokens=tokens))
    session, s = desk.initialized("2025-03-26", authorization="Bearer a")
    asked = 150
    x = desk.post(_array_of(asked), mcp_session_id=session, authorization="Bearer a")
    desk.answer(s, x, 2, text=_LONG)
    desk.answer(s, x, 3, text=_LONG)
    desk.take(desk.core.client_blocked(x, desk.now))
    for ident in range(4, asked + 2):
        desk.answer(s, x, ident, text=_LONG)
    desk.take(desk.core.client_has_room(x))
    desk.continue_turns()
    answers = desk.events(x)
    assert sorted(each["id"] for each in answers) == [*range(2, asked + 2)]
    assert desk.ended == [x]
    whole = [each for each in answers if "text" in each["result"]]
    assert MAX_WAITING_BYTES * 0.4 < len(whole) * len(_LONG) < MAX_WAITING_BYTES * 0.6
    refused = next(each["result"] for each in answers if "text" not in each["result"])
    assert refused["_meta"]["carpool/error"]["code"] == "answer_too_large"
    assert refused["isError"]


@behaviour("http:arrays")
def test_what_waits_for_a_client_that_has_left_is_forgotten_and_can_be_fetched_as_far_as_it_is_kept(
    desk: DoorCoreRig,
) -> None:
    session, s = desk.initialized("2025-03-26")
    x = desk.post(_array_of(4), mcp_session_id=session)
    for ident in (2, 3, 4):
        desk.answer(s, x, ident, text=_LONG)
    desk.gone(x)  # the check that ends each step asserts what counts as waiting
    again = desk.get(session, last_event_id=f"{x}-2")
    desk.answer(s, x, 5)
    desk.continue_turns()
    assert [each["id"] for each in desk.events(again)] == [4, 5]
    assert desk.ended == [again]


@behaviour("http:arrays")
@pytest.mark.parametrize("has_begun", [False, True])
def test_an_array_whose_session_ends_keeps_what_its_client_has_not_read(
    desk: DoorCoreRig, *, has_begun: bool
) -> None:
    session, s = desk.initialized("2025-03-26")
    x = desk.post(_array_of(4), mcp_session_id=session)
    for ident in (2, 3, 4) if has_begun else (2,):
        desk.answer(s, x, ident, text=_LONG)
    desk.say(s, StreamClosed("carpool ends"))
    desk.continue_turns()
    if has_begun:
        assert [(each["id"], "error" in each) for each in desk.events(x)] == [
            (2, False),
            (3, False),
            (4, False),
            (5, True),
        ]
        assert desk.ended == [x]
    else:
        assert desk.status(x) == 404


@behaviour("http:arrays")
def test_a_door_that_answers_with_json_only_refuses_what_is_too_long_for_one_text() -> None:
    desk = DoorCoreRig(HttpRules(json_response=True))
    session, s = desk.initialized("2025-03-26")
    x = desk.post(_array_of(20), mcp_session_id=session)
    for ident in range(2, 22):
        desk.answer(s, x, ident, text=_LONG)
    answers = desk.body(x)
    assert [each["id"] for each in answers] == [*range(2, 22)]
    whole = [each for each in answers if "text" in each["result"]]
    assert len(whole) == MESSAGE_CAP_BYTES // len(_LONG)


@behaviour("http:arrays")
def test_questions_to_a_client_that_does_not_read_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_streams, "MAX_WAITING_BYTES", 1000)
    desk = DoorCoreRig()
    session, s = desk.initialized("2025-03-26")
    x = desk.post(_array_of(2), mcp_session_id=session)
    desk.told.clear()
    desk.tell(s, notification("notifications/progress"), x)
    desk.take(desk.core.client_blocked(x, desk.now))
    desk.tell(s, request("a", "sampling/createMessage", text="x" * 2000), x)
    _, refused, _ = desk.heard()
    assert (refused["id"], "error" in refused) == ("a", True)
    desk.take(desk.core.client_has_room(x))
    assert len(desk.events(x)) == 1


@behaviour("http:arrays")
def test_what_is_there_for_an_array_counts_no_longer_once_its_client_has_left(desk: DoorCoreRig) -> None:
    session, s = desk.initialized("2025-03-26")
    x = desk.post(_array_of(2), mcp_session_id=session)
    desk.answer(s, x, 2, text="x")
    desk.gone(x)  # the check that ends each step compares what counts with what is there
    assert x not in desk.answers


@behaviour("http:turns")
def test_a_cancel_finds_its_request_without_a_look_at_all_that_are_open(
    desk: DoorCoreRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, _ = desk.initialized()
    walks: list[str] = []

    class Walked(dict[int, Exchange | OwnRequest]):
        def items(self) -> Any:
            walks.append("items")
            return super().items()

        def values(self) -> Any:
            walks.append("values")
            return super().values()

    stream = desk.core._table.sessions[session]
    for ident in range(2, 200):
        desk.post(request(ident, "tools/call", name="n"), mcp_session_id=session)
    monkeypatch.setattr(desk.core, "check", lambda: None)  # it looks at all
    stream.exchanges = Walked(stream.exchanges)
    for ident in [5, *range(1000, 1100)]:
        desk.post(notification("notifications/cancelled", requestId=ident), mcp_session_id=session)
    assert len(walks) == 1
    open_requests = [len(each.lines) for each in stream.exchanges.values()]
    assert (open_requests.count(0), open_requests.count(1)) == (1, 197)


@behaviour("http:arrays")
def test_a_cancel_finds_requests_that_were_opened_after_the_one_before(desk: DoorCoreRig) -> None:
    session, s = desk.initialized("2025-03-26")
    for first in (2, 4):
        x = desk.post([request(n, "ping") for n in (first, first + 1)], mcp_session_id=session)
        desk.post(notification("notifications/cancelled", requestId=first), mcp_session_id=session)
        desk.answer(s, x, first + 1)
        assert [each["id"] for each in desk.body(x)] == [first + 1]
