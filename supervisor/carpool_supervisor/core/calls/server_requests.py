"""Asks: requests of servers to agents, from arrival to the one answer.

Owns the open asks of all instances: the calls that each belongs to (`attribution`), its id towards the agent,
its deadline, and its answer. A server always gets an answer. Owns also the trace contexts that attribute
asks. `ask_evidence` draws conclusions about the server.

An ask belongs to each live call that it may be about: usually one; several of one session if only the session
is certain. It is open as long as one of them is, and the idle timeouts of all of them are paused meanwhile
(rule 14).

Invariants (`check`): an ask has at least one live call, all of one session and in flight on its instance; a
call counts its asks, an instance those that its server waits for; there is one ask per instance and request
id; each has a deadline. An ask ends once: answered to its server, or gone with the instance. Knows nothing
of: the content of asks, capabilities of agents (the broker), JSON except error objects.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from hashlib import blake2b
from typing import Final

import msgspec
from msgspec.structs import replace

from carpool_protocol.ids import AskId, InstanceId, RawJson, ServerName, SessionId, WireId
from carpool_protocol.link.messages import AnswerAsk, AskOpened, AskWithdrawn, Call, ForwardAskProgress
from carpool_protocol.machine.memory_shares import MemoryUse, exceeds_share
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
"""Per instance: a server that never stops asking would fill our memory and the agent's."""
MAX_OPEN_BYTES: Final = 128 * 1024 * 1024
"""The bytes of the params of all open asks, which are kept for the next broker until they are answered.
Servers share them.
"""
MAX_SERVER_BYTES: Final = MAX_OPEN_BYTES // 2
"""The most of these bytes for one server. The agents that it asks share them."""
MAX_REASON_CHARS: Final = 1000
"""A longer reason of a server for withdrawing an ask is cut."""
COUNTED_BYTES: Final = 64 * 1024
"""Asks with no more params are bounded by their number alone."""

TASKS_KEPT: Final = 64
"""The number of an instance's task ids past which those of ended calls are forgotten."""

NOBODY: Final = WireId(0)
"""The wire id of no call: a task that two calls claim belongs to neither."""

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
        "to ask. Pass on the _meta.traceparent of the request, or try again later.",
    ),
    "over": (
        _INTERNAL,
        "The request that this may belong to was cancelled or has timed out, so there is no agent to ask.",
    ),
}
_ONE_AT_A_TIME: Final = (
    ' carpool can give this server one such request at a time ("sharing": "serial" in its configuration).'
)
"""What else helps where several requests are open at a server that is not serial yet."""
_MAY_STILL_RUN: Final = (
    "A request that was cancelled or has timed out may still run here, and this may belong to it, so carpool "
    "cannot tell which agent to ask. Pass on the _meta.traceparent of the request, or try again in 2 s."
)


