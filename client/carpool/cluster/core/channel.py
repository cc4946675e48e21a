"""One channel: records to and from one other node, in order and once, over a link that may lose frames.

Owns the ids of both ends, the numbers of frames, what is kept until it is acknowledged, and when the other
node counts as lost. An end has an id, and takes a greater one when its process starts and when it gives the
other end up. A frame names both ends, and counts only between the latest of them: so a new id of the other
end ends everything that was open, because what the earlier one had received is gone, and old frames mean
nothing. Nothing is ever taken up twice.

A link that is cut for less than `LOST_S` costs a pause: frames without an acknowledgement are sent again.
After that the channel is lost, and each session on it ends.

Invariants (`check`): numbers of kept frames are consecutive and end with the last one sent; nothing is kept
and nothing waits while the channel is not open. Knows nothing of: sessions, links, clocks (`now` is given).
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from msgspec import Struct

from carpool.cluster.core.frames import CHANNEL_VERSION, FRAME_BYTES, AnyRecord, ChannelFrame, size_of

HEARTBEAT_S: Final = 1.0
"""A frame is sent at least this often."""
LOST_S: Final = 20.0
"""A node that was not heard for this long is lost."""
ACKNOWLEDGE_S: Final = 0.05
"""Records are acknowledged after this time at the latest, or with the next frame."""
RESEND_S: Final = 0.5
"""A frame without an acknowledgement is sent again after this time, then after twice as long."""
MAX_RESEND_S: Final = 4.0
RESEND_PAUSE_S: Final = 0.1
"""A second request to send again within this time is the first one repeated."""
UNACKNOWLEDGED_BYTES: Final = 8 * 1024 * 1024
"""Beyond this, records wait: the receiver or the link is slow."""


class ChannelOpened(Struct, frozen=True):
    """The other node is there: records may be sent."""


class ChannelLost(Struct, frozen=True):
    """All that was open over the channel is over. `text` says why, for people."""

    text: str


ChannelEvent = AnyRecord | ChannelOpened | ChannelLost


class _KeptFrame(Struct):
    number: int
    records: list[AnyRecord]
    size_bytes: int


class NodeChannel:
    """The channel to one other node. `new_id` returns an id that is greater than all before, also those of
    earlier processes: if it is not, a change is noticed only after `LOST_S`.
    """

    def __init__(self, new_id: Callable[[], int], now: float, frame_bytes: int = FRAME_BYTES) -> None:
        self.frame_bytes = frame_bytes
        """A frame takes no further record beyond this size."""
        self._new_id = new_id
        self._id = new_id()
        self._other = 0
        """The id of the other end; 0: the channel is not open."""
        self._waiting: deque[AnyRecord] = deque()
        self._kept: deque[_KeptFrame] = deque()
        """Frames that were sent and are not acknowledged."""
        self._kept_bytes = 0
        self._last_number = 0
        self._received = 0
        """The number of the last frame that was taken up."""
        self._is_missing = False
        self._unacknowledged_since: float | None = None
        """Since when a received frame waits for its acknowledgement."""
        self._heard_at = now
        self._sent_at = float("-inf")
        self._resend_at = float("inf")
        self._resend_s = RESEND_S
        self._resent_at = float("-inf")
        self._resend = False
        """The other end has asked for what is kept."""

    @property
    def is_open(self) -> bool:
        """True if both ends know each other."""
        return self._other != 0

    def send(self, record: AnyRecord) -> None:
        """Send a record. It is dropped while the channel is not open: nobody could know of its session."""
        if self._other:
            self._waiting.append(record)

    def link_restored(self, now: float) -> None:
        """The link works again after a cut: what is kept is sent again at once."""
        self._sent_at = float("-inf")
        if self._kept:
            self._resend_at, self._resend_s = now, RESEND_S

    # --- what comes in ---------------------------------------------------------------------------------

    def frame_received(self, frame: ChannelFrame, now: float) -> list[ChannelEvent]:
        """Take a frame of the other node and return what follows, in order."""
        if frame.target not in {0, self._id} or frame.source < self._other:
            return []  # of or for an end that is no more
        happened: list[ChannelEvent] = []
        if frame.source > self._other:
            if self._other:
                happened += self._drop("its process was started again, or it had not heard of this node")
            self._other = frame.source
            self._sent_at = float("-inf")  # it learns our id at once
            happened.append(ChannelOpened())
        self._heard_at = now
        if frame.target == 0:
            return happened  # it does not know us: what it may say of frames is of an earlier end
        self._acknowledged(frame.acknowledged, now)
        if frame.missing and now >= self._resent_at + RESEND_PAUSE_S:
            self._resend = bool(self._kept)
        if frame.number:
            happened += self._take(frame, now)
        return happened

    def _take(self, frame: ChannelFrame, now: float) -> Sequence[AnyRecord]:
        if self._unacknowledged_since is None:
            self._unacknowledged_since = now
        if frame.number != self._received + 1:
            if frame.number > self._received + 1 and not self._is_missing:
                self._is_missing = True
                self._unacknowledged_since = float("-inf")  # say so at once
            return ()
        self._received = frame.number
        self._is_missing = False
        return frame.records

    def _acknowledged(self, number: int, now: float) -> None:
        if not self._kept or number < self._kept[0].number:
            return
        while self._kept and self._kept[0].number <= number:
            self._kept_bytes -= self._kept.popleft().size_bytes
        self._resend_s = RESEND_S
        self._resend_at = now + RESEND_S if self._kept else float("inf")

    def tick(self, now: float) -> list[ChannelEvent]:
        """Time has passed."""
        if self._other and now >= self._heard_at + LOST_S:
            return self._lose(f"it was not heard for {LOST_S:g} s")
        return []

    def give_up(self, text: str) -> list[ChannelEvent]:
        """End the channel for this reason, if it is open."""
        return self._lose(text) if self._other else []

    def _lose(self, text: str) -> list[ChannelEvent]:
        """Give the other end up: it learns that from a new id of ours."""
        self._id = self._new_id()
        return self._drop(text)

    def _drop(self, text: str) -> list[ChannelEvent]:
        self._other = 0
        self._waiting.clear()
        self._kept.clear()
        self._kept_bytes = self._last_number = self._received = 0
        self._is_missing = self._resend = False
        self._unacknowledged_since = None
        self._resent_at = float("-inf")
        self._sent_at, self._resend_at, self._resend_s = float("-inf"), float("inf"), RESEND_S
        return [ChannelLost(text)]

    # --- what goes out ---------------------------------------------------------------------------------

    def take_frames(self, now: float) -> list[ChannelFrame]:
        """Return the frames to send now."""
        frames: list[ChannelFrame] = []
        if self._resend or now >= self._resend_at:
            self._resend, self._resent_at = False, now
            frames += [self._frame(each.number, each.records) for each in self._kept]
            self._resend_at = now + self._resend_s
            self._resend_s = min(2 * self._resend_s, MAX_RESEND_S)
        while self._waiting and self._kept_bytes < UNACKNOWLEDGED_BYTES:
            frames.append(self._next_frame(now))
        if not frames and (now >= self._sent_at + HEARTBEAT_S or now >= self._acknowledge_at):
            frames.append(self._frame(0, []))
        if frames:
            self._sent_at = now
            self._unacknowledged_since = None
        return frames

    def _next_frame(self, now: float) -> ChannelFrame:
        records: list[AnyRecord] = []
        size = 0
        while self._waiting and (not records or size + size_of(self._waiting[0]) <= self.frame_bytes):
            size += size_of(self._waiting[0])
            records.append(self._waiting.popleft())
        self._last_number += 1
        if not self._kept:
            self._resend_at, self._resend_s = now + RESEND_S, RESEND_S
        self._kept.append(_KeptFrame(self._last_number, records, size))
        self._kept_bytes += size
        return self._frame(self._last_number, records)

    def _frame(self, number: int, records: list[AnyRecord]) -> ChannelFrame:
        return ChannelFrame(
            CHANNEL_VERSION, self._id, self._other, number, self._received, self._is_missing, records
        )

    @property
    def _acknowledge_at(self) -> float:
        since = self._unacknowledged_since
        return float("inf") if since is None else since + ACKNOWLEDGE_S

    def next_deadline(self) -> float:
        """Return when `tick` and `take_frames` are due."""
        due = min(self._sent_at + HEARTBEAT_S, self._acknowledge_at, self._resend_at)
        return min(due, self._heard_at + LOST_S) if self._other else due

    def check(self) -> None:
        """Assert the invariants."""
        numbers = [each.number for each in self._kept]
        assert numbers == list(range(self._last_number - len(numbers) + 1, self._last_number + 1))
        assert self._kept_bytes == sum(each.size_bytes for each in self._kept)
        assert self._other or not (self._kept or self._waiting)
