"""What a host of the door does about sessions that come back and places on disk, where there are none."""

from collections.abc import Callable

from carpool_broker.transport.delivery_log import Passage
from carpool_broker.transport.resume import Returning
from carpool_broker.transport.streams import Stream
from carpool_protocol.carrier.attach import Attach
from carpool_protocol.ids import SessionId
from carpool_protocol.wire.lines import OverlongLine


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
