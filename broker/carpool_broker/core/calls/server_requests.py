"""What is asked of agents: which session, whether it can be asked that at all, and what it says.

Owns the open asks of every session that can be asked; agents of the stateless era cannot: what is asked of
them goes into rounds (`input_required`), once it is known that they have declared it. A session is asked
for its own calls only, and answers only what was asked of it, once. What its agent has not declared is
answered here with the error that the specification names, so a server is never left waiting. Asks need no
admission and no credit: they unblock what is open (rules 3, 10).

Invariants (`check`): every open ask is a session's that is there; none is open without a supervisor.

Knows nothing of: why a server asks, how an era words it, what is in params: they decide nothing here, for a
journal does not keep them.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import msgspec
from msgspec import Struct

from carpool_broker.core.calls.call_table import CallTable
from carpool_broker.core.calls.input_required import RESUMABLE_METHODS, ParkedCalls
from carpool_broker.core.calls.repeated_requests import RepeatedAsks
from carpool_broker.core.model.capabilities import Capabilities
from carpool_broker.core.model.effects import AnyEffect, SendAsk, SendElicitationComplete, WithdrawAsk
from carpool_broker.core.model.events import AskAnswered, AskProgressed
from carpool_broker.core.model.session import OpenCall, Session, asking_server
from carpool_broker.core.model.timer_kinds import BrokerTimers
from carpool_protocol.ids import AskId, CallId, PoolKey, RawJson, SessionId, SupervisorName
from carpool_protocol.link.messages import (
    AnswerAsk,
    AskOpened,
    AskWithdrawn,
    ElicitationFinished,
    ForwardAskProgress,
    Need,
)
from carpool_protocol.wire.downgrade import INVALID_PARAMS, METHOD_NOT_FOUND, NEWEST, CannotDowngrade
from carpool_protocol.wire.result_repair import repair_error

SAMPLING: Final = "sampling/createMessage"
ELICITATION: Final = "elicitation/create"
ROOTS: Final = "roots/list"

ASK_ENDED: Final = -32603
"""JSON-RPC's internal error: nobody is left who could answer, and neither side is at fault."""


INPUT_ENDED: Final = CannotDowngrade(ASK_ENDED, "The agent that is asked has closed its input.")
NOT_READ: Final = CannotDowngrade(ASK_ENDED, "The agent that is asked has not read what it was sent before.")

MAX_ANSWERED_ASKS: Final = 256
"""The number of answered asks that are remembered: an ask may be repeated while its answer is on the link."""


class _OpenAsk(Struct, frozen=True, gc=False):
    """An open ask. Its call may end first (the agent cancelled it); the ask does not need it."""

    session: SessionId
    wants_progress: bool
    request: RawJson
    """The agent's request for which the server asks."""
    key: PoolKey


