"""A model of a network cable: which bytes of which connection come out of it, and when.

A cable has two directions. Each has a bandwidth that all connections share in turns, a delay, and a buffer
for each connection, as a router has: bytes that find it full stay with their sender. A direction that is
stalled carries nothing and loses nothing. Everything may change while bytes are on the way.

Owns the decision when a byte comes out. Synchronous, on any clock (`now` is given). Knows nothing of: sockets
(`cable_proxy`), what the bytes mean.
"""

from collections import deque
from math import inf
from typing import Final, Literal

Way = Literal["there", "back"]
Ways = Literal["there", "back", "both"]
Ending = Literal["", "end", "reset"]

BUFFER_BYTES: Final = 128 * 1024
"""The bytes of one connection and direction that wait for their turn, as in the buffer of a router."""
FLIGHT_BYTES: Final = 16 * 1024 * 1024
"""The most bytes of one connection and direction that are under way, or wait for a receiver that is slow."""
STEP_S: Final = 0.02
"""The most time for which one connection has the bandwidth before the next one has its turn."""


class Lane:
    """The bytes of one connection in one direction."""

    def __init__(self) -> None:
        self.waiting: deque[tuple[float, bytes]] = deque()
        """Bytes that wait for bandwidth, each piece with the time at which it came."""
        self.waiting_bytes = 0
        self.flying: deque[tuple[float, bytes]] = deque()
        """Bytes that have left, each piece with the time at which it comes out."""
        self.flying_bytes = 0
        self.ending: Ending = ""
        """How its sender has ended it, if it has."""

    @property
    def is_over(self) -> bool:
        """True if its sender has ended it and everything has come out."""
        return bool(self.ending) and not self.waiting and not self.flying


class CableDirection:
    """One direction of a cable."""

    def __init__(self, buffer_bytes: int = BUFFER_BYTES) -> None:
        self.delay_s = 0.0
        self.bytes_per_s = inf
        self.buffer_bytes = buffer_bytes
        self.is_stalled = False
        self.carried_bytes = 0
        """The bytes that have left, of all connections."""
        self.held_pieces = 0
        """The pieces of data that have come since it was stalled last."""
        self._turns: deque[Lane] = deque()
        """The lanes with something that waits; the first one has the next turn."""
        self._free_at = -inf
        """When the bandwidth is free for the next turn."""

    def room_bytes(self, lane: Lane, now: float) -> int:
        """Return how many bytes may be put in now; 0: its sender has to wait."""
        self._carry(now)
        room = min(self.buffer_bytes - lane.waiting_bytes, FLIGHT_BYTES - lane.flying_bytes)
        return max(room, 0)

    def put(self, lane: Lane, data: bytes, now: float) -> None:
        """Take bytes of a sender, at most `room_bytes`."""
        assert len(data) <= self.room_bytes(lane, now), "more than there is room for"
        if not data:
            return
        self.held_pieces += self.is_stalled
        if not lane.waiting:
            self._turns.append(lane)
        lane.waiting.append((now, data))
        lane.waiting_bytes += len(data)
        self._carry(now)

    def take(self, lane: Lane, now: float) -> bytes:
        """Return the bytes that have come out."""
        self._carry(now)
        if self.is_stalled:
            return b""
        taken: list[bytes] = []
        while lane.flying and lane.flying[0][0] <= now:
            taken.append(lane.flying.popleft()[1])
        data = b"".join(taken)
        lane.flying_bytes -= len(data)
        return data

    def next_due(self, lane: Lane, now: float) -> float:
        """Return when to `take` again; infinity: not before something changes."""
        self._carry(now)
        if self.is_stalled:
            return inf
        if lane.flying:
            return lane.flying[0][0]
        return self._free_at if lane.waiting else inf

    def stall(self) -> None:
        """Carry nothing from now on."""
        self.is_stalled = True
        self.held_pieces = 0

    def resume(self, now: float) -> None:
        """Go on with everything that was held."""
        if self.is_stalled:
            self.is_stalled = False
            self._free_at = max(self._free_at, now)

    def drop(self, lane: Lane) -> None:
        """Forget a connection that was reset: what is on its way is lost."""
        if lane.waiting:
            self._turns.remove(lane)
        lane.waiting.clear()
        lane.flying.clear()
        lane.waiting_bytes = lane.flying_bytes = 0

    def _carry(self, now: float) -> None:
        """Let everything leave that the bandwidth allows until now."""
        while self._turns and not self.is_stalled and self._free_at <= now:
            lane = self._turns.popleft()
            room = FLIGHT_BYTES
            if self.bytes_per_s != inf:
                room = max(int(self.bytes_per_s * STEP_S), 1)
            came_at, data = lane.waiting.popleft()
            if len(data) > room:
                lane.waiting.appendleft((came_at, data[room:]))
                data = data[:room]
            if lane.waiting:
                self._turns.append(lane)
            left_at = max(self._free_at, came_at) + len(data) / self.bytes_per_s
            self._free_at = left_at
            lane.waiting_bytes -= len(data)
            lane.flying.append((left_at + self.delay_s, data))
            lane.flying_bytes += len(data)
            self.carried_bytes += len(data)

    def check(self) -> None:
        """Assert the invariants."""
        for lane in self._turns:
            assert lane.waiting, "a lane has a turn and nothing to carry"
            assert lane.waiting_bytes == sum(len(data) for _, data in lane.waiting)
            assert lane.flying_bytes == sum(len(data) for _, data in lane.flying)
            assert lane.waiting_bytes <= self.buffer_bytes
        assert len(set(map(id, self._turns))) == len(self._turns), "a lane has two turns"


class Cable:
    """Both directions. `there` is from the near end to the far one."""

    def __init__(self, buffer_bytes: int = BUFFER_BYTES) -> None:
        self.there = CableDirection(buffer_bytes)
        self.back = CableDirection(buffer_bytes)

    def direction(self, way: Way) -> CableDirection:
        """Return one direction."""
        return self.there if way == "there" else self.back

    def directions(self, way: Ways = "both") -> tuple[CableDirection, ...]:
        """Return one direction, or both."""
        return (self.there, self.back) if way == "both" else (self.direction(way),)
