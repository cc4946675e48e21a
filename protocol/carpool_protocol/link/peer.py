"""One peer on the link, as this end sees it: greeting, epochs, credit, heartbeat.

Owns the peer's state (up or down), the epoch that this end talks to, the window of bytes that it may send,
the messages that wait for that window, those that wait for the next burst, and the times of the last frame in
and out.

How the ends meet: the listening end greets first, with a `Hello` addressed to nobody (`""`), whenever its
transport reports a new connection (`connection_opened`) and, once, when a peer that is not up speaks to it.
`Hello` to `""` means "I do not have yours": the other end treats the peer as new, even in the same epoch, and
answers with its own addressed `Hello`; that one needs no answer. A `Hello` travels in a frame of its own, so
that a peer of another version is refused with a sentence and not as garbage.

Invariants (`check`):

- between `PeerUp` and `PeerDown` only frames of that epoch, addressed to ours, are accepted; all others are
  counted;
- an epoch that was replaced by another never comes back;
- paid messages leave in order, and one waits only while the window is used up;
- messages that are appended while the peer is down, or unsent when it goes down, are dropped and counted: the
  owner repeats what still holds after `PeerUp`;
- a silent peer is not a dead one: silence never causes `PeerDown` here.

Knows nothing of: sockets, clocks (time is a parameter), the meaning of messages to their owner.
Decision: docs/decisions/0005.
"""

from collections import deque
from typing import Final

from msgspec import Struct

from carpool_protocol.link.codec import AnyFrame, BadFrame, FrameData, decode_frame, encode_frames, paid_size
from carpool_protocol.link.messages import AnyMessage, Credit, Heartbeat, Hello

LINK_WINDOW_BYTES: Final = 64 * 1024 * 1024
"""Maximum number of bytes (`paid_size`) that a peer may send before the other reports them as processed."""

LEFT_OVER_S: Final = 1.0
"""After this long without a frame of ours what is left over is sent: credit, and messages for later."""
HEARTBEAT_S: Final = 60.0
"""After this long without a frame of ours a heartbeat is sent."""

BROKER: Final = "broker"
"""The broker's name on the link; every other name is a supervisor's."""


class PeerUp(Struct, frozen=True):
    """The peer has greeted in our version. Everything it was told before is forgotten."""

    hello: Hello


class PeerDown(Struct, frozen=True):
    """The peer, or the connection to it, is lost. Messages since `PeerUp` may not have arrived."""

    why: str


class PeerRefused(Struct, frozen=True):
    """The peer has another version or another name, and its messages are ignored. `text` is for people.

    `superseded`: a peer of this name spoke our version before. So carpool was updated since, and this process
    is of the old version.
    """

    text: str
    superseded: bool = False


LinkEvent = PeerUp | PeerDown | PeerRefused | AnyMessage


