"""What servers ask of agents, from the question to its one answer.

Owns the open asks of all instances: whose each is (`attribution`), its id towards the agent, its deadline,
and the answer that the server gets in any case: a server is never left waiting. Also the trace contexts by
which a server tells whose a question is. What a question shows about its server: `ask_evidence`.

An ask belongs to every live call that it may be about: one, as a rule; several of one session where only
the session is certain. It is open as long as one of them is, and the idle deadlines of all of them stand
still meanwhile (rule 14).

Invariants (`check`): an ask has at least one live call, all of one session and in flight on its instance; a
call counts the asks it is part of, an instance those that its server waits for; one ask per instance and
request id; each has a deadline. An ask ends once: answered to its server, or gone with the instance.
Knows nothing of: what is asked, what agents can be asked (the broker), JSON beyond error objects.
"""

from collections.abc import Callable, Iterable
from hashlib import blake2b
from typing import Final

import msgspec
from msgspec.structs import replace

from carpool_protocol.ids import AskId, InstanceId, RawJson, SessionId, WireId
from carpool_protocol.link.messages import AnswerAsk, AskOpened, AskWithdrawn, Call, ForwardAskProgress
from carpool_supervisor.core.calls import ask_evidence
from carpool_supervisor.core.calls.call_timeouts import PausedTimeouts
from carpool_supervisor.core.calls.url_elicitations import UrlElicitations
from carpool_supervisor.core.model.attribution import AGENT_METHODS, Attributed, RefusalReason, attribute
from carpool_supervisor.core.model.effects import AnyEffect, WriteAskAnswer, WriteAskProgress
from carpool_supervisor.core.model.events import (
    ElicitationCompleted,
    ServerAsked,
    ServerCancelledAsk,
    TaskCreated,
    UrlElicitationRequired,
)
from carpool_supervisor.core.model.lifecycle import ENDING, InstanceState
from carpool_supervisor.core.model.pool import Instance, PoolCall
from carpool_supervisor.core.model.timer_kinds import SupervisorTimers
from carpool_supervisor.core.model.trace_context import TraceKey, with_traceparent

MAX_OPEN_ASKS: Final = 256
"""Per instance: a server that asks on and on would fill our memory and the agent's."""

TASKS_KEPT: Final = 64
"""Past so many task ids of an instance, those of calls that are over are forgotten."""

NOBODY: Final = WireId(0)
"""No call has this wire id: a task that two calls claim is nobody's."""

_INVALID_REQUEST: Final = -32600
_NO_METHOD: Final = -32601
_INTERNAL: Final = -32603

_REFUSALS: Final[dict[RefusalReason, tuple[int, str]]] = {
    "not for agents": (_NO_METHOD, "carpool passes only sampling and elicitation on to agents."),
    "no call": (
        _INTERNAL,
        "carpool shares this server between agents and cannot tell which one to ask: the call that this is "
        "about is not open. Ask only while you handle a request, and await the answer before you answer.",
    ),
    "ambiguous": (
        _INTERNAL,
        "carpool shares this server between agents, several have requests open, and nothing says which one "
        "to ask. Pass on the _meta.traceparent of the request, or try again later: carpool can give this "
        'server one such request at a time ("sharing": "serial" in its configuration).',
    ),
    "over": (
        _INTERNAL,
        "The request that this may be about has been cancelled or has timed out: nobody is there to ask.",
    ),
}


class OpenAsk:
    """One question between its arrival and its one answer."""

    __slots__ = ("calls", "id", "in_round", "instance", "is_announced_again", "message", "request", "token")

    def __init__(self, ask: AskId, instance: Instance, event: ServerAsked, calls: list[PoolCall]) -> None:
        self.id = ask
        self.instance = instance
        self.request = event.id
        """The server's own request id, byte for byte."""
        self.is_announced_again = False
        """To a broker that has taken over: one that belongs to several calls is said with the first."""
        self.in_round = event.facts.wire is not None
        """Stateless era: nothing waits for it in the server; after the last answer the call is said again."""
        self.token = event.token
        """The server's own progress token; absent when it wants none."""
        self.calls = calls
        """The live calls it may be about."""
        self.message = AskOpened(
            calls[0].call.call,
            ask,
            event.facts.method,
            event.params,
            bool(event.token),
            list(event.needs),
            event.name,
        )
        """As the broker was told."""

    @property
    def session(self) -> SessionId:
        """Who is asked."""
        return self.calls[0].call.session


