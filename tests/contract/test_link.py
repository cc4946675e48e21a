"""What every transport of the link promises, over each of them."""

import itertools
import os
import tempfile
import tracemalloc
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Protocol, TypeVar

import pytest
import trio
import zmq

from carpool_protocol.ids import CallId
from carpool_protocol.link import peer as link_peer
from carpool_protocol.link.codec import FRAME_BYTES, FrameData, encode_frames
from carpool_protocol.link.memory import MemoryWire
from carpool_protocol.link.messages import (
    LINK_VERSION,
    AnyMessage,
    Call,
    CallAnswered,
    CancelCall,
    Credit,
    Hello,
)
from carpool_protocol.link.peer import BROKER, LINK_WINDOW_BYTES, LinkEvent, PeerDown, PeerRefused, PeerUp
from carpool_protocol.link.transport import PeeredLink
from carpool_protocol.link.zmq import ZmqLink, checked_address
from carpool_protocol.runtime.poller import ReadySet
from tests.behaviours import behaviour
from tests.kit.link_messages import answered, call, hello
from tests.kit.waits import until

SUP = "sup1"
LARGE_BYTES = 1024 * 1024
T = TypeVar("T")


def cancel(number: int) -> CancelCall:
    return CancelCall(call=CallId(number), reason="")


class Owner:
    """An owner that writes down what it is told."""

    def __init__(self, link: PeeredLink) -> None:
        self.link = link
        self.events: list[LinkEvent] = []
        self.frames: list[list[LinkEvent]] = []
        self.settled_after: list[int] = []
        self.on_event: Callable[[LinkEvent], None] = lambda event: None
        self.on_settle: Callable[[], None] = lambda: None

    def deliver(self, peer: str, events: list[LinkEvent]) -> None:
        self.frames.append(list(events))
        for event in events:
            self.events.append(event)
            self.on_event(event)

    def settle(self) -> None:
        self.settled_after.append(len(self.events))
        self.on_settle()
        self.link.flush()

    def say(self, peer: str, *messages: AnyMessage) -> None:
        for message in messages:
            self.link.send(peer, message)
        self.link.flush()

    def of(self, kind: type[T]) -> list[T]:
        return [event for event in self.events if isinstance(event, kind)]

    def calls(self) -> list[int]:
        return [event.call for event in self.of(Call)]


class LinkPair(Protocol):
    ready: dict[PeeredLink, ReadySet]
    """What the owner of an end runs beside it."""

    def make(self, me: Hello, window_bytes: int) -> PeeredLink: ...
    async def inject(self, data: FrameData) -> None:
        """Bytes to the broker as if from another supervisor, named `evil`."""
        ...


class MemoryNet:
    def __init__(self) -> None:
        self.ready: dict[PeeredLink, ReadySet] = {}
        self.wire = MemoryWire()

    def make(self, me: Hello, window_bytes: int) -> PeeredLink:
        return self.wire.make_link(me, window_bytes=window_bytes)

    async def inject(self, data: FrameData) -> None:
        self.wire.inject("evil", BROKER, data)


class ZmqNet:
    def __init__(self, folder: Path) -> None:
        self.address = f"ipc://{folder}/link"
        self.ready: dict[PeeredLink, ReadySet] = {}

    def make(self, me: Hello, window_bytes: int) -> PeeredLink:
        ready = ReadySet()
        link = ZmqLink(me, self.address, ready, window_bytes=window_bytes)
        self.ready[link] = ready
        return link

    async def inject(self, data: FrameData) -> None:
        context = zmq.Context()
        socket = context.socket(zmq.DEALER)
        try:
            socket.setsockopt(zmq.ROUTING_ID, b"evil")
            socket.setsockopt(zmq.LINGER, 1000)
            socket.setsockopt(zmq.SNDTIMEO, 1000)
            socket.connect(self.address)
            socket.send_multipart([data] if isinstance(data, bytes) else [data.head, data.body])
        finally:
            socket.close()
            await trio.to_thread.run_sync(context.term)


