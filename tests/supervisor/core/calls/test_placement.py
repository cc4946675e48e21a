"""Sharing modes in the supervisor's core: lanes, leases, spares, what happens when a verdict changes."""

from typing import Any

import msgspec
import pytest

from carpool_protocol.ids import (
    ABSENT,
    EMPTY_OBJECT,
    CallId,
    InstanceId,
    PoolKey,
    RawJson,
    ServerName,
    SessionId,
    WireId,
)
from carpool_protocol.link.messages import (
    Answered,
    Call,
    CancelCall,
    Catalog,
    Discover,
    Failed,
    Operate,
    Policy,
    PoolChanged,
    PoolSpec,
    Progressed,
    SessionGone,
    ToolOffer,
    Wanted,
    Written,
)
from carpool_supervisor.core.model import events as ev
from carpool_supervisor.core.model.attribution import AskFacts
from carpool_supervisor.core.model.effects import CloseStdin, Spawn, WriteCall
from carpool_supervisor.core.model.lifecycle import State
from carpool_supervisor.core.model.pool import MAX_LINGERING
from carpool_supervisor.core.model.sharing import Evidence
from tests.behaviours import behaviour
from tests.kit.supervisor_rig import supervisor_core

WEB, NEW, EDIT = PoolKey("web:1"), PoolKey("web:2"), PoolKey("edit:1")
OK = RawJson(b"{}")
AMBIGUOUS = ev.PoolKnown(WEB, None, (Evidence(kind="asked_ambiguously", first="", last=""),))


def spec(key: PoolKey = WEB, replaces: str = "", **policy: Any) -> PoolSpec:
    given = {"idle_s": 1000.0, "probe_s": 1000.0, "spares": 0} | policy
    return PoolSpec(
        key=key,
        server=ServerName(key.partition(":")[0]),
        argv=[],
        env={},
        cwd="/",
        policy=Policy(**given),
        asking=True,
        replaces=PoolKey(replaces),
    )


class House:
    """A core with a clock, whose processes start when told (`up`) and end when asked politely."""

    def __init__(self, *specs: PoolSpec, cap: int = 64) -> None:
        self.core = supervisor_core()
        self.now = 100.0
        self.written: dict[int, WriteCall] = {}
        self.answered: set[int] = set()
        self.failed: dict[int, Failed] = {}
        self.is_prompt = True
        """Its broker writes `state_lost` to the agent before anything else is read."""
        self.newest = CallId(0)
        self.heard: dict[int, list[dict[str, Any]]] = {}
        self.said: dict[PoolKey, PoolChanged] = {}
        self.spawned: list[InstanceId] = []
        self.closing: list[InstanceId] = []
        self.do(Wanted(list(specs), cap, 99))

    def do(self, event: ev.AnyEvent) -> None:
        self._take(self.core.handle(event, self.now))

    def _take(self, effects: list[Any]) -> None:
        self.core.check()
        losses: list[CallId] = []
        for effect in effects:
            match effect:
                case WriteCall():
                    self.written[effect.call.call] = effect
                case Answered():
                    self.answered.add(effect.call)
                case Failed():
                    self.failed[effect.call] = effect
                    if effect.fault == "state_lost" and self.is_prompt:
                        losses.append(effect.call)
                case Progressed():
                    self.heard.setdefault(effect.call, []).append(msgspec.json.decode(effect.params))
                case PoolChanged():
                    self.said[effect.key] = effect
                case Spawn():
                    self.spawned.append(effect.instance)
                case CloseStdin():
                    self.closing.append(effect.instance)
                case _:
                    pass
        if losses:
            self.do(Written(losses, self.newest, CallId(self.newest + 1)))

    def wait(self, duration_s: float) -> None:
        until = self.now + duration_s
        while (due := self.core.next_deadline()) is not None and due <= until:
            self.now = max(self.now, due)
            self._take(self.core.tick(self.now))
        self.now = until

    def up(self, *tools: str) -> None:
        """All that was started greets, and what starts by that."""
        while self.spawned:
            self.one_up(*tools)

    def one_up(self, *tools: str) -> None:
        """What was started first greets."""
        instance = self.spawned.pop(0)
        key = self.core.roster.instances[instance].pool.key
        self.do(ev.InstanceSpawned(instance, 9))
        offers = [ToolOffer(tool, EMPTY_OBJECT) for tool in tools]
        self.do(
            ev.InstanceGreeted(instance, Catalog(key, offers, "", EMPTY_OBJECT, EMPTY_OBJECT, "2025-11-25"))
        )

    def call(self, number: int, session: str, key: PoolKey = WEB, *, wants_progress: bool = False) -> None:
        self.newest = max(self.newest, CallId(number))
        self.do(Call(CallId(number), key, SessionId(session), "tools/call", "t", OK, ABSENT, wants_progress))

    def answer(self, number: int) -> None:
        written = self.written[number]
        self.do(ev.ServerAnswered(written.instance, written.wire, is_error=False, body=OK))

    def cancel(self, number: int) -> None:
        self.do(CancelCall(CallId(number), "why"))

    def gone(self, session: str) -> None:
        self.do(SessionGone(SessionId(session)))

    def exit(self, instance: InstanceId, unwritten: tuple[WireId, ...] = ()) -> None:
        if instance in self.closing:
            self.closing.remove(instance)
        self.do(ev.InstanceExited(instance, "was killed by SIGKILL", unwritten, "", 0.0))

    def on(self, number: int) -> InstanceId:
        """The instance that ran this call."""
        return self.written[number].instance

    def served(self, number: int, session: str, key: PoolKey = WEB) -> InstanceId:
        """A call that starts what it needs, and its answer."""
        self.call(number, session, key)
        self.up()
        self.answer(number)
        return self.on(number)

    def fault(self, number: int) -> str:
        return self.failed[number].fault

    def ask(self, number: int) -> None:
        """The server asks the agent behind this call."""
        instance = self.on(number)
        self.do(ev.ServerAsked(instance, RawJson(b"%d" % number), OK, AskFacts("elicitation/create"), ABSENT))


