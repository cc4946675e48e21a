"""Leases: one session, one instance, and one report when state is lost."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from carpool_protocol.ids import InstanceId, PoolKey, ServerName, SessionId
from carpool_supervisor.core.calls.leases import (
    IDLE_S,
    LeaseEnded,
    LeaseHeld,
    LeaseLost,
    LeaseQueued,
    Leases,
)
from carpool_supervisor.core.model.loss_causes import LOSS_CAUSES, LossCause
from carpool_supervisor.core.model.timer_kinds import supervisor_timers
from tests.behaviours import behaviour

A, B, C = SessionId("s1"), SessionId("s2"), SessionId("s3")
WEB, NEXT, EDIT = PoolKey("web"), PoolKey("web:1"), PoolKey("edit")
SERVERS = {WEB: ServerName("web"), NEXT: ServerName("web"), EDIT: ServerName("edit")}
"""Two pools are of one server: one takes the other's place after a reload."""
I1, I2, I3 = InstanceId(1), InstanceId(2), InstanceId(3)


def empty(idle_s: float = IDLE_S) -> Leases:
    """Nobody holds anything."""
    table = Leases(supervisor_timers())
    for pool, server in SERVERS.items():
        table.pool_wanted(pool, server, idle_s)
    return table


def leased(*, used: bool = True) -> Leases:
    """A holds instance 1 of WEB, since time 0."""
    table = empty()
    table.instance_offered(I1, WEB, 0.0)
    assert table.acquire(A, WEB, 0.0) == LeaseHeld(I1, fresh=True)
    if used:
        table.call_started(I1)
        table.call_ended(I1, 0.0)
    return table


@behaviour("lease:exclusive", "lease:spares")
def test_a_spare_is_leased_at_once_and_stays_its_holders() -> None:
    table = leased()
    assert table.acquire(A, WEB, 1.0) == LeaseHeld(I1, fresh=False)
    assert table.acquire(B, WEB, 1.0) == LeaseQueued()
    assert table.holder(I1) == A
    assert table.held_instance(A, SERVERS[WEB]) == (WEB, I1)
    table.check()


def test_the_session_that_waits_longest_gets_the_next_instance() -> None:
    table = empty()
    assert table.acquire(A, WEB, 0.0) == LeaseQueued()
    assert table.acquire(B, WEB, 0.0) == LeaseQueued()
    assert table.acquire(A, WEB, 0.0) == LeaseQueued(is_new=False)
    assert table.waiting_sessions(WEB) == (A, B), "asking again keeps the place"
    assert table.instance_offered(I1, WEB, 1.0) == A
    assert table.acquire(A, WEB, 1.0) == LeaseHeld(I1, fresh=False)
    assert table.waiting_sessions(WEB) == (B,)


def test_a_session_holds_one_instance_of_a_server_whichever_of_its_pools_it_asks() -> None:
    table = empty()
    for pool in (WEB, NEXT, EDIT):
        assert table.acquire(A, pool, 0.0) == LeaseQueued()
    assert table.instance_offered(I1, NEXT, 1.0) == A
    assert table.waiting_sessions(WEB) == ()
    assert table.waiting_sessions(EDIT) == (A,)
    assert table.acquire(A, WEB, 1.0) == LeaseHeld(I1, fresh=False)
    table.check()


def test_a_session_that_stopped_waiting_gets_no_instance() -> None:
    table = empty()
    table.acquire(A, WEB, 0.0)
    table.stop_waiting(A, WEB)
    assert table.instance_offered(I1, WEB, 1.0) is None
    assert table.spare_count(WEB) == 1


@behaviour("lease:with-holder")
def test_a_lease_dies_with_its_holder_and_so_does_its_place_in_line() -> None:
    table = leased()
    table.acquire(A, EDIT, 1.0)
    assert table.session_closed(A) == [LeaseEnded(I1, A, WEB)]
    assert table.waiting_sessions(EDIT) == ()
    assert table.holder(I1) is None
    table.check()


def test_a_loss_at_any_version_of_a_server_is_told_once() -> None:
    table = leased()
    table.instance_lost(I1, "reload")
    assert table.acquire(B, NEXT, 1.0) == LeaseQueued()
    assert table.acquire(A, EDIT, 1.0) == LeaseQueued()
    assert table.has_lost(A, SERVERS[NEXT])
    assert table.acquire(A, NEXT, 1.0) == LeaseLost("reload", is_news=True)
    assert not table.any_lost
    assert table.acquire(A, WEB, 1.0) == LeaseQueued()


