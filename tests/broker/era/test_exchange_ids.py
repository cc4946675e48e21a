"""Which exchange a line belongs to: by its request's id, without any socket."""

from typing import Any

import pytest

from carpool_broker.core.model.effects import NO_CALL
from carpool_broker.core.model.events import (
    AskAnswered,
    InitializedReceived,
    LocalEvent,
    PingRequested,
    RequestCancelled,
    RootsListChanged,
)
from carpool_broker.era.exchange_ids import OneAgentExchanges, SharedExchanges, tag_id
from carpool_broker.era.handshake import ControlRequested, UnservableLine
from carpool_broker.transport.multiplexed import with_exchange
from carpool_broker.transport.streams import SessionStream
from carpool_protocol.carrier.streams import OpenStream
from carpool_protocol.ids import ABSENT, AskId, CallId, Epoch, RawJson, SessionId
from tests.behaviours import behaviour

ME = SessionId("s1")
ONE, TWO = RawJson(b"1"), RawJson(b'"1"')
NOTHING: Any = None


def stream(*, shared: bool) -> SessionStream:
    opening = OpenStream(kind="shared" if shared else "session")
    return SessionStream(ME, 4, opening, NOTHING, Epoch(""))


class Frames(list[bytes | memoryview]):
    """Where a stream writes."""

    def write(self, frame: bytes | memoryview, _call: CallId = NO_CALL, /) -> bool:
        self.append(frame)
        return False

    def line_waits(self, _session: SessionId, _size_bytes: int) -> None:
        """None waits."""


@behaviour("streams:own-exchange")
def test_a_message_of_a_request_goes_to_its_exchange_and_the_answer_ends_that() -> None:
    own = OneAgentExchanges()
    assert own.open(ONE, 7) == ONE
    assert own.open(TWO, 8) == TWO
    assert own.exchange_of(ONE, last=False) == own.exchange_of(ONE, last=False) == 7
    assert own.exchange_of(TWO, last=True) == 8
    assert own.exchange_of(TWO, last=False) == 0, "that one is answered"
    assert own.exchange_of(ONE, last=True) == 7
    assert own.open(ONE, 9) == ONE, "and then its id may come again"


@behaviour("streams:equal-ids")
def test_equal_ids_of_different_agents_are_told_apart_by_their_exchange() -> None:
    shared = SharedExchanges()
    first, second = shared.open(ONE, 7), shared.open(ONE, 8)
    assert first is not None
    assert second is not None
    assert first != second
    assert (shared.exchange_of(second, last=True), shared.exchange_of(first, last=False)) == (8, 7)


@pytest.mark.parametrize("shared", [False, True])
def test_a_second_request_that_would_be_the_same_is_refused_and_the_first_stays(shared: bool) -> None:
    one = stream(shared=shared)
    first = with_exchange(one, PingRequested(ME, ONE), 7)
    assert isinstance(first, PingRequested)
    refused = with_exchange(one, PingRequested(ME, ONE), 7 if shared else 8)
    assert isinstance(refused, UnservableLine)
    assert b'"id":1' in refused.line
    assert b"id of a request that it still has open" in refused.line
    assert one.exchanges.exchange_of(first.id, last=True) == 7


@behaviour("streams:gone-is-no-cancel")
def test_a_client_of_the_handshake_era_that_goes_away_cancels_nothing_and_hears_no_more_there() -> None:
    own = OneAgentExchanges()
    own.open(ONE, 7)
    own.open(TWO, 8)
    assert own.client_gone(7) == []
    assert own.exchange_of(ONE, last=False) == 0
    assert own.open(ONE, 9) is None, "it is open all the same"
    assert (own.exchange_of(ONE, last=True), own.exchange_of(TWO, last=True)) == (0, 8)


@behaviour("streams:gone-cancels")
def test_a_stateless_client_that_goes_away_takes_its_request_with_it() -> None:
    shared = SharedExchanges()
    shared.open(ONE, 7)
    shared.open(ONE, 8)
    assert shared.client_gone(7) == [tag_id(7, ONE)]
    assert shared.client_gone(7) == []
    shared.exchange_of(tag_id(8, ONE), last=True)
    assert shared.client_gone(8) == [], "it was answered before"


def test_a_cancel_ends_the_exchange_once_nothing_of_it_is_open() -> None:
    own = OneAgentExchanges()
    own.open(ONE, 7)
    own.open(TWO, 7)  # a batch
    assert own.request_cancelled(ONE) == 0
    assert own.request_cancelled(TWO) == 7
    assert own.request_cancelled(TWO) == 0


@pytest.mark.parametrize(
    "event",
    [
        InitializedReceived(ME),
        RootsListChanged(ME),
        RequestCancelled(ME, ONE, "other's"),
        AskAnswered(ME, AskId("a"), is_error=False, body=RawJson(b"{}")),
    ],
    ids=lambda event: type(event).__name__,
)
def test_on_a_shared_stream_nothing_but_requests_counts(event: LocalEvent) -> None:
    assert with_exchange(stream(shared=True), event, 7) is None
    assert with_exchange(stream(shared=False), event, 7) is event


def test_a_request_of_an_operator_has_its_exchange_too() -> None:
    frames = Frames()
    one = SessionStream(ME, 4, OpenStream(kind="control"), frames, Epoch(""))
    asked = ControlRequested(ONE, "carpool/status", ABSENT)
    assert with_exchange(one, asked, 7) is asked
    one.write(b"{}\n", ONE, last=True, call=NO_CALL)
    assert frames == [b"[4,{},7]\n"]


def test_a_line_that_belongs_to_no_request_has_no_exchange() -> None:
    frames = Frames()
    one = SessionStream(ME, 4, OpenStream(), frames, Epoch(""))
    one.write(b"{}\n", ABSENT, last=False, call=NO_CALL)
    assert frames == [b"[4,{}]\n"]
