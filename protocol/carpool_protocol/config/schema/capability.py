"""Capabilities: patterns for what a profile grants or denies and which calls a hook checks, one text each.

Owns the spelling and the meaning. All parts are shell patterns (`*`, `?`, `[…]`, as in `fnmatch`, case
sensitive) over the servers' own names, never over the names that agents see:

    *                        everything
    mcp:SERVER               everything of a server: tools, prompts and resources
    mcp:SERVER:TOOL          tools
    prompt:SERVER:PROMPT     prompts
    resource:SERVER:URI      resources and templates, by the URI in its normal form (`uri_normalization`)
    tag:TAG                  everything of every server with the tag

Knows nothing of: profiles, views, existing servers.
"""

import re
from collections.abc import Collection
from fnmatch import fnmatchcase
from typing import Final, Literal

from msgspec import Struct

from carpool_protocol.wire.uri_normalization import normalize, normalize_pattern

Kind = Literal["tool", "prompt", "resource"]
"""The kinds of things that a server offers. A resource template is a `resource`."""

KINDS: Final[tuple[Kind, ...]] = ("tool", "prompt", "resource")

_HEADS: Final[dict[str, Kind]] = {"mcp": "tool", "prompt": "prompt", "resource": "resource"}
_SERVER = re.compile(r"[A-Za-z0-9_*?\[\]!-]+")


class Capability(Struct, frozen=True, cache_hash=True):
    """A pattern that grants, denies or selects tools, prompts and resources."""

    text: str
    """The pattern as written."""
    kind: Kind | None = None
    """None: every kind."""
    server: str = "*"
    name: str = "*"
    """For a resource: in the normal form."""
    tag: str | None = None
    """Only servers with such a tag."""

    @property
    def is_general(self) -> bool:
        """True if it covers servers of every name, so that taking over a name gains nothing."""
        return self.server == "*" and self.tag is None

    def is_of(self, server: str, tags: Collection[str]) -> bool:
        """True if it covers anything that this server may have."""
        if self.tag is not None:
            return any(fnmatchcase(tag, self.tag) for tag in tags)
        return self.server == "*" or fnmatchcase(server, self.server)

    def covers(self, kind: Kind, server: str, tags: Collection[str], name: str) -> bool:
        """True if it covers this tool, prompt or resource.

        `name`: the server's own name for it, or the URI; `tags`: the server's.
        """
        if self.kind is not None and self.kind != kind:
            return False
        if not self.is_of(server, tags):
            return False
        if self.name == "*":
            return True
        return fnmatchcase(normalize(name) if kind == "resource" else name, self.name)

    def covers_all(self, kind: Kind, server: str, tags: Collection[str]) -> bool:
        """True if it covers everything of this kind that the server may have."""
        return self.kind in (None, kind) and self.name == "*" and self.is_of(server, tags)


EVERYTHING: Final = Capability("*")


def read_capability(text: str) -> Capability | str:
    """The pattern, or its problem as the rest of a sentence."""
    if text == "*":
        return EVERYTHING
    head, colon, rest = text.partition(":")
    if head == "tag" and rest:
        return Capability(text, tag=rest)
    if head not in _HEADS or not colon:
        return 'must be "*" or begin with "mcp:", "prompt:", "resource:" or "tag:", like "mcp:github:read_*"'
    server, colon, name = rest.partition(":")
    if _SERVER.fullmatch(server) is None:
        return f'must name a server after "{head}:": letters, digits, "-", "_" and the signs * ? [ ]'
    if not colon:
        if head == "mcp":
            return Capability(text, server=server)
        return f'must say what of the server, like "{head}:{server}:*"'
    if not name:
        return f'has nothing after the second colon; "{head}:{server}:*" is all of them'
    kind = _HEADS[head]
    return Capability(text, kind, server, normalize_pattern(name) if kind == "resource" else name)


def check_capability(text: str) -> str | None:
    """The problem of a pattern; None if it may be used."""
    found = read_capability(text)
    return found if isinstance(found, str) else None


def capability(text: str) -> Capability:
    """The capability of a pattern that was checked. Raises `ValueError` for any other."""
    found = read_capability(text)
    if isinstance(found, Capability):
        return found
    raise ValueError(f"a capability {found}")
