"""One peer: greeting, epochs, credit, heartbeat. Two peers joined by a list of frames; time is a number."""

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from carpool_protocol.ids import AskId, CallId, RawJson
from carpool_protocol.link.codec import Frame, FrameData, decode_frame, encode_frames
from carpool_protocol.link.messages import (
    AnyMessage,
    AskOpened,
    AskWithdrawn,
    Call,
    CallAnswered,
    CallAtNode,
    CancelCall,
    Credit,
    Heartbeat,
)
from carpool_protocol.link.peer import (
    BROKER,
    HEARTBEAT_S,
    LEFT_OVER_S,
    LinkEvent,
    Peer,
    PeerDown,
    PeerRefused,
    PeerUp,
)
from tests.kit.link_messages import answered, call, hello

SUP = "sup1"


def peers(window_bytes: int = 4096, b: str = "b1", s: str = "s1") -> tuple[Peer, Peer]:
    """The supervisor as the broker sees it, and the broker as the supervisor sees it."""
    return (
        Peer(hello(BROKER, b), SUP, 0.0, window_bytes=window_bytes),
        Peer(hello(SUP, s), BROKER, 0.0, window_bytes=window_bytes),
    )


def carry(source: Peer, target: Peer, now: float = 0.0) -> list[LinkEvent]:
    return [event for data in source.take_frames(now) for event in target.receive(data, now)]


def greeted(window_bytes: int = 4096) -> tuple[Peer, Peer]:
    at_broker, at_sup = peers(window_bytes)
    at_broker.connection_opened()
    carry(at_broker, at_sup)
    carry(at_sup, at_broker)
    assert at_broker.up
    assert at_sup.up
    return at_broker, at_sup


def said(peer: Peer, now: float = 0.0) -> list[AnyMessage]:
    messages = []
    for data in peer.take_frames(now):
        frame = decode_frame(data)
        assert isinstance(frame, Frame)
        messages += frame.messages
    return messages


def test_the_listening_end_greets_and_each_end_hears_the_other_once() -> None:
    at_broker, at_sup = peers()
    assert at_broker.connection_opened() == []
    assert carry(at_broker, at_sup) == [PeerUp(hello(BROKER, "b1"))]
    assert carry(at_sup, at_broker) == [PeerUp(hello(SUP, "s1"))]
    assert carry(at_broker, at_sup) == []
    assert not at_sup.has_output


def test_nothing_is_accepted_or_sent_before_the_greeting() -> None:
    at_broker, at_sup = peers()
    at_sup.send(answered(1))
    assert at_sup.take_frames(0.0) == []
    assert at_sup.unsent_messages == 1
    for receiver in ("b1", ""):
        (data,) = encode_frames("s1", receiver, [answered(1)])
        assert at_broker.receive(data, 0.0) == []
    assert at_broker.stale_frames == 2


def test_a_stranger_that_speaks_is_greeted_once() -> None:
    at_broker, at_sup = peers()
    (data,) = encode_frames("s1", "b0", [Heartbeat()])
    for _ in range(5):
        at_broker.receive(data, 0.1)
    assert said(at_broker, 0.1) == [hello(BROKER, "b1")]
    at_broker.receive(data, 9.0)
    assert not at_broker.has_output
    at_broker.connection_lost("the greeting was lost with the connection")
    at_broker.receive(data, 9.0)
    assert carry(at_broker, at_sup) == [PeerUp(hello(BROKER, "b1"))]


def test_a_new_epoch_of_the_same_name_replaces_the_old_one_for_good() -> None:
    at_broker, _ = greeted()
    (new,) = encode_frames("s2", "b1", [hello(SUP, "s2")])
    (old,) = encode_frames("s1", "b1", [hello(SUP, "s1")])
    down, up = at_broker.receive(new, 1.0)
    assert isinstance(down, PeerDown)
    assert up == PeerUp(hello(SUP, "s2"))
    assert at_broker.receive(old, 1.0) == []
    (late,) = encode_frames("s1", "b1", [answered(1)])
    assert at_broker.receive(late, 1.0) == []
    assert at_broker.stale_frames == 2


def test_frames_to_an_earlier_life_of_ours_are_dropped() -> None:
    _, at_sup = greeted()
    for messages in ([call(1)], [hello(BROKER, "b1")]):
        (data,) = encode_frames("b1", "s0", messages)
        assert at_sup.receive(data, 0.0) == []
    assert at_sup.stale_frames == 2


