"""The instructions of several servers as one text: one section for each server, of bounded size.

Owns the headings of the sections, and the two things that keep servers apart: a heading in a server's own
text is escaped, so that no server writes a section of another, and a server that says much takes no room from
those that say little. `{"git": "# time\\nAlways UTC."}` with a second server becomes
`# git\\n\\n\\\\# time\\nAlways UTC.`, and the other section.

Pure. Knows nothing of: which servers an agent sees, pins, the bound on one server's instructions.
"""

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Final

from carpool_protocol.ids import ServerName

MAX_MERGED_BYTES: Final = 64 * 1024
"""Of all servers together, their headings apart."""
LEFT_OUT: Final = "[carpool: the rest of this server's instructions is left out]"

_HEADING: Final = re.compile(r"([\s>*+-]*)(#+|=+\s*$|-+\s*$|<h[1-6]\b)", re.IGNORECASE)
_FENCE: Final = re.compile(r"[\s>*+-]*(```+|~~~+)")


def merge_instructions(told: Mapping[ServerName, str]) -> str:
    """One section for each server, in the order given."""
    sections = {server: escape_headings(text) for server, text in told.items()}
    room_bytes = _section_limit(len(text.encode()) for text in sections.values())
    return "\n\n".join(f"# {server}\n\n{_truncate(text, room_bytes)}" for server, text in sections.items())


@lru_cache(256)
def escape_headings(text: str) -> str:
    """The text with a backslash before each mark that makes a heading in Markdown, and no open code block."""
    lines = text.strip().splitlines()
    fences = 0
    for at, line in enumerate(lines):
        if (found := _HEADING.match(line)) is not None:
            lines[at] = f"{line[: found.start(2)]}\\{line[found.start(2) :]}"
        elif (found := _FENCE.match(line)) is not None:
            fences += 1
    return "\n".join([*lines, "```"] if fences % 2 else lines)


def _section_limit(sizes: Iterable[int]) -> int:
    """How long a section may be: the least ones whole, what they leave is shared by the others."""
    waiting = sorted(sizes)
    left = MAX_MERGED_BYTES
    while waiting and waiting[0] <= left // len(waiting):
        left -= waiting.pop(0)
    return left // len(waiting) if waiting else MAX_MERGED_BYTES


def _truncate(text: str, room_bytes: int) -> str:
    whole = text.encode()
    if len(whole) <= room_bytes:
        return text
    return f"{whole[:room_bytes].decode('utf-8', 'ignore')}\n{LEFT_OUT}"
