"""Encodes the core's effects as JSON lines to agents.

Owns the choice of the adapter for each effect, and the rewriting of a server's answer for its agent
(`rewrite_answer`). A rewrite is one step that nothing interrupts, so an answer with too many parts for it is
not passed on: its request gets an error. An effect for a session that has ended is dropped by the
connections.

Knows nothing of: effects for the supervisor, bursts, sockets.
"""

from collections.abc import Callable, Mapping
from typing import Protocol

from msgspec.structs import replace

from carpool_broker.builtin_tools.answer_queue import BuiltinAnswerQueue
from carpool_broker.builtin_tools.results import as_builtin_result, builtin_result, is_search
from carpool_broker.builtin_tools.search import ToolSearch
from carpool_broker.core.broker import BrokerCore
from carpool_broker.core.model import effects, events
from carpool_broker.core.model.effects import NO_CALL
from carpool_broker.core.registry.answer_rewrites import rewrite_answer
from carpool_broker.core.registry.view import View
from carpool_broker.era import handshake, server_requests, stateless_encode
from carpool_broker.transport.connections import NO_ASK
from carpool_protocol.faults.fault_answers import TOOLS_CALL, as_tool_result, fault, fault_answer
from carpool_protocol.ids import ABSENT, AskId, CallId, RawJson, SessionId, call_name
from carpool_protocol.wire.content import TooManyPartsError
from carpool_protocol.wire.downgrade import NEWEST, STATELESS, downgrade_result
from carpool_protocol.wire.jsonrpc import error_body_line, result_line


class WriteAgentLine(Protocol):
    """The type of `Connections.write`."""

    def __call__(
        self,
        session: SessionId,
        line: bytes,
        about: RawJson = ABSENT,
        *,
        answers: bool = False,
        call: CallId = NO_CALL,
        ask: AskId = NO_ASK,
        withdrawn: AskId = NO_ASK,
    ) -> None:
        """As `Connections.write`."""


