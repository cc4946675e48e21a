"""The model of a network cable, on virtual time."""

from math import inf

from hypothesis import given
from hypothesis import strategies as st

from bench.cable import FLIGHT_BYTES, CableDirection, Lane


def come_out(
    direction: CableDirection, *lanes: Lane, until: float = 1000.0
) -> list[tuple[float, int, bytes]]:
    """What comes out of these lanes, each piece with its time and the place of its lane."""
    now, found = 0.0, list[tuple[float, int, bytes]]()
    while now <= until:
        for place, lane in enumerate(lanes):
            if data := direction.take(lane, now):
                found.append((round(now, 6), place, data))
        direction.check()
        due = min(direction.next_due(lane, now) for lane in lanes)
        if due == inf:
            break
        assert due > now, "it asks to be looked at again at once"
        now = due
    return found


def test_without_faults_bytes_come_out_at_once() -> None:
    direction, lane = CableDirection(), Lane()
    direction.put(lane, b"abc", 1.0)
    assert direction.take(lane, 1.0) == b"abc"
    assert direction.carried_bytes == 3


def test_each_byte_comes_out_after_the_delay() -> None:
    direction, lane = CableDirection(), Lane()
    direction.delay_s = 0.2
    direction.put(lane, b"abc", 1.0)
    assert direction.take(lane, 1.1) == b""
    assert direction.next_due(lane, 1.1) == 1.2
    assert direction.take(lane, 1.2) == b"abc"


def test_the_last_byte_comes_out_when_the_bandwidth_has_carried_all_before_it() -> None:
    direction, lane = CableDirection(), Lane()
    direction.bytes_per_s, direction.delay_s = 50_000.0, 0.2
    direction.put(lane, bytes(100_000), 0.0)
    found = come_out(direction, lane)
    assert sum(len(data) for *_, data in found) == 100_000
    assert found[-1][0] == 2.2


def test_two_connections_share_the_bandwidth_in_turns() -> None:
    direction, big, small = CableDirection(), Lane(), Lane()
    direction.bytes_per_s = 50_000.0
    direction.put(big, bytes(100_000), 0.0)
    direction.put(small, b"small", 0.0)
    found = come_out(direction, big, small)
    at = next(at for at, place, _ in found if place == 1)
    assert at < 0.1, "the small connection waits behind the big one"
    assert found[-1][0] == round(100_005 / 50_000, 6)


def test_a_full_buffer_takes_no_more_until_bytes_have_left() -> None:
    direction, lane = CableDirection(buffer_bytes=1000), Lane()
    direction.bytes_per_s = 1000.0
    direction.put(lane, bytes(1000), 0.0)
    room = direction.room_bytes(lane, 0.0)
    assert room < 1000
    direction.put(lane, bytes(room), 0.0)
    assert direction.room_bytes(lane, 0.0) == 0
    assert direction.room_bytes(lane, direction.next_due(lane, 0.0)) > 0


def test_bytes_for_a_receiver_that_does_not_read_are_bounded_without_a_bandwidth_too() -> None:
    direction, lane = CableDirection(buffer_bytes=FLIGHT_BYTES), Lane()
    direction.put(lane, bytes(FLIGHT_BYTES), 0.0)
    assert direction.room_bytes(lane, 0.0) == 0
    direction.take(lane, 0.0)
    assert direction.room_bytes(lane, 0.0) == FLIGHT_BYTES


def test_a_stalled_direction_holds_what_comes_and_what_is_on_its_way() -> None:
    direction, lane = CableDirection(), Lane()
    direction.delay_s = 1.0
    direction.put(lane, b"on its way ", 0.0)
    direction.stall()
    direction.put(lane, b"held", 0.5)
    assert direction.take(lane, 5.0) == b""
    assert direction.next_due(lane, 5.0) == inf
    assert direction.held_pieces == 1
    direction.resume(5.0)
    assert direction.take(lane, 5.0) == b"on its way "
    assert direction.take(lane, 6.0) == b"held"


def test_a_stall_takes_its_time_from_the_bandwidth() -> None:
    direction, lane = CableDirection(), Lane()
    direction.bytes_per_s = 1000.0
    direction.stall()
    direction.put(lane, bytes(1000), 0.0)
    direction.resume(10.0)
    assert direction.take(lane, 10.5) != bytes(1000)
    assert come_out(direction, lane)[-1][0] == 11.0


def test_a_new_bandwidth_and_delay_count_for_what_has_not_left() -> None:
    direction, lane = CableDirection(), Lane()
    direction.bytes_per_s = 1000.0
    direction.put(lane, bytes(100_000), 0.0)
    assert len(direction.take(lane, 1.0)) <= 1000
    direction.bytes_per_s = inf
    assert len(direction.take(lane, direction.next_due(lane, 1.0))) >= 90_000


def test_a_reset_connection_is_forgotten_and_the_others_go_on() -> None:
    direction, gone, other = CableDirection(), Lane(), Lane()
    direction.bytes_per_s = 1000.0
    direction.put(gone, bytes(5000), 0.0)
    direction.put(other, bytes(1000), 0.0)
    direction.drop(gone)
    assert {place for _, place, _ in come_out(direction, gone, other)} == {1}


def test_a_lane_is_over_once_its_end_has_come_out_behind_its_bytes() -> None:
    direction, lane = CableDirection(), Lane()
    direction.delay_s = 1.0
    direction.put(lane, b"last", 0.0)
    lane.ending = "end"
    assert not lane.is_over
    direction.take(lane, 1.0)
    assert lane.is_over


@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.binary(min_size=1, max_size=3000), st.floats(0.0, 2.0)), max_size=20
    ),
    st.sampled_from((200.0, 5000.0, inf)),
    st.sampled_from((0.0, 0.3)),
)
def test_each_connection_gets_its_bytes_in_order_and_once(
    pieces: list[tuple[int, bytes, float]], bytes_per_s: float, delay_s: float
) -> None:
    direction, lanes = CableDirection(), [Lane(), Lane(), Lane()]
    direction.bytes_per_s, direction.delay_s = bytes_per_s, delay_s
    now, sent = 0.0, [b"", b"", b""]
    got = [b"", b"", b""]
    for place, data, pause_s in pieces:
        now += pause_s
        direction.put(lanes[place], data, now)
        sent[place] += data
        got[place] += direction.take(lanes[place], now)
    last = now
    for at, place, data in come_out(direction, *lanes):
        got[place] += data
        last = max(last, at)
    assert got == sent
    size = sum(len(data) for _, data, _ in pieces)
    assert direction.carried_bytes == size
    assert last >= size / bytes_per_s
