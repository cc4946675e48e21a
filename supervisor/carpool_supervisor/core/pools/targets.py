"""What is wanted of pools: by the configuration, by calls, by operators, by the end of a session.

Owns which pools exist and each pool's `target`, and tends the pools that are not plainly shared: after
anything that may matter to one of them, `tend` brings it to what its mode and its demand ask for, whatever
it was that happened. `start_queue` brings pools up to their target, `instances` ends instances.

Invariants (`check`): in mode `session` an instance that serves is leased, a spare, or was used before the
pool began to lease; in every other mode no instance that serves is leased, and nobody waits for a lease.

Knows nothing of: single calls, processes, JSON.
"""

from collections.abc import Callable, Iterable
from typing import Final

from carpool_protocol.ids import CallId, PoolKey, SessionId
from carpool_protocol.link.messages import (
    Bereft,
    Discover,
    Operate,
    Operated,
    Policy,
    PoolSpec,
    SessionRekeyed,
    Sessions,
    Wanted,
)
from carpool_supervisor.core.calls.dispatcher import Desk
from carpool_supervisor.core.calls.leases import Ended, Leases
from carpool_supervisor.core.calls.placement import heirs, stranded, waiting_for_themselves
from carpool_supervisor.core.calls.refusals import GONE_POOL, OWN_LANE, broken
from carpool_supervisor.core.model.effects import AnyEffect, Relist
from carpool_supervisor.core.model.events import PoolKnown
from carpool_supervisor.core.model.lifecycle import ENDING, State
from carpool_supervisor.core.model.loss_causes import Cause
from carpool_supervisor.core.model.pool import Pool, Pools, not_plain
from carpool_supervisor.core.model.restart_policy import FRESH
from carpool_supervisor.core.pools import demand, operator_state
from carpool_supervisor.core.pools.eras import first_of
from carpool_supervisor.core.pools.instances import Roster
from carpool_supervisor.core.pools.start_queue import falls_short

TAINTED_S: Final = 5.0
"""In mode `serial` a lane whose call is over and not answered is replaced after this long (rule 5)."""


