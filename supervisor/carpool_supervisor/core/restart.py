"""Whether and when a pool starts another instance after one has failed. A pure function.

A failure is a transport failure: the process ended by itself, could not be started, did not
greet in time or fell silent. A tool's own errors are none (rule 8).
"""

from msgspec import Struct
from msgspec.structs import replace

from carpool_protocol.messages import Policy


class RestartState(Struct, frozen=True):
    """What a pool remembers of its failures."""

    failures: int = 0
    """In a row, without a healthy life between."""
    given_up: bool = False
    restarts: int = 0
    """Of all time, for `status`."""


FRESH = RestartState()


def after_failure(
    policy: Policy, state: RestartState, *, lived_s: float, jitter: float, hopeless: bool = False
) -> tuple[RestartState, float]:
    """The next state, and the delay in seconds before the next start.

    `lived_s`: how long the instance had been fit (0 when it never was). `jitter`: uniform in
    [0, 1); the delay lies between half and the whole of the step. `hopeless`: trying again
    cannot help (no such command). The delay means nothing when the state has given up.
    """
    failures = 1 if lived_s >= policy.healthy_after_s else state.failures + 1
    if hopeless or failures >= policy.give_up_after:
        return replace(state, failures=failures, given_up=True), 0.0
    step = min(policy.max_delay_s, policy.first_delay_s * 2.0 ** min(failures - 1, 32))
    return RestartState(failures, given_up=False, restarts=state.restarts + 1), step * (0.5 + jitter / 2)


def after_operator(state: RestartState) -> RestartState:
    """An operator said start: earlier failures no longer count."""
    return RestartState(0, given_up=False, restarts=state.restarts)
