"""What `carpool status --json` says of the hooks. A pure function of what the core and the processes tell.

Owns the keys of one row (docs/json.md): they only ever grow.
Knows nothing of: how it is shown to people.
"""

from typing import Any

from carpool_broker.core.hooks.hook_points import Hooks
from carpool_broker.hooks.runner import Hooking


def rows(hooks: Hooks, hooking: Hooking) -> list[dict[str, Any]]:
    """One for each hook, in the order of the file. Counts are since this broker began."""
    found: list[dict[str, Any]] = []
    for name, rule in hooks.rules.items():
        tally, line = hooks.tallies[name], hooks.line_of(name)
        median_s = tally.median_s
        found.append(
            {
                "name": name,
                "on": [phase for phase, on in (("before", rule.before), ("after", rule.after)) if on],
                "match": [each.text for each in rule.match],
                "profiles": list(rule.profiles),
                "on_failure": "deny" if rule.closed else "allow",
                "pid": hooking.pid_of(name),
                "running": line.running,
                "waiting": len(line.waiting),
                "allowed": tally.verdicts["allow"],
                "denied": tally.verdicts["deny"],
                "rewritten": tally.verdicts["rewrite"],
                "failed": tally.verdicts["failed"],
                "timeouts": tally.timeouts,
                "untold": tally.untold,
                "median_s": None if median_s is None else round(median_s, 6),
                "problem": hooking.problem_of(name) or (tally.last_error if tally.is_failing else ""),
            }
        )
    return found
