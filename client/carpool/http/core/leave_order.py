"""Which connections an HTTP door that ends leaves to the next one, in which order, and the end of the others.

Pure. If there are too many connections, those with a request are left first: a client that waits for an
answer loses more than one whose connection is idle. Of both kinds, those whose client has shown a token come
first, so that strangers displace nobody. Decision: docs/decisions/0054. Knows nothing of: sockets,
how connections are passed on (`left_connections`).
"""

from collections.abc import Hashable, Iterable
from typing import Literal, TypeVar

from msgspec import Struct

C = TypeVar("C", bound=Hashable)
Ending = Literal["refuse held", "refuse arriving", "end after answer", "end"]
"""The end of a connection that is not left. `refuse held`: its request was kept for the next door, and is
refused as not delivered. `refuse arriving`: a part of a request has come. `end after answer`: its request is
at a server. `end`: it is idle.
"""


class ConnectionState(Struct, frozen=True, kw_only=True):
    """One connection as it is when the door ends."""

    may_be_left: bool
    """No request is arriving, and everything that was answered is sent."""
    is_failed: bool = False
    """Nothing more is read from it."""
    is_arriving: bool = False
    """A part of a request has come."""
    has_request: bool = False
    """A request of it is not answered."""
    is_held: bool = False
    """That request is kept for the next door."""
    has_owner: bool = False
    """Its client has shown a token."""


def leave_order(connections: Iterable[tuple[C, ConnectionState]]) -> list[C]:
    """Return the connections in the order in which they are left, as far as there is room."""
    return [
        connection
        for connection, state in sorted(
            connections, key=lambda each: (not each[1].has_request, not each[1].has_owner)
        )
    ]


def can_be_left(state: ConnectionState) -> bool:
    """True if a connection is between two requests, or its only request is kept for the next door."""
    return state.may_be_left and state.has_request == state.is_held


def is_settled(states: Iterable[ConnectionState]) -> bool:
    """True if nothing changes by waiting: no request is arriving, and no answer is on its way."""
    return all(state.is_failed or can_be_left(state) for state in states)


def ending_of(state: ConnectionState) -> Ending:
    """Return the end of a connection that does not go to the next door."""
    if state.is_held:
        return "refuse held"
    if state.is_arriving:
        return "refuse arriving"
    return "end after answer" if state.has_request else "end"
