"""Requests that wait in the door before they go to the broker: what is kept for them, and for how long."""

import tracemalloc
from collections.abc import Callable

import pytest

from carpool.http.core.access import AccessRules, hash_of
from carpool.http.core.core import HttpCore
from carpool.http.core.effects import HttpRules
from carpool.http.core.pending import MAX_WAITING_BYTES
from carpool_protocol.carrier.streams import StreamClosed, StreamOpened, StreamRefused
from tests.behaviours import behaviour
from tests.client.http.door_core_rig import DoorCoreRig, Json, modern, modern_headers, request

ROOM = 10_000
PAD = "a" * 2000
"""Two calls with it fit into half of the room, and three do not."""


def with_room(rules: HttpRules | None = None, *, heir: bool = False) -> DoorCoreRig:
    """A door with two tokens, and little room for what waits."""
    gate = AccessRules(tokens={"ann": hash_of("ann"), "bob": hash_of("bob")})
    desk = DoorCoreRig(linked=False)
    desk.core = HttpCore(rules or HttpRules(), gate, heir_s=30.0 if heir else 0.0)
    desk.take(desk.core.broker_connected(desk.now))
    budget = desk.core._quotas._held_bytes
    assert budget.size == MAX_WAITING_BYTES
    budget.size = ROOM
    return desk


def used(desk: DoorCoreRig) -> int:
    return desk.core._quotas._held_bytes.used


def call(pad: str) -> Json:
    return request(1, "tools/call", name="t", arguments={"text": pad})


def post_modern(desk: DoorCoreRig, who: str, pad: str = PAD) -> int:
    message = modern(1, "tools/call", name="t", arguments={"text": pad})
    return desk.post(message, authorization=f"Bearer {who}", **modern_headers("tools/call", "t"))


def post_in_session(desk: DoorCoreRig, who: str, pad: str = PAD * 2) -> int:
    """A call in a session of an earlier door, of which the broker is asked."""
    return desk.post(call(pad), authorization=f"Bearer {who}", mcp_session_id=who)


def post_alone(desk: DoorCoreRig, who: str, pad: str = PAD) -> int:
    """A call without a session, before which one is greeted."""
    return desk.post(call(pad), authorization=f"Bearer {who}")


WAITS = [
    (with_room, post_modern),
    (lambda: with_room(heir=True), post_in_session),
    (lambda: with_room(HttpRules(stateless=True)), post_alone),
]
every_wait = pytest.mark.parametrize(
    ("made", "post"), WAITS, ids=["for schemas", "for an earlier session", "for a session of its own"]
)
Post = Callable[..., int]


@every_wait
@behaviour("http:shares:waiting")
def test_what_waits_counts_for_its_token_and_more_is_refused(
    made: Callable[[], DoorCoreRig], post: Post
) -> None:
    desk = made()
    waiting = [post(desk, "ann")]
    assert 2 * len(PAD) <= used(desk) <= 2 * len(PAD) + 1000
    refused = post(desk, "ann", PAD * 3)
    assert (desk.status(refused), desk.body(refused)["id"]) == (503, 1)
    assert desk.header(refused, "Retry-After") == "1"
    waiting.append(post(desk, "bob", PAD[:1000]))
    assert not {*waiting} & {*desk.answers}, "another token has room"
    for x in waiting:
        desk.gone(x)
    assert used(desk) == 0
    assert post(desk, "ann") not in desk.answers


@every_wait
def test_nothing_is_kept_of_a_waiting_request_whose_client_has_gone(
    made: Callable[[], DoorCoreRig], post: Post
) -> None:
    desk = made()
    desk.core._quotas._held_bytes.size = MAX_WAITING_BYTES
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        x = post(desk, "ann", "a" * 1_000_000)
        desk.told.clear()
        waits, _ = tracemalloc.get_traced_memory()
        desk.gone(x)
        post(desk, "bob", "short")  # the last params that were read are kept until others are
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert waits - before > 1_000_000
    assert after - before < 100_000


@pytest.mark.parametrize("end", ["the list comes", "it does not come", "the stream ends", "the door ends"])
@behaviour("http:shares:waiting")
def test_a_call_that_waits_for_schemas_counts_until_it_is_sent_or_answered(end: str) -> None:
    desk = with_room()
    x = post_modern(desk, "ann")
    s = desk.word()[0]
    desk.heard("subscriptions/listen")
    _, asked, own = desk.heard("tools/list")
    assert used(desk)
    if end == "the list comes":
        desk.answer(s, own, asked["id"], tools=[])
        desk.heard("tools/call")
    elif end == "it does not come":
        desk.wait(2.0)
        desk.heard("tools/call")
    elif end == "the stream ends":
        desk.say(s, StreamClosed("the broker is sorry"))
        assert desk.status(x) == 502
    else:
        desk.take(desk.core.broker_given_up(desk.now))
        assert desk.status(x) == 502
    assert used(desk) == 0


@pytest.mark.parametrize("is_known", [True, False])
def test_a_call_in_a_session_of_an_earlier_door_counts_until_that_is_found_or_not(is_known: bool) -> None:
    desk = with_room(heir=True)
    x = post_in_session(desk, "ann")
    assert used(desk)
    s = desk.word()[0]
    if is_known:
        desk.say(s, StreamOpened("ann", "s5", "0.mac", "e1", "2025-11-25"))
        desk.heard("tools/call")
    else:
        desk.say(s, StreamRefused("no", "unknown_session"))
        assert desk.status(x) == 404
    assert used(desk) == 0


def test_what_needs_no_room_is_not_refused_while_there_is_none() -> None:
    desk = with_room()
    desk.core._quotas._held_bytes.size = 0
    assert desk.status(post_modern(desk, "ann")) == 503
    assert desk.send("GET", "/mcp/tools", authorization="Bearer ann") not in desk.answers
