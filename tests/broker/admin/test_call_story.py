"""A call is found by its session and the id of its request, as another node knows it."""

from base64 import b64encode
from typing import Any

from carpool_broker.admin.call_story import call_of_request
from carpool_protocol.ids import CallId, SessionId
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
