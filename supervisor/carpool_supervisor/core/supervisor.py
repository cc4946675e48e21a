"""The supervisor's decisions, all of them, behind one door.

Composes the roster (instances), the desk (calls) and the record (what outlives a broker): takes an event,
returns the effects in order, and tells the broker what changed. Pure: time comes in, jitter comes in.

Knows nothing of: how effects are performed.
"""

from collections.abc import Iterable
from typing import assert_never

from msgspec import Struct

from carpool_protocol.ids import InstanceId
from carpool_protocol.link.messages import (
    AnswerAsk,
    Answered,
    AskProgressed,
    Bereft,
    Call,
    CancelCall,
    CancelTask,
    Discover,
    Failed,
    Fleeting,
    Operate,
    PoolReport,
    Resume,
    SessionGone,
    SessionRekeyed,
    Sessions,
    SetLevel,
    Wanted,
    Watch,
    WatchTasks,
    Written,
)
from carpool_supervisor.core import invariants, subscriptions
from carpool_supervisor.core.broker_failover import Handover
from carpool_supervisor.core.calls.between_rounds import Later
from carpool_supervisor.core.calls.call_record import Record
from carpool_supervisor.core.calls.dispatcher import Desk
from carpool_supervisor.core.calls.leases import Leases
from carpool_supervisor.core.calls.paused_timeouts import Standstill
from carpool_supervisor.core.calls.server_requests import Asks
from carpool_supervisor.core.calls.task_holds import Held
from carpool_supervisor.core.list_throttle import Stale
from carpool_supervisor.core.model.effects import AnyEffect
from carpool_supervisor.core.model.events import (
    PASSING,
    SPOKEN,
    AnswerUnreadable,
    AnyEvent,
    BrokerCame,
    CatalogRead,
    ClockJumped,
    ElicitationEnded,
    EraRefused,
    GreetingFailed,
    InstanceEvent,
    InstanceExited,
    InstanceGreeted,
    InstanceHeard,
    InstanceSpawned,
    ListAsked,
    ListsLost,
    ListsOld,
    MemoryMeasured,
    PoolKnown,
    ProbeAnswered,
    ResourceUpdated,
    ServerAnswered,
    ServerAsked,
    ServerLogged,
    ServerMisspoke,
    ServerNotReady,
    ServerProgressed,
    ServerWithdrew,
    SpawnFailed,
    StdinBlocked,
    StdinBroken,
    StdoutClosed,
    StdoutPaused,
    StopWanted,
    TaskBegan,
    TaskChanged,
    UrlsOffered,
)
from carpool_supervisor.core.model.lifecycle import State
from carpool_supervisor.core.model.pool import Instance, Pool, Pools
from carpool_supervisor.core.pools.instances import Roster
from carpool_supervisor.core.pools.liveness import leave_out_pause
from carpool_supervisor.core.pools.recycling import Recycling
from carpool_supervisor.core.pools.report import report
from carpool_supervisor.core.pools.status import Announcing
from carpool_supervisor.core.pools.targets import Wishes


