"""The stream of states for those who watch the web page: `GET /operator/live`.

Owns who watches, when the broker is asked, and which state each watcher gets. The broker is asked at
most once a second for all watchers together, however often they come, and only while one of them has read
everything that it was sent: no watchers, or only frozen ones, cost nothing. Where a reading costs the door
much, the pause after it is longer, so that watchers take a tenth of the door at most. A watcher gets the
newest state when it has room, and never an older one that it has missed.

Where no further one may watch, a newcomer takes the place of the one that has left something unread for
longest, and for `FROZEN_S` at least. The system keeps small states for a client that does not read, often for
minutes. So those that watch are sent a long comment then: who does not read it is soon known.

Invariants: at most one request to the broker is open; at most one state of each watcher is unread; there are
at most `MAX_WATCHERS`. Knows nothing of: tokens, what a state holds (`live_state`), sockets, when a
connection that does not read is cut (`connection`).
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import msgspec

from carpool.http.core import own_requests
from carpool.http.core.body import INTERNAL_ERROR, INVALID_REQUEST
from carpool.http.core.effects import (
    BeginEvents,
    EndEvents,
    HttpRequest,
    Respond,
    WriteEvents,
    event_bytes,
    refusal,
)
from carpool.http.core.live_state import LiveState
from carpool.http.core.routing import ExchangeTable
from carpool.http.core.web_page import SAFE_HEADERS
from carpool_protocol.config.schema.model import OperatorRight

LIVE_PATH: Final = "/operator/live"
EVERY_S: Final = 0.95
"""Two readings are so far apart at least. A little less than the second between two calls of `tick`, so that
no call comes just too early.
"""
PAUSE_FACTOR: Final = 10.0
"""The pause after a reading is as many times as long as the door has worked on it, if that is longer."""
READING_S: Final = 5.0
"""The broker is given up after this long, and asked again."""
MAX_WATCHERS: Final = 64
MAX_OF_PRINCIPAL: Final = 32
"""Watchers with the same token."""
FROZEN_S: Final = 10.0
"""A watcher that leaves something unread for this long gives way to a newcomer."""
COMMENT_BYTES: Final = 512 * 1024
"""More than the system keeps for a client that does not read."""
COMMENT_EVERY_S: Final = 30.0
"""The shortest time between two long comments."""
AWAY_EVENT: Final = event_bytes(b"{}", name=b"away")
"""Says that the broker does not answer."""
_HEADERS: Final = (*SAFE_HEADERS, ("X-Accel-Buffering", "no"))


class _Watcher:
    """One client that watches."""

    __slots__ = ("blocked_since", "principal", "seen")

    def __init__(self, principal: str) -> None:
        self.principal = principal
        self.blocked_since = float("inf")
        """The time since when it leaves something unread; `inf`: it does not."""
        self.seen = 0
        """The number of the last state that it was sent."""

    @property
    def is_blocked(self) -> bool:
        return self.blocked_since < float("inf")


class LiveStreams:
    """All watchers of one door."""

    def __init__(self, table: ExchangeTable, cpu_s: Callable[[], float]) -> None:
        """`cpu_s`: the time that the door has worked so far."""
        self._table = table
        self._cpu_s = cpu_s
        self._watchers: dict[int, _Watcher] = {}
        self._state: LiveState | None = None
        """None while nobody watches."""
        self._event = b""
        """The newest event; empty before the first one."""
        self._number = 0
        """The number of states so far."""
        self._is_reading = False
        self._has_ended = False
        """True once the door ends."""
        self.cluster: Mapping[str, Any] | None = None
        """The section `cluster` of `carpool status --json`."""
        self._next_at = float("-inf")
        """The broker is not asked before this time."""
        self._comment_at = float("-inf")
        """No long comment is sent before this time."""

    def watch(
        self,
        x: int,
        request: HttpRequest,
        principal: str,
        right: OperatorRight,
        now: float,
        *,
        linked: bool,
    ) -> Respond | None:
        """Begin a stream. `right`: what the client may do; that it may read was checked."""
        if request.method != "GET":
            return refusal(x, 405, INVALID_REQUEST, "GET only", Allow="GET")
        if self._has_ended:
            return refusal(x, 503, INTERNAL_ERROR, "the HTTP door ends", Retry_After="1")
        of_principal = [at for at, each in self._watchers.items() if each.principal == principal]
        crowd = of_principal if len(of_principal) >= MAX_OF_PRINCIPAL else list(self._watchers)
        is_full = crowd is of_principal or len(crowd) >= MAX_WATCHERS
        if is_full and not self._end_frozen(crowd, now):
            self._send_comment(crowd, now)
            count = len(of_principal)
            text = f"{count} pages of this token and {len(self._watchers)} of all watch: close some"
            return refusal(x, 503, INTERNAL_ERROR, text, Retry_After="5")
        self._watchers[x] = watcher = _Watcher(principal)
        hello = event_bytes(msgspec.json.encode({"right": right}), name=b"hello")
        self._table.out += [BeginEvents(x, _HEADERS, is_watched=True), WriteEvents(x, hello)]
        if self._state is None:
            self._state = LiveState()
        if self._event:
            self._write(x, watcher)
        self._read(now, linked=linked)
        return None

    def _send_comment(self, crowd: Iterable[int], now: float) -> None:
        """Send these watchers a long comment, if it is time: one that does not read it counts as blocked."""
        if now >= self._comment_at:
            self._comment_at = now + COMMENT_EVERY_S
            comment = b":%b\n\n" % (b" " * COMMENT_BYTES)
            self._table.out += [WriteEvents(x, comment) for x in crowd if not self._watchers[x].is_blocked]

    def _end_frozen(self, crowd: Iterable[int], now: float) -> bool:
        """End the stream of that one of these which has been blocked longest. False: none is frozen."""
        x = min(crowd, key=lambda each: self._watchers[each].blocked_since)
        if now - self._watchers[x].blocked_since < FROZEN_S:
            return False
        del self._watchers[x]
        self._table.out.append(EndEvents(x))
        return True

    def client_gone(self, x: int) -> bool:
        """The client of an HTTP request disconnected. Returns True if it was a watcher."""
        return self._watchers.pop(x, None) is not None

    def client_blocked(self, x: int, now: float) -> None:
        """A watcher leaves something unread."""
        if (watcher := self._watchers.get(x)) is not None:
            watcher.blocked_since = now

    def client_has_room(self, x: int) -> None:
        """A watcher has read everything. It gets the newest state, if it has not had that."""
        if (watcher := self._watchers.get(x)) is not None:
            watcher.blocked_since = float("inf")
            self._write(x, watcher)

    def broker_lost(self) -> None:
        """The broker is gone: watchers are told, and the next one's recent calls have other numbers."""
        if self._state is not None:
            self._state.forget_recent()
            self._publish(AWAY_EVENT)

    def end_principals(self, stays: Callable[[str], bool]) -> None:
        """End the streams of principals that may no longer come in."""
        for x, watcher in list(self._watchers.items()):
            if not stays(watcher.principal):
                del self._watchers[x]
                self._table.out.append(EndEvents(x))

    def end_all(self) -> None:
        """The door ends: end all streams, and begin none any more."""
        self._has_ended = True
        self.end_principals(lambda _: False)

    def tick(self, now: float, *, linked: bool) -> None:
        """Ask the broker, if somebody reads and it is time; to be called at each beat of the door."""
        if self._watchers:
            self._read(now, linked=linked)
        elif not self._is_reading:
            self._state, self._event = None, b""

    def check(self) -> None:
        """Assert every invariant."""
        assert len(self._watchers) <= MAX_WATCHERS
        assert all(each.seen <= self._number for each in self._watchers.values())

    def _read(self, now: float, *, linked: bool) -> None:
        if self._is_reading or now < self._next_at:
            return
        if all(each.is_blocked for each in self._watchers.values()):
            return
        self._next_at = now + EVERY_S
        if not linked:
            self._publish(AWAY_EVENT)
            return
        state = self._state
        assert state is not None
        after = state.newest

        def found(answers: list[bytes] | None, now: float) -> None:
            self._is_reading = False
            began_s = self._cpu_s()
            read = None if answers is None else own_requests.read_live(answers, after)
            self._publish(
                AWAY_EVENT if read is None else event_bytes(state.add(read, self.cluster), name=b"state")
            )
            self._next_at = max(self._next_at, now + PAUSE_FACTOR * (self._cpu_s() - began_s))

        self._is_reading = True
        stream = self._table.shared_stream("control", ("", "", "", "", 0), now)
        dialogue = own_requests.live(after)
        x = self._table.next_number()
        self._table.start_own_request(x, stream, dialogue, found, now, is_repeatable=False, limit_s=READING_S)

    def _publish(self, event: bytes) -> None:
        """Make this the newest event, and send it to those who have room."""
        self._event = event
        self._number += 1
        for x, watcher in self._watchers.items():
            self._write(x, watcher)

    def _write(self, x: int, watcher: _Watcher) -> None:
        if not watcher.is_blocked and watcher.seen < self._number:
            watcher.seen = self._number
            self._table.out.append(WriteEvents(x, self._event))
