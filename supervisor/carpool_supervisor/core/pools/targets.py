"""The targets of pools: set by the configuration, by calls, by operators and by the end of sessions.

Owns the set of pools and the `target` of each, and adjusts the pools that are not plain. After each event
that may matter to such a pool, `adjust_pool` brings it to its mode and its demand, whatever the event was.
`start_queue` starts instances up to the target, `instances` ends them.

Invariants (`check`): in mode `session` a serving instance is leased, a spare, or was used before the pool
began to lease; in all other modes no serving instance is leased, and no session waits for a lease.

Knows nothing of: single calls, processes, JSON.
"""

from collections.abc import Callable, Iterable, Sequence, Set
from typing import Final

from carpool_protocol.ids import CallId, InstanceId, PoolKey, ServerName, SessionId
from carpool_protocol.link.messages import (
    DiscoverCatalog,
    OpenSessions,
    Operate,
    OperationEnded,
    Policy,
    PoolSpec,
    SessionAbsent,
    SessionPoolChanged,
    SessionStateLost,
    SetPools,
)
from carpool_supervisor.core.calls import stopped_calls
from carpool_supervisor.core.calls.dispatcher import Dispatcher
from carpool_supervisor.core.calls.leases import LeaseEnded, Leases
from carpool_supervisor.core.calls.placement import self_blocked_sessions, stranded_sessions
from carpool_supervisor.core.calls.refusals import POOL_REPLACED, SELF_BLOCKED, start_refusal
from carpool_supervisor.core.model.breaker_policy import FRESH
from carpool_supervisor.core.model.effects import AnyEffect, RereadLists, WriteLogLine
from carpool_supervisor.core.model.events import KnowledgeChanged
from carpool_supervisor.core.model.lifecycle import ENDING, InstanceState
from carpool_supervisor.core.model.loss_causes import LossCause
from carpool_supervisor.core.model.pool import Pool, away_limit_s
from carpool_supervisor.core.model.pool_table import Pools
from carpool_supervisor.core.model.server_counters import ServerCounters
from carpool_supervisor.core.model.timer_kinds import SupervisorTimers
from carpool_supervisor.core.pools import demand, operator_state
from carpool_supervisor.core.pools.eras import first_greeting
from carpool_supervisor.core.pools.instances import Instances
from carpool_supervisor.core.pools.start_queue import falls_short

CHANGED: Final = "its configuration was changed or removed"
TAINTED_S: Final = 5.0
"""In mode `serial` an instance that may still run an ended call is replaced after this time (rule 5)."""


