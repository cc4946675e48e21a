"""Whose question is it? What a server says without naming the call it is about is given to one agent or to
none.

Owns the ladder of attribution (docs/decisions/0008), as one pure function. In this order, and never a
guess: the call that it came as an answer to (stateless era); the task it names; the trace context we made
for a call, coming back; the only call that can ask; all such calls belong to one session; else refused.
"In flight" is rule 5's: written and not answered, also after a cancel, a timeout or the loss of its agent
(`over`). While such a call may still run the instance is tainted: only the first three attribute.

Invariants: what is attributed belongs to a session with a live call among the candidates; taking other
sessions' calls away can turn a refusal into an attribution, never one session into another.
Knows nothing of: processes, sessions' rights, what is asked. Roots are never on the ladder (rule 6).
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
"""What a server may ask an agent. `roots/list` is answered by us or refused (rule 6), unless it came as the
answer to a call: then it is certain whose it is.
"""

ROOTS: Final = "roots/list"

RELATED_TASK: Final = "io.modelcontextprotocol/related-task"

AttributionStep = Literal["round", "task", "trace", "only call", "only session"]
"""What attributed: shown in the story of the call."""

RefusalReason = Literal["no call", "ambiguous", "over", "not for agents"]
"""`no call`: asked outside any call that can ask, or for one that has been answered. `ambiguous`: it may
belong to several agents. `over`: a call that has ended for its agent may have asked, and nobody else's.
`not for agents`: roots and whatever else is not on the ladder.
"""


class InFlight(Struct, frozen=True):
    """One call that was written to the instance and is not answered."""

    wire: WireId
    """Grows with time: the greatest is the newest. Unlike a call id it is never used again on the instance,
    also after another broker came.
    """
    session: SessionId
    can_ask: bool
    """Its method is in `CAN_ASK`."""
    trace: TraceKey | None = None
    """What `trace_context.with_traceparent` gave for it."""
    over: bool = False
    """It has ended for its agent (cancelled, timed out, agent gone) and may still run in the server."""


class AskFacts(Struct, frozen=True):
    """What a server's request says about where it comes from."""

    method: str
    related_task: str | None = None
    trace: TraceKey | None = None
    ours: bool = False
    """This life made that trace context: so it belongs to one of our calls, in flight or not."""
    whole: bool = False
    """Its span is ours too, so it is the very context of one call. Agents may share a trace id: without that
    call, it is not about another call of that trace.
    """
    wire: WireId | None = None
    """Stateless era: it came as the answer to this call, so it is certain whose it is."""


class Attributed(Struct, frozen=True):
    """Exactly this session is asked."""

    session: SessionId
    wires: tuple[WireId, ...]
    """The live calls it may be about, the newest first: one, or several of that session where nothing tells
    them apart.
    """
    by: AttributionStep


class AskRefused(Struct, frozen=True):
    """Nobody is asked; the server gets an error at once."""

    reason: RefusalReason
    tainted: bool = False
    """It was refused for a call that is over and may still ask: so will every question be that does not say
    whose it is, until that call is answered.
    """

    @property
    def is_evidence(self) -> bool:
        """Whether it shows that this server cannot be shared by overlapping calls (rule 6: outside a call,
        no).
        """
        return self.reason == "ambiguous"


def facts_of(method: str, meta: RawJson, life: bytes) -> AskFacts:
    """The facts of a server's request, from its `_meta` (an object or `ABSENT`, `params.split_meta`)."""
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
    """Who is asked, by the ladder. `candidates`: everything in flight on the asking instance, in rule 5's
    sense. `tasks`: the call behind each task of that instance. `held`: the instance is one session's for as
    long as it lives, so that session's own calls that are over do not taint it: no other agent can be meant,
    and to replace it would cost the session its state.
    """
    if ask.method not in AGENT_METHODS and (ask.wire is None or ask.method != ROOTS):
        return AskRefused("not for agents")
    if ask.wire is not None:
        return _settle([each for each in candidates if each.wire == ask.wire], "round") or AskRefused(
            "no call"
        )
    if ask.related_task is not None:
        # A task we do not know cannot be anybody's on a lower rung: it may have outlived its call.
        wire = tasks.get(ask.related_task)
        return _settle([each for each in candidates if each.wire == wire], "task") or AskRefused("no call")
    if ask.trace is not None:
        found = _by_trace(ask.trace, candidates, whole=ask.whole)
        if found is not None:
            return found
        if ask.ours:  # the call was answered, and what it left running asks: nobody else's question
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
    """The call with this very context; else the calls of this trace, if they are one session's (a server
    with a tracer of its own keeps the trace id and changes the span id).
    """
    same = [each for each in candidates if each.trace is not None and each.trace.trace == trace.trace]
    exact = [each for each in same if each.trace == trace]
    if not same or (whole and not exact):
        return None
    return _settle(exact if len(exact) == 1 else same, "trace") or AskRefused("ambiguous")


def _settle(matches: Sequence[InFlight], by: AttributionStep) -> Attributed | AskRefused | None:
    """The one session of all matches. Refused where only calls match that have ended; None for no or
    several.
    """
    if len({each.session for each in matches}) != 1:
        return None
    live = [each for each in matches if not each.over]
    if not live:
        return AskRefused("over")
    wires = sorted((each.wire for each in live), reverse=True)
    return Attributed(live[0].session, tuple(wires), by)