class OpenAsk:
    """One ask between its arrival and its answer."""

    __slots__ = (
        "asked_at",
        "calls",
        "id",
        "in_round",
        "instance",
        "is_announced_again",
        "message",
        "request",
        "token",
        "turn",
    )

    def __init__(
        self, ask: AskId, instance: Instance, event: ServerAsked, calls: list[PoolCall], now: float
    ) -> None:
        self.id = ask
        self.asked_at = now
        self.instance = instance
        self.request = event.id
        """The server's own request id, byte for byte."""
        self.is_announced_again = False
        """A new broker was told of it; an ask of several calls is announced with the first."""
        self.in_round = event.facts.wire is not None
        """Stateless era: the server does not wait for it; after the last answer the call is sent again."""
        self.token = event.token
        """The server's own progress token; absent if it gave none."""
        self.turn = calls[0].turn
        """The turn that its params count with."""
        self.calls = calls
        """The live calls that it may belong to."""
        self.message = AskOpened(
            calls[0].call.call,
            ask,
            event.facts.method,
            event.params,
            bool(event.token),
            list(event.needs),
            event.name,
        )
        """The message that the broker was sent."""

    @property
    def session(self) -> SessionId:
        """The session that is asked."""
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
        self._prefix = blake2b(
            b"asks", key=life, digest_size=4
        ).hexdigest()  # no secret, because agents see it
        self._asked = 0
        self._traced = 0
        self._open: dict[AskId, OpenAsk] = {}
        self._of: dict[InstanceId, dict[RawJson, OpenAsk]] = {}
        self._bytes_of_servers: MemoryUse[ServerName] = MemoryUse()
        """The params of the open asks of each server, in all its instances."""
        self._bytes_of_turns: MemoryUse[tuple[ServerName, SessionId]] = MemoryUse()
        """The same for each turn that its calls belong to."""
        self._timers = timers.of("ask")
        self._elicitations = UrlElicitations(out)

    def __len__(self) -> int:
        return len(self._open)

    def open_count(self, instance: InstanceId) -> int:
        """The number of open asks of this instance."""
        return len(self._of.get(instance, ()))

    def asked_since(self, instance: Instance) -> dict[PoolCall, float]:
        """The calls of this instance whose agents are asked, and since when by the oldest open ask."""
        found: dict[PoolCall, float] = {}
        for ask in self._of.get(instance.id, {}).values():
            for opened in ask.calls:
                found.setdefault(opened, ask.asked_at)  # asks are kept in the order in which they came
        return found

    # --- before an ask ---------------------------------------------------------------------------------

    def with_trace(self, call: Call) -> tuple[Call, TraceKey]:
        """The call with a trace context of its own, and the key of that context.

        Trace contexts have numbers of their own, because call ids begin anew with a new broker.
        """
        meta, key = with_traceparent(call.meta, self._life, self._traced, call.trace)
        self._traced += 1
        return replace(call, meta=meta), key

    def task_created(self, instance: Instance, event: TaskCreated) -> None:
        """The server runs a call as this task, and will name the task when it asks."""
        if not _may_run(instance, event.wire):
            return
        tasks = instance.tasks
        claimed = tasks.get(event.task, event.wire)
        tasks[event.task] = event.wire if claimed == event.wire else NOBODY
        if len(tasks) > TASKS_KEPT + 2 * (len(instance.in_flight) + len(instance.abandoned)):
            # One for each call at most, the latest, so that many tasks come before the next time.
            kept = {wire: task for task, wire in tasks.items() if _may_run(instance, wire)}
            tasks.clear()
            tasks.update((task, wire) for wire, task in kept.items())

    # --- the server speaks -----------------------------------------------------------------------------

    def server_asked(self, instance: Instance, event: ServerAsked, now: float) -> bool:
        """Handle an ask of a server.

        Returns True if the instance must be drained and replaced: an ended call may still ask on it, the
        server does not say which call asks, and its calls overlap. None of its asks could be answered any
        more.
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
        candidates = instance.ask_candidates(now)
        found = attribute(event.facts, candidates, instance.tasks, held=pool.mode == "session")
        if isinstance(found, Attributed):
            if len(event.params) > COUNTED_BYTES and self._exceeds_share(instance, event, found):
                text = (
                    f"Your open requests have too many bytes: all of them may have {MAX_SERVER_BYTES}, and "
                    "those to one agent a share of that. Wait until one of them is answered."
                )
                self._refuse(instance, event, _INTERNAL, text)
                return False
            self._ask(instance, event, found, now)
            if event.facts.method in AGENT_METHODS:
                ask_evidence.record_ask(pool, event.facts.method, self._emit)
            return False
        code, text = _REFUSALS[found.reason]
        if found.tainted:
            text = _MAY_STILL_RUN
        elif found.reason == "ambiguous" and pool.mode == "concurrent":
            text += _ONE_AT_A_TIME
        self._refuse(instance, event, code, text)
        if found.tainted and not instance.may_run_ended_calls:
            ask_evidence.record_ask(pool, event.facts.method, self._emit)
            return False  # the server has stopped those calls, and soon nothing is uncertain any more
        if found.is_evidence:
            sessions = len({each.session for each in candidates if each.can_ask})
            ask_evidence.record_ambiguous_ask(instance, event.facts.method, sessions, self._emit)
        if found.reason in ("ambiguous", "over"):
            ask_evidence.record_ask(pool, event.facts.method, self._emit)
        return found.tainted and pool.mode == "concurrent" and instance.state is InstanceState.SERVING

    def _exceeds_share(self, instance: Instance, event: ServerAsked, found: Attributed) -> bool:
        """True if no room is left for the params: a server has as much as it leaves for all others, and so
        has a turn of what its server may have.
        """
        server, size_bytes = instance.pool.server, len(event.params)
        turn = instance.in_flight[found.wires[0]].turn
        of_server, of_turn = self._bytes_of_servers.of(server), self._bytes_of_turns.of((server, turn))
        return self._bytes_of_servers.exceeds_share(MAX_OPEN_BYTES, server, size_bytes) or exceeds_share(
            MAX_SERVER_BYTES, of_server, of_turn, size_bytes
        )

    def _count(self, ask: OpenAsk, size_bytes: int) -> None:
        self._bytes_of_servers.add(ask.instance.pool.server, size_bytes)
        self._bytes_of_turns.add((ask.instance.pool.server, ask.turn), size_bytes)

    def _ask(self, instance: Instance, event: ServerAsked, found: Attributed, now: float) -> None:
        self._asked += 1
        instance.pool.counts.asks += 1
        calls = [instance.in_flight[wire] for wire in found.wires]
        ask = OpenAsk(AskId(f"{self._prefix}-{self._asked}"), instance, event, calls, now)
        self._open[ask.id] = ask
        self._count(ask, len(event.params))
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
        """The server cancelled its ask. It expects no answer (MCP 2025-11-25, basic/utilities/cancellation),
        though one that crossed is legal. An id that is not open is ignored.
        """
        ask = self._of.get(instance.id, {}).get(event.id)
        if ask is not None:
            self._end_ask(ask, now)
            self._withdraw(ask, event.reason or "the server no longer wants an answer")

    def url_elicitation_required(self, instance: Instance, event: UrlElicitationRequired) -> None:
        """The agent behind this call must hear when these URL elicitations are done."""
        opened = instance.in_flight.get(event.wire)
        if opened is not None:
            opened.url_elicitation_first = True
            if opened.call.can is not None:
                opened.urls = event.urls
            for elicitation in event.elicitations:
                self._elicitations.elicitation_sent(instance.id, elicitation, opened.call.session)

    def elicitation_completed(self, instance: Instance, event: ElicitationCompleted) -> None:
        """Tell the session that was sent to this URL elicitation."""
        self._elicitations.elicitation_completed(instance.id, event)

    # --- the agent speaks ------------------------------------------------------------------------------

    def agent_answered(self, answer: AnswerAsk, now: float) -> None:
        """Pass the agent's answer to the server. An ask that is over is ignored."""
        ask = self._open.get(answer.ask)
        if ask is not None:
            self._answer(ask, answer.body, is_error=answer.is_error)
            self._end_ask(ask, now)

    def agent_progressed(self, progress: ForwardAskProgress) -> None:
        """Pass the agent's progress to the server."""
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
        """The broker forgot its asks: end them all towards the servers, without a message to the broker."""
        for ask in list(self._open.values()):
            self._forget(ask, now)
            for opened in ask.calls:
                opened.asks = 0
            if not ask.in_round:  # its call is cancelled next
                self._give_up(ask, "The agent is gone.")
        self._elicitations.abandon_all()

    def broker_connected(self) -> None:
        """A new broker has not been told of any ask."""
        for ask in self._open.values():
            ask.is_announced_again = False

    def announce_again(self, pool_call: PoolCall) -> None:
        """A new broker resumes this call: announce its open asks."""
        if pool_call.asks:
            assert pool_call.instance is not None
            for ask in self._of[pool_call.instance.id].values():
                if pool_call in ask.calls and not ask.is_announced_again:
                    ask.is_announced_again = True
                    self._emit(replace(ask.message, call=pool_call.call.call))

    # --- calls and instances end -----------------------------------------------------------------------

    def call_ended(self, pool_call: PoolCall, now: float) -> None:
        """This call has ended in some way and is no longer in flight: end the asks that belong to it alone,
        and tell the server.
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
        """The instance can be told nothing any more, and none of its calls continues."""
        for ask in list(self._of.get(instance.id, {}).values()):
            self._forget(ask, now)
            for opened in ask.calls:
                opened.asks = 0
            self._withdraw(ask, "the server has ended")
        self._elicitations.instance_lost(instance.id)

    # --- timeouts --------------------------------------------------------------------------------------

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
        """End an ask and continue its calls; in rounds, send them again with its answer."""
        self._forget(ask, now)
        for opened in ask.calls:
            self._paused_timeouts.ask_closed(opened, now)

    def _forget(self, ask: OpenAsk, now: float) -> None:
        if not ask.in_round:
            ask.instance.asks -= 1
            ask.instance.asks_closed_at = now
        ask.instance.pool.touch()
        del self._open[ask.id]
        self._count(ask, -len(ask.message.params))
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
        self._emit(AskWithdrawn(ask.id, reason[:MAX_REASON_CHARS]))

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
        bytes_of_servers, bytes_of_turns = Counter[ServerName](), Counter[tuple[ServerName, SessionId]]()
        for ask in self._open.values():
            bytes_of_servers[ask.instance.pool.server] += len(ask.message.params)
            bytes_of_turns[ask.instance.pool.server, ask.turn] += len(ask.message.params)
        self._bytes_of_servers.check(bytes_of_servers)
        self._bytes_of_turns.check(bytes_of_turns)
        self._elicitations.check()


def _may_run(instance: Instance, wire_id: WireId) -> bool:
    return wire_id in instance.in_flight or wire_id in instance.abandoned


def _error(code: int, text: str) -> RawJson:
    return RawJson(msgspec.json.encode({"code": code, "message": text}))
