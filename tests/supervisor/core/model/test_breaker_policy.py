"""Restarts of a failed pool: when it starts again, and when it gives up."""

from hypothesis import given, settings
from hypothesis import strategies as st

from carpool_protocol.link.messages import Policy
from carpool_supervisor.core.model.breaker_policy import FRESH, RestartState, after_failure, after_operator
from tests.behaviours import behaviour

POLICY = Policy(give_up_after=5, first_delay_s=0.5, max_delay_s=30.0, healthy_after_s=60.0)
JITTER = st.floats(0, 1, exclude_max=True)
FAILURES = st.integers(0, 2000)


@behaviour("numbers:back-off")
def test_the_delay_doubles_from_half_a_second_between_half_and_whole() -> None:
    state, delays = FRESH, []
    for _ in range(4):
        state, delay_s = after_failure(POLICY, state, lived_s=0.0, jitter=0.0)
        delays.append(delay_s)
    assert delays == [0.25, 0.5, 1.0, 2.0]
    assert state == RestartState(4, "closed", restarts=4)


@behaviour("silence:breaker")
def test_the_fifth_failure_in_a_row_gives_up_and_is_no_restart() -> None:
    state, _ = after_failure(POLICY, RestartState(4, restarts=9), lived_s=1.0, jitter=0.5)
    assert state == RestartState(5, "open", restarts=9)


def test_a_hopeless_failure_gives_up_at_once() -> None:
    state, _ = after_failure(POLICY, FRESH, lived_s=0.0, jitter=0.5, hopeless=True)
    assert state.breaker == "open"


def test_an_operator_makes_earlier_failures_forgotten_but_not_uncounted() -> None:
    assert after_operator(RestartState(5, "open", restarts=7)) == RestartState(0, "closed", restarts=7)


@settings(deadline=None)
@given(FAILURES, JITTER, st.floats(0, 59))
def test_the_delay_is_never_above_the_cap_and_never_nothing(
    failures: int, jitter: float, lived_s: float
) -> None:
    policy = Policy(give_up_after=10_000)
    _, delay_s = after_failure(policy, RestartState(failures), lived_s=lived_s, jitter=jitter)
    assert 0 < delay_s <= policy.max_delay_s


@settings(deadline=None)
@given(FAILURES, JITTER)
def test_more_failures_never_wait_less_at_equal_jitter(failures: int, jitter: float) -> None:
    policy = Policy(give_up_after=10_000)
    _, sooner = after_failure(policy, RestartState(failures), lived_s=0.0, jitter=jitter)
    _, later = after_failure(policy, RestartState(failures + 1), lived_s=0.0, jitter=jitter)
    assert later >= sooner


@behaviour("numbers:healthy")
@settings(deadline=None)
@given(FAILURES, JITTER, st.floats(60, 1e9))
def test_a_healthy_life_makes_it_the_first_failure_again(
    failures: int, jitter: float, lived_s: float
) -> None:
    state, _ = after_failure(POLICY, RestartState(failures, "open"), lived_s=lived_s, jitter=jitter)
    assert state.failures == 1
    assert state.breaker == "closed"


@settings(deadline=None)
@given(st.integers(4, 2000), JITTER, st.floats(0, 59))
def test_enough_failures_always_give_up(failures: int, jitter: float, lived_s: float) -> None:
    state, _ = after_failure(POLICY, RestartState(failures), lived_s=lived_s, jitter=jitter)
    assert state.breaker == "open"
