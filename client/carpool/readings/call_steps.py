"""The steps of one call in words, from the journals of a broker and a supervisor.

Owns the words for each step, where a call has crossed to another node, how steps of two clocks are put in one
order, and the form in JSON of what another node tells. A step without words is left out. No word is an
argument's value.

Pure. Knows nothing of: where the journals come from, the reasons of decisions.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from carpool_protocol.ids import CALLS_OF_A_LIFE

Entry = dict[str, Any]


class StoryStep(NamedTuple):
    """One step of a call."""

    at: float
    """Seconds since 1970."""
    where: str
    text: str


class Crossing(NamedTuple):
    """A call that was handed to a session at another node."""

    node: str
    session: int
    """The session's number among those with that node."""
    wire: int
    """The call's JSON-RPC id on it."""
    handed_at: float
    ended_at: float | None
    """The time of its end at this node's supervisor; None: it is open, or was handed on again."""


def crossings(live: Entry, call: int) -> list[Crossing]:
    """Return where the call went to other nodes, in order: several only if it was placed again."""
    found: list[Crossing] = []
    for entry in live["supervisor"]:
        for effect in entry["effects"]:
            inner = effect.get("call")
            there = live["nodes"].get(str(effect.get("instance")))
            is_its = isinstance(inner, dict) and inner.get("call") == call
            if effect["type"] == "WriteCall" and is_its and there is not None:
                found.append(Crossing(there["node"], there["session"], effect["wire"], entry["at"], None))
            elif effect["type"] in {"CallAnswered", "CallFailed"} and inner == call and found:
                found[-1] = found[-1]._replace(ended_at=entry["at"])
    return found


def aligned(steps: Sequence[StoryStep], crossing: Crossing) -> tuple[list[StoryStep], float]:
    """Return steps by another node's clock in this node's time, and the seconds which that clock is ahead.

    They lie between the hand-over and the end of the call here; clocks that allow this count as equal. A step
    that no clock puts between the two is put at the nearer one.
    """
    if not steps:
        return [], 0.0
    first, last = min(step.at for step in steps), max(step.at for step in steps)
    least_s = float("-inf") if crossing.ended_at is None else last - crossing.ended_at
    ahead_s = min(max(0.0, least_s), first - crossing.handed_at)
    end = float("inf") if crossing.ended_at is None else max(crossing.ended_at, crossing.handed_at)
    return [step._replace(at=min(max(step.at - ahead_s, crossing.handed_at), end)) for step in steps], ahead_s


class NodeStory(NamedTuple):
    """The part of a call's story that another node has told."""

    node: str
    session: int
    wire: int
    call: str
    """The name of the call there; empty: it is not known."""
    steps: list[StoryStep]
    """In this node's time. `where` begins with the name of the node."""
    ahead_s: float
    """The seconds which that node's clock is ahead."""
    refused: str
    """Why nothing is known, for people; empty: the node has answered."""

    def as_json(self) -> Entry:
        """Return the entry of `nodes` in `carpool story --json`."""
        return {**self._asdict(), "steps": [step._asdict() for step in self.steps]}


def node_story(
    crossing: Crossing, call: str = "", steps: Sequence[StoryStep] = (), refused: str = ""
) -> NodeStory:
    """Return what a node has told of a call that went there. `steps`: by that node's clock, with its own
    names of places.
    """
    named = [step._replace(where=f"{crossing.node} {step.where}") for step in steps]
    told, ahead_s = aligned(named, crossing)
    return NodeStory(crossing.node, crossing.session, crossing.wire, call, told, ahead_s, refused)


def timeline(live: Entry, call: int, stories: Sequence[NodeStory]) -> list[StoryStep]:
    """Return the steps of a call at this node and at others, oldest first."""
    told = [*story_steps(live, call), *(step for each in stories for step in each.steps)]
    return sorted(told, key=lambda step: step.at)


def story_steps(live: Entry, call: int) -> Iterator[StoryStep]:
    """Yield the steps that have words."""
    names = _InstanceNames(live["pids"], live["nodes"])
    for entry in live["broker"]:
        for text in _at_broker(entry, call):
            yield StoryStep(entry["at"], "broker", text)
    for entry in live["supervisor"]:
        for text in _at_supervisor(entry, call, names):
            yield StoryStep(entry["at"], "supervisor", text)


_ANSWERS: Final = ("Reply", "ReplyRewritten", "ReplyStateless")
_ARRIVALS: Final = {
    "CallRequested": "came from {session}",
    "SessionResumed": "came again from {session}",
    "CallAnswered": "its answer came from the supervisor",
    "CallFailed": "the supervisor ended it: {fault} (delivered: {delivered})",
    "CallProgressed": "told how far it is",
    "AskOpened": "its server asks the agent ({method})",
    "RequestCancelled": "its agent cancelled it",
    "SessionClosed": "its agent left",
}
"""The words for events at the broker."""


def _at_broker(entry: Entry, call: int) -> Iterator[str]:
    event = entry["event"]
    about = event.get("call", call)  # another call's end may be what lets this one go
    if event["type"] in _ARRIVALS and about == call:
        yield _ARRIVALS[event["type"]].format_map(event)
    for effect in entry["effects"]:
        if effect.get("call") != call:
            continue
        kind = effect["type"]
        if kind == "Call":
            yield f"went to the supervisor, for {effect['key'].rpartition(':')[0]}"
        elif kind == "ResumeCall":
            yield f"taken over from broker {call // CALLS_OF_A_LIFE + 1}, which died"
        elif kind == "CancelCall" and event["type"] not in {"RequestCancelled", "SessionClosed"}:
            yield "cancelled"
        elif kind == "WriteAudit":
            yield f"ended: {effect['outcome']}"
        elif kind in _ANSWERS:
            yield "answered to its agent"


def _at_supervisor(entry: Entry, call: int, names: "_InstanceNames") -> Iterator[str]:
    event = entry["event"]
    if event["type"] == "CancelCall":
        yield "is told that nobody waits for it"
    waits = event["type"] == "Call"
    for effect in entry["effects"]:
        kind = effect["type"]
        inner = effect.get("call")
        if kind == "WriteCall" and isinstance(inner, dict) and inner.get("call") == call:
            waits = False
            yield f"handed to {names.of(effect['instance'])}, under wire id {effect['wire']}"
        elif kind == "Spawn" and event["type"] == "Call":
            yield f"starts instance #{effect['instance']} of {effect['server']}"
        elif kind == "WriteCancel" and event["type"] == "CancelCall":
            yield f"tells {names.of(effect['instance'])} to stop it"
        elif inner == call and kind == "CallAnswered":
            waits = False
            yield "its server answered" + (" with an error" if effect["is_error"] else "")
        elif inner == call and kind == "CallFailed":
            waits = False
            yield f"ended it: {effect['fault']} (delivered: {effect['delivered']})"
        elif inner == call and kind == "AskOpened":
            yield f"its server asks ({effect['method']})"
    if waits:
        yield "waits in the line of its pool"


class _InstanceNames(NamedTuple):
    pids: Entry
    nodes: Entry

    def of(self, instance: int) -> str:
        """Return an instance in words."""
        if (there := self.nodes.get(str(instance))) is not None:
            return f"node {there['node']} (instance #{instance})"
        pid = self.pids.get(str(instance))
        return f"instance #{instance} (pid {pid})" if pid else f"instance #{instance}"