# --- serial ------------------------------------------------------------------------------------------------


@behaviour("modes:serial")
def test_serial_runs_one_call_per_instance_and_grows_at_once_up_to_its_most() -> None:
    house = House(spec(sharing="serial", max_instances=3))
    for number in range(5):
        house.call(number, f"s{number}")
    assert len(house.spawned) == 3
    house.up()
    assert sorted(house.written) == [0, 1, 2]
    assert len({house.on(number) for number in (0, 1, 2)}) == 3
    house.answer(1)
    assert house.on(3) == house.on(1)


def test_serial_without_a_configured_size_has_four_instances() -> None:
    house = House(spec(sharing="serial"))
    for number in range(20):
        house.call(number, f"s{number}")
    house.up()
    assert len(house.written) == 4


@behaviour("asks:in-flight:serial-waits")
def test_a_cancelled_call_keeps_its_lane_until_it_is_answered() -> None:
    house = House(spec(sharing="serial", max_instances=1))
    house.call(1, "a")
    house.up()
    house.cancel(1)
    house.call(2, "b")
    assert 2 not in house.written
    house.answer(1)
    assert house.on(2) == house.on(1)


@behaviour("asks:in-flight:serial-replaced")
def test_a_lane_whose_cancelled_call_is_not_answered_is_replaced_after_five_seconds() -> None:
    house = House(spec(sharing="serial", max_instances=1))
    house.call(1, "a")
    house.up()
    house.cancel(1)
    house.call(2, "b")
    house.wait(4.9)
    assert house.closing == []
    house.wait(0.2)
    assert house.closing == [house.on(1)]
    house.up()
    assert house.on(2) != house.on(1)


@behaviour("modes:new-placements")
def test_calls_that_overlap_when_a_verdict_turns_serial_finish_and_no_new_one_joins_them() -> None:
    house = House(spec(max_instances=1))
    house.call(1, "a")
    house.up()
    house.call(2, "b")
    assert house.on(1) == house.on(2)
    house.do(AMBIGUOUS)
    assert house.said[WEB].mode == "serial"
    house.call(3, "c")
    house.answer(1)
    assert 3 not in house.written
    house.answer(2)
    assert house.on(3) == house.on(2)


@behaviour("wait:own-lane")
def test_an_agent_that_would_wait_for_its_own_asking_call_gets_another_instance() -> None:
    house = House(spec(sharing="serial", max_instances=2))
    house.call(1, "a")
    house.up()
    house.ask(1)
    house.call(2, "a")
    house.up()
    assert house.on(2) != house.on(1)