class Peer:
    """The state of one peer. Every method is synchronous and cheap; `receive` and `send` are the hot ones."""

    def __init__(self, me: Hello, name: str, now: float, *, window_bytes: int = LINK_WINDOW_BYTES) -> None:
        self.name: Final = name
        self.up = False
        self.heard_at = now
        """Time of the last readable frame."""
        self.held_bytes = 0
        """Size of the paid messages that wait for the window."""
        self.bad_frames = 0
        self.stale_frames = 0
        """Frames of another epoch, or from before the greeting."""
        self.unsent_messages = 0
        """Messages dropped because the peer was down or went down."""
        self._me = me
        self._epoch: str = me.epoch
        self._reader = "broker" if me.name == BROKER else "supervisor"
        self._limit = window_bytes
        # Credit in 64ths keeps the sender's window full with one message of ours per MiB.
        self._grant_at = max(1, window_bytes // 64)
        self._their_epoch = ""
        self._gone: deque[str] = deque(maxlen=16)
        self._refused_epoch = ""
        self._greeting_is_out = False
        self._sent_at = now
        self._window = window_bytes
        self._waiting: deque[AnyMessage] = deque()
        self._delayed: list[AnyMessage] = []
        self._greetings: list[FrameData] = []
        self._out: list[AnyMessage] = []
        self._out_bytes = 0
        self._received_bytes = 0

    # --- outgoing ----------------------------------------------------------------------------------------

    def send(self, message: AnyMessage) -> None:
        """Append a message to the burst, or to the queue for the window. Dropped while the peer is down."""
        if not self.up:
            self.unsent_messages += 1
            return
        if self._delayed:
            self._append_delayed()
        size = paid_size(message)
        if size:
            if self._window <= 0:
                self._waiting.append(message)
                self.held_bytes += size
                return
            self._window -= size
            self._out_bytes += size
        self._out.append(message)

    def send_later(self, message: AnyMessage) -> None:
        """Append a message that costs no credit when the next message is sent, or some seconds later.

        It keeps its place in the order, and never wakes the peer on its own.
        """
        if self.up:
            self._delayed.append(message)
        else:
            self.unsent_messages += 1

    def _append_delayed(self) -> None:
        self._out += self._delayed
        self._delayed = []

    @property
    def has_output(self) -> bool:
        return bool(self._out or self._greetings)

    def take_frames(self, now: float) -> list[FrameData]:
        """The burst as frames, to be sent in this order."""
        frames = self._greetings
        if frames:
            self._greetings = []
        if self._out:
            if self._delayed:
                self._append_delayed()
            burst = encode_frames(self._epoch, self._their_epoch, self._out, cargo_bytes=self._out_bytes)
            frames = frames + burst if frames else burst
            self._out = []
            self._out_bytes = 0
        if frames:
            self._sent_at = now
        return frames

    # --- facts of the transport --------------------------------------------------------------------------

    def connection_opened(self) -> list[LinkEvent]:
        """A new connection was made (only the listening end notices): greet, and start over.

        An unsent greeting of the connection before would be a second one on this.
        """
        events = self._go_down(f"{self.name} connected anew")
        self._greetings = []
        self._greet("")
        return events

    def connection_lost(self, why: str) -> list[LinkEvent]:
        """The connection is lost, with everything unsent. `PeerDown` once."""
        self._greetings = []
        self._greeting_is_out = False
        return self._go_down(why)

    def peer_died(self, why: str) -> list[LinkEvent]:
        """The owner knows that the peer died: `PeerDown` once. A new life is greeted when it speaks.

        A greeting that is on its way stays: the peer may be a new life that has said nothing yet.
        """
        return self._go_down(why)

    # --- incoming ----------------------------------------------------------------------------------------

    def receive(self, data: FrameData, now: float) -> list[LinkEvent]:
        """The events of this frame for the owner, in order. Never raises on the peer's bytes."""
        frame = decode_frame(data, self._reader)
        if isinstance(frame, BadFrame):
            self.bad_frames += 1
            return []
        self.heard_at = now
        messages = frame.messages
        if messages and isinstance(messages[0], Hello):
            return self._take_greeting(frame, messages[0])
        if not self.up or frame.sender != self._their_epoch or frame.receiver != self._epoch:
            self.stale_frames += 1
            if not self.up and not self._greeting_is_out:
                self._greet("")
            return []
        return self._take_messages(messages)

    def _take_messages(self, messages: list[AnyMessage]) -> list[LinkEvent]:
        taken = 0
        ours = False
        for message in messages:
            size = paid_size(message)
            if size:
                taken += size
            elif isinstance(message, Credit):
                self._take_credit(message.size_bytes)
            elif isinstance(message, (Heartbeat, Hello)):
                ours = True
        if taken:
            self._received_bytes += taken
            if self._received_bytes >= self._grant_at:
                self._grant()
        if ours:
            # A heartbeat has done its work here. A Hello that is not alone in its frame is no greeting.
            return [m for m in messages if not isinstance(m, (Heartbeat, Hello))]
        return list(messages)

    def _take_credit(self, size_bytes: int) -> None:
        # A peer that grants more than it processed must not open our window beyond its size.
        self._window = min(self._limit, self._window + max(0, size_bytes))
        while self._waiting and self._window > 0:
            message = self._waiting.popleft()
            size = paid_size(message)
            self.held_bytes -= size
            self._window -= size
            self._out_bytes += size
            self._out.append(message)

    def _grant(self) -> None:
        self._out.append(Credit(size_bytes=self._received_bytes))
        self._received_bytes = 0

    # --- greeting ----------------------------------------------------------------------------------------

    def _greet(self, receiver: str) -> None:
        # A connection keeps order and loses nothing until it breaks, so one greeting to nobody is enough. A
        # second one could arrive after the answer to the first: that end would start over without our
        # knowledge.
        self._greeting_is_out = not receiver
        self._greetings += encode_frames(self._epoch, receiver, (self._me,))

    def _take_greeting(self, frame: AnyFrame, hello: Hello) -> list[LinkEvent]:
        unaddressed = not frame.receiver
        if not (unaddressed or frame.receiver == self._epoch) or hello.epoch in self._gone:
            self.stale_frames += 1
            return []
        if not hello.epoch or hello.epoch != frame.sender:
            self.bad_frames += 1
            return []
        fault = self._refusal_of(hello)
        if fault:
            return self._refuse(hello, fault, unaddressed)
        events: list[LinkEvent] = []
        if self.up and hello.epoch == self._their_epoch:
            if not unaddressed:
                return []
            events += self._go_down(f"{self.name} lost the link and greets again")
        elif self.up:
            self._gone.append(self._their_epoch)
            events += self._go_down(f"{self.name} was restarted")
        elif self._their_epoch and hello.epoch != self._their_epoch:
            self._gone.append(self._their_epoch)
        self._their_epoch = hello.epoch
        self.up = True
        self._greeting_is_out = False
        if unaddressed:
            self._greet(hello.epoch)
        events.append(PeerUp(hello))
        return events

    def _refusal_of(self, hello: Hello) -> str:
        if hello.version != self._me.version:
            return (
                f"{self.name} (carpool {hello.release}) speaks version {hello.version} of the link, this "
                f"process version {self._me.version} (carpool {self._me.release}): run `carpool restart "
                f"--all`"
            )
        if hello.name != self.name:
            return f"a peer connected to the link as {self.name} and greets under another name: refused"
        return ""

    def _refuse(self, hello: Hello, text: str, unaddressed: bool) -> list[LinkEvent]:
        events = self._go_down(f"{self.name} came back as a peer that is refused")
        if unaddressed:
            self._greet(hello.epoch)  # so that the log of the other side shows the same sentence
        if hello.epoch != self._refused_epoch:
            self._refused_epoch = hello.epoch
            superseded = bool(self._their_epoch) and hello.version != self._me.version
            events.append(PeerRefused(text, superseded))
        return events

    def _go_down(self, why: str) -> list[LinkEvent]:
        self.unsent_messages += len(self._out) + len(self._waiting) + len(self._delayed)
        self._out = []
        self._delayed = []
        self._out_bytes = 0
        self._waiting.clear()
        self.held_bytes = 0
        self._window = self._limit
        self._received_bytes = 0
        if not self.up:
            return []
        self.up = False
        return [PeerDown(why)]

    # --- time --------------------------------------------------------------------------------------------

    def next_deadline(self) -> float | None:
        if not self.up:
            return None
        return self._sent_at + (LEFT_OVER_S if self._has_left_over else HEARTBEAT_S)

    @property
    def _has_left_over(self) -> bool:
        return bool(self._delayed or self._received_bytes)

    def tick(self, now: float) -> None:
        """Append what is due: left-over credit, else a heartbeat. Never causes events."""
        due = self.next_deadline()
        if due is None or now < due or self._out:
            return
        self._append_delayed()
        # Left-over credit waits for an idle second: a frame for each small burst would wake the peer for
        # nothing. Less than a 64th of the window can be left over, so no sender ever waits for it.
        if self._received_bytes:
            self._grant()
        if not self._out:
            self._out.append(Heartbeat())

    def send_heartbeat(self) -> None:
        """Append a heartbeat now: a transport that suspects a lost connection learns it from the attempt."""
        if self.up and not self._out:
            self._out.append(Heartbeat())

    def check(self) -> None:
        """Assert every invariant."""
        assert self._window <= self._limit
        assert not self._waiting or self._window <= 0
        assert self.held_bytes == sum(map(paid_size, self._waiting))
        assert self._out_bytes == sum(map(paid_size, self._out))
        assert self._received_bytes < self._grant_at
        assert not self.up or (self._their_epoch and self._their_epoch not in self._gone)
        assert self.up or not (self._out or self._waiting or self._delayed)
        assert not any(map(paid_size, self._delayed))
