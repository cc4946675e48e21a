"""A channel takes each record up once and in order, whatever the link loses."""

from collections.abc import Sequence
from itertools import count

import pytest

from carpool.cluster.core.channel import (
    ACKNOWLEDGE_S,
    HEARTBEAT_S,
    LOST_FRAMES,
    LOST_S,
    MAX_CLOSES,
    RESEND_PAUSE_S,
    STUCK_S,
    ChannelEvent,
    ChannelLost,
    ChannelOpened,
    NodeChannel,
)
from carpool.cluster.core.frames import BytesRecord, ChannelFrame, CloseRecord, OfferRecord, size_of
from carpool.cluster.core.send_window import (
    MAX_RESEND_S,
    RESEND_S,
    START_WINDOW_BYTES,
)

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
    now = HEARTBEAT_S / 2  # no frame is due for another reason
    one.send(record(1))
    one.take_frames(now)  # lost
    one.send(record(2))
    assert pass_frames(one.take_frames(now), other, now) == []
    assert other.next_deadline() < now
    assert pass_frames(other.take_frames(now), one, now) == []
    again = one.take_frames(now)
    assert pass_frames(again, other, now) == [record(1), record(2)]
    assert pass_frames(again, other, now) == [], "a frame that comes twice is taken up once"


def test_each_gap_is_told_at_once() -> None:
    one, other = opened()
    now = HEARTBEAT_S / 4
    for attempt in range(2):
        one.send(record(attempt))
        one.take_frames(now)  # lost
        one.send(record(attempt))
        pass_frames(one.take_frames(now), other, now)
        assert [frame.missing for frame in other.take_frames(now)] == [True], f"gap {attempt + 1}"
        one.link_restored(now)
        pass_frames(one.take_frames(now), other, now)


def test_a_second_report_of_a_gap_within_the_pause_sends_nothing_again_and_a_later_one_does() -> None:
    one, other = opened()
    one.send(record(1))
    one.take_frames(1.0)
    report = ChannelFrame(1, other._id, one._id, 0, 0, True, [])

    def sent_again(now: float) -> list[int]:
        one.frame_received(report, now)
        return [frame.number for frame in one.take_frames(now)]

    assert sent_again(1.1) == [1]
    assert sent_again(1.1 + RESEND_PAUSE_S / 2) == []
    assert sent_again(1.1 + 1.5 * RESEND_PAUSE_S) == [1]


def test_after_a_cut_few_frames_are_sent_again_and_twice_as_many_after_each_acknowledgement() -> None:
    """If all went at once, a link that is cut after so many bytes would be cut before any is acknowledged."""
    one, other = opened()
    for number in range(12):
        one.send(record(number))
        one.take_frames(0.0)  # lost
    one.link_restored(0.2)
    sent = []
    for _ in range(3):
        frames = one.take_frames(0.2)
        sent.append(len(frames))
        one.frame_received(ChannelFrame(1, other._id, one._id, 0, frames[-1].number, False, []), 0.2)
    assert sent == [LOST_FRAMES, 2 * LOST_FRAMES, 12 - 3 * LOST_FRAMES]


def test_the_time_of_a_cut_does_not_count_as_the_time_of_an_acknowledgement() -> None:
    one, other = opened()
    one.send(record(1))
    one.take_frames(0.0)  # the link is cut for 15 s
    one.link_restored(15.0)
    pass_frames(one.take_frames(15.0), other, 15.0)
    pass_frames(other.take_frames(15.1), one, 15.1)
    one.send(record(2))
    one.take_frames(15.1)
    assert one.next_deadline() == 15.1 + RESEND_S


def test_a_frame_that_nobody_acknowledges_is_sent_again_after_pauses_that_double_up_to_a_bound() -> None:
    one, other = opened()
    one.send(record(1))
    one.take_frames(0.0)
    times = []
    for tenth in range(1, 150):
        now = tenth / 10
        one.frame_received(ChannelFrame(1, other._id, one._id, 0, 0, False, []), now)
        times += [now for frame in one.take_frames(now) if frame.number == 1]
    assert times == [0.5, 1.5, 3.5, 7.5, 11.5]


