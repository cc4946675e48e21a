"""Figures of a bench as tables for people and as one JSON object for programs.

Owns the summary: medians over the rounds, and ratios taken within each round before their median, so
that a slow moment of the machine hits both sides of a ratio. Pure: no clock, no I/O.
Knows nothing of: arms, processes, how a figure was measured.
"""

import math
import statistics
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from carpool.bench.scenarios import FirstCalls, WindowSample
from carpool.terminal import display


class ArmSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One arm in one scenario, over all rounds: medians. Sizes in bytes, times as named."""

    calls_per_s: float
    p50_s: float
    p99_s: float
    ratios: dict[str, float]
    """Calls/s to each other arm's: the median of the ratios within each round."""
    cpu_us_per_call: dict[str, float]
    cpu_us_per_call_total: float
    """All roles together, the driver left out."""
    driver_cpu_us_per_call: float
    pss_bytes: dict[str, int]
    """All processes of a role together."""
    pss_bytes_each: dict[str, int]
    """The median process of a role."""
    processes: dict[str, int]
    errors: dict[str, int]
    unanswered: int
    rounds: int


def median(values: Iterable[float]) -> float:
    """The median of what is a number; nan of nothing."""
    known = [value for value in values if not math.isnan(value)]
    return statistics.median(known) if known else math.nan


def ratios(mine: Sequence[WindowSample], others: dict[str, list[WindowSample]]) -> dict[str, float]:
    """Calls/s of one arm to each other arm's, paired by round."""
    by_round = {sample.round: sample.calls_per_s for sample in mine}
    return {
        name: median(
            by_round[other.round] / other.calls_per_s
            for other in theirs
            if other.round in by_round and other.calls_per_s
        )
        for name, theirs in others.items()
    }


def _cell(mine: list[WindowSample], others: dict[str, list[WindowSample]]) -> ArmSummary:
    roles = sorted({role for sample in mine for role in {**sample.cpu_us_per_call, **sample.pss_bytes}})
    errors: dict[str, int] = {}
    for sample in mine:
        for kind, count in sample.errors.items():
            errors[kind] = errors.get(kind, 0) + count
    weighed = {role: [s.pss_bytes[role] for s in mine if s.pss_bytes.get(role)] for role in roles}
    return ArmSummary(
        calls_per_s=median(s.calls_per_s for s in mine),
        p50_s=median(s.p50_s for s in mine),
        p99_s=median(s.p99_s for s in mine),
        ratios=ratios(mine, others),
        cpu_us_per_call={
            role: median(s.cpu_us_per_call[role] for s in mine if role in s.cpu_us_per_call) for role in roles
        },
        cpu_us_per_call_total=median(sum(s.cpu_us_per_call.values()) for s in mine),
        driver_cpu_us_per_call=median(s.driver_cpu_us_per_call for s in mine),
        pss_bytes={role: int(median(sum(sizes) for sizes in all_)) for role, all_ in weighed.items() if all_},
        pss_bytes_each={
            role: int(median(size for sizes in all_ for size in sizes))
            for role, all_ in weighed.items()
            if all_
        },
        processes={role: max(map(len, all_)) for role, all_ in weighed.items() if all_},
        errors=errors,
        unanswered=sum(s.unanswered for s in mine),
        rounds=len(mine),
    )


def summarise(samples: Sequence[WindowSample]) -> dict[str, dict[str, ArmSummary]]:
    """Scenario to arm to its figures, in the order in which they were first measured."""
    grouped: dict[str, dict[str, list[WindowSample]]] = {}
    for sample in samples:
        grouped.setdefault(sample.scenario, {}).setdefault(sample.arm, []).append(sample)
    return {
        scenario: {
            arm: _cell(mine, {name: theirs for name, theirs in arms.items() if name != arm})
            for arm, mine in arms.items()
        }
        for scenario, arms in grouped.items()
    }


def first_calls(firsts: Sequence[FirstCalls]) -> dict[str, dict[str, float]]:
    """Arm to its medians of `cold_s` and `warm_s`."""
    arms = dict.fromkeys(first.arm for first in firsts)
    return {
        arm: {
            "cold_s": median(first.cold_s for first in firsts if first.arm == arm),
            "warm_s": median(first.warm_s for first in firsts if first.arm == arm),
        }
        for arm in arms
    }


def slower(summary: dict[str, dict[str, ArmSummary]], earlier: dict[str, Any], band: float) -> list[str]:
    """Where a ratio to another arm fell below `band` times what an earlier run's JSON says.

    Only ratios are compared: they hold across machines and loads, absolute figures do not.
    """
    return [
        f"{scenario} {arm}: {now:.2f} of {base}, was {before:.2f}"
        for scenario, arms in summary.items()
        for arm, cell in arms.items()
        if arm.startswith("carpool")
        for base, now in cell.ratios.items()
        if (before := _ratio_then(earlier, scenario, arm, base)) is not None and now < band * before
    ]


def _ratio_then(earlier: dict[str, Any], scenario: str, arm: str, base: str) -> float | None:
    value = earlier.get("summary", {}).get(scenario, {}).get(arm, {}).get("ratios", {}).get(base)
    return float(value) if isinstance(value, int | float) else None


# --- how a figure is written -----------------------------------------------------------------------------


def count(value: float) -> str:
    """`12,300`: three digits that mean something."""
    if math.isnan(value):
        return "-"
    if value >= 1000:
        digits = len(str(int(value))) - 3
        return f"{round(value, -digits):,.0f}"
    return f"{value:.3g}"


def milliseconds(value_s: float) -> str:
    """`0.42 ms`."""
    if math.isnan(value_s):
        return "-"
    value = value_s * 1e3
    return f"{value:.0f} ms" if value >= 100 else f"{value:.3g} ms"


