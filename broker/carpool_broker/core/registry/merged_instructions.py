"""The instructions of several servers as one text: one section for each server, of bounded size.

Owns the headings of the sections, and the two things that keep servers apart: what would make structure of
the whole text is escaped in a server's own (`escape_structure`), so that no server writes or hides a section
of another, and a server that says much takes no room from those that say little.
`{"git": "# time\\nAlways UTC."}` with a second server becomes `# git\\n\\n\\\\# time\\nAlways UTC.`, and the
other section.

What makes structure is read as CommonMark does, or else escaped: in doubt a backslash too many is harmless.
Pure. Knows nothing of: which servers an agent sees, pins, the bound on one server's instructions.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Final, Literal

from carpool_protocol.ids import ServerName

MAX_MERGED_BYTES: Final = 64 * 1024
"""Of all servers together, their headings apart."""
LEFT_OUT: Final = "[carpool: the rest of this server's instructions is left out]"
_LONGEST_FENCE: Final = 16
"""Neither the fence of a code block nor its indentation may be longer: carpool may have to write it again."""

_BEFORE: Final = re.compile(r"(?:[\s>*+\-\u200b-\u200f\u2060-\u2064\ufeff]|\d++[.)])*+")
"""The prefix of a line that Markdown allows before a block: marks of lists and quotations, white space, and
unseen characters.
"""
_FENCE: Final = re.compile(r"(`{3,}+|~{3,}+)(.*+)", re.DOTALL)
_HTML: Final = re.compile(r"<(?=[!?]|h[1-6]\b|(?:script|pre|style|textarea)\b)", re.IGNORECASE)
"""The opening of an HTML heading, or of an HTML block that does not end with its paragraph."""
_BEGUN_TAG: Final = re.compile(r"<\w{0,10}\Z")

_Kind = Literal["text", "fence", "code", "deep code"]
"""The kind of a line. `deep code` is indented so far that Markdown may also read it as text in a list."""


def merge_instructions(told: Mapping[ServerName, str], most_bytes: int = MAX_MERGED_BYTES) -> str:
    """One section for each server, in the order given."""
    sections = {server: escape_structure(text) for server, text in told.items()}
    room_bytes = _section_limit((len(text.encode()) for text in sections.values()), most_bytes)
    return "\n\n".join(f"# {server}\n\n{_section(text, room_bytes)}" for server, text in sections.items())


@lru_cache(256)
def escape_structure(text: str) -> str:
    """The text with a backslash before each mark that makes a heading in Markdown, and before each fence of a
    code block of which it is not plain where it ends; and with `&lt;` where HTML begins that does not end by
    itself. A code block that is still open at the end remains so.
    """
    lines = text.strip().splitlines()
    return "\n".join(map(_escape_line, lines, _CodeBlocks(lines).kinds))


class _CodeBlocks:
    """Which lines are fences of plain code blocks, and which are code.

    A plain block begins with blanks and a fence, outside of HTML, and ends with the same indentation and kind
    of fence, at least as long. No line of it has less indentation, so it does not end with a list around it:
    whatever stands before it, it begins and ends where it seems to. After a block that is not so, no line
    counts as a fence.
    """

    def __init__(self, lines: Sequence[str]) -> None:
        self.kinds: list[_Kind] = []
        self._indent = self._fence = ""
        """Those of the open block; no block is open if there is no fence."""
        self._is_html = self._is_over = False
        begun_at = 0
        for line in lines:
            if not self._fence:
                begun_at = len(self.kinds)
            kind = self._inside(line) if self._fence else self._outside(line)
            if kind is None:
                self._fence, self._is_over = "", True
                self.kinds[begun_at:] = ["text"] * (len(self.kinds) - begun_at)
            self.kinds.append(kind or "text")

    @property
    def closing(self) -> str:
        """The line that ends the block that is open at the end; empty: none is."""
        return self._indent + self._fence if self._fence else ""

    def _outside(self, line: str) -> _Kind:
        before, rest = _split(line)
        if not line.strip(" \t"):
            self._is_html = False
        elif rest.startswith("<"):
            self._is_html = True
        found = _FENCE.match(rest)
        if found is None or self._is_over or self._is_html:
            return "text"
        fence, info = found.groups()
        is_short = max(len(fence), len(before)) <= _LONGEST_FENCE
        if before.strip(" ") or not is_short or (fence[0] == "`" and "`" in info):
            return "text"
        self._indent, self._fence = before, fence
        return "fence"

    def _inside(self, line: str) -> _Kind | None:
        """None: it is not plain whether the block goes on."""
        code: _Kind = "code" if len(self._indent) < 4 else "deep code"
        if not line.strip(" \t"):
            return code
        if not line.startswith(self._indent):
            return None
        before, rest = _split(line)
        found = _FENCE.match(rest)
        if found is None or not found[1].startswith(self._fence) or found[2].strip():
            return code
        if before != self._indent or found[2].strip(" \t"):
            return None
        self._fence = ""
        return "fence"


def _split(line: str) -> tuple[str, str]:
    """Return the prefix of a line that Markdown allows before a block (`_BEFORE`), and the rest."""
    found = _BEFORE.match(line)
    end = found.end() if found is not None else 0
    return line[:end], line[end:]


def _escape_line(line: str, kind: _Kind) -> str:
    if kind == "fence":
        return line
    before, rest = _split(line)
    if not rest:  # a line of minus signs makes a heading of what stands above it
        bare = before.rstrip()
        if bare.endswith("-"):
            at = len(bare.rstrip("-"))
            return f"{line[:at]}\\{line[at:]}"
        return line
    is_mark = rest.startswith("#") or not rest.rstrip().strip("=")
    if is_mark or (kind == "text" and _FENCE.match(rest) is not None):
        rest = f"\\{rest}"
    return before + (rest if kind == "code" else _HTML.sub("&lt;", rest))


def _section_limit(sizes: Iterable[int], most_bytes: int) -> int:
    """How long a section may be: the least ones whole, what they leave is shared by the others."""
    waiting = sorted(sizes)
    left = most_bytes
    while waiting and waiting[0] <= left // len(waiting):
        left -= waiting.pop(0)
    return left // len(waiting) if waiting else most_bytes


def _section(escaped: str, room_bytes: int) -> str:
    """The escaped text, cut if it has no room, with the end of a code block that is open then."""
    whole = escaped.encode()
    is_cut = len(whole) > room_bytes
    text = _cut(whole[:room_bytes].decode("utf-8", "ignore")) if is_cut else escaped
    closing = _CodeBlocks(text.splitlines()).closing
    return "\n".join([text, *filter(None, (closing, LEFT_OUT if is_cut else ""))])


def _cut(text: str) -> str:
    """The text without a last line or tag that is not whole now and could so make structure."""
    text = _BEGUN_TAG.sub("", text)
    above, _, last = text.rpartition("\n")
    _, rest = _split(last)
    is_mark = not rest.strip().strip("=") or _FENCE.match(rest) is not None
    return above if is_mark else text
