"""What time is to a call while its agent is asked.

Owns that the idle deadline of such a call stands still (rule 14), that the server has its whole idle time
again after the last answer, and that a call between two rounds goes on then.

Knows nothing of: what is asked, whose it is (`asks`), how long a call may take (`limits`).
"""

from carpool_supervisor.core.later import Later
from carpool_supervisor.core.limits import Limits
from carpool_supervisor.core.pool import OpenCall


class Standstill:
    """Of all calls in flight."""

    def __init__(self, limits: Limits, later: Later) -> None:
        self._limits = limits
        self._later = later

    def ask_opened(self, opened: OpenCall, now: float, *, in_round: bool) -> None:
        """One more ask of this call is open. The total deadline does not stand still."""
        opened.asks += 1
        if in_round:
            self._later.rest(opened)
        self._limits.stand_still(opened, now)

    def ask_closed(self, opened: OpenCall, now: float) -> None:
        """One less is, and the call goes on: after the last one the server has its whole idle time again."""
        opened.asks -= 1
        if not opened.asks:
            self._limits.restart(opened, now)
            if opened.resting:
                self._later.again(opened)

    def ask_refused(self, opened: OpenCall) -> None:
        """Something of its round was wanted in vain: it is said again, unless more of that is open."""
        if not opened.asks:
            self._later.again(opened)
