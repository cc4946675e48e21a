"""Frames of another node: what is read of them, and what makes them unreadable."""

from typing import get_args

import msgspec
import pytest

from carpool.cluster.core.frames import (
    CHANNEL_VERSION,
    MAX_NUMBER,
    AnyRecord,
    ChannelFrame,
    CloseRecord,
    OpenRecord,
    UnreadableFrameError,
    decode_frame,
    encode_frame,
)
from carpool.cluster.core.node import NodeCore
from tests.behaviours import behaviour

BEYOND = (MAX_NUMBER + 1, -MAX_NUMBER - 1, 2**63, -(2**63), 2**64 - 1)


def frame(*records: object, number: int = 1, source: int = 7) -> bytes:
    return msgspec.msgpack.encode([CHANNEL_VERSION, source, 0, number, 0, False, records])


@behaviour("cluster:hostile")
@pytest.mark.parametrize("number", BEYOND)
def test_a_number_that_has_no_opposite_on_the_wire_makes_a_frame_unreadable(number: int) -> None:
    records: list[list[object]] = [
        [1, number, "git"],
        [2, number, b""],
        [3, number, 1],
        [3, 1, number],
        [4, number, ""],
        [7, number, "ping", 0, 0],
        [7, 1, "story", number, 0],
        [7, 1, "story", 0, number],
        [8, number, b"{}"],
    ]
    for data in (*map(frame, records), frame(number=number), frame(source=number)):
        with pytest.raises(UnreadableFrameError):
            decode_frame(data)


def test_another_record_needs_another_version_of_the_channel() -> None:
    """A node that cannot read a record refuses its frame, and would be sent it again and again."""
    tags = sorted(int(str(kind.__struct_config__.tag)) for kind in get_args(AnyRecord))
    assert (CHANNEL_VERSION, tags) == (2, [1, 2, 3, 4, 5, 7, 8])


def test_the_greatest_numbers_pass_with_either_sign() -> None:
    for number in (MAX_NUMBER, -MAX_NUMBER):
        whole = ChannelFrame(
            CHANNEL_VERSION, MAX_NUMBER, 0, 1, 0, missing=False, records=[OpenRecord(number, "git")]
        )
        assert decode_frame(encode_frame(whole)) == whole


@behaviour("cluster:hostile")
def test_a_session_of_an_impossible_number_and_server_does_not_end_the_node() -> None:
    core = NodeCore("alpha", "e", iter(range(1, 99)).__next__)
    core.frame_received("gamma", frame(number=0), 0.0)
    [(_, greeting)] = core.take_frames(0.0)
    own_id = decode_frame(greeting).source

    def opened(number: int, session: int) -> bytes:
        records = [[1, session, "no such server!"]]
        return msgspec.msgpack.encode([CHANNEL_VERSION, 7, own_id, number, 0, False, records])

    core.frame_received("gamma", opened(1, 2**64 - 1), 0.1)
    core.take_frames(0.1)
    core.frame_received("gamma", opened(1, 3), 0.2)
    [(_, answer)] = core.take_frames(0.2)
    [refused] = decode_frame(answer).records
    assert isinstance(refused, CloseRecord)
    assert refused.session == -3
