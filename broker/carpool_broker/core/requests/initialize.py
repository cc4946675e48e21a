"""How an agent is met, by `initialize` or by its first request of the stateless era.

Owns what becomes known of a session by that: its era, version, name, what it can be asked, and so which
servers it sees (rule 12). A connection may speak both eras, as dual-era agents do while they find out which
one is served; only one that has settled for the stateless era is refused a greeting. Sources: MCP 2025-11-25,
basic/lifecycle; MCP 2026-07-28, basic/versioning.

Knows nothing of: what is listed and called, how it is worded.
"""

from collections.abc import Callable
from typing import Final

import msgspec

from carpool_broker.core.configuration.session_views import SessionViews
from carpool_broker.core.model.answers import error_reply
from carpool_broker.core.model.capabilities import StatelessAgent
from carpool_broker.core.model.effects import AnswerInitialize, AnyEffect, ReplyStateless
from carpool_broker.core.model.events import InitializeRequested
from carpool_broker.core.model.session import Session
from carpool_broker.core.requests.lists import announced_features
from carpool_broker.core.requests.roots import AgentRoots
from carpool_protocol.ids import RawJson
from carpool_protocol.wire.downgrade import STATELESS

VERSIONS: Final = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")
"""The versions of the handshake era, the newest first, which answers a version that is not known."""

UNSUPPORTED_VERSION: Final = -32022


class Initialization:
    """How agents are met. `class_changed` is called when a session sees other servers from now on."""

    def __init__(
        self,
        session_views: SessionViews,
        roots: AgentRoots,
        out: Callable[[AnyEffect], None],
        classed: Callable[[Session], None],
    ) -> None:
        self._session_views = session_views
        self._roots = roots
        self._emit = out
        self._class_changed = classed
        """Called when the session sees from now on what its class of agents sees."""

    def initialize(self, session: Session, event: InitializeRequested) -> None:
        """Answer `initialize`."""
        if session.greeted:
            why = "This session has been initialized before."
            self._emit(error_reply(session, event.id, None, "bad_params", detail=why))
            return
        if session.stateless:
            self._emit(_unsupported(session, event))
            return
        session.greeted = True
        session.version = event.version if event.version in VERSIONS else VERSIONS[0]
        if session.carrier != "node" or not session.agent:  # there the name is the node's
            session.agent = event.agent or session.agent
        session.counters = None
        session.capabilities = event.capabilities
        if event.capabilities.asking:
            self._join_asking_class(session)
        self._roots.capabilities_known(session)
        self._session_views.discover_catalogs(session, self._session_views.view_of(session))
        features = announced_features(self._session_views.view_of(session))
        said = self._session_views.instructions(session)
        self._emit(AnswerInitialize(session.id, event.id, session.version, said, features))

    def first_request(self, session: Session, by: StatelessAgent, *, settles: bool) -> None:
        """Note a request of the stateless era. `settles`: it is more than a look at what is there."""
        if by.agent and not session.agent:
            session.agent, session.counters = by.agent, None
        if settles and not session.stateless and not session.greeted:
            session.stateless = True
            self._class_changed(session)
        if by.capabilities.asking and not session.asking:
            self._join_asking_class(session)

    def _join_asking_class(self, session: Session) -> None:
        """Show this session the servers that were greeted for agents that can be asked (docs/rules.md, rule
        12).
        """
        session.asking = True
        self._class_changed(session)


def _unsupported(session: Session, event: InitializeRequested) -> ReplyStateless:
    """Refuse a version. MCP 2026-07-28, basic/versioning: the error tells the supported ones."""
    error = {
        "code": UNSUPPORTED_VERSION,
        "message": "This connection speaks the stateless protocol, which has no initialize.",
        "data": {"supported": [STATELESS], "requested": event.version},
    }
    body = RawJson(msgspec.json.encode(error))
    return ReplyStateless(session.id, event.id, is_error=True, body=body, method="initialize")
