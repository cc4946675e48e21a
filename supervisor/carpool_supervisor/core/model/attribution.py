"""Attribution: finds the call, and so the agent, that an ask belongs to, or refuses the ask.

Owns the steps of attribution (docs/decisions/0008), as one pure function. In this order, and never a guess:
the call whose answer the ask is (stateless era); the task that it names; the trace context that carpool made
for a call; the only call that can ask; all such calls belong to one session; else refused. "In flight" is
rule 5's: written and not answered, also after a cancel, a timeout or the loss of its agent (`over`). While
such a call may still run the instance is tainted, and only the first three steps attribute.

Invariants: an ask is attributed only to a session with a live call among the candidates; removing calls of
other sessions can turn a refusal into an attribution, but never change the session. Knows nothing of:
processes, sessions' rights, the content of asks. Roots are never attributed (rule 6).
"""

from collections.abc import Mapping, Sequence
from typing import Final, Literal

from msgspec import Struct

from carpool_protocol.ids import RawJson, SessionId, WireId
from carpool_protocol.wire.json_scan import fields, key_text
from carpool_supervisor.core.model.trace_context import TraceKey, issued, issued_span, key_of

CAN_ASK: Final = frozenset({"tools/call", "prompts/get", "resources/read", "completion/complete"})
"""The methods during which a server may ask."""

AGENT_METHODS: Final = frozenset({"sampling/createMessage", "elicitation/create"})
"""The requests that a server may send to an agent. `roots/list` is answered by carpool or refused (rule 6),
unless it came as the answer to a call: its agent is then certain.
"""

ROOTS: Final = "roots/list"

RELATED_TASK: Final = "io.modelcontextprotocol/related-task"

AttributionStep = Literal["round", "task", "trace", "only call", "only session"]
"""The step that attributed an ask; the story of the call shows it."""

RefusalReason = Literal["no call", "ambiguous", "over", "not for agents"]
"""`no call`: asked outside any call that can ask, or for an answered one. `ambiguous`: it may belong to
several agents. `over`: only a call that has ended for its agent may have asked. `not for agents`: roots, and
all other methods that are never attributed.
"""


class InFlight(Struct, frozen=True):
    """One call that was written to the instance and is not answered."""

    wire: WireId
    """Grows with time: the greatest is the newest. Unlike a call id it is never reused on the instance, even
    under another broker.
    """
    session: SessionId
    can_ask: bool
    """Its method is in `CAN_ASK`."""
    trace: TraceKey | None = None
    """The key that `trace_context.with_traceparent` returned for it."""
    over: bool = False
    """It has ended for its agent (cancelled, timed out, agent gone) and may still run in the server."""


class AskFacts(Struct, frozen=True):
    """The parts of a server's request that show its origin."""

    method: str
    related_task: str | None = None
    trace: TraceKey | None = None
    ours: bool = False
    """This life of the supervisor made the trace context, so it belongs to one of our calls, in flight or
    not.
    """
    whole: bool = False
    """Carpool made its span id too, so it is the exact context of one call. Agents may share a trace id: if
    that call is gone, the ask belongs to no other call of the trace.
    """
    wire: WireId | None = None
    """Stateless era: the request came as the answer to this call, so its agent is certain."""


class Attributed(Struct, frozen=True):
    """The ask belongs to this session."""

    session: SessionId
    wires: tuple[WireId, ...]
    """The live calls that it may belong to, newest first: one, or several of that session if nothing tells
    them apart.
    """
    by: AttributionStep


class AskRefused(Struct, frozen=True):
    """The ask belongs to no agent that can be named; the server gets an error at once."""

    reason: RefusalReason
    tainted: bool = False
    """It was refused because of an ended call that may still ask. Every ask without a known origin will be
    refused until that call is answered.
    """

    @property
    def is_evidence(self) -> bool:
        """True if the refusal shows that overlapping calls cannot share this server (not for an ask outside
        any call, rule 6).
        """
        return self.reason == "ambiguous"


def facts_of(method: str, meta: RawJson, life: bytes) -> AskFacts:
    """The facts of a server's request, read from its `_meta` (an object or `ABSENT`, `params.split_meta`)."""
    if not meta:
        return AskFacts(method)
    trace = key_of(meta)
    if trace is None:
        return AskFacts(method, _task_of(meta))
    return AskFacts(method, _task_of(meta), trace, issued(life, trace), issued_span(life, trace))


def _task_of(meta: RawJson) -> str | None:
    related = (fields(meta) or {}).get(RELATED_TASK, b"")
    return key_text((fields(related) or {}).get("taskId", b"")) if related else None


def attribute(
    ask: AskFacts, candidates: Sequence[InFlight], tasks: Mapping[str, WireId], *, held: bool = False
) -> Attributed | AskRefused:
    """Find the session that is asked, step by step. `candidates`: everything in flight on the asking
    instance, in rule 5's sense. `tasks`: the call behind each task of that instance. `held`: the instance is
    leased to one session all its life. That session's own ended calls then do not taint it: the ask can only
    belong to that session, and replacing the instance would cost it its state.
    """
    if ask.method not in AGENT_METHODS and (ask.wire is None or ask.method != ROOTS):
        return AskRefused("not for agents")
    if ask.wire is not None:
        return _settle([each for each in candidates if each.wire == ask.wire], "round") or AskRefused(
            "no call"
        )
    if ask.related_task is not None:
        # An unknown task may have outlived its call, so no later step may attribute the ask.
        wire = tasks.get(ask.related_task)
        return _settle([each for each in candidates if each.wire == wire], "task") or AskRefused("no call")
    if ask.trace is not None:
        found = _by_trace(ask.trace, candidates, whole=ask.whole)
        if found is not None:
            return found
        if ask.ours:  # the call was answered; what it left running asks, and that belongs to no other call
            return AskRefused("no call")
    askers = [each for each in candidates if each.can_ask]
    if not askers:
        return AskRefused("no call")
    if all(each.over for each in askers):
        return AskRefused("over", tainted=True)
    several = len({each.session for each in askers}) > 1
    if any(each.over for each in askers) and (several or not held):  # rule 5
        return AskRefused("ambiguous" if several else "over", tainted=True)
    return _settle(askers, "only call" if len(askers) == 1 else "only session") or AskRefused("ambiguous")


def _by_trace(
    trace: TraceKey, candidates: Sequence[InFlight], *, whole: bool
) -> Attributed | AskRefused | None:
    """The call with this exact context; else the calls of this trace if they are one session's. (A server
    with a tracer of its own keeps the trace id and changes the span id.)
    """
    same = [each for each in candidates if each.trace is not None and each.trace.trace == trace.trace]
    exact = [each for each in same if each.trace == trace]
    if not same or (whole and not exact):
        return None
    return _settle(exact if len(exact) == 1 else same, "trace") or AskRefused("ambiguous")


def _settle(matches: Sequence[InFlight], by: AttributionStep) -> Attributed | AskRefused | None:
    """The one session of all matching calls; None if there is none or several. Refused if only ended calls
    match.
    """
    if len({each.session for each in matches}) != 1:
        return None
    live = [each for each in matches if not each.over]
    if not live:
        return AskRefused("over")
    wires = sorted((each.wire for each in live), reverse=True)
    return Attributed(live[0].session, tuple(wires), by)
