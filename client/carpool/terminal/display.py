"""Text for a terminal: safe text, tables, colours, sizes and durations.

Pure, but that `columns` and `coloured` heed what the terminal on stdout can show (`screen`).

Invariant: nothing that a server, an agent or a log says can move the cursor, change colours, retitle the
window or reverse the reading direction: every control character is shown as an escape (`\\x1b`).
"""

import re
import unicodedata
from collections.abc import Collection, Iterable, Sequence
from typing import Final

from carpool.terminal import screen, table
from carpool.terminal.table import Cell, Colour

_UNSEEN_KINDS: Final = {"Cc", "Cf", "Cs", "Zl", "Zp"}
"""Controls, marks of direction and format (also those without width), halves of characters, line ends."""
_FILLERS: Final = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2065\u2800\u3164\ufe00-\ufe0f\uffa0\ufff0-\ufff8"
    "\U000e0000-\U000e0fff]"
)
"""Further characters that no terminal shows; Python takes most for printable."""
_SYMBOL: Final = (
    "\xa9\xae\u203c\u2049\u2122\u2139\u2190-\u27ff\u2900-\u2bff\u3030\u303d\u3297\u3299\U0001f000-\U0001faff"
)
_IN_EMOJI: Final = re.compile(
    f"(?<=[{_SYMBOL}])\ufe0f|(?<=[0-9#*])\ufe0f(?=\u20e3)|(?<=[{_SYMBOL}\ufe0f])\u200d(?=[{_SYMBOL}])"
)
"""The two unseen characters that change the look of an emoji, where they do."""
_BEYOND_ASCII = re.compile(r"[^\x20-\x7e]")


def printable(text: str, *, lines: bool = False) -> str:
    """`text` with all spelled out that no terminal shows or that it obeys. `lines`: line ends may stay (not
    bare `\\r`). Tabs, blanks of all kinds and emoji stay as they are.
    """
    if text.isprintable() and (text.isascii() or not _FILLERS.search(text)):  # mostly, and at C speed
        return text
    stay = {found.start() for found in _IN_EMOJI.finditer(text)}
    return "".join(char if at in stay else _shown(char, lines) for at, char in enumerate(text))


def _shown(char: str, lines: bool) -> str:
    if char == "\n":
        return "\n" if lines else "\\n"
    return _code(ord(char)) if is_unseen(char) and char != "\t" else char


def is_unseen(char: str) -> bool:
    """True for a character that no terminal shows, or that it obeys."""
    return unicodedata.category(char) in _UNSEEN_KINDS or _FILLERS.match(char) is not None


