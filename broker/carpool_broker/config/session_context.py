"""One session as the configuration knows it: what it brings, and what follows from that.

Owns the facts only; who changes them is `configuration`.
"""

from carpool_broker.config.locations import Spot, Wish, wish_of
from carpool_broker.core.model.events import SourceId
from carpool_protocol.carrier.attach import Attach, Moved
from carpool_protocol.link.messages import Root


class Guest:
    """One session."""

    def __init__(self, attach: Attach, environment: dict[str, str], source: SourceId) -> None:
        self.attach = attach
        self.environment = environment
        self.asked = set(environment)
        """Variables that its carrier was asked for."""
        self.roots: tuple[Root, ...] | None = None
        """What its agent names; None where it names none."""
        self.moved: Moved | None = None if attach.resume is None else attach.resume.moved
        """Where it has gone since it came."""
        self.spot = Spot()
        """Where it is, as of when its source was found."""
        self.source = source

    @property
    def wish(self) -> Wish:
        """Where it wants to be."""
        return Wish() if self.attach.run is not None else wish_of(self.attach, self.moved)

    @property
    def wanders(self) -> bool:
        """Whether roots may take it to another workspace: nobody has put it somewhere in words. Nobody over
        HTTP has us read directories of their choice.
        """
        attach = self.attach
        if attach.workspace or attach.streams or attach.control or attach.run is not None:
            return False
        return self.moved is None or self.moved.by_roots
