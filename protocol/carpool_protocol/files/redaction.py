"""Removes secret values from the text of another program.

Owns the forms of a value that are removed. First the whole value. Of a value with several lines, such as a
key, also each line that is long enough to be recognised, because a text may begin within the value or spell
its line ends. Then other spellings of each: JSON in a log, a URL, Python's `repr`, base64 as in
`Authorization: Basic`. In a text that was cut, also the beginning of a value at its end.

Pure. Knows nothing of: the origin of values and texts.
"""

import base64
import json
from collections.abc import Iterable, Iterator
from typing import Final
from urllib.parse import quote, quote_plus

_LINE_CHARS: Final = 8
"""Shorter lines of a value are not removed: a brace or a word stands in too many texts."""
_ENCODED_CHARS: Final = 8
"""Shorter pieces of base64 are not removed: they stand in too many texts."""


class Mask:
    """Removes the values of one program from texts."""

    __slots__ = ("_least", "_mark", "_words")

    def __init__(self, values: Iterable[str], mark: str, least: int = 1) -> None:
        """`mark` replaces each value. Values of fewer than `least` characters are not removed."""
        words = {value for value in values if len(value) >= max(least, 1)}
        lines = {line.strip() for value in words if "\n" in value for line in value.split("\n")}
        words |= {line for line in lines if len(line) >= _LINE_CHARS}
        spelled = {spelling for word in words for spelling in _spellings(word)}
        self._words = sorted(words | spelled, key=len, reverse=True)
        self._mark = mark
        self._least = least

    def redact(self, text: str) -> str:
        """`text` with each value replaced by the mark."""
        for word in self._words:
            text = text.replace(word, self._mark)
        return text

    def redact_cut(self, text: str) -> str:
        """The same for a text that was cut: a value that only begins at its end is replaced as well."""
        for word in self._words:
            at = max(0, len(text) - len(word))
            while (at := text.find(word[: self._least], at)) >= 0:
                if word.startswith(text[at:]):
                    return self.redact(text[:at]) + self._mark
                at += 1
        return self.redact(text)


def _spellings(word: str) -> Iterator[str]:
    """Other spellings of `word`: escaped for JSON, Python or URLs, or in base64."""
    data = word.encode("utf-8", "surrogateescape" if _is_of_bytes(word) else "surrogatepass")
    if not (word.isascii() and word.isalnum()):
        yield json.dumps(word)[1:-1]
        yield json.dumps(word, ensure_ascii=False)[1:-1]
        yield repr(word)[1:-1]
        for found in (quote(data, safe=""), quote(data), quote_plus(data)):
            yield found
            yield _with_small_escapes(found)
    for before in range(3):  # within base64 of a longer text (`user:password`) a word has one of three forms
        start, end = (before * 8 + 5) // 6, (before + len(data)) * 8 // 6
        if end - start >= _ENCODED_CHARS:
            text = bytes(before) + data
            yield base64.b64encode(text).decode()[start:end]
            yield base64.urlsafe_b64encode(text).decode()[start:end]


def _is_of_bytes(word: str) -> bool:
    """True if its lone surrogates stand for bytes that are not UTF-8, as in an environment."""
    return all("\udc80" <= char <= "\udcff" for char in word if "\ud800" <= char <= "\udfff")


def _with_small_escapes(text: str) -> str:
    head, *rest = text.split("%")
    return "%".join([head, *(each[:2].lower() + each[2:] for each in rest)])
