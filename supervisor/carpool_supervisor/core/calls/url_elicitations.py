"""URL elicitations: the session that was sent to each URL, so that only its agent is told when it is done.

Owns, per instance, the session behind each open elicitation id: from an elicitation in url mode and from an
error -32042 (MCP 2025-11-25, client/elicitation, "URL Mode"). The notification names nothing but the id. An
id that two sessions were given belongs to neither, because telling one would be a guess.

Invariants: at most `MAX_ELICITATIONS` per instance, the oldest are forgotten first; a session is told once
per id; nothing is kept of a session or an instance that is gone. Knows nothing of: URLs (carpool opens none),
capabilities of agents (the broker).
"""

from collections.abc import Callable
from typing import Final

import msgspec

from carpool_protocol.ids import InstanceId, RawJson, SessionId
from carpool_protocol.link.messages import ElicitationFinished
from carpool_supervisor.core.model.effects import AnyEffect
from carpool_supervisor.core.model.events import MAX_NOTICE_BYTES, ElicitationCompleted

MAX_ELICITATIONS: Final = 1024
"""Per instance. A server that never reports their end would fill our memory."""


class UrlElicitations:
    """The open elicitation ids of all instances."""

    def __init__(self, out: Callable[[AnyEffect], None]) -> None:
        self._emit = out
        self._sent: dict[InstanceId, dict[str, SessionId | None]] = {}

    def elicitation_sent(self, instance: InstanceId, elicitation: str, session: SessionId) -> None:
        """This session was sent to the URL of this id."""
        out = self._sent.setdefault(instance, {})
        others = elicitation in out and out[elicitation] != session
        out.pop(elicitation, None)  # the newest last
        out[elicitation] = None if others else session
        if len(out) > MAX_ELICITATIONS:
            del out[next(iter(out))]

    def elicitation_completed(self, instance: InstanceId, event: ElicitationCompleted) -> None:
        """An elicitation is done: tell its session. An id that is not open is ignored."""
        session = self._sent.get(instance, {}).pop(event.elicitation, None)
        if session is not None:
            params = event.params
            if len(params) > MAX_NOTICE_BYTES:  # the id says it all
                params = RawJson(msgspec.json.encode({"elicitationId": event.elicitation}))
            self._emit(ElicitationFinished(session, params))

    def session_closed(self, session: SessionId) -> None:
        """Its ids stay without a session: a session that gets one of them later must not hear of the earlier
        elicitation.
        """
        for out in self._sent.values():
            for elicitation, whose in out.items():
                if whose == session:
                    out[elicitation] = None

    def instance_lost(self, instance: InstanceId) -> None:
        """Forget the ids of an instance that is gone."""
        self._sent.pop(instance, None)

    def abandon_all(self) -> None:
        """Forget all sessions: they are gone, and new ones may have their names."""
        for out in self._sent.values():
            out.update(dict.fromkeys(out))

    def check(self) -> None:
        """Assert every invariant."""
        assert all(len(out) <= MAX_ELICITATIONS for out in self._sent.values())
