"""`docs/states.md`: the life of an instance and the breaker of its pool, as tables made from the code.

Owns the page's shape; what it says is `lifecycle`'s and `restart_policy`'s. Write it again with
`python -m carpool_supervisor.states_page > docs/states.md`.
"""

import sys
from typing import get_args

from carpool_protocol.link.messages import Breaker, Policy
from carpool_supervisor.core.model.lifecycle import (
    ACTIVE,
    ENDING,
    MEANING,
    TABLE,
    InstanceState,
    LifecycleEvent,
)
from carpool_supervisor.core.model.restart_policy import (
    BREAKER_MEANING,
    RestartState,
    after_failure,
    after_operator,
    after_pause,
    after_success,
)
from carpool_supervisor.core.pools.instances import STDIN_GRACE_S, TERM_GRACE_S
from carpool_supervisor.spawn.spawner_child import GRACE_S

_WHEN = {
    LifecycleEvent.SPAWNED: "the process was started",
    LifecycleEvent.GREETED: "it said who it is and what it offers",
    LifecycleEvent.DRAIN: "it is not wanted any more and has calls open",
    LifecycleEvent.STOP: "it is not wanted any more, and nothing is open or the wait for that is over",
    LifecycleEvent.CONDEMN: "it is unfit: no greeting in time, silence, a closed stdin or stdout: a failure",
    LifecycleEvent.GRACE_OVER: "the time to follow our request is over",
    LifecycleEvent.EXITED: "the process has ended and everything it wrote is read",
}


def page() -> str:
    """The whole page."""
    return "\n".join(
        [
            "# The life of an instance",
            "",
            "Made from `supervisor/carpool_supervisor/core/model/lifecycle.py` by"
            " `python -m carpool_supervisor.states_page`; do not edit.",
            "",
            "## States",
            "",
            "| state | meaning | counts for the size of its pool | was asked to end |",
            "|---|---|---|---|",
            *(f"| {s} | {MEANING[s]} | {_mark(s in ACTIVE)} | {_mark(s in ENDING)} |" for s in InstanceState),
            "",
            "## What moves an instance on",
            "",
            "| happening | when |",
            "|---|---|",
            *(f"| {happening} | {_WHEN[happening]} |" for happening in LifecycleEvent),
            "",
            f"A stop closes stdin. The process group gets SIGTERM {STDIN_GRACE_S:g} s later and SIGKILL"
            f" {TERM_GRACE_S:g} s after that. A failure begins with SIGTERM. Processes that a server leaves"
            f" behind get SIGTERM at once and SIGKILL {GRACE_S:g} s later. These times cannot be set.",
            "",
            "## Transitions",
            "",
            "A happening that a row does not name cannot happen there: it would be a bug of ours.",
            "",
            f"| from | {' | '.join(LifecycleEvent)} |",
            f"|---|{'---|' * len(LifecycleEvent)}",
            *(f"| {s} | {' | '.join(TABLE[s].get(h, '') for h in LifecycleEvent)} |" for s in InstanceState),
            "",
            "```mermaid",
            "stateDiagram-v2",
            f"    [*] --> {InstanceState.SPAWNING}",
            *(f"    {s} --> {after}: {h}" for s in InstanceState for h, after in TABLE[s].items()),
            f"    {InstanceState.GONE} --> [*]",
            "```",
            "",
            "## The breaker of a pool",
            "",
            "A failure is a transport failure: the process ended by itself, could not be started, did not"
            " greet in time or fell silent. A call that times out is none, however many do so in a row."
            " Made from `core/model/restart_policy.py`.",
            "",
            "| breaker | meaning | a failure | `restart.give_up_after` in a row | after `restart.open_s`"
            " | a success | `carpool start` |",
            "|---|---|---|---|---|---|---|",
            *(_breaker_row(breaker) for breaker in get_args(Breaker)),
            "",
        ]
    )


def _breaker_row(breaker: Breaker) -> str:
    policy, first = Policy(), RestartState(0, breaker)
    last = RestartState(policy.give_up_after - 1, breaker)
    moves = (
        after_failure(policy, first, lived_s=0.0, jitter=0.0)[0],
        after_failure(policy, last, lived_s=0.0, jitter=0.0)[0],
        after_pause(first),
        after_success(policy, first) if breaker == "half_open" else first,
        after_operator(first),
    )
    told = (each.breaker if each.breaker != breaker else "" for each in moves)
    return f"| {breaker} | {BREAKER_MEANING[breaker]} | {' | '.join(told)} |"


def _mark(holds: bool) -> str:
    return "yes" if holds else ""


if __name__ == "__main__":
    sys.stdout.write(page())
