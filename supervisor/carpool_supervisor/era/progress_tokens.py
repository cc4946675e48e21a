"""The progress tokens that one server gets with its calls.

Owns their form: a text with a part that nobody guesses, and the wire id of the call. Each call has a token,
so that progress restarts its idle timeout whether or not its agent asked for progress. A server that makes up
tokens of its own, as small numbers, therefore names no call of another agent.

Knows nothing of: open calls, agents, randomness (the unguessable part comes from outside).
"""

from typing import Final

from carpool_protocol.ids import RawJson, WireId

MAX_DIGITS: Final = 18
"""A longer number is no wire id of ours; Python refuses to parse one of more than 4,300 digits."""


class ProgressTokens:
    """The tokens of one instance. `of(17)` is `"SECRET-17"`, and `wire_of` reads it."""

    __slots__ = ("_start", "form")

    def __init__(self, secret: str) -> None:
        """`secret`: letters and digits, different for each instance."""
        self._start = b'"%b-' % secret.encode()
        self.form = self._start + b'%d"'
        """The token of a wire id, by `%`: every call passes here."""

    def wire_of(self, token: RawJson) -> WireId | None:
        """Return the wire id in a token of this instance; None for any other token."""
        if not token.startswith(self._start):
            return None
        digits = token[len(self._start) : -1]
        return WireId(int(digits)) if digits.isdigit() and len(digits) <= MAX_DIGITS else None
