"""Requests between this node's process and those of other nodes: pings, figures, drains, stories.

Owns who waits for the answer to which request, when nodes are pinged, what the pings have measured, and how
long nodes have to tell their present figures.

Knows nothing of: links, records, what a story says (`call_stories`), who may drain (`core.node_requests`).
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Final

from msgspec import Struct

from carpool.cluster.core.node import NodeAnswered, NodeAsked, NodeCore, NotReachedError
from carpool.cluster.core.node_requests import NodeAnswer, NodeRequestKind
from carpool.cluster.core.sessions import SessionName
from carpool_protocol.runtime.wallclock import unix_s

PING_S: Final = 5.0
"""Each reached node is pinged after this time."""

FIGURES_S: Final = 1.0
"""Nodes have this long to tell their present figures."""

Answered = Callable[[NodeAnswered], None]
TellStory = Callable[[SessionName, int], Awaitable[NodeAnswer]]
TellFigures = Callable[[], Awaitable[NodeAnswer]]


class NodeMeasurement(Struct, frozen=True):
    """The result of the last ping of a node."""

    latency_s: float
    """There and back, with the time that both processes took."""
    clock_ahead_s: float
    """How far its clock is ahead of this machine's; right within half the latency."""


class OtherNodes:
    """The requests of one node's process."""

    def __init__(
        self,
        core: NodeCore,
        *,
        tell_story: TellStory,
        tell_figures: TellFigures,
        flush_soon: Callable[[], None],
    ) -> None:
        self._core = core
        self._tell_story = tell_story
        self._tell_figures = tell_figures
        self._flush_soon = flush_soon
        self._waiting: dict[int, Answered] = {}
        self._answers: set[asyncio.Task[None]] = set()
        self.measured: dict[str, NodeMeasurement] = {}

    def request(
        self, node: str, kind: NodeRequestKind, answered: Answered, *, session: int = 0, call: int = 0
    ) -> None:
        """Ask another node. `answered` is called once, at once if the node is not reached."""
        now = asyncio.get_running_loop().time()
        try:
            number = self._core.request(node, kind, now, session=session, call=call)
        except NotReachedError as error:
            answered(NodeAnswered(0, NodeAnswer(refused=str(error)), is_received=True))
            return
        self._waiting[number] = answered
        self._flush_soon()

    def answered(self, effect: NodeAnswered) -> None:
        """A request of this node is over."""
        self._waiting.pop(effect.number)(effect)

    def asked(self, effect: NodeAsked) -> None:
        """Another node asks."""
        if effect.kind == "ping":
            self._core.answer(effect.node, effect.number, NodeAnswer(unix_s=unix_s()))
            self._flush_soon()
            return
        telling = (
            self._tell_figures()
            if effect.kind == "figures"
            else self._tell_story(effect.session, effect.call)
        )
        task = asyncio.create_task(self._answer(effect, telling))
        self._answers.add(task)
        task.add_done_callback(self._answers.discard)

    async def _answer(self, effect: NodeAsked, telling: Awaitable[NodeAnswer]) -> None:
        answer = await telling
        self._core.answer(effect.node, effect.number, answer)
        self._flush_soon()

    async def refresh(self) -> None:
        """Ask all reached nodes for their present figures, all at once, and wait a moment for the answers,
        which the core keeps.
        """
        waiting = set(self._core.reached())
        done = asyncio.Event()

        def answers_of(node: str) -> Answered:
            def answered(_: NodeAnswered) -> None:
                waiting.discard(node)
                if not waiting:
                    done.set()

            return answered

        for node in sorted(waiting):
            self.request(node, "figures", answers_of(node))
        if waiting:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(FIGURES_S):
                    await done.wait()

    async def ping(self) -> None:
        """Ping all reached nodes again and again, until cancelled."""
        while True:
            reached = self._core.reached()
            self.measured = {node: each for node, each in self.measured.items() if node in reached}
            for node in reached:
                self.request(node, "ping", self._measuring(node))
            await asyncio.sleep(PING_S)

    def _measuring(self, node: str) -> Answered:
        def answered(effect: NodeAnswered) -> None:
            if effect.answer.unix_s:
                ahead_s = effect.answer.unix_s + effect.took_s / 2 - unix_s()
                self.measured[node] = NodeMeasurement(effect.took_s, ahead_s)

        return answered
