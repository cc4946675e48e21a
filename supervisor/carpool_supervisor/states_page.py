"""`docs/states.md`: the life of an instance as a table and a diagram, made from the code.

Owns the page's shape; what it says is `core.lifecycle`'s. Write it again with
`python -m carpool_supervisor.states_page > docs/states.md`.
"""

import sys

from carpool_supervisor.core.lifecycle import ACTIVE, ENDING, MEANING, TABLE, Happening, State

_WHEN = {
    Happening.SPAWNED: "the process was started",
    Happening.GREETED: "it said who it is and what it offers",
    Happening.DRAIN: "it is not wanted any more and has calls open",
    Happening.STOP: "it is not wanted any more, and nothing is open or the wait for that is over",
    Happening.CONDEMN: "it is unfit: no greeting in time, silence, a closed stdout; this counts as a failure",
    Happening.GRACE_OVER: "the time to follow our request is over",
    Happening.EXITED: "the process has ended and everything it wrote is read",
}


def page() -> str:
    """The whole page."""
    return "\n".join(
        [
            "# The life of an instance",
            "",
            "Made from `supervisor/carpool_supervisor/core/lifecycle.py` by"
            " `python -m carpool_supervisor.states_page`; do not edit.",
            "",
            "## States",
            "",
            "| state | meaning | counts for the size of its pool | was asked to end |",
            "|---|---|---|---|",
            *(f"| {s} | {MEANING[s]} | {_mark(s in ACTIVE)} | {_mark(s in ENDING)} |" for s in State),
            "",
            "## What moves an instance on",
            "",
            "| happening | when |",
            "|---|---|",
            *(f"| {happening} | {_WHEN[happening]} |" for happening in Happening),
            "",
            "## Transitions",
            "",
            "A happening that a row does not name cannot happen there: it would be a bug of ours.",
            "",
            f"| from | {' | '.join(Happening)} |",
            f"|---|{'---|' * len(Happening)}",
            *(f"| {s} | {' | '.join(TABLE[s].get(h, '') for h in Happening)} |" for s in State),
            "",
            "```mermaid",
            "stateDiagram-v2",
            f"    [*] --> {State.SPAWNING}",
            *(f"    {s} --> {after}: {h}" for s in State for h, after in TABLE[s].items()),
            f"    {State.GONE} --> [*]",
            "```",
            "",
        ]
    )


def _mark(holds: bool) -> str:
    return "yes" if holds else ""


if __name__ == "__main__":
    sys.stdout.write(page())