def megabytes(size_bytes: float) -> str:
    """`31.4 MB` (10^6)."""
    return f"{size_bytes / 1e6:.1f} MB"


def ratio(value: float | None) -> str:
    """`0.62`, two decimals; three where it is small."""
    if value is None or math.isnan(value):
        return "-"
    return f"{value:.3f}" if value < 0.1 else f"{value:.2f}"


def _errors(cell_errors: dict[str, int], unanswered: int) -> str:
    parts = [f"{kind}: {number}" for kind, number in cell_errors.items()]
    if unanswered:
        parts.append(f"unanswered: {unanswered}")
    return "; ".join(parts)


# --- tables ----------------------------------------------------------------------------------------------

Table = tuple[list[str], list[list[str]]]
"""Heads and rows."""


def speed_table(summary: dict[str, dict[str, ArmSummary]], bases: Sequence[str]) -> Table:
    """Calls/s, latencies and ratios, a row for each scenario and arm."""
    shown = [base for base in bases if any(base in arms for arms in summary.values())]
    heads = ["agents x in flight", "arm", "calls/s", "p50", "p99", *(f"/ {base}" for base in shown)]
    rows = [
        [
            scenario,
            arm,
            count(cell.calls_per_s),
            milliseconds(cell.p50_s),
            milliseconds(cell.p99_s),
            *("1" if arm == base else ratio(cell.ratios.get(base)) for base in shown),
        ]
        for scenario, arms in summary.items()
        for arm, cell in arms.items()
    ]
    return heads, rows


def cost_table(summary: dict[str, dict[str, ArmSummary]]) -> Table:
    """CPU per call and memory by role, a row for each scenario and arm."""
    heads = ["agents x in flight", "arm", "CPU per call, µs", "driver, µs", "PSS"]
    rows = []
    for scenario, arms in summary.items():
        for arm, cell in arms.items():
            cpu = ", ".join(f"{role} {spent:.1f}" for role, spent in cell.cpu_us_per_call.items())
            pss = ", ".join(_memory(cell, role) for role in cell.pss_bytes)
            rows.append([scenario, arm, cpu or "-", f"{cell.driver_cpu_us_per_call:.1f}", pss or "-"])
    return heads, rows


def _memory(cell: ArmSummary, role: str) -> str:
    number = cell.processes[role]
    whole = megabytes(cell.pss_bytes[role])
    return (
        f"{role} {whole}"
        if number == 1
        else f"{number} {role} {whole} (each {megabytes(cell.pss_bytes_each[role])})"
    )


def first_table(firsts: dict[str, dict[str, float]]) -> Table:
    """First-call times."""
    rows = [[arm, milliseconds(each["cold_s"]), milliseconds(each["warm_s"])] for arm, each in firsts.items()]
    return ["arm", "first call, cold", "first call, warm"], rows


def error_lines(summary: dict[str, dict[str, ArmSummary]]) -> list[str]:
    """One line for each scenario and arm in which something went wrong."""
    return [
        f"{scenario} {arm}: {_errors(cell.errors, cell.unanswered)}"
        for scenario, arms in summary.items()
        for arm, cell in arms.items()
        if cell.errors or cell.unanswered
    ]


def one_sample(sample: WindowSample) -> Table:
    """One window, a row for each figure: what `carpool bench TOOL` prints."""
    rows = [
        ["calls/s", count(sample.calls_per_s)],
        ["calls", f"{sample.calls:,} in {sample.seconds:.2f} s"],
        ["p50", milliseconds(sample.p50_s)],
        ["p90", milliseconds(sample.p90_s)],
        ["p99", milliseconds(sample.p99_s)],
        ["max", milliseconds(sample.max_s)],
        ["errors", _errors(sample.errors, sample.unanswered) or "none"],
    ]
    rows += [[f"CPU per call, {role}", f"{spent:.1f} µs"] for role, spent in sample.cpu_us_per_call.items()]
    rows += [
        [f"PSS, {role}" if len(sizes) == 1 else f"PSS, {len(sizes)} {role}", megabytes(sum(sizes))]
        for role, sizes in sample.pss_bytes.items()
    ]
    rows.append(["CPU per call, the bench itself", f"{sample.driver_cpu_us_per_call:.1f} µs"])
    return ["", sample.scenario], rows


def markdown(table: Table) -> str:
    """A table for a page."""
    heads, rows = table
    lines = ["| " + " | ".join(row) + " |" for row in [heads, ["---"] * len(heads), *rows]]
    return "\n".join(lines)


def plain(table: Table) -> str:
    """A table for a terminal, which fits it."""
    heads, rows = table
    text = display.columns(heads, rows)
    return text if any(heads) else text.partition("\n")[2]


def builtins(value: Any) -> Any:
    """A struct, or a list of them, as JSON's own types."""
    return msgspec.to_builtins(value)


def finite(value: Any) -> Any:
    """Builtins with every nan as None: JSON has no nan."""
    if isinstance(value, dict):
        return {key: finite(each) for key, each in value.items()}
    if isinstance(value, list):
        return [finite(each) for each in value]
    return None if isinstance(value, float) and math.isnan(value) else value


def as_json(
    samples: Sequence[WindowSample], firsts: Sequence[FirstCalls], machine: dict[str, Any]
) -> dict[str, Any]:
    """Everything, with stable keys: `machine`, `summary`, `first_calls`, `samples`."""
    return {
        "machine": machine,
        "summary": finite(msgspec.to_builtins(summarise(samples))),
        "first_calls": finite(first_calls(firsts)),
        "samples": finite(msgspec.to_builtins(list(samples))),
    }
