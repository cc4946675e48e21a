"""What agents of the simulated world have read of lists: the oracle about `list_changed`.

Owns the last list of tools that each session of the handshake era was given by this broker, and the rule: it
is told that its list is another one only when it is. That it is told when it is, only quiet can prove
(`quiesce`). Knows nothing of: why lists change.
"""

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Struct

from carpool_broker.core.broker import BrokerCore
from carpool_broker.core.model import effects as bf
from carpool_broker.core.model import events as bv
from carpool_protocol.ids import RawJson, SessionId
from tests.world.sim.oracles.violation import Violation

Rows = list[tuple[str, str]]
"""The name of each tool, and its title."""


def rows_of(body: RawJson) -> Rows:
    """A list as it was read."""
    return [(tool["name"], tool.get("title", "")) for tool in msgspec.json.decode(body)["tools"]]


def rows_now(core: BrokerCore, session: SessionId) -> Rows:
    """The list that a session would read now."""
    tools = [msgspec.json.decode(it.definition) for it in core.view_of(session).lists[0].present.entries]
    return [(tool["name"], tool.get("title", "")) for tool in tools]


class ListBook:
    """The lists that one broker has given out."""

    def __init__(self) -> None:
        self._given: dict[SessionId, Rows] = {}

    def look(self, core: BrokerCore, event: Struct, effects: Sequence[Any]) -> None:
        """It has decided this."""
        if type(event) is bv.SessionResumed:  # who comes from an earlier broker is told in any case
            self._given.pop(event.session, None)
        given: list[SessionId] = []
        for effect in effects:
            if type(effect) is bf.Reply:
                if not effect.is_error and bytes(effect.body).startswith(b'{"tools":['):
                    given.append(effect.session)
            elif type(effect) is bf.SendListChanged and effect.family == "tools" and not effect.listen:
                before = self._given.pop(effect.session, None)
                # A list that is answered here again may have been another one at the broker before.
                is_repeated = effect.session in given
                if before is not None and not is_repeated and before == rows_now(core, effect.session):
                    raise Violation(
                        f"{effect.session} is told that its tools are others, and they are {before}"
                    )
        for session in given:
            self._given[session] = rows_now(core, session)