@pytest.fixture(params=["memory", "zmq"])
def net(request: pytest.FixtureRequest) -> Any:
    if request.param == "memory":
        yield MemoryNet()
    else:
        # Not tmp_path: its length may exceed what a socket path can hold.
        with tempfile.TemporaryDirectory(prefix="cp-") as folder:
            yield ZmqNet(Path(folder))


@asynccontextmanager
async def running(
    net: LinkPair,
    name: str,
    epoch: str,
    *,
    window_bytes: int = LINK_WINDOW_BYTES,
    version: int = LINK_VERSION,
) -> AsyncIterator[Owner]:
    owner = Owner(net.make(hello(name, epoch, version), window_bytes))
    ready = net.ready.pop(owner.link, None)
    async with trio.open_nursery() as nursery:
        if ready is not None:
            nursery.start_soon(ready.run, owner.settle)
        await nursery.start(owner.link.run, owner.deliver, owner.settle)
        yield owner
        nursery.cancel_scope.cancel()
    if ready is not None:
        ready.close()


@asynccontextmanager
async def pair(net: LinkPair, *, window_bytes: int = LINK_WINDOW_BYTES) -> AsyncIterator[tuple[Owner, Owner]]:
    """A broker and a supervisor that have greeted."""
    with trio.fail_after(30):
        async with (
            running(net, BROKER, "b1", window_bytes=window_bytes) as broker,
            running(net, SUP, "s1", window_bytes=window_bytes) as sup,
        ):
            await until(lambda: broker.of(PeerUp) and sup.of(PeerUp), "both up")
            yield broker, sup


async def test_both_ends_hear_the_greeting_of_the_other_first(net: LinkPair) -> None:
    async with pair(net) as (broker, sup):
        assert broker.events == [PeerUp(hello(SUP, "s1"))]
        assert sup.events == [PeerUp(hello(BROKER, "b1"))]


async def test_a_supervisor_that_starts_first_is_greeted_when_the_broker_comes(net: LinkPair) -> None:
    with trio.fail_after(10):
        async with running(net, SUP, "s1") as sup:
            sup.say(BROKER, answered(1))
            async with running(net, BROKER, "b1") as broker:
                await until(lambda: broker.of(PeerUp) and sup.of(PeerUp), "both up")
                assert not broker.of(CallAnswered)
                assert sup.link.counts().unsent_messages == 1


async def test_messages_arrive_in_order_both_ways(net: LinkPair) -> None:
    async with pair(net) as (broker, sup):
        for i in range(0, 300, 3):
            broker.say(SUP, *(call(i + k) for k in range(3)))
            sup.say(BROKER, *(answered(i + k) for k in range(3)))
        await until(lambda: len(broker.of(CallAnswered)) == len(sup.of(Call)) == 300, "all arrived")
        assert sup.calls() == list(range(300))
        assert [a.call for a in broker.of(CallAnswered)] == list(range(300))


async def test_a_burst_travels_as_one_frame_and_is_settled_once(net: LinkPair) -> None:
    async with pair(net) as (broker, sup):
        before = sup.link.counts().frames_in
        broker.say(SUP, *(call(i) for i in range(64)))
        await until(lambda: len(sup.of(Call)) == 64, "the burst arrived")
        assert sup.link.counts().frames_in == before + 1
        assert sup.frames[-1] == [call(i) for i in range(64)]
        assert sup.settled_after[-1] == len(sup.events)


async def test_what_is_sent_while_settling_goes_out_without_another_flush(net: LinkPair) -> None:
    async with pair(net) as (broker, sup):
        sup.on_event = lambda e: sup.link.send(BROKER, answered(e.call)) if isinstance(e, Call) else None
        broker.say(SUP, call(7))
        await until(lambda: broker.of(CallAnswered) == [answered(7)], "the answer")


@behaviour("link:big-payloads-alone")
async def test_a_big_payload_travels_in_a_frame_of_its_own(net: LinkPair) -> None:
    async with pair(net) as (broker, sup):
        broker.say(SUP, call(1), call(2, FRAME_BYTES * 8), call(3))
        await until(lambda: len(sup.of(Call)) == 3, "three calls")
        assert [[m.call for m in frame if isinstance(m, Call)] for frame in sup.frames[-3:]] == [
            [1],
            [2],
            [3],
        ]


