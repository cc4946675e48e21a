"""The bytes that a channel may have under way, by how long acknowledgements take.

On a slow link more bytes under way get nothing through sooner: they wait in buffers, heartbeats and the NATS
client's pings wait behind them, and a link that works looks dead. So the window grows while acknowledgements
come as quickly as they ever did, and shrinks when they come later. Owns the time after which a frame without
an acknowledgement counts as lost, too.

Knows nothing of: frames, clocks (`now` is given). docs/decisions/0056 has the reasons.
"""

from typing import Final

MAX_WINDOW_BYTES: Final = 8 * 1024 * 1024
START_WINDOW_BYTES: Final = 128 * 1024
MIN_WINDOW_BYTES: Final = 64 * 1024
RESEND_S: Final = 0.5
"""A frame without an acknowledgement is sent again after this time at the earliest."""
MAX_RESEND_S: Final = 4.0
"""The longest pause between two attempts, on a link that was not seen to be slower."""
QUICK_S: Final = 0.3
"""An acknowledgement that takes so much longer than the quickest one lets the window grow."""
LATE_S: Final = 1.0
"""One that takes so much longer makes it shrink."""


class SendWindow:
    """The window of one channel."""

    def __init__(self) -> None:
        self.size_bytes = START_WINDOW_BYTES
        self._quickest_s = float("inf")
        """How long the quickest acknowledgement took. It is measured again when the link
        has become slower, with the smallest window.
        """
        self.usual_s = 0.0
        """The time that an acknowledgement takes, smoothed; 0: none has come."""
        self._shrunk_at = float("-inf")

    @property
    def resend_s(self) -> float:
        """Return the time after which a frame without an acknowledgement is sent again."""
        return max(RESEND_S, 2 * self.usual_s)

    @property
    def max_resend_s(self) -> float:
        """Return the longest pause between two attempts."""
        return max(MAX_RESEND_S, 2 * self.usual_s)

    def link_cut(self, now: float) -> None:
        """The link was cut with bytes under way: it may be so many that cut it."""
        self._shrunk_at = now
        self.size_bytes = max(self.size_bytes // 2, MIN_WINDOW_BYTES)

    def acknowledged(self, size_bytes: int, sent_at: float, now: float) -> None:
        """A frame of this size is acknowledged. `sent_at`: when it was sent first."""
        took_s = now - sent_at
        self._quickest_s = min(self._quickest_s, took_s)
        self.usual_s = took_s if not self.usual_s else self.usual_s + (took_s - self.usual_s) / 4
        if took_s <= self._quickest_s + QUICK_S:
            self.size_bytes = min(self.size_bytes + size_bytes, MAX_WINDOW_BYTES)
        elif took_s > self._quickest_s + LATE_S and sent_at >= self._shrunk_at:
            self._shrunk_at = now  # frames that were sent before tell nothing of the smaller window
            if self.size_bytes == MIN_WINDOW_BYTES:
                self._quickest_s = took_s  # with so little under way it is the link that became slower
            self.size_bytes = max(self.size_bytes // 2, MIN_WINDOW_BYTES)
