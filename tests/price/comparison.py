"""The comparison of measured prices with those of the list, function by function.

Owns which price is too high (`MOST_ABOVE`), what is recorded, which difference of a function is named, and
the words of the report. A function that is new on the way of a call, entered more often or longer is named
also where the sum is not too high.
Pure. Knows nothing of: how prices are measured and kept.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

from tests.price.price_list import FunctionPrice, PriceList, Way, is_library, total

MOST_ABOVE: Final = 0.02
"""A price may be above what the list allows by this part."""
NOTICED_ENTRIES: Final = 0.05
NOTICED_BYTECODES: Final = 1.0
NOTICED_PART: Final = 0.01
"""Differences per call that are named: smaller ones come from heartbeats, and from how bursts fall. That of a
library is named from this part of the price on, since heartbeats run through it. The part also decides when a
price is so far below the list that the report asks to lower it.
"""

RECORD: Final = "python -m tests.price --record"
ADVICE: Final = f"""\
A price that is more than {MOST_ABOVE:.0%} above what the list allows is too high. Make the functions that are
named above cheaper, or take them off the way of a call. If a promise to users costs this much, run
`{RECORD} --raise` and commit the list by itself, with the name of that promise in the body."""

_NOTHING: Final = FunctionPrice(0, 0)


class ProcessComparison(NamedTuple):
    """The price of one kind of call in one process beside that of the list. Bytecodes are those of a call."""

    kind: str
    process: str
    allowed: float
    measured: float
    dearer: list[str]
    """A line for each function that is new, entered more often or longer."""
    cheaper: list[str]
    """A line for each function that is gone, entered less often or shorter."""

    @property
    def is_listed(self) -> bool:
        """True if the list has a price to compare with."""
        return self.allowed > 0

    @property
    def is_too_high(self) -> bool:
        """True if the price is further above what the list allows than prices that are measured differ."""
        return self.measured > self.allowed * (1 + MOST_ABOVE)

    def lines(self) -> Iterator[str]:
        """Yield the lines of the report."""
        if not self.is_listed:
            yield f"{self.kind} {self.process}: {self.measured:,.0f} bytecodes a call, NOT IN THE LIST"
            return
        part = self.measured / self.allowed - 1
        verdict = "TOO HIGH" if self.is_too_high else "ok"
        yield (
            f"{self.kind} {self.process}: {self.measured:,.0f} bytecodes a call, "
            f"{self.allowed:,.0f} allowed ({part:+.1%}, {verdict})"
        )
        yield from (f"    {line}" for line in (*self.dearer, *self.cheaper))


def compare(listed: PriceList, measured: PriceList) -> list[ProcessComparison]:
    """Compare each kind of call in each process. Libraries of other versions than those of the list are left
    out of both.
    """
    skipped = other_libraries(listed, measured)
    found: list[ProcessComparison] = []
    for kind, processes in measured.prices.items():
        for process, way in processes.items():
            before = listed.prices.get(kind, {}).get(process, {})
            allowed = listed.allowed.get(kind, {}).get(process, 0.0) - total(_only(before, skipped))
            dearer, cheaper = _differences(_without(before, skipped), _without(way, skipped))
            found.append(
                ProcessComparison(kind, process, allowed, total(_without(way, skipped)), dearer, cheaper)
            )
    return found


def other_libraries(listed: PriceList, measured: PriceList) -> set[str]:
    """Return the libraries that are here in another version than in the list."""
    names = listed.libraries.keys() & measured.libraries.keys()
    return {name for name in names if listed.libraries[name] != measured.libraries[name]}


def report(listed: PriceList, measured: PriceList) -> str:
    """Return the whole comparison as text."""
    comparisons = compare(listed, measured)
    lines = [line for each in comparisons for line in each.lines()]
    if skipped := sorted(other_libraries(listed, measured)):
        lines.append(f"not compared, since the list is of other versions: {', '.join(skipped)}")
    if any(each.is_listed and each.is_too_high for each in comparisons):
        lines.append(ADVICE)
    if not all(each.is_listed for each in comparisons):
        lines.append(f"`{RECORD}` adds what is not in the list.")
    if any(each.measured < each.allowed * (1 - NOTICED_PART) for each in comparisons):
        lines.append(f"Some calls have become cheaper: `{RECORD}` lowers the list.")
    return "\n".join(lines)


def has_news(listed: PriceList, measured: PriceList) -> bool:
    """True if the report names a function, or a price that is too high or not listed."""
    return any(each.dearer or each.cheaper or each.is_too_high for each in compare(listed, measured))


def renewed(listed: PriceList, measured: PriceList) -> PriceList:
    """Return the list with the measured functions of each price that is not too high or not yet in it. What
    it allows goes down to what is measured, and never up.

    Libraries of other versions are taken from `measured` everywhere, also into what is allowed.
    """
    skipped = other_libraries(listed, measured)
    prices = {kind: dict(processes) for kind, processes in listed.prices.items()}
    allowed = {kind: dict(processes) for kind, processes in listed.allowed.items()}
    for each in compare(listed, measured):
        now = measured.prices[each.kind][each.process]
        before = prices.setdefault(each.kind, {}).get(each.process, {})
        most = min(each.allowed, each.measured) if each.is_listed else each.measured
        allowed.setdefault(each.kind, {})[each.process] = most + total(_only(now, skipped))
        if each.is_listed and each.is_too_high:
            now = _without(before, skipped) | _only(now, skipped)
        prices[each.kind][each.process] = now
    return PriceList({**listed.libraries, **measured.libraries}, prices, allowed)


def _without(way: Way, skipped: set[str]) -> Way:
    return {name: price for name, price in way.items() if name not in skipped}


def _only(way: Way, skipped: set[str]) -> Way:
    return {name: price for name, price in way.items() if name in skipped}


def _differences(before: Way, now: Way) -> tuple[list[str], list[str]]:
    """Return the lines on functions that are dearer, and on those that are cheaper."""
    listed = total(before)
    dearer: list[tuple[float, str]] = []
    cheaper: list[tuple[float, str]] = []
    for name in sorted(before.keys() | now.keys()):
        old, new = before.get(name, _NOTHING), now.get(name, _NOTHING)
        difference = new.bytecodes - old.bytecodes
        if is_library(name) and abs(difference) < NOTICED_PART * listed:
            continue
        if words := _difference(old, new):
            (dearer if difference > 0 else cheaper).append((-abs(difference), f"{words}: {name}"))
    return [line for _, line in sorted(dearer)], [line for _, line in sorted(cheaper)]


def _difference(old: FunctionPrice, new: FunctionPrice) -> str:
    """Return what differs in words; empty if it is too small to be named."""
    entries, bytecodes = new.entries - old.entries, new.bytecodes - old.bytecodes
    is_other_count = abs(entries) >= max(NOTICED_ENTRIES, NOTICED_PART * old.entries)
    is_other_length = abs(bytecodes) >= max(NOTICED_BYTECODES, NOTICED_PART * old.bytecodes)
    if not is_other_count and not is_other_length:
        return ""
    if not old.bytecodes:
        return f"new on the way, entered {new.entries:.4g} times, {new.bytecodes:.4g} bytecodes"
    if not new.bytecodes:
        return f"no longer on the way, {old.bytecodes:.4g} bytecodes"
    counts = f"{new.entries:.4g} in place of {old.entries:.4g} times"
    lengths = f"{new.bytecodes:.4g} in place of {old.bytecodes:.4g} bytecodes"
    if is_other_count:
        return f"entered {'more' if entries > 0 else 'less'} often, {counts}, {lengths}"
    return f"{'longer' if bytecodes > 0 else 'shorter'}, {lengths}"
