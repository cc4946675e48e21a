"""Delivery log of one connection: lines sent and received, and how many are settled (docs/decisions/0019,
0030).

For a carrier that keeps lines. Owns the request of each line of the agent, the lines that make the session
what it is, open asks, and when the carrier gets a report. The report has names of lines (`carrier_contract`),
which both sides compute; the line numbers in here are internal. Pure; callers pass the meaning of a line
(`era.handshake.read_line`).

Invariants: a request is open from its line to its answer, and its line is reported as open all that time. A
line that becomes part of the session is reported as kept before the carrier has the answer that makes it so.
An answer to an ask stays open as long as the ask's call, because only the end of the call shows that it
arrived.

Knows nothing of: sockets, the content of lines (except if an answer is an error), the text of a report.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from carpool_broker.core.model.events import (
    AskAnswered,
    BrokerEvent,
    CallRequested,
    InitializedReceived,
    InitializeRequested,
    ListenRequested,
    ListenResumed,
    ListPageRequested,
    LogLevelRequested,
    RequestCancelled,
    SubscribeRequested,
)
from carpool_protocol.bootstrap.carrier_contract import name_of
from carpool_protocol.carrier.attach_line import Settled
from carpool_protocol.ids import ABSENT, AskId, Epoch, RawJson
from carpool_protocol.wire.jsonrpc import is_error_line
from carpool_protocol.wire.lines import OverlongLine, name_of_any

SETTLE_BYTES: Final = 16 * 1024
SETTLE_LINES: Final = 64
"""After this much unsettled traffic the carrier gets a report. It bounds what it keeps besides open lines.
After a report that names more lines the next one comes after as many, so that reports do not cost more than
the lines.

