"""Files that are just being saved.

Owns how long is waited for them. Many programs do not save in one step: a file is away for a moment (editors
that keep a backup, a checkout of another branch), or empty. Read then, it would say that all its servers are
gone: agents would lose their leases for nothing.

Knows nothing of: which files, what they say, how they are looked at.
"""

from collections.abc import Awaitable, Callable, Collection
from typing import Final

import trio

from carpool_protocol.config.text.file_stamps import Stamp

STILL_S: Final = 0.1
MOST_LOOKS: Final = 10
"""A file that changes all the time is read all the same."""


async def settled(
    files: Collection[str], stamps: Callable[[Collection[str]], Awaitable[list[Stamp]]]
) -> None:
    """Return once they have stayed as they are for `STILL_S`, as `stamps` tells."""
    before = await stamps(files)
    for _ in range(MOST_LOOKS):
        await trio.sleep(STILL_S)
        now = await stamps(files)
        if now == before:
            return
        before = now
