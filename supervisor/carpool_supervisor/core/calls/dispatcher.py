"""The dispatcher: places calls on instances, and ends them.

Owns the open calls: placement, queues, wire ids, and their ends. Each call that enters leaves exactly once:
as `CallAnswered`, as `CallFailed`, or cancelled without a message.

Invariants (`check`): a wire id names at most one open call of its instance and is never reused; a call is
either in its pool's queue or in flight on one instance, with one deadline (`call_timeouts`); no call waits
that could go; a leased instance runs its holder's calls only.

Knows nothing of: how instances start and end (`instances`), the choice of an instance (`placement`), progress
messages to queued calls (`queue_timeouts`), JSON, sessions' rights.
"""

from collections.abc import Callable, Iterable
from typing import Final, Literal

from carpool_protocol.ids import CallId, ServerName, SessionId, WireId, call_name
from carpool_protocol.link.messages import (
    Call,
    CallAnswered,
    CallAtNode,
    CallFailed,
    CallPlace,
    CallProgressed,
    CallTimed,
    Payload,
)
from carpool_supervisor.core.calls import stopped_calls
from carpool_supervisor.core.calls.between_rounds import PendingRetries
from carpool_supervisor.core.calls.call_timeouts import CallTimeouts
from carpool_supervisor.core.calls.leases import LeaseLost, Leases
from carpool_supervisor.core.calls.parked_calls import ParkedCallWatch
from carpool_supervisor.core.calls.placement import (
    check_line,
    find_instance,
    next_placeable,
    only_free_slots_decide,
    place_call,
)
from carpool_supervisor.core.calls.queue_timeouts import QueueTimeouts
from carpool_supervisor.core.calls.refusals import (
    TimeoutFault,
    refused_call,
    state_lost_text,
    timeout_text,
    wait_expired_text,
)
from carpool_supervisor.core.calls.server_requests import ServerAsks
from carpool_supervisor.core.model.attribution import CAN_ASK
from carpool_supervisor.core.model.effects import AnyEffect, WriteCall, WriteCancel, WriteLogLine
from carpool_supervisor.core.model.events import ServerAnswered
from carpool_supervisor.core.model.lifecycle import InstanceState
from carpool_supervisor.core.model.pool import (
    MAX_ABANDONED,
    AbandonedCall,
    Calls,
    Instance,
    Pool,
    PoolCall,
    timeout_of,
)
from carpool_supervisor.core.model.pool_table import Pools
from carpool_supervisor.core.model.timer_kinds import SupervisorTimers

NAMED_CALLS: Final = 20
"""The number of calls that the log names when an instance ends; the others are counted."""


def _place_of(pool_call: PoolCall) -> CallPlace:
    call, instance = pool_call.call.call, pool_call.instance
    if instance is None:
        return CallPlace(call, "waiting")
    is_asking = pool_call.asks > 0 or pool_call.awaits_retry
    return CallPlace(call, "asking" if is_asking else "running", instance.id, instance.pid, instance.node)