def test_a_greeting_to_nobody_from_a_known_epoch_starts_over() -> None:
    at_broker, at_sup = greeted()
    at_sup.send(answered(1))
    at_broker.connection_opened()
    events = carry(at_broker, at_sup, 1.0)
    assert [type(e) for e in events] == [PeerDown, PeerUp]
    assert at_sup.unsent_messages == 1
    assert carry(at_sup, at_broker, 1.0) == [PeerUp(hello(SUP, "s1"))]


def test_another_version_is_refused_once_at_both_ends() -> None:
    at_broker = Peer(hello(BROKER, "b1", 1), SUP, 0.0)
    at_sup = Peer(hello(SUP, "s1", 2), BROKER, 0.0)
    at_broker.connection_opened()
    (at_sup_event,) = carry(at_broker, at_sup)
    (at_broker_event,) = carry(at_sup, at_broker)
    for event in (at_sup_event, at_broker_event):
        assert isinstance(event, PeerRefused)
        assert "version 1" in event.text or "version 2" in event.text
    at_broker.connection_opened()
    assert carry(at_broker, at_sup, 2.0) == []
    assert carry(at_sup, at_broker, 2.0) == []
    assert not at_broker.up
    assert not at_sup.up


def test_a_peer_that_greets_under_another_name_is_refused() -> None:
    at_broker, _ = peers()
    (data,) = encode_frames("x1", "", [hello("sup2", "x1")])
    (event,) = at_broker.receive(data, 0.0)
    assert isinstance(event, PeerRefused)


def test_a_hello_that_is_not_alone_is_nobodys_greeting() -> None:
    at_broker, _ = greeted()
    (data,) = encode_frames("s1", "b1", [answered(1), hello(SUP, "s2"), answered(2)])
    assert at_broker.receive(data, 0.0) == [answered(1), answered(2)]
    assert at_broker.up


def test_paid_messages_wait_when_the_window_is_used_up_and_free_ones_pass() -> None:
    at_broker, _ = greeted(window_bytes=200)
    cancel = CancelCall(call=CallId(1), reason="")
    for message in (call(1, 100), call(2, 100), call(3, 100), cancel):
        at_broker.send(message)
    assert said(at_broker) == [call(1, 100), call(2, 100), cancel]
    assert at_broker.held_bytes == 164
    (credit,) = encode_frames("s1", "b1", [Credit(size_bytes=164)])
    assert at_broker.receive(credit, 0.0) == [Credit(size_bytes=164)]
    assert said(at_broker) == [call(3, 100)]
    assert at_broker.held_bytes == 0


def test_what_takes_back_a_question_waits_for_the_window_behind_it() -> None:
    at_broker, at_sup = greeted(window_bytes=200)
    asked = AskOpened(call=CallId(2), ask=AskId("a"), method="m", params=RawJson(b"{}"), wants_progress=False)
    taken_back = AskWithdrawn(ask=AskId("a"), reason="changed my mind")
    for message in (answered(1, 500), asked, taken_back):
        at_sup.send(message)
    assert carry(at_sup, at_broker) == [answered(1, 500)]
    assert carry(at_broker, at_sup) == [Credit(size_bytes=564)]
    assert carry(at_sup, at_broker) == [asked, taken_back]


def test_a_message_larger_than_the_window_goes_when_the_window_is_full() -> None:
    at_broker, at_sup = greeted(window_bytes=200)
    at_broker.send(call(1, 5000))
    at_broker.send(call(2, 1))
    assert carry(at_broker, at_sup) == [call(1, 5000)]
    assert carry(at_sup, at_broker) == [Credit(size_bytes=5064)]
    assert carry(at_broker, at_sup) == [call(2, 1)]


def test_credit_never_opens_the_window_beyond_its_size() -> None:
    at_broker, _ = greeted(window_bytes=200)
    (credit,) = encode_frames("s1", "b1", [Credit(size_bytes=10**15), Credit(size_bytes=-5)])
    at_broker.receive(credit, 0.0)
    for i in range(5):
        at_broker.send(call(i, 100))
    assert len(said(at_broker)) == 2


def test_small_credit_is_left_for_an_idle_second() -> None:
    at_broker, at_sup = greeted(window_bytes=64 * 1000)
    at_broker.send(call(1, 100))
    carry(at_broker, at_sup, 5.0)
    assert not at_sup.has_output
    at_sup.tick(5.5)
    assert said(at_sup, 5.5) == [Credit(size_bytes=164)]
    for i in range(7):
        at_broker.send(call(i, 100))
    carry(at_broker, at_sup, 5.6)
    assert said(at_sup, 5.6) == [Credit(size_bytes=7 * 164)]


