"""A supervisor in the test's own process, with its spawner and real children, and the test as its broker."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

import trio

from carpool_protocol.ids import Epoch
from carpool_protocol.link.memory import MemoryWire
from carpool_protocol.link.messages import LINK_VERSION, AnyMessage, Hello
from carpool_protocol.link.peer import BROKER, PeerUp
from carpool_supervisor.process import SupervisorShell
from tests.kit.waits import until

NAME = "sup1"
T = TypeVar("T")


class FakeBrokerLink:
    """The other end of the link: it keeps what it hears, and says what it is told to."""

    def __init__(self, wire: MemoryWire) -> None:
        self.link = wire.make_link(Hello(LINK_VERSION, Epoch("b1"), BROKER, 1, "1"))
        self.all: list[object] = []

    def deliver(self, _peer: str, messages: Sequence[object]) -> None:
        self.all += messages

    def say(self, *messages: AnyMessage) -> None:
        for message in messages:
            self.link.send(NAME, message)
        self.link.flush()

    def those(self, kind: type[T], which: Callable[[T], bool] = lambda _: True) -> list[T]:
        return [it for it in self.all if isinstance(it, kind) and which(it)]

    async def heard(self, kind: type[T], which: Callable[[T], bool] = lambda _: True) -> T:
        """The first such message, when it has come."""
        await until(lambda: self.those(kind, which), f"a {kind.__name__} has come")
        return self.those(kind, which)[0]


@asynccontextmanager
async def supervised(directory: Path) -> AsyncIterator[tuple[SupervisorShell, FakeBrokerLink]]:
    """Serves until the block ends; then every child has ended too.

    `directory`: the runtime directory. The caller keeps `CARPOOL_RUNTIME_DIR` set, so that state stays there.
    """
    wire = MemoryWire()
    shell = SupervisorShell(str(directory), NAME, None)
    shell._link = wire.make_link(Hello(LINK_VERSION, Epoch("s1"), NAME, 2, "1"))
    broker = FakeBrokerLink(wire)
    async with trio.open_nursery() as nursery:
        await nursery.start(broker.link.run, broker.deliver, lambda: None)
        nursery.start_soon(shell.run)
        await broker.heard(PeerUp)
        yield shell, broker
        shell.stop()
        await until(shell._stopped.is_set, "it has ended")
        nursery.cancel_scope.cancel()
