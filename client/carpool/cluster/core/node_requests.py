"""Requests of one node to another: ping, figures, drain, undrain, story. Both ends of them.

Owns the numbers of open requests, how long each waits for its answer, how many of one node may be in work
here at a time, the form of an answer, and the right to drain (docs/decisions/0055).

Pure. Knows nothing of: channels, sessions' bytes, what a story says, clocks (`now` is given).
"""

from collections.abc import Collection
from typing import Final, Literal

import msgspec
from msgspec import Struct

from carpool.cluster.core.offers import MAX_COUNT
from carpool_protocol.config.schema.settings_cluster import ANY_NODE

NodeRequestKind = Literal["ping", "figures", "drain", "undrain", "story"]

REQUEST_S: Final = 3.0
"""A request without an answer is given up after this time."""
MAX_IN_WORK: Final = 8
"""The most requests of one other node that are in work here. Further ones are refused."""
MAX_ANSWERS: Final = 100
"""The most answers that wait to be sent to one other node. Requests beyond them are not answered."""
MAX_DRAINS: Final = 20
"""The most drains and undrains of one other node in a minute. Further ones are refused."""
MAX_ALL_DRAINS: Final = 100
"""The most drains and undrains of all other nodes together in a minute."""
MAX_TEXT: Final = 300
MAX_STEPS: Final = 200
MAX_UNIX_S: Final = 1e10
"""A clock is read up to the year 2286: dates beyond it are no dates of a call."""


class NodeStep(Struct, frozen=True, array_like=True):
    """One step of a call at another node."""

    at: float
    """Seconds since 1970 by that node's clock."""
    where: str
    text: str


class NodeAnswer(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The answer to any request."""

    refused: str = ""
    """Why nothing was done, for people; empty: it was."""
    unix_s: float = 0.0
    """To a ping: the time of that node's clock."""
    load: int = -1
    """To `figures`: as in `NodeOffer`. -1: not told."""
    open_calls: int = -1
    """To `figures`: as in `NodeOffer`. -1: not told."""
    call: str = ""
    """To `story`: the name of the call there; empty: its steps are forgotten."""
    steps: list[NodeStep] = []


class _OpenRequest(Struct, frozen=True):
    node: str
    sent_at: float


class NodeRequests:
    """The open requests of one node, to others and of others."""

    def __init__(self) -> None:
        self._last = 0
        self._open: dict[int, _OpenRequest] = {}
        self._last_asked = 0
        self._in_work: dict[str, dict[int, int]] = {}
        """The requests of each other node that wait for an answer of this one: their numbers here, with those
        of the other node, which begins at 1 again in each life.
        """

    def begin(self, node: str, now: float) -> int:
        """Note a request to a node and return its number."""
        self._last += 1
        self._open[self._last] = _OpenRequest(node, now)
        return self._last

    def answered(self, node: str, number: int, now: float) -> float | None:
        """The node has answered. Returns the seconds that this took; None: nothing was open."""
        found = self._open.get(number)
        if found is None or found.node != node:
            return None
        del self._open[number]
        return now - found.sent_at

    def node_lost(self, node: str) -> list[int]:
        """Forget the requests to a node, and of it. Returns the numbers of the former."""
        self._in_work.pop(node, None)
        return self._remove([number for number, each in self._open.items() if each.node == node])

    def expired(self, now: float) -> list[int]:
        """Forget the requests that have waited for too long, and return their numbers."""
        return self._remove(
            [number for number, each in self._open.items() if now >= each.sent_at + REQUEST_S]
        )

    def _remove(self, numbers: list[int]) -> list[int]:
        for number in numbers:
            del self._open[number]
        return numbers

    def next_deadline(self) -> float:
        """Return when `expired` is due."""
        return min((each.sent_at + REQUEST_S for each in self._open.values()), default=float("inf"))

    def accept(self, node: str, number: int) -> int:
        """Take a request of another node into work and return its number here. 0: too many of it are, or one
        with this number is.
        """
        numbers = self._in_work.setdefault(node, {})
        if len(numbers) >= MAX_IN_WORK or number in numbers.values():
            return 0
        self._last_asked += 1
        numbers[self._last_asked] = number
        return self._last_asked

    def finish(self, node: str, asked: int) -> int | None:
        """The answer to a request of another node is there. Returns that node's number of it; None: the node
        was lost meanwhile. `asked`: as `accept` returned it.
        """
        return self._in_work.get(node, {}).pop(asked, None)

    def check(self) -> None:
        """Assert the invariants."""
        assert all(len(numbers) <= MAX_IN_WORK for numbers in self._in_work.values())


def may_drain(node: str, drain_by: Collection[str]) -> bool:
    """True if this node may make the one with this setting (`cluster.drain_by`) drain."""
    return ANY_NODE in drain_by or node in drain_by


def encode_answer(answer: NodeAnswer) -> bytes:
    """Return the bytes of an answer, within its limits."""
    return msgspec.json.encode(_bounded(answer))


_decoder = msgspec.json.Decoder(NodeAnswer)


def read_answer(body: bytes) -> NodeAnswer:
    """Read an answer, within its limits. One that cannot be read refuses."""
    try:
        return _bounded(_decoder.decode(body))
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return NodeAnswer(refused="its answer cannot be read")


def _bounded(answer: NodeAnswer) -> NodeAnswer:
    """Return an answer with texts and steps cut to their limits, and without steps at no time."""
    steps = [
        NodeStep(each.at, each.where[:MAX_TEXT], each.text[:MAX_TEXT])
        for each in answer.steps
        if 0 <= each.at <= MAX_UNIX_S
    ]
    return NodeAnswer(
        refused=answer.refused[:MAX_TEXT],
        unix_s=min(max(answer.unix_s, 0.0), MAX_UNIX_S),
        load=min(max(answer.load, -1), MAX_COUNT),
        open_calls=min(max(answer.open_calls, -1), MAX_COUNT),
        call=answer.call[:MAX_TEXT],
        steps=steps[-MAX_STEPS:],
    )
