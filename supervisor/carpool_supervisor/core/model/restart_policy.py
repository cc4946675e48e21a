"""Whether and when a pool starts another instance after one has failed: back-off, circuit breaker (rule 8).
Pure functions.

A failure is a transport failure: the process ended by itself, could not be started, did not greet in time
or fell silent. A tool's own errors are none. After each failure the pool backs off. After `give_up_after` of
them in a row the breaker opens: nothing starts. After `open_s` it is half open: one instance may start, when
somebody needs it. A failure then opens it again, a success closes it. In a row means without a healthy life
between; closing is none, so the next failure soon after opens the breaker again at once.
"""

from collections.abc import Mapping
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from carpool_protocol.link.messages import Breaker, Policy

BREAKER_MEANING: Final[Mapping[Breaker, str]] = {
    "closed": "instances start as they are needed, after a failure with back-off",
    "open": "nothing starts; calls are refused at once unless an instance still serves",
    "half_open": "one instance may start when somebody needs it, and is given one call at a time",
}


class RestartState(Struct, frozen=True):
    """What a pool remembers of its failures."""

    failures: int = 0
    """In a row, without a healthy life between."""
    breaker: Breaker = "closed"
    restarts: int = 0
    """Of all time, for `status`."""
    hopeless: bool = False
    """Trying again does not mend the last failure, such as a command that does not exist."""


FRESH = RestartState()


def after_failure(
    policy: Policy, state: RestartState, *, lived_s: float, jitter: float, hopeless: bool = False
) -> tuple[RestartState, float]:
    """The next state, and how many seconds nothing may start.

    `lived_s`: how long the instance had been fit (0 when it never was). `jitter`: uniform in
    [0, 1); a back-off lies between half and the whole of its step. `hopeless`: trying again soon
    cannot help (no such command). With an open breaker and `open_s` 0 the time means nothing.
    """
    was_healthy = lived_s >= policy.healthy_after_s
    failures = 1 if was_healthy else state.failures + 1
    is_shut = state.breaker != "closed" and not was_healthy
    if hopeless or is_shut or failures >= policy.give_up_after:
        return replace(state, failures=failures, breaker="open", hopeless=hopeless), policy.open_s
    step = min(policy.max_delay_s, policy.first_delay_s * 2.0 ** min(failures - 1, 32))
    return RestartState(failures, "closed", state.restarts + 1), step * (0.5 + jitter / 2)


def after_pause(state: RestartState) -> RestartState:
    """The breaker was open for long enough."""
    return replace(state, breaker="half_open") if state.breaker == "open" else state


def after_success(policy: Policy, state: RestartState) -> RestartState:
    """What was let through went well."""
    failures = min(state.failures, policy.give_up_after - 1)
    return replace(state, breaker="closed", failures=failures, hopeless=False)


def after_operator(state: RestartState) -> RestartState:
    """An operator said start: earlier failures no longer count."""
    return RestartState(0, "closed", state.restarts)
