"""What a profile lets its agents see and call, as one value.

Owns the rule: what is allowed and not denied is permitted; deny is stronger. Names are the servers' own, so
that no spelling and no renaming changes a right. URIs are compared in their normal form
(`uri_normalization`). `allow` is the boundary: of a server with resources that are kept back, agents read
only what is listed (`listed_uris`). `deny` is a convenience on top: a server may read a URI otherwise than
any text tells, so a URI that climbs (`..`) is permitted only where all resources of its server are, and where
something is denied a template counts only if its authority is written out.

Pure. Knows nothing of: views, sessions, limits (`bounds`), how a profile is written (`config`).
"""

import re
from collections.abc import Collection
from typing import Final

from msgspec import Struct

from carpool_protocol.config.schema.capability import EVERYTHING, KINDS, Capability, Kind
from carpool_protocol.wire.uri_normalization import climbs, has_literal_authority, normalize, without_query


class Rights(Struct, frozen=True, cache_hash=True):
    """Compared by value: profiles that permit the same in the same words have equal rights."""

    allow: tuple[Capability, ...] = (EVERYTHING,)
    """Empty: nothing is permitted."""
    deny: tuple[Capability, ...] = ()

    @property
    def are_all(self) -> bool:
        """Whether they keep nothing back."""
        return not self.deny and EVERYTHING in self.allow

    def permits(
        self, kind: Kind, server: str, tags: Collection[str], name: str, *, stranger: bool = False
    ) -> bool:
        """Whether this tool, prompt or resource may be seen and called. `name`: the server's own, or the
        URI; `tags`: the server's; `stranger`: see `ScopeEntry`.
        """
        names: tuple[str, ...] = (name,)
        if kind == "resource":
            if self.permits_all(kind, server, tags, stranger=stranger):
                return True
            if climbs(name) or (self._denies(kind, server, tags) and not has_literal_authority(name)):
                return False
            names = without_query(name)
        return any(
            it.covers(kind, server, tags, name) and (it.is_general or not stranger) for it in self.allow
        ) and not any(it.covers(kind, server, tags, each) for it in self.deny for each in names)

    def permits_all(self, kind: Kind, server: str, tags: Collection[str], *, stranger: bool = False) -> bool:
        """Whether everything of this kind that the server may offer is permitted."""
        return not self._denies(kind, server, tags) and any(
            it.covers_all(kind, server, tags) and (it.is_general or not stranger) for it in self.allow
        )

    def permits_expansions(
        self, server: str, tags: Collection[str], template: str, *, stranger: bool = False
    ) -> bool:
        """Whether everything that a template of the server can expand to is permitted, as far as the text
        before its first expression tells. A URI without expressions expands to itself.
        """
        if not self.permits("resource", server, tags, template, stranger=stranger):
            return False
        text, brace, _ = template.partition("{")
        if not brace:
            return True
        start = normalize(text)
        for it in self.deny:
            if it.kind in (None, "resource") and it.is_of(server, tags):
                denied = _literal(it.name)
                if denied.startswith(start) or start.startswith(denied):
                    return False
        return any(
            it.kind in (None, "resource")
            and it.is_of(server, tags)
            and (it.is_general or not stranger)
            and it.name == _literal(it.name) + "*"
            and start.startswith(_literal(it.name))
            for it in self.allow
        )

    def _denies(self, kind: Kind, server: str, tags: Collection[str]) -> bool:
        """Whether anything of this kind that the server may offer is denied."""
        return any(it.kind in (None, kind) and it.is_of(server, tags) for it in self.deny)

    def may_permit(self, kind: Kind, server: str, tags: Collection[str], *, stranger: bool = False) -> bool:
        """Whether anything of this kind that the server may offer can be permitted."""
        return any(
            it.kind in (None, kind) and it.is_of(server, tags) and (it.is_general or not stranger)
            for it in self.allow
        ) and not any(it.covers_all(kind, server, tags) for it in self.deny)

    def sees_server(self, server: str, tags: Collection[str], *, stranger: bool = False) -> bool:
        """Whether the server is there at all for agents with these rights."""
        return any(self.may_permit(kind, server, tags, stranger=stranger) for kind in KINDS)


ALL_RIGHTS: Final = Rights()
NO_RIGHTS: Final = Rights(allow=())
"""Of a profile that has left the configuration while sessions have it: it grants nothing any more."""


def _literal(pattern: str) -> str:
    """What stands before the first wildcard of a shell pattern."""
    return re.split(r"[*?\[]", pattern, maxsplit=1)[0]
