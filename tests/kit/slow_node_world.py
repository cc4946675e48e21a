"""Nodes of a cluster on virtual time, over links with little bandwidth: frames queue, and none is lost.

Owns what is on its way, and how much of it was sent before already. Knows nothing of: sessions and their text
(`node_world`), how nodes decide what to send.
"""

from collections import deque
from math import inf

from carpool.cluster.core.frames import FRAME_BYTES, decode_frame
from tests.kit.frame_queue import FrameQueue
from tests.kit.node_world import MAX_STEPS, NodeWorld, SessionText

Pair = tuple[str, str]
"""The sender's node and the receiver's."""


class SlowNodeWorld(NodeWorld):
    """The nodes `alpha` and `beta`. What `beta` sends to `alpha` goes over a link with this bandwidth, what
    `alpha` sends is only delayed: it asks for much and says little.
    """

    def __init__(self, bytes_per_s: float, delay_s: float) -> None:
        self.links: dict[Pair, FrameQueue] = {
            ("alpha", "beta"): FrameQueue(delay_s=delay_s),
            ("beta", "alpha"): FrameQueue(bytes_per_s, delay_s),
        }
        self.under_way: dict[Pair, deque[tuple[float, bytes]]] = {pair: deque() for pair in self.links}
        """What arrives when."""
        self.sent_bytes = dict.fromkeys(self.links, 0)
        self.repeated_bytes = dict.fromkeys(self.links, 0)
        """The part of it that was sent before already."""
        self._seen: set[tuple[Pair, int, int]] = set()
        super().__init__("alpha", "beta", frame_bytes=FRAME_BYTES)

    def flush(self) -> None:
        """Put what is due onto the links."""
        super().flush()
        for pair, queue in self.queues.items():
            while queue:
                frame = queue.popleft()
                self.under_way[pair].append((self.links[pair].put(len(frame), self.now), frame))
                self._count(pair, frame)

    def _count(self, pair: Pair, data: bytes) -> None:
        frame = decode_frame(data)
        self.sent_bytes[pair] += len(data)
        if frame.number:
            key = (pair, frame.source, frame.number)
            self.repeated_bytes[pair] += len(data) if key in self._seen else 0
            self._seen.add(key)

    def break_connections(self) -> None:
        """What is on its way is lost, and the nodes connect again at once."""
        for pair, link in self.links.items():
            link.clear()
            self.under_way[pair].clear()
        for core in self.cores.values():
            core.link_restored(self.now, self.frame_bytes)

    def run(self, duration_s: float) -> None:
        """Let time pass. Frames arrive when the links have carried them."""
        end = self.now + duration_s
        for _ in range(MAX_STEPS):
            self.flush()
            while due := [
                pair for pair, frames in self.under_way.items() if frames and frames[0][0] <= self.now
            ]:
                for pair in due:
                    self.queues.setdefault(pair, deque()).append(self.under_way[pair].popleft()[1])
                    self.deliver(pair)
                self.flush()
            if self.now >= end:
                return
            arrivals = [frames[0][0] for frames in self.under_way.values() if frames]
            deadlines = [core.next_deadline() for core in self.cores.values()]
            self.now = min(max(min([*arrivals, *deadlines], default=inf), self.now + 0.001), end)
        raise AssertionError("the nodes never come to rest")

    def answered_after(self, session: SessionText, limit_s: float, step_s: float = 0.1) -> float:
        """Let the agent of a session say its text once. Returns how long it takes to come back, or the limit
        if it does not.
        """
        began = self.now
        self.say(session, 1)
        while session.returned != session.wanted and self.now < began + limit_s:
            self.run(step_s)
        return self.now - began
