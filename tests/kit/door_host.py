"""A door for tests, and a host of it to which no session comes back and all places on disk are known."""

from collections.abc import Callable

import trio

from carpool_broker.transport.agent_server import Door
from carpool_broker.transport.connections import Connections
from carpool_broker.transport.delivery_log import Passage
from carpool_broker.transport.incarnation import Heritage
from carpool_broker.transport.resume import Returning
from carpool_broker.transport.server_interface import Host
from carpool_broker.transport.streams import Stream
from carpool_protocol.carrier.attach import Attach
from carpool_protocol.ids import SessionId
from carpool_protocol.runtime.poller import ReadySet
from carpool_protocol.wire.lines import OverlongLine


def new_door(
    path: str,
    ready: ReadySet,
    host: Host,
    *,
    slow_reader_s: float = 30.0,
    receive_budget_bytes: int = 1 << 24,
    clock: Callable[[], float] = trio.current_time,
) -> Door:
    """A door whose bursts nobody ends but the test."""
    return Door(
        path,
        ready,
        host,
        Heritage(),
        Connections(clock=clock),
        slow_reader_s=slow_reader_s,
        receive_budget_bytes=receive_budget_bytes,
        settle=lambda: None,
        clock=clock,
    )


class NoReturningSessions:
    """For hosts of tests about other things."""

    def look(self, attach: Attach, then: Callable[[], None]) -> None:
        then()

    def may_return(self) -> bool:
        return False

    def take_back(
        self,
        session: SessionId,
        lines: list[bytes | OverlongLine],
        passage: Passage,
        returning: Returning,
    ) -> list[bytes | OverlongLine]:
        raise AssertionError("nobody comes back")

    def resumed(self, session: SessionId, returning: Returning, passage: Passage | None = None) -> None:
        raise AssertionError("nobody comes back")

    def take_back_message(self, stream: Stream, message: bytes, exchange: int, returning: Returning) -> None:
        raise AssertionError("nobody comes back")

    def version_of(self, session: SessionId) -> str:
        raise AssertionError("nobody comes back")

    def awaits_environment(self, session: SessionId, names: list[str]) -> None:
        pass

    def environment_came(self, session: SessionId, question: int, environment: dict[str, str]) -> None:
        raise AssertionError("nobody is asked again")
