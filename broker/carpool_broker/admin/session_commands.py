"""Operators' requests about whole sessions: `carpool/disconnect`.

Owns which sessions an operator may end, and the sentence that the agent's carrier is told.

Knows nothing of: connections, and how a session ends there (`transport.agent_server`).
"""

import logging
from collections.abc import Callable
from typing import Any, Final

from msgspec import Struct

from carpool_broker.admin.methods import Act, ControlError, Methods
from carpool_broker.core.broker import BrokerCore
from carpool_protocol.ids import SessionId

log = logging.getLogger("carpool.broker")

Disconnect = Callable[[SessionId, str], bool]
"""Ends a session and tells its carrier this sentence. False: the session has no connection here."""

BY_OPERATOR: Final = "an operator has disconnected this session (`carpool disconnect`)"

NO_SUCH_SESSION: Final = "No agent has a session with this id; `carpool status` lists the sessions."


class DisconnectParams(Struct):
    """Params of `carpool/disconnect`."""

    session: str


class SessionCommands:
    """Answers requests about the sessions of one broker."""

    def __init__(self, core: BrokerCore, disconnect: Disconnect) -> None:
        self._core = core
        self._disconnect = disconnect

    def register(self, methods: Methods) -> None:
        """Add the methods about sessions to the table."""
        methods.add(
            "carpool/disconnect",
            DisconnectParams,
            lambda _, params: self.disconnect(params),
            lambda params: Act("disconnect", [params.session]),
        )

    def disconnect(self, params: DisconnectParams) -> dict[str, Any]:
        """End a session. Returns it as it was: `{"session", "agent", "carrier", "principal", "open_calls"}`.
        Raises `ControlError`.
        """
        session = self._core.sessions.get(SessionId(params.session))
        if session is None or session.control:
            raise ControlError("not_found", NO_SUCH_SESSION)
        ended = {
            "session": session.id,
            "agent": session.agent,
            "carrier": session.carrier,
            "principal": session.principal,
            "open_calls": len(session.open_calls),
        }
        if not self._disconnect(session.id, BY_OPERATOR):
            raise ControlError("not_found", NO_SUCH_SESSION)
        log.warning("%s is disconnected by an operator", session.id, extra={"session": session.id})
        return ended
