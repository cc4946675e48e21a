"""The account of a run with faults: which calls were sent, how each ended, and what of it really ran.

Each call has a mark that its server writes down when it runs the call. From the calls and the marks follow
the broken promises (`broken`) and the figures of a row.

Owns the arithmetic only: times are given. Knows nothing of: agents, carpool, what went wrong.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from math import ceil
from typing import Final, Literal

from msgspec import Struct

Delivered = Literal["", "no", "maybe", "yes"]
CUT_OFF: Final = "cut_off"
"""The end of a call whose agent lost its own connection: carpool owes it no answer."""


class TalliedCall(Struct):
    """One call."""

    mark: str
    target: str
    """The row of figures in which it counts, such as the node of its server."""
    sent_s: float
    work_s: float = 0.0
    """How long its server works on it."""
    size_bytes: int = 0
    """The size of its answer. More than 0: a big one, whose time is counted apart."""
    ended_s: float | None = None
    """None: it was never answered."""
    code: str = ""
    """The code of its error; empty: its server answered."""
    delivered: Delivered = ""

    @property
    def is_ok(self) -> bool:
        """True if its server answered it."""
        return self.ended_s is not None and not self.code

    @property
    def waited_s(self) -> float:
        """How long it took beyond the work on it."""
        assert self.ended_s is not None
        return max(self.ended_s - self.sent_s - self.work_s, 0.0)


class Figures(Struct, kw_only=True):
    """The row of one target."""

    sent: int
    ok: int
    errors: dict[str, int]
    """The number of each `code/delivered`."""
    maybe: int
    maybe_ran: int
    lost: int
    """Calls that were never answered."""
    twice: int
    """Calls that ran more than once."""
    no_but_ran: int
    """Calls that were told as not delivered, and ran."""
    ok_not_ran: int
    """Calls that were answered, and never ran."""
    pause_s: float
    """The longest time without a good answer while calls wanted one. Big ones do not count."""
    p50_s: float
    p99_s: float
    """The times of good answers that are not big."""
    error_after_s: float
    """The longest time that a call took to end with an error."""
    big: list[str]
    """How each big call ended: its time, or its error and when that came."""
    big_bytes: int
    """The bytes of the big answers that came."""

    @property
    def broken(self) -> int:
        """The number of broken promises."""
        return self.lost + self.twice + self.no_but_ran + self.ok_not_ran


def figures(calls: Sequence[TalliedCall], ran: Counter[str]) -> Figures:
    """Return the row of these calls. `ran`: how often each mark was written down."""
    small = [call for call in calls if not call.size_bytes]
    good = sorted(call.waited_s for call in small if call.is_ok)
    failed = [call for call in calls if call.code]
    maybe = [call for call in failed if call.delivered == "maybe"]
    return Figures(
        sent=len(calls),
        ok=sum(call.is_ok for call in calls),
        errors=dict(Counter(f"{call.code}/{call.delivered}" for call in failed).most_common()),
        maybe=len(maybe),
        maybe_ran=sum(bool(ran[call.mark]) for call in maybe),
        lost=sum(call.ended_s is None for call in calls),
        twice=sum(ran[call.mark] > 1 for call in calls),
        no_but_ran=sum(call.delivered == "no" and bool(ran[call.mark]) for call in failed),
        ok_not_ran=sum(call.is_ok and not ran[call.mark] for call in calls),
        pause_s=longest_pause_s(small),
        p50_s=quantile(good, 0.5),
        p99_s=quantile(good, 0.99),
        error_after_s=max((call.waited_s for call in failed if call.code != CUT_OFF), default=0.0),
        big=[_end_of(call) for call in calls if call.size_bytes],
        big_bytes=sum(call.size_bytes for call in calls if call.is_ok),
    )


def broken(rows: Iterable[Figures]) -> int:
    """Return the number of broken promises of all rows."""
    return sum(row.broken for row in rows)


def quantile(ordered: Sequence[float], part: float) -> float:
    """Return the value below or at which this part of the values is; 0 for none."""
    return ordered[max(ceil(part * len(ordered)) - 1, 0)] if ordered else 0.0


def longest_pause_s(calls: Sequence[TalliedCall]) -> float:
    """Return the longest time without a good answer. It begins when a call could have been answered and none
    was, so not while nobody asks; an error ends no pause.
    """
    answers = sorted(call.ended_s for call in calls if call.is_ok and call.ended_s is not None)
    ends = sorted(call.ended_s for call in calls if call.ended_s is not None)
    if not ends:
        return 0.0
    longest, before = 0.0, float("-inf")
    waiting = sorted(calls, key=lambda call: call.sent_s + call.work_s)
    for answer in [*answers, ends[-1]]:
        due = [call.sent_s + call.work_s for call in waiting if call.ended_s is None or call.ended_s > before]
        if due:
            longest = max(longest, answer - max(before, due[0]))
        before = answer
    return longest


def _end_of(call: TalliedCall) -> str:
    if call.ended_s is None:
        return "no answer"
    took = f"{call.ended_s - call.sent_s:.1f} s"
    return f"{call.code} at {took}" if call.code else took
