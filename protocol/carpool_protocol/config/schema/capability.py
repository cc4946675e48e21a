"""Capabilities: what a profile grants or denies, and what a hook is for, as one line of text each.

Owns the spelling and what each one covers. All parts are shell patterns (`*`, `?`, `[…]`, as in `fnmatch`,
case counts) over the names that servers themselves use, never over the names that agents see:

    *                        everything
    mcp:SERVER               all of a server: tools, prompts and resources
    mcp:SERVER:TOOL          tools
    prompt:SERVER:PROMPT     prompts
    resource:SERVER:URI      resources and resource templates, by the URI in its normal form
    (`uri_normalization`) tag:TAG                  all of every server that has the tag

Knows nothing of: profiles, views, which servers there are.
"""

import re
from collections.abc import Collection
from fnmatch import fnmatchcase
from typing import Final, Literal

from msgspec import Struct

from carpool_protocol.wire.uri_normalization import normalize, normalize_pattern

Kind = Literal["tool", "prompt", "resource"]
"""What a server offers. A resource template is a `resource`."""

KINDS: Final[tuple[Kind, ...]] = ("tool", "prompt", "resource")

_HEADS: Final[dict[str, Kind]] = {"mcp": "tool", "prompt": "prompt", "resource": "resource"}
_SERVER = re.compile(r"[A-Za-z0-9_*?\[\]!-]+")


class Capability(Struct, frozen=True, cache_hash=True):
    """One pattern."""

    text: str
    """As it is written."""
    kind: Kind | None = None
    """None: of every kind."""
    server: str = "*"
    name: str = "*"
    """Of a resource: in the normal form."""
    tag: str | None = None
    """Of servers with such a tag only."""

    @property
    def is_general(self) -> bool:
        """Whether it is about servers of every name: whoever takes a name over gains nothing by it."""
        return self.server == "*" and self.tag is None

    def is_of(self, server: str, tags: Collection[str]) -> bool:
        """Whether it covers anything that this server may have."""
        if self.tag is not None:
            return any(fnmatchcase(tag, self.tag) for tag in tags)
        return self.server == "*" or fnmatchcase(server, self.server)

    def covers(self, kind: Kind, server: str, tags: Collection[str], name: str) -> bool:
        """Whether it covers this tool, prompt or resource. `name`: the server's own name for it, or the URI;
        `tags`: the server's.
        """
        if self.kind is not None and self.kind != kind:
            return False
        if not self.is_of(server, tags):
            return False
        if self.name == "*":
            return True
        return fnmatchcase(normalize(name) if kind == "resource" else name, self.name)

    def covers_all(self, kind: Kind, server: str, tags: Collection[str]) -> bool:
        """Whether it covers everything of this kind that the server may have."""
        return self.kind in (None, kind) and self.name == "*" and self.is_of(server, tags)


EVERYTHING: Final = Capability("*")


def read_capability(text: str) -> Capability | str:
    """The pattern, or what is wrong with it, as the rest of a sentence."""
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
    """What is wrong with a pattern; None when it may be used."""
    found = read_capability(text)
    return found if isinstance(found, str) else None


def capability(text: str) -> Capability:
    """A pattern that has been checked. Raises `ValueError` for any other."""
    found = read_capability(text)
    if isinstance(found, Capability):
        return found
    raise ValueError(f"a capability {found}")
