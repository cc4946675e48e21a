"""The interface of a link between nodes, and the functions that it calls."""

from collections.abc import Callable
from typing import Final, Protocol

from msgspec import Struct

FRAMES_PER_TURN: Final = 16
"""After so many frames in a row the loop runs everything else in the process once."""


class LinkError(Exception):
    """The link cannot work as it is configured. The text says what to do."""


class LinkEvents(Struct, frozen=True):
    """The functions that a link calls, all in its event loop."""

    frame_received: Callable[[str, bytes], None]
    """A node's name, and a frame of it."""
    offer_received: Callable[[str, bytes], None]
    """A node's name, and what it offers; empty: it has left. Only of links that store offers."""
    restored: Callable[[], None]
    """The link works, for the first time or again."""
    report: Callable[[str, str], None]
    """A sentence for the log, and its level."""


class NodeLink(Protocol):
    """A link to all other nodes."""

    stores_offers: bool
    """True: other nodes learn by the link what is published. False: each channel carries offers."""
    frame_bytes: int
    """The size that a frame may have, from `restored` on until the next one."""

    @property
    def peers(self) -> list[str]:
        """The nodes that are known by configuration."""

    @property
    def is_up(self) -> bool:
        """True if frames may get through."""

    @property
    def problem(self) -> str:
        """Return why frames do not get through, or not all, for people; empty: nothing is known."""

    def send(self, node: str, frame: bytes) -> None:
        """Send a frame, if the link works now. Never waits."""

    async def publish(self, offer: bytes) -> None:
        """Store what this node offers, until `OFFER_S` later at least."""

    async def leave(self) -> None:
        """Remove this node's offer."""

    async def run(self, events: LinkEvents) -> None:
        """Carry frames until cancelled. Raises `LinkError`."""