class AgentAsks:
    """The open asks of all sessions."""

    def __init__(
        self,
        sessions: dict[SessionId, Session],
        call_table: CallTable,
        parked: ParkedCalls,
        out: Callable[[AnyEffect], None],
        timers: BrokerTimers,
        *,
        returning: Callable[[CallId], bool],
    ) -> None:
        """`returning` tells whether the agent of this call may still come back."""
        self._sessions = sessions
        self._call_table = call_table
        self._parked_calls = parked
        self._emit = out
        self.repeated_asks = RepeatedAsks(out, timers)
        """The asks of earlier brokers."""
        self._returning = returning
        self._open: dict[AskId, _OpenAsk] = {}
        self._answered: dict[AskId, PoolKey] = {}
        """The asks that were answered last, and the pools that asked. A call that is resumed has its open
        asks sent again, and one of them may have been answered in between.
        """

    # --- servers ---------------------------------------------------------------------------------------

    def ask_opened(self, ask: AskOpened, now: float) -> None:
        """A server asks the agent behind a call for something. The same ask is sent to the agent once."""
        if ask.ask in self._open or ask.ask in self._answered or self._parked_calls.has_ask(ask.ask):
            return
        open_call = self._call_table.calls.get(ask.call)
        if open_call is None:
            if self._returning(ask.call):  # it is said again with that
                return
            # It crossed with a cancel, or with the end of the agent.
            self._refuse(ask.ask, CannotDowngrade(ASK_ENDED, "The call that this was asked for is over."))
            return
        if open_call.asked.by is not None:
            self._stateless_ask_opened(open_call, ask, now)
            return
        session = open_call.session
        lack = undeclared(session.capabilities, ask.method, ask.needs)
        if session.input_ended:
            lack = INPUT_ENDED
        if lack is None and not self._call_table.unread.may_keep_message(session, len(ask.params)):
            lack = NOT_READ
        if lack is not None:
            self._refuse(ask.ask, lack)
            return
        request = open_call.asked.id
        self._open[ask.ask] = _OpenAsk(session.id, ask.wants_progress, request, open_call.key)
        was_asked, answer = self.repeated_asks.take_answer(session.id, ask.ask)
        if answer is not None:
            self.ask_answered(session, answer)
        elif not was_asked:
            wants_progress, version = ask.wants_progress, session.version
            self._emit(
                SendAsk(
                    session.id,
                    ask.ask,
                    ask.method,
                    ask.params,
                    wants_progress,
                    version,
                    request,
                    server=asking_server(open_call),
                )
            )

    def _stateless_ask_opened(self, open_call: OpenCall, ask: AskOpened, now: float) -> None:
        """Handle an ask for an agent of the stateless era, whose request says what it can be asked."""
        assert open_call.asked.by is not None
        declared = open_call.asked.by.capabilities
        why = None
        if ask.method != ROOTS or not declared.roots:
            why = undeclared(declared, ask.method, ask.needs)
        if open_call.asked.method not in RESUMABLE_METHODS:
            why = CannotDowngrade(METHOD_NOT_FOUND, f"Nothing can be asked for {open_call.asked.method}.")
        elif why is None and not self._parked_calls.has_room(open_call):
            why = CannotDowngrade(ASK_ENDED, "This agent is asked for too much at once.")
        if why is not None:
            self._refuse(ask.ask, why)
        else:
            self._parked_calls.ask_opened(open_call, ask, now)

    def _refuse(self, ask: AskId, why: CannotDowngrade) -> None:
        self._emit(AnswerAsk(ask, is_error=True, body=error_object(why.code, why.text)))

    def ask_withdrawn(self, withdrawn: AskWithdrawn) -> None:
        """The server no longer waits for the answer."""
        asked = self._open.pop(withdrawn.ask, None)
        if asked is not None:
            self._emit(WithdrawAsk(asked.session, withdrawn.ask, withdrawn.reason, asked.request))
        else:
            self._parked_calls.ask_withdrawn(withdrawn.ask)
            self.repeated_asks.ask_withdrawn(withdrawn.ask, withdrawn.reason)

    def elicitation_finished(self, event: ElicitationFinished) -> None:
        """The work behind a URL that an agent was sent to is done. Only MCP 2025-11-25 has a message for
        that.
        """
        session = self._sessions.get(event.session)
        if session is not None and session.capabilities.url and session.version >= NEWEST:
            self._emit(SendElicitationComplete(session.id, event.params))

    def supervisor_lost(self, name: SupervisorName) -> None:
        """This supervisor has gone, and all of its servers that asked."""
        runs = partial(self._call_table.links.runs, name)
        for ask, asked in [each for each in self._open.items() if runs(each[1].key)]:
            self._emit(WithdrawAsk(asked.session, ask, "The server that asked is gone.", asked.request))
            del self._open[ask]
        self._answered = {ask: key for ask, key in self._answered.items() if not runs(key)}

    # --- agents ----------------------------------------------------------------------------------------

    def ask_answered(self, session: Session, event: AskAnswered) -> None:
        """The agent has answered. A result is passed on unchanged; an error at least gets the form of one.
        Dropped are a second answer, an answer that no server waits for, and an answer to another agent's
        question, unless an earlier broker may have asked it.
        """
        if self._is_open(session, event.ask):
            self._answered[event.ask] = self._open.pop(event.ask).key
            if len(self._answered) > MAX_ANSWERED_ASKS:
                del self._answered[next(iter(self._answered))]
            body = repair_error(event.body, "agent")[0] if event.is_error else event.body
            self._emit(AnswerAsk(event.ask, event.is_error, body))
        else:
            self.repeated_asks.keep_answer(session.id, event)

    def ask_progressed(self, session: Session, event: AskProgressed) -> None:
        """The agent reports progress."""
        if self._is_open(session, event.ask) and self._open[event.ask].wants_progress:
            self._emit(ForwardAskProgress(event.ask, event.params))

    def _is_open(self, session: Session, ask: AskId) -> bool:
        asked = self._open.get(ask)
        return asked is not None and asked.session == session.id

    def input_ended(self, session: Session) -> None:
        """The agent sends nothing more: tell the servers that wait for its answers."""
        self._refuse_open(session, INPUT_ENDED)

    def session_closed(self, session: Session) -> None:
        """The session has closed: tell the servers that wait for its answers."""
        self._refuse_open(session, CannotDowngrade(ASK_ENDED, "The agent that was asked is gone."))

    def _refuse_open(self, session: Session, why: CannotDowngrade) -> None:
        for ask in [ask for ask, asked in self._open.items() if asked.session == session.id]:
            del self._open[ask]
            self._refuse(ask, why)

    def check(self) -> None:
        """Assert every invariant."""
        assert all(asked.session in self._sessions for asked in self._open.values()), "an ask of nobody"
        is_served = self._call_table.links.is_served
        assert all(is_served(asked.key) for asked in self._open.values()), "an ask without a supervisor"


def undeclared(declared: Capabilities, method: str, needs: Sequence[Need]) -> CannotDowngrade | None:
    """Return the error for a capability that this agent has not declared; None if it has declared all.
    Without `needs` the method's least is checked: sampling without tools, or a form. MCP 2025-11-25,
    client/sampling and client/elicitation ("Error Handling"): -32601 where the capability is missing; -32602
    for tools without `sampling.tools`, and for a mode without its sub-capability.
    """
    if method == SAMPLING:
        if not declared.sampling:
            return CannotDowngrade(METHOD_NOT_FOUND, "This agent has not declared sampling.")
        if "sampling.tools" in needs and not declared.sampling_tools:
            return CannotDowngrade(INVALID_PARAMS, "This agent has not declared sampling.tools.")
    elif method == ELICITATION:
        if not (declared.form or declared.url):
            return CannotDowngrade(METHOD_NOT_FOUND, "This agent has not declared elicitation.")
        mode, only = ("url", "form") if "elicitation.url" in needs else ("form", "url")
        if not (declared.url if mode == "url" else declared.form):
            return CannotDowngrade(
                INVALID_PARAMS, f"This agent has declared elicitation in mode {only} only."
            )
    else:
        return CannotDowngrade(METHOD_NOT_FOUND, "Agents are asked for sampling and elicitation only.")
    return None


def error_object(code: int, text: str) -> RawJson:
    """Return a JSON-RPC error object."""
    return RawJson(msgspec.json.encode({"code": code, "message": text}))
