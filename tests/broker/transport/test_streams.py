"""The frames of one session on a multiplexed connection."""

import tracemalloc

from carpool_broker.core.model.effects import NO_CALL
from carpool_broker.transport.streams import LARGE_LINE_BYTES, SessionStream
from carpool_protocol.carrier.streams import OpenStream, frame_line
from carpool_protocol.ids import ABSENT, CallId, Epoch, RawJson, SessionId
from carpool_protocol.wire.jsonrpc import result_line

CALL = CallId(7)


class Door:
    """A door that keeps the pieces of frames as they were written, and reads none if it is blocked."""

    def __init__(self, *, is_blocked: bool = False) -> None:
        self.pieces: list[tuple[bytes | memoryview, CallId]] = []
        self.waiting: list[tuple[SessionId, int]] = []
        self._is_blocked = is_blocked
        self.stream = SessionStream(SessionId("s1"), 3, OpenStream(), self, Epoch("e"))

    def write(self, piece: bytes | memoryview, call: CallId = NO_CALL, /) -> bool:
        self.pieces.append((piece, call))
        return self._is_blocked

    def line_waits(self, session: SessionId, size_bytes: int) -> None:
        self.waiting.append((session, size_bytes))


def test_a_large_answer_is_framed_without_a_copy_and_counts_once_all_of_it_is_written() -> None:
    door, line = Door(), result_line(RawJson(b"1"), RawJson(b'"%b"' % (b"x" * 8 * LARGE_LINE_BYTES)))
    tracemalloc.start()
    try:
        door.stream.write(line, ABSENT, last=True, call=CALL)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak_bytes < LARGE_LINE_BYTES
    assert b"".join(piece for piece, _ in door.pieces) == frame_line(3, line)
    assert [call for _, call in door.pieces] == [NO_CALL, NO_CALL, CALL], "with the last piece"


def test_each_line_that_waits_is_counted_once_for_its_session() -> None:
    door, reading = Door(is_blocked=True), Door()
    lines = [b"{}\n", result_line(RawJson(b"1"), RawJson(b'"%b"' % (b"x" * LARGE_LINE_BYTES)))]
    for line in lines:
        door.stream.write(line, ABSENT, last=False, call=NO_CALL)
        reading.stream.write(line, ABSENT, last=False, call=NO_CALL)
    assert door.waiting == [("s1", len(line)) for line in lines]
    assert not reading.waiting


def test_a_small_answer_is_one_piece() -> None:
    door, line = Door(), result_line(RawJson(b"1"), RawJson(b"{}"))
    door.stream.write(line, ABSENT, last=True, call=CALL)
    assert door.pieces == [(frame_line(3, line), CALL)]
