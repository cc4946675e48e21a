"""`resources/subscribe` and `resources/unsubscribe`: what is refused, and for whom there is room."""

from carpool_broker.core.limits.memory_budgets import MAX_SUBSCRIPTION_BYTES
from carpool_broker.core.model import events as ev
from carpool_broker.core.model.effects import Reply
from carpool_broker.core.subscriptions.subscription_table import ENDS_PAUSE_S
from carpool_protocol.ids import RawJson, SessionId
from carpool_protocol.link.messages import ChangeResourceSubscriptions, SetResourceSubscriptions
from carpool_protocol.wire.uri_normalization import MAX_CHARS
from tests.behaviours import behaviour
from tests.broker.stateless_rig import ONE, TWO, A, StatelessRig

NEWS = (SetResourceSubscriptions, ChangeResourceSubscriptions)


def subscribe(rig: StatelessRig, uri: str, *, session: SessionId = ONE, on: bool = True) -> bytes:
    """Return the error; empty if it is accepted."""
    event = ev.SubscribeRequested(session, RawJson(b"7"), uri, on=on)
    (reply,) = (each for each in rig.core.handle(event, rig.now) if isinstance(each, Reply))
    return bytes(reply.body) if reply.is_error else b""


def both() -> StatelessRig:
    """Two agents of the handshake era."""
    rig = StatelessRig()
    rig.come(TWO)
    rig.initialize(ONE)
    rig.initialize(TWO)
    return rig


@behaviour("subscriptions:long-uris")
def test_nobody_subscribes_to_an_overlong_uri() -> None:
    rig = both()
    longest = "file:///".ljust(MAX_CHARS, "x")
    assert subscribe(rig, longest) == b""
    for on in (True, False):
        refused = subscribe(rig, f"{longest}x", on=on)
        assert b"bad_params" in refused
        assert b"4096 characters at most" in refused


@behaviour("subscriptions:bounded")
def test_an_agent_with_long_uris_finds_no_more_room_and_others_do() -> None:
    rig = both()
    count = 0
    while not (refused := subscribe(rig, f"file:///{count}".ljust(MAX_CHARS, "x"))):
        count += 1
    assert b"too_many_calls" in refused
    assert b"End subscriptions" in refused
    assert count * MAX_CHARS <= MAX_SUBSCRIPTION_BYTES // 2
    subscribe(rig, "file:///0".ljust(MAX_CHARS, "x"), on=False)
    assert subscribe(rig, "file:///new".ljust(MAX_CHARS, "x")) == b""
    assert subscribe(rig, "file:///a", session=TWO) == b""
    rig.feed(ev.SessionClosed(ONE))
    assert rig.core.requests.subscription_budget.use.total_bytes < MAX_CHARS
    rig.core.check()


@behaviour("subscriptions:loops")
def test_a_supervisor_hears_a_few_times_a_second_of_an_agent_that_subscribes_and_unsubscribes() -> None:
    rig = both()
    told: list[object] = []

    def change(uri: str, *, on: bool) -> list[object]:
        effects = rig.feed(ev.SubscribeRequested(ONE, RawJson(b"7"), uri, on=on))
        return [each for each in effects if isinstance(each, NEWS)]

    assert change("file:///own", on=True) == [SetResourceSubscriptions(A, ["file:///own"])], "at once"
    for _ in range(1000):
        told += change("file:///x", on=True)
        told += change("file:///x", on=False)
        told += [each for each in rig.wait(0.001) if isinstance(each, NEWS)]
    assert len(told) <= 4
    told += rig.wait(ENDS_PAUSE_S)
    assert told[-1] == ChangeResourceSubscriptions(A, [], ["file:///x"])
    assert change("file:///own", on=False) == [], "it waits"
    assert change("file:///y", on=True) == [ChangeResourceSubscriptions(A, ["file:///y"], ["file:///own"])], (
        "what cannot wait takes it along"
    )
