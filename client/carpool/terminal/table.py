"""The layout of a table: the width of each column, cells cut to it, and colours around them.

Pure. Owns how many columns of a terminal a text takes, and which parts of a table give way where it is wider
than the terminal: what a verb can spare, long text, the heads of numbers. A number is never shortened.

Refuses to know: how wide the terminal is, what the cells mean, if their text is safe (`display`).
"""

import unicodedata
from collections.abc import Callable, Sequence
from typing import Final, Literal, NamedTuple

Colour = Literal["", "red", "yellow", "green", "bold", "dim"]

ELLIPSIS: Final = "…"
GAP: Final = "  "
READABLE: Final = 16
"""The columns of text that each text column keeps as long as the heads of numbers can give way."""
SHORT: Final = 8
"""The columns that it keeps before heads of numbers give way to nothing but an ellipsis."""
SHORTEST: Final = 4
"""The columns that each text keeps in any case, and a head of numbers at first; past that lines are cut."""
_CODES: Final[dict[Colour, str]] = {"red": "31", "yellow": "33", "green": "32", "bold": "1", "dim": "2"}
_WITHOUT_WIDTH: Final = {"Mn", "Me", "Cf"}
"""Unicode categories of marks that a terminal puts on the character before them."""


class Cell(NamedTuple):
    """One cell with its colour."""

    text: str
    colour: Colour = ""


def text_width(text: str) -> int:
    """Return the columns that `text` takes: two for a wide East Asian character or an emoji.

    The tables of the standard library are enough; `wcwidth` would be one more dependency of every verb.
    """
    return len(text) if text.isascii() else sum(map(_char_width, text))


def _char_width(char: str) -> int:
    if unicodedata.category(char) in _WITHOUT_WIDTH:
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def cut(text: str, width: int) -> str:
    """Return `text` in at most `width` columns, with an ellipsis at its end where something is left out."""
    if text_width(text) <= width:
        return text
    kept, left = [], width - len(ELLIPSIS)
    for char in text:
        left -= _char_width(char)
        if left < 0:
            break
        kept.append(char)
    return "".join(kept).rstrip() + ELLIPSIS if width > 0 else ""


def cut_start(text: str, width: int) -> str:
    """Return `text` in at most `width` columns, with an ellipsis at its start where something is left out."""
    if text_width(text) <= width:
        return text
    kept, left = [], width - len(ELLIPSIS)
    for char in reversed(text):
        left -= _char_width(char)
        if left < 0:
            break
        kept.append(char)
    return ELLIPSIS + "".join(reversed(kept)).lstrip() if width > 0 else ""


def wrapped(text: str, width: int | None, first: str = "", rest: str = "") -> str:
    """Return `text` in lines of at most `width` columns (None: lines stay as they are), broken at spaces.

    `first` and `rest`: the indents of the first line and of all others. A word is never broken, so that a
    path or an address can be copied.
    """
    lines: list[str] = []
    for paragraph in text.split("\n"):
        words = [paragraph] if width is None else paragraph.split(" ")
        line = (rest if lines else first) + words[0]
        for word in words[1:]:
            assert width is not None
            if text_width(line) + 1 + text_width(word) > width:
                lines.append(line)
                line = rest + word
            else:
                line = f"{line} {word}"
        lines.append(line)
    return "\n".join(lines)


def coloured(text: str, colour: Colour) -> str:
    """Return `text` between the codes that give it a colour and take it back."""
    return f"\x1b[{_CODES[colour]}m{text}\x1b[0m" if colour and text else text


def lay_out(
    heads: Sequence[str],
    rows: Sequence[Sequence[Cell]],
    right: Sequence[bool],
    *,
    width: int | None,
    colours: bool,
    ends: Sequence[bool] = (),
) -> str:
    """Return an aligned table in at most `width` columns (None: as wide as its content).

    `right`: the columns that hold numbers, which are aligned to the right. `ends`: the columns of text that
    keep the ends of their cells where they are cut, such as paths; () for none.
    """
    lines = [[Cell(head, "bold") for head in heads], *rows]
    natural = [max(text_width(row[i].text) for row in lines) for i in range(len(heads))]
    widths = natural
    if width is not None:
        cells = [max((text_width(row[i].text) for row in rows), default=0) for i in range(len(heads))]
        widths = column_widths(natural, cells, right, width - len(GAP) * (len(heads) - 1))
    cuts = [cut_start if is_end else cut for is_end in ends or [False] * len(heads)]
    shown = (
        _line(row, widths, right, cuts if at else [cut] * len(heads), colours) for at, row in enumerate(lines)
    )
    if width is None or sum(widths) + len(GAP) * (len(heads) - 1) <= width:
        return "\n".join(shown)
    bare = (_line(row, widths, right, cuts, colours=False) for row in lines)
    return "\n".join(cut(line, width) for line in bare)


def kept_columns(
    heads: Sequence[str],
    rows: Sequence[Sequence[Cell]],
    right: Sequence[bool],
    spare: Sequence[str],
    width: int,
) -> list[int]:
    """Return the columns to show in `width`; those of `spare` are left out one by one, as far as needed."""
    kept = list(range(len(heads)))

    def least(column: int) -> int:
        cells = max((text_width(row[column].text) for row in rows), default=0)
        whole = max(cells, text_width(heads[column]))
        return max(cells, _shortest_head(heads, column)) if right[column] else min(whole, READABLE)

    for head in spare:
        if sum(map(least, kept)) + len(GAP) * (len(kept) - 1) <= width:
            break
        kept = [column for column in kept if heads[column] != head]
    return kept


def _shortest_head(heads: Sequence[str], column: int) -> int:
    """Return the columns that a head needs: `SHORTEST`, or all if another head begins in the same way."""
    head = heads[column]
    starts = [each[: SHORTEST - 1] for each in heads]
    is_alone = starts.count(head[: SHORTEST - 1]) == 1
    return min(text_width(head), SHORTEST) if is_alone else text_width(head)


def column_widths(
    natural: Sequence[int], cells: Sequence[int], right: Sequence[bool], available: int
) -> list[int]:
    """Return the width of each column, so that their sum is at most `available` if that can be.

    `natural`: the width that shows all of a column, `cells`: the same without its head.
    """
    widths = list(natural)
    texts = [i for i, is_number in enumerate(right) if not is_number]
    numbers = [i for i, is_number in enumerate(right) if is_number]
    _shrink(widths, texts, [READABLE] * len(widths), available)
    _shrink(widths, numbers, [max(each, SHORTEST) for each in cells], available)
    _shrink(widths, texts, [SHORT] * len(widths), available)
    _shrink(widths, numbers, [max(each, 1) for each in cells], available)
    _shrink(widths, texts, [SHORTEST] * len(widths), available)
    return widths


def _shrink(widths: list[int], which: Sequence[int], floors: Sequence[int], available: int) -> None:
    """Take from the widest of these columns first, one by one, and from none below its floor."""
    while sum(widths) > available:
        wide = [i for i in which if widths[i] > floors[i]]
        if not wide:
            return
        widths[max(wide, key=lambda i: widths[i])] -= 1


def _line(
    row: Sequence[Cell],
    widths: Sequence[int],
    right: Sequence[bool],
    cuts: Sequence[Callable[[str, int], str]],
    colours: bool,
) -> str:
    parts = []
    for cell, width, to_right, cut_to in zip(row, widths, right, cuts, strict=True):
        text = cut_to(cell.text, width)
        blank = " " * (width - text_width(text))
        shown = coloured(text, cell.colour) if colours else text
        parts.append(blank + shown if to_right else shown + blank)
    return GAP.join(parts).rstrip()
