"""The outcomes with which a call gives its agent a result, as the audit, counters and traces name them.

Owns their names. The other outcomes are `error` (the server answered with an
error), `cancelled`, `unclaimed` and the codes of `kinds`.

Refuses to know: who ends a call, the content of a result.
"""

from typing import Final

ANSWERED: Final = frozenset({"ok", "kept", "task", "input_required"})
"""The agent got a result: at once, after a reconnection, as a task, or as a question of the server."""
