"""What a profile lets its agents see and call, as one value.

Owns the rule: what is allowed and not denied is permitted; deny is stronger. Names are the servers' own, so
that no spelling and no renaming changes a right. URIs are denied in every spelling that a server may read
them in, and one that climbs (`..`) is permitted only where all resources of its server are: nobody but the
server knows where it leads.

Pure. Knows nothing of: views, sessions, limits (`bounds`), how a profile is written (`config`).
"""

from collections.abc import Collection
from typing import Final

from msgspec import Struct

from carpool_protocol.capability import EVERYTHING, KINDS, Capability, Kind
from carpool_protocol.uri_readings import climbs, readings


class Rights(Struct, frozen=True, cache_hash=True):
    """Compared by value: profiles that permit the same in the same words have equal rights."""

    allow: tuple[Capability, ...] = (EVERYTHING,)
    """Empty: nothing is permitted."""
    deny: tuple[Capability, ...] = ()

    @property
    def are_all(self) -> bool:
        """Whether they keep nothing back."""
        return not self.deny and EVERYTHING in self.allow

    def permit(
        self, kind: Kind, server: str, tags: Collection[str], name: str, *, stranger: bool = False
    ) -> bool:
        """Whether this tool, prompt or resource may be seen and called. `name`: the server's own, or the
        URI; `tags`: the server's; `stranger`: see `ScopeEntry`.
        """
        names: tuple[str, ...] = (name,)
        if kind == "resource":
            names = readings(name) if self.deny else names
            if climbs(name) and not self._permit_all(kind, server, tags, stranger=stranger):
                return False
        return any(
            it.covers(kind, server, tags, name) and (it.is_general or not stranger) for it in self.allow
        ) and not any(it.covers(kind, server, tags, each) for it in self.deny for each in names)

    def _permit_all(self, kind: Kind, server: str, tags: Collection[str], *, stranger: bool) -> bool:
        """Whether everything of this kind that the server may offer is permitted."""
        return any(
            it.covers_all(kind, server, tags) and (it.is_general or not stranger) for it in self.allow
        ) and not any(it.kind in (None, kind) and it.is_of(server, tags) for it in self.deny)

    def reach(self, kind: Kind, server: str, tags: Collection[str], *, stranger: bool = False) -> bool:
        """Whether anything of this kind that the server may offer can be permitted."""
        return any(
            it.kind in (None, kind) and it.is_of(server, tags) and (it.is_general or not stranger)
            for it in self.allow
        ) and not any(it.covers_all(kind, server, tags) for it in self.deny)

    def see(self, server: str, tags: Collection[str], *, stranger: bool = False) -> bool:
        """Whether the server is there at all for agents with these rights."""
        return any(self.reach(kind, server, tags, stranger=stranger) for kind in KINDS)


ALL_RIGHTS: Final = Rights()
NO_RIGHTS: Final = Rights(allow=())
"""Of a profile that has left the configuration while sessions have it: it grants nothing any more."""
