"""Judges from the answers to two sessions if they may share one instance of a server.

Pure. A *transcript* holds the answers to one session: the same calls in the same order, `ROUNDS` times over.
A call counts only if private instances answer it alike at each place. One private run comes *after* the
shared one, so that answers that change with time do not count. If a shared instance then answers differently,
the other session is the cause.
Knows nothing of: how calls are made, words for people.
"""

import json
from collections.abc import Sequence
from typing import Any, Literal

from msgspec import Struct

ROUNDS = 2

Outcome = Literal["agreed", "diverged", "not_deterministic", "failed"]
"""Of one call. `failed`: only errors came, which show nothing."""
Result = Literal["agreed", "diverged", "inconclusive"]
"""Of a probe."""


class ComparedAnswer(Struct, frozen=True):
    """One answer to a call, in a form that can be compared."""

    text: str
    is_error: bool


Transcript = Sequence[ComparedAnswer]
"""By place: round after round, each with all calls in order."""


def compared_answer(result: Any, *, refused: bool = False) -> ComparedAnswer:
    """A tool's result, or (`refused`) a JSON-RPC error. `_meta` is left out: it is about the one request."""
    if not isinstance(result, dict):
        return ComparedAnswer(json.dumps(result), is_error=refused)
    plain = {key: value for key, value in result.items() if key != "_meta"}
    return ComparedAnswer(json.dumps(plain, sort_keys=True), refused or bool(result.get("isError")))


def shared_order(calls: int) -> list[tuple[int, int]]:
    """The order of calls when two sessions share an instance, as (session, call).

    The second session is one round behind the first, so it meets the state that the first has left; then they
    take turns. In step they would hide state that both set alike: each would read its own last write.
    """
    each = range(calls)
    together = [(session, call) for call in each for session in (0, 1)]
    return [(0, call) for call in each] + together * (ROUNDS - 1) + [(1, call) for call in each]


def judge(calls: int, private: Sequence[Transcript], shared: Sequence[Transcript]) -> list[Outcome]:
    """The outcome of each call. `private`: of instances nobody else used; `shared`: of sessions that took
    turns on one instance.
    """
    return [
        _one(
            [[each[place] for place in range(call, ROUNDS * calls, calls)] for each in private],
            [[each[place] for place in range(call, ROUNDS * calls, calls)] for each in shared],
        )
        for call in range(calls)
    ]


def _one(private: list[list[ComparedAnswer]], shared: list[list[ComparedAnswer]]) -> Outcome:
    expected = private[0]
    if any(each != expected for each in private):
        return "not_deterministic"
    if any(each != expected for each in shared):
        return "diverged"
    return "failed" if all(each.is_error for each in expected) else "agreed"


def result_of(outcomes: Sequence[Outcome]) -> Result:
    """The result of a probe: `diverged` if any call did, `agreed` if at least one agreed."""
    if "diverged" in outcomes:
        return "diverged"
    return "agreed" if "agreed" in outcomes else "inconclusive"