def test_a_channel_that_was_lost_while_frames_were_to_be_sent_again_comes_to_rest_when_it_opens_again() -> (
    None
):
    one, other = opened()
    one.send(record(1))
    one.take_frames(0.0)
    one.link_restored(1.0)
    one.give_up("a test")
    pass_frames(one.take_frames(2.0), other, 2.0)
    pass_frames(other.take_frames(2.0), one, 2.0)
    assert one.is_open
    one.take_frames(2.0)
    assert one.next_deadline() == 2.0 + HEARTBEAT_S


def test_a_frame_for_an_end_that_this_node_gave_up_opens_nothing() -> None:
    one, other = opened()
    other.send(record(1))
    frames = other.take_frames(0.0)
    one.give_up("a test")
    assert pass_frames(frames, one, 0.0) == []
    assert not one.is_open


def test_a_channel_at_rest_is_due_when_it_beats_and_after_a_last_beat_when_the_other_is_lost() -> None:
    one, _ = opened()
    one.take_frames(1.0)
    assert one.next_deadline() == 1.0 + HEARTBEAT_S
    one.take_frames(LOST_S - HEARTBEAT_S / 2)
    assert one.next_deadline() == LOST_S


def test_a_node_is_lost_once_more_ends_of_sessions_wait_for_it_than_it_may_have() -> None:
    one, _ = opened()
    one.take_frames(0.0)
    for number in range(MAX_CLOSES):
        one.send(CloseRecord(number, "it is over"))
    assert one.tick(0.0) == []
    one.send(CloseRecord(MAX_CLOSES, "it is over"))
    assert isinstance(one.tick(0.0)[0], ChannelLost)


