"""What of a session a later broker must hear again, because the one that heard it has died.

Owns which messages of a client make its session what it is (its greeting, its level, each subscription until
it is taken back, the last list of each family; docs/decisions/0019), and the room for all that is kept of all
sessions. Invariants: what is kept was answered with a result; only the last of its kind is kept; it has an id
of ours, because a client may use its own again.

Knows nothing of: streams, exchanges, when a broker dies. What is said again of those is apart (`resume`), for
their records hold these.
"""

from typing import Final

from carpool.http.core.body import ClientMessage, texts_of

MAX_KEPT_BYTES: Final = 64 * 1024 * 1024
"""The limit of all that is kept for a later broker. What does not fit is told as lost when the
broker dies.
"""

Slot = tuple[str, bytes]
"""The kind of a message of which only the last one counts."""
GREETING: Final = ("greeting", b"")
READY: Final = ("ready", b"")
LEVEL: Final = ("level", b"")

_LISTS: Final = frozenset({"tools/list", "prompts/list", "resources/list", "resources/templates/list"})
REPEATABLE: Final = _LISTS | {
    "initialize",
    "ping",
    "logging/setLevel",
    "resources/subscribe",
    "resources/unsubscribe",
    "server/discover",
    "subscriptions/listen",
}
"""Requests that change nothing when they are sent twice."""
_OF_CONSEQUENCE: Final = REPEATABLE - {"ping", "server/discover", "subscriptions/listen"}
"""Requests that can make the session what it is."""


class KeepBudget:
    """The bytes that are kept, of all sessions together."""

    def __init__(self, max_bytes: int = MAX_KEPT_BYTES) -> None:
        self._max = max_bytes
        self.used_bytes = 0

    def reserve(self, line: bytes) -> bytes:
        """Return the line if there is room for it; otherwise an empty one."""
        size = len(line)
        if self.used_bytes + size > self._max:
            return b""
        self.used_bytes += size
        return line

    def release(self, line: bytes) -> None:
        """Release what `reserve` returned."""
        self.used_bytes -= len(line)


class KeptMessages:
    """The kept messages of one session. A slot is empty where there was no room."""

    def __init__(self, budget: KeepBudget) -> None:
        self._room = budget
        self._lines: dict[Slot, bytes] = {}
        self.pending: dict[tuple[int, bytes], tuple[Slot, bytes]] = {}
        """By exchange and id: the slot that its answer fills, and the line. Without a line the answer clears
        the slot.
        """
        self._last = 0

    def lines(self) -> list[bytes]:
        """Return the lines to send again, in order."""
        first = [self._lines[slot] for slot in (GREETING, READY) if slot in self._lines]
        return first + [line for slot, line in self._lines.items() if slot not in {GREETING, READY}]

    @property
    def has_state(self) -> bool:
        """True if the session has state that a later broker must get."""
        return bool(self._lines)

    @property
    def is_complete(self) -> bool:
        """True if a later broker can get all of it."""
        return GREETING in self._lines and all(self._lines.values())

    def request_sent(self, x: int, message: ClientMessage) -> None:
        """A request of the session goes to the broker, on exchange `x`."""
        if message.method not in _OF_CONSEQUENCE:
            return
        slot = _slot_of(message)
        if slot is not None:
            line = b"" if message.method == "resources/unsubscribe" else self._ours(message)
            self.pending[x, message.id] = (slot, line)

    def notification_sent(self, message: ClientMessage) -> None:
        """A notification of the session goes to the broker."""
        if message.method == "notifications/initialized":
            self.set_slot(READY, message.line)

    def request_answered(self, x: int, ident: bytes, *, is_error: bool) -> None:
        """A request was answered."""
        slot, line = self.pending.pop((x, ident), (None, b""))
        if slot is None or is_error:
            return
        if line:
            self.set_slot(slot, line)
        else:
            self._room.release(self._lines.pop(slot, b""))

    def exchange_ended(self, x: int) -> None:
        """No answer to a request of exchange `x` will come, or be read."""
        self.pending = {key: each for key, each in self.pending.items() if key[0] != x}

    def exchange_detached(self, x: int) -> None:
        """Answers to what came on exchange `x` come on none."""
        self.pending = {(0 if on == x else on, ident): each for (on, ident), each in self.pending.items()}

    def set_slot(self, slot: Slot, line: bytes) -> None:
        """From now on this is a part of the session."""
        self._room.release(self._lines.pop(slot, b""))
        self._lines[slot] = self._room.reserve(line)

    def clear(self) -> None:
        """The session is over."""
        for line in self._lines.values():
            self._room.release(line)
        self._lines.clear()
        self.pending.clear()

    @property
    def size_bytes(self) -> int:
        """Of what counts against the room."""
        return sum(map(len, self._lines.values()))

    def _ours(self, message: ClientMessage) -> bytes:
        self._last += 1
        return b'{"jsonrpc":"2.0","id":"carpool-%d","method":"%b","params":%b}' % (
            self._last,
            message.method.encode(),
            message.params or b"{}",
        )


def _slot_of(message: ClientMessage) -> Slot | None:
    match message.method:
        case "initialize":
            return GREETING
        case "logging/setLevel":
            return LEVEL
        case "resources/subscribe" | "resources/unsubscribe":
            return ("watch", bytes(texts_of(message.params).get("uri", b"")))
        case method if method in _LISTS and "cursor" not in texts_of(message.params):
            return ("list", method.encode())
        case _:
            return None