class SupervisorCore:
    """All decisions of one supervisor. See `carpool_protocol.machine.machine.Machine`."""

    def __init__(self, life: bytes) -> None:
        """`life`: `trace_context.LIFE_BYTES` random bytes, drawn once per supervisor process."""
        self.pools: Pools = {}
        self._effects: list[AnyEffect] = []
        self.asks = Asks(self._out, life)
        self.leases = Leases()
        self.later = Later(self._out)
        self.desk = Desk(self.pools, self.asks, self.leases, self.later, self._out)
        self.standstill = self.asks.standstill = Standstill(self.desk.limits, self.later)
        self.roster = Roster(self.pools, self.desk, self.leases, self._out)
        self.wishes = Wishes(self.pools, self.desk, self.roster, self.leases, self._out)
        self.recycling = Recycling(self.pools, self.roster, self.leases, self._out)
        self.announcing = Announcing(self.pools, self.wishes, self.roster.starts, self._out)
        self.record = Record()
        self.held = Held(self.roster.instances, self.leases, self.roster.relax, self._out)
        self.stale = Stale(self.roster.instances, self._out)
        self.handover = Handover(
            self.record,
            self.desk,
            self.asks,
            self.held,
            pools=self.pools,
            wishes=self.wishes,
            leases=self.leases,
            out=self._out,
        )
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
            pool = self.desk.admit(event, now) if self.record.enter(event) else None
            if pool is not None:
                self.wishes.grow(pool, now)
                self.announcing.tell_all(now)
        elif type(event) is Written:
            self.record.forget(event.calls)
            if self.leases.told:
                self.leases.told.written(event.calls, event.newest)
                self.leases.told.passed(self.desk.lowest(event.oldest))
        elif isinstance(event, PASSING):
            self._passing(event, now)
        else:
            self._handle_rare(event, now)
            self.announcing.tell_all(now)
        return effects

    def tick(self, now: float) -> list[AnyEffect]:
        """Time has passed."""
        self.now = now
        effects: list[AnyEffect] = []
        self._effects = effects
        for pool in self.desk.overdue(now):
            self._relax(pool, now)
        self.asks.overdue(now)
        self.later.overdue(now)
        self.held.overdue(now)
        self.stale.overdue(now)
        self.wishes.overdue(now)
        self.roster.overdue(now)
        self.recycling.overdue(now)
        self.announcing.tell_all(now)
        return effects

    def next_deadline(self) -> float | None:
        """When `tick` has something to do at the latest."""
        earliest = self.desk.next_deadline()
        for part in (self.roster, self.wishes, self.recycling, self.asks, self.later, self.held, self.stale):
            at = part.next_deadline()
            if at is not None and (earliest is None or at < earliest):
                earliest = at
        return earliest

    def check(self) -> None:
        """Assert every invariant of every part."""
        self.desk.check()
        self.asks.check(self.desk.calls.values())
        self.roster.check()
        self.wishes.check()
        self.recycling.check()
        self.later.check(self.desk.calls.values())
        self.held.check()
        self.stale.check()
        self.record.check(self.desk.calls.keys())

    def check_touched(self, event: Struct, effects: Iterable[Struct]) -> None:
        """Assert what must hold of the records that these name."""
        invariants.check_touched(self.desk, self.roster, self.leases, self.pools, (event, *effects))

    def report(self) -> list[PoolReport]:
        """For `status`: all pools, without memory and CPU."""
        return [report(pool, self.now, self.leases) for pool in self.pools.values()]

    @property
    def quiet(self) -> bool:
        """No process is left."""
        return not self.roster.instances

    # ---------------------------------------------------------------------------------------------------

    def _out(self, effect: AnyEffect) -> None:
        self._effects.append(effect)
        kind = type(effect)
        if kind is Answered or kind is Failed:
            self.record.ended(effect)  # type: ignore[arg-type]  # asked of the type itself: 3 x faster

    def _passing(self, event: ServerProgressed | ServerLogged | ResourceUpdated, now: float) -> None:
        instance = self._instance(event.instance)
        if instance is not None:
            was_suspended = instance.suspended
            self._handle_instance(instance, event, now)
            if was_suspended:  # it lives: what waited for it may have gone
                self.announcing.tell_all(now)

    def _handle_rare(self, event: AnyEvent, now: float) -> None:  # noqa: C901 - an arm per event
        match event:
            case Wanted():
                self.wishes.want(event, now)
                if event.complete:
                    subscriptions.forget_old(self.pools.values(), self._out)
            case Discover():
                self.wishes.discover(event, now)
            case CancelCall():
                if event.answered:
                    self.record.answered(event.call)
                else:
                    self.record.forget([event.call])
                    self.wishes.unheard(event.call)
                pool = self.desk.cancel(event.call, event.reason, now)
                if pool is not None:
                    self._relax(pool, now)
            case Resume():
                self.handover.resume(event.call)
            case Operate():
                self.wishes.operate(event, now)
            case SetLevel():
                if event.key in self.pools:
                    subscriptions.set_level(self.pools[event.key], event, self._out)
            case Watch():
                if event.key in self.pools:
                    subscriptions.watch(self.pools[event.key], event, self._out)
            case AnswerAsk():
                self.asks.agent_answered(event, now)
            case AskProgressed():
                self.asks.agent_progressed(event)
            case WatchTasks():
                self.held.watch(event)
            case CancelTask():
                self.held.cancel(event, now)
            case Sessions():
                self.record.fleeting = {note.session for note in event.live if note.fleeting}
                self.wishes.sessions(event, now)
            case Fleeting():
                self.record.fleeting.add(event.session)
            case Bereft():
                self.wishes.bereft(event)
            case SessionRekeyed():
                self.wishes.rekeyed(event, now)
            case SessionGone():
                self.handover.session_gone(event.session, now)
            case PoolKnown():
                self.wishes.know(event, now)
            case BrokerCame():
                self.handover.broker_came(now, same=event.same)
                for pool in self.pools.values():
                    self._relax(pool, now)
            case MemoryMeasured():
                self.recycling.measured(event, now)
            case ClockJumped():
                for each in self.roster.instances.values():
                    self.roster.doubt(each, now)
            case StopWanted():
                self.roster.close(now)
            case Call() | Written():  # pragma: no cover
                pass  # handled in `handle`
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
                self.roster.spawned(instance, event.pid, now)
            case SpawnFailed():
                self.roster.spawn_failed(instance, event, now)
            case InstanceGreeted():
                self.roster.greeted(instance, event.catalog, now)
                self.recycling.greeted(instance, now)
                subscriptions.greeted(instance, self._out)
            case GreetingFailed():
                self.roster.condemn(instance, event.text, now)
                self.roster.starts.fill(now)  # it has given back its turn to greet
            case EraRefused():
                self.roster.eras.refused(instance, event)
            case CatalogRead():
                self.roster.learn(pool, event.catalog, now)
            case ListsOld():
                self.stale.told(instance, now)
            case ListsLost():
                if event.text:
                    pool.erred(event.text)
                self.stale.lost(instance, event.times, now)
            case ListAsked():
                self.stale.asked(instance, event.method, now)
            case ServerAnswered():
                self._answered(event, now)
            case AnswerUnreadable():
                pool.erred(event.text)
                self.desk.unreadable(instance, event.wire, event.fault, event.text, now)
                self._relax(pool, now)
            case ServerProgressed():
                self.desk.progressed(instance, event.wire, event.params, now)
            case ServerLogged():
                subscriptions.logged(instance, event, self._out)
            case ServerAsked():
                if self.asks.server_asked(instance, event, now):
                    self._renew(instance, now)
                elif event.facts.wire is not None:  # nothing of its call runs meanwhile
                    self.desk.freed(instance, now)
            case ServerWithdrew():
                self.asks.server_withdrew(instance, event, now)
            case UrlsOffered():
                self.asks.urls_offered(instance, event)
            case ElicitationEnded():
                self.asks.elicitation_ended(instance, event)
            case TaskBegan():
                self.asks.task_began(instance, event)
            case TaskChanged():
                self.held.changed(instance, event, now)
            case ServerNotReady():
                self.later.wait(instance, event, now)
                self.desk.freed(instance, now)
            case ResourceUpdated():
                subscriptions.updated(instance, event, self._out)
            case InstanceHeard() | ProbeAnswered():
                pass
            case ServerMisspoke():
                pool.erred(event.text)
            case StdinBlocked():
                instance.blocked = event.blocked or instance.is_deaf
                self.desk.serve(pool, now)
            case StdinBroken():
                self.roster.deafened(instance, event, now)
            case StdoutPaused():
                self._reading(instance, now, paused=event.paused)
            case StdoutClosed():
                self.roster.muted(instance, now)
            case InstanceExited():
                self.held.gone(instance)
                self.stale.gone(instance)
                self.roster.exited(instance, event, now)
            case _:
                assert_never(event)

    def _reading(self, instance: Instance, now: float, *, paused: bool) -> None:
        """Nothing that stands in its pipe unread is held against it, nor against its calls."""
        if paused and instance.unread_since is None:
            instance.unread_since = now
            self.standstill.reading_paused(instance, now)
        elif not paused and instance.unread_since is not None:
            leave_out_pause(instance, now)
            self.standstill.reading_resumed(instance, now)

    def _renew(self, instance: Instance, now: float) -> None:
        """What is over for its agent spoils it for others: another one takes its place."""
        self.roster.drain(instance, now)
        self.roster.starts.want(instance.pool)
        self.roster.starts.fill(now)

    def _answered(self, event: ServerAnswered, now: float) -> None:
        instance = self.roster.instances.get(event.instance)
        if instance is None:
            return
        self.roster.heard(instance, now)
        if event.task or event.task_over:
            self.held.answered(instance, event, now)
        self.desk.answered(instance, event, now)
        if event.state_lost:  # its agent has heard it by this
            self.leases.unused(instance.id)
            self._renew(instance, now)
        pool = instance.pool
        if instance.calls >= instance.heeded_at:
            self._heed(instance, now)
        if not instance.in_flight and (instance.state is State.DRAINING or instance.is_deaf):
            self.roster.relax(instance, now)
        if not pool.wanted:
            self.announcing.tell_all(now)
        elif not pool.plain and not instance.in_flight:
            self.wishes.tend(pool, now)
            self.announcing.tell(pool, now)

    def _heed(self, instance: Instance, now: float) -> None:
        """An answer that matters: of one on trial, or of one that has done its time."""
        if instance.pool.trial is instance:
            self.roster.breakers.close(instance.pool, now)
        else:
            self.recycling.look(instance, now)
        self.announcing.tell_all(now)

    def _relax(self, pool: Pool, now: float) -> None:
        for instance in list(pool.instances.values()):
            self.roster.relax(instance, now)

    def _instance(self, instance: InstanceId) -> Instance | None:
        """None for an instance that is gone: late events of a dead process are normal."""
        return self.roster.instances.get(instance)