@behaviour("wait:own-lane")
def test_an_agent_that_would_wait_for_its_own_asking_call_at_the_most_is_refused_at_once() -> None:
    house = House(spec(sharing="serial", max_instances=1))
    house.call(1, "a")
    house.up()
    house.ask(1)
    house.call(2, "a")
    assert (house.fault(2), house.failed[2].delivered) == ("unavailable", "no")
    house.call(3, "b")
    assert 3 not in house.failed, "another agent's call waits its time"


def test_a_call_in_line_is_refused_when_its_own_session_begins_to_be_asked_there() -> None:
    house = House(spec(sharing="serial", max_instances=1))
    house.call(1, "a")
    house.up()
    house.call(2, "a")
    assert 2 not in house.failed
    house.ask(1)
    assert house.fault(2) == "unavailable"


def test_while_another_lane_will_come_free_by_itself_nobody_is_refused() -> None:
    house = House(spec(sharing="serial", max_instances=2))
    house.call(1, "a")
    house.call(2, "b")
    house.up()
    house.ask(1)
    house.call(3, "a")
    assert 3 not in house.failed
    house.answer(2)
    assert house.on(3) == house.on(2)


# --- session -----------------------------------------------------------------------------------------------


@behaviour("modes:session")
def test_each_session_has_an_instance_of_its_own_and_keeps_it() -> None:
    house = House(spec(sharing="session"))
    first, second = house.served(1, "a"), house.served(2, "b")
    assert first != second
    assert (house.served(3, "a"), house.served(4, "b")) == (first, second)
    for number in (5, 6):
        house.call(number, "a")
    assert (house.on(5), house.on(6)) == (first, first), "its own calls may overlap"


def test_a_holders_calls_past_the_bound_wait_for_their_own_instance_and_hold_up_nobody() -> None:
    house = House(spec(sharing="session", max_in_flight=1))
    first = house.served(1, "a")
    house.call(2, "a")
    house.call(3, "a")
    assert house.served(4, "b") != first
    assert 3 not in house.written
    house.answer(2)
    assert house.on(3) == first


@behaviour("lease:next-in-line")
def test_when_a_lease_ends_the_next_in_line_gets_a_new_instance_while_the_old_one_is_still_ending() -> None:
    house = House(spec(sharing="session", max_instances=1))
    first = house.served(1, "a")
    house.call(2, "b")
    house.gone("a")
    assert house.closing == [first]
    assert len(house.spawned) == 1, "nobody waits for the old process to be gone"
    house.up()
    assert house.on(2) != first


@behaviour("lease:returned-ended", "lease:with-holder")
def test_a_returned_instance_ends_and_without_demand_none_takes_its_place() -> None:
    house = House(spec(sharing="session"))
    first = house.served(1, "a")
    house.gone("a")
    house.exit(first)
    assert house.spawned == []
    assert house.core.quiet


@behaviour("lease:crash:one-state-lost")
def test_a_crash_is_told_once_and_the_next_call_runs_on_a_fresh_instance() -> None:
    house = House(spec(sharing="session"))
    first = house.served(1, "a")
    house.exit(first)
    house.call(2, "a")
    assert (house.fault(2), house.failed[2].delivered) == ("state_lost", "no")
    assert "ended by itself" in house.failed[2].text
    house.wait(1.0)
    assert house.served(3, "a") != first


def test_a_holder_whose_instance_was_ended_as_silent_is_told_that_and_not_of_a_crash() -> None:
    house = House(spec(sharing="session", probe_s=4.0, timeout_s=8.0))
    first = house.served(1, "a")
    house.wait(20.0)
    assert house.core.roster.instances[first].state is State.KILLED
    house.call(2, "a")
    assert house.fault(2) == "state_lost"
    assert "it was silent for too long, and was ended" in house.failed[2].text


def test_a_holder_whose_instance_was_ended_as_its_output_was_closed_is_told_that() -> None:
    house = House(spec(sharing="session"))
    house.do(ev.StdoutClosed(house.served(1, "a")))
    house.wait(1.0)
    house.call(2, "a")
    assert "it closed its output, and was ended" in house.failed[2].text


