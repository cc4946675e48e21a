"""Frames of the link: a burst of messages as one msgpack list.

Owns the frame: `[sender's epoch, receiver's epoch as the sender knows it or "", [messages]]`, the cutting of
a burst into frames, and the bytes of the peer's window that a message costs. The body of a long answer stands
beside its frame (`SplitFrame`), because each copy of it delays all others.

Invariants:

- messages leave the codec in the order they came in;
- a frame holds at most `FRAME_BYTES`, except one with a single message that is larger itself;
- `decode_frame` never raises: other bytes become a `BadFrame` with the reason.

Knows nothing of: sockets, the meaning of epochs, the state of credit (`peer`).
"""

from collections.abc import Sequence
from typing import Final, Generic, TypeVar, cast

from msgspec import Struct, msgpack
from msgspec.structs import replace

from carpool_protocol.ids import ABSENT, RawJson
from carpool_protocol.link.messages import (
    AnyMessage,
    AskOpened,
    AskWithdrawn,
    Call,
    CallAnswered,
    CallProgressed,
    ElicitationFinished,
    LogForSession,
    ResourceChanged,
    TaskStatusChanged,
    ToBroker,
    ToSupervisor,
)

FRAME_BYTES: Final = 256 * 1024
"""A burst is cut into frames of this size, and a message with more payload travels alone (rule 10).

One huge answer must not delay the small ones beside it by its copy.
"""

MESSAGE_BYTES: Final = 64
"""Cost of a paid message beside its payload, so that empty payloads are not free."""


M = TypeVar("M")


class Frame(Struct, Generic[M], frozen=True, array_like=True):
    """One decoded frame. `receiver` is `""` if the sender does not know the receiver's epoch."""

    sender: str
    receiver: str
    messages: list[M]


AnyFrame = Frame[AnyMessage]


class SplitFrame(Struct, frozen=True):
    """A frame with one answer whose body stands beside it. Its length is that of both."""

    head: bytes
    """The frame, with an answer without a body."""
    body: bytes

    def __len__(self) -> int:
        return len(self.head) + len(self.body)


FrameData = bytes | SplitFrame
"""A frame as a transport carries it: one piece, or two that belong together."""


class BadFrame(Struct, frozen=True):
    """Bytes that are no frame for this reader. `text` is the reason, without any of the bytes."""

    text: str


_encoder = msgpack.Encoder()
# One decoder per reader refuses a message in the wrong direction at no cost. No core ever gets a message that
# it has no case for.
_decoders: Final[dict[str, msgpack.Decoder[AnyFrame]]] = {
    "broker": cast("msgpack.Decoder[AnyFrame]", msgpack.Decoder(Frame[ToBroker])),
    "supervisor": cast("msgpack.Decoder[AnyFrame]", msgpack.Decoder(Frame[ToSupervisor])),
    "any": msgpack.Decoder(AnyFrame),
}


def paid_size(message: AnyMessage) -> int:
    """Bytes of the peer's window that this message costs; 0 for a message that needs no credit (rule 10)."""
    kind = type(message)
    if kind is CallAnswered:
        return len(message.body) + MESSAGE_BYTES  # type: ignore[union-attr]  # asked of the type itself: 3 x faster
    if kind is Call:
        return len(message.params) + len(message.meta) + MESSAGE_BYTES  # type: ignore[union-attr]  # as above
    if (
        kind is CallProgressed
        or kind is AskOpened
        or kind is LogForSession
        or kind is ResourceChanged
        or kind is TaskStatusChanged
    ):
        return len(message.params) + MESSAGE_BYTES  # type: ignore[union-attr]  # as above
    if kind is AskWithdrawn:  # because it must not overtake the ask that it withdraws
        return MESSAGE_BYTES
    if kind is ElicitationFinished:
        return len(message.params) + MESSAGE_BYTES  # type: ignore[union-attr]  # as above
    return 0


def encode_frames(
    sender: str, receiver: str, messages: Sequence[AnyMessage], *, cargo_bytes: int = 0
) -> list[FrameData]:
    """The burst as frames, in order. `cargo_bytes`: the sum of `paid_size`, if the caller knows it.

    The sum is only a hint that saves encoding a large burst twice.
    """
    if not messages:
        return []
    if cargo_bytes <= FRAME_BYTES:
        data = _encoder.encode((sender, receiver, messages))
        if len(data) <= FRAME_BYTES or len(messages) == 1:
            return [data]
    return _cut(sender, receiver, messages)


def _cut(sender: str, receiver: str, messages: Sequence[AnyMessage]) -> list[FrameData]:
    """Frames cut by the exact encoded size of each message."""
    # An array of three begins with 0x93; the pair encodes as 0x92, so its tail is the head of every frame.
    head = b"\x93" + _encoder.encode((sender, receiver))[1:]
    room = FRAME_BYTES - len(head) - 5
    frames: list[FrameData] = []
    bodies: list[bytes] = []
    size = 0

    def close() -> None:
        nonlocal bodies, size
        if bodies:
            # 0xdd: an array whose length is the next four bytes.
            frames.append(b"".join((head, b"\xdd", len(bodies).to_bytes(4, "big"), *bodies)))
            bodies, size = [], 0

    for message in messages:
        if paid_size(message) > FRAME_BYTES:
            close()
            frames.append(_encode_long(sender, receiver, message))
            continue
        body = _encoder.encode(message)
        if size + len(body) > room:
            close()
        bodies.append(body)
        size += len(body)
    close()
    return frames


def _encode_long(sender: str, receiver: str, message: AnyMessage) -> FrameData:
    if isinstance(message, CallAnswered):
        bare = replace(message, body=ABSENT)
        return SplitFrame(_encoder.encode((sender, receiver, (bare,))), message.body)
    return _encoder.encode((sender, receiver, (message,)))


def decode_frame(data: FrameData, reader: str = "any") -> AnyFrame | BadFrame:
    """The frame, or the reason why it is none. `reader` (`broker`, `supervisor`, `any`) limits accepted
    messages.
    """
    if isinstance(data, SplitFrame):
        frame = decode_frame(data.head, reader)
        if isinstance(frame, BadFrame):
            return frame
        match frame.messages:
            case [CallAnswered() as answer]:
                return replace(frame, messages=[replace(answer, body=RawJson(data.body))])
            case _:
                return BadFrame(text="not a frame of the link (a body without an answer)")
    try:
        return _decoders[reader].decode(data)
    except (ValueError, RecursionError, MemoryError) as exc:
        # ValueError covers msgspec's errors and broken UTF-8. Only its type is kept: its text may quote the
        # bytes.
        return BadFrame(text=f"not a frame of the link ({type(exc).__name__})")
