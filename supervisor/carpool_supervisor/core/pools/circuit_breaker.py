"""What follows from a failure: back-off, the circuit breaker of each pool, and how it closes again (rule 8).

Owns the moves of `Pool.restart` (the states are `restart_policy`'s) and the trial: where nothing else
serves, the instance that a half open breaker let through is given one call at a time until one has come
back. What was let through has succeeded when its first answer comes, when it greets beside others that
serve, or when it has lived for `healthy_after_s`. The breaker holds back starts: what serves goes on
serving.

Invariant (`check`): an instance on trial serves, and its pool's breaker is half open.
Knows nothing of: processes, how an instance ends, when a start is due (`start_queue`).
Decision: docs/decisions/0018.
"""

from collections.abc import Callable

from carpool_supervisor.core.calls.dispatcher import Desk
from carpool_supervisor.core.calls.refusals import broken, broken_text, no_entry
from carpool_supervisor.core.model.effects import AnyEffect, Note
from carpool_supervisor.core.model.lifecycle import State
from carpool_supervisor.core.model.pool import Instance, Pool, Pools
from carpool_supervisor.core.model.restart_policy import after_failure, after_success
from carpool_supervisor.core.pools.start_queue import Starts


class Breakers:
    """The failures of all pools."""

    def __init__(self, desk: Desk, starts: Starts, out: Callable[[AnyEffect], None]) -> None:
        self._desk = desk
        self._starts = starts
        self._out = out

    def failed(
        self,
        instance: Instance,
        why: str,
        jitter: float,
        now: float,
        *,
        hopeless: bool = False,
        words: str = "",
    ) -> None:
        """This instance, which is gone, was one failure. `words`: its last ones, where they may be told."""
        pool = instance.pool
        lived_s = 0.0 if instance.fit_at is None else now - instance.fit_at
        pool.erred(why, words)
        pool.restart, pause_s = after_failure(
            pool.policy, pool.restart, lived_s=lived_s, jitter=jitter, hopeless=hopeless
        )
        pool.not_before = now + pause_s
        self._out(Note("warning", f"{pool.server} #{instance.id} {why}", pool.server, instance.id))
        if pool.restart.breaker != "open":
            return
        pool.missed = False
        self._starts.hold(pool, now)
        if pool.serving:
            pool.target = max(pool.active(), 1)
            return
        pool.target = 0
        self._desk.fail_waiting(pool, *(no_entry(pool, now) or broken(pool, now)))
        self._out(Note("error", f"{pool.server} is {broken_text(pool)}", pool.server, instance.id))

    def missed(self, pool: Pool, now: float) -> None:
        """Somebody needs this pool, and nothing serves: one start as soon as the breaker lets it."""
        if pool.restart.breaker == "open":
            pool.missed = True
        elif pool.target == 0:
            pool.target = 1
            self._starts.want(pool)
            self._starts.fill(now)

    def greeted(self, instance: Instance, now: float) -> None:
        """It is fit."""
        pool = instance.pool
        if pool.restart.breaker == "half_open":
            if pool.serving == [instance]:
                pool.try_out(instance)
            else:
                self.close(pool, now)

    def close(self, pool: Pool, now: float) -> None:
        """All is well again: instances start as they are needed."""
        pool.restart = after_success(pool.policy, pool.restart)
        pool.try_out(None)
        pool.target = max(pool.target, pool.policy.min_instances)
        self._out(Note("info", f"{pool.server} is well again"))
        self._desk.serve(pool, now)
        self._starts.want(pool)
        self._starts.fill(now)

    def look(self, instance: Instance, now: float) -> None:
        """Whether the breaker closes because this instance has lived well since it was half open."""
        pool = instance.pool
        if pool.restart.breaker == "half_open" and instance.fit_at is not None:
            since = max(instance.fit_at, pool.not_before)
            if now - since >= pool.policy.healthy_after_s:
                self.close(pool, now)

    def left(self, instance: Instance) -> None:
        """It serves no more."""
        if instance.pool.trial is instance:
            instance.pool.try_out(None)

    def check(self, pools: Pools) -> None:
        """Assert every invariant."""
        for pool in pools.values():
            if pool.trial is not None:
                assert pool.trial.state is State.SERVING, f"{pool.trial.id} is on trial and does not serve"
                assert pool.restart.breaker == "half_open"
            assert pool.room == (1 if pool.trial is not None else pool.policy.max_in_flight)
            if pool.restart.breaker == "open" and pool.policy.open_s and pool.wanted and not pool.stopped:
                assert self._starts.closed or self._starts.remembers(pool), f"{pool.key} is open for ever"