@behaviour("lease:returned-ended", "lease:next-in-line")
def test_the_next_in_line_is_served_by_a_new_instance_not_by_the_returned_one() -> None:
    table = leased()
    assert table.acquire(B, WEB, 1.0) == LeaseQueued()
    table.session_closed(A)
    assert table.waiting_sessions(WEB) == (B,)
    assert table.instance_offered(I2, WEB, 2.0) == B


@behaviour("lease:crash:one-state-lost")
def test_a_crash_gives_one_state_lost_with_its_cause_and_then_a_fresh_instance() -> None:
    table = leased()
    assert table.instance_lost(I1, "crash") == LeaseEnded(I1, A, WEB)
    assert table.acquire(A, WEB, 1.0) == LeaseLost("crash", is_news=True)
    assert table.acquire(A, WEB, 1.0) == LeaseQueued()
    assert table.instance_offered(I2, WEB, 2.0) == A
    assert table.acquire(A, WEB, 2.0) == LeaseHeld(I2, fresh=False)


def test_a_warm_spare_does_not_hide_the_loss() -> None:
    table = leased()
    table.instance_offered(I2, WEB, 0.0)
    table.instance_lost(I1, "crash")
    assert table.acquire(A, WEB, 1.0) == LeaseLost("crash", is_news=True)
    assert table.acquire(A, WEB, 1.0) == LeaseHeld(I2, fresh=True)


def test_a_lease_that_no_call_ever_used_holds_no_state_to_lose() -> None:
    table = leased(used=False)
    table.instance_lost(I1, "crash")
    assert table.acquire(A, WEB, 1.0) == LeaseQueued()


def test_a_loss_concerns_its_session_and_its_server_only() -> None:
    table = leased()
    table.instance_lost(I1, "crash")
    assert table.acquire(B, WEB, 1.0) == LeaseQueued()
    assert table.acquire(A, EDIT, 1.0) == LeaseQueued()
    table.session_closed(A)
    assert table.acquire(A, WEB, 1.0) == LeaseQueued(), "a session that is gone is told nothing"


@behaviour("lease:idle")
def test_an_idle_lease_ends_at_its_limit_and_its_holder_is_told() -> None:
    table = leased()
    assert table.idle_timers.next_deadline() == 1800.0
    assert table.end_idle(table.idle_timers.due(1799.0)) == []
    assert table.end_idle(table.idle_timers.due(1800.0)) == [LeaseEnded(I1, A, WEB)]
    assert table.acquire(A, WEB, 1801.0) == LeaseLost("idle", is_news=True)
    assert table.idle_timers.next_deadline() is None


@behaviour("lease:idle")
def test_a_lease_in_use_is_never_idle_however_long_it_takes() -> None:
    table = leased()
    table.call_started(I1)
    table.call_started(I1)
    table.call_ended(I1, 5000.0)
    assert table.end_idle(table.idle_timers.due(9000.0)) == []
    table.call_ended(I1, 10_000.0)
    assert table.idle_timers.next_deadline() == 11_800.0


def test_a_spare_that_dies_is_forgotten() -> None:
    table = empty()
    table.instance_offered(I1, WEB, 0.0)
    assert table.instance_lost(I1, "crash") is None
    assert table.acquire(A, WEB, 0.0) == LeaseQueued()


@behaviour("lease:reload")
def test_after_a_reload_the_loss_is_told_at_the_new_pool() -> None:
    table = leased()
    table.instance_offered(I2, WEB, 0.0)
    table.acquire(B, WEB, 0.0)
    table.call_started(I2)
    table.instance_lost(I2, "crash")
    assert table.acquire(B, NEXT, 1.0) == LeaseLost("crash", is_news=True)
    assert table.held_instance(A, SERVERS[WEB]) == (WEB, I1), "it lasts as long as its instance drains"
    assert table.instance_lost(I1, "reload") == LeaseEnded(I1, A, WEB)
    assert table.acquire(A, NEXT, 1.0) == LeaseLost("reload", is_news=True)
    assert table.acquire(A, NEXT, 1.0) == LeaseQueued()


@behaviour("lease:supervisor-restart")
def test_a_new_supervisor_tells_of_leases_of_the_old_one() -> None:
    table = empty()
    table.loss_reported_by_broker(A, SERVERS[WEB], "supervisor")
    assert table.acquire(A, WEB, 0.0) == LeaseLost("supervisor", is_news=True)
    assert table.acquire(A, WEB, 0.0) == LeaseQueued()


