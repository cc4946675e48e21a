"""The supervisor's decisions, all of them, behind one door.

Composes the roster (instances) and the desk (calls): takes an event, returns the effects in
order, and tells the broker what changed. Pure: time comes in, jitter comes in.

Knows nothing of: how effects are performed.
"""

from typing import assert_never

from carpool_protocol.ids import InstanceId
from carpool_protocol.messages import (
    Call,
    CancelCall,
    Discover,
    Operate,
    PoolChanged,
    PoolReport,
    SetLevel,
    Wanted,
    Watch,
)
from carpool_supervisor.core import hearing, operators
from carpool_supervisor.core.desk import Desk, last_error
from carpool_supervisor.core.effects import AnyEffect
from carpool_supervisor.core.events import (
    AnswerUnreadable,
    AnyEvent,
    BrokerCame,
    CatalogRead,
    ClockJumped,
    GreetingFailed,
    InstanceEvent,
    InstanceExited,
    InstanceGreeted,
    InstanceHeard,
    InstanceSpawned,
    ProbeAnswered,
    ResourceUpdated,
    ServerAnswered,
    ServerLogged,
    ServerMisspoke,
    ServerProgressed,
    SpawnFailed,
    StdinBlocked,
    StdoutClosed,
    StopWanted,
)
from carpool_supervisor.core.lifecycle import State
from carpool_supervisor.core.pool import Instance, Pool, Pools
from carpool_supervisor.core.roster import Roster

SPOKEN = (
    InstanceGreeted,
    CatalogRead,
    AnswerUnreadable,
    ServerProgressed,
    InstanceHeard,
    ProbeAnswered,
    ServerMisspoke,
)
"""Events that came out of an instance: signs of life, like an answer (rule 8)."""


