"""The link over ZeroMQ: the size of a burst."""

from itertools import groupby
from pathlib import Path

import trio

from carpool_protocol.ids import EMPTY_OBJECT, CallId, Epoch, RawJson
from carpool_protocol.link.messages import LINK_VERSION, CallAnswered, Hello
from carpool_protocol.link.peer import BROKER, LinkEvent, PeerUp
from carpool_protocol.link.zmq import ZmqLink
from carpool_protocol.runtime.poller import ReadySet
from tests.behaviours import behaviour
from tests.kit.waits import until


class TwoEnds:
    """Two ends of a link, and what happened at the broker's end."""

    def __init__(self) -> None:
        self.happened: list[str] = []
        self.ends: dict[str, ZmqLink] = {}

    def hear(self, _peer: str, events: list[LinkEvent]) -> None:
        self.happened.extend("up" if isinstance(event, PeerUp) else "answer" for event in events)

    async def open(self, nursery: trio.Nursery, directory: Path) -> None:
        for name in (BROKER, "sup1"):
            ready = ReadySet()
            hello = Hello(LINK_VERSION, Epoch(f"{name}-1"), name, 1, "1")
            end = self.ends[name] = ZmqLink(hello, f"ipc://{directory}/link", ready)
            settle = (lambda: self.happened.append("settled")) if name == BROKER else (lambda: None)
            nursery.start_soon(ready.run, settle)
            await nursery.start(end.run, self.hear if name == BROKER else ignore, settle)
        await until(lambda: "up" in self.happened, "both ends greeted")

    def bursts(self) -> list[int]:
        """The number of answers in each burst that had any."""
        return [len(list(group)) for word, group in groupby(self.happened) if word == "answer"]


@behaviour("pressure:long-lines")
async def test_a_burst_ends_with_a_large_frame_and_small_ones_share_one(tmp_path: Path) -> None:
    two = TwoEnds()
    async with trio.open_nursery() as nursery:
        await two.open(nursery, tmp_path)
        large = RawJson(b'"' + b"x" * (4 << 20) + b'"')
        for number in range(3):
            two.ends["sup1"].send(BROKER, CallAnswered(CallId(number), False, large))
        two.ends["sup1"].flush()
        await until(lambda: two.happened.count("answer") == 3, "all came")
        nursery.cancel_scope.cancel()
    assert two.bursts() == [1, 1, 1]


async def test_a_burst_ends_after_a_thousand_short_messages(tmp_path: Path) -> None:
    two = TwoEnds()
    count, in_frame = 4096, 32
    async with trio.open_nursery() as nursery:
        await two.open(nursery, tmp_path)
        for number in range(count):
            two.ends["sup1"].send(BROKER, CallAnswered(CallId(number), False, EMPTY_OBJECT))
            if number % in_frame == in_frame - 1:
                two.ends["sup1"].flush()
        await until(lambda: two.happened.count("answer") == count, "all came")
        nursery.cancel_scope.cancel()
    assert max(two.bursts()) <= 1024 + in_frame


def ignore(_peer: str, _events: list[LinkEvent]) -> None:
    """The supervisor's end hears nothing that matters here."""
