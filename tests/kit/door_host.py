"""A door for tests, and a host of it to which no session comes back and all places on disk are known."""

from collections.abc import Callable

import trio

from carpool_broker.transport.agent_server import AgentServer
from carpool_broker.transport.connections import Connections
from carpool_broker.transport.delivery_log import DeliveryLog
from carpool_broker.transport.incarnation import Incarnation
from carpool_broker.transport.resume import SessionResume
from carpool_broker.transport.server_interface import AgentServerHost
from carpool_broker.transport.streams import SessionStream
from carpool_protocol.carrier.attach_line import Attach
from carpool_protocol.ids import SessionId
from carpool_protocol.runtime.poller import ReadySet
from carpool_protocol.wire.lines import OverlongLine


def new_door(
    path: str,
    ready: ReadySet,
    host: AgentServerHost,
    *,
    slow_reader_s: float = 30.0,
    receive_budget_bytes: int = 1 << 24,
    clock: Callable[[], float] = trio.current_time,
) -> AgentServer:
    """A door whose bursts nobody ends but the test."""
    return AgentServer(
        path,
        ready,
        host,
        Incarnation(),
        Connections(clock=clock),
        slow_reader_s=slow_reader_s,
        receive_budget_bytes=receive_budget_bytes,
        settle=lambda: None,
        clock=clock,
    )


class NoReturningSessions:
    """For hosts of tests about other things."""

    def scan_workspace(self, attach: Attach, then: Callable[[], None]) -> None:
        then()

    def input_ended(self, session: SessionId) -> None:
        pass

    def owes_answers(self, session: SessionId) -> bool:
        return False

    def may_resume(self) -> bool:
        return False

    def resume_lines(
        self,
        session: SessionId,
        lines: list[bytes | OverlongLine],
        delivery_log: DeliveryLog,
        resume: SessionResume,
    ) -> list[bytes | OverlongLine]:
        raise AssertionError("nobody comes back")

    def session_resumed(
        self, session: SessionId, resume: SessionResume, delivery_log: DeliveryLog | None = None
    ) -> None:
        raise AssertionError("nobody comes back")

    def resume_message(
        self, stream: SessionStream, message: bytes, exchange: int, resume: SessionResume
    ) -> None:
        raise AssertionError("nobody comes back")

    def version_of(self, session: SessionId) -> str:
        raise AssertionError("nobody comes back")

    def environment_requested(self, session: SessionId, names: list[str]) -> None:
        pass

    def environment_received(self, session: SessionId, question: int, environment: dict[str, str]) -> None:
        raise AssertionError("nobody is asked again")