class SupervisorCore:
    """All decisions of one supervisor. See `carpool_protocol.machine.Machine`."""

    def __init__(self) -> None:
        self.pools: Pools = {}
        self._effects: list[AnyEffect] = []
        self.desk = Desk(self.pools, self._out)
        self.roster = Roster(self.pools, self.desk, self._out)
        self.now = 0.0

    def handle(self, event: AnyEvent, now: float) -> list[AnyEffect]:
        """Take one event; return what is to be done, in order."""
        self.now = now
        effects: list[AnyEffect] = []
        self._effects = effects
        # The three events of every call come first: nothing about pools changes with them.
        if type(event) is ServerAnswered:
            self._answered(event, now)
        elif type(event) is InstanceHeard:
            heard = self.roster.instances.get(event.instance)
            if heard is not None:
                self.roster.heard(heard, now)
        elif type(event) is Call:
            pool = self.desk.admit(event, now)
            if pool is not None:
                self.roster.grow(pool, now)
                self._announce(now)
        else:
            self._handle_rare(event, now)
            self._announce(now)
        return effects

    def tick(self, now: float) -> list[AnyEffect]:
        """Time has passed."""
        self.now = now
        effects: list[AnyEffect] = []
        self._effects = effects
        for pool in self.desk.overdue(now):
            self._relax(pool, now)
        self.roster.overdue(now)
        self._announce(now)
        return effects

    def next_deadline(self) -> float | None:
        """When `tick` has something to do at the latest."""
        calls, instances = self.desk.next_deadline(), self.roster.next_deadline()
        if calls is None or instances is None:
            return calls if instances is None else instances
        return min(calls, instances)

    def check(self) -> None:
        """Assert every invariant of every part."""
        self.desk.check()
        self.roster.check()

    def report(self) -> list[PoolReport]:
        """For `status`: all pools, without memory and CPU."""
        return [pool.report(self.now) for pool in self.pools.values()]

    @property
    def quiet(self) -> bool:
        """No process is left."""
        return not self.roster.instances

    # ---------------------------------------------------------------------------------------------------

    def _out(self, effect: AnyEffect) -> None:
        self._effects.append(effect)

    def _handle_rare(self, event: AnyEvent, now: float) -> None:  # noqa: C901 - an arm per event
        match event:
            case Wanted():
                self.roster.want(event, now)
            case Discover():
                self.roster.discover(event.key, now)
            case CancelCall():
                pool = self.desk.cancel(event.call, event.reason, now)
                if pool is not None:
                    self._relax(pool, now)
            case Operate():
                self.roster.operate(event, now)
            case SetLevel():
                if event.key in self.pools:
                    hearing.set_level(self.pools[event.key], event, self._out)
            case Watch():
                if event.key in self.pools:
                    hearing.watch(self.pools[event.key], event, self._out)
            case BrokerCame():
                self.desk.abandon_all(now)
                for pool in self.pools.values():
                    pool.said = None
                    pool.catalog_said = False
                    pool.operations.clear()
                    self._relax(pool, now)
            case ClockJumped():
                for each in self.roster.instances.values():
                    self.roster.doubt(each, now)
            case StopWanted():
                self.roster.close(now)
            case Call():  # pragma: no cover - handled in `handle`
                self.desk.admit(event, now)
            case _:
                instance = self._instance(event.instance)
                if instance is not None:
                    self._handle_instance(instance, event, now)

    def _handle_instance(  # noqa: C901 - an arm per event
        self,
        instance: Instance,
        event: InstanceEvent,
        now: float,
    ) -> None:
        pool = instance.pool
        if isinstance(event, SPOKEN):
            self.roster.heard(instance, now)
        match event:
            case InstanceSpawned():
                self.roster.spawned(instance, event.pid)
            case SpawnFailed():
                self.roster.spawn_failed(instance, event.text, event.jitter, now)
            case InstanceGreeted():
                self.roster.greeted(instance, event.catalog, now)
                hearing.greeted(instance, self._out)
            case GreetingFailed():
                self.roster.condemn(instance, event.text, now)
                self.roster.starts.fill(now)  # it has given back its turn to greet
            case CatalogRead():
                self.roster.learn(pool, event.catalog)
            case ServerAnswered():
                self._answered(event, now)
            case AnswerUnreadable():
                pool.last_error = event.text
                self.desk.unreadable(instance, event.wire, event.fault, event.text, now)
                self._relax(pool, now)
            case ServerProgressed():
                self.desk.progressed(instance, event.wire, event.params, now)
            case ServerLogged():
                hearing.logged(instance, event, self._out)
            case ResourceUpdated():
                hearing.updated(instance, event, self._out)
            case InstanceHeard() | ProbeAnswered():
                pass
            case ServerMisspoke():
                pool.last_error = event.text
            case StdinBlocked():
                instance.blocked = event.blocked
                self.desk.serve(pool, now)
            case StdoutClosed():
                self.roster.muted(instance, now)
            case InstanceExited():
                self.roster.exited(instance, event, now)
            case _:
                assert_never(event)

    def _answered(self, event: ServerAnswered, now: float) -> None:
        instance = self.roster.instances.get(event.instance)
        if instance is None:
            return
        self.roster.heard(instance, now)
        self.desk.answered(instance, event.wire, is_error=event.is_error, body=event.body, now=now)
        if instance.state is State.DRAINING and not instance.in_flight:
            self.roster.relax(instance, now)
        if not instance.pool.wanted:
            self.roster.retire(instance.pool, now)

    def _relax(self, pool: Pool, now: float) -> None:
        for instance in list(pool.instances.values()):
            self.roster.relax(instance, now)

    def _instance(self, instance: InstanceId) -> Instance | None:
        """None for an instance that is gone: late events of a dead process are normal."""
        return self.roster.instances.get(instance)

    def _announce(self, now: float) -> None:
        """Tell the broker, once, what is different from what it was last told."""
        pools = list(self.pools.values())
        for pool in pools:
            if not pool.wanted:
                self.roster.retire(pool, now)
        if len(self.pools) < len(pools):
            self.roster.starts.fill(now)  # others may start only after one that is gone now
        for pool in pools:
            if pool.operations:
                operators.settle(pool, self._out)
            if not pool.wanted:
                continue
            if pool.catalog is not None and not pool.catalog_said:
                pool.catalog_said = True
                self._out(pool.catalog)
            state = pool.state(now)
            reason = "" if state == "serving" else last_error(pool)
            retry_after_s = max(pool.not_before - now, 0.0) if state == "backing_off" else None
            said = pool.said
            if said is None or said.state != state or said.reason != reason:
                pool.said = PoolChanged(pool.key, state, reason, retry_after_s)
                self._out(pool.said)