class Dispatcher:
    """All open calls of the supervisor."""

    def __init__(
        self,
        pools: Pools,
        asks: ServerAsks,
        leases: Leases,
        retries: PendingRetries,
        *,
        timeouts: CallTimeouts,
        timers: SupervisorTimers,
        out: Callable[[AnyEffect], None],
    ) -> None:
        self._pools = pools
        self._asks = asks
        self._retries = retries
        self._leases = leases
        self._emit = out
        self.calls: Calls = {}
        self.timeouts = timeouts
        self.queue_timeouts = QueueTimeouts(pools, leases, timers, out)
        self.parked_calls = ParkedCallWatch(pools, asks, self.queue_timeouts, timers)
        self.late_answers = 0
        self.unknown_answers = 0

    # --- a call arrives --------------------------------------------------------------------------------

    def admit(self, call: Call, now: float) -> Pool | None:
        """Place a call, queue it, or refuse it. Returns the pool if it should grow."""
        found = place_call(call, self._pools, self._leases, now)
        if isinstance(found, CallFailed):
            self._emit(found)
            return None
        if isinstance(found, LeaseLost):
            pool = self._pools[call.key]
            self._fail_state_lost(call.call, found)
            if found.is_news:
                self.place_waiting_elsewhere(pool, now)
            return pool
        if found is not None and call.instance:  # about a task
            self.calls[call.call] = pool_call = PoolCall(call, timeout_of(found.pool.policy, call))
            self._place(pool_call, found, now)
            return None
        pool = self._pools[call.key]
        pool_call = self.calls[call.call] = PoolCall(call, timeout_of(pool.policy, call))
        if found is None:
            self._wait(pool, pool_call, now)
            return pool
        was_held = pool.mode == "session" and self._leases.is_used(found.id)
        self._place(pool_call, found, now)
        if not pool.plain:
            # A further call of a session that holds its instance changes no demand. With many sessions it
            # would cost each call a look at all of their instances.
            return None if was_held and not pool.queue else pool
        busy = len(found.in_flight) > pool.policy.scale_up_at and len(pool.serving) < pool.max_instances
        return pool if busy else None

    def place_waiting(self, pool: Pool, now: float) -> None:
        """Place as many waiting calls as instances can take, pending retries first."""
        for opened in self._retries.retry_waiting(pool):
            self.timeouts.restart_idle(opened, now)
        if pool.paused:
            return
        if not pool.plain:
            self._place_by_session(pool, now)
            return
        while pool.queue:
            found = next_placeable(pool, self.calls)
            if found is None:
                return
            session, instance = found
            call = pool.queue.pop_for(session)
            self.queue_timeouts.call_left_queue(call)
            self._place(self.calls[call], instance, now)

    def locate_calls(self, calls: Iterable[CallId]) -> list[CallPlace]:
        """Where each of these calls is; calls that are not open are left out."""
        return [_place_of(self.calls[call]) for call in calls if call in self.calls]

    def announce_node(self, call: CallId) -> None:
        """Tell a new broker at which other node an open call is, if it is at one."""
        instance = self.calls[call].instance
        if instance is not None and instance.node:
            self._emit(CallAtNode(call, instance.node))

    def lowest_placeable(self, oldest: CallId) -> CallId:
        """The lowest number of a call that may still be placed: a placed call that never reached its instance
        is placed again. `oldest`: the lowest number of calls that are still to come.
        """
        return min((oldest, *self.calls))

    def instance_freed(self, instance: Instance, now: float) -> None:
        """The instance has room or takes calls again, or its holder has lost it: place waiting calls, also
        those of pools that its pool has replaced, and of those that replaced it.
        """
        self.place_waiting(instance.pool, now)
        self.place_waiting_elsewhere(instance.pool, now)

    def place_waiting_elsewhere(self, pool: Pool, now: float) -> None:
        """Place waiting calls of all other pools of this server, older and newer."""
        for other in self._pools.waiting_of(pool.server):
            if other is not pool:
                self.place_waiting(other, now)

    def place_waiting_at_server(self, server: ServerName, now: float) -> None:
        """Place waiting calls of all pools of this server, until no call moves."""
        waiting = self._pools.waiting_of(server)
        before = -1
        while (left := sum(len(pool.queue) for pool in waiting)) and left != before:
            before = left
            for pool in waiting:
                self.place_waiting(pool, now)

    def _place_by_session(self, pool: Pool, now: float) -> None:
        """Sessions take turns, but one that cannot go holds up no other. Calls in other pools of the server
        come last, because placing them may serve this pool again.
        """
        told = False
        moved = True
        while moved:
            moved = False
            full: set[bool] = set()
            been: set[SessionId] = set()
            for session in pool.queue.sessions():
                call = pool.queue.head(session)
                can_ask = self.calls[call].call.method in CAN_ASK
                if can_ask in full or pool.queue.turn_of(session) in been:
                    continue  # if one call of a kind finds no free slot, none does; calls of one turn go once
                verdict = self._try_place(pool, self.calls[call], now)
                if verdict == "waits":
                    if only_free_slots_decide(pool, self._leases):
                        full.add(can_ask)
                else:
                    told = told or verdict == "told"
                    been.add(pool.queue.turn_of(session))
                    pool.queue.pop_for(session)
                    self.queue_timeouts.call_left_queue(call)
                    self._session_left_queue(pool, session)
                    moved = True
        if told:
            self.place_waiting_elsewhere(pool, now)
        if not (pool.wanted or pool.queue):
            pool.touch()  # it may be gone now

    def _try_place(self, pool: Pool, pool_call: PoolCall, now: float) -> Literal["waits", "leaves", "told"]:
        """Place a waiting call, or end it because the state that it relies on is lost. `told`: its session
        hears of this loss for the first time, and its calls in other pools of the server must hear of it too.
        """
        found = find_instance(pool_call.call, pool, self._pools, self._leases, now)
        if found is None:
            return "waits"
        if isinstance(found, LeaseLost):
            del self.calls[pool_call.call.call]
            self._fail_state_lost(pool_call.call.call, found)
            return "told" if found.is_news else "leaves"
        self._place(pool_call, found, now)
        return "leaves"

    def _fail_state_lost(self, call: CallId, loss: LeaseLost) -> None:
        self._emit(CallFailed(call, "state_lost", "no", state_lost_text(loss.cause)))

    def _place(self, pool_call: PoolCall, instance: Instance, now: float) -> None:
        wire = WireId(instance.next_wire)
        instance.next_wire += 1
        instance.calls += 1
        instance.in_flight[wire] = pool_call
        if instance.turns:
            instance.count_turn(pool_call)
        pool_call.instance, pool_call.wire = instance, wire
        if not instance.pool.plain:
            self._leases.call_started(instance.id)
            if instance.node:
                self._emit(CallAtNode(pool_call.call.call, instance.node))
        call = pool_call.call
        self.timeouts.call_started(pool_call, instance.pool.policy.max_total_s, now)
        may_ask = instance.pool.asking and call.method in CAN_ASK and instance.era == "handshake"
        if may_ask or call.traced:
            # Only traced calls and those of a server that may ask get trace contexts; all others stay cheap.
            pool_call.placed_at = now
            call, pool_call.trace = self._asks.with_trace(call)
        elif call.timed:
            pool_call.placed_at = now
        self._emit(WriteCall(instance.id, wire, call))

    def _wait(self, pool: Pool, pool_call: PoolCall, now: float) -> None:
        call = pool_call.call
        if call.timed:
            pool_call.queued_at = now
        for dropped in pool.queue.add(call.session, call.call, pool_call.size_bytes, call.principal):
            self.queue_timeouts.call_left_queue(dropped)
            session = self.calls.pop(dropped).call.session
            self._emit(CallFailed(dropped, "waiting_line_full", "no", "", 1.0))
            self._session_left_queue(pool, session)
        if call.call in self.calls:
            self.queue_timeouts.call_queued(pool_call, pool, now)
            if not pool.plain:
                self._pools.note_waiting(pool)
            self.parked_calls.watch(pool, now)

    # --- the server speaks -----------------------------------------------------------------------------

    def call_answered(self, instance: Instance, event: ServerAnswered, now: float) -> bool:
        """Handle the server's answer. Returns False if it belongs to no open call: late, repeated or
        invented.
        """
        opened = self._remove_in_flight(instance, event.wire, now)
        if opened is not None:
            call = opened.call.call
            if event.state_lost and self._leases.holder(instance.id) is not None:
                # Reported by carpool's own bridge: more calls may be on their way to the lost state.
                self._leases.loss_reported_by_server(opened.call, instance.pool.server)
                self._emit(CallFailed(call, "state_lost", "no", state_lost_text("remote")))
            elif event.is_error and opened.url_elicitation_first:
                self._emit(CallAnswered(call, True, event.body, True, urls=opened.urls))
            elif event.task:
                task, ttl_ms, where = event.task, event.task_ttl_ms, instance.id
                self._emit(
                    CallAnswered(call, False, event.body, task=task, task_ttl_ms=ttl_ms, instance=where)
                )
            else:
                self._emit(CallAnswered(call, event.is_error, event.body, False, event.ttl_ms, event.public))
        elif event.state_lost:
            return False  # the instance is replaced: a call that waits is not for it
        if not instance.pool.plain:  # a late answer frees a slot too
            self.instance_freed(instance, now)
        elif instance.pool.queue:
            self.place_waiting(instance.pool, now)
        return opened is not None

    def answer_unreadable(
        self, instance: Instance, wire_id: WireId, fault: str, text: str, now: float
    ) -> None:
        """The server's answer breaks the protocol: its call ends at once (rule 17)."""
        opened = self._remove_in_flight(instance, wire_id, now)
        if opened is not None:
            self._emit(CallFailed(opened.call.call, fault, "maybe", text))
            self._log_ended_calls(instance, f"its answer was invalid ({fault})", opened)
        self.instance_freed(instance, now)

    def call_progressed(self, instance: Instance, wire_id: WireId, params: Payload, now: float) -> None:
        """Progress restarts the idle deadline, until the total one comes first."""
        opened = instance.in_flight.get(wire_id)
        if opened is None:
            stopped_calls.call_goes_on(instance, wire_id, now)
            return
        self.timeouts.restart_idle(opened, now)
        if opened.call.wants_progress:
            self._emit(CallProgressed(opened.call.call, params))

    def _remove_in_flight(self, instance: Instance, wire_id: WireId, now: float) -> PoolCall | None:
        opened = instance.in_flight.pop(wire_id, None)
        if opened is None:
            if instance.abandoned.pop(wire_id, None) is not None:
                self.late_answers += 1
            else:
                self.unknown_answers += 1
            return None
        if instance.turns:
            instance.uncount_turn(opened)
        if not instance.in_flight:
            instance.idle_since = now
        if not instance.pool.plain:
            self._leases.call_ended(instance.id, now)
        call = opened.call.call
        del self.calls[call]
        self.timeouts.call_ended(call)
        if opened.asks:
            self._asks.call_ended(opened, now)
        if opened.awaits_retry:
            self._retries.call_ended(opened)
        if opened.call.traced or opened.call.timed:
            self._emit(_timed(opened, instance, now))
        return opened

    # --- a call ends without an answer -----------------------------------------------------------------

    def cancel_call(self, call: CallId, reason: str, now: float) -> Pool | None:
        """The agent no longer wants it. Returns the pool whose instance may now be drained."""
        opened = self.calls.get(call)
        if opened is None:
            return None
        if opened.instance is None:
            self._leave_queue(self._pools[opened.call.key], opened)
            return None
        instance = opened.instance
        self._abandon(opened, reason, now)
        self.instance_freed(instance, now)
        return instance.pool

    def end_by_operator(self, call: CallId, now: float) -> Pool | None:
        """An operator has cancelled it. Returns the pool whose instance may now be drained."""
        opened = self.calls.get(call)
        if opened is None:
            return None
        if opened.instance is None:
            self._leave_queue(self._pools[opened.call.key], opened)
            self._emit(CallFailed(call, "operator_cancelled_unsent", "no", ""))
            return None
        instance = opened.instance
        self._log_ended_calls(instance, "an operator cancelled a call", opened)
        self._abandon(opened, "an operator cancelled it", now)
        self._emit(CallFailed(call, "operator_cancelled", "maybe", ""))
        self.instance_freed(instance, now)
        return instance.pool

    def end_queued(self, calls: Iterable[CallId], now: float) -> None:
        """End these calls, which have waited in their queues for too long."""
        for call in calls:
            opened = self.calls[call]
            pool = self._pools[opened.call.key]
            self._leave_queue(pool, opened)
            slug = "paused" if pool.paused else "waited_too_long"
            self._emit(CallFailed(call, slug, "no", wait_expired_text(pool, now), 5.0))

    def end_running(self, calls: Iterable[CallId], slug: TimeoutFault, now: float) -> list[Pool]:
        """End these calls in flight, whose deadline has passed. Returns the pools that lost one."""
        who = "its agent has not come back" if slug == "agent_away" else "it has not answered"
        touched: dict[str, Pool] = {}
        for call in calls:
            opened = self.calls[call]
            assert opened.instance is not None
            pool = opened.instance.pool
            text = timeout_text(slug, pool, opened)
            if opened in self._retries:
                text = f"It waited to be sent again, while other calls ran on that instance. {text}"
            self._log_ended_calls(opened.instance, f"{who} in time ({slug})", opened)
            self._abandon(opened, "timed out", now)
            self._emit(CallFailed(call, slug, "maybe", text))
            touched[pool.key] = pool
        for pool in touched.values():
            self.place_waiting(pool, now)
            self.place_waiting_elsewhere(pool, now)
        return list(touched.values())

    def instance_lost(
        self, instance: Instance, unwritten: Iterable[WireId], slug: str, text: str, now: float
    ) -> None:
        """The instance can give no answer any more: its calls end, or wait again if they were never
        delivered.
        """
        self._asks.instance_lost(instance, now)
        again = set(unwritten)
        undelivered: list[PoolCall] = []
        delivered: list[PoolCall] = []
        for wire in list(instance.in_flight):
            opened = self._remove_in_flight(instance, wire, now)
            if opened is None:  # pragma: no cover - we iterate over what is there
                continue
            if wire in again:
                undelivered.append(opened)
            else:
                self._emit(CallFailed(opened.call.call, slug, "maybe", text))
                delivered.append(opened)
        if delivered:
            self._log_ended_calls(instance, f"it is gone, and its calls with it ({slug})", *delivered)
        instance.abandoned.clear()
        self._place_again(undelivered, now)

    def calls_undelivered(self, instance: Instance, unwritten: Iterable[WireId], now: float) -> None:
        """These calls never reached this instance, which takes no more: place them elsewhere."""
        found = [wire for wire in unwritten if wire in instance.in_flight]
        self._place_again(
            [opened for wire in found if (opened := self._remove_in_flight(instance, wire, now))], now
        )

    def _place_again(self, undelivered: list[PoolCall], now: float) -> None:
        """Each call is the next of its session again. A call that can run nowhere else ends."""
        for opened in reversed(undelivered):
            if opened.call.instance:
                self._emit(CallFailed(opened.call.call, "unavailable", "no", "", 1.0))
            else:
                self._requeue(opened, now)
        for key in {opened.call.key for opened in undelivered} & self._pools.keys():
            self.place_waiting(self._pools[key], now)

    def _log_ended_calls(self, instance: Instance, what: str, *calls: PoolCall) -> None:
        """Log calls that end badly by the names that agents, audit and story use."""
        named = ", ".join(call_name(each.call.call) for each in calls[:NAMED_CALLS])
        more = f" and {len(calls) - NAMED_CALLS} more" if len(calls) > NAMED_CALLS else ""
        server = instance.pool.server
        self._emit(
            WriteLogLine("warning", f"{server} #{instance.id}: {what}: {named}{more}", server, instance.id)
        )

    def _requeue(self, pool_call: PoolCall, now: float) -> None:
        """Put a call that was never delivered back at the head of its session."""
        call = pool_call.call
        pool = self._pools.get(call.key)  # after a reload this may differ from the pool of its instance
        refusal = refused_call(call.call, pool, now)
        if pool is None or refusal is not None:  # no instance will serve that queue
            if refusal is not None:
                self._emit(refusal)
            return
        pool_call.instance = None
        self.calls[call.call] = pool_call
        pool.queue.put_back(call.session, call.call, pool_call.size_bytes, call.principal)
        if not pool.plain:
            self._pools.note_waiting(pool)
        self.queue_timeouts.call_queued(pool_call, pool, now)
        self.parked_calls.watch(pool, now)

    def fail_waiting(self, pool: Pool, slug: str, text: str, retry_after_s: float | None = None) -> None:
        """End all queued calls of a pool as not delivered, because no instance will serve them."""
        for session in pool.queue.sessions():
            self.fail_waiting_of_session(session, pool, slug, text, retry_after_s)

    def fail_waiting_of_session(
        self, session: SessionId, pool: Pool, slug: str, text: str, retry_after_s: float | None = None
    ) -> None:
        """End all queued calls of one session in this pool, as not delivered."""
        for call in pool.queue.for_session(session):
            self._leave_queue(pool, self.calls[call])
            self._emit(CallFailed(call, slug, "no", text, retry_after_s))

    def abandon_all(self, now: float) -> None:
        """Cancel all calls without a message: no session wants an answer any more."""
        for opened in list(self.calls.values()):
            if opened.instance is None:
                self._leave_queue(self._pools[opened.call.key], opened)
            else:
                self._abandon(opened, "the agent is gone", now)
        for pool in self._pools.values():
            for instance in pool.instances.values():
                instance.forget_sessions()

    def is_asked(self, call: CallId) -> bool:
        """True if its agent must give input that a retry brings (stateless era)."""
        opened = self.calls.get(call)
        return opened is not None and opened.asks > 0 and opened.call.can is not None

    def _leave_queue(self, pool: Pool, pool_call: PoolCall) -> None:
        call = pool_call.call.call
        pool.queue.remove(pool_call.call.session, call)
        self.queue_timeouts.call_left_queue(call)
        del self.calls[call]
        self._session_left_queue(pool, pool_call.call.session)
        pool.touch()

    def _session_left_queue(self, pool: Pool, session: SessionId) -> None:
        if not pool.plain and not pool.queue.has_session(session):
            self._leases.stop_waiting(session, pool.key)

    def _abandon(self, pool_call: PoolCall, reason: str, now: float) -> None:
        instance = pool_call.instance
        assert instance is not None
        wire = pool_call.wire
        self._remove_in_flight(instance, wire, now)
        call = pool_call.call
        instance.abandoned[wire] = AbandonedCall(
            call.call, call.session, call.method in CAN_ASK, pool_call.trace, now, now + pool_call.timeout_s
        )
        if len(instance.abandoned) > MAX_ABANDONED and self._leases.holder(instance.id) is not None:
            del instance.abandoned[next(iter(instance.abandoned))]
        if instance.state in (InstanceState.SERVING, InstanceState.DRAINING):
            self._emit(WriteCancel(instance.id, wire, reason))
            is_shared = self._leases.holder(instance.id) is None
            if is_shared and call.method in CAN_ASK and not instance.is_stdin_closed:
                stopped_calls.cancel_written(instance, wire, self._emit)

    def check_call(self, call: CallId) -> None:
        """Assert that this call has the limits of its state, and none once it is over."""
        opened = self.calls.get(call)
        self.timeouts.check_call(call, opened)
        self.queue_timeouts.check_call(call, opened)
        if opened is not None and opened.instance is not None:
            assert opened.instance.in_flight.get(opened.wire) is opened, f"call {call} is not where it runs"
            holder = self._leases.holder(opened.instance.id)
            assert holder in (None, opened.call.session), f"call {call} runs on another's instance"

    def check(self) -> None:
        """Assert every invariant."""
        for call in self.calls:
            self.check_call(call)
        in_flight = sum(len(i.in_flight) for p in self._pools.values() for i in p.instances.values())
        waiting = sum(len(p.queue) for p in self._pools.values())
        assert in_flight + waiting == len(self.calls), "a call is nowhere or twice"
        for pool in self._pools.values():
            for each in pool.serving:
                held = self._leases.holder(each.id) is not None
                assert held or len(each.abandoned) < MAX_ABANDONED, f"instance {each.id} is to be replaced"
                each.check_turns()
            check_line(pool, self.calls, self._pools, self._leases)
        self.parked_calls.check()
        self.timeouts.check(self.calls)
        self.queue_timeouts.check(self.calls)


def _timed(opened: PoolCall, instance: Instance, now: float) -> CallTimed:
    """Return how long a call has waited, and how long its server has had it."""
    span = "" if opened.trace is None or not opened.call.traced else opened.trace.span
    waited_s = 0.0 if opened.queued_at < 0 else opened.placed_at - opened.queued_at
    return CallTimed(opened.call.call, span, now - opened.placed_at, instance.id, waited_s)
