"""The version of the handshake era that the next process of a pool is offered first.

Owns the versions that carpool speaks, and those that ended a process of the pool or were refused by one. Some
servers exit in place of an answer to `initialize`, or with a refusal as their last words, so the next version
needs a new process. Each version is offered once so; the one that a process has accepted is kept. After that,
and after all were tried, an end has another reason. Source: MCP 2025-11-25, basic/lifecycle "Version
Negotiation".

Pure. Knows nothing of: processes, why one ended, the words of a refusal (`greeting`).
"""

from collections.abc import Sequence
from typing import Final

VERSIONS: Final = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")
"""The versions that carpool offers and understands, newest first."""


class VersionOffers:
    """The offers to the processes of one pool."""

    def __init__(self) -> None:
        self.next = VERSIONS[0]
        """The version that the next process is offered first."""
        self._tried: set[str] = set()
        self._is_accepted = False

    def accepted(self, first: str) -> None:
        """A process has greeted that was offered this version first."""
        self.next, self._is_accepted = first, True

    def failed(self, tried: Sequence[str], last: str) -> bool:
        """A process ended before it had accepted a version. `tried`: those that it was offered first or has
        refused; `last`: the one that it was offered last. Returns True if the next process is offered another
        one.
        """
        if self._is_accepted:
            return False
        self._tried.update(tried)
        left = [version for version in (last, *VERSIONS) if version not in self._tried]
        self.next = left[0] if left else VERSIONS[0]
        return bool(left)