def test_a_crash_before_any_call_was_delivered_has_lost_no_state() -> None:
    house = House(spec(sharing="session"))
    house.call(1, "a")
    house.up()
    house.exit(house.on(1), (house.written[1].wire,))
    assert house.failed == {}
    house.wait(1.0)
    house.up()
    house.answer(1)
    assert house.answered == {1}


def test_an_undelivered_call_of_a_used_lease_is_told_that_the_state_is_gone() -> None:
    house = House(spec(sharing="session"))
    first = house.served(1, "a")
    house.call(2, "a")
    house.exit(first, (house.written[2].wire,))
    assert house.fault(2) == "state_lost"


@behaviour("lease:idle")
def test_an_idle_lease_ends_by_its_own_limit_not_by_that_of_instances() -> None:
    house = House(spec(sharing="session", idle_s=10.0, lease_idle_s=60.0))
    first = house.served(1, "a")
    house.wait(50.0)
    assert house.closing == []
    house.wait(10.0)
    assert house.closing == [first]
    house.call(2, "a")
    assert "idle limit" in house.failed[2].text


def test_a_restart_by_an_operator_is_told_to_the_holder() -> None:
    house = House(spec(sharing="session"))
    first = house.served(1, "a")
    house.do(Operate(1, WEB, "restart"))
    assert first in house.closing
    house.call(2, "a")
    assert "operator" in house.failed[2].text


def test_a_lease_outlives_the_broker() -> None:
    house = House(spec(sharing="session"))
    first = house.served(1, "a")
    house.do(ev.BrokerCame())
    assert house.closing == []
    assert house.served(2, "a") == first


def test_after_a_cut_link_each_session_that_lives_on_is_told_of_its_lost_lease() -> None:
    house = House(spec(sharing="session"))
    first = house.served(1, "a")
    house.do(ev.BrokerCame(same=True))
    assert house.closing == [first]
    house.call(2, "a")
    assert "lost touch" in house.failed[2].text
    assert house.served(3, "a") != first


@behaviour("lease:spares")
def test_while_a_pool_is_in_use_a_spare_is_warm_and_the_next_lease_is_instant() -> None:
    house = House(spec(sharing="session", spares=1, idle_s=10.0))
    house.call(1, "a")
    assert len(house.spawned) == 2
    house.up()
    house.call(2, "b")
    assert 2 in house.written
    assert len(house.spawned) == 1, "and another one takes its place"
    house.up()
    house.wait(100.0)
    assert house.closing == [], "a spare that is wanted does not idle out"
    states = [each.state for each in house.core.report()[0].instances]
    assert sorted(states) == ["serving", "serving", "spare"]


@behaviour("lease:spares")
def test_when_nobody_holds_or_waits_the_spare_idles_out() -> None:
    house = House(spec(sharing="session", spares=1, idle_s=10.0))
    house.served(1, "a")
    house.gone("a")
    for instance in list(house.closing):
        house.exit(instance)
    house.wait(20.0)
    for instance in list(house.closing):
        house.exit(instance)
    assert house.core.quiet


@behaviour("lease:holders-shown")
def test_the_report_shows_holders_and_open_asks() -> None:
    house = House(spec(sharing="session"))
    house.call(1, "a")
    house.up()
    house.ask(1)
    [instance] = house.core.report()[0].instances
    assert (instance.holder, instance.asks) == ("a", 1)
    assert house.core.report()[0].sharing == "session"


def test_who_waits_is_refused_at_once_when_the_pool_has_given_up_though_others_hold_leases() -> None:
    house = House(spec(sharing="session", give_up_after=1))
    house.served(1, "a")
    house.call(2, "b")
    house.exit(house.spawned.pop())
    assert house.fault(2) == "breaker_open"
    house.call(3, "b")
    assert house.fault(3) == "breaker_open"
    house.call(4, "a")
    assert 4 in house.written, "who holds one goes on"


# --- calls that are over and may still run -----------------------------------------------------------------


def cancel_many(house: House, count: int) -> None:
    for number in range(100, 100 + count):
        house.call(number, "a")
        house.cancel(number)


