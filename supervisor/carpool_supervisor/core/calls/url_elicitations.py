"""Who was sent to which URL, so that the notice that it is done reaches that agent only.

Owns, per instance, the session behind each elicitation id that is still out: from an elicitation in url mode
and from an error -32042 (MCP 2025-11-25, client/elicitation, "URL Mode"). The notice names nothing but the
id. An id that two sessions were given is nobody's: the notice would be a guess.

Invariants: at most `MAX_ELICITATIONS` per instance, the oldest forgotten first; a notice reaches a session
once per id; nothing is kept of a session or an instance that is gone.
Knows nothing of: URLs (nobody here opens one), what agents can be told (the broker).
"""

from collections.abc import Callable
from typing import Final

from carpool_protocol.ids import InstanceId, SessionId
from carpool_protocol.link.messages import ElicitationFinished
from carpool_supervisor.core.model.effects import AnyEffect
from carpool_supervisor.core.model.events import ElicitationCompleted

MAX_ELICITATIONS: Final = 1024
"""Per instance. A server that never says that they are done would fill our memory."""


class UrlElicitations:
    """The elicitation ids that are out, of all instances."""

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
        """It is done: whoever was sent there hears of it; an id that is not out says nothing."""
        session = self._sent.get(instance, {}).pop(event.elicitation, None)
        if session is not None:
            self._emit(ElicitationFinished(session, event.params))

    def session_closed(self, session: SessionId) -> None:
        """Its ids stay as nobody's: who is given one of them later must not hear of the earlier errand."""
        for out in self._sent.values():
            for elicitation, whose in out.items():
                if whose == session:
                    out[elicitation] = None

    def instance_lost(self, instance: InstanceId) -> None:
        """It says nothing any more."""
        self._sent.pop(instance, None)

    def abandon_all(self) -> None:
        """All sessions are gone, and new ones may have their names."""
        for out in self._sent.values():
            out.update(dict.fromkeys(out))

    def check(self) -> None:
        """Assert every invariant."""
        assert all(len(out) <= MAX_ELICITATIONS for out in self._sent.values())
