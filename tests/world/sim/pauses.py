"""When processes of the simulated world were stopped, and how long: nobody owes anything for that time.

Owns the pauses of both daemons. Knows nothing of: which one was stopped, what was late for it.
"""


class Pauses:
    """All pauses of a run, in seconds of the world."""

    def __init__(self) -> None:
        self._all: list[tuple[float, float]] = []

    def add(self, begin: float, end: float) -> None:
        """From then to then a process did not run."""
        self._all.append((begin, end))

    def took_s(self, since: float, now: float) -> float:
        """How long something took, without the pauses in between."""
        stood = sum(max(0.0, min(end, now) - max(begin, since)) for begin, end in self._all)
        return now - since - stood
