"""What a source of servers is resolved from, and its id.

Owns which of the things that a session brings make two sources different: the same basis has the same id, so
that its sessions share one scope and one set of pools. The id is keyed and tells nothing of the values in it.

Knows nothing of: files, how the basis of a session is found and what it comes to (`configuration`).
"""

import hashlib

import msgspec

from carpool_broker.config.locations import Spot
from carpool_broker.core.configuration.overrides import Own
from carpool_broker.core.model.events import SourceId
from carpool_protocol.carrier.attach import RunCommand
from carpool_protocol.link.messages import Root


class Basis:
    """What one source is resolved from."""

    def __init__(
        self,
        environment: dict[str, str],
        workspace: str,
        cwd: str,
        *,
        run: RunCommand | None = None,
        roots: tuple[Root, ...] | None = None,
        spot: Spot | None = None,
        project: str = "",
        server: str = "",
        own: Own = (),
        profile: str = "",
        tool_name_length: int = 0,
    ) -> None:
        self.environment = environment
        self.workspace = workspace
        self.cwd = cwd
        self.run = run
        self.roots = roots
        self.name, self.named_root = ("", "") if spot is None else (spot.name, spot.root)
        """Of the named workspace."""
        self.project = project
        """The project file whose servers count, or that they are missing; empty: none does."""
        self.server = server
        """The only one that is seen; empty: all are."""
        self.own = own
        """What is switched for its sessions alone."""
        self.profile = profile
        """Whose rights its sessions have, and what they are shown; empty: all of it."""
        self.tool_name_length = tool_name_length
        """The bound on names that its sessions bring; 0: none."""
        self.sessions = 0
        """How many use the source."""

    @property
    def is_empty(self) -> bool:
        """Whether its sessions bring nothing that counts: they see what everybody sees."""
        return not (
            self.environment
            or self.workspace
            or self.cwd
            or self.run
            or self.name
            or self.project
            or self.server
            or self.own
            or self.profile
            or self.tool_name_length
            or self.roots is not None
        )

    def source_id(self, secret: bytes) -> SourceId:
        """The same for the same basis under the same secret."""
        run = self.run
        what = msgspec.msgpack.encode(
            [
                sorted(self.environment.items()),
                self.workspace,
                self.cwd,
                [] if run is None else [run.argv, sorted(run.env.items()), run.cwd],
                self.roots,
                self.name,
                self.named_root,
                self.project,
                self.server,
                self.own,
                self.profile,
                self.tool_name_length,
            ]
        )
        return SourceId(hashlib.blake2b(what, key=secret, digest_size=8).hexdigest())
