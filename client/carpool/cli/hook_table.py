"""What `carpool status` says of hooks, for people.

Owns the table and the lines under it. Knows nothing of: how the broker is asked.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from carpool.terminal import display

_HEADS = ["HOOK", "LOOKS", "ALLOWED", "DENIED", "REWRITTEN", "FAILED", "TIMEOUTS", "MEDIAN", "RUNS"]


def hook_table(hooks: Iterable[Mapping[str, Any]]) -> str:
    """The table and what is wrong with any; empty where there are none."""
    rows: list[list[str]] = []
    wrong: list[str] = []
    for hook in hooks:
        median_s = hook.get("median_s")
        counts = (hook.get(key, 0) for key in ("allowed", "denied", "rewritten", "failed", "timeouts"))
        rows.append(
            [
                str(hook.get("name", "?")),
                ", ".join(hook.get("on") or []),
                *map(str, counts),
                "—" if median_s is None else f"{median_s * 1000:.1f} ms",
                str(hook.get("running", 0)),
            ]
        )
        if hook.get("problem"):
            effect = "refused" if hook.get("on_failure") == "deny" else "let through"
            text = display.one_line(
                f"hook {rows[-1][0]} fails, its calls are {effect}: {hook['problem']}", 400
            )
            wrong.append(text)
    return "\n".join([table, *wrong]) if (table := _table(rows)) else ""


def _table(rows: list[list[str]]) -> str:
    return display.columns(_HEADS, rows, right=set(_HEADS[2:]))