@behaviour("asks:in-flight:tainted-replaced")
def test_an_instance_on_which_too_many_calls_may_still_run_is_replaced_and_none_of_them_forgotten() -> None:
    house = House(spec(sharing="concurrent", max_instances=1))
    house.call(1, "b")
    house.up()
    first = house.on(1)
    cancel_many(house, MAX_LINGERING - 1)
    assert house.core.roster.instances[first].state is State.SERVING
    house.call(2, "a")
    house.cancel(2)
    assert house.core.roster.instances[first].state is State.DRAINING
    assert len(house.core.roster.instances[first].lingering) == MAX_LINGERING
    house.up()
    house.call(3, "a")
    assert house.on(3) != first
    assert house.closing == [], "what is open there is finished"
    house.answer(1)
    assert (house.closing, house.answered, house.failed) == ([first], {1}, {})


def test_a_holder_does_not_lose_its_state_for_its_own_calls_that_are_never_answered() -> None:
    house = House(spec(sharing="session"))
    first = house.served(1, "a")
    cancel_many(house, MAX_LINGERING + 5)
    assert len(house.core.roster.instances[first].lingering) == MAX_LINGERING
    assert house.served(2, "a") == first


# --- verdicts change ---------------------------------------------------------------------------------------


def test_a_catalog_that_speaks_of_state_makes_the_first_instance_a_lease() -> None:
    house = House(spec())
    for number, session in ((1, "a"), (2, "b")):
        house.call(number, session)
    assert len(house.spawned) == 1
    house.one_up("browser_click")
    assert (1 in house.written, 2 in house.written) == (True, False)
    house.one_up("browser_click")
    assert house.on(2) != house.on(1)
    assert house.said[WEB].mode == "session"


@behaviour("modes:new-placements")
def test_an_instance_that_served_several_is_never_leased_it_ends_when_its_calls_have() -> None:
    house = House(spec())
    house.call(1, "a")
    house.up()
    house.call(2, "b")
    house.do(ev.PoolKnown(WEB, None, (Evidence(kind="probe_diverged", first="", last=""),)))
    house.call(3, "a")
    house.up()
    assert house.on(3) != house.on(1)
    house.answer(1)
    assert house.closing == []
    house.answer(2)
    assert house.closing == [house.on(1)]


def test_a_server_that_is_leased_no_more_leaves_holders_their_instance_for_a_while() -> None:
    house = House(spec(sharing="session", drain_s=20.0))
    first = house.served(1, "a")
    house.do(Wanted([spec(sharing="concurrent", drain_s=20.0)]))
    assert house.served(2, "a") == first
    assert house.served(3, "b") != first
    house.wait(20.0)
    house.call(4, "a")
    assert house.fault(4) == "state_lost"
    house.call(5, "a")
    assert house.on(5) == house.on(3)
    assert house.core.pools[WEB].plain


# --- reload ------------------------------------------------------------------------------------------------


@behaviour("lease:reload")
def test_after_a_reload_a_holder_keeps_its_instance_until_the_drain_limit_and_is_told_then() -> None:
    house = House(spec(sharing="session", drain_s=20.0))
    first = house.served(1, "a")
    house.do(Wanted([spec(NEW, replaces=WEB, sharing="session")]))
    assert house.core.roster.instances[first].state is State.DRAINING
    assert house.served(2, "a", NEW) == first
    assert house.served(3, "b", NEW) != first
    house.wait(20.0)
    assert house.closing == [first]
    house.call(4, "a", NEW)
    assert "configuration was changed" in house.failed[4].text
    assert house.served(5, "a", NEW) not in (first, house.on(3))


def test_a_holder_that_leaves_after_a_reload_lets_the_old_pool_go_at_once() -> None:
    house = House(spec(sharing="session"))
    first = house.served(1, "a")
    house.do(Wanted([spec(NEW, replaces=WEB, sharing="session")]))
    house.gone("a")
    assert house.closing == [first]
    house.exit(first)
    assert list(house.core.pools) == [NEW]


def test_two_reloads_in_a_row_lose_nobody() -> None:
    last = PoolKey("web:3")
    house = House(spec(sharing="session", drain_s=20.0))
    first = house.served(1, "a")
    house.do(Wanted([spec(NEW, replaces=WEB, sharing="session")]))
    house.do(Wanted([spec(last, replaces=NEW, sharing="session")]))
    assert house.served(2, "a", last) == first
    house.wait(20.0)
    house.call(3, "a", last)
    assert house.fault(3) == "state_lost"


