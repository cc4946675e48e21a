"""Whether a URI can come from a URI template (RFC 6570), without finding out which values went in.

Servers list templates, agents expand them, and a read has to find the server again. RFC 6570 defines
expansion only; the maintained libraries (`uritemplate`, `uri-template`) only expand, and matching by
regular expression goes polynomial with what a server and an agent write together, so this is our own.

Invariants: a URI that a template expands to is matched, whatever the values are (also undefined ones). The
work is at most URI length times number of parts; nothing backtracks. The reverse is meant leniently, as
servers' SDKs match (`{id}` takes all but `/`, `{path*}` everything).

Knows nothing of: servers, scopes.
"""

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Final

from msgspec import Struct

MAX_URI_CHARS: Final = 4096
"""A longer URI matches no template, because the test would cost too much."""
MAX_TEMPLATE_CHARS: Final = 4096
_KNOWN_CHARS: Final = 512
"""A longer template is parsed each time: the cache is bounded by number, and a server may change long ones
all the time.
"""
MAX_EXPRESSIONS: Final = 16

_expression = re.compile(r"\{([+#./;?&]?)([^{}]*)\}")

_NOTHING: Final = ""
_PATH: Final = "?#"
_SEGMENT: Final = "/?#"


class _Expression(Struct, frozen=True):
    """An expression: it expands to nothing, or to `lead` and any characters but `stops`."""

    lead: str
    stops: str


class UriTemplate(Struct, frozen=True):
    """A template that can be matched with URIs."""

    parts: tuple[str | _Expression, ...]

    def matches(self, uri: str) -> bool:
        """True if the template can expand to `uri`."""
        if len(uri) > MAX_URI_CHARS:
            return False
        first = self.parts[0] if self.parts else ""
        if isinstance(first, str) and not uri.startswith(first):
            return False
        spans = [(0, 0)]  # where the next part can begin, as inclusive spans that do not touch
        for part in self.parts:
            spans = _after_text(uri, part, spans) if isinstance(part, str) else _after_gap(uri, part, spans)
            if not spans:
                return False
        return spans[-1][1] == len(uri)


def parse_template(template: str) -> UriTemplate | None:
    """Return the template; None if it is malformed or too large, so that it matches nothing."""
    if len(template) > MAX_TEMPLATE_CHARS:
        return None
    return (_known_template if len(template) <= _KNOWN_CHARS else _parse_template)(template)


def _parse_template(template: str) -> UriTemplate | None:
    parts: list[str | _Expression] = []
    pos = 0
    for found in _expression.finditer(template):
        if text := template[pos : found.start()]:
            parts.append(text)
        operator, names = found[1], found[2]
        if not names:
            return None
        parts.append(_gap(operator, names))
        pos = found.end()
    if text := template[pos:]:
        parts.append(text)
    if any(isinstance(part, str) and ("{" in part or "}" in part) for part in parts):
        return None
    if sum(not isinstance(part, str) for part in parts) > MAX_EXPRESSIONS:
        return None
    return UriTemplate(tuple(parts))


_known_template = lru_cache(maxsize=4096)(_parse_template)


def _gap(operator: str, names: str) -> _Expression:
    several = "*" in names or "," in names
    match operator:
        case "":  # `{path*}` takes slashes in FastMCP
            return _Expression("", _NOTHING if "*" in names else "/")
        case "+":
            return _Expression("", _NOTHING)
        case "/":
            return _Expression("/", _PATH if several else _SEGMENT)
        case ".":
            return _Expression(".", _SEGMENT)
        case ";":
            return _Expression(";", _SEGMENT)
        case "#":
            return _Expression("#", _NOTHING)
        case _:
            return _Expression(operator, "#")


def _after_text(uri: str, text: str, spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for low, high in spans:
        limit = high + len(text)
        at = uri.find(text, low, limit)
        while at >= 0:
            _add(found, at + len(text), at + len(text))
            at = uri.find(text, at + 1, limit)
    return found


def _after_gap(uri: str, gap: _Expression, spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    begins = _after_text(uri, gap.lead, spans) if gap.lead else spans
    reached: list[tuple[int, int]] = []
    end = -1  # up to where the characters from the last begin go on: begins within need no second look
    for low, high in begins:
        if high > end:
            end = _run_end(uri, high, gap.stops)
        _add(reached, low, end)
    return _merged([*spans, *reached]) if gap.lead else reached


def _run_end(uri: str, pos: int, stops: str) -> int:
    return min((at for at in (uri.find(stop, pos) for stop in stops) if at >= 0), default=len(uri))


def _add(spans: list[tuple[int, int]], low: int, high: int) -> None:
    """Append a span that begins no earlier than the last one; join spans that touch."""
    if spans and low <= spans[-1][1] + 1:
        spans[-1] = (spans[-1][0], max(spans[-1][1], high))
    else:
        spans.append((low, high))


def _merged(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for low, high in sorted(spans):
        _add(merged, low, high)
    return merged
