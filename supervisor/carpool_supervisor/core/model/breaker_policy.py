"""Restarts after failures: backoff and circuit breaker of a pool (rule 8). Pure functions.

A failure is a transport failure: the process ended by itself, could not be started, did not greet in time or
fell silent. Errors of tools do not count. Instances that ran beside each other and end within a second are
one failure, and one that had answered calls is not counted after its sibling. After each failure the pool
backs off. After `give_up_after` failures in a row the breaker opens, and nothing starts. After `open_s` it is
half open: one instance may start when a call needs it. A failure then opens it again, a success closes it. A
healthy life ends a row of failures. Closing the breaker does not: a failure soon afterwards opens it again at
once.
"""

from collections.abc import Mapping
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from carpool_protocol.link.messages import Breaker, Policy

NODE_OPEN_S: Final = 10.0
"""The longest pause after sessions at another node were refused: to ask again costs no process."""

SAME_FAILURE_S: Final = 1.0
"""Ends of instances that ran beside each other count once within this time."""

BREAKER_MEANING: Final[Mapping[Breaker, str]] = {
    "closed": "instances start as they are needed, after a failure with back-off",
    "open": "nothing starts; calls are refused at once unless an instance still serves",
    "half_open": "one instance starts as a test, at once if a call or a list came while the breaker was open "
    "or the server always runs, else with the next one; it gets one call at a time",
}


class RestartState(Struct, frozen=True):
    """The failures that a pool remembers."""

    failures: int = 0
    """In a row, without a healthy life between."""
    breaker: Breaker = "closed"
    restarts: int = 0
    """Of all time, for `status`."""
    hopeless: bool = False
    """A retry cannot help, for instance because the command does not exist, or a node refuses for good."""
    failed_at: float | None = None
    """The time of the last failure that was counted."""


FRESH = RestartState()


def is_same_failure(state: RestartState, *, spawned_at: float, has_answered: bool, now: float) -> bool:
    """True if the end of this instance is a part of the last failure: it ran beside the one that failed then,
    and ends with it, or had answered calls since. A process that was started after that failure counts anew.
    """
    failed_at = state.failed_at
    if failed_at is None or not state.failures or spawned_at >= failed_at:
        return False
    return has_answered or now - failed_at <= SAME_FAILURE_S


def after_same_failure(state: RestartState) -> RestartState:
    """The next state after an end that `is_same_failure`."""
    return replace(state, restarts=state.restarts + 1) if state.breaker == "closed" else state


def after_failure(
    policy: Policy,
    state: RestartState,
    *,
    lived_s: float,
    jitter: float,
    hopeless: bool = False,
    now: float | None = None,
) -> tuple[RestartState, float]:
    """The next state, and the seconds for which nothing may start.

    `lived_s`: how long the instance had been fit (0 if it never was). `jitter`: uniform in [0, 1); a backoff
    lies between half and the whole of its step. `hopeless`: a retry soon cannot help (no such command). With
    an open breaker and `open_s` 0 the seconds mean nothing.
    """
    was_healthy = lived_s >= policy.healthy_after_s
    failures = 1 if was_healthy else state.failures + 1
    is_shut = state.breaker != "closed" and not was_healthy
    if hopeless or is_shut or failures >= policy.give_up_after:
        opened = replace(state, failures=failures, breaker="open", hopeless=hopeless, failed_at=now)
        return opened, policy.open_s
    step = min(policy.max_delay_s, policy.first_delay_s * 2.0 ** min(failures - 1, 32))
    return RestartState(failures, "closed", state.restarts + 1, failed_at=now), step * (0.5 + jitter / 2)


def after_pause(state: RestartState) -> RestartState:
    """The state after the breaker was open for `open_s`."""
    return replace(state, breaker="half_open") if state.breaker == "open" else state


def after_success(policy: Policy, state: RestartState) -> RestartState:
    """The state after the trial succeeded."""
    failures = min(state.failures, policy.give_up_after - 1)
    return replace(state, breaker="closed", failures=failures, hopeless=False)


def after_operator(state: RestartState) -> RestartState:
    """The state after an operator's start: earlier failures no longer count."""
    return RestartState(0, "closed", state.restarts)