class ServerAsks:
    """All open asks of one supervisor."""

    def __init__(
        self,
        life: bytes,
        paused_timeouts: PausedTimeouts,
        timers: SupervisorTimers,
        out: Callable[[AnyEffect], None],
    ) -> None:
        self._emit = out
        self._life = life
        self._paused_timeouts = paused_timeouts
        self._prefix = blake2b(b"asks", key=life, digest_size=4).hexdigest()  # agents see it: no secret
        self._asked = 0
        self._traced = 0
        self._open: dict[AskId, OpenAsk] = {}
        self._of: dict[InstanceId, dict[RawJson, OpenAsk]] = {}
        self._timers = timers.of("ask")
        self._elicitations = UrlElicitations(out)

    def __len__(self) -> int:
        return len(self._open)

    def open_count(self, instance: InstanceId) -> int:
        """How many are open on this instance."""
        return len(self._of.get(instance, ()))

    # --- before a question -----------------------------------------------------------------------------

    def with_trace(self, call: Call) -> tuple[Call, TraceKey]:
        """The call as it is to be written, with a trace context of its own, and the key of that.

        Numbered by themselves: call ids begin anew with a new broker.
        """
        meta, key = with_traceparent(call.meta, self._life, self._traced, call.trace)
        self._traced += 1
        return replace(call, meta=meta), key

    def task_created(self, instance: Instance, event: TaskCreated) -> None:
        """The server runs a call as this task of its own, and will name it when it asks."""
        if not _may_run(instance, event.wire):
            return
        tasks = instance.tasks
        claimed = tasks.get(event.task, event.wire)
        tasks[event.task] = event.wire if claimed == event.wire else NOBODY
        if len(tasks) > TASKS_KEPT + 2 * (len(instance.in_flight) + len(instance.abandoned)):
            for task in [task for task, wire in tasks.items() if not _may_run(instance, wire)]:
                del tasks[task]

    # --- the server speaks -----------------------------------------------------------------------------

    def server_asked(self, instance: Instance, event: ServerAsked, now: float) -> bool:
        """A server wants something of an agent.

        True: the instance is to be drained and replaced. A call that is over may still ask on it, it does
        not say which call asks, and its calls overlap: so no question of it can be answered any more.
        """
        if instance.state in ENDING:
            return False  # its stdin is closed
        asked = self._of.get(instance.id, {})
        if event.id in asked:
            self._refuse(instance, event, _INVALID_REQUEST, "A request with this id is open already.")
            return False
        if len(asked) >= MAX_OPEN_ASKS:
            text = f"{MAX_OPEN_ASKS} of your requests are open. Wait until one of them is answered."
            self._refuse(instance, event, _INTERNAL, text)
            return False
        pool = instance.pool
        candidates = instance.ask_candidates()
        found = attribute(event.facts, candidates, instance.tasks, held=pool.mode == "session")
        if isinstance(found, Attributed):
            self._ask(instance, event, found, now)
            if event.facts.method in AGENT_METHODS:
                ask_evidence.record_ask(pool, event.facts.method, self._emit)
            return False
        self._refuse(instance, event, *_REFUSALS[found.reason])
        if found.is_evidence:
            sessions = len({each.session for each in candidates if each.can_ask})
            ask_evidence.record_ambiguous_ask(instance, event.facts.method, sessions, self._emit)
        if found.reason in ("ambiguous", "over"):
            ask_evidence.record_ask(pool, event.facts.method, self._emit)
        return found.tainted and pool.mode == "concurrent" and instance.state is InstanceState.SERVING

    def _ask(self, instance: Instance, event: ServerAsked, found: Attributed, now: float) -> None:
        self._asked += 1
        calls = [instance.in_flight[wire] for wire in found.wires]
        ask = OpenAsk(AskId(f"{self._prefix}-{self._asked}"), instance, event, calls)
        self._open[ask.id] = ask
        self._of.setdefault(instance.id, {})[event.id] = ask
        self._timers.arm(ask.id, now, instance.pool.policy.ask_timeout_s)
        instance.asks += not ask.in_round
        for opened in calls:
            self._paused_timeouts.ask_opened(opened, now, in_round=ask.in_round)
        if event.elicitation:
            self._elicitations.elicitation_sent(instance.id, event.elicitation, found.session)
        self._emit(ask.message)

    def _refuse(self, instance: Instance, event: ServerAsked, code: int, text: str) -> None:
        self._emit(WriteAskAnswer(instance.id, event.id, is_error=True, body=_error(code, text)))
        wire = event.facts.wire
        if wire is not None and wire in instance.in_flight:
            self._paused_timeouts.ask_refused(instance.in_flight[wire])

    def server_cancelled_ask(self, instance: Instance, event: ServerCancelledAsk, now: float) -> None:
        """The server no longer wants it. It expects no answer (MCP 2025-11-25, basic/utilities/cancellation);
        one that crossed was legal too. An id that is not open says nothing.
        """
        ask = self._of.get(instance.id, {}).get(event.id)
        if ask is not None:
            self._end_ask(ask, now)
            self._withdraw(ask, event.reason or "the server no longer wants an answer")

    def url_elicitation_required(self, instance: Instance, event: UrlElicitationRequired) -> None:
        """The agent behind this call will hear when these are done."""
        opened = instance.in_flight.get(event.wire)
        if opened is not None:
            opened.url_elicitation_first = True
            if opened.call.can is not None:
                opened.urls = event.urls
            for elicitation in event.elicitations:
                self._elicitations.elicitation_sent(instance.id, elicitation, opened.call.session)

    def elicitation_completed(self, instance: Instance, event: ElicitationCompleted) -> None:
        """Whoever was sent there hears of it."""
        self._elicitations.elicitation_completed(instance.id, event)

    # --- the agent speaks ------------------------------------------------------------------------------

    def agent_answered(self, answer: AnswerAsk, now: float) -> None:
        """The broker brings the answer. To an ask that is over: nothing."""
        ask = self._open.get(answer.ask)
        if ask is not None:
            self._answer(ask, answer.body, is_error=answer.is_error)
            self._end_ask(ask, now)

    def agent_progressed(self, progress: ForwardAskProgress) -> None:
        """The agent says how far it is."""
        ask = self._open.get(progress.ask)
        if ask is not None and ask.token and ask.instance.state not in ENDING:
            self._emit(WriteAskProgress(ask.instance.id, ask.token, progress.params))

    def session_closed(self, session: SessionId, now: float) -> None:
        """The agent is gone. Its calls were cancelled one by one before, and their asks with them."""
        self._elicitations.session_closed(session)
        for ask in [ask for ask in self._open.values() if ask.session == session]:
            self._give_up(ask, "The agent is gone.")
            self._end_ask(ask, now)

    def abandon_all(self, now: float) -> None:
        """The broker has forgotten whom it asked: servers hear so, the broker hears nothing."""
        for ask in list(self._open.values()):
            self._forget(ask, now)
            for opened in ask.calls:
                opened.asks = 0
            if not ask.in_round:  # its call is cancelled next
                self._give_up(ask, "The agent is gone.")
        self._elicitations.abandon_all()

    def broker_connected(self) -> None:
        """It has heard of nothing."""
        for ask in self._open.values():
            ask.is_announced_again = False

    def announce_again(self, pool_call: PoolCall) -> None:
        """Another broker takes this call over: it hears of what is open for it."""
        if pool_call.asks:
            assert pool_call.instance is not None
            for ask in self._of[pool_call.instance.id].values():
                if pool_call in ask.calls and not ask.is_announced_again:
                    ask.is_announced_again = True
                    self._emit(replace(ask.message, call=pool_call.call.call))

    # --- calls and instances end -----------------------------------------------------------------------

    def call_ended(self, pool_call: PoolCall, now: float) -> None:
        """This call is over, however, and no longer in flight: what was asked for it alone is withdrawn, and
        the server told so.
        """
        instance = pool_call.instance
        assert instance is not None
        pool_call.asks = 0
        for ask in list(self._of[instance.id].values()):
            if pool_call in ask.calls:
                ask.calls.remove(pool_call)
                if not ask.calls:
                    self._forget(ask, now)
                    if not ask.in_round:
                        self._give_up(ask, "The request that this was asked for is over.")
                    self._withdraw(ask, "the call that it was asked for is over")

    def instance_lost(self, instance: Instance, now: float) -> None:
        """Nothing can be told to this instance any more, and none of its calls goes on."""
        for ask in list(self._of.get(instance.id, {}).values()):
            self._forget(ask, now)
            for opened in ask.calls:
                opened.asks = 0
            self._withdraw(ask, "the server has ended")
        self._elicitations.instance_lost(instance.id)

    # --- time passes -----------------------------------------------------------------------------------

    def time_out(self, asks: Iterable[AskId], now: float) -> None:
        """End these asks, which no agent has answered in time."""
        for ask_id in asks:
            ask = self._open[ask_id]
            limit_s = ask.instance.pool.policy.ask_timeout_s
            self._give_up(ask, f"The agent has not answered this within {limit_s:g} s.")
            self._end_ask(ask, now)
            self._withdraw(ask, f"it was not answered within {limit_s:g} s")

    # ---------------------------------------------------------------------------------------------------

    def _end_ask(self, ask: OpenAsk, now: float) -> None:
        """The ask is over, and its calls go on: where they are said again for it, with its answer."""
        self._forget(ask, now)
        for opened in ask.calls:
            self._paused_timeouts.ask_closed(opened, now)

    def _forget(self, ask: OpenAsk, now: float) -> None:
        if not ask.in_round:
            ask.instance.asks -= 1
            ask.instance.asks_closed_at = now
        del self._open[ask.id]
        self._timers.disarm(ask.id)
        asked = self._of[ask.instance.id]
        del asked[ask.request]
        if not asked:
            del self._of[ask.instance.id]

    def _give_up(self, ask: OpenAsk, text: str) -> None:
        self._answer(ask, _error(_INTERNAL, text), is_error=True)

    def _answer(self, ask: OpenAsk, body: RawJson, *, is_error: bool) -> None:
        if ask.instance.state not in ENDING:
            self._emit(WriteAskAnswer(ask.instance.id, ask.request, is_error, body))

    def _withdraw(self, ask: OpenAsk, reason: str) -> None:
        self._emit(AskWithdrawn(ask.id, reason))

    def check(self, calls: Iterable[PoolCall]) -> None:
        """Assert every invariant. `calls`: all open calls."""
        counts: dict[PoolCall, int] = {}
        for asked in self._of.values():
            instance = next(iter(asked.values())).instance
            waited_for = sum(not ask.in_round for ask in asked.values())
            assert instance.asks == waited_for, f"instance {instance.id} miscounts its asks"
        for ask_id, ask in self._open.items():
            assert ask.id == ask_id
            assert ask_id in self._timers, f"ask {ask_id} may stay open for ever"
            assert self._of[ask.instance.id][ask.request] is ask
            assert len({opened.call.session for opened in ask.calls}) == 1, f"ask {ask_id} is of two sessions"
            for opened in ask.calls:
                assert ask.instance.in_flight.get(opened.wire) is opened, f"ask {ask_id} outlives its call"
                counts[opened] = counts.get(opened, 0) + 1
        assert sum(map(len, self._of.values())) == len(self._open) == len(self._timers)
        for opened in calls:
            assert opened.asks == counts.get(opened, 0), f"call {opened.call.call} miscounts its asks"
        self._elicitations.check()


def _may_run(instance: Instance, wire_id: WireId) -> bool:
    return wire_id in instance.in_flight or wire_id in instance.abandoned


def _error(code: int, text: str) -> RawJson:
    return RawJson(msgspec.json.encode({"code": code, "message": text}))
