"""What the broker's journal tells of one call, from the request on.

Owns the way from a call to the request that it came with: until a call has left it has no mention in the
journal but as its agent's request. Knows nothing of: how a story is worded.
"""

from collections.abc import Callable
from typing import Any

from carpool_protocol.ids import CallId, SessionId

Entry = dict[str, Any]
StoryOf = Callable[[int | str, type[int | str]], list[Entry]]
"""`Pump.story`."""


def recounted(story: StoryOf, call: CallId) -> list[Entry]:
    """The entries of this call, and the one with which it came, oldest first."""
    found = story(call, CallId)
    said = next((it for each in found for it in each["effects"] if _is_call(it, call)), None)
    if said is None or any(each["event"].get("type") == "AgentCalled" for each in found):
        return found
    session = SessionId(str(said.get("session", "")).partition(".")[0])
    came = [
        each
        for each in story(session, SessionId)
        if each["event"].get("type") == "AgentCalled"
        and each["event"].get("id") == said.get("request")
        and each["at"] <= found[0]["at"]
    ]
    return [*came[-1:], *found]


def _is_call(effect: Entry, call: CallId) -> bool:
    return effect.get("type") == "Call" and effect.get("call") == call
