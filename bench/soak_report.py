"""What a soak has measured, as a table, a file and a picture.

Rows: seconds since the start, which carpool, role, pid, PSS in bytes, and how much of that is the process's
own (`bench_procs.own_bytes`): growth is judged by that. The picture needs matplotlib (`missing_for_plot`).
Knows nothing of: how rows come about.
"""

import csv
import math
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

Row = dict[str, Any]
WARM_S = 60.0
"""Start-up: imports, first catalogs, buffers that grow once."""


def write(rows: list[Row], file: Path) -> None:
    """All rows as CSV."""
    file.parent.mkdir(exist_ok=True)
    with file.open("w", newline="") as out:
        writer = csv.DictWriter(out, ["at_s", "carpool", "role", "pid", "pss_bytes", "own_bytes"])
        writer.writeheader()
        writer.writerows(rows)


def growth(rows: list[Row]) -> str:
    """Own memory of the calm carpool's processes at its beginning and its end, as a Markdown table."""
    lines = ["| calm carpool | first tenth | last tenth | growth per hour |", "|---|---|---|---|"]
    for role in sorted({row["role"] for row in rows if row["carpool"] == "calm"}):
        line = [row for row in rows if row["carpool"] == "calm" and row["role"] == role]
        warm = [row for row in line if row["at_s"] > WARM_S] or line
        tenth = max(1, math.ceil(len(warm) / 10))
        first, last = _mean_mb(warm[:tenth]), _mean_mb(warm[-tenth:])
        hours = max(warm[-1]["at_s"] - warm[0]["at_s"], 1.0) / 3600
        lines.append(f"| {role} | {first:.1f} MB | {last:.1f} MB | {(last - first) / hours:+.1f} MB |")
    return "\n".join(lines)


def _mean_mb(rows: list[Row]) -> float:
    return float(sum(row["own_bytes"] for row in rows)) / len(rows) / 1e6


def missing_for_plot() -> str:
    """Return what the picture needs and how to install it; empty if it is there."""
    if find_spec("matplotlib") is not None:
        return ""
    return f"--plot needs matplotlib: {sys.executable} -m pip install 'matplotlib>=3.10'"


def draw(rows: list[Row], file: Path) -> None:
    """The picture: memory of each part of both carpools over time."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "carpool"
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(2, 1, sharex=True, figsize=(9, 6), layout="constrained")
    titles = {"calm": "servers and agents killed", "stormy": "broker and supervisor killed as well"}
    for axis, (name, title) in zip(axes, titles.items(), strict=True):
        for role in sorted({row["role"] for row in rows}):
            line = [row for row in rows if row["carpool"] == name and row["role"] == role]
            minutes = [r["at_s"] / 60 for r in line]
            [drawn] = axis.plot(minutes, [r["own_bytes"] / 1e6 for r in line], label=role, lw=1.2)
            axis.plot(minutes, [r["pss_bytes"] / 1e6 for r in line], color=drawn.get_color(), lw=0.7, ls=":")
        axis.set(ylabel="MB", title=title, ylim=(0, None))
        axis.grid(alpha=0.3)
    axes[0].legend(loc="center", ncols=4, fontsize="small")
    axes[1].set(xlabel="minutes (solid: memory of its own, dotted: PSS)")
    figure.savefig(file, metadata={"Date": None})