@behaviour("lease:never-silently")
def test_a_removed_pool_leaves_only_losses_to_tell() -> None:
    table = leased()
    table.acquire(B, WEB, 0.0)
    assert table.pool_gone(WEB) == [LeaseEnded(I1, A, WEB)]
    table.pool_wanted(WEB, SERVERS[WEB])
    assert table.waiting_sessions(WEB) == ()
    assert table.acquire(B, WEB, 0.0) == LeaseQueued()
    assert table.acquire(A, WEB, 0.0) == LeaseLost("reload", is_news=True), "it has come back"
    table.pool_gone(WEB)
    table.session_closed(A)
    assert not table.any_lost


@behaviour("wait:cap-yields-lease")
def test_a_waiting_session_with_an_idle_lease_gives_it_up_first() -> None:
    table = leased()
    table.instance_offered(I2, WEB, 0.0)
    table.acquire(B, WEB, 0.0)
    assert table.pick_victim(()) is None, "nobody waits"
    assert table.pick_victim({C}) is None, "who waits holds nothing, and who holds does not wait"
    assert table.pick_victim({B, C}) == I2
    table.call_started(I2)
    assert table.pick_victim({B, C}) is None, "it is in use"


def test_the_longest_idle_of_two_sessions_that_wait_for_each_other_gives_up_its_lease() -> None:
    table = leased()
    table.instance_offered(I2, EDIT, 5.0)
    table.acquire(B, EDIT, 5.0)
    assert table.pick_victim({A, B}) == I1
    table.instance_lost(I1, "needed")
    assert table.acquire(A, WEB, 7.0) == LeaseLost("needed", is_news=True)


def held_by(*turns: str) -> Leases:
    """Each of these principals or sessions holds one instance more of WEB than the number of those before it
    of the same name; all are idle, the first for longest.
    """
    table = empty()
    for number, turn in enumerate(turns, start=1):
        instance = InstanceId(number)
        table.instance_offered(instance, WEB, float(number))
        assert table.acquire(SessionId(f"{turn}{number}"), WEB, float(number), turn) == LeaseHeld(
            instance, True
        )
    return table


def pick(table: Leases, now: float, coming: int = 0) -> InstanceId | None:
    return table.pick_from_largest_turn(
        WEB, lambda: table.turn_shares([WEB]), coming=coming, now=now, grace_s=10.0
    )


@behaviour("lease:shared-out")
def test_the_longest_idle_instance_of_the_token_with_most_goes_to_one_that_has_waited_for_a_while() -> None:
    table = held_by("x", "many", "many", "many", "x")
    assert pick(table, 1000.0) is None, "nobody waits"
    table.acquire(A, WEB, 100.0)
    assert pick(table, 109.0) is None, "it has not waited for the grace"
    assert table.next_to_wait_for(WEB, 10.0, 109.0) == 110.0
    assert pick(table, 110.0) == InstanceId(2)
    assert table.next_to_wait_for(WEB, 10.0, 110.0) is None
    assert pick(table, 110.0, coming=1) is None, "an instance for it starts already"
    table.call_started(InstanceId(2))
    assert pick(table, 110.0) == InstanceId(3)
    table.call_started(InstanceId(3))
    table.call_started(InstanceId(4))
    assert pick(table, 110.0) is None, "another token that holds less pays nothing for it"


@behaviour("lease:shared-out")
def test_a_token_gives_back_no_more_than_leaves_it_one_more_than_each_that_waits() -> None:
    table = held_by("many", "many", "many", "many")
    for session in (A, B, C):
        table.acquire(session, WEB, 100.0)
    table.acquire(SessionId("m"), WEB, 50.0, "many")
    ended: list[InstanceId] = []
    while (instance := pick(table, 200.0, coming=len(ended))) is not None:
        table.instance_lost(instance, "share")
        ended.append(instance)
    assert ended == [InstanceId(1), InstanceId(2), InstanceId(3)]
    for number, session in enumerate((A, B, C), start=5):
        assert table.instance_offered(InstanceId(number), WEB, 200.0) == session
    assert pick(table, 300.0) is None, "its own session waits for more"


@behaviour("lease:shared-out")
def test_agents_that_hold_one_instance_each_keep_it() -> None:
    table = empty()
    for number, session in enumerate((A, B), start=1):
        table.instance_offered(InstanceId(number), WEB, 0.0)
        table.acquire(session, WEB, 0.0)
    table.acquire(C, WEB, 0.0)
    assert pick(table, 1000.0) is None


