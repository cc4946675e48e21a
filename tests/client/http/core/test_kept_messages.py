"""Messages of a session that a later broker must hear again: their slots, and what one without room leaves.

`test_resume` has which messages are kept, and what is said again.
"""

import pytest

from carpool.http.core.body import ClientMessage
from carpool.http.core.kept_messages import GREETING, MAX_KEPT_PARAMS_BYTES, KeptMessages
from carpool.http.core.shared_budgets import SharedBudget
from tests.behaviours import behaviour


def asked(kept: KeptMessages, uri: str, *, on: bool = True) -> int:
    """A subscription is answered. Returns the length of the name of its slot."""
    method = "resources/subscribe" if on else "resources/unsubscribe"
    kept.request_sent(1, ClientMessage(b"{}", "request", b"7", method, b'{"uri":"%b"}' % uri.encode()))
    (((_, name), _),) = kept.pending.values()
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
    assert not any(line for _, line in kept.pending.values())
    kept.request_answered(1, b"7", is_error=False)
    assert kept.size_bytes == 0
    assert not kept.is_complete, "a later broker does not get it"
    kept.notification_sent(ClientMessage(params, "notification", b"", "notifications/initialized", params))
    assert kept.size_bytes == 0
