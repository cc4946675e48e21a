"""The messages between two nodes: records, and the frames that carry them over a link.

Owns the form of both in msgpack, and their limits. A frame is one message of a link (`links`). Field order is
the wire format: append fields with a default, never reorder, and raise `CHANNEL_VERSION` when a meaning
changes or a record is new: a node that cannot read one record refuses the whole frame.

Knows nothing of: order, loss, time, what a session's bytes mean.
"""

from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct

CHANNEL_VERSION: Final = 2
"""Part of each frame. A frame of another version is dropped, and the node is reported once."""
CHUNK_BYTES: Final = 16 * 1024
"""The most bytes of one session in one record, so that a long line delays other sessions little."""
FRAME_BYTES: Final = 512 * 1024
"""A frame takes no further record beyond this size. NATS takes 1 MB by default."""
RECORD_OVERHEAD_BYTES: Final = 64
"""More than a record takes beside its bytes or its text."""
MAX_NUMBER: Final = 2**53 - 1
"""The greatest number in a frame. With either sign it fits into msgpack and into JSON."""
Number = Annotated[int, Meta(ge=-MAX_NUMBER, le=MAX_NUMBER)]
"""A number of another node or process: one beyond the limits makes the whole message unreadable."""


class ChannelRecord(Struct, frozen=True, array_like=True, tag_field="t"):
    """Root of what a channel carries, in order and once.

    `session`: a positive number for a session that the sender of the record opened, its negative for one
    that the receiver opened.
    """


class OpenRecord(ChannelRecord, frozen=True, tag=1):
    """Open a session at your broker for this server."""

    session: Number
    server: str


class BytesRecord(ChannelRecord, frozen=True, tag=2):
    """The next bytes of a session: lines of MCP, cut anywhere."""

    session: Number
    data: bytes


class CreditRecord(ChannelRecord, frozen=True, tag=3):
    """The receiver of a session's bytes has passed so many on: as many may follow."""

    session: Number
    size_bytes: Number


class CloseRecord(ChannelRecord, frozen=True, tag=4):
    """The session is over at the sender's end. It sends nothing more for it and takes nothing."""

    session: Number
    text: str
    """Why, for people. Empty: its agent or its server is gone, in the ordinary way."""
    is_final: bool = False
    """Another session is refused, too, until somebody changes something."""


class OfferRecord(ChannelRecord, frozen=True, tag=5):
    """The offer of the sender (`offers.NodeOffer`), on links that do not store offers."""

    offer: bytes


class RequestRecord(ChannelRecord, frozen=True, tag=7):
    """A request to the other node (`node_requests`). It answers each, also one of a kind that it does not
    know.
    """

    number: Number
    """The sender's number of it; the answer has the same."""
    kind: str
    session: Number = 0
    """For `story`: the session of the call."""
    call: Number = 0
    """For `story`: the JSON-RPC id of the call on that session."""


class AnswerRecord(ChannelRecord, frozen=True, tag=8):
    """The answer to a request."""

    number: Number
    body: bytes
    """A `node_requests.NodeAnswer` as JSON."""


AnyRecord = OpenRecord | BytesRecord | CreditRecord | CloseRecord | OfferRecord | RequestRecord | AnswerRecord


class ChannelFrame(Struct, frozen=True, array_like=True):
    """One message of a link."""

    version: int
    source: Number
    """The id of the sender's end of the channel."""
    target: Number
    """The id of the receiver's end as the sender knows it; 0: it does not know one."""
    number: Number
    """The number of this frame among those with records, from 1; 0: it has no records."""
    acknowledged: Number
    """The number of the last frame that the sender has received."""
    missing: bool
    """The sender has received a later frame than the one after `acknowledged`: send again."""
    records: list[AnyRecord]


class _Version(Struct, frozen=True, array_like=True):
    version: int


class UnreadableFrameError(Exception):
    """The bytes are no frame of this version. The text says why, for people."""


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(ChannelFrame)
_version = msgspec.msgpack.Decoder(_Version)


def encode_frame(frame: ChannelFrame) -> bytes:
    """Return the bytes of a frame."""
    return _encoder.encode(frame)


def decode_frame(data: bytes) -> ChannelFrame:
    """Read a frame. Raises `UnreadableFrameError`."""
    try:
        version = _version.decode(data).version
    except (msgspec.MsgspecError, RecursionError):
        raise UnreadableFrameError("it sends something else than frames of carpool") from None
    if version != CHANNEL_VERSION:
        raise UnreadableFrameError(
            f"it speaks version {version} of the protocol between nodes, this node speaks {CHANNEL_VERSION}: "
            "install the same carpool on both"
        )
    try:
        return _decoder.decode(data)
    except (msgspec.MsgspecError, RecursionError):
        raise UnreadableFrameError("it sends frames that cannot be read") from None


def size_of(record: AnyRecord) -> int:
    """Return the most bytes that a record takes in a frame."""
    match record:
        case BytesRecord():
            return len(record.data) + RECORD_OVERHEAD_BYTES
        case OfferRecord():
            return len(record.offer) + RECORD_OVERHEAD_BYTES
        case CloseRecord():
            return 4 * len(record.text) + RECORD_OVERHEAD_BYTES
        case OpenRecord():
            return 4 * len(record.server) + RECORD_OVERHEAD_BYTES
        case AnswerRecord():
            return len(record.body) + RECORD_OVERHEAD_BYTES
        case RequestRecord():
            return 4 * len(record.kind) + RECORD_OVERHEAD_BYTES
        case CreditRecord():
            return RECORD_OVERHEAD_BYTES
