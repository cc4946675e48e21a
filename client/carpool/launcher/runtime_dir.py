"""Whether the runtime directory is still this launcher's: put back when it vanishes, given up when taken.

Cleaners of temporary files and `rm -rf` take directories from under programs that run. Then the lock that we
hold is one on a file without a name, and the next `carpool up` would start a second carpool beside this one.

Owns the lock from `take` on, and the directory of the logs. Invariants: `look` says "taken" for ever once
another launcher has the lock; the lock is never given up before the one that replaces it is held.

Standard library only. Refuses to know what the launcher does about it; sockets are put back by whoever
listens on them.
"""

import os
from collections.abc import Callable
from typing import Literal

from carpool import launcher_lock
from carpool_protocol.bootstrap import paths

DirState = Literal["kept", "put back", "taken", "gone"]
"""`gone`: the directory has vanished and cannot be made; `recheck` tries again."""


class RuntimeDirWatch:
    """One launcher's hold on its runtime directory. `take` locks it (`launcher_lock.take_lock`); `held` is
    what that returned first.
    """

    def __init__(self, directory: str, logs: str, take: Callable[[], int | None], held: int) -> None:
        self._directory = directory
        self._logs = logs
        self._take = take
        self._held = held
        self._is_taken = False
        self.why = ""
        """The reason why it is gone, a clause."""

    def recheck(self) -> DirState:
        """Check the directory. This is cheap while all is well: it is called at each look."""
        if self._is_taken:
            return "taken"
        if launcher_lock.is_in_place(self._held, self._directory) and os.path.isdir(self._logs):
            return "kept"
        try:
            paths.ensure_private(self._directory)
            paths.ensure_private(self._logs, paths.STATE_VARIABLE)
            if launcher_lock.is_in_place(self._held, self._directory):
                return "put back"
            held = self._take()
        except paths.NotPrivateError as error:
            self.why = str(error)
            return "gone"
        except OSError as error:
            self.why = error.strerror or "no reason given"
            return "gone"
        if held is None:
            self._is_taken = True
            return "taken"
        os.close(self._held)
        self._held = held
        return "put back"

    def is_ours(self) -> bool:
        """True if what lies in the directory is this launcher's."""
        return not self._is_taken and launcher_lock.is_in_place(self._held, self._directory)

    def release(self, *, is_awaited: bool = False) -> None:
        """Release the lock. `is_awaited`: a service manager starts the next launcher."""
        launcher_lock.release_lock(self._held, is_awaited=is_awaited)
