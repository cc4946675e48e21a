"""Searches in lists that are long to index: in pieces, so that no other agent waits for one of them.

Owns which searches wait for an index, in turn; those that need a short one pass them. One whose list has
changed meanwhile is answered from the list as it is then, in one go.

Invariant: each search is answered once, also when the process ends.
Knows nothing of: how tools are found (`search`), how the answer is worded.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import trio

from carpool_broker.builtin_tools.search import CannotSearchError, Finder
from carpool_broker.core.model.effects import AnswerOwn
from carpool_broker.core.registry.view import View
from carpool_protocol.ids import ServerName

AT_ONCE: Final = 256
"""A list of so many tools is indexed on the spot: 5 to 10 ms."""


class Searching:
    """The searches of one broker. `answer`: give the answer now."""

    def __init__(self, finder: Finder, answer: Callable[[AnswerOwn], None]) -> None:
        self._finder = finder
        self._answer = answer
        self._waiting: deque[tuple[AnswerOwn, View]] = deque()
        self._news = trio.Event()

    def wanted(self, effect: AnswerOwn, view: View) -> None:
        """An agent searches for words in what it sees."""
        if len(view.tools) <= AT_ONCE or (not self._waiting and self._is_ready(view)):
            self._answer(effect)
            return
        self._waiting.append((effect, view))
        self._news.set()

    async def run(self, settle: Callable[[], None]) -> None:
        """Answer what waits, until cancelled. `settle`: everything that was said may leave."""
        while True:
            await self._news.wait()
            self._news = trio.Event()
            while self._waiting:
                effect, view = self._waiting[0]
                if self._is_ready(view):
                    self._waiting.popleft()
                    self._answer(effect)
                    settle()
                await trio.lowlevel.checkpoint()

    def finish(self) -> None:
        """Answer all that wait now."""
        while self._waiting:
            self._answer(self._waiting.popleft()[0])

    def _is_ready(self, view: View) -> bool:
        try:
            return self._finder.prepare(view.tools, tags_of(view))
        except CannotSearchError:
            return True  # the answer says so


def tags_of(view: View) -> Mapping[ServerName, Sequence[str]]:
    """The tags of the servers that an agent sees."""
    return {entry.server: entry.tags for entry in view.scope.servers if entry.tags}