def spelled(text: str) -> str:
    """`text` on one line with all spelled out that could mislead, for what a person decides by: also emoji of
    several characters, blanks that are none, and characters that Python does not know.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(_code(ord(char)) if is_unseen(char) or not char.isprintable() else char for char in text)


def _code(code: int) -> str:
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def ascii_json(raw: bytes) -> str:
    """One JSON text as it came, with everything beyond ASCII escaped: for programs, whatever a terminal does.

    The text is not read: legal JSON holds numbers and depths that no reader of ours takes.
    """
    return _BEYOND_ASCII.sub(_escaped, raw.decode("utf-8", "replace"))


def _escaped(found: re.Match[str]) -> str:
    char = found[0]
    if char < " ":
        return " "  # white space: legal JSON has it nowhere else
    pair = char.encode("utf-16-be").hex()
    return "".join(f"\\u{pair[at : at + 4]}" for at in range(0, len(pair), 4))


def one_line(text: str, width: int = 80) -> str:
    """The first line of `text`, printable and at most `width` columns wide."""
    return table.cut(printable(text.strip().split("\n", 1)[0]), width)


def wrapped(text: str, first: str = "", rest: str = "") -> str:
    """`text`, printable, in lines that fit the terminal, with an indent for the first and for the others."""
    return table.wrapped(printable(text, lines=True), screen.width(), first, rest)


def wrapped_lines(lines: Iterable[str]) -> str:
    """Each of these sentences on lines of its own; lines after its first one are indented."""
    return "\n".join(wrapped(printable(line), rest="  ") for line in lines)


def columns(
    heads: Sequence[str],
    rows: Iterable[Sequence[object]],
    right: Collection[str] = (),
    *,
    spare: Sequence[str] = (),
    ends: Collection[str] = (),
    whole: bool = False,
) -> str:
    """An aligned table that fits the terminal. The columns of the heads in `right` are aligned to the right,
    those in `spare` are left out of a narrow terminal, the first one first. Those in `ends` are cut at the
    start of their cells.

    Cells are made printable here, so no caller can forget it; a `Cell` has a colour. Nothing at all for no
    rows. Where stdout is no terminal, or with `whole`, nothing is cut.
    """
    cells = [[_cell(cell) for cell in row] for row in rows]
    if not cells:
        return ""
    width = None if whole else screen.width()
    numbers = [head in right for head in heads]
    if width is not None and spare:
        kept = table.kept_columns(heads, cells, numbers, spare, width)
        heads, numbers = [heads[column] for column in kept], [numbers[column] for column in kept]
        cells = [[row[column] for column in kept] for row in cells]
    at_start = [head in ends for head in heads]
    return table.lay_out(heads, cells, numbers, width=width, colours=screen.has_colours(), ends=at_start)


def _cell(value: object) -> Cell:
    cell = value if isinstance(value, Cell) else Cell(str(value))
    return cell._replace(text=printable(cell.text).replace("\t", " "))


def coloured(text: str, colour: Colour) -> str:
    """`text`, printable, in a colour where stdout has any."""
    shown = printable(text, lines=True)
    return table.coloured(shown, colour) if screen.has_colours() else shown


_STATES: Final[dict[str, Colour]] = {
    **dict.fromkeys(("serving", "running"), "green"),
    **dict.fromkeys(("starting", "backing_off", "half_open", "draining", "unset", "untrusted"), "yellow"),
    **dict.fromkeys(("paused", "waiting", "asking", "away"), "yellow"),
    **dict.fromkeys(("breaker_open", "given_up", "misconfigured"), "red"),
    **dict.fromkeys(("cold", "stopped", "disabled", "offline"), "dim"),
}


def state(state: str, *, paused: bool = False) -> Cell:
    """The cell for the state of a server, an instance or a call: green, yellow where one waits, red where it
    failed. `paused`: an operator has paused the server.
    """
    return Cell(f"{state}, paused" if paused else state, "yellow" if paused else _STATES.get(state, ""))


def size(size_bytes: float) -> str:
    """Bytes as people read them: `512 B`, `1.5 MB`; also negative ones."""
    amount = abs(size_bytes)
    sign = "-" if size_bytes < 0 else ""
    for unit in ("B", "KB", "MB"):
        if amount < 1024 or (unit == "MB" and amount < 10240):
            return f"{sign}{amount:.0f} {unit}" if unit != "MB" or amount >= 100 else f"{sign}{amount:.1f} MB"
        amount /= 1024
    return f"{sign}{amount:.1f} GB"


def duration(seconds: float) -> str:
    """Seconds as people read them: `42 s`, `7 min`, `3 h 20 min`, `2 d 4 h`."""
    whole = int(seconds)
    if whole < 120:
        return f"{whole} s"
    minutes, hours, days = whole // 60, whole // 3600, whole // 86400
    if minutes < 120:
        return f"{minutes} min"
    if hours < 48:
        return f"{hours} h {minutes % 60} min"
    return f"{days} d {hours % 24} h"


def short_duration(seconds: float) -> str:
    """Return a duration with about two digits: `0.3ms`, `45ms`, `2.5s`, `90s`."""
    if seconds < 0.01:
        return f"{seconds * 1000:.1f}ms"
    if seconds < 1:
        return f"{seconds * 1000:.0f}ms"
    return f"{seconds:.1f}s" if seconds < 10 else f"{seconds:.0f}s"
