"""What another program has said, without the values that it was given.

Owns what counts as one of them: the whole value; of one with several lines, as a key, also each line that is
long enough to tell something, for what is shown may begin within it or spell its line ends; how others spell
each of them (a log in JSON, a URL, Python's `repr`, base64 as in `Authorization: Basic`); and, where a text
was cut, what such a one begins with.

Pure. Knows nothing of: where values and texts come from.
"""

import base64
import json
from collections.abc import Iterable, Iterator
from typing import Final
from urllib.parse import quote, quote_plus

_LINE_CHARS: Final = 8
"""A shorter line of a value is in too many texts: a brace, a word."""
_ENCODED_CHARS: Final = 8
"""A shorter piece of base64 is in too many texts."""


class Mask:
    """The values of one program."""

    __slots__ = ("_least", "_mark", "_words")

    def __init__(self, values: Iterable[str], mark: str, least: int = 1) -> None:
        """`mark` stands for each of them; those of less than `least` characters are let through."""
        words = {value for value in values if len(value) >= max(least, 1)}
        lines = {line.strip() for value in words if "\n" in value for line in value.split("\n")}
        words |= {line for line in lines if len(line) >= _LINE_CHARS}
        spelled = {spelling for word in words for spelling in _spellings(word)}
        self._words = sorted(words | spelled, key=len, reverse=True)
        self._mark = mark
        self._least = least

    def redact(self, text: str) -> str:
        """`text` without them."""
        for word in self._words:
            text = text.replace(word, self._mark)
        return text

    def redact_cut(self, text: str) -> str:
        """The same, of a text that was cut at its end: it may end within one."""
        for word in self._words:
            at = max(0, len(text) - len(word))
            while (at := text.find(word[: self._least], at)) >= 0:
                if word.startswith(text[at:]):
                    return self.redact(text[:at]) + self._mark
                at += 1
        return self.redact(text)


def _spellings(word: str) -> Iterator[str]:
    """How programs write `word` where it cannot stand as it is, or where they do not want to show it."""
    data = word.encode("utf-8", "surrogateescape" if _is_of_bytes(word) else "surrogatepass")
    if not (word.isascii() and word.isalnum()):
        yield json.dumps(word)[1:-1]
        yield json.dumps(word, ensure_ascii=False)[1:-1]
        yield repr(word)[1:-1]
        for found in (quote(data, safe=""), quote(data), quote_plus(data)):
            yield found
            yield _with_small_escapes(found)
    for before in range(3):  # in base64 of a longer text (`user:password`) it stands in one of three ways
        start, end = (before * 8 + 5) // 6, (before + len(data)) * 8 // 6
        if end - start >= _ENCODED_CHARS:
            text = bytes(before) + data
            yield base64.b64encode(text).decode()[start:end]
            yield base64.urlsafe_b64encode(text).decode()[start:end]


def _is_of_bytes(word: str) -> bool:
    """Whether its lone surrogates stand for bytes that are no UTF-8, as in an environment."""
    return all("\udc80" <= char <= "\udcff" for char in word if "\ud800" <= char <= "\udfff")


def _with_small_escapes(text: str) -> str:
    head, *rest = text.split("%")
    return "%".join([head, *(each[:2].lower() + each[2:] for each in rest)])