class Wishes:
    """All pools, as they should be."""

    def __init__(
        self, pools: Pools, desk: Desk, roster: Roster, leases: Leases, out: Callable[[AnyEffect], None]
    ) -> None:
        self._pools = pools
        self._desk = desk
        self._roster = roster
        self._starts = roster.starts
        self._leases = leases
        self._out = out
        self._renewals: dict[PoolKey, float] = {}
        """When a tainted lane of this pool is to be replaced."""

    # --- the configuration -----------------------------------------------------------------------------

    def want(self, wanted: Wanted, now: float) -> None:
        """Take over the list of pools that are wanted; where it is complete, all others retire."""
        self._roster.limit(wanted.max_processes, wanted.max_greeting)
        keys = {spec.key for spec in wanted.pools}
        for spec in wanted.pools:
            pool = self._pools.get(spec.key)
            if pool is None:
                pool = self._pools[spec.key] = Pool(spec.key, spec.server, spec.policy)
                pool.asking, pool.wish = spec.asking, spec.era
                pool.era = first_of(pool)
                pool.target = max(spec.policy.min_instances, 1 if spec.policy.auto_connect else 0)
                pool.plain = pool.plain and not self._leases.concern(pool.server)
            else:
                self._change_policy(pool, spec.policy, now)
                self._roster.judge(pool, now)
                if not pool.wanted:
                    self._rewant(pool)
                if not pool.stopped and pool.restart.breaker == "closed":
                    pool.target = max(pool.target, spec.policy.min_instances)
            pool.start_after, pool.stop_first = spec.start_after, spec.stop_first
            self._succeed(pool, spec)
            self._leases.pool_wanted(pool.key, pool.server, spec.policy.lease_idle_s)
            self._roster.shrink(pool, now)
            self._starts.want(pool)
        for key in [key for key in self._pools if key not in keys] if wanted.complete else []:
            self.retire(self._pools[key], now)
        self._starts.fill(now)

    def _change_policy(self, pool: Pool, policy: Policy, now: float) -> None:
        before, after = pool.policy.open_s, policy.open_s
        pool.take_policy(policy)
        if pool.restart.breaker == "open" and before != after:
            pool.not_before = now + after
            self._starts.hold(pool, now)

    def _succeed(self, pool: Pool, spec: PoolSpec) -> None:
        """It stands in the place of others, and of all in whose place those stood."""
        found = [self._pools.get(key) for key in (spec.replaces, *spec.replaces_too)]
        before = [each for each in found if each is not None and each is not pool]
        if not before:
            return
        older = dict.fromkeys(key for each in before for key in (each.key, *each.older) if key != pool.key)
        pool.older = tuple(key for key in older if key in self._pools)

    def _rewant(self, pool: Pool) -> None:
        """It was on its way out, and the broker has forgotten it: all about it is news again."""
        pool.wanted = True
        pool.said = None
        pool.catalog_said = False
        pool.restart, pool.not_before, pool.missed = FRESH, 0.0, False
        pool.try_out(None)
        if not pool.serving:  # the next instance tells it; `discover` starts none where it is known
            pool.catalog = None
        if pool.policy.auto_connect:
            pool.target = max(pool.target, 1)

    def know(self, event: PoolKnown, now: float) -> None:
        """More is known about a pool's program."""
        pool = self._pools.get(event.key)
        if pool is not None:
            pool.know(event.entry, event.evidence, event.era)
            self._roster.judge(pool, now)
            if pool.catalog is not None:
                self._roster.learn(pool, pool.catalog, now)

    def retire_all(self, now: float) -> bool:
        """End what is no longer wanted, as far as it has come. True if a pool is gone by that."""
        before = len(self._pools)
        left = before + 1
        while len(self._pools) < left:  # one that goes may be what another waited for
            left = len(self._pools)
            for pool in list(self._pools.values()):
                if not pool.wanted:
                    self.retire(pool, now)
        return left < before

    def retire(self, pool: Pool, now: float) -> None:
        """The pool is no longer wanted: nothing starts for it. When its line is empty it drains, when it is
        empty it goes.
        """
        pool.wanted = False
        self._starts.unwant(pool.key)
        after = heirs(pool, self._pools)
        if pool.waiting:
            self.tend(pool, now)
            for session in stranded(pool, self._pools, self._leases):
                self._desk.fail_waiting_of(session, pool, *GONE_POOL)
        if not pool.waiting:
            pool.target = 0
            if after:
                self._leases.withdraw(pool.key)
            elif self._leases.removed(pool.key):
                not_plain(pool.server, self._pools)
            for instance in list(pool.instances.values()):
                self._roster.wind_down(instance, now)
        if not pool.instances and not pool.waiting and not self._stands_for_another(pool):
            operator_state.dismiss(pool, self._out)
            self._leases.pool_gone(pool.key)
            self._renewals.pop(pool.key, None)
            del self._pools[pool.key]

    def _stands_for_another(self, pool: Pool) -> bool:
        """Who starts after this pool starts after those before it too, until they are gone. Two that replaced
        each other, back and forth, stand for nobody.
        """
        passed = {pool.key}
        before = self._pools.get(pool.start_after)
        while before is not None and not before.wanted and before.key not in passed:
            if before.instances or before.waiting:
                return True
            passed.add(before.key)
            before = self._pools.get(before.start_after)
        return False

    # --- calls -----------------------------------------------------------------------------------------

    def grow(self, pool: Pool, now: float) -> None:
        """There is more to do than the instances at hand can take."""
        if pool.mode != "concurrent":
            self.tend(pool, now)
            return
        active = pool.active()
        if active < pool.most and pool.target <= active:
            if active and any(i.state in (State.SPAWNING, State.GREETING) for i in pool.instances.values()):
                return
            pool.target = active + 1
            self._starts.want(pool)
            self._starts.fill(now)

    def discover(self, word: Discover, now: float) -> None:
        """Somebody needs the catalog."""
        pool = self._pools.get(word.key)
        if pool is None or not pool.wanted:
            return
        if word.again and pool.catalog is not None and not pool.relisting:
            pool.relisting = True  # if none runs, the next one to start tells it
            for instance in pool.serving[:1]:
                self._out(Relist(instance.id))
        if pool.stopped:
            return
        if pool.restart.breaker != "closed" and not pool.serving:
            self._roster.breakers.missed(pool, now)
            return
        if pool.catalog is not None:
            return
        if pool.wish == "newest" and pool.both_eras:
            return  # the broker is told the same, and asks the pool of all agents instead
        if pool.target == 0:
            pool.target = 1
            self._starts.want(pool)
        if word.first:
            self._starts.hurry(pool)
        self._starts.fill(now)

    # --- operators and sessions ------------------------------------------------------------------------

    def operate(self, word: Operate, now: float) -> None:
        """An operator's word. `Operated` follows when it has taken effect."""
        pool = self._pools.get(word.key)
        if pool is None or not pool.wanted:
            self._out(Operated(word.token, ok=False, text="no such pool: its configuration has just changed"))
            return
        operator_state.take_word(pool, word)
        self._starts.delays.disarm(pool.key)
        if word.verb == "stop":
            self._desk.fail_waiting(pool, "stopped", "")
        if word.verb != "start":
            for instance in list(pool.instances.values()):
                self._roster.drain(instance, now, "restart")
        self._starts.want(pool)
        self._starts.fill(now)

    def unheard(self, call: CallId) -> None:
        """Its agent does not want the answer to this call. If that was the word that state is lost, the next
        one hears it.
        """
        untold = self._leases.told.cancelled(call)
        if untold is not None:
            (session, server), cause = untold
            self._leases.lost_before(session, server, cause)
            not_plain(server, self._pools)

    def session_gone(self, session: SessionId, now: float) -> None:
        """The agent is gone: its leases end, and their instances."""
        self._returned(self._leases.session_ended(session), now)

    def rekeyed(self, moved: SessionRekeyed, now: float) -> None:
        """A session is served by another pool now: its lease stays behind, and it is told so there. By none:
        it is told so if it comes back.
        """
        pool = self._pools.get(moved.old) or self._pools.get(moved.new)
        place = None if pool is None else self._leases.place(moved.session, pool.server)
        if place is not None and place[0] != moved.new:
            cause: Cause = "roots" if moved.new else "reload"
            self._roster.spare(self._roster.instances[place[1]], now, cause)
        if moved.old in self._pools:  # what is in line there would lease an instance that nobody calls again
            self._desk.fail_waiting_of(moved.session, self._pools[moved.old], *GONE_POOL)

    def lost_touch(self, now: float) -> None:
        """Sessions may have gone while nobody told us: their leases end, and those who are still there are
        told.
        """
        self._returned(self._leases.all_lost("link"), now)

    def sessions(self, there: Sessions, now: float) -> None:
        """Who is there: what is known of others goes. They may have left while the link was down."""
        for gone in self._leases.sessions() - {note.session for note in there.live}:
            self._returned(self._leases.session_ended(gone), now)
        for note in there.live:
            for server in note.bereft:
                self._leases.lost_before(note.session, server, "supervisor")
                not_plain(server, self._pools)

    def bereft(self, told: Bereft) -> None:
        """A session that nobody remembers has come back: its carrier knows what it may have had."""
        ours = self._leases.holders()
        for server in told.servers:
            if (told.session, server) not in ours:
                self._leases.lost_before(told.session, server, "away")
                not_plain(server, self._pools)

    def overdue(self, now: float) -> None:
        """Leases that were idle for too long, and lanes that were tainted for too long."""
        self._returned(self._leases.overdue(now), now)
        for key in [key for key, at in self._renewals.items() if at <= now]:
            self.tend(self._pools[key], now)

    def _returned(self, leases: Iterable[Ended], now: float) -> None:
        """What was leased is ended, never leased again (rule 15)."""
        for ended in leases:
            instance = self._roster.instances[ended.instance]
            not_plain(instance.pool.server, self._pools)
            self._roster.spare(instance, now)

    # --- pools that are not plain ----------------------------------------------------------------------

    def tend(self, pool: Pool, now: float) -> None:
        """Bring a pool that is not plain to what its mode and its demand ask for."""
        if pool.plain:
            return
        self._renewals.pop(pool.key, None)
        if not pool.stopped and (pool.wanted or pool.waiting) and not self._starts.closed:
            if pool.mode == "serial":
                self._renew(pool, now)
            elif pool.mode == "session":
                self._lease(pool, now)
            self._desk.serve(pool, now)
            self._desk.serve_versions(pool, now)
            pool.target = max(pool.target, demand.wanted(pool, self._leases))
            self._starts.want(pool)
            self._starts.fill(now)
            if not falls_short(pool):
                for session in waiting_for_themselves(pool):
                    self._desk.fail_waiting_of(session, pool, *OWN_LANE)
        if pool.mode == "concurrent" and not self._leases_left(pool):
            pool.plain = True

    def _leases_left(self, pool: Pool) -> bool:
        pool.older = tuple(key for key in pool.older if key in self._pools)
        return self._leases.concern(pool.server)

    def _renew(self, pool: Pool, now: float) -> None:
        """Replace the lanes that have waited long enough for the answer to a call that is over (rule 5)."""
        for instance in list(pool.serving):
            since = min((each.since for each in instance.lingering.values() if each.can_ask), default=None)
            if since is None:
                continue
            if since + TAINTED_S <= now:
                self._roster.drain(instance, now)
            else:
                at = self._renewals.get(pool.key, since + TAINTED_S)
                self._renewals[pool.key] = min(at, since + TAINTED_S)

    def _lease(self, pool: Pool, now: float) -> None:
        """End what can never be leased; lease or keep warm what can."""
        for instance in list(pool.serving):
            if demand.is_spent(instance, self._leases):
                if not instance.busy:
                    self._roster.spare(instance, now)
            elif not self._leases.knows(instance.id) and self._leases.offer(instance.id, pool.key, now):
                not_plain(pool.server, self._pools)
        if pool.restart.breaker == "open":
            for session in self._leases.waiting(pool.key):
                self._desk.fail_waiting_of(session, pool, *broken(pool, now))

    def next_deadline(self) -> float | None:
        """When `overdue` has something to do."""
        earliest = self._leases.next_deadline()
        for at in self._renewals.values():
            if earliest is None or at < earliest:
                earliest = at
        return earliest

    def check(self) -> None:
        """Assert every invariant."""
        self._leases.check()
        assert self._renewals.keys() <= self._pools.keys()
        for pool in self._pools.values():
            assert not pool.plain or pool.mode == "concurrent"
            if pool.mode == "session":
                for instance in pool.serving:
                    spent = instance.calls or instance.worn
                    assert self._leases.knows(instance.id) or spent, "nobody's, and not spent"
            else:
                assert not self._leases.in_line(pool.key), f"{pool.key} leases nothing, and some wait"
                assert not self._leases.spares(pool.key)
                assert all(self._leases.holder(i.id) is None for i in pool.serving), "leased, and shared"
            if pool.plain:
                assert not self._leases.concern(pool.server), f"{pool.key} is not asked about leases"
            for session in self._leases.waiting(pool.key):
                assert pool.waiting.has(session), f"{session} waits for a lease without a call"
            for instance in pool.instances.values():
                known = self._leases.knows(instance.id)
                assert not (known and instance.state in ENDING), "it ends, and is leased"
