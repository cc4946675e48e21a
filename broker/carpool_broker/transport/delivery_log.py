"""What has passed on one connection that keeps, and what of it is settled (docs/decisions/0019, 0030).

Owns which line of the agent is which request, which lines make the session what it is, which questions are
open, and when the carrier is to be told. The carrier is told names of lines (`carrier_contract`), which both
sides compute of what passed; the numbers by which lines go in here nobody else has. Pure; what a line means
is told (`era.handshake.read`).

Invariants: a request is open from its line to its answer, and its line is told as open all that time; what a
session is made of is told as kept before the carrier has the answer that makes it so; an answer to a question
stays open as long as the call that it is for, because only the end of that shows that it has arrived.

Knows nothing of: sockets, what lines hold (but whether an answer is an error), how a settled line is worded.
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
from carpool_protocol.carrier.attach import Settled
from carpool_protocol.ids import ABSENT, AskId, Epoch, RawJson
from carpool_protocol.wire.jsonrpc import is_error_line
from carpool_protocol.wire.lines import OverlongLine, name_of_any

SETTLE_BYTES: Final = 16 * 1024
SETTLE_LINES: Final = 64
"""After so much unsettled traffic the carrier is told: what it keeps besides what is open. With 64 KiB and
512 lines shims grew by 0.7 MB that they never gave back.
"""

_REFUSED_TWICE: Final = b'"code":"duplicate_request_id"'

Slot = tuple[str, str]
"""What only the last line of its kind counts for: a session's greeting, its level, one subscription …"""
GREETING: Final = ("greeting", "")
READY: Final = ("ready", "")


class _PendingRequest:
    """A request that its answer makes a part of the session, or takes one out."""

    __slots__ = ("line", "slot", "stays")

    def __init__(self, slot: Slot, line: int, *, stays: bool) -> None:
        self.slot = slot
        self.line = line
        self.stays = stays

    def is_before(self, other: "_PendingRequest") -> bool:
        """It says of the same thing what the other one has said since."""
        return self.slot == other.slot and self.line < other.line


class _OpenBatch:
    """Requests that came in one line: the answers to some are needed until all are answered."""

    __slots__ = ("held", "left")

    def __init__(self) -> None:
        self.left = 0
        self.held: list[int] = []