def test_a_loss_is_told_at_whichever_of_two_heirs_its_holder_asks() -> None:
    other = PoolKey("web:2:asking")
    for key in (NEW, other):
        house = House(spec(sharing="session"))
        first = house.served(1, "a")
        house.do(Wanted([spec(each, replaces=WEB, sharing="session") for each in (NEW, other)]))
        house.exit(first)
        house.call(2, "a", key)
        assert house.fault(2) == "state_lost"
        for number, heir in ((3, NEW), (4, other)):
            house.wait(1.0)
            house.served(number, "a", heir)
        assert list(house.failed) == [2], "and it is told once"


def test_a_call_that_still_waits_at_an_heir_that_goes_too_is_told_of_the_loss() -> None:
    house = House(spec(sharing="session", max_in_flight=1))
    house.served(1, "a")
    house.do(Wanted([spec(NEW, replaces=WEB, sharing="session")]))
    house.call(2, "a", NEW)
    house.call(3, "a", NEW)
    house.do(Wanted([]))
    house.exit(house.on(1))
    assert house.fault(3) == "state_lost"


@behaviour("lease:never-silently")
def test_a_call_in_line_at_the_old_version_follows_its_session_to_the_new_one() -> None:
    house = House(spec(sharing="session"))
    house.call(1, "a")
    house.do(Wanted([spec(NEW, replaces=WEB, sharing="session")]))
    old = house.spawned.pop()
    first = house.served(2, "a", NEW)
    assert house.on(1) == first, "one session has one instance of a server, whatever its version"
    house.answer(1)
    house.wait(5.0)
    assert house.closing == [old]


def test_a_call_in_line_at_the_old_version_waits_for_room_where_its_session_is() -> None:
    house = House(spec(sharing="session", max_in_flight=1))
    house.call(1, "a")
    house.do(Wanted([spec(NEW, replaces=WEB, sharing="session", max_in_flight=1)]))
    old = house.spawned.pop()
    house.call(2, "a", NEW)
    house.up()
    house.spawned.append(old)
    house.up()
    assert 1 not in house.written
    assert house.core.leases.waiting(WEB) == (), "nor does it get an instance beside"
    house.answer(2)
    assert house.on(1) == house.on(2)


@behaviour("lease:never-silently")
def test_a_loss_at_one_of_two_wanted_versions_is_told_at_the_other() -> None:
    back = spec(WEB, replaces=NEW, sharing="session", drain_s=20.0)
    house = House(spec(sharing="session", drain_s=20.0))
    house.served(1, "a")
    house.do(Wanted([spec(NEW, replaces=WEB, sharing="session")]))
    house.do(Wanted([spec(NEW, sharing="session"), back]))
    house.wait(20.0)
    house.call(2, "a", NEW)
    assert house.fault(2) == "state_lost"
    house.served(3, "a", NEW)
    house.served(4, "a", WEB)
    assert (house.on(3), list(house.failed)) == (house.on(4), [2]), "and it is told once"


def test_a_loss_at_the_new_version_is_told_to_a_call_in_line_at_the_old_one() -> None:
    house = House(spec(sharing="session", max_in_flight=1))
    house.call(1, "a")
    house.do(Wanted([spec(NEW, replaces=WEB, sharing="session", max_in_flight=1)]))
    house.spawned.pop()
    house.call(2, "a", NEW)
    house.up()
    house.exit(house.on(2))
    assert house.fault(2) == "instance_died"
    assert house.fault(1) == "state_lost"


@behaviour("lease:reload")
def test_a_server_taken_out_while_a_holders_calls_wait_at_its_heir_ends_each_of_them_honestly() -> None:
    house = House(spec(sharing="session", max_in_flight=1))
    first = house.served(1, "a")
    house.do(Wanted([spec(NEW, replaces=WEB, sharing="session")]))
    for number in (2, 3, 4, 5):
        house.call(number, "a", NEW)
    house.do(Wanted([]))
    house.answer(2)
    assert house.on(3) == first, "while its instance drains its calls run there"
    house.exit(first)
    assert [house.fault(number) for number in (3, 4, 5)] == ["instance_died", "state_lost", "state_lost"]
    assert house.core.pools == {}


