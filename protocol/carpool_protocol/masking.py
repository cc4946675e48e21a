"""What another program has said, without the values that it was given.

Owns what counts as one of them: the whole value; of one with several lines, as a key, also each line that is
long enough to tell something, for what is shown may begin within it or spell its line ends; and, where a text
was cut, what such a one begins with.

Pure. Knows nothing of: where values and texts come from.
"""

from collections.abc import Iterable
from typing import Final

_LINE_CHARS: Final = 8
"""A shorter line of a value is in too many texts: a brace, a word."""


class Mask:
    """The values of one program."""

    __slots__ = ("_least", "_mark", "_words")

    def __init__(self, values: Iterable[str], mark: str, least: int = 1) -> None:
        """`mark` stands for each of them; those of less than `least` characters are let through."""
        words = {value for value in values if len(value) >= max(least, 1)}
        lines = {line.strip() for value in words if "\n" in value for line in value.split("\n")}
        self._words = sorted(
            words | {line for line in lines if len(line) >= _LINE_CHARS}, key=len, reverse=True
        )
        self._mark = mark
        self._least = least

    def over(self, text: str) -> str:
        """`text` without them."""
        for word in self._words:
            text = text.replace(word, self._mark)
        return text

    def over_cut(self, text: str) -> str:
        """The same, of a text that was cut at its end: it may end within one."""
        for word in self._words:
            at = max(0, len(text) - len(word))
            while (at := text.find(word[: self._least], at)) >= 0:
                if word.startswith(text[at:]):
                    return self.over(text[:at]) + self._mark
                at += 1
        return self.over(text)
