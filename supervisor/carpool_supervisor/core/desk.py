"""Which instance runs which call, how long, and how each call ends.

Owns the open calls: placement, waiting lines, wire ids, deadlines. Every call that enters leaves
exactly once, as `Answered`, as `Failed`, or cancelled without a word.

Invariants (`check`): a wire id names at most one open call of its instance and is never reused;
a call is either in its pool's line or in flight on one instance, with one deadline armed: the first it
can reach; a pool whose line is not empty has no instance that could take the next call.

Knows nothing of: how instances start and end (`roster`), JSON, sessions' rights.
"""

from collections.abc import Callable, Iterable
from typing import Literal

from carpool_protocol.deadlines import Deadlines
from carpool_protocol.ids import CallId, WireId
from carpool_protocol.messages import Answered, Call, Failed, Payload, Progressed
from carpool_supervisor.core.effects import AnyEffect, WriteCall, WriteCancel
from carpool_supervisor.core.lifecycle import State
from carpool_supervisor.core.pool import Calls, Instance, OpenCall, Pool, Pools, timeout_of

MAX_LINGERING = 1024
"""Calls per instance that ended for the agent but not for the server; older ones are forgotten, and
their late answers dropped as unknown."""


class Desk:
    """All open calls of the supervisor."""

    def __init__(self, pools: Pools, out: Callable[[AnyEffect], None]) -> None:
        self._pools = pools
        self._out = out
        self.calls: Calls = {}
        self.idle: Deadlines[CallId] = Deadlines()
        self.total: Deadlines[CallId] = Deadlines()
        self.waits: Deadlines[CallId] = Deadlines()
        self.late_answers = 0
        self.unknown_answers = 0

    # --- a call comes ----------------------------------------------------------------------------------

    def admit(self, call: Call, now: float) -> Pool | None:
        """Place a call, put it in line, or refuse it. Returns the pool if it should grow."""
        pool = self._pools.get(call.key)
        refusal = no_entry(pool)
        if pool is None or refusal is not None:
            slug, text, retry_after_s = refusal or GONE_POOL
            self._out(Failed(call.call, slug, "no", text, retry_after_s))
            return None
        opened = OpenCall(call, timeout_of(pool.policy, call))
        self.calls[call.call] = opened
        instance = None if pool.waiting else pool.pick()
        if instance is None:
            self._wait(pool, opened, now)
            return pool
        self._place(opened, instance, now)
        policy = pool.policy
        busy = len(instance.in_flight) > policy.scale_up_at and len(pool.serving) < policy.max_instances
        return pool if busy else None

    def serve(self, pool: Pool, now: float) -> None:
        """Place what waits, as far as instances can take it."""
        while pool.waiting:
            instance = pool.pick()
            if instance is None:
                return
            call = pool.waiting.pop()
            self.waits.disarm(call)
            self._place(self.calls[call], instance, now)

    def _place(self, opened: OpenCall, instance: Instance, now: float) -> None:
        wire = WireId(instance.next_wire)
        instance.next_wire += 1
        instance.calls += 1
        instance.in_flight[wire] = opened
        opened.instance = instance
        opened.wire = wire
        call = opened.call
        max_total_s = instance.pool.policy.max_total_s
        opened.total_at = now + max_total_s
        if opened.timeout_s <= max_total_s:  # the total limit cannot be reached without progress
            self.idle.arm(call.call, now, opened.timeout_s)
        else:
            self.total.arm(call.call, now, max_total_s)
        self._out(WriteCall(instance.id, wire, call))

    def _wait(self, pool: Pool, opened: OpenCall, now: float) -> None:
        call = opened.call
        self.waits.arm(call.call, now, pool.policy.wait_s)
        for dropped in pool.waiting.add(call.session, call.call, opened.size_bytes):
            self.waits.disarm(dropped)
            del self.calls[dropped]
            self._out(Failed(dropped, "waiting_line_full", "no", "", 1.0))

    # --- the server speaks -----------------------------------------------------------------------------

    def answered(
        self, instance: Instance, wire: WireId, *, is_error: bool, body: Payload, now: float
    ) -> bool:
        """The server's answer. False when it belongs to no open call: late, double, or made up."""
        opened = self._off(instance, wire, now)
        if opened is None:
            return False
        self._out(Answered(opened.call.call, is_error, body))
        if instance.pool.waiting:
            self.serve(instance.pool, now)
        return True

    def unreadable(self, instance: Instance, wire: WireId, fault: str, text: str, now: float) -> None:
        """The server's answer breaks the protocol: its call ends at once (rule 17)."""
        opened = self._off(instance, wire, now)
        if opened is not None:
            self._out(Failed(opened.call.call, fault, "maybe", text))
            self.serve(instance.pool, now)

    def progressed(self, instance: Instance, wire: WireId, params: Payload, now: float) -> None:
        """Progress restarts the idle deadline, until the total one comes first."""
        opened = instance.in_flight.get(wire)
        if opened is None:
            return
        call = opened.call.call
        if now + opened.timeout_s <= opened.total_at:
            self.idle.arm(call, now, opened.timeout_s)
        elif self.idle.disarm(call):
            self.total.arm(call, now, opened.total_at - now)
        if opened.call.wants_progress:
            self._out(Progressed(call, params))

    def _off(self, instance: Instance, wire: WireId, now: float) -> OpenCall | None:
        opened = instance.in_flight.pop(wire, None)
        if opened is None:
            if instance.lingering.pop(wire, None) is not None:
                self.late_answers += 1
            else:
                self.unknown_answers += 1
            return None
        if not instance.in_flight:
            instance.idle_since = now
        call = opened.call.call
        del self.calls[call]
        if not self.idle.disarm(call):
            self.total.disarm(call)
        return opened

    # --- a call ends without an answer -----------------------------------------------------------------

    def cancel(self, call: CallId, reason: str, now: float) -> Pool | None:
        """The agent no longer wants it. Returns the pool whose instance may now be drained."""
        opened = self.calls.get(call)
        if opened is None:
            return None
        pool = self._pools[opened.call.key]
        if opened.instance is None:
            self._leave_line(pool, opened)
            return None
        self._linger(opened, reason, now)
        self.serve(pool, now)
        return pool

    def overdue(self, now: float) -> list[Pool]:
        """End the calls whose deadline has passed. Returns the pools that lost a call in flight."""
        for call in self.waits.due(now):
            opened = self.calls[call]
            pool = self._pools[opened.call.key]
            self._leave_line(pool, opened)
            why = "" if pool.serving else f" {last_error(pool)}"
            text = f"The limit is {pool.policy.wait_s:g} s.{why}"
            self._out(Failed(call, "waited_too_long", "no", text, 5.0))
        touched: dict[str, Pool] = {}
        expired: tuple[tuple[Deadlines[CallId], Literal["timed_out", "ran_too_long"]], ...] = (
            (self.idle, "timed_out"),
            (self.total, "ran_too_long"),
        )
        for deadlines, slug in expired:
            for call in deadlines.due(now):
                opened = self.calls[call]
                pool = self._pools[opened.call.key]
                self._linger(opened, "timed out", now)
                self._out(Failed(call, slug, "maybe", timeout_text(slug, pool, opened)))
                touched[pool.key] = pool
        for pool in touched.values():
            self.serve(pool, now)
        return list(touched.values())

    def instance_lost(
        self, instance: Instance, unwritten: Iterable[WireId], slug: str, text: str, now: float
    ) -> None:
        """No answer can come from this instance any more: its calls end, or wait again if never delivered."""
        again = set(unwritten)
        pool = instance.pool
        undelivered: list[OpenCall] = []
        for wire in list(instance.in_flight):
            opened = self._off(instance, wire, now)
            if opened is None:  # pragma: no cover - we iterate over what is there
                continue
            if wire in again:
                undelivered.append(opened)
            else:
                self._out(Failed(opened.call.call, slug, "maybe", text))
        instance.lingering.clear()
        refusal = no_entry(pool)
        if refusal is not None:  # nobody is going to serve that line any more
            slug, text, retry_after_s = refusal
            for opened in undelivered:
                self._out(Failed(opened.call.call, slug, "no", text, retry_after_s))
            return
        for opened in reversed(undelivered):
            opened.instance = None
            self.calls[opened.call.call] = opened
            self.waits.arm(opened.call.call, now, pool.policy.wait_s)
            pool.waiting.put_back(opened.call.session, opened.call.call, opened.size_bytes)
        if undelivered:
            self.serve(pool, now)

    def fail_waiting(self, pool: Pool, slug: str, text: str, retry_after_s: float | None = None) -> None:
        """Nobody will serve this line: each call in it ends, not delivered."""
        for call in pool.waiting.clear():
            self.waits.disarm(call)
            del self.calls[call]
            self._out(Failed(call, slug, "no", text, retry_after_s))

    def abandon_all(self, now: float) -> None:
        """Nobody is left who wants any answer (another broker came): cancel everything, say nothing."""
        for opened in list(self.calls.values()):
            if opened.instance is None:
                self._leave_line(self._pools[opened.call.key], opened)
            else:
                self._linger(opened, "the agent is gone", now)

    def _leave_line(self, pool: Pool, opened: OpenCall) -> None:
        call = opened.call.call
        pool.waiting.remove(opened.call.session, call)
        self.waits.disarm(call)
        del self.calls[call]

    def _linger(self, opened: OpenCall, reason: str, now: float) -> None:
        instance = opened.instance
        assert instance is not None
        wire = opened.wire
        self._off(instance, wire, now)
        instance.lingering[wire] = now + opened.timeout_s
        if len(instance.lingering) > MAX_LINGERING:
            del instance.lingering[next(iter(instance.lingering))]
        if instance.state in (State.SERVING, State.DRAINING):
            self._out(WriteCancel(instance.id, wire, reason))

    def next_deadline(self) -> float | None:
        """The earliest deadline of any call."""
        return min(
            (
                at
                for at in (self.idle.next_deadline(), self.total.next_deadline(), self.waits.next_deadline())
                if at is not None
            ),
            default=None,
        )

    def check(self) -> None:
        """Assert every invariant."""
        for call, opened in self.calls.items():
            pool = self._pools[opened.call.key]
            if opened.instance is None:
                assert call in self.waits, f"call {call} waits without a limit"
            else:
                assert opened.instance.in_flight[opened.wire] is opened
                assert opened.instance.pool is pool
                assert (call in self.idle) != (call in self.total), f"call {call} has not one deadline"
        in_flight = sum(len(i.in_flight) for p in self._pools.values() for i in p.instances.values())
        waiting = sum(len(p.waiting) for p in self._pools.values())
        assert in_flight + waiting == len(self.calls), "a call is nowhere or twice"
        for pool in self._pools.values():
            pool.waiting.check()
            assert not (pool.waiting and pool.pick()), f"{pool.key} has a line and room"


GONE_POOL = ("draining", "Its configuration has just changed.", 0.5)


def no_entry(pool: Pool | None) -> tuple[str, str, float | None] | None:
    """Why no call may enter this pool now: (fault, detail, retry_after_s), or None."""
    if pool is None or not pool.wanted:
        return GONE_POOL
    if pool.stopped:
        return ("stopped", "", None)
    if pool.restart.given_up and not pool.serving:
        return ("given_up", last_error(pool), None)
    return None


def last_error(pool: Pool) -> str:
    """What went wrong last, as a sentence, or nothing."""
    return f"Its last error: {pool.last_error}." if pool.last_error else ""


def given_up_text(pool: Pool) -> str:
    """For the operator: why nothing starts any more."""
    failures = "a failure" if pool.restart.failures == 1 else f"{pool.restart.failures} failures in a row"
    return (
        f"not restarted by itself after {failures}. {last_error(pool)}"
        f" See `carpool logs {pool.server}`; `carpool start {pool.server}` tries again."
    )


def timeout_text(slug: Literal["timed_out", "ran_too_long"], pool: Pool, opened: OpenCall) -> str:
    """The limit that was reached."""
    return f"The limit is {opened.timeout_s if slug == 'timed_out' else pool.policy.max_total_s:g} s."