def test_frames_after_a_gap_are_reported_as_missing_once_and_then_in_the_ordinary_time() -> None:
    """The other end sends again for each report: one for each frame of a full window would flood the link."""
    one, other = opened()
    one.send(record(0))
    one.take_frames(1.0)  # lost
    later = []
    for number in range(1, 10):
        one.send(record(number))
        later += one.take_frames(1.0)
    reports = 0
    for frame in later:
        other.frame_received(frame, 1.0)
        reports += len(other.take_frames(1.0))
    assert reports == 1
    assert [each.missing for each in other.take_frames(1.0 + ACKNOWLEDGE_S)] == [True]


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
    for _ in range(2 * START_WINDOW_BYTES // len(big.data)):
        one.send(big)
    sent = sum(len(frame.records) for frame in one.take_frames(0.0))
    assert START_WINDOW_BYTES <= sent * len(big.data) + 100 * sent <= START_WINDOW_BYTES + 70_000
    one.check()


def test_a_restored_link_is_used_at_once() -> None:
    one, other = opened()
    one.send(record(1))
    one.take_frames(1.0)  # the link is cut
    one.link_restored(1.1)
    assert pass_frames(one.take_frames(1.1), other, 1.1) == [record(1)]


class SlowLink:
    """Two ends over a link that takes its time: so many bytes in a second, and a delay, each way."""

    def __init__(self, bytes_per_s: float, delay_s: float) -> None:
        ends = NodeChannel(lambda: next(IDS), 0.0), NodeChannel(lambda: next(IDS), 0.0)
        self.ends = ends
        self.bytes_per_s = bytes_per_s
        self.delay_s = delay_s
        self.now = 0.0
        self.sent_bytes = [0, 0]
        self.events: list[tuple[float, ChannelEvent]] = []
        """What has come at the second end."""
        self._free_at = [0.0, 0.0]
        self._under_way: list[tuple[float, int, ChannelFrame]] = []

    def step(self) -> None:
        """Let a hundredth of a second pass."""
        self.now += 0.01
        due = [each for each in self._under_way if each[0] <= self.now]
        self._under_way = [each for each in self._under_way if each[0] > self.now]
        for _, to, frame in due:
            events = self.ends[to].frame_received(frame, self.now)
            self.events += [(self.now, each) for each in events if to == 1]
        for number, one in enumerate(self.ends):
            assert one.tick(self.now) == [], "a slow link loses nothing"
            for frame in one.take_frames(self.now):
                size = 50 + sum(map(size_of, frame.records))
                self.sent_bytes[number] += size
                start = max(self._free_at[number], self.now)
                self._free_at[number] = start + size / self.bytes_per_s
                self._under_way.append((self._free_at[number] + self.delay_s, 1 - number, frame))
            one.check()

    def run_until(self, records: int, limit_s: float) -> None:
        """Run until so many records have come."""
        while sum(isinstance(each, BytesRecord) for _, each in self.events) < records:
            self.step()
            assert self.now < limit_s


def over_slow_link(bytes_per_s: float, delay_s: float) -> SlowLink:
    link = SlowLink(bytes_per_s, delay_s)
    while not all(each.is_open for each in link.ends):
        link.step()
    for _ in range(20):
        link.step()
    return link


@pytest.mark.parametrize(("bytes_per_s", "delay_s"), [(1e5, 0.02), (1e6, 0.3), (2e7, 0.05)])
def test_a_slow_link_carries_each_byte_about_once(bytes_per_s: float, delay_s: float) -> None:
    link = over_slow_link(bytes_per_s, delay_s)
    size = int(20 * bytes_per_s)
    for _ in range(size // 50_000):
        link.ends[0].send(BytesRecord(1, bytes(50_000)))
    link.run_until(size // 50_000, 120)
    assert link.sent_bytes[0] < 1.3 * size
    assert link.now < 30, "the link is used to the full"


def test_a_link_whose_delay_becomes_longer_is_used_to_the_full_again() -> None:
    """As one whose route changes. The quickest acknowledgement of before says nothing of it."""
    link = over_slow_link(2e7, 0.005)
    for _ in range(40):
        link.ends[0].send(BytesRecord(1, bytes(50_000)))
    link.run_until(40, 60)
    link.delay_s = 0.7
    for _ in range(1200):
        link.ends[0].send(BytesRecord(1, bytes(50_000)))
    began = link.now
    link.run_until(1240, began + 400)
    assert link.now < began + 60, "60 MB take 3 s of this link, and 1,300 s with the smallest window"


def test_a_small_record_overtakes_the_megabytes_of_another_session_on_a_slow_link() -> None:
    link = over_slow_link(2e5, 0.05)
    for _ in range(100):
        link.ends[0].send(BytesRecord(1, bytes(50_000)))
    while link.now < 15:
        link.step()
    link.ends[0].send(BytesRecord(2, b"small"))
    asked = link.now
    while not any(event == BytesRecord(2, b"small") for _, event in link.events):
        link.step()
    assert link.now < asked + 3, "5 MB of the other session take 25 s"


def test_a_node_that_is_heard_and_takes_nothing_up_is_lost_in_the_end() -> None:
    one, other = opened()
    one.send(record(1))
    one.take_frames(0.0)
    for second in range(1, int(STUCK_S)):
        beat = ChannelFrame(1, other._id, one._id, 0, 0, False, [])
        one.frame_received(beat, float(second))
        assert one.tick(float(second)) == []
        one.take_frames(float(second))
    assert isinstance(one.tick(STUCK_S)[0], ChannelLost)


def test_the_time_in_which_nothing_was_sent_does_not_count_as_time_without_acknowledgements() -> None:
    one, other = opened()
    one.frame_received(ChannelFrame(1, other._id, one._id, 0, 0, False, []), 2 * STUCK_S)
    one.send(record(1))
    one.take_frames(2 * STUCK_S)
    assert one.tick(2 * STUCK_S + 1.0) == []


def test_what_waited_for_an_end_that_is_gone_is_not_sent_to_the_next_one() -> None:
    one, other = opened()
    one.send(record(1))
    one.give_up("a test")
    one.check()
    pass_frames(one.take_frames(0.0), other)
    pass_frames(other.take_frames(0.0), one)
    assert [frame.records for frame in one.take_frames(0.0)] == [[]]


def test_of_offers_that_wait_only_the_latest_is_sent() -> None:
    one, other = opened()
    for number in range(100):
        one.send(OfferRecord(b"%d" % number))
    assert pass_frames(one.take_frames(0.0), other) == [OfferRecord(b"99")]