def test_a_free_instance_goes_to_whoever_holds_fewest_and_of_these_to_the_first() -> None:
    table = held_by("many", "many")
    for session, principal in ((A, "many"), (B, "one"), (C, "one")):
        table.acquire(session, WEB, 10.0, principal)
    assert table.waiting_sessions(WEB) == (B, C, A)
    assert table.instance_offered(InstanceId(3), WEB, 11.0) == B
    assert table.waiting_sessions(WEB) == (C, A)
    table.check()


def test_a_lease_of_which_no_call_was_delivered_holds_no_state_to_lose() -> None:
    table = leased()
    table.mark_unused(I1)
    table.instance_lost(I1, "crash")
    assert table.acquire(A, WEB, 1.0) == LeaseQueued()


@behaviour("lease:idle")
def test_each_pool_has_its_own_idle_limit() -> None:
    table = empty()
    table.pool_wanted(WEB, SERVERS[WEB], 5.0)
    for instance, pool in ((I1, WEB), (I2, EDIT)):
        table.instance_offered(instance, pool, 0.0)
        table.acquire(A, pool, 0.0)
    assert table.end_idle(table.idle_timers.due(5.0)) == [LeaseEnded(I1, A, WEB)]
    assert table.idle_timers.next_deadline() == 1800.0


def test_a_pool_that_leases_no_more_has_neither_spares_nor_a_line() -> None:
    table = leased()
    table.instance_offered(I2, WEB, 0.0)
    table.acquire(B, EDIT, 0.0)
    table.withdraw_pool(WEB)
    table.withdraw_pool(EDIT)
    assert (table.spare_count(WEB), table.waiting_count(EDIT), table.knows_instance(I2)) == (0, 0, False)
    assert table.holder(I1) == A, "what is leased stays so"


def test_an_instance_offered_twice_counts_once() -> None:
    table = leased()
    assert table.instance_offered(I1, WEB, 1.0) is None
    assert table.spare_count(WEB) == 0
    table.instance_offered(I2, WEB, 1.0)
    table.instance_offered(I2, WEB, 1.0)
    assert table.spare_count(WEB) == 1


def test_events_of_instances_without_a_lease_change_nothing() -> None:
    table = leased()
    table.call_started(I3)
    table.call_ended(I3, 1.0)
    table.call_ended(I1, 1.0)
    table.stop_waiting(B, EDIT)
    assert table.instance_lost(I3, "crash") is None
    assert table.idle_timers.next_deadline() == 1800.0
    table.check()


def test_every_cause_has_words_for_the_agent() -> None:
    assert all(text and not text.endswith(".") for text in LOSS_CAUSES.values())


sessions = st.sampled_from([A, B, C])
pools = st.sampled_from([*SERVERS])
causes: st.SearchStrategy[LossCause] = st.sampled_from(["crash", "reload", "restart", "needed"])


