"""Calls of carpool's own tools: which request is meant, and what is answered without any server.

Owns that a call of `call_tool`, `read_resource` or `get_prompt` becomes the very request that is meant before
anything else looks at it: rights, limits, waiting and the books know only that one. The others are answered
from what the session sees.

Knows nothing of: how their arguments are read (`era.builtin_tools`), what is found (`finding`), how calls
travel.
"""

from collections.abc import Callable

from msgspec.structs import replace

from carpool_broker.core.calls.call_listeners import CallResult
from carpool_broker.core.calls.call_table import CallTable
from carpool_broker.core.model.effects import AnswerBuiltin, AnyEffect
from carpool_broker.core.model.events import CallRequested
from carpool_broker.core.model.session import OpenCall
from carpool_broker.core.registry.builtin_tools import TARGET_METHODS
from carpool_broker.core.registry.view import BuiltinTool, View
from carpool_broker.core.requests.list_freshness import ListFreshness
from carpool_protocol.faults.fault_answers import as_tool_result, fault


class BuiltinToolCalls:
    """Those of all sessions."""

    def __init__(self, call_table: CallTable, hints: ListFreshness, out: Callable[[AnyEffect], None]) -> None:
        self._call_table = call_table
        self._list_freshness = hints
        self._emit = out

    def target_call(self, view: View, event: CallRequested) -> CallRequested:
        """The request that this call stands for; itself, where that is no other."""
        tool = view.builtin_tools.get(event.name)
        about = event.own[0]
        if tool is None or tool.kind not in TARGET_METHODS:
            return replace(event, own=())  # a server's tool has the name
        if about.problem:
            return event
        return replace(event, method=TARGET_METHODS[tool.kind], name=about.name, rest=about.rest)

    def answer_call(self, open_call: OpenCall, tool: BuiltinTool, view: View, now: float) -> None:
        """Answer a call that no server is needed for."""
        asked = open_call.asked
        if tool.kind in TARGET_METHODS:
            problem = asked.own[0].problem if asked.own else ""
            said = fault("bad_params", detail=problem or f"{tool.qualified} calls tools of servers.")
            outcome = CallResult(False, as_tool_result(said))
            self._call_table.note_end(open_call, said.slug, said.delivered, outcome.body)
            self._call_table.end(open_call, outcome)
            return
        self._list_freshness.request_renewal(view, now)
        self._call_table.note_end(open_call, "ok", "no")
        self._call_table.close(open_call)
        self._emit(
            AnswerBuiltin(
                open_call.session.id,
                asked.id,
                tool.kind,
                asked.rest,
                open_call.version,
                stateless=asked.by is not None,
            )
        )