async def test_paid_messages_wait_for_credit_and_go_on_in_order(net: LinkPair) -> None:
    async with pair(net, window_bytes=4096) as (broker, sup):
        # Nothing of the supervisor runs between these sends, so its credit cannot come in between.
        broker.say(SUP, *(call(i, 1000) for i in range(12)))
        assert broker.link.held_bytes(SUP) == 8 * 1064  # the fourth used the window up
        await until(lambda: len(sup.of(Call)) == 12, "all calls")
        assert sup.calls() == list(range(12))
        assert broker.link.held_bytes(SUP) == 0
        assert broker.of(Credit)


async def test_a_message_larger_than_the_window_goes_when_the_window_is_open(net: LinkPair) -> None:
    async with pair(net, window_bytes=4096) as (broker, sup):
        broker.say(SUP, call(1, 100_000), call(2, 1))
        assert broker.link.held_bytes(SUP) == 65
        await until(lambda: sup.calls() == [1, 2], "both calls")


@behaviour("link:free-messages")
async def test_free_messages_pass_paid_ones_that_wait(net: LinkPair) -> None:
    async with pair(net, window_bytes=4096) as (broker, sup):
        broker.say(SUP, call(1, 5000), call(2, 5000), cancel(1))
        await until(lambda: len(sup.of(Call)) == 2, "both calls")
        order = [type(e).__name__ for e in sup.events if isinstance(e, (Call, CancelCall))]
        assert order == ["Call", "CancelCall", "Call"]


async def test_a_restarted_supervisor_is_another_life(net: LinkPair) -> None:
    async with pair(net) as (broker, _sup), running(net, SUP, "s2") as second:
        await until(lambda: len(broker.of(PeerUp)) == 2 and second.of(PeerUp), "up again")
        assert [type(e) for e in broker.events] == [PeerUp, PeerDown, PeerUp]
        assert broker.of(PeerUp)[1].hello.epoch == "s2"
        broker.say(SUP, call(5))
        await until(lambda: second.calls() == [5], "the call reaches the new life")


async def test_a_restarted_broker_is_found_again_and_hears_nothing_of_its_past(net: LinkPair) -> None:
    with trio.fail_after(20):
        async with running(net, SUP, "s1") as sup:
            async with running(net, BROKER, "b1"):
                await until(lambda: sup.of(PeerUp), "up")
            sup.say(BROKER, answered(1))
            async with running(net, BROKER, "b2") as second:
                await until(lambda: len(sup.of(PeerUp)) == 2 and second.of(PeerUp), "up again")
                sup.say(BROKER, answered(2))
                await until(lambda: second.of(CallAnswered), "an answer")
                assert second.events == [PeerUp(hello(SUP, "s1")), answered(2)]
                assert [type(e) for e in sup.events] == [PeerUp, PeerDown, PeerUp]
                assert sup.of(PeerUp)[1].hello.epoch == "b2"


async def test_a_broker_hears_that_a_supervisor_is_gone(net: LinkPair) -> None:
    with trio.fail_after(20):
        async with running(net, BROKER, "b1") as broker:
            async with running(net, SUP, "s1"):
                await until(lambda: broker.of(PeerUp), "up")
            await until(lambda: broker.of(PeerDown), "down")
            broker.say(SUP, call(1))
            assert broker.link.counts().unsent_messages == 1


async def test_frames_of_another_epoch_are_dropped_and_counted(net: LinkPair) -> None:
    async with pair(net) as (broker, _sup):
        for frame in (
            *encode_frames("e0", "b0", [answered(1)]),
            *encode_frames("e0", "b1", [answered(1)]),
            *encode_frames("e0", "", [answered(1)]),
        ):
            await net.inject(frame)
        await until(lambda: broker.link.counts().stale_frames == 3, "three stale frames")
        assert broker.events == [PeerUp(hello(SUP, "s1"))]


