"""Messages of a session that a later broker must hear again: their slots, and what one without room leaves.

`test_resume` has which messages are kept, and what is said again.
"""

from typing import Never

import pytest

from carpool.http.core.body import ClientMessage
from carpool.http.core.kept_messages import GREETING, MAX_KEPT_PARAMS_BYTES, KeptMessages, Slot
from carpool.http.core.shared_budgets import SharedBudget
from tests.behaviours import behaviour


def asked(kept: KeptMessages, uri: str, *, on: bool = True) -> int:
    """A subscription is answered. Returns the length of the name of its slot."""
    method = "resources/subscribe" if on else "resources/unsubscribe"
    kept.request_sent(1, ClientMessage(b"{}", "request", b"7", method, b'{"uri":"%b"}' % uri.encode()))
    ((_, name), _) = kept.pending[1][b"7"]
    kept.request_answered(1, b"7", is_error=False)
    return len(name)


@behaviour("http:shares:kept")
def test_a_subscription_without_room_leaves_no_more_than_one_with_a_short_uri() -> None:
    kept = KeptMessages(SharedBudget(400).share_of("ann"))
    kept.set_slot(GREETING, b"{}")
    short, long = "x:1", "x:2".ljust(4096, "y")
    assert asked(kept, short) == asked(kept, long) <= 32
    assert not all(kept.lines()), "a later broker does not get it"
    assert kept.size_bytes == kept.room.used < 400
    assert asked(kept, long, on=False) <= 32
    assert all(kept.lines()), "it has ended"
    assert [b"x:1" in line for line in kept.lines()] == [False, True]
    asked(kept, short, on=False)
    assert kept.lines() == [b"{}"]
    assert kept.is_complete


@behaviour("http:shares:kept")
@pytest.mark.parametrize("method", ["initialize", "tools/list", "logging/setLevel"])
def test_nothing_of_a_message_with_long_params_is_kept_before_its_answer_or_after_it(method: str) -> None:
    kept = KeptMessages(SharedBudget(10_000_000).share_of("ann"))
    params = b'{"level":"info","x":"%b"}' % (b"x" * MAX_KEPT_PARAMS_BYTES)
    kept.request_sent(1, ClientMessage(b"{}", "request", b"7", method, params))
    assert kept.size_bytes == 0
    kept.request_answered(1, b"7", is_error=False)
    assert kept.size_bytes == 0
    assert not kept.is_complete, "a later broker does not get it"
    kept.notification_sent(ClientMessage(params, "notification", b"", "notifications/initialized", params))
    assert kept.size_bytes == 0


def listed(kept: KeptMessages, x: int, ident: bytes, params: bytes = b"{}") -> None:
    """A list is asked for."""
    kept.request_sent(x, ClientMessage(b"{}", "request", ident, "tools/list", params))


@behaviour("http:shares:kept")
def test_what_awaits_an_answer_counts_until_its_request_ends_and_only_as_far_as_there_is_room() -> None:
    kept = KeptMessages(SharedBudget(1200).share_of(""))
    params = b'{"x":"%b"}' % (b"x" * 300)
    for x, ident in ((1, b"1"), (1, b"2"), (2, b"1"), (3, b"1")):
        listed(kept, x, ident, params)
        assert kept.size_bytes == kept.room.used <= 1200
    assert kept.pending[3][b"1"] == (("list", b"tools/list"), b""), "there was no room"
    listed(kept, 1, b"2")  # the id is used again
    assert kept.size_bytes == kept.room.used < 1000
    kept.exchange_detached(1)
    kept.exchange_detached(2)  # of one id, the last request counts
    assert kept.pending.keys() == {0, 3}
    assert kept.size_bytes == kept.room.used < 600
    kept.request_answered(0, b"1", is_error=False)
    assert params in kept.lines()[0]
    kept.request_answered(0, b"2", is_error=True)
    kept.exchange_ended(3)
    assert not kept.pending
    assert kept.size_bytes == kept.room.used == len(kept.lines()[0])
    listed(kept, 4, b"1")
    kept.clear()
    assert kept.room.used == 0


def test_the_end_of_an_exchange_does_not_go_through_what_other_exchanges_await() -> None:
    kept = KeptMessages(SharedBudget(1000).share_of(""))
    for x in (1, 2, 3):
        listed(kept, x, b"7")
    everything, other = kept.pending, Untouched(kept.pending[3])
    kept.pending[3] = other
    kept.exchange_detached(1)
    kept.exchange_ended(2)
    assert kept.pending is everything
    assert kept.pending.keys() == {0, 3}
    assert kept.pending[3] is other


class Untouched(dict[bytes, tuple[Slot, bytes | None]]):
    """Requests through which nobody may go."""

    def __iter__(self) -> Never:
        raise AssertionError

    items = keys = values = __iter__
