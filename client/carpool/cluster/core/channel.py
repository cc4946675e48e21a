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

from carpool.cluster.core.frames import (
    CHANNEL_VERSION,
    FRAME_BYTES,
    AnyRecord,
    ChannelFrame,
    CloseRecord,
    size_of,
)
from carpool.cluster.core.record_queue import RecordQueue
from carpool.cluster.core.send_window import SendWindow

HEARTBEAT_S: Final = 1.0
"""A frame is sent at least this often."""
LOST_S: Final = 20.0
"""A node that was not heard for this long is lost."""
ACKNOWLEDGE_S: Final = 0.05
"""Records are acknowledged after this time at the latest, or with the next frame."""
RESEND_PAUSE_S: Final = 0.1
"""A second request to send again within this time is the first one repeated."""
LOST_FRAMES: Final = 2
"""The number of frames that are sent again first after a loss. Each acknowledgement doubles it."""
STUCK_S: Final = 60.0
"""A node that is heard and acknowledges nothing for this time is lost: what it is sent must not pile up."""
MAX_CLOSES: Final = 40_000
"""A node for which the ends of more sessions wait is lost: it opens more than it takes answers to."""


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
    sent_at: float
    """When it was sent first, or was known to be lost. An acknowledgement may be for the first time, on a
    link slower than was known.
    """


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
        self._waiting = RecordQueue()
        self._window = SendWindow()
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
        self._resend_s = self._window.resend_s
        self._resent_at = float("-inf")
        self._resend_from = 0
        """Kept frames from this number on are sent again with the next frames; 0: none."""
        self._probed = 0
        """The last frame that was sent when an acknowledgement was late; 0: none was."""
        self._probe_frames = 0
        """The number of frames that the next acknowledgement lets be sent again."""
        self._progress_at = now
        """When kept frames were last acknowledged, or there were none."""

    @property
    def is_open(self) -> bool:
        """True if both ends know each other."""
        return self._other != 0

    def waiting(self, kind: type[AnyRecord]) -> int:
        """Return the number of records of a kind that wait to be sent."""
        return self._waiting.count(kind)

    def send(self, record: AnyRecord) -> None:
        """Send a record. It is dropped while the channel is not open: nobody could know of its session."""
        if self._other:
            self._waiting.put(record)

    def link_restored(self, now: float) -> None:
        """The link works again after a cut: what is kept is sent again, the first frames at once."""
        self._sent_at = float("-inf")
        if self._kept:
            self._window.link_cut(now)
            self._send_lost_again(now)

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
        if frame.missing and self._kept and now >= self._resent_at + self._resend_pause_s:
            self._send_lost_again(now)
        if frame.number:
            happened += self._take(frame, now)
        return happened

    @property
    def _resend_pause_s(self) -> float:
        return max(RESEND_PAUSE_S, 1.5 * self._window.usual_s)

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
        before = self._kept[0].number
        while self._kept and self._kept[0].number <= number:
            frame = self._kept.popleft()
            self._kept_bytes -= frame.size_bytes
            self._window.acknowledged(frame.size_bytes, frame.sent_at, now)
        self._progress_at = now
        self._resend_s = self._window.resend_s
        self._resend_at = now + self._resend_s if self._kept else float("inf")
        if before <= self._probed:
            self._probe_on(number)

    def _probe_on(self, number: int) -> None:
        """A late acknowledgement has come: send more again, until all of that time are acknowledged."""
        if number >= self._probed or not self._kept:
            self._probed = 0
            return
        self._probe_frames *= 2
        self._resend_from = self._kept[0].number

    def tick(self, now: float) -> list[ChannelEvent]:
        """Time has passed."""
        if self._other and now >= self._heard_at + LOST_S:
            return self._lose(f"it was not heard for {LOST_S:g} s")
        if self._kept and now >= self._progress_at + STUCK_S:
            return self._lose(f"it is heard, and has taken nothing up for {STUCK_S:g} s")
        if self.waiting(CloseRecord) > MAX_CLOSES:
            return self._lose("it opens sessions faster than it takes our refusals")
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
        self._is_missing = False
        self._resend_from = self._probed = 0
        self._unacknowledged_since = None
        self._resent_at = float("-inf")
        self._window = SendWindow()
        self._sent_at, self._resend_at, self._resend_s = float("-inf"), float("inf"), self._window.resend_s
        return [ChannelLost(text)]

    # --- what goes out ---------------------------------------------------------------------------------

    def take_frames(self, now: float) -> list[ChannelFrame]:
        """Return the frames to send now."""
        frames: list[ChannelFrame] = []
        if self._kept and now >= self._resend_at:
            self._send_first_again(1)  # alone: on a slow link the others are still on their way
            self._resend_s = min(2 * self._resend_s, self._window.max_resend_s)
        if self._resend_from:
            frames += self._frames_again(now)
        while self._waiting and self._kept_bytes < self._window.size_bytes:
            frames.append(self._next_frame(now))
        if not frames and (now >= self._sent_at + HEARTBEAT_S or now >= self._acknowledge_at):
            frames.append(self._frame(0, []))
        if frames:
            self._sent_at = now
            self._unacknowledged_since = None
        return frames

    def _send_lost_again(self, now: float) -> None:
        """Send the frames again that the other end lacks, the first ones alone. If all went at once, a link
        that is cut after so many bytes would be cut before any is acknowledged. The time until their
        acknowledgement counts from now.
        """
        for each in self._kept:
            each.sent_at = now
        self._send_first_again(LOST_FRAMES)

    def _send_first_again(self, frames: int) -> None:
        self._probed, self._probe_frames = self._last_number, frames
        self._resend_from = self._kept[0].number

    def _frames_again(self, now: float) -> list[ChannelFrame]:
        again = [each for each in self._kept if each.number >= self._resend_from]
        if self._probed:
            again = again[: self._probe_frames]
        self._resend_from, self._resent_at = 0, now
        self._resend_at = now + self._resend_s
        return [self._frame(each.number, each.records) for each in again]

    def _next_frame(self, now: float) -> ChannelFrame:
        records: list[AnyRecord] = []
        size = 0
        window = self._window.size_bytes
        # A quarter: on a slow link a great frame is acknowledged late only because it is great.
        room = min(self.frame_bytes, window // 4, window - self._kept_bytes)
        while self._waiting and (not records or size + size_of(self._waiting.first) <= room):
            record = self._waiting.take()
            size += size_of(record)
            records.append(record)
        self._last_number += 1
        if not self._kept:
            self._resend_s = self._window.resend_s
            self._resend_at = now + self._resend_s
            self._progress_at = now
        self._kept.append(_KeptFrame(self._last_number, records, size, now))
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
        if self._kept:
            due = min(due, self._progress_at + STUCK_S)
        return min(due, self._heard_at + LOST_S) if self._other else due

    def check(self) -> None:
        """Assert the invariants."""
        numbers = [each.number for each in self._kept]
        assert numbers == list(range(self._last_number - len(numbers) + 1, self._last_number + 1))
        assert self._kept_bytes == sum(each.size_bytes for each in self._kept)
        assert self._other or not (self._kept or self._waiting)