async def test_a_forgotten_peer_goes_down_once_and_may_greet_again(net: LinkPair) -> None:
    async with pair(net) as (broker, sup):
        broker.link.peer_died(SUP, "its process is gone")
        broker.link.peer_died(SUP, "its process is gone")
        await until(lambda: broker.of(PeerDown), "down")
        assert broker.of(PeerDown) == [PeerDown("its process is gone")]
        # It was alive after all: its next word makes both ends start over.
        sup.say(BROKER, answered(1))
        await until(lambda: len(broker.of(PeerUp)) == 2, "up again")
        assert [type(e) for e in sup.events] == [PeerUp, PeerDown, PeerUp]
        assert len(broker.of(PeerDown)) == 1


async def test_another_version_is_refused_with_a_sentence_at_both_ends(net: LinkPair) -> None:
    with trio.fail_after(10):
        async with (
            running(net, BROKER, "b1") as broker,
            running(net, SUP, "s1", version=LINK_VERSION + 1) as sup,
        ):
            await until(lambda: broker.of(PeerRefused) and sup.of(PeerRefused), "refused")
            sup.say(BROKER, answered(1))
            assert "carpool restart --all" in broker.of(PeerRefused)[0].text
            assert not broker.of(PeerUp) + sup.of(PeerUp)


@behaviour("restart:one-half-newer")
async def test_whoever_had_a_peer_before_another_version_came_is_out_of_date(
    net: LinkPair,
) -> None:
    with trio.fail_after(10):
        async with running(net, BROKER, "b1") as broker:
            async with running(net, SUP, "s1"):
                await until(lambda: broker.of(PeerUp), "up")
            async with running(net, SUP, "s2", version=LINK_VERSION + 1) as sup:
                await until(lambda: broker.of(PeerRefused) and sup.of(PeerRefused), "refused")
                assert broker.of(PeerRefused)[0].superseded
                assert not sup.of(PeerRefused)[0].superseded


async def test_ten_thousand_messages_both_ways_through_a_small_window_while_one_end_is_slow(
    net: LinkPair,
) -> None:
    count = 10_000
    async with pair(net, window_bytes=65_536) as (broker, sup):
        held: list[int] = []

        def echo(event: LinkEvent) -> None:
            if isinstance(event, Call):
                held.append(event.call)

        # The slow end answers nothing while it takes in, all of it at the end of the burst.
        def settle_slowly() -> None:
            for number in held:
                sup.link.send(BROKER, answered(number, 500))
            held.clear()
            sup.link.flush()

        sup.on_event = echo
        sup.on_settle = settle_slowly
        for i in range(count):
            broker.link.send(SUP, call(i, 500))
            if i % 100 == 0:
                broker.link.flush()
                await trio.lowlevel.checkpoint()
        broker.link.flush()
        await until(lambda: len(broker.of(CallAnswered)) == count, "all answers", 25)
        assert [a.call for a in broker.of(CallAnswered)] == list(range(count))


async def test_large_frames_that_are_all_there_are_settled_one_by_one() -> None:
    with tempfile.TemporaryDirectory(prefix="cp-") as folder:
        async with pair(ZmqNet(Path(folder))) as (broker, sup):
            before = len(broker.settled_after)
            sup.say(BROKER, *(answered(number, LARGE_BYTES) for number in range(40)))
            await until(lambda: len(broker.of(CallAnswered)) == 40, "all arrived")
            counts = broker.settled_after[before:]
            bursts = [later - earlier for earlier, later in itertools.pairwise(counts)]
            assert max(bursts) <= 2, "others have their turn between two of them"


async def test_a_large_frame_is_freed_before_its_message_is_delivered() -> None:
    with tempfile.TemporaryDirectory(prefix="cp-") as folder:
        async with pair(ZmqNet(Path(folder))) as (broker, sup):
            held_bytes: list[int] = []

            def note(event: LinkEvent) -> None:
                if isinstance(event, CallAnswered):
                    held_bytes.append(tracemalloc.get_traced_memory()[0])

            broker.on_event = note
            tracemalloc.start()
            try:
                sup.say(BROKER, answered(1, 8 * LARGE_BYTES))
                await until(lambda: held_bytes, "it arrived")
            finally:
                tracemalloc.stop()
            assert held_bytes[0] < 12 * LARGE_BYTES, "the message, and not its frame as well"


