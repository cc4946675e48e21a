"""The oracle about the counters of the simulated world's brokers.

Owns its own count of how requests of agents of the handshake era have ended at one broker, from the events
that it was fed and the answers that it gave, and the comparison with its counters. Refuses to know: which
server a call went to, times.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct

from carpool_broker.core.broker import BrokerCore
from carpool_broker.core.model import effects as bf
from carpool_broker.core.model import events as bv
from carpool_protocol.counters.call_counts import CallCounts
from carpool_protocol.counters.summary import sum_by
from carpool_protocol.faults.kinds import LOSSES
from carpool_protocol.ids import RawJson, SessionId
from tests.world.sim.oracles.violation import Violation

HANDSHAKE: Final = "sim"
"""What agents of the handshake era call themselves in the world. Sessions of other nodes have those names."""
NO_CALLS: Final = frozenset({"duplicate_request_id", "not_initialized"})
"""Faults of requests that never become a call."""


class CounterBook:
    """How the requests at one broker have ended."""

    def __init__(self, nodes: Iterable[str] = ()) -> None:
        self._agents = (HANDSHAKE, *nodes)
        self._open: set[tuple[SessionId, RawJson]] = set()
        self._ends: Counter[tuple[str, str]] = Counter()
        """By kind of end and code."""

    def look(self, event: Struct, effects: Sequence[Any]) -> None:
        """The broker has decided this."""
        before = self._open.copy()
        match event:
            case bv.CallRequested():
                self._opened((event,))
            case bv.SessionResumed():
                self._opened(event.calls)
            case _:
                pass
        for effect in effects:
            if isinstance(effect, bf.AnswerBuiltin):
                self._close(effect.session, effect.id, ("answers", ""))
            elif isinstance(effect, bf.Reply | bf.ReplyRewritten):
                is_error = isinstance(effect, bf.Reply) and effect.is_error
                end = end_of(effect.body, is_error=is_error)
                if end[1] not in NO_CALLS:
                    self._close(effect.session, effect.id, end)
                elif (effect.session, effect.id) not in before:
                    self._open.discard((effect.session, effect.id))
        if isinstance(event, bv.RequestCancelled):
            self._cancelled({(event.session, event.id)} & self._open)
        elif isinstance(event, bv.SessionClosed):
            self._cancelled({each for each in self._open if each[0] == event.session})

    def _opened(self, requests: Iterable[bv.CallRequested]) -> None:
        self._open.update((each.session, each.id) for each in requests if each.by is None)

    def _cancelled(self, requests: set[tuple[SessionId, RawJson]]) -> None:
        self._open -= requests
        self._ends["cancelled", ""] += len(requests)

    def _close(self, session: SessionId, request: RawJson, end: tuple[str, str]) -> None:
        if (session, request) in self._open:
            self._open.remove((session, request))
            self._ends[end] += 1

    def compare(self, core: BrokerCore) -> None:
        """Raise if the broker has counted something else."""
        counting = core.call_table.counting
        assert counting is not None
        by_agent = sum_by(counting.snapshot(), "agent")
        counted: Counter[tuple[str, str]] = Counter()
        in_flight = 0
        for counts in (by_agent.get(agent, CallCounts()) for agent in self._agents):
            counted["answers", ""] += counts.answers
            counted["cancelled", ""] += counts.cancelled
            in_flight += counts.in_flight
            for kind, codes in (("errors", counts.errors), ("refusals", counts.refusals)):
                for code, count in codes.items():
                    counted[kind, "" if code.lstrip("-").isdigit() else code] += count
        ends = self._ends
        if len(self._agents) > 1:  # what another node says of a call is an answer of a server here
            counted, ends = Counter({("", ""): counted.total()}), Counter({("", ""): ends.total()})
        if +counted != +ends or in_flight:
            raise Violation(f"counted: {dict(+counted)}, ended: {dict(+ends)}, in flight: {in_flight}")


def end_of(body: RawJson, *, is_error: bool) -> tuple[str, str]:
    """Return which kind of end an answer is, and its code if it is one of carpool's."""
    said = msgspec.json.decode(body)
    fault = said.get("data") if is_error else (said.get("_meta") or {}).get("carpool/error")
    if isinstance(fault, dict) and "delivered" in fault:
        is_refusal = fault["delivered"] == "no" and fault["code"] not in LOSSES
        return "refusals" if is_refusal else "errors", fault["code"]
    return ("errors" if is_error else "answers"), ""
