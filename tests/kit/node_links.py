"""Two nodes' links of one kind, and a NATS server that can be stopped and started again."""

import asyncio
import os
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

import zmq
from zmq.utils import z85

from carpool.cluster.embedded_nats import EmbeddedNats
from carpool.cluster.links.link import LinkEvents, NodeLink
from carpool.cluster.links.nats import NatsLink
from carpool.cluster.links.nats_access import NatsAccess
from carpool.cluster.links.zmq import NodeAddress, ZmqNodeLink
from tests.kit.ports import free_port

WAIT_S: Final = 20.0


class NodeLinkEnd:
    """One node's end of a link, and what it has told."""

    def __init__(self, link: NodeLink) -> None:
        self.link = link
        self.frames: list[tuple[str, bytes]] = []
        self.offers: dict[str, bytes] = {}
        self.reports: list[str] = []
        self.restored = 0
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Run the link."""

        def restored() -> None:
            self.restored += 1

        def told(text: str, _level: str) -> None:
            self.reports.append(text)

        events = LinkEvents(
            lambda node, frame: self.frames.append((node, frame)), self.offers.__setitem__, restored, told
        )
        self._task = asyncio.create_task(self.link.run(events))

    async def stop(self) -> None:
        """Cancel it."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def failure(self) -> BaseException | None:
        """Return what ended it."""
        assert self._task is not None
        await asyncio.wait([self._task], timeout=WAIT_S)
        return self._task.exception()


async def until(holds: Callable[[], bool]) -> None:
    """Wait until a condition holds."""
    async with asyncio.timeout(WAIT_S):
        while not holds():  # noqa: ASYNC110 - the links set no event
            await asyncio.sleep(0.01)


def key_pair() -> tuple[bytes, bytes]:
    """Return a public and a secret key, each of 32 bytes."""
    public, secret = zmq.curve_keypair()
    return z85.decode(public), z85.decode(secret)


def curve_links(*names: str) -> list[ZmqNodeLink]:
    """Return links over TCP, each with the keys of all others."""
    keys = {name: key_pair() for name in names}
    addresses = {name: f"tcp://127.0.0.1:{free_port()}" for name in names}
    nodes = {name: NodeAddress(addresses[name], keys[name][0]) for name in names}
    return [
        ZmqNodeLink(
            addresses[name], name, {other: nodes[other] for other in names if other != name}, keys[name][1]
        )
        for name in names
    ]


@asynccontextmanager
async def two_ends(kind: str) -> AsyncIterator[tuple[NodeLinkEnd, NodeLinkEnd]]:
    """The ends of `alpha` and `beta` over `ipc`, `curve` or `nats`."""
    with tempfile.TemporaryDirectory() as directory:
        server = EmbeddedNats(os.path.join(directory, "nats"))
        links: list[NodeLink]
        if kind == "nats":
            await server.start()
            links = [NatsLink(NatsAccess(server.url), "c", name) for name in ("alpha", "beta")]
        elif kind == "curve":
            links = [*curve_links("alpha", "beta")]
        else:
            places = {name: NodeAddress(f"ipc://{directory}/{name}") for name in ("alpha", "beta")}
            links = [
                ZmqNodeLink(places["alpha"].address, "alpha", {"beta": places["beta"]}),
                ZmqNodeLink(places["beta"].address, "beta", {"alpha": places["alpha"]}),
            ]
        ends = NodeLinkEnd(links[0]), NodeLinkEnd(links[1])
        for end in ends:
            end.start()
        try:
            await until(lambda: all(end.restored for end in ends))
            await connected(*ends)
            yield ends
        finally:
            for end in ends:
                await end.stop()
            server.stop()


async def connected(*ends: NodeLinkEnd) -> None:
    """Wait until frames pass between two ends, and forget these."""
    names = ("beta", "alpha")
    async with asyncio.timeout(WAIT_S):
        while not all(end.frames for end in ends):
            for end, name in zip(ends, names, strict=True):
                end.link.send(name, b"?")
            await asyncio.sleep(0.05)
    for end, name in zip(ends, names, strict=True):
        end.link.send(name, b"!")
    await until(lambda: all(end.frames[-1][1] == b"!" for end in ends))
    for end in ends:
        end.frames.clear()
