"""Who takes the requests that `wire` reads: the shell, as a connection knows it.

Knows nothing of: HTTP, what a request means.
"""

from typing import TYPE_CHECKING, Protocol

from carpool.http.body_room import BodyRoom
from carpool.http.effects import Request, Respond
from carpool.http.limits import Limits

if TYPE_CHECKING:
    from carpool.http.wire import Connection


class Taker(Protocol):
    """Who gets the requests (the shell)."""

    limits: Limits
    date: bytes
    """The `Date` header of this second."""
    room: BodyRoom
    """For bodies that wait for their turn, of all connections."""

    def principal_of(self, connection: "Connection", headers: dict[str, str]) -> str:
        """The one for which the body of a request with these headers counts in `room`."""

    def turned_away(self, path: str, headers: dict[str, str]) -> Respond | None:
        """The refusal of a client that has no business here, before its body is taken."""

    def come(self, connection: "Connection") -> Respond | None:
        """A client connected. The refusal of one that may not, or is one too many."""

    def asked(self, connection: "Connection", request: Request) -> int:
        """A request; its number, by which `gone` tells of it."""

    def gone(self, x: int) -> None:
        """Its client hung up before the answer was complete."""

    def left(self, connection: "Connection") -> None:
        """The connection is closed."""
