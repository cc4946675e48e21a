"""A call is found by its session and the id of its request, as another node knows it."""

from base64 import b64encode
from typing import Any

import trio
import trio.testing

from carpool_broker.admin.call_story import Stories, StoryParams, call_of_request
from carpool_broker.admin.supervisor_queries import SupervisorQueries
from carpool_protocol.ids import CallId, RawJson, SessionId
from carpool_protocol.link.messages import AnyMessage, JournalRead, ReadJournal
from tests.behaviours import behaviour

ME = SessionId("s3")


def sent(call: int, session: str, request: bytes) -> dict[str, Any]:
    effect = {"type": "Call", "call": call, "session": session, "request": b64encode(request).decode()}
    return {"at": 1.0, "event": {"type": "CallRequested"}, "effects": [effect]}


JOURNAL = [sent(4, "s3", b"17"), sent(5, "s31", b"18"), sent(6, "s3", b"19"), sent(7, "s3.2", b"19")]


def story(subject: int | str, kind: type[int | str]) -> list[dict[str, Any]]:
    assert (subject, kind) == (ME, SessionId)
    return JOURNAL


@behaviour("cluster:story")
def test_the_last_call_of_a_request_of_the_session_is_found_and_no_other_session_s() -> None:
    assert call_of_request(story, ME, 17) == CallId(4)
    assert call_of_request(story, ME, 19) == CallId(7), "a session may have parts"
    assert call_of_request(story, ME, 18) is None
    assert call_of_request(story, ME, 1) is None


@behaviour("status:asked-once")
async def test_the_journals_are_searched_for_one_story_at_a_time(
    autojump_clock: trio.testing.MockClock,
) -> None:
    searched: list[CallId] = []

    def send(message: AnyMessage) -> None:
        assert isinstance(message, ReadJournal)
        searched.append(message.call)

    queries = SupervisorQueries(send, lambda: {"a": 1})
    stories = Stories(queries, lambda _subject, _kind: [], None)
    told: list[str] = []

    async def ask(call: str) -> None:
        told.append((await stories.story(StoryParams(call=call)))["call"])

    async with trio.open_nursery() as nursery:
        for number in range(1, 4):
            nursery.start_soon(ask, f"c{number}")
        for token in range(1, 4):
            await trio.testing.wait_all_tasks_blocked()
            assert (len(searched), len(told)) == (token, token - 1)
            queries.answer_received("a", JournalRead(token, RawJson(b"[]"), {}))
    assert sorted(told) == ["c1", "c2", "c3"]
