"""What of a session a later broker must hear again, because the one that heard it has died.

Owns which messages of a client make its session what it is (its greeting, its level, each subscription until
it is taken back, the last list of each family; docs/decisions/0019). Invariants: what is kept was answered
with a result; only the last of its kind is kept; it has an id of ours, because a client may use its own
again; it counts in the share of the session's principal, also until its answer, and what stays of a message
without room there has the same size for all; what awaits an answer is forgotten with its request.

Knows nothing of: streams, exchanges, when a broker dies. What is said again of those is apart (`resume`), for
their records hold these.
"""

from hashlib import blake2b
from typing import Final

from carpool.http.core.body import ClientMessage, member_of
from carpool.http.core.shared_budgets import BudgetShare

MAX_KEPT_BYTES: Final = 64 * 1024 * 1024
"""The limit of all that is kept for a later broker, shared by the principals. What does not fit is told as
lost when the broker dies.
"""
MAX_KEPT_PARAMS_BYTES: Final = 64 * 1024
"""A message with longer params is not kept, also not until its answer: no client needs them, and what is kept
stays for as long as the session.
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


class KeptMessages:
    """The kept messages of one session. A slot is empty where there was no room."""

    def __init__(self, room: BudgetShare) -> None:
        self.room = room
        """The share of the session's principal."""
        self._lines: dict[Slot, bytes] = {}
        self.pending: dict[int, dict[bytes, tuple[Slot, bytes | None]]] = {}
        """By exchange, then by id: the slot that its answer fills, and the line, empty if it is too long to
        be kept or there was no room. None: the answer clears the slot.
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
            self.request_ended(x, message.id)  # the id is used again
            line = None if message.method == "resources/unsubscribe" else self._ours(message)
            if line and not self.room.reserve(len(line)):
                line = b""
            self.pending.setdefault(x, {})[message.id] = (slot, line)

    def notification_sent(self, message: ClientMessage) -> None:
        """A notification of the session goes to the broker."""
        if message.method == "notifications/initialized":
            self.set_slot(READY, message.line if len(message.params) <= MAX_KEPT_PARAMS_BYTES else b"")

    def request_answered(self, x: int, ident: bytes, *, is_error: bool) -> None:
        """A request was answered."""
        slot, line = self.request_ended(x, ident)
        if slot is None or is_error:
            return
        if line is None:
            self._clear_slot(slot)
        else:
            self.set_slot(slot, line)

    def request_ended(self, x: int, ident: bytes) -> tuple[Slot | None, bytes | None]:
        """No answer to this request will come, or be read. Returns its slot and line, as in `pending`."""
        requests = self.pending.get(x)
        if requests is None or ident not in requests:
            return None, None
        slot, line = requests.pop(ident)
        if not requests:
            del self.pending[x]
        self.room.release(len(line or b""))
        return slot, line

    def exchange_ended(self, x: int) -> None:
        """No answer to a request of exchange `x` will come, or be read."""
        for ident in list(self.pending.get(x, ())):
            self.request_ended(x, ident)

    def exchange_detached(self, x: int) -> None:
        """Answers to what came on exchange `x` come on none."""
        for ident, each in self.pending.pop(x, {}).items():
            self.request_ended(0, ident)
            self.pending.setdefault(0, {})[ident] = each

    def set_slot(self, slot: Slot, line: bytes) -> None:
        """From now on this is a part of the session."""
        self._clear_slot(slot)
        self._lines[slot] = line if self.room.reserve(len(line)) else b""

    def clear(self) -> None:
        """The session is over."""
        self.room.release(self.size_bytes)
        self._lines.clear()
        self.pending.clear()

    @property
    def size_bytes(self) -> int:
        """Of what counts against the room."""
        lines = [line for requests in self.pending.values() for _, line in requests.values() if line]
        return sum(map(len, (*self._lines.values(), *lines)))

    def _clear_slot(self, slot: Slot) -> None:
        self.room.release(len(self._lines.pop(slot, b"")))

    def _ours(self, message: ClientMessage) -> bytes:
        if len(message.params) > MAX_KEPT_PARAMS_BYTES:
            return b""
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
            # The line holds the URI, and counts; its name, which does not, has the same length for each.
            return ("watch", blake2b(member_of(message.params, "uri"), digest_size=16).digest())
        case method if method in _LISTS and not member_of(message.params, "cursor"):
            return ("list", method.encode())
        case _:
            return None
