"""Sessions over a channel: their numbers at both ends, their windows and their ends."""

from itertools import count

import pytest

from carpool.cluster.core.channel import NodeChannel
from carpool.cluster.core.frames import (
    CHUNK_BYTES,
    AnswerRecord,
    BytesRecord,
    CloseRecord,
    CreditRecord,
    OpenRecord,
    RequestRecord,
)
from carpool.cluster.core.sessions import (
    CREDITS_PER_WINDOW,
    MAX_SESSIONS,
    MAX_TEXT_CHARS,
    WINDOW_BYTES,
    AnswerReceived,
    EndSession,
    NearEndEffect,
    NodeEvent,
    NodeLost,
    NodeSessions,
    OpenAtBroker,
    PassBytes,
    ReadOn,
    RequestReceived,
    SessionName,
)
from tests.behaviours import behaviour

IDS = count(1)
OTHER = "other"


def name(number: int) -> SessionName:
    return SessionName(OTHER, number)


class Pair:
    """Two ends that reach each other."""

    def __init__(self) -> None:
        self.ends = [NodeSessions(OTHER, NodeChannel(lambda: next(IDS), 0.0)) for _ in range(2)]
        for _ in range(3):
            self.pass_on()

    def pass_on(self) -> list[NodeEvent | NearEndEffect]:
        """Pass everything on and return what happened at the other end, in order."""
        found: list[NodeEvent | NearEndEffect] = []
        for one, other in (self.ends, self.ends[::-1]):
            for frame in one.channel.take_frames(0.0):
                found += other.received(other.channel.frame_received(frame, 0.0))
        return found


def test_a_session_has_the_opposite_number_at_the_other_end() -> None:
    pair = Pair()
    number = pair.ends[0].open("git")
    assert pair.pass_on() == [OpenAtBroker(name(-number), "git")]
    assert (pair.ends[0].opened, pair.ends[1].served) == (1, 1)


def test_sessions_that_both_ends_open_do_not_mix() -> None:
    pair = Pair()
    assert pair.ends[0].open("a") == pair.ends[1].open("b") == 1
    pair.pass_on()
    pair.ends[0].send(1, b"mine")
    pair.ends[0].send(-1, b"theirs")
    assert pair.pass_on() == [PassBytes(name(-1), b"mine"), PassBytes(name(1), b"theirs")]


def test_a_window_is_used_up_and_opens_again() -> None:
    pair = Pair()
    number = pair.ends[0].open("git")
    pair.pass_on()
    pair.ends[0].send(number, bytes(WINDOW_BYTES))
    assert pair.ends[0].room_bytes(number) == 0
    chunks = [event for event in pair.pass_on() if isinstance(event, PassBytes)]
    assert {len(chunk.data) for chunk in chunks[:-1]} == {CHUNK_BYTES}
    portion = WINDOW_BYTES // CREDITS_PER_WINDOW
    pair.ends[1].bytes_passed(-number, portion - 1)
    assert pair.pass_on() == [], "credit is given in portions"
    pair.ends[1].bytes_passed(-number, 1)
    assert pair.pass_on() == [ReadOn(name(number))]
    assert pair.ends[0].room_bytes(number) == portion


def test_the_end_comes_after_all_bytes_and_later_bytes_are_dropped() -> None:
    pair = Pair()
    number = pair.ends[0].open("git")
    pair.ends[0].send(number, b"last")
    pair.ends[0].close(number, "done")
    pair.ends[0].send(number, b"too late")
    assert pair.pass_on()[1:] == [PassBytes(name(-number), b"last"), EndSession(name(-number), "done")]
    pair.ends[1].send(-number, b"nobody is there")
    assert pair.pass_on() == []


def test_a_lost_channel_ends_each_session_and_then_the_node() -> None:
    pair = Pair()
    numbers = [pair.ends[0].open("git") for _ in range(3)]
    events = pair.ends[0].received(pair.ends[0].channel.give_up("gone"))
    assert events == [*(EndSession(name(number), "gone") for number in numbers), NodeLost("gone")]
    assert pair.ends[0].open("git") == 0, "the node is away"
    pair.ends[0].check()