With 64 KiB and 512 lines shims grew by 0.7 MB that they never gave back.
"""

_REFUSED_TWICE: Final = b'"code":"duplicate_request_id"'

Slot = tuple[str, str]
"""A kind of line (a session's greeting, its log level, one subscription …). Only the last line of a kind
counts.
"""
GREETING: Final = ("greeting", "")
READY: Final = ("ready", "")


class _PendingRequest:
    """A request that becomes part of the session with its answer, or ends a part of it."""

    __slots__ = ("line", "slot", "stays")

    def __init__(self, slot: Slot, line: int, *, stays: bool) -> None:
        self.slot = slot
        self.line = line
        self.stays = stays

    def is_before(self, other: "_PendingRequest") -> bool:
        """True if `other` is a later request for the same slot."""
        return self.slot == other.slot and self.line < other.line


class _OpenBatch:
    """Requests of one line: answers to some are needed until all are answered."""

    __slots__ = ("held", "left")

    def __init__(self) -> None:
        self.left = 0
        self.held: list[int] = []


class DeliveryLog:
    """The delivery log of one connection."""

    __slots__ = (
        "_acks", "_asked_earlier", "_asks", "_batch_of", "_batches", "_bytes_left", "_duplicates",
        "_kept", "_lines_left", "_listens", "_names", "_open", "_pending", "_ready", "_received",
        "_silent", "_special", "_stateful", "_unsent_names", "due", "epoch",
    )  # fmt: skip

    def __init__(self, epoch: Epoch, stateful: Sequence[str] = ()) -> None:
        self.epoch = epoch
        """The supervisor of all open requests; empty: none."""
        self._received = 0
        """Number of lines received from the agent."""
        self._unsent_names: list[int] = []
        """Names of the lines received since the last report."""
        self._names: dict[int, int] = {}
        """Names of earlier lines that are still needed, by line number."""
        self._bytes_left = SETTLE_BYTES
        """The carrier needs a report after so many more bytes, or lines."""
        self._lines_left = SETTLE_LINES
        self.due = False
        """True: the carrier needs a report now."""
        self._open: dict[RawJson, int] = {}
        """Request without an answer → its line."""
        self._duplicates: dict[RawJson, list[int]] = {}
        """Lines of later requests with the id of an open one."""
        self._special: set[RawJson] = set()
        """Open requests with an answer that has further effects here; listens also while in force."""
        self._kept: dict[Slot, int] = {}
        self._pending: dict[RawJson, _PendingRequest] = {}
        self._batch_of: dict[RawJson, list[int]] = {}
        """Lines that stay open as long as a request. Under `ABSENT`: as long as any request."""
        self._ready = 0
        """The line of `initialized` that came before the answer to the greeting; 0: none."""
        self._listens: set[RawJson] = set()
        """Requests of `subscriptions/listen` without an acknowledgement."""
        self._acks: dict[RawJson, int] = {}
        """Listen in force → name of the line with its acknowledgement.

        For a replayed listen the carrier's own copy counts, and the repeated acknowledgement is not sent.
        """
        self._asks: dict[AskId, tuple[int, RawJson]] = {}
        """Open ask → name of its line, and the request that it belongs to."""
        self._batches: dict[int, _OpenBatch] = {}
        self._silent: set[RawJson] = set()
        """Replayed requests: the first line about one is not sent to the agent."""
        self._stateful = stateful
        """Servers at which the session may have state."""
        self._asked_earlier: set[AskId] = set()
        """Asks of an earlier broker; the request of each is not known."""

    # --- the agent's lines ---

    def line_received(self, meaning: object, line: bytes | OverlongLine) -> None:
        """Record a line of the agent, before it has any effect."""
        self._received += 1
        self._lines_left -= 1
        self._unsent_names.append(name_of_any(line))
        if isinstance(line, bytes):
            self._bytes_left -= len(line)
        if self._lines_left <= 0 or self._bytes_left <= 0:
            self.due = True
        if type(meaning) is CallRequested:
            if meaning.id in self._open:
                self._duplicates.setdefault(meaning.id, []).append(self._received)
            else:
                self._open[meaning.id] = self._received
        elif meaning is not None:
            self._add_request(meaning)

    def batch_part_received(self, meaning: object) -> None:
        """Record a part of the last line, which is a batch."""
        if isinstance(meaning, RequestCancelled | AskAnswered):
            self._add_request(meaning)
        elif (request := getattr(meaning, "id", None)) is not None and isinstance(meaning, BrokerEvent):
            self._open[request] = self._received
            self._special.add(request)
            self._batches.setdefault(self._received, _OpenBatch()).left += 1

    def line_replayed(self, meaning: object) -> None:
        """Mark the last line as replayed: the agent already has its answer, which is not sent again."""
        if isinstance(meaning, RequestCancelled | ListenResumed):
            return
        request = getattr(meaning, "id", None)
        if request is not None:
            self._silent.add(request)

    def resumed(self, asks: Iterable[AskId]) -> None:
        """End the replay of kept lines, which the carrier does not count as lines of this connection.

        `asks`: asks of the earlier broker.
        """
        self._asked_earlier.update(asks)
        self._drop_unused_names()
        self.due = True

    def _add_request(self, meaning: object) -> None:  # noqa: C901 - an arm per event
        line = self._received
        match meaning:
            case RequestCancelled() if meaning.id in self._silent and meaning.id not in self._listens:
                pass  # the agent has its answer
            case RequestCancelled():
                self._request_closed(meaning.id, is_error=True)
            case AskAnswered():
                asked = self._asks.pop(meaning.ask, None)
                request: RawJson | None = ABSENT if asked is None else asked[1]
                if request and request in self._open:
                    self._special.add(request)
                    self._batch_of.setdefault(request, []).append(line)
                elif meaning.ask in self._asked_earlier:
                    self._asked_earlier.discard(meaning.ask)
                    self._batch_of.setdefault(ABSENT, []).append(line)
            case InitializedReceived():
                greeting = next((each for each, p in self._pending.items() if p.slot == GREETING), None)
                if greeting is None:
                    self._kept[READY] = line
                    self.due = True
                else:
                    self._batch_of.setdefault(greeting, []).append(line)
                    self._ready = line
            case InitializeRequested():
                self._await_answer(meaning.id, GREETING)
            case LogLevelRequested():
                self._await_answer(meaning.id, ("level", ""))
            case SubscribeRequested():
                self._await_answer(meaning.id, ("watch", meaning.uri), stays=meaning.on)
            case ListPageRequested(by=None, cursor=None):
                self._await_answer(meaning.id, ("list", meaning.family))
            case ListenResumed():
                self._kept["granted", str(meaning.id)] = line
            case ListenRequested():
                self._open[meaning.id] = line
                self._listens.add(meaning.id)
                self._special.add(meaning.id)
            case _:
                request = getattr(meaning, "id", None)
                if request is not None:
                    self._open[request] = line

    def _await_answer(self, request: RawJson, slot: Slot, *, stays: bool = True) -> None:
        self._open[request] = self._received
        self._special.add(request)
        self._pending[request] = _PendingRequest(slot, self._received, stays=stays)
        self.due = True

    # --- the broker's lines ---

    def line_sent(self, line: bytes, about: RawJson, *, answers: bool) -> bool:
        """Record a line for the agent. False: it must not be sent, because the agent has it."""
        if about and about in self._silent:
            self._silent.discard(about)
            if answers:
                self._request_closed(about, is_error=is_error_line(line, about))
            elif about in self._listens:
                self._listen_acknowledged(about)
            return False
        self._lines_left -= 1
        self._bytes_left -= len(line)
        if self._lines_left <= 0 or self._bytes_left <= 0:
            self.due = True
        if answers:
            if self._duplicates and about in self._duplicates:
                self._answered_duplicate(about, line)
            elif about in self._special:
                self._request_closed(about, is_error=is_error_line(line, about), answer=line)
            else:
                self._open.pop(about, None)
        elif self._listens and about in self._listens:
            self._acks[about] = _own_listen_id(line)
            self._listen_acknowledged(about)
        return True

    def _answered_duplicate(self, about: RawJson, line: bytes) -> None:
        """Record the answer to one of several requests with this id.

        A later one is refused, unless the first was answered by then.
        """
        if _REFUSED_TWICE in line and is_error_line(line, about):
            self._drop_duplicate(about)
        else:
            self._request_closed(about, is_error=is_error_line(line, about), answer=line)

    def _drop_duplicate(self, request: RawJson) -> int:
        later = self._duplicates[request]
        line = later.pop(0)
        if not later:
            del self._duplicates[request]
        return line

    def ask_sent(self, ask: AskId, request: RawJson, line: bytes) -> None:
        """Record that the last line is this ask, for this request."""
        if request in self._open:
            self._asks[ask] = (_own_listen_id(line), request)
            self._special.add(request)

    def ask_withdrawn(self, ask: AskId) -> None:
        """Record that the last line withdraws this ask: the agent need not answer it any more."""
        self._asks.pop(ask, None)
        self._asked_earlier.discard(ask)

    def _listen_acknowledged(self, request: RawJson) -> None:
        self._listens.discard(request)
        line = self._open.pop(request, None)
        if line is not None:
            self._kept["listen", str(request)] = line
            self.due = True

    def _request_closed(self, request: RawJson, *, is_error: bool, answer: bytes = b"") -> None:
        """Record the end of a request: this answer, or no answer."""
        line = self._open.pop(request, None)
        self._special.discard(request)
        self._silent.discard(request)
        self._listens.discard(request)
        if line is None or ("listen", str(request)) not in self._kept:
            # Otherwise it is another request with the id of that listen, and is refused.
            if self._kept.pop(("listen", str(request)), None) is not None:
                self.due = True
            self._kept.pop(("granted", str(request)), None)
            self._acks.pop(request, None)
        self._batch_of.pop(request, None)
        for ask in [ask for ask, (_, for_) in self._asks.items() if for_ == request]:
            del self._asks[ask]
        pending = self._pending.pop(request, None)
        if pending is not None and not is_error and self._kept.get(pending.slot, 0) < pending.line:
            for other in [request for request, each in self._pending.items() if each.is_before(pending)]:
                del self._pending[other]  # a later request has taken its slot, so its answer does not count
            if pending.stays:
                self._kept[pending.slot] = pending.line
            else:
                self._kept.pop(pending.slot, None)
            if pending.slot == GREETING and self._ready:
                self._kept[READY] = self._ready
        batch = self._batches.get(line or 0)
        if batch is not None:
            batch.left -= 1
            if answer:
                batch.held.append(_own_listen_id(answer))
            if not batch.left:
                del self._batches[line or 0]
        if request in self._duplicates:
            self._open[request] = self._drop_duplicate(request)

    # --- reports to the carrier ---

    def set_supervisor_epoch(self, epoch: Epoch) -> None:
        """All open and later requests belong to this supervisor."""
        if epoch != self.epoch:
            self.epoch = epoch
            self.due = True

    def set_stateful_servers(self, servers: Sequence[str]) -> None:
        """The session may have state at these servers."""
        self._stateful = servers
        self.due = True

    def take_settled(self) -> Settled:
        """The report for the carrier. The caller must send it."""
        self.due = False
        if not self._open:
            self._batch_of.clear()
        # The agent has an answer to a replayed request, so it is not open.
        silent = {line for request in self._silent if (line := self._open.get(request)) is not None}
        listens = {self._open[request] for request in self._silent & self._listens}
        riding = (line for lines in (*self._batch_of.values(), *self._duplicates.values()) for line in lines)
        open_ = {*self._open.values(), *riding} - silent
        kept = {*self._kept.values(), *(each.line for each in self._pending.values()), *listens}
        held = [*self._acks.values(), *(line for line, _ in self._asks.values())]
        last = self._unsent_names[-1] if self._unsent_names else 0
        times = self._unsent_names.count(last)
        held += [line for batch in self._batches.values() for line in batch.held]
        self._drop_unused_names()
        named = max(SETTLE_LINES, len(open_ | kept) + len(held))
        self._lines_left, self._bytes_left = named, named * SETTLE_BYTES // SETTLE_LINES
        return Settled(
            self.epoch,
            last,
            times,
            self._named_lines(open_ - kept),
            self._named_lines(kept - open_),
            self._named_lines(open_ & kept),
            held,
            self._stateful,
        )

    def _named_lines(self, lines: Iterable[int]) -> list[int]:
        return [self._names[line] for line in sorted(lines)]

    def _drop_unused_names(self) -> None:
        """Forget the names of lines that no longer count."""
        first = self._received - len(self._unsent_names) + 1
        counting = {
            *self._open.values(),
            *self._kept.values(),
            *(each.line for each in self._pending.values()),
            *(line for lines in (*self._batch_of.values(), *self._duplicates.values()) for line in lines),
            *([self._ready] if self._ready else []),
        }
        self._names = {n: self._unsent_names[n - first] if n >= first else self._names[n] for n in counting}
        self._unsent_names.clear()

    def check(self) -> None:
        """Assert every invariant."""
        assert self._special.issuperset(self._pending)
        assert self._open.keys() >= self._duplicates.keys()
        in_force = {request for request in self._special if ("listen", str(request)) in self._kept}
        assert self._special <= self._open.keys() | in_force
        assert all(line <= self._received for line in self._open.values())
        assert all(request in self._open for _, request in self._asks.values())
        assert self._listens.issubset(self._open)
        assert all(("listen", str(request)) in self._kept for request in self._acks)
        assert all(request in self._open or not request for request in self._batch_of)


def _own_listen_id(line: bytes) -> int:
    return name_of(line.removesuffix(b"\n"))
