"""The link over ZeroMQ: the size of a burst."""

from pathlib import Path

import trio

from carpool_protocol.ids import CallId, Epoch, RawJson
from carpool_protocol.link.messages import LINK_VERSION, CallAnswered, Hello
from carpool_protocol.link.peer import BROKER, LinkEvent, PeerUp
from carpool_protocol.link.zmq import ZmqLink
from carpool_protocol.runtime.poller import ReadySet
from tests.behaviours import behaviour
from tests.kit.waits import until


@behaviour("pressure:long-lines")
async def test_a_burst_ends_with_a_large_frame_and_small_ones_share_one(tmp_path: Path) -> None:
    address = f"ipc://{tmp_path}/link"
    happened: list[str] = []

    def hear(_peer: str, events: list[LinkEvent]) -> None:
        happened.extend("up" if isinstance(event, PeerUp) else "answer" for event in events)

    async with trio.open_nursery() as nursery:
        ends: dict[str, ZmqLink] = {}
        for name in (BROKER, "sup1"):
            ready = ReadySet()
            hello = Hello(LINK_VERSION, Epoch(f"{name}-1"), name, 1, "1")
            end = ends[name] = ZmqLink(hello, address, ready)
            settle = (lambda: happened.append("settled")) if name == BROKER else (lambda: None)
            nursery.start_soon(ready.run, settle)
            await nursery.start(end.run, hear if name == BROKER else ignore, settle)
        await until(lambda: "up" in happened, "both ends greeted")
        large = RawJson(b'"' + b"x" * (4 << 20) + b'"')
        for number in range(3):
            ends["sup1"].send(BROKER, CallAnswered(CallId(number), False, large))
        ends["sup1"].flush()
        await until(lambda: happened.count("answer") == 3, "all came")
        nursery.cancel_scope.cancel()
    first = happened.index("answer")
    between = happened[first : len(happened) - happened[::-1].index("answer")]
    assert ["answer", "answer"] not in [between[at : at + 2] for at in range(len(between))]


def ignore(_peer: str, _events: list[LinkEvent]) -> None:
    """The supervisor's end hears nothing that matters here."""
