"""Backoff and circuit breaker of each pool after a failure, and how the breaker closes again (rule 8).

Owns the changes of `Pool.restart` (its states are those of `breaker_policy`) and the trial. If no other
instance serves, the one that a half open breaker let through gets one call at a time until a call has
returned. That instance has succeeded when its first answer comes, when it greets beside others that serve, or
when it has lived for `healthy_after_s`. The breaker prevents starts only: serving instances go on.

Invariant (`check`): an instance on trial serves, and its pool's breaker is half open. Knows nothing of:
processes, how an instance ends, when a start is due (`start_queue`). Decision: docs/decisions/0018.
"""

from collections.abc import Callable

from msgspec.structs import replace

from carpool_supervisor.core.calls.dispatcher import Dispatcher
from carpool_supervisor.core.calls.refusals import cannot_start_text, refusal_now, start_refusal
from carpool_supervisor.core.model.breaker_policy import (
    NODE_OPEN_S,
    after_failure,
    after_same_failure,
    after_success,
    is_same_failure,
)
from carpool_supervisor.core.model.effects import AnyEffect, WriteLogLine
from carpool_supervisor.core.model.lifecycle import InstanceState
from carpool_supervisor.core.model.pool import Instance, Pool
from carpool_supervisor.core.model.pool_table import Pools
from carpool_supervisor.core.pools.start_queue import StartQueue


class CircuitBreakers:
    """The failures of all pools."""

    def __init__(
        self, dispatcher: Dispatcher, start_queue: StartQueue, out: Callable[[AnyEffect], None]
    ) -> None:
        self._dispatcher = dispatcher
        self._start_queue = start_queue
        self._emit = out

    def instance_failed(
        self,
        instance: Instance,
        why: str,
        jitter: float,
        now: float,
        *,
        hopeless: bool = False,
        has_answered: bool = False,
        words: str = "",
    ) -> None:
        """Count the end of this instance as one failure, or as a part of the last one. `has_answered`: it has
        answered a call. `words`: its last words, if they may be told.
        """
        pool = instance.pool
        lived_s = 0.0 if instance.fit_at is None else now - instance.fit_at
        restarts = pool.restart.restarts
        is_same = not hopeless and is_same_failure(
            pool.restart, spawned_at=instance.spawned_at, has_answered=has_answered, now=now
        )
        if is_same:
            pool.restart, pause_s = after_same_failure(pool.restart), max(pool.not_before - now, 0.0)
        else:
            pool.restart, pause_s = after_failure(
                pool.policy, pool.restart, lived_s=lived_s, jitter=jitter, hopeless=hopeless, now=now
            )
        if not is_same or instance.fit_at is not None:  # else the first one says more
            pool.record_error(why, words)
        if pool.is_remote:  # a session is no process: its node counts what has died there
            pool.restart = replace(pool.restart, restarts=restarts)
            pause_s = min(pause_s, NODE_OPEN_S)
        else:
            pool.counts.deaths += 1
            pool.counts.restarts += pool.restart.restarts - restarts
        pool.not_before = now + pause_s
        self._emit(WriteLogLine("warning", f"{pool.server} #{instance.id} {why}", pool.server, instance.id))
        if pool.restart.breaker != "open":
            return
        pool.start_wanted = False
        self._start_queue.breaker_opened(pool, now)
        if pool.serving:
            pool.target = max(pool.active_count(), 1)
            return
        pool.target = 0
        self._dispatcher.fail_waiting(pool, *(refusal_now(pool, now) or start_refusal(pool, now)))
        self._emit(
            WriteLogLine("error", f"{pool.server} is {cannot_start_text(pool)}", pool.server, instance.id)
        )

    def start_wanted(self, pool: Pool, now: float) -> None:
        """The pool is needed and has no serving instance: start one as soon as the breaker allows it."""
        if pool.restart.breaker == "open":
            pool.start_wanted = True
        elif pool.target == 0:
            pool.target = 1
            self._start_queue.enqueue(pool, now)
            self._start_queue.start_queued(now)

    def instance_greeted(self, instance: Instance, now: float) -> None:
        """The instance is fit."""
        pool = instance.pool
        if pool.restart.breaker == "half_open":
            if pool.serving == [instance]:
                pool.set_trial(instance)
            else:
                self.close(pool, now)

    def close(self, pool: Pool, now: float) -> None:
        """Close the breaker: instances start as they are needed."""
        pool.restart = after_success(pool.policy, pool.restart)
        pool.set_trial(None)
        pool.target = max(pool.target, pool.policy.min_instances)
        self._emit(WriteLogLine("info", f"{pool.server} is healthy again", pool.server))
        self._dispatcher.place_waiting(pool, now)
        self._start_queue.enqueue(pool, now)
        self._start_queue.start_queued(now)

    def recheck(self, instance: Instance, now: float) -> None:
        """Close the breaker if this instance has lived well since the breaker was half open."""
        pool = instance.pool
        if pool.restart.breaker == "half_open" and instance.fit_at is not None:
            since = max(instance.fit_at, pool.not_before)
            if now - since >= pool.policy.healthy_after_s:
                self.close(pool, now)

    def instance_left(self, instance: Instance) -> None:
        """The instance serves no more."""
        if instance.pool.trial is instance:
            instance.pool.set_trial(None)

    def check(self, pools: Pools) -> None:
        """Assert every invariant."""
        for pool in pools.values():
            if pool.trial is not None:
                assert pool.trial.state is InstanceState.SERVING, (
                    f"{pool.trial.id} is on trial and does not serve"
                )
                assert pool.restart.breaker == "half_open"
            assert pool.max_in_flight == (1 if pool.trial is not None else pool.policy.max_in_flight)
            if pool.restart.breaker == "open" and pool.policy.open_s and pool.wanted and not pool.stopped:
                assert self._start_queue.closed or self._start_queue.will_start(pool), (
                    f"{pool.key} is open for ever"
                )