class DeliveryLog:
    """One connection."""

    __slots__ = (
        "_acks", "_asked_earlier", "_asks", "_batch_of", "_batches", "_bytes", "_duplicates", "_kept",
        "_lines", "_listens", "_names", "_open", "_pending", "_ready", "_received", "_silent", "_special",
        "_stateful", "_unsent_names", "due", "epoch",
    )  # fmt: skip

    def __init__(self, epoch: Epoch, stateful: Sequence[str] = ()) -> None:
        self.epoch = epoch
        """The supervisor's, under which all was sent that is open; empty for none."""
        self._received = 0
        """So many lines of the agent have come."""
        self._unsent_names: list[int] = []
        """Names of the last of them: of those that have come since the carrier was told."""
        self._names: dict[int, int] = {}
        """Names of earlier ones that count still."""
        self._bytes = 0
        self._lines = 0
        self.due = False
        """The carrier is to be told how far things are, now."""
        self._open: dict[RawJson, int] = {}
        """Requests without an answer, and their lines."""
        self._duplicates: dict[RawJson, list[int]] = {}
        """Lines of later requests that have the id of one that is open."""
        self._special: set[RawJson] = set()
        """Those of them whose answer changes more than that they are open; listens also while in force."""
        self._kept: dict[Slot, int] = {}
        self._pending: dict[RawJson, _PendingRequest] = {}
        self._batch_of: dict[RawJson, list[int]] = {}
        """Lines that stay open as long as a request does. Under `ABSENT`: as long as any does."""
        self._ready = 0
        """The line that said so before the greeting was answered; 0: none did."""
        self._listens: set[RawJson] = set()
        """`subscriptions/listen` that are not acknowledged."""
        self._acks: dict[RawJson, int] = {}
        """Acknowledgements of those that are in force: names of the lines that tell the carrier what was
        granted. (Of one that was replayed its carrier has told us that, and our own is for nobody.)
        """
        self._asks: dict[AskId, tuple[int, RawJson]] = {}
        """Open questions: the name of the line, and the request that it is asked for."""
        self._batches: dict[int, _OpenBatch] = {}
        self._silent: set[RawJson] = set()
        """Requests that are replayed: the first line about one is not for the agent."""
        self._stateful = stateful
        """Servers at which the session may have state."""
        self._asked_earlier: set[AskId] = set()
        """What its agent was asked by an earlier broker, for we do not know which of its requests."""

    # --- the agent's lines ---

    def line_received(self, meaning: object, line: bytes | OverlongLine) -> None:
        """A line of the agent, before anything is done about it."""
        self._received += 1
        self._lines += 1
        self._unsent_names.append(name_of_any(line))
        if isinstance(line, bytes):
            self._bytes += len(line)
        if self._lines >= SETTLE_LINES or self._bytes >= SETTLE_BYTES:
            self.due = True
        if type(meaning) is CallRequested:
            if meaning.id in self._open:
                self._duplicates.setdefault(meaning.id, []).append(self._received)
            else:
                self._open[meaning.id] = self._received
        elif meaning is not None:
            self._add_request(meaning)

    def batch_part_received(self, meaning: object) -> None:
        """A part of the line that came last, which was a batch."""
        if isinstance(meaning, RequestCancelled | AskAnswered):
            self._add_request(meaning)
        elif (request := getattr(meaning, "id", None)) is not None and isinstance(meaning, BrokerEvent):
            self._open[request] = self._received
            self._special.add(request)
            self._batches.setdefault(self._received, _OpenBatch()).left += 1

    def line_replayed(self, meaning: object) -> None:
        """The line that came last is one whose answer the agent has: it is not told again."""
        if isinstance(meaning, RequestCancelled | ListenResumed):
            return
        request = getattr(meaning, "id", None)
        if request is not None:
            self._silent.add(request)

    def resumed(self, asks: Iterable[AskId]) -> None:
        """All that was kept of an earlier passage has passed, and its carrier does not count it among what
        has passed here. `asks`: what the agent was asked there.
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
        """A line for the agent. False: it is not to be written, the agent has had it."""
        if about and about in self._silent:
            self._silent.discard(about)
            if answers:
                self._request_closed(about, is_error=is_error_line(line, about))
            elif about in self._listens:
                self._listen_acknowledged(about)
            return False
        self._lines += 1
        self._bytes += len(line)
        if self._lines >= SETTLE_LINES or self._bytes >= SETTLE_BYTES:
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
        """Of several with this id. A later one is refused, unless the first was answered by then."""
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
        """The line that went last is a question, for this request."""
        if request in self._open:
            self._asks[ask] = (_own_listen_id(line), request)
            self._special.add(request)

    def _listen_acknowledged(self, request: RawJson) -> None:
        self._listens.discard(request)
        line = self._open.pop(request, None)
        if line is not None:
            self._kept["listen", str(request)] = line
            self.due = True

    def _request_closed(self, request: RawJson, *, is_error: bool, answer: bytes = b"") -> None:
        """A request is answered with this line, or needs no answer any more."""
        line = self._open.pop(request, None)
        self._special.discard(request)
        self._silent.discard(request)
        self._listens.discard(request)
        if line is None or ("listen", str(request)) not in self._kept:
            # Else it is not that listen, but another request of its id, which is refused.
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
                del self._pending[other]  # answered later, it does not count any more
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

    # --- what the carrier is told ---

    def set_supervisor_epoch(self, epoch: Epoch) -> None:
        """All that is open, and all that comes, goes to this supervisor."""
        if epoch != self.epoch:
            self.epoch = epoch
            self.due = True

    def set_stateful_servers(self, servers: Sequence[str]) -> None:
        """The session may have state at these servers."""
        self._stateful = servers
        self.due = True

    def take_settled(self) -> Settled:
        """How far things are. The carrier is told: whoever calls this does that."""
        self._bytes = self._lines = 0
        self.due = False
        if not self._open:
            self._batch_of.clear()
        # What is replayed the agent has an answer to: it is not open, be it answered again or not.
        silent = {line for request in self._silent if (line := self._open.get(request)) is not None}
        listens = {self._open[request] for request in self._silent & self._listens}
        riding = (line for lines in (*self._batch_of.values(), *self._duplicates.values()) for line in lines)
        open_ = {*self._open.values(), *riding} - silent
        kept = {*self._kept.values(), *(each.line for each in self._pending.values()), *listens}
        held = [*self._acks.values(), *(line for line, _ in self._asks.values())]
        last = self._unsent_names[-1] if self._unsent_names else 0
        times = self._unsent_names.count(last)
        self._drop_unused_names()
        return Settled(
            self.epoch,
            last,
            times,
            self._named_lines(open_ - kept),
            self._named_lines(kept - open_),
            self._named_lines(open_ & kept),
            held + [line for batch in self._batches.values() for line in batch.held],
            self._stateful,
        )

    def _named_lines(self, lines: Iterable[int]) -> list[int]:
        return [self._names[line] for line in sorted(lines)]

    def _drop_unused_names(self) -> None:
        """Names are needed of lines that count still, and of no others."""
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
