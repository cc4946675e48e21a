"""An allowance that grows with time: so much in a second in the long run, and so much at once.

Owns what is left of it. It may be overdrawn, and is paid back by waiting. Pure: time is a parameter.
Knows nothing of: what is counted, whose it is, what becomes of what it does not allow.
"""


class Allowance:
    """One allowance, whole at first."""

    __slots__ = ("_at", "_most", "_per_s", "left")

    def __init__(self, per_s: float, most: float) -> None:
        """`per_s`: what comes back in a second. `most`: what is saved up at most."""
        self._per_s = per_s
        self._most = most
        self._at = 0.0
        self.left = float(most)
        """What is left, as of the last `refill`. Callers take what they use from it."""

    def refill(self, now: float) -> float:
        """Add what has come back since the last time, and return what is left."""
        self.left = min(self.left + max(now - self._at, 0.0) * self._per_s, self._most)
        self._at = now
        return self.left

    def wait_s(self, needed: float) -> float:
        """Return the seconds after the last `refill` until so much is left."""
        return max(needed - self.left, 0.0) / self._per_s
