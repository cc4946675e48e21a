"""The work of the supervisor's core for many servers grows with their number and not with its square."""

from collections.abc import Callable, Sequence

import pytest

from carpool_protocol.ids import CallId, InstanceId, PoolKey, RawJson, SessionId
from carpool_protocol.link.messages import (
    AnswersWritten,
    OpenSessions,
    Policy,
    PoolSpec,
    SessionEnded,
    SessionNote,
    SetPools,
)
from carpool_supervisor.core.model import events as ev
from carpool_supervisor.core.model.effects import CloseStdin, SignalGroup, Spawn, WriteCall
from carpool_supervisor.core.supervisor import SupervisorCore
from tests.behaviours import behaviour
from tests.kit.steps import steps_of
from tests.kit.supervisor_rig import catalog_of, pool_spec, supervisor_core, tool_call

FEW, MANY = 40, 400
"""The numbers of servers or pools that are compared."""
NEARLY_LINEAR = 1.5 * MANY / FEW
"""Work that grew with the square would grow by `(MANY / FEW) ** 2`."""
PERSISTENT = Policy(sharing="session", auto_connect=True)


class ManyPools:
    """A core with many pools whose servers greet at once, end at once, and end when they are asked to."""

    def __init__(self, specs: Sequence[PoolSpec], *, cap: int = 5000, greeting: int = 3) -> None:
        self.core: SupervisorCore = supervisor_core()
        self.now = 100.0
        self.specs = list(specs)
        self.cap, self.greeting = cap, greeting
        self.are_healthy = True
        self.started = 0
        self._todo: list[ev.AnyEvent] = []
        self._feed(ev.BrokerConnected())

    def configure(self, specs: Sequence[PoolSpec] | None = None) -> None:
        """The configuration comes, and everything happens that follows from it at once."""
        specs = self.specs if specs is None else specs
        self._feed(SetPools(list(specs), self.cap, self.greeting))
        self._feed(ev.KnowledgeChanged(tuple(ev.PoolKnowledge(spec.key, None, ()) for spec in specs)))
        self.settle()

    def call_all(self) -> None:
        """Each pool gets a call of an agent of its own, and answers it."""
        for number, spec in enumerate(self.specs, 1):
            self._feed(tool_call(number, spec.key, f"s{number}"))
        self.settle()

    def leave_all(self) -> None:
        """All agents leave, one by one."""
        for number in range(1, len(self.specs) + 1):
            self._feed(SessionEnded(SessionId(f"s{number}")))
        self.settle()

    def settle(self) -> None:
        """Everything happens that the core asked for."""
        while self._todo:
            self._feed(self._todo.pop(0))

    def wait(self, duration_s: float) -> None:
        """Time passes."""
        until = self.now + duration_s
        while (due := self.core.next_deadline()) is not None and due <= until:
            self.now = max(self.now, due)
            self._seen(self.core.tick(self.now))
            self.settle()
        self.now = until

    def _feed(self, event: ev.AnyEvent) -> None:
        self._seen(self.core.handle(event, self.now))

    def _seen(self, effects: Sequence[object]) -> None:
        for effect in effects:
            match effect:
                case Spawn():
                    self.started += 1
                    self._todo.append(ev.InstanceSpawned(effect.instance, 100))
                    if self.are_healthy:
                        self._todo.append(ev.InstanceGreeted(effect.instance, catalog_of(effect.key, "do")))
                    else:
                        self._todo.append(self._exit(effect.instance, 1))
                case WriteCall():
                    self._todo.append(
                        ev.ServerAnswered(effect.instance, effect.wire, is_error=False, body=RawJson(b"{}"))
                    )
                    self._todo.append(AnswersWritten([effect.call.call], CallId(10_000), CallId(10_000)))
                case CloseStdin() | SignalGroup():
                    self._todo.append(self._exit(effect.instance, 0))
                case _:
                    pass

    def _exit(self, instance: InstanceId, code: int) -> ev.InstanceExited:
        return ev.InstanceExited(instance, f"ended with exit code {code}", (), "", 0.5)


def servers(count: int, policy: Policy = PERSISTENT) -> list[PoolSpec]:
    """As many servers, with a pool each."""
    return [pool_spec(PoolKey(f"server{number}:plain"), policy) for number in range(count)]


def versions(count: int, policy: Policy = PERSISTENT) -> list[PoolSpec]:
    """One server with as many pools, as for agents with different environments."""
    return [pool_spec(PoolKey(f"server:{number}"), policy) for number in range(count)]


def ends_at_once(pools: ManyPools) -> Callable[[], None]:
    pools.are_healthy = False
    return pools.configure


def comes_up(pools: ManyPools) -> Callable[[], None]:
    return pools.configure


def comes_up_at_the_cap(pools: ManyPools) -> Callable[[], None]:
    pools.cap = 20
    return pools.configure


def is_called(pools: ManyPools) -> Callable[[], None]:
    pools.configure()
    return pools.call_all


def is_left(pools: ManyPools) -> Callable[[], None]:
    pools.configure()
    pools.call_all()
    return pools.leave_all


def is_configured_again(pools: ManyPools) -> Callable[[], None]:
    pools.configure()
    pools.call_all()
    return pools.configure


def is_removed(pools: ManyPools) -> Callable[[], None]:
    pools.configure()
    pools.call_all()
    return lambda: pools.configure([])


def stands_still(pools: ManyPools) -> Callable[[], None]:
    pools.configure()
    pools.call_all()
    return lambda: pools.wait(20.0)


def loses_its_agents(pools: ManyPools) -> Callable[[], None]:
    pools.configure()
    pools.call_all()

    def go() -> None:
        pools._feed(OpenSessions([SessionNote(SessionId("other"))]))
        pools.settle()

    return go


HAPPENINGS = [
    comes_up,
    comes_up_at_the_cap,
    ends_at_once,
    is_called,
    is_left,
    is_configured_again,
    is_removed,
    stands_still,
    loses_its_agents,
]


@behaviour("supervisor:many")
@pytest.mark.parametrize("policy", [PERSISTENT, Policy(auto_connect=True)], ids=["session", "concurrent"])
@pytest.mark.parametrize("specs", [servers, versions], ids=["servers", "versions of a server"])
@pytest.mark.parametrize("happening", HAPPENINGS, ids=lambda each: each.__name__.replace("_", " "))
def test_the_work_for_all_servers_grows_with_their_number(
    happening: Callable[[ManyPools], Callable[[], None]],
    specs: Callable[[int, Policy], list[PoolSpec]],
    policy: Policy,
) -> None:
    few = steps_of(happening(ManyPools(specs(FEW, policy))))
    many = steps_of(happening(ManyPools(specs(MANY, policy))))
    assert many <= NEARLY_LINEAR * few, f"{few} steps for {FEW}, {many} for {MANY}"
