"""URIs and URI templates that one server lists, and the URIs that they name.

Owns the test for agents whose profile keeps back any resource of the server: they read a URI only if
something in this list names it. A listed URI names each URI of the same normal form, and the server then gets
its own spelling. A template names a URI that it can expand to, as written and in the normal form.

Pure. Refuses to know: rights, other servers, how a URI is written for agents.
"""

from collections.abc import Sequence
from typing import Final

from carpool_broker.core.registry.uri_template import parse_template
from carpool_protocol.wire.uri_normalization import (
    authority,
    climbs,
    has_literal_authority,
    normalize,
    with_plain_head,
)


class ListedUris:
    """The list of one server, of what one scope lets through. Immutable."""

    __slots__ = ("_authorities", "_exact", "_normal", "_templates")

    def __init__(self, uris: Sequence[str], templates: Sequence[str]) -> None:
        self._exact = frozenset((*uris, *templates))
        self._normal: dict[str, str] = {}
        """Normal form to the server's own spelling; of several spellings the first."""
        for uri in uris:
            self._normal.setdefault(normalize(uri), uri)
        found = [
            (parse_template(with_plain_head(each)), parse_template(normalize(each))) for each in templates
        ]
        self._templates = [
            (plain, normal) for plain, normal in found if plain is not None and normal is not None
        ]
        literal = [each for each in templates if has_literal_authority(each)]
        self._authorities = frozenset(map(authority, (*uris, *literal)))

    def spelling(self, uri: str) -> str | None:
        """`uri` as the server is to get it; None where nothing in the list names it."""
        if uri in self._exact:
            return uri
        normal = normalize(uri)
        own = self._normal.get(normal)
        if own is not None:
            return own
        if climbs(uri):
            return None
        plain = with_plain_head(uri)
        named = any(written.matches(plain) and read.matches(normal) for written, read in self._templates)
        return uri if named else None

    def is_unclear(self, uri: str) -> bool:
        """Whether the text of `uri` does not tell where it leads: it climbs, or nothing listed has its
        authority.
        """
        return climbs(uri) or authority(uri) not in self._authorities


NOTHING_LISTED: Final = ListedUris((), ())