class PoolTargets:
    """The targets of all pools."""

    def __init__(
        self,
        pools: Pools,
        dispatcher: Dispatcher,
        instances: Instances,
        leases: Leases,
        *,
        timers: SupervisorTimers,
        out: Callable[[AnyEffect], None],
    ) -> None:
        self._pools = pools
        self._dispatcher = dispatcher
        self._instances = instances
        self._start_queue = instances.start_queue
        self._leases = leases
        self._emit = out
        self._timers = timers
        self._standing: dict[PoolKey, Pool] = {}
        """Unwanted pools that are empty, and that stand for an older one."""
        self.counters = ServerCounters()
        """The counts of all servers, also of those without a pool."""

    # --- the configuration -----------------------------------------------------------------------------

    def set_pools(self, set_pools: SetPools, now: float) -> None:
        """Take over the list of wanted pools; if it is complete, all others retire."""
        self._instances.set_limits(set_pools.max_processes, set_pools.max_greeting)
        keys = {spec.key for spec in set_pools.pools}
        paused = {spec.server for spec in set_pools.pools if spec.paused}
        for spec in set_pools.pools:
            pool = self._pools.get(spec.key)
            if pool is None:
                pool = self._pools[spec.key] = Pool(
                    spec.key, spec.server, spec.policy, self.counters.counts_of(spec.server)
                )
                pool.asking, pool.era_wish = spec.asking, spec.era
                pool.offline = pool.stopped = spec.offline
                pool.era = first_greeting(pool)
                pool.target = _least_instances(spec.policy)
                pool.plain = pool.plain and not self._leases.concerns_server(pool.server)
            else:
                self._change_policy(pool, spec.policy, now)
                self._instances.update_sharing(pool, now)
                if not pool.wanted:
                    self._want_again(pool)
                if not pool.stopped and pool.restart.breaker == "closed":
                    pool.target = max(pool.target, spec.policy.min_instances)
            pool.start_after, pool.stop_first = spec.start_after, spec.stop_first
            pool.is_remote = spec.target is not None
            pool.layer = spec.layer
            self._set_replaced_pools(pool, spec)
            pool.touch()
            pool.keeps_state = spec.target is None or spec.target.keeps_state
            self._leases.pool_wanted(
                pool.key, pool.server, spec.policy.lease_idle_s, keeps_state=pool.keeps_state
            )
            self._instances.shrink(pool, now)
            self._start_queue.enqueue(pool, now)
        for key in [key for key in self._pools if key not in keys] if set_pools.complete else []:
            pool = self._pools[key]
            if pool.wanted:
                pool.unwanted_because = set_pools.why_missing or CHANGED
            self.retire(pool, now)
        self._pause_servers(paused, now)
        self._start_queue.start_queued(now)

    def _pause_servers(self, servers: Set[ServerName], now: float) -> None:
        """Pause all pools of these servers, also those that are being replaced, and resume all others."""
        for pool in list(self._pools.values()):
            was_paused, pool.paused = pool.paused, pool.server in servers
            if was_paused and not pool.paused:
                pool.touch()
                self._dispatcher.place_waiting(pool, now)
                if pool.queue:
                    self.grow(pool, now)

    def _change_policy(self, pool: Pool, policy: Policy, now: float) -> None:
        before, after = pool.policy.open_s, policy.open_s
        least = _least_instances(pool.policy)
        pool.set_policy(policy)
        if _least_instances(policy) > least and not pool.stopped and pool.restart.breaker != "open":
            pool.target = max(pool.target, 1)
        elif policy.min_instances < least:  # from now on it may do without them
            for instance in pool.serving:
                instance.idle_since = max(instance.idle_since, now)
        if pool.restart.breaker == "open" and before != after:
            pool.not_before = now + after
            self._start_queue.breaker_opened(pool, now)

    def _set_replaced_pools(self, pool: Pool, spec: PoolSpec) -> None:
        """The pool replaces others, and all that those had replaced."""
        found = [self._pools.get(key) for key in (spec.replaces, *spec.replaces_too)]
        before = [each for each in found if each is not None and each is not pool]
        if not before:
            return
        older = dict.fromkeys(
            key for each in before for key in (each.key, *each.replaced_pools) if key != pool.key
        )
        self._pools.set_replaced(pool, [key for key in older if key in self._pools])

    def _want_again(self, pool: Pool) -> None:
        """The pool was retiring, and the broker has forgotten it: announce everything about it anew."""
        pool.wanted, pool.is_abandoned = True, False
        pool.announced = None
        pool.is_catalog_sent = False
        pool.restart, pool.not_before, pool.start_wanted = FRESH, 0.0, False
        pool.set_trial(None)
        if not pool.serving:  # the next instance announces it; `catalog_wanted` starts none if it is known
            pool.catalog = None
        if pool.policy.auto_connect:
            pool.target = max(pool.target, 1)

    def set_knowledge(self, event: KnowledgeChanged, now: float) -> None:
        """Take over new knowledge about the programs of pools."""
        for known in event.pools:
            pool = self._pools.get(known.key)
            if pool is not None:
                pool.touch()
                pool.set_knowledge(known.entry, known.evidence, known.era)
                self._instances.update_sharing(pool, now)
                if pool.catalog is not None:
                    self._instances.update_catalog(pool, pool.catalog, now)

    def retire_unwanted(self, pools: Iterable[Pool], now: float) -> bool:
        """Continue the retirement of the unwanted ones among these pools. Returns True if one is gone."""
        before = len(self._pools)
        for pool in pools:
            if not pool.wanted and pool.key in self._pools:
                self.retire(pool, now)
        return len(self._pools) < before

    def retire(self, pool: Pool, now: float) -> None:
        """The pool is no longer wanted: start nothing for it. It drains when its queue is empty, and is
        removed when it has no instance.
        """
        if pool.wanted:
            pool.wanted = False
            self._touch_replaced(pool)
        self._start_queue.drop(pool.key)
        after = self._pools.successors(pool)
        if pool.queue:
            self.adjust_pool(pool, now)
            for session in stranded_sessions(pool, self._pools, self._leases):
                self._dispatcher.fail_waiting_of_session(session, pool, *POOL_REPLACED)
        if not pool.queue:
            if not pool.is_abandoned:
                pool.is_abandoned = True
                self._touch_replaced(pool)
            pool.target = 0
            if after:
                self._leases.withdraw_pool(pool.key)
            elif self._leases.pool_removed(pool.key):
                self._pools.lease_ended(pool.server)
            for instance in list(pool.instances.values()):
                instance.note_end(pool.unwanted_because)
                self._instances.wind_down(instance, now)
        if not (pool.instances or pool.queue):
            self._remove(pool)

    def _remove(self, pool: Pool) -> None:
        """Remove an empty pool, unless it stands for another one."""
        if self._stands_for_another(pool):
            self._standing[pool.key] = pool
            return
        operator_state.end_operations(pool, self._emit)
        self._leases.pool_gone(pool.key)
        self._timers.disarm("tainted_instance", pool.key)
        self._timers.disarm("lease_share", pool.key)
        del self._pools[pool.key]
        self._standing.pop(pool.key, None)
        for other in self._standing.values():
            if other.server == pool.server:
                other.touch()  # it may have stood for this one

    def _touch_replaced(self, pool: Pool) -> None:
        """The pools that this one replaced have lost a successor."""
        for key in pool.replaced_pools:
            if key in self._pools:
                self._pools[key].touch()

    def _stands_for_another(self, pool: Pool) -> bool:
        """True if an older pool, whose end this pool would have waited for, is not gone yet. A pool that
        starts after this one must wait for it too. Two pools that replaced each other in turn count for none.
        """
        passed = {pool.key}
        before = self._pools.get(pool.start_after)
        while before is not None and not before.wanted and before.key not in passed:
            if before.instances or before.queue:
                return True
            passed.add(before.key)
            before = self._pools.get(before.start_after)
        return False

    # --- calls -----------------------------------------------------------------------------------------

    def grow(self, pool: Pool, now: float) -> None:
        """Start more instances, because those at hand cannot take all calls."""
        if pool.paused:
            return
        if pool.mode != "concurrent":
            self.adjust_pool(pool, now)
            return
        active = pool.active_count()
        if active < pool.max_instances and pool.target <= active:
            if active and any(
                i.state in (InstanceState.SPAWNING, InstanceState.GREETING) for i in pool.instances.values()
            ):
                return
            pool.target = active + 1
            self._start_queue.enqueue(pool, now)
            self._start_queue.start_queued(now)
        elif active < pool.target:
            self._start_queue.enqueue(pool, now)  # a call waits now

    def catalog_wanted(self, request: DiscoverCatalog, now: float) -> None:
        """A session needs the catalog: start an instance if the catalog is unknown."""
        pool = self._pools.get(request.key)
        if pool is None or not pool.wanted:
            return
        if request.again and pool.catalog is not None and not pool.is_relisting:
            pool.is_relisting = True  # if none runs, the next instance announces it
            for instance in pool.serving[:1]:
                self._emit(RereadLists(instance.id))
        if pool.stopped:
            return
        if pool.restart.breaker != "closed" and not pool.serving:
            self._instances.breakers.start_wanted(pool, now)
            return
        if pool.catalog is not None:
            return
        if pool.era_wish == "newest" and pool.both_eras:
            return  # the broker gets the same answer, and asks the pool of all agents instead
        if pool.target == 0:
            pool.target = 1
            self._start_queue.enqueue(pool, now)
        if request.first:
            self._start_queue.move_to_front(pool)
        self._start_queue.start_queued(now)

    # --- operators and sessions ------------------------------------------------------------------------

    def operate(self, command: Operate, now: float) -> None:
        """Carry out an operator's command. `OperationEnded` follows when it has taken effect."""
        pool = self._pools.get(command.key)
        if pool is None or not pool.wanted:
            self._emit(
                OperationEnded(
                    command.token, ok=False, text="no such pool: its configuration has just changed"
                )
            )
            return
        if pool.offline:
            self._emit(
                OperationEnded(command.token, ok=True, text="has nothing to run: its tools are listed")
            )
            return
        operator_state.begin_operation(pool, command)
        self._emit(WriteLogLine("info", f"{pool.server}: an operator asked for: {command.verb}", pool.server))
        self._start_queue.backoffs.disarm(pool.key)
        if command.verb == "stop":
            self._dispatcher.fail_waiting(pool, "stopped", "")
        if command.verb != "start":
            for instance in list(pool.instances.values()):
                instance.note_end(f"an operator {'stopped' if command.verb == 'stop' else 'restarted'} it")
                self._instances.drain(instance, now, "restart")
        elif pool.serving:  # it may never say that its lists have changed
            pool.relisting = pool.serving[0]
            self._emit(RereadLists(pool.relisting.id))
        self._start_queue.enqueue(pool, now)
        self._start_queue.start_queued(now)
        self._dispatcher.place_waiting(pool, now)  # the end of a trial makes room on the instances

    def call_cancelled(self, call: CallId) -> None:
        """The agent of this call gets no answer to it. If the answer was to report a lost state, the next
        call reports it.
        """
        untold = self._leases.told_losses.call_cancelled(call)
        if untold is not None:
            (session, server), cause = untold
            self._leases.loss_reported_by_broker(session, server, cause)
            self._pools.lease_ended(server)

    def session_closed(self, session: SessionId, now: float) -> None:
        """The agent is gone: end its leases and their instances."""
        self._end_returned(self._leases.session_closed(session), now)

    def session_pool_changed(self, moved: SessionPoolChanged, now: float) -> None:
        """Another pool serves this session now: its lease at the old pool ends, and the next call there
        reports the loss. Without another pool, the session is told if it returns.
        """
        pool = self._pools.get(moved.old) or self._pools.get(moved.new)
        place = None if pool is None else self._leases.held_instance(moved.session, pool.server)
        if place is not None and place[0] != moved.new:
            cause: LossCause = "roots" if moved.new else "reload"
            instance = self._instances.by_id[place[1]]
            instance.note_end("the session that held it has other roots, another workspace or configuration")
            self._instances.end_without_replacement(instance, now, cause)
        if (
            moved.old in self._pools
        ):  # queued calls would lease an instance that the session never calls again
            self._dispatcher.fail_waiting_of_session(moved.session, self._pools[moved.old], *POOL_REPLACED)

    def sessions_unknown(self, now: float) -> None:
        """The broker does not know which sessions are left: end all leases, and tell the sessions that
        remain.
        """
        self._end_returned(self._leases.all_lost("link"), now)

    def sessions_listed(self, open_sessions: OpenSessions, now: float) -> None:
        """Forget all sessions that are not in this list. They may have left while the link was down."""
        for gone in self._leases.sessions() - {note.session for note in open_sessions.live}:
            self._end_returned(self._leases.session_closed(gone), now)
        for note in open_sessions.live:
            for server in note.bereft:
                self._leases.loss_reported_by_broker(note.session, server, "supervisor")
                self._pools.lease_ended(server)

    def state_lost(self, told: SessionStateLost) -> None:
        """An unknown session has come back: its carrier reports the state that it may have had."""
        ours = self._leases.holders()
        for server in told.servers:
            if (told.session, server) not in ours:
                self._leases.loss_reported_by_broker(told.session, server, "away")
                self._pools.lease_ended(server)

    def end_idle_leases(self, instances: Iterable[InstanceId], now: float) -> None:
        """End the leases of these instances, which were idle for too long."""
        self._end_returned(self._leases.end_idle(instances), now)

    def _end_returned(self, leases: Iterable[LeaseEnded], now: float) -> None:
        """End instances that were leased; they are never leased again (rule 15)."""
        for ended in leases:
            instance = self._instances.by_id[ended.instance]
            self._pools.lease_ended(instance.pool.server)
            instance.note_end("its lease has ended")
            self._instances.end_without_replacement(instance, now)

    def session_absent(self, event: SessionAbsent) -> None:
        """The agent of this session has no open connection, or is there again."""
        self._leases.set_absent(event.session, absent=event.absent)
        if event.absent:
            for pool in self._leases.pools_waited_for():
                self._pools[pool].touch()

    def _take_back(self, pool: Pool, now: float) -> None:
        """End leases for sessions that wait and for which the pool has no room: those of absent sessions,
        then some of whoever holds most.
        """
        held = sum(self._leases.holder(each.id) is not None for each in pool.serving)
        for room in range(pool.max_instances - held, self._leases.waiting_count(pool.key)):
            cause: LossCause = "absent"
            instance = self._leases.pick_absent(pool.key)
            if instance is None and not pool.paused:
                cause = "share"
                instance = self._leases.pick_from_largest_turn(
                    pool.key,
                    lambda: self._leases.turn_shares([pool.key]),
                    coming=max(room, 0),
                    now=now,
                    grace_s=away_limit_s(pool.policy),
                )
            if instance is None:
                return
            ended = self._leases.instance_lost(instance, cause)
            self._end_returned([] if ended is None else [ended], now)

    def _watch_line(self, pool: Pool, now: float) -> None:
        """Look at the pool again when the next session has waited for so long that others share."""
        due_at = self._leases.next_to_wait_for(pool.key, away_limit_s(pool.policy), now)
        if due_at is not None:
            self._timers.arm("lease_share", pool.key, now, due_at - now)

    # --- pools that are not plain ----------------------------------------------------------------------

    def adjust_pool(self, pool: Pool, now: float) -> None:
        """Bring a pool that is not plain to its mode and its demand."""
        self.adjust_pools((pool,), now)

    def adjust_pools(self, pools: Iterable[Pool], now: float) -> None:
        """Bring those of these pools that are not plain to their modes and their demand."""
        special = [pool for pool in pools if not pool.plain]
        if not special:
            return
        for pool in special:
            self._timers.disarm("tainted_instance", pool.key)
            self._timers.disarm("lease_share", pool.key)
        open_ones = [pool for pool in special if self._has_demand(pool)]
        if open_ones:
            self._serve(open_ones, now)
        for pool in special:
            if pool.mode == "concurrent" and not self._leases.concerns_server(pool.server):
                self._pools.set_replaced(pool, [key for key in pool.replaced_pools if key in self._pools])
                self._pools.mark_plain(pool)

    def _serve(self, pools: Sequence[Pool], now: float) -> None:
        """Place the waiting calls of these pools and of their servers, then start what the rest needs."""
        for pool in pools:
            if pool.mode == "serial":
                self._replace_tainted(pool, now)
            elif pool.mode == "session":
                self._update_leasing(pool, now)
                self._take_back(pool, now)
            self._dispatcher.place_waiting(pool, now)
        for server in dict.fromkeys(pool.server for pool in pools):
            self._dispatcher.place_waiting_at_server(server, now)
        for pool in pools:
            pool.target = max(pool.target, demand.wanted_instances(pool, self._leases))
            self._start_queue.enqueue(pool, now)
        self._start_queue.start_queued(now)
        for pool in pools:
            self._watch_line(pool, now)
            if not falls_short(pool):
                for session in self_blocked_sessions(pool):
                    self._dispatcher.fail_waiting_of_session(session, pool, *SELF_BLOCKED)

    def _has_demand(self, pool: Pool) -> bool:
        """True if calls to this pool may be placed, and instances started."""
        return not pool.stopped and bool(pool.wanted or pool.queue) and not self._start_queue.closed

    def _replace_tainted(self, pool: Pool, now: float) -> None:
        """Free the slots of calls that the server has stopped. Replace instances that may still run an ended
        call after a while (rule 5).
        """
        for instance in list(pool.serving):
            due = stopped_calls.free_slots(instance, now)
            ended = (each for each in instance.abandoned.values() if each.can_ask and each.stopped_at is None)
            since = min((each.since for each in ended), default=None)
            if since is not None and since + TAINTED_S <= now:
                instance.note_end("a call that was cancelled may still run on it")
                self._instances.drain(instance, now)
                continue
            if since is not None:
                due = min(due or since + TAINTED_S, since + TAINTED_S)
            earlier = self._timers.deadline_of("tainted_instance", pool.key)
            if due is not None and (earlier is None or due < earlier):
                self._timers.arm("tainted_instance", pool.key, now, due - now)

    def _update_leasing(self, pool: Pool, now: float) -> None:
        """End instances that can never be leased; offer all others for leases."""
        for instance in list(pool.serving):
            if demand.is_unleasable(instance, self._leases):
                if not instance.is_busy:
                    instance.note_end("several sessions have used it, and it cannot be leased any more")
                    self._instances.end_without_replacement(instance, now)
            elif not self._leases.knows_instance(instance.id) and self._leases.instance_offered(
                instance.id, pool.key, now
            ):
                self._pools.mark_not_plain(pool.server)
        if pool.restart.breaker == "open":
            for session in self._leases.waiting_sessions(pool.key):
                self._dispatcher.fail_waiting_of_session(session, pool, *start_refusal(pool, now))

    def check(self) -> None:
        """Assert every invariant."""
        self._leases.check()
        assert self._timers.keys("tainted_instance") <= self._pools.keys()
        assert self._timers.keys("lease_share") <= self._pools.keys()
        for pool in self._pools.values():
            assert not pool.plain or pool.mode == "concurrent"
            if pool.mode == "session":
                for instance in pool.serving:
                    spent = instance.calls or instance.limit_reached
                    assert self._leases.knows_instance(instance.id) or spent, "nobody's, and not spent"
            else:
                assert not self._leases.waiting_count(pool.key), f"{pool.key} leases nothing, and some wait"
                assert not self._leases.spare_count(pool.key)
                assert all(self._leases.holder(i.id) is None for i in pool.serving), "leased, and shared"
            if pool.plain:
                assert not self._leases.concerns_server(pool.server), f"{pool.key} is not asked about leases"
            for session in self._leases.waiting_sessions(pool.key):
                assert pool.queue.has_session(session), f"{session} waits for a lease without a call"
            for instance in pool.instances.values():
                known = self._leases.knows_instance(instance.id)
                assert not (known and instance.state in ENDING), "it ends, and is leased"


def _least_instances(policy: Policy) -> int:
    """The number of instances that start without being asked for."""
    return max(policy.min_instances, 1 if policy.auto_connect else 0)