class LeaseMachine(RuleBasedStateMachine):
    """Against the smallest model: who holds what, what was used, who is owed the word of its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.table = empty(100.0)
        self.now = 0.0
        self.next_id = 1
        self.holds: dict[tuple[SessionId, ServerName], InstanceId] = {}
        self.flying: dict[InstanceId, int] = {}
        self.used: set[InstanceId] = set()
        self.dead: set[InstanceId] = set()
        self.owed: dict[tuple[SessionId, ServerName], LossCause] = {}

    def over(self, ended: LeaseEnded | None, cause: LossCause | None) -> None:
        if ended is None:
            return
        assert self.holds.pop((ended.session, SERVERS[ended.pool])) == ended.instance
        assert ended.instance not in self.dead
        self.dead.add(ended.instance)
        self.flying.pop(ended.instance, None)
        if cause is not None and ended.instance in self.used:
            self.owed[ended.session, SERVERS[ended.pool]] = cause

    @rule(session=sessions, pool=pools)
    def ask(self, session: SessionId, pool: PoolKey) -> None:
        found = self.table.acquire(session, pool, self.now)
        open_call = self.owed.pop((session, SERVERS[pool]), None)
        if open_call is not None:
            assert found == LeaseLost(open_call, is_news=True)
        elif (session, SERVERS[pool]) in self.holds:
            assert found == LeaseHeld(self.holds[session, SERVERS[pool]], fresh=False)
        elif isinstance(found, LeaseHeld):
            assert found.fresh
            self.take(session, pool, found.instance)
        else:
            assert isinstance(found, LeaseQueued)
            assert session in self.table.waiting_sessions(pool)

    def take(self, session: SessionId, pool: PoolKey, instance: InstanceId) -> None:
        assert instance not in self.dead, "a returned instance was leased again"
        assert instance not in self.holds.values(), "one instance, two holders"
        self.holds[session, SERVERS[pool]] = instance
        assert not any(
            session in self.table.waiting_sessions(each) for each in SERVERS if SERVERS[each] == SERVERS[pool]
        )

    @rule(pool=pools)
    def offer(self, pool: PoolKey) -> None:
        first = self.table.waiting_sessions(pool)[:1]
        instance = InstanceId(self.next_id)
        self.next_id += 1
        session = self.table.instance_offered(instance, pool, self.now)
        assert (session,) == first if first else session is None
        if session is not None:
            self.take(session, pool, instance)

    @precondition(lambda self: self.holds)
    @rule(data=st.data())
    def call(self, data: st.DataObject) -> None:
        instance = data.draw(st.sampled_from(sorted(self.holds.values())))
        self.table.call_started(instance)
        self.used.add(instance)
        self.flying[instance] = self.flying.get(instance, 0) + 1

    @precondition(lambda self: self.flying)
    @rule(data=st.data())
    def answer(self, data: st.DataObject) -> None:
        instance = data.draw(st.sampled_from(sorted(self.flying)))
        self.table.call_ended(instance, self.now)
        self.flying[instance] -= 1
        if not self.flying[instance]:
            del self.flying[instance]

    @rule(number=st.integers(1, 12), cause=causes)
    def lose(self, number: int, cause: LossCause) -> None:
        if number >= self.next_id:
            return
        instance = InstanceId(number)
        self.over(self.table.instance_lost(instance, cause), cause)
        self.dead.add(instance)

    @rule(session=sessions)
    def leave(self, session: SessionId) -> None:
        for ended in self.table.session_closed(session):
            assert ended.session == session
            self.over(ended, None)
        self.owed = {key: cause for key, cause in self.owed.items() if key[0] != session}
        assert not any(key[0] == session for key in self.holds)
        assert all(session not in self.table.waiting_sessions(pool) for pool in SERVERS)

    @rule(session=sessions, pool=pools)
    def give_up(self, session: SessionId, pool: PoolKey) -> None:
        self.table.stop_waiting(session, pool)

    @rule(seconds=st.sampled_from([1.0, 60.0, 150.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        for ended in self.table.end_idle(self.table.idle_timers.due(self.now)):
            assert ended.instance not in self.flying, "a lease in use was ended as idle"
            self.over(ended, "idle")

    @rule()
    def make_room(self) -> None:
        waiting = {session for pool in SERVERS for session in self.table.waiting_sessions(pool)}
        instance = self.table.pick_victim(waiting)
        if instance is not None:
            holder = self.table.holder(instance)
            assert holder is not None
            assert instance not in self.flying
            assert any(holder in self.table.waiting_sessions(pool) for pool in SERVERS)
            self.over(self.table.instance_lost(instance, "needed"), "needed")

    @rule(pool=pools)
    def remove(self, pool: PoolKey) -> None:
        for ended in self.table.pool_gone(pool):
            self.over(ended, "reload")
        assert not any(pool == place for place, _ in self.places())
        self.table.pool_wanted(pool, SERVERS[pool], 100.0)

    @invariant()
    def agrees(self) -> None:
        self.table.check()
        for (session, _), instance in self.holds.items():
            assert self.table.holder(instance) == session
        assert [instance for _, instance in self.places()] == list(self.holds.values())

    def places(self) -> list[tuple[PoolKey, InstanceId]]:
        return [place for held in self.holds if (place := self.table.held_instance(*held)) is not None]


LeaseMachine.TestCase.settings = settings(deadline=None, max_examples=100, stateful_step_count=30)
TestLeaseMachine = behaviour("lease:exclusive", "lease:returned-ended", "lease:crash:one-state-lost")(
    LeaseMachine.TestCase
)


def test_a_lease_that_loses_nothing_leaves_no_loss_and_is_not_told_to_the_next_broker() -> None:
    """As at a server of another node that agents share there."""
    table = leased()
    assert table.state_holders() == {(A, SERVERS[WEB])}
    table.pool_wanted(WEB, SERVERS[WEB], IDLE_S, keeps_state=False)
    assert (table.holders(), table.state_holders()) == ({(A, SERVERS[WEB])}, set())
    assert table.instance_lost(I1, "crash") is not None
    assert table.acquire(A, WEB, 1.0) == LeaseQueued()
