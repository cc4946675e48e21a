"""A channel takes each record up once and in order, whatever the link loses."""

from collections.abc import Sequence
from itertools import count

from carpool.cluster.core.channel import (
    ACKNOWLEDGE_S,
    HEARTBEAT_S,
    LOST_S,
    MAX_RESEND_S,
    RESEND_S,
    UNACKNOWLEDGED_BYTES,
    ChannelEvent,
    ChannelLost,
    ChannelOpened,
    NodeChannel,
)
from carpool.cluster.core.frames import BytesRecord, ChannelFrame

IDS = count(1)


def end(first: int = 0) -> NodeChannel:
    ids = count(first) if first else IDS
    return NodeChannel(lambda: next(ids), 0.0, frame_bytes=1000)


def pass_frames(frames: Sequence[ChannelFrame], to: NodeChannel, now: float = 0.0) -> list[ChannelEvent]:
    return [event for frame in frames for event in to.frame_received(frame, now)]


def opened() -> tuple[NodeChannel, NodeChannel]:
    one, other = end(), end()
    assert pass_frames(one.take_frames(0.0), other) == [ChannelOpened()]
    assert pass_frames(other.take_frames(0.0), one) == [ChannelOpened()]
    pass_frames(one.take_frames(0.0), other)
    return one, other


def record(number: int) -> BytesRecord:
    return BytesRecord(1, b"%d" % number)


def test_records_come_in_order() -> None:
    one, other = opened()
    for number in range(5):
        one.send(record(number))
    assert pass_frames(one.take_frames(0.0), other) == [record(number) for number in range(5)]


def test_what_is_sent_before_the_other_end_is_known_is_dropped() -> None:
    one = end()
    one.send(record(1))
    assert [frame.records for frame in one.take_frames(0.0)] == [[]]


def test_a_lost_frame_is_sent_again_in_time() -> None:
    one, other = opened()
    one.send(record(1))
    assert one.take_frames(1.0)
    assert one.take_frames(1.0 + RESEND_S / 2) == []
    assert pass_frames(one.take_frames(1.0 + RESEND_S), other, 1.0 + RESEND_S) == [record(1)]


def test_a_gap_is_told_at_once_and_both_frames_are_taken_up_once() -> None:
    one, other = opened()
    one.send(record(1))
    one.take_frames(1.0)  # lost
    one.send(record(2))
    assert pass_frames(one.take_frames(1.0), other, 1.0) == []
    assert pass_frames(other.take_frames(1.0), one, 1.0) == []
    again = one.take_frames(1.0)
    assert pass_frames(again, other, 1.0) == [record(1), record(2)]
    assert pass_frames(again, other, 1.0) == [], "a frame that comes twice is taken up once"


def test_an_acknowledgement_ends_the_resending() -> None:
    one, other = opened()
    one.send(record(1))
    pass_frames(one.take_frames(0.2), other, 0.2)
    assert other.take_frames(0.2) == []
    pass_frames(other.take_frames(0.2 + ACKNOWLEDGE_S), one, 0.2 + ACKNOWLEDGE_S)
    assert [frame.number for frame in one.take_frames(0.2 + 10 * MAX_RESEND_S)] == [0]


def test_a_silent_channel_beats() -> None:
    one, _ = opened()
    one.take_frames(1.0)
    assert one.take_frames(1.0 + HEARTBEAT_S / 2) == []
    assert len(one.take_frames(1.0 + HEARTBEAT_S)) == 1


def test_a_channel_that_hears_nothing_is_lost_after_a_while_and_not_before() -> None:
    one, _ = opened()
    assert one.tick(LOST_S - 0.1) == []
    assert [type(event) for event in one.tick(LOST_S)] == [ChannelLost]
    assert not one.is_open
    assert one.tick(3 * LOST_S) == [], "it is lost once"


def test_an_end_with_a_new_id_ends_what_was_open_at_the_other_and_frames_of_the_old_one_mean_nothing() -> (
    None
):
    one, other = end(1), end(100)
    pass_frames(one.take_frames(0.0), other)
    pass_frames(other.take_frames(0.0), one)
    one.send(record(1))
    old = one.take_frames(0.0)
    later = end(50)
    events = pass_frames(later.take_frames(0.0), other)
    assert [type(event) for event in events] == [ChannelLost, ChannelOpened]
    assert pass_frames(old, other) == []
    assert pass_frames(other.take_frames(0.0), later) == [ChannelOpened()]


def test_ends_that_have_both_lost_the_other_meet_again_and_come_to_rest() -> None:
    one, other = opened()
    one.tick(LOST_S)
    other.tick(LOST_S)
    for _ in range(5):
        pass_frames(one.take_frames(LOST_S), other, LOST_S)
        pass_frames(other.take_frames(LOST_S), one, LOST_S)
    assert one.is_open
    assert other.is_open
    assert (one.take_frames(LOST_S), other.take_frames(LOST_S)) == ([], [])


def test_a_slow_receiver_bounds_what_is_kept() -> None:
    one, _ = opened()
    big = BytesRecord(1, bytes(60_000))
    for _ in range(2 * UNACKNOWLEDGED_BYTES // len(big.data)):
        one.send(big)
    sent = sum(len(frame.records) for frame in one.take_frames(0.0))
    assert UNACKNOWLEDGED_BYTES <= sent * len(big.data) + 100 * sent <= UNACKNOWLEDGED_BYTES + 70_000
    one.check()


def test_a_restored_link_is_used_at_once() -> None:
    one, other = opened()
    one.send(record(1))
    one.take_frames(1.0)  # the link is cut
    one.link_restored(1.1)
    assert pass_frames(one.take_frames(1.1), other, 1.1) == [record(1)]
