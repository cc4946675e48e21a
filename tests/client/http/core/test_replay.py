"""Events that are kept for `Last-Event-ID`: whose are forgotten when there is no room."""

from carpool.http.core.replay import EventReplay
from tests.behaviours import behaviour

EVENT = b"x" * 10


def add(replay: EventReplay, principal: str, session: int, count: int) -> None:
    """So many events of exchange 1, after those that are there."""
    for number in range(1, count + 1):
        replay.add(principal, session, 1, number, EVENT)
        replay.check()


def kept(replay: EventReplay, session: int, count: int) -> bool:
    """True if all events of the session can be had again."""
    return replay.after(session, 1, 0, count) is not None


@behaviour("http:shares:kept")
def test_events_of_a_token_push_out_those_of_its_own_sessions_that_were_silent_for_longest() -> None:
    replay = EventReplay(bytes_=16 * len(EVENT))
    add(replay, "bob", 1, 4)
    for session in range(2, 12):
        add(replay, "ann", session, 3)
    assert kept(replay, 1, 4), "those of another"
    assert [session for session in range(2, 12) if kept(replay, session, 3)] == [10, 11]
    for session in range(1, 12):
        replay.session_closed(session)
    replay.check()


@behaviour("http:shares:kept")
def test_one_session_keeps_its_last_events_within_the_share_of_its_token() -> None:
    replay = EventReplay(bytes_=8 * len(EVENT))
    add(replay, "ann", 1, 9)
    assert not kept(replay, 1, 9)
    assert len(replay.after(1, 1, 5, 9) or []) == 4, "the last ones"
    add(replay, "bob", 2, 9)
    assert len(replay.after(2, 1, 7, 9) or []) == 2
    assert len(replay.after(1, 1, 5, 9) or []) == 4, "another takes none of them"
    replay.exchange_closed(1, 1)
    replay.check()
    assert replay.after(1, 1, 5, 9) is None


def test_an_event_for_which_there_is_no_room_is_not_kept_and_leaves_room_for_the_next() -> None:
    replay = EventReplay(session_bytes=20, bytes_=30)
    for session, principal, size in ((1, "ann", 21), (2, "ann", 16), (3, "bob", 15)):
        replay.add(principal, session, 1, 1, b"x" * size)
        replay.check()
    assert [kept(replay, session, 1) for session in (1, 2, 3)] == [False, True, False]
    replay.add("bob", 3, 1, 2, b"x" * 14)
    assert replay.after(3, 1, 1, 2) == [(2, b"x" * 14)]
    replay.check()