@pytest.mark.parametrize("garbage", [b"\xc1", b"\x93\xa0\xa0\x91\x92\x63\x01", b"x" * 1000])
async def test_garbage_from_a_peer_is_counted_and_harmless(net: LinkPair, garbage: bytes) -> None:
    async with pair(net) as (broker, sup):
        await net.inject(garbage)
        await until(lambda: broker.link.counts().bad_frames == 1, "the garbage was counted")
        broker.say(SUP, call(1))
        await until(lambda: sup.calls() == [1], "the link goes on")


async def test_a_message_in_the_wrong_direction_is_garbage(net: LinkPair) -> None:
    async with pair(net) as (broker, sup):
        sup.say(BROKER, call(1))
        await until(lambda: broker.link.counts().bad_frames == 1, "counted")
        assert not broker.of(Call)


async def test_idle_ends_keep_saying_that_they_run(net: LinkPair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_peer, "HEARTBEAT_S", 1.0)
    async with pair(net) as (_broker, sup):
        first = sup.link.heard_at(BROKER)
        assert first is not None
        await until(lambda: (sup.link.heard_at(BROKER) or 0) > first, "a heartbeat")
        assert sup.events == [PeerUp(hello(BROKER, "b1"))]


async def test_two_supervisors_are_told_apart(net: LinkPair) -> None:
    with trio.fail_after(20):
        async with (
            running(net, BROKER, "b1") as broker,
            running(net, "sup1", "s1") as one,
            running(net, "sup2", "s2") as two,
        ):
            await until(lambda: len(broker.of(PeerUp)) == 2 and one.of(PeerUp) and two.of(PeerUp), "all up")
            broker.link.send("sup1", call(1))
            broker.link.send("sup2", call(2))
            broker.link.send("sup3", call(3))
            broker.link.flush()
            await until(lambda: one.calls() == [1] and two.calls() == [2], "each its own")
            assert broker.link.counts().unsent_messages == 1


async def test_a_flush_from_another_task_loses_no_wake_up(net: LinkPair) -> None:
    """Each end flushes from a task that is not the link's, in lock-step: one lost edge would hang it."""
    async with pair(net) as (broker, sup):
        rounds = 300

        async def play(owner: Owner, peer: str, first: bool) -> None:
            done = 0
            while done < rounds:
                if first or len(owner.events) - 1 > done:
                    if not first:
                        done += 1
                    first = False
                    owner.say(peer, cancel(done) if owner is broker else answered(done))
                await trio.lowlevel.checkpoint()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(play, broker, SUP, True)
            nursery.start_soon(play, sup, BROKER, False)
        assert len(sup.of(CancelCall)) >= rounds


async def test_an_end_that_stopped_leaves_no_descriptor(net: LinkPair) -> None:
    async with pair(net):
        pass  # what is opened once per process is open now
    before = sorted(os.listdir("/dev/fd"))
    async with pair(net) as (broker, sup):
        broker.say(SUP, call(1, 100_000))
        sup.say(BROKER, answered(1))
    assert sorted(os.listdir("/dev/fd")) == before


def test_tcp_is_refused_with_a_sentence() -> None:
    with pytest.raises(ValueError, match="CURVE"):
        checked_address("tcp://127.0.0.1:5555")
    with pytest.raises(ValueError, match="ipc://"):
        ZmqLink(hello(BROKER, "b1"), "inproc://x", ReadySet())


async def test_an_address_that_cannot_be_bound_is_an_os_error() -> None:
    link = ZmqLink(hello(BROKER, "b1"), "ipc:///nowhere/at/all/link", ReadySet())
    with pytest.raises(OSError, match="cannot use ipc://"):
        await link.run(lambda peer, events: None, lambda: None)