def test_a_heartbeat_is_due_after_a_minute_without_a_frame_of_ours_and_stays_inside() -> None:
    at_broker, at_sup = greeted()
    at_broker.send(CancelCall(call=CallId(1), reason=""))
    carry(at_broker, at_sup, 3.0)
    assert at_broker.next_deadline() == 3.0 + HEARTBEAT_S
    at_broker.tick(2.9 + HEARTBEAT_S)
    assert not at_broker.has_output
    at_broker.tick(3.0 + HEARTBEAT_S)
    assert carry(at_broker, at_sup, 3.0 + HEARTBEAT_S) == []
    assert at_sup.heard_at == 3.0 + HEARTBEAT_S
    assert Peer(hello(BROKER, "b1"), SUP, 0.0).next_deadline() is None


def test_going_down_is_told_once_and_drops_what_waited() -> None:
    at_broker, _ = greeted(window_bytes=100)
    at_broker.send(call(1, 100))
    at_broker.send(call(2, 100))
    assert at_broker.connection_lost("gone") == [PeerDown("gone")]
    assert at_broker.connection_lost("gone") == []
    assert at_broker.unsent_messages == 2
    assert at_broker.held_bytes == 0


def test_a_new_connection_begins_with_a_full_window() -> None:
    at_broker, at_sup = greeted(window_bytes=100)
    at_broker.send(call(1, 100))
    at_broker.connection_opened()
    carry(at_broker, at_sup, 1.0)
    carry(at_sup, at_broker, 1.0)
    at_broker.send(call(2, 100))
    assert at_broker.held_bytes == 0
    at_broker.check()


def test_forgetting_a_peer_does_not_take_back_a_greeting() -> None:
    at_broker, at_sup = peers()
    at_broker.connection_opened()
    at_broker.peer_died("its process is gone")
    assert carry(at_broker, at_sup) == [PeerUp(hello(BROKER, "b1"))]


def test_a_connection_that_is_replaced_before_its_greeting_leaves_brings_one_greeting() -> None:
    at_broker, at_sup = peers()
    at_broker.connection_opened()
    at_broker.connection_opened()
    assert len(carry(at_broker, at_sup)) == 1
    assert carry(at_sup, at_broker) == [PeerUp(hello(SUP, "s1"))]
    at_sup.send(answered(1, 10))
    assert carry(at_sup, at_broker) == [answered(1, 10)]


def test_a_message_for_later_makes_no_burst_and_leaves_before_the_next_message() -> None:
    _, at_sup = greeted()
    later = CallAtNode(CallId(1), "alpha")
    at_sup.send_later(later)
    assert not at_sup.has_output
    at_sup.send(answered(1, 10))
    assert said(at_sup) == [later, answered(1, 10)]
    at_sup.check()


def test_a_message_for_later_leaves_after_a_second_without_a_frame_of_ours() -> None:
    _, at_sup = greeted()
    later = CallAtNode(CallId(1), "alpha")
    at_sup.send_later(later)
    at_sup.tick(LEFT_OVER_S / 2)
    assert said(at_sup) == []
    at_sup.tick(LEFT_OVER_S)
    assert said(at_sup, LEFT_OVER_S) == [later]
    at_sup.check()


def test_a_message_for_later_is_dropped_with_the_peer_that_goes_down() -> None:
    _, at_sup = greeted()
    at_sup.send_later(CallAtNode(CallId(1), "alpha"))
    at_sup.connection_lost("cut")
    assert at_sup.unsent_messages == 1
    at_sup.send_later(CallAtNode(CallId(2), "alpha"))
    assert at_sup.unsent_messages == 2
    at_sup.check()