@pytest.mark.parametrize("sharing", ["concurrent", "serial", "session"])
def test_who_waits_at_a_server_taken_out_is_refused_at_once_when_its_last_instance_dies(sharing: str) -> None:
    house = House(spec(sharing=sharing, max_in_flight=1, max_instances=1))
    house.call(1, "a")
    house.up()
    house.call(2, "b")
    house.do(Wanted([]))
    if sharing == "session":
        assert house.fault(2) == "draining", "the only instance is another's"
    assert (sharing == "session") == (2 in house.failed), "it may still come to its turn"
    house.exit(house.on(1))
    assert (house.fault(2), house.failed[2].delivered) == ("draining", "no")
    assert (house.spawned, house.core.pools) == ([], {})


def test_a_line_at_a_server_taken_out_is_served_by_what_still_starts_and_by_nothing_else() -> None:
    house = House(spec(sharing="session"), cap=1)
    house.call(1, "a")
    house.call(2, "b")
    house.do(Wanted([]))
    assert house.failed == {}
    house.up()
    assert 1 in house.written
    assert house.fault(2) == "draining"


def test_a_server_that_comes_back_before_it_has_gone_starts_as_if_it_were_new() -> None:
    house = House(spec(sharing="session", give_up_after=1))
    house.served(1, "a")
    house.call(2, "a")
    house.exit(house.served(3, "b"))
    assert house.core.pools[WEB].restart.breaker == "open"
    house.do(Wanted([]))
    house.do(Wanted([spec(sharing="session", give_up_after=1)]))
    house.served(4, "c")
    assert house.failed == {}


def test_a_server_that_is_configured_no_more_ends_its_leases_at_once() -> None:
    house = House(spec(sharing="session"))
    first = house.served(1, "a")
    house.do(Wanted([]))
    assert house.closing == [first]
    house.exit(first)
    assert house.core.pools == {}


# --- the process cap ---------------------------------------------------------------------------------------


@behaviour("wait:cap-yields-lease")
def test_at_the_cap_who_waits_with_an_idle_lease_in_hand_gives_it_up() -> None:
    house = House(spec(sharing="session"), spec(EDIT, sharing="session"), cap=1)
    first = house.served(1, "a")
    house.call(2, "a", EDIT)
    assert house.closing == [first]
    house.exit(first)
    house.up()
    assert 2 in house.written
    house.call(3, "a")
    assert "had to make room" in house.failed[3].text


@behaviour("wait:cap")
def test_at_the_cap_an_idle_instance_that_nobody_holds_goes_before_any_lease() -> None:
    house = House(spec(sharing="session"), spec(EDIT), spec(PoolKey("c:1")), cap=2)
    house.served(1, "a")
    free = house.served(2, "b", EDIT)
    house.call(3, "a", PoolKey("c:1"))
    assert house.closing == [free]


@behaviour("wait:slot-for-each")
def test_a_server_without_any_instance_gets_a_slot_also_where_all_are_leased() -> None:
    house = House(spec(sharing="session"), spec(EDIT), cap=2)
    first, second = house.served(1, "a"), house.served(2, "b")
    house.call(3, "b")
    house.call(4, "c", EDIT)
    assert house.closing == [first], "the idle one, not that in use"
    house.exit(first)
    house.up()
    assert 4 in house.written
    assert house.on(3) == second
    house.call(5, "a")
    assert "another server had no instance" in house.failed[5].text


def test_a_spare_pushes_nobody_out() -> None:
    house = House(spec(EDIT), spec(sharing="session", spares=1), cap=2)
    house.served(1, "a", EDIT)
    house.served(2, "b")
    house.wait(10.0)
    assert house.closing == []
    assert house.spawned == []


# --- waiting -----------------------------------------------------------------------------------------------


@behaviour("wait:progress")
def test_an_agent_that_wants_progress_hears_of_its_wait_and_the_numbers_only_rise() -> None:
    house = House(spec(sharing="serial", max_instances=1, wait_s=12.0))
    house.call(1, "a")
    house.up()
    house.call(2, "b")
    house.call(3, "c", wants_progress=True)
    house.wait(12.0)
    assert [each["progress"] for each in house.heard[3]] == [-12.0, -7.0, -2.0]
    assert house.heard[3][0]["message"] == "Waiting for an instance of web: 1 call ahead, at most 12 s more."
    assert (2 in house.heard, house.fault(3)) == (False, "waited_too_long")