def test_a_session_that_is_asked_for_twice_is_opened_once() -> None:
    pair = Pair()
    number = pair.ends[0].open("git")
    pair.ends[0].channel.send(OpenRecord(number, "git"))
    pair.ends[0].channel.send(OpenRecord(-7, "a number that only this end may give"))
    assert pair.pass_on() == [OpenAtBroker(name(-number), "git")]


def test_a_request_names_a_session_as_its_receiver_does() -> None:
    pair = Pair()
    pair.ends[0].channel.send(RequestRecord(4, "story", 3, 17))
    pair.ends[0].channel.send(AnswerRecord(9, b"{}"))
    assert pair.pass_on() == [RequestReceived(4, "story", name(-3), 17), AnswerReceived(9, b"{}")]


def test_a_node_that_sends_more_than_the_window_loses_that_session_only() -> None:
    pair = Pair()
    for server in ("flood", "good"):
        pair.ends[0].open(server)
    pair.pass_on()
    flood = [BytesRecord(1, bytes(CHUNK_BYTES))] * (WINDOW_BYTES // CHUNK_BYTES + 1)
    found = pair.ends[1].received([*flood, BytesRecord(2, b"fine")])
    assert sum(len(each.data) for each in found[:-2] if isinstance(each, PassBytes)) <= WINDOW_BYTES
    assert isinstance(found[-2], EndSession)
    assert found[-2].session == name(-1)
    assert found[-1] == PassBytes(name(-2), b"fine")
    assert pair.ends[1].served == 1


@behaviour("cluster:hostile")
def test_a_node_gets_so_many_sessions_and_is_told_why_it_gets_no_more() -> None:
    pair = Pair()
    asked = pair.ends[0].open("git")
    others = [OpenRecord(number, "git") for number in range(asked + 1, asked + 1 + MAX_SESSIONS)]
    assert len(pair.ends[1].received([*others])) == MAX_SESSIONS
    assert pair.pass_on() == [
        EndSession(name(asked), f"the node has {MAX_SESSIONS} sessions of this one open")
    ]
    pair.ends[1].received([CloseRecord(asked + 1, "")])
    asked = asked + 1 + MAX_SESSIONS
    assert pair.ends[1].received([OpenRecord(asked, "git")]) == [OpenAtBroker(name(-asked), "git")]


@behaviour("cluster:hostile")
@pytest.mark.parametrize("size_bytes", [-1, -WINDOW_BYTES, WINDOW_BYTES, 2**53 - 1])
def test_credit_for_bytes_that_were_not_sent_changes_no_window(size_bytes: int) -> None:
    pair = Pair()
    number = pair.ends[0].open("git")
    pair.pass_on()
    pair.ends[1].channel.send(CreditRecord(-number, size_bytes))
    pair.pass_on()
    assert pair.ends[0].room_bytes(number) == WINDOW_BYTES
    pair.ends[0].check()


@behaviour("cluster:hostile")
def test_negative_credit_takes_no_room_away() -> None:
    pair = Pair()
    number = pair.ends[0].open("git")
    pair.ends[0].send(number, b"x")
    pair.ends[1].channel.send(CreditRecord(-number, -5))
    pair.pass_on()
    assert pair.ends[0].room_bytes(number) == WINDOW_BYTES - 1


def test_a_session_at_a_server_that_cannot_be_is_refused_without_a_trace() -> None:
    pair = Pair()
    for server in ("", "x" * 1_000_000, "a\x1b[2Jb", "../etc"):
        pair.ends[0].open(server)
    found = pair.pass_on() + pair.pass_on()
    assert {type(each) for each in found} == {EndSession}
    assert (pair.ends[0].opened, pair.ends[1].served) == (0, 0)


def test_a_reason_of_megabytes_is_cut() -> None:
    pair = Pair()
    number = pair.ends[0].open("git")
    pair.ends[0].close(number, "x" * 1_000_000)
    ended = pair.pass_on()[-1]
    assert isinstance(ended, EndSession)
    assert len(ended.text) == MAX_TEXT_CHARS
