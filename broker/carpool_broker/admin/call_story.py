"""The method `carpool/story`, which `carpool story` uses: the entries of both journals about one call.

Owns the way from a call to its agent's request, and back: before a call is sent, the broker's journal
mentions only that request. Another node of a cluster knows a call by its session and request. The journals
are searched for one story at a time, because each search takes both processes milliseconds. Knows nothing of:
the text of a story.
"""

from base64 import b64encode
from collections.abc import Callable
from typing import Any

import msgspec
import trio
from msgspec import Struct

from carpool_broker.admin.methods import ControlError, Methods
from carpool_broker.admin.supervisor_queries import SupervisorQueries
from carpool_broker.storage.audit_log import AuditLog
from carpool_protocol.ids import CallId, SessionId, call_name, call_named
from carpool_protocol.link.messages import JournalRead, ReadJournal

STORY_TIMEOUT_S = 5.0

StoryEntry = dict[str, Any]
FindStory = Callable[[int | str, type[int | str]], list[StoryEntry]]
"""The type of `CorePump.story`."""


class StoryParams(Struct):
    """Params of `carpool/story`: the name of a call, or a session and the id of its request."""

    call: str = ""
    session: str = ""
    request: int = 0


class Stories:
    """Answers `carpool/story` for one broker."""

    def __init__(self, inquiries: SupervisorQueries, story: FindStory, audit: AuditLog | None) -> None:
        self._inquiries = inquiries
        self._story_of = story
        self._audit = audit
        self._one_at_a_time = trio.CapacityLimiter(1)

    def register(self, methods: Methods) -> None:
        """Add `carpool/story` to the table."""
        methods.add("carpool/story", StoryParams, lambda _, params: self.story(params))

    async def story(self, params: StoryParams) -> dict[str, Any]:
        """`{"call", "run", "broker", "supervisor", "pids", "nodes"}`: the entries that both journals still
        hold; `nodes`: of each instance that is or was a session at another node, the node and the session.
        """
        async with self._one_at_a_time:
            return await self._find(params)

    async def _find(self, params: StoryParams) -> dict[str, Any]:
        if params.session:
            call = call_of_request(self._story_of, SessionId(params.session), params.request)
        else:
            call = call_named(params.call)
        if call is None and params.session:
            return self._answer(None, [], [])
        if call is None:
            raise ControlError("bad_params", "A call is named as in errors and in the audit: c17, or c1.17.")
        found = await self._inquiries.query_all(lambda token: ReadJournal(token, call), STORY_TIMEOUT_S)
        journals = [each for each in found.values() if isinstance(each, JournalRead)]
        return self._answer(call, call_entries(self._story_of, call), journals)

    def _answer(
        self, call: CallId | None, entries: list[StoryEntry], journals: list[JournalRead]
    ) -> dict[str, Any]:
        return {
            "call": "" if call is None else call_name(call),
            "run": "" if self._audit is None else self._audit.run,
            "broker": entries,
            "supervisor": [
                entry
                for each in journals
                for entry in msgspec.json.decode(each.entries, type=list[msgspec.Raw])
            ],
            "pids": {str(instance): pid for each in journals for instance, pid in each.pids.items()},
            "nodes": {
                str(instance): {"node": there.node, "session": there.session}
                for each in journals
                for instance, there in each.nodes.items()
            },
        }


def call_entries(story: FindStory, call: CallId) -> list[StoryEntry]:
    """The entries of this call and the one of its request, oldest first."""
    found = story(call, CallId)
    sent = next((it for each in found for it in each["effects"] if _is_call(it, call)), None)
    if sent is None or any(each["event"].get("type") == "CallRequested" for each in found):
        return found
    session = SessionId(str(sent.get("session", "")).partition(".")[0])
    received = [
        each
        for each in story(session, SessionId)
        if each["event"].get("type") == "CallRequested"
        and each["event"].get("id") == sent.get("request")
        and each["at"] <= found[0]["at"]
    ]
    return [*received[-1:], *found]


def call_of_request(story: FindStory, session: SessionId, request: int) -> CallId | None:
    """Return the last call that was sent for this request; None: the journal does not hold it."""
    wanted = b64encode(b"%d" % request).decode()  # a journal renders bytes so
    sent = [
        it["call"]
        for each in story(session, SessionId)
        for it in each["effects"]
        if it.get("type") == "Call"
        and str(it.get("session", "")).partition(".")[0] == session
        and it.get("request") == wanted
    ]
    return CallId(sent[-1]) if sent else None


def _is_call(effect: StoryEntry, call: CallId) -> bool:
    return effect.get("type") == "Call" and effect.get("call") == call
