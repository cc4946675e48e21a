"""Calls of carpool's own tools: which request is meant, and what is answered without any server.

Owns that a call of `call_tool`, `read_resource` or `get_prompt` becomes the very request that is meant before
anything else looks at it: rights, limits, waiting and the books know only that one. The others are answered
from what the session sees.

Knows nothing of: how their arguments are read (`era.own`), what is found (`finding`), how calls travel.
"""

from collections.abc import Callable

from msgspec.structs import replace

from carpool_broker.core.calls.call_listener import Outcome
from carpool_broker.core.calls.call_table import Ledger
from carpool_broker.core.model.effects import AnswerOwn, AnyEffect
from carpool_broker.core.model.events import AgentCalled
from carpool_broker.core.model.session import Owed
from carpool_broker.core.registry.builtin_tools import REDIRECTED
from carpool_broker.core.registry.view import OwnTool, View
from carpool_broker.core.requests.list_freshness import Hints
from carpool_protocol.faults.faults import as_tool_result, fault


class OwnCalls:
    """Those of all sessions."""

    def __init__(self, ledger: Ledger, hints: Hints, out: Callable[[AnyEffect], None]) -> None:
        self._ledger = ledger
        self._hints = hints
        self._out = out

    def meant(self, view: View, event: AgentCalled) -> AgentCalled:
        """The request that this call stands for; itself, where that is no other."""
        tool = view.own.get(event.name)
        about = event.own[0]
        if tool is None or tool.kind not in REDIRECTED:
            return replace(event, own=())  # a server's tool has the name
        if about.problem:
            return event
        return replace(event, method=REDIRECTED[tool.kind], name=about.name, rest=about.rest)

    def answer(self, owed: Owed, tool: OwnTool, view: View, now: float) -> None:
        """Answer a call that no server is needed for."""
        asked = owed.asked
        if tool.kind in REDIRECTED:
            problem = asked.own[0].problem if asked.own else ""
            said = fault("bad_params", detail=problem or f"{tool.qualified} calls tools of servers.")
            outcome = Outcome(False, as_tool_result(said))
            self._ledger.note_end(owed, said.slug, said.delivered, outcome.body)
            self._ledger.give(owed, outcome)
            return
        self._hints.renew(view, now)
        self._ledger.note_end(owed, "ok", "no")
        self._ledger.close(owed)
        self._out(
            AnswerOwn(
                owed.session.id, asked.id, tool.kind, asked.rest, owed.version, stateless=asked.by is not None
            )
        )