def test_in_a_leased_pool_agents_ahead_are_counted_and_the_end_says_that_all_are_taken() -> None:
    house = House(spec(sharing="session", max_instances=1, wait_s=4.0))
    house.served(1, "a")
    house.call(2, "b")
    house.call(3, "c", wants_progress=True)
    assert "1 agent ahead" in house.heard[3][0]["message"]
    house.wait(4.0)
    assert "all 1 are taken" in house.failed[3].text


def test_a_call_that_waits_for_a_second_time_is_told_nothing_that_steps_back() -> None:
    house = House(spec(wait_s=20.0))
    house.call(1, "a", wants_progress=True)
    house.wait(12.0)
    house.up()
    house.exit(house.on(1), (house.written[1].wire,))
    house.wait(19.0)
    told = [each["progress"] for each in house.heard[1]]
    assert told == sorted(set(told))
    assert len(told) > 3


@pytest.mark.parametrize("sharing", ["concurrent", "serial", "session"])
def test_the_broker_is_told_the_mode_and_again_when_it_changes(sharing: str) -> None:
    house = House(spec())
    house.do(Wanted([spec(sharing=sharing)]))
    house.do(Discover(WEB))
    assert house.said[WEB].mode == sharing


# --- needs before wishes at the process cap ----------------------------------------------------------------

CON, AUT, SER = PoolKey("con:1"), PoolKey("aut:1"), PoolKey("ser:1")


def crowded(cap: int = 3) -> House:
    """`a` and `b` hold idle leases of a pool with a spare, beside three servers that have no instance."""
    others = (spec(CON), spec(AUT), spec(SER, sharing="serial"))
    house = House(spec(sharing="session", spares=1), *others, cap=cap)
    house.served(1, "a")
    house.served(2, "b")
    house.up()
    return house


def ended(house: House) -> list[InstanceId]:
    """Let all that is asked to end do so, and what follows from that; nothing new greets meanwhile."""
    gone = []
    while house.closing:
        gone.append(house.closing[0])
        house.exit(gone[-1])
    return gone


@behaviour("wait:cap-yields-lease")
def test_room_that_was_made_for_a_server_with_callers_is_not_taken_by_a_spare() -> None:
    house = crowded()
    for number, key in ((3, CON), (4, AUT), (5, SER)):
        house.call(number, "a", key)
    [spare] = house.closing
    assert ended(house) == [spare, house.on(1)], "one instance for each that starts"
    started = [house.core.roster.instances[each].pool.key for each in house.spawned]
    assert started == [CON, AUT]
    assert house.core.leases.place(SessionId("b"), ServerName("web")) == (WEB, house.on(2))
    house.one_up()
    house.answer(3)
    house.one_up()
    assert ended(house) == [house.on(3)], "the idle one goes for the third"
    house.up()
    assert 5 in house.written
    house.answer(4)
    house.answer(5)
    house.wait(10.0)
    house.call(6, "b")
    assert house.on(6) == house.on(2), "and nobody lost a lease for a spare"


def test_a_spare_that_still_starts_makes_room_before_any_lease() -> None:
    house = House(spec(sharing="session", spares=1), spec(CON), cap=2)
    house.call(1, "a")
    lease, spare = house.spawned
    house.one_up()
    house.answer(1)
    house.call(2, "a", CON)
    assert house.closing == [spare]
    house.spawned.remove(spare)
    house.exit(spare)
    house.up()
    assert 2 in house.written
    assert house.core.leases.place(SessionId("a"), ServerName("web")) == (WEB, lease)


def test_what_room_is_left_when_no_need_waits_goes_to_spares() -> None:
    house = crowded(cap=4)
    house.call(3, "a", CON)
    house.up()
    assert house.closing == []
    house.call(4, "c")
    house.up()
    assert 4 in house.written
    assert house.core.leases.spares(WEB) == 0, "there is no room for another one"
    house.answer(3)
    house.do(Operate(1, CON, "stop"))
    ended(house)
    house.up()
    assert house.core.leases.spares(WEB) == 1
