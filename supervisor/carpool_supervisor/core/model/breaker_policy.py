"""Restarts after failures: backoff and circuit breaker of a pool (rule 8). Pure functions.

A failure is a transport failure: the process ended by itself, could not be started, did not greet in time or
fell silent. Errors of tools do not count. After each failure the pool backs off. After `give_up_after`
failures in a row the breaker opens, and nothing starts. After `open_s` it is half open: one instance may
start when a call needs it. A failure then opens it again, a success closes it. A healthy life ends a row of
failures. Closing the breaker does not: a failure soon afterwards opens it again at once.
"""

from collections.abc import Mapping
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from carpool_protocol.link.messages import Breaker, Policy

NODE_OPEN_S: Final = 10.0
"""The longest pause after sessions at another node were refused: to ask again costs no process."""

BREAKER_MEANING: Final[Mapping[Breaker, str]] = {
    "closed": "instances start as they are needed, after a failure with back-off",
    "open": "nothing starts; calls are refused at once unless an instance still serves",
    "half_open": "one instance may start when a call needs it, and gets one call at a time",
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


FRESH = RestartState()


def after_failure(
    policy: Policy, state: RestartState, *, lived_s: float, jitter: float, hopeless: bool = False
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
        return replace(state, failures=failures, breaker="open", hopeless=hopeless), policy.open_s
    step = min(policy.max_delay_s, policy.first_delay_s * 2.0 ** min(failures - 1, 32))
    return RestartState(failures, "closed", state.restarts + 1), step * (0.5 + jitter / 2)


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
