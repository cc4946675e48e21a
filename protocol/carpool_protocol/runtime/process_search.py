"""The search for processes among all that run: each is judged once, until none has ended unjudged.

A process that ends between list and judgement may have started another one after the list, so then the
processes are listed again. Owns that repetition, and its end on a machine where processes end all the time.
Standard library only. Knows nothing of: how processes are listed and judged.
"""

import os
from collections.abc import Callable, Iterable
from typing import Final

MOST_LISTS: Final = 50


def find_processes(list_pids: Callable[[], Iterable[int]], judge: Callable[[int], bool | None]) -> list[int]:
    """Return the processes that `judge` accepts, in the order of the lists, without this process. `judge`
    returns None for a process that has ended since it was listed.
    """
    judged = {os.getpid()}
    found: list[int] = []
    for _ in range(MOST_LISTS):
        has_ended = False
        for pid in list_pids():
            if pid in judged:
                continue
            judged.add(pid)
            is_wanted = judge(pid)
            if is_wanted is None:
                has_ended = True
            elif is_wanted:
                found.append(pid)
        if not has_ended:
            break
    return found
