"""URIs and URI templates that one server lists, and the URIs that they name.

Owns the test for agents whose profile keeps back any resource of the server: they read a URI only if
something in this list names it. A listed URI names each URI of the same normal form, and the server then gets
its own spelling. A template names a URI that it can expand to, as written and in the normal form.

Pure. Refuses to know: rights, other servers, how a URI is written for agents.
"""

from collections.abc import Callable, Sequence
from typing import Final

from carpool_broker.core.registry.uri_template import UriTemplate, parse_template
from carpool_protocol.machine import slices
from carpool_protocol.wire.uri_normalization import (
    authority,
    climbs,
    cost_units,
    has_literal_authority,
    normal_authority,
    normalize,
    with_plain_head,
)

_TEMPLATE_UNITS: Final = 30


class ListedUris:
    """The list of one server, of what one scope lets through. Immutable."""

    __slots__ = ("_authorities", "_exact", "_normal", "_templates")

    def __init__(self) -> None:
        """An empty list. See `build`."""
        self._exact: frozenset[str] = frozenset()
        self._normal: dict[str, str] = {}
        """Normal form to the server's own spelling; of several spellings the first."""
        self._templates: list[tuple[UriTemplate, UriTemplate]] = []
        self._authorities: frozenset[str] = frozenset()

    @classmethod
    def build(
        cls, uris: Sequence[str], templates: Sequence[str], normal: Callable[[str], str] = normalize
    ) -> "slices.Steps[ListedUris]":
        """Build the list. `normal` gives the normal form of each URI and template."""
        found = cls()
        found._exact = frozenset((*uris, *templates))
        authorities: set[str] = set()

        def add_uri(uri: str) -> int:
            plain = normal(uri)
            found._normal.setdefault(plain, uri)
            authorities.add(normal_authority(plain))
            return 1 + cost_units(uri)

        def add_template(template: str) -> int:
            plain = normal(template)
            written, read = parse_template(with_plain_head(template)), parse_template(plain)
            if written is not None and read is not None:
                found._templates.append((written, read))
            if has_literal_authority(template):
                authorities.add(normal_authority(plain))
            return _TEMPLATE_UNITS + len(template)

        yield from slices.handle_each(uris, add_uri)
        yield from slices.handle_each(templates, add_template)
        found._authorities = frozenset(authorities)
        return found

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


NOTHING_LISTED: Final = ListedUris()
