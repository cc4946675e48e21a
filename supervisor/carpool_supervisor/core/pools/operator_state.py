"""The commands of operators for a pool (`start`, `stop`, `restart`), until they have taken effect.

Owns the commands that have not taken effect yet: each is answered with `OperationEnded` exactly once. Stands
apart because `targets` takes commands and `status` ends them. Knows nothing of: how instances start and end.
"""

from collections.abc import Callable, Iterator

from carpool_protocol.link.messages import Operate, OperationEnded
from carpool_supervisor.core.calls.refusals import cannot_start_text
from carpool_supervisor.core.model.breaker_policy import after_operator
from carpool_supervisor.core.model.effects import AnyEffect
from carpool_supervisor.core.model.pool import Pool


def begin_operation(pool: Pool, command: Operate) -> None:
    """Record a command. `start` and `restart` also forget earlier failures."""
    pool.operations.append((command.token, command.verb, pool.generations))
    if command.verb == "stop":
        pool.stopped = True
        pool.target = 0
        return
    pool.stopped = False
    pool.restart = after_operator(pool.restart)
    pool.not_before, pool.start_wanted = 0.0, False
    pool.set_trial(None)
    if command.verb == "restart" or pool.target == 0:
        pool.target = max(pool.target, pool.policy.min_instances, 1)


def finished_operations(pool: Pool) -> Iterator[OperationEnded]:
    """The answers to commands that have taken effect or cannot. These commands are then over."""
    waiting, pool.operations = pool.operations, []
    for token, verb, generation in waiting:
        answer = _effect_of(pool, verb, generation)
        if answer is None:
            pool.operations.append((token, verb, generation))
        else:
            yield OperationEnded(token, *answer)


def end_operations(pool: Pool, out: Callable[[AnyEffect], None]) -> None:
    """End all commands, because the pool is removed."""
    for token, verb, _ in pool.operations:
        out(OperationEnded(token, ok=verb == "stop", text="is no longer configured"))
    pool.operations = []


def _effect_of(pool: Pool, verb: str, generation: int) -> tuple[bool, str] | None:
    if verb == "stop":
        if not pool.stopped:
            return False, "was started again meanwhile"
        return None if pool.instances else (True, "stopped")
    if pool.stopped:
        return False, "was stopped meanwhile"
    if pool.restart.breaker == "open":
        return False, cannot_start_text(pool)
    if verb == "start" and pool.relisting in pool.serving:
        return None
    if pool.serving and (verb == "start" or any(i.generation > generation for i in pool.serving)):
        return True, "serving"
    return None