class TwoPeers(RuleBasedStateMachine):
    """Two ends over a link that loses everything under way when it breaks.

    Model: between an up and the next down, each end hears a part of what the other said since *its* up, each
    kind in order; and once all is carried, nothing is missing.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.number = 0
        self.epochs = 1
        self.ends: dict[str, Peer] = {}
        self.ends[BROKER], self.ends[SUP] = peers(window_bytes=1000)
        self.wire: dict[str, list[FrameData]] = {BROKER: [], SUP: []}
        self.heard: dict[str, list[LinkEvent]] = {BROKER: [], SUP: []}
        self.told: dict[str, list[AnyMessage]] = {BROKER: [], SUP: []}
        self.ends[BROKER].connection_opened()

    def other(self, end: str) -> str:
        return SUP if end == BROKER else BROKER

    def note(self, end: str, events: list[LinkEvent]) -> None:
        for event in events:
            if isinstance(event, (PeerUp, PeerDown)):
                if isinstance(event, PeerUp):
                    assert not self.heard[end], "PeerUp without PeerDown before it"
                    self.told[end] = []
                self.heard[end] = [event] if isinstance(event, PeerUp) else []
            elif not isinstance(event, Credit):
                self.heard[end].append(event)

    def flush(self, end: str) -> None:
        self.wire[end] += self.ends[end].take_frames(self.now)

    @rule(end=st.sampled_from([BROKER, SUP]), size=st.sampled_from([0, 300, 5000]), free=st.booleans())
    def say(self, end: str, size: int, free: bool) -> None:
        self.number += 1
        message: AnyMessage
        if end == BROKER:
            message = CancelCall(call=CallId(self.number), reason="") if free else call(self.number, size)
        else:
            message = answered(self.number, size)
        if self.ends[end].up:
            self.told[end].append(message)
        self.ends[end].send(message)
        self.flush(end)

    @rule()
    def say_later(self) -> None:
        self.number += 1
        message = CallAtNode(CallId(self.number), "alpha")
        if self.ends[SUP].up:
            self.told[SUP].append(message)
        self.ends[SUP].send_later(message)
        self.flush(SUP)

    @rule(end=st.sampled_from([BROKER, SUP]))
    def carry_one(self, end: str) -> None:
        if self.wire[end]:
            target = self.other(end)
            self.note(target, self.ends[target].receive(self.wire[end].pop(0), self.now))
            self.flush(target)

    @rule(dt=st.sampled_from([0.3, 1.0]))
    def wait(self, dt: float) -> None:
        self.now += dt
        for end in (BROKER, SUP):
            self.ends[end].tick(self.now)
            self.flush(end)

    @rule(garbage=st.binary(max_size=20), end=st.sampled_from([BROKER, SUP]))
    def garbage(self, garbage: bytes, end: str) -> None:
        self.note(end, self.ends[end].receive(garbage, self.now))

    @rule(told=st.booleans())
    def break_the_link(self, told: bool) -> None:
        """Everything under way is lost; a new connection is made. The supervisor may not notice at once."""
        self.wire = {BROKER: [], SUP: []}
        if told:
            self.note(SUP, self.ends[SUP].connection_lost("cut"))
        self.note(BROKER, self.ends[BROKER].connection_opened())
        self.flush(BROKER)

    @rule(stale=st.booleans())
    def restart_supervisor(self, stale: bool) -> None:
        self.epochs += 1
        self.ends[SUP] = Peer(hello(SUP, f"s{self.epochs}"), BROKER, self.now, window_bytes=1000)
        self.heard[SUP] = []
        self.wire[BROKER] = []
        if not stale:  # else: what the old life had sent is read after all
            self.wire[SUP] = []
        self.note(BROKER, self.ends[BROKER].connection_opened())
        self.flush(BROKER)

    @rule()
    def restart_broker(self) -> None:
        self.epochs += 1
        self.ends[BROKER] = Peer(hello(BROKER, f"b{self.epochs}"), SUP, self.now, window_bytes=1000)
        self.heard[BROKER] = []
        self.wire[BROKER] = []
        self.ends[BROKER].connection_opened()
        self.flush(BROKER)

    @rule()
    def forget(self) -> None:
        self.note(BROKER, self.ends[BROKER].peer_died("its process is gone"))

    @precondition(lambda self: self.number % 4 == 3)
    @rule()
    def all_arrives_in_the_end(self) -> None:
        # The first rounds may only find out that an end was forgotten.
        for _ in range(4):
            self.wait(HEARTBEAT_S)
            while self.wire[BROKER] or self.wire[SUP]:
                self.carry_one(BROKER)
                self.carry_one(SUP)
        for end in (BROKER, SUP):
            assert self.ends[end].up
            assert self.ends[end].held_bytes == 0
            heard = self.heard[self.other(end)][1:]
            assert sorted(map(number_of, heard)) == sorted(map(number_of, self.told[end]))

    @invariant()
    def in_order(self) -> None:
        for end in (BROKER, SUP):
            self.ends[end].check()
            heard = self.heard[end][1:]
            for kind in (Call, CancelCall, CallAnswered, CallAtNode):
                numbers = [number_of(m) for m in heard if isinstance(m, kind)]
                assert numbers == sorted(set(numbers))


def number_of(message: Any) -> int:
    return int(message.call)


TwoPeers.TestCase.settings = settings(deadline=None, max_examples=80, stateful_step_count=40)
TestTwoPeers = TwoPeers.TestCase