class AgentOutput:
    """Writes the lines of one broker to agents."""

    def __init__(
        self, core: BrokerCore, release: str, write: WriteAgentLine, feed: Callable[[events.AnyEvent], None]
    ) -> None:
        """`feed`: takes the event for an ask that the agent's version cannot express; the core handles it in
        turn.
        """
        self._core = core
        self._stateless_encoder = encoder = stateless_encode.StatelessEncoder(release)
        self._write = write
        self._feed = feed
        self._tool_search = ToolSearch()
        self.answer_queue = BuiltinAnswerQueue(
            self._tool_search,
            view_of=lambda session: core.view_of(session) if session in core.sessions else None,
            is_behind=core.is_behind,
            answer=self._write_builtin_answer,
            refuse=self._refuse_builtin_call,
        )
        self.handlers: Mapping[type, Callable[..., None]] = {
            effects.Reply: lambda e: write(
                e.session, handshake.reply_line(e), e.id, answers=True, call=e.call
            ),
            effects.AnswerInitialize: lambda e: write(
                e.session, handshake.initialize_line(e, release), e.id, answers=True
            ),
            effects.SendProgress: lambda e: write(e.session, handshake.progress(e), e.request),
            effects.ReplyRewritten: self._reply_rewritten,
            effects.SendListChanged: lambda e: write(
                e.session,
                stateless_encode.list_changed_line(e) if e.listen else handshake.LIST_CHANGED[e.family],
                e.listen,
            ),
            effects.SendLog: lambda e: write(e.session, handshake.log_line(e), e.request),
            effects.SendResourceUpdated: lambda e: write(
                e.session,
                stateless_encode.resource_updated_line(e) if e.listen else handshake.resource_updated_line(e),
                e.listen,
            ),
            effects.SendTaskStatus: self._send_task_status,
            effects.SendAsk: self._send_ask,
            effects.WithdrawAsk: lambda e: write(
                e.session, server_requests.withdraw_line(e), e.request, withdrawn=e.ask
            ),
            effects.SendElicitationComplete: lambda e: write(
                e.session, server_requests.elicitation_complete_line(e)
            ),
            effects.ReplyStateless: self._reply_stateless,
            effects.AnswerBuiltin: self._answer_builtin,
            effects.AnswerDiscover: lambda e: write(e.session, encoder.discover_line(e), e.id, answers=True),
            effects.RequireInput: lambda e: write(
                e.session, encoder.input_required_line(e), e.id, answers=True
            ),
            effects.AcknowledgeListen: lambda e: write(
                e.session, stateless_encode.acknowledged_line(e), e.id
            ),
            effects.EndListen: self._end_listen,
        }

    def _reply_rewritten(self, effect: effects.ReplyRewritten) -> None:
        if effect.session in self._core.sessions:
            view = self._core.view_of(effect.session)
            is_error, body = _rewritten_answer(view, effect, effect.version)
            line = error_body_line(effect.id, body) if is_error else result_line(effect.id, body)
            self._write(effect.session, line, effect.id, answers=True, call=effect.call)

    def _reply_stateless(self, effect: effects.ReplyStateless) -> None:
        body = effect.body
        if (effect.key or effect.as_tool) and effect.session in self._core.sessions:
            is_error, body = _rewritten_answer(self._core.view_of(effect.session), effect, STATELESS)
            effect = replace(effect, is_error=is_error)
        line = self._stateless_encoder.reply_line(effect, body)
        self._write(effect.session, line, effect.id, answers=True, call=effect.call)

    def _answer_builtin(self, effect: effects.AnswerBuiltin) -> None:
        session = self._core.sessions.get(effect.session)
        if session is not None:
            needs_index = is_search(effect.kind, effect.rest)
            self.answer_queue.call_received(effect, session.owner, needs_index=needs_index)

    def _write_builtin_answer(self, effect: effects.AnswerBuiltin) -> None:
        if effect.session in self._core.sessions:
            view = self._core.view_of(effect.session)
            body = builtin_result(view, effect.kind, effect.rest, self._tool_search, effect.version)
            self._write_builtin_result(effect, body)

    def _refuse_builtin_call(self, effect: effects.AnswerBuiltin, slug: str) -> None:
        self._write_builtin_result(effect, as_tool_result(fault(slug, retry_after_s=1.0)))

    def _write_builtin_result(self, effect: effects.AnswerBuiltin, body: RawJson) -> None:
        if effect.stateless:
            reply = effects.ReplyStateless(effect.session, effect.id, False, body, TOOLS_CALL)
            line = self._stateless_encoder.reply_line(reply)
        else:
            line = result_line(effect.id, body)
        self._write(effect.session, line, effect.id, answers=True)

    def _send_task_status(self, effect: effects.SendTaskStatus) -> None:
        params = effect.params
        if effect.key and effect.session in self._core.sessions:
            view = self._core.view_of(effect.session)
            try:
                params = rewrite_answer(view, effect.key, "tasks/get", STATELESS, params)
            except TooManyPartsError:
                return  # an agent that asks for the task is told why
        self._write(effect.session, stateless_encode.task_status_line(effect, params), effect.listen)

    def _end_listen(self, effect: effects.EndListen) -> None:
        *cancels, result = self._stateless_encoder.listen_end_line(effect)
        for line in cancels:
            self._write(effect.session, line, effect.id)
        self._write(effect.session, result, effect.id, answers=True)

    def _send_ask(self, effect: effects.SendAsk) -> None:
        line = server_requests.ask_line(effect)
        if isinstance(line, bytes):
            self._write(effect.session, line, effect.request, ask=effect.ask)
        else:
            self._feed(line)


def _rewritten_answer(
    view: View, effect: effects.ReplyRewritten | effects.ReplyStateless, version: str
) -> tuple[bool, RawJson]:
    """A server's result, rewritten for this agent, or the error in its place: `(is_error, body)`."""
    try:
        body = rewrite_answer(view, effect.key, effect.as_tool or effect.method, version, effect.body)
        if effect.as_tool:
            body = as_builtin_result(effect.as_tool, body)
            if version not in {NEWEST, STATELESS}:
                body = downgrade_result(effect.method, version, body)
    except TooManyPartsError as error:
        call = call_name(effect.call) if effect.call else ""
        return fault_answer(fault("answer_too_large", detail=error.text, call=call), effect.method)
    return False, body
