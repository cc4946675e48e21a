"""Placement by sharing mode: slots, leases, spares, and changes of the mode."""

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from carpool_protocol.ids import (
    ABSENT,
    CallId,
    InstanceId,
    PoolKey,
    RawJson,
    ServerName,
    SessionId,
    WireId,
)
from carpool_protocol.link.messages import (
    AnswersWritten,
    CallAnswered,
    CallFailed,
    CallProgressed,
    CancelCall,
    DiscoverCatalog,
    EndCall,
    Operate,
    Policy,
    PoolChanged,
    PoolSpec,
    SessionAbsent,
    SessionEnded,
    SetPools,
)
from carpool_supervisor.core.model import events as ev
from carpool_supervisor.core.model.attribution import AskFacts
from carpool_supervisor.core.model.effects import CloseStdin
from carpool_supervisor.core.model.lifecycle import InstanceState
from carpool_supervisor.core.model.pool import MAX_ABANDONED
from carpool_supervisor.core.model.sharing import Evidence
from tests.behaviours import behaviour
from tests.kit.bytecodes import count_bytecodes
from tests.kit.supervisor_rig import SupervisorRig, catalog_of, tool_call

WEB, NEW, EDIT = PoolKey("web:1"), PoolKey("web:2"), PoolKey("edit:1")
OK = RawJson(b"{}")
AMBIGUOUS = ev.KnowledgeChanged(
    (ev.PoolKnowledge(WEB, None, (Evidence(kind="asked_ambiguously", first="", last=""),)),)
)


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


class PoolsRig(SupervisorRig):
    """Pools whose processes start when told (`up`) and end when asked politely."""

    def __init__(self, *specs: PoolSpec, cap: int = 64, greeting: int = 99) -> None:
        self.answered: set[int] = set()
        self.is_prompt = True
        """Its broker writes `state_lost` to the agent before anything else is read."""
        self.newest = CallId(0)
        self.heard: dict[int, list[dict[str, Any]]] = {}
        self.said: dict[PoolKey, PoolChanged] = {}
        self.closing: list[InstanceId] = []
        super().__init__(*specs, cap=cap, greeting=greeting)

    def observe(self, effects: list[Any]) -> None:
        losses: list[CallId] = []
        for effect in effects:
            match effect:
                case CallAnswered():
                    self.answered.add(effect.call)
                case CallFailed():
                    if effect.fault == "state_lost" and self.is_prompt:
                        losses.append(effect.call)
                case CallProgressed():
                    self.heard.setdefault(effect.call, []).append(msgspec.json.decode(effect.params))
                case PoolChanged():
                    self.said[effect.key] = effect
                case CloseStdin():
                    self.closing.append(effect.instance)
                case _:
                    pass
        if losses:
            self.feed(AnswersWritten(losses, self.newest, CallId(self.newest + 1)))

    def up(self, *tools: str) -> None:
        """All that was started greets, and what starts by that."""
        while self.spawned:
            self.one_up(*tools)

    def one_up(self, *tools: str) -> None:
        """What was started first greets."""
        instance = self.spawned[0]
        self.greet(instance, catalog_of(self.core.instances.by_id[instance].pool.key, *tools))

    def call(self, number: int, session: str = "a", key: PoolKey | None = None, **more: Any) -> Any:
        self.newest = max(self.newest, CallId(number))
        return super().call(number, session, key or WEB, **more)

    def gone(self, session: str) -> None:
        self.feed(SessionEnded(SessionId(session)))

    def killed(self, instance: InstanceId, unwritten: tuple[WireId, ...] = ()) -> None:
        if instance in self.closing:
            self.closing.remove(instance)
        self.exit(instance, unwritten, why="was killed by SIGKILL")

    def served(self, number: int, session: str, key: PoolKey = WEB) -> InstanceId:
        """A call that starts what it needs, and its answer."""
        self.call(number, session, key)
        self.up()
        self.answer(number)
        return self.on(number)

    def ask(self, number: int) -> None:
        """The server asks the agent behind this call."""
        instance = self.on(number)
        ask, facts = RawJson(b"%d" % number), AskFacts("elicitation/create")
        self.feed(ev.ServerAsked(instance, ask, OK, facts, ABSENT))


# --- serial ------------------------------------------------------------------------------------------------


@behaviour("modes:serial")
def test_serial_runs_one_call_per_instance_and_grows_at_once_up_to_its_most() -> None:
    rig = PoolsRig(spec(sharing="serial", max_instances=3))
    for number in range(5):
        rig.call(number, f"s{number}")
    assert len(rig.spawned) == 3
    rig.up()
    assert sorted(rig.written) == [0, 1, 2]
    assert len({rig.on(number) for number in (0, 1, 2)}) == 3
    rig.answer(1)
    assert rig.on(3) == rig.on(1)


def test_serial_without_a_configured_size_has_four_instances() -> None:
    rig = PoolsRig(spec(sharing="serial"))
    for number in range(20):
        rig.call(number, f"s{number}")
    rig.up()
    assert len(rig.written) == 4


@behaviour("asks:in-flight:serial-waits")
def test_a_cancelled_call_keeps_its_slot_until_it_is_answered() -> None:
    rig = PoolsRig(spec(sharing="serial", max_instances=1))
    rig.call(1, "a")
    rig.up()
    rig.cancel(1)
    rig.call(2, "b")
    assert 2 not in rig.written
    rig.answer(1)
    assert rig.on(2) == rig.on(1)


@behaviour("asks:in-flight:serial-replaced")
def test_an_instance_whose_cancelled_call_is_not_answered_is_replaced_after_five_seconds() -> None:
    rig = PoolsRig(spec(sharing="serial", max_instances=1))
    rig.call(1, "a")
    rig.up()
    rig.cancel(1)
    rig.call(2, "b")
    rig.wait(4.9)
    assert rig.closing == []
    rig.wait(0.2)
    assert rig.closing == [rig.on(1)]
    rig.up()
    assert rig.on(2) != rig.on(1)


@behaviour("modes:new-placements")
def test_calls_that_overlap_when_a_verdict_turns_serial_finish_and_no_new_one_joins_them() -> None:
    rig = PoolsRig(spec(max_instances=1))
    rig.call(1, "a")
    rig.up()
    rig.call(2, "b")
    assert rig.on(1) == rig.on(2)
    rig.feed(AMBIGUOUS)
    assert rig.said[WEB].mode == "serial"
    rig.call(3, "c")
    rig.answer(1)
    assert 3 not in rig.written
    rig.answer(2)
    assert rig.on(3) == rig.on(2)


@behaviour("wait:own-lane")
def test_an_agent_that_would_wait_for_its_own_asking_call_gets_another_instance() -> None:
    rig = PoolsRig(spec(sharing="serial", max_instances=2))
    rig.call(1, "a")
    rig.up()
    rig.ask(1)
    rig.call(2, "a")
    rig.up()
    assert rig.on(2) != rig.on(1)


@behaviour("wait:own-lane")
def test_an_agent_that_would_wait_for_its_own_asking_call_at_the_most_is_refused_at_once() -> None:
    rig = PoolsRig(spec(sharing="serial", max_instances=1))
    rig.call(1, "a")
    rig.up()
    rig.ask(1)
    rig.call(2, "a")
    assert (rig.fault(2), rig.failed[2].delivered) == ("unavailable", "no")
    rig.call(3, "b")
    assert 3 not in rig.failed, "another agent's call waits its time"


def test_a_call_in_line_is_refused_when_its_own_session_begins_to_be_asked_there() -> None:
    rig = PoolsRig(spec(sharing="serial", max_instances=1))
    rig.call(1, "a")
    rig.up()
    rig.call(2, "a")
    assert 2 not in rig.failed
    rig.ask(1)
    assert rig.fault(2) == "unavailable"


def test_no_call_is_refused_while_another_slot_will_come_free() -> None:
    rig = PoolsRig(spec(sharing="serial", max_instances=2))
    rig.call(1, "a")
    rig.call(2, "b")
    rig.up()
    rig.ask(1)
    rig.call(3, "a")
    assert 3 not in rig.failed
    rig.answer(2)
    assert rig.on(3) == rig.on(2)


# --- session -----------------------------------------------------------------------------------------------


@behaviour("modes:session")
def test_each_session_has_an_instance_of_its_own_and_keeps_it() -> None:
    rig = PoolsRig(spec(sharing="session"))
    first, second = rig.served(1, "a"), rig.served(2, "b")
    assert first != second
    assert (rig.served(3, "a"), rig.served(4, "b")) == (first, second)
    for number in (5, 6):
        rig.call(number, "a")
    assert (rig.on(5), rig.on(6)) == (first, first), "its own calls may overlap"


def test_a_holders_calls_past_the_bound_wait_for_their_own_instance_and_hold_up_nobody() -> None:
    rig = PoolsRig(spec(sharing="session", max_in_flight=1))
    first = rig.served(1, "a")
    rig.call(2, "a")
    rig.call(3, "a")
    assert rig.served(4, "b") != first
    assert 3 not in rig.written
    rig.answer(2)
    assert rig.on(3) == first


@behaviour("lease:next-in-line")
def test_the_next_in_line_gets_a_new_instance_while_that_of_an_ended_lease_still_ends() -> None:
    rig = PoolsRig(spec(sharing="session", max_instances=1))
    first = rig.served(1, "a")
    rig.call(2, "b")
    rig.gone("a")
    assert rig.closing == [first]
    assert len(rig.spawned) == 1, "nobody waits for the old process to be gone"
    rig.up()
    assert rig.on(2) != first


@behaviour("lease:absent-makes-room")
def test_the_longest_idle_instance_of_an_absent_agent_goes_to_one_that_waits_and_its_holder_is_told() -> None:
    rig = PoolsRig(spec(sharing="session", max_instances=2))
    first = rig.served(1, "a")
    rig.wait(1.0)
    second = rig.served(2, "b")
    rig.call(3, "c")
    assert rig.closing == [], "nobody is absent"
    rig.feed(SessionAbsent(SessionId("b"), absent=True))
    assert rig.closing == [second]
    rig.up()
    assert rig.on(3) not in {first, second}
    rig.answer(3)
    rig.feed(SessionAbsent(SessionId("b"), absent=False))
    rig.gone("c")
    rig.killed(rig.on(3))
    rig.call(4, "b")
    assert (rig.fault(4), rig.failed[4].delivered) == ("state_lost", "no")
    assert "no open connection" in rig.failed[4].text
    assert rig.served(5, "a") == first


def test_an_absent_agent_keeps_its_instance_while_it_has_a_call_or_nobody_waits() -> None:
    rig = PoolsRig(spec(sharing="session", max_instances=1))
    first = rig.served(1, "a")
    rig.feed(SessionAbsent(SessionId("a"), absent=True))
    rig.wait(60.0)
    assert rig.closing == []
    rig.call(2, "a")
    rig.call(3, "b")
    assert rig.closing == [], "its call runs"
    rig.answer(2)
    assert rig.closing == [first]


@behaviour("lease:shared-out")
def test_a_token_with_all_instances_gives_one_back_to_each_agent_that_waits_and_is_told() -> None:
    rig = PoolsRig(spec(sharing="session", max_instances=4))
    for number in range(4):
        rig.call(number, f"t{number}", principal="token")
        rig.up()
        rig.answer(number)
    rig.call(8, "t8", principal="token")
    rig.call(9, "a")
    rig.wait(9.0)
    assert rig.closing == [], "nobody has waited long enough"
    rig.wait(1.0)
    assert rig.closing == [rig.on(0)]
    rig.up()
    assert 9 in rig.written
    assert 8 not in rig.written
    rig.call(10, "t0", principal="token")
    assert (rig.fault(10), rig.failed[10].delivered) == ("state_lost", "no")
    assert "held most instances" in rig.failed[10].text
    rig.wait(1000.0)
    assert rig.closing == [rig.on(0)], "nobody else waits"


@behaviour("lease:shared-out")
def test_an_instance_of_a_token_with_most_is_taken_back_as_soon_as_its_call_has_ended() -> None:
    rig = PoolsRig(spec(sharing="session", max_instances=2, timeout_s=500.0))
    for number in range(2):
        rig.call(number, f"t{number}", principal="token")
        rig.up()
    rig.call(9, "a")
    rig.wait(15.0)
    assert rig.closing == [], "a call that runs is never ended for another one"
    rig.answer(1)
    assert rig.closing == [rig.on(1)]


@behaviour("lease:shared-out")
def test_at_the_process_cap_a_token_with_most_processes_of_all_servers_gives_one_back() -> None:
    rig = PoolsRig(spec(sharing="session"), spec(EDIT, sharing="session"), cap=4)
    for number in range(3):
        rig.call(number, f"t{number}", EDIT, principal="token")
        rig.up()
        rig.answer(number)
    rig.served(3, "a")
    rig.call(9, "b")
    rig.wait(10.0)
    assert rig.closing == [rig.on(0)]
    rig.killed(rig.on(0))
    rig.up()
    assert 9 in rig.written
    rig.call(10, "t0", EDIT, principal="token")
    assert rig.fault(10) == "state_lost"


@behaviour("lease:shared-out")
def test_a_call_that_can_get_no_room_does_not_keep_leases_from_those_that_wait_behind_it() -> None:
    servers = [PoolKey(f"held{number}:1") for number in range(3)]
    rig = PoolsRig(*(spec(key, sharing="session") for key in (*servers, WEB)), spec(EDIT), cap=3)
    for number, key in enumerate(servers):
        rig.call(number, f"t{number}", key, principal="token")
        rig.up()
        rig.answer(number)
    rig.call(8, "v", EDIT)
    rig.wait(1.0)
    rig.call(9, "u", WEB)
    rig.wait(9.0)
    assert rig.closing == [], "only agents that wait for a lease of their own share in leases"
    rig.wait(1.0)
    assert rig.closing == [rig.on(0)]
    for instance in rig.closing:
        rig.killed(instance)
    rig.up()
    assert 8 in rig.written, "it has waited for longer"
    for instance in rig.closing:
        rig.killed(instance)
    rig.up()
    assert 9 in rig.written
    rig.core.check()


def one_idle(rig: PoolsRig, number: int) -> None:
    """The server answers a call."""
    rig.answer(number)


def cancelled(rig: PoolsRig, number: int) -> None:
    """Its agent cancels a call."""
    rig.cancel(number)


@behaviour("wait:cap")
@pytest.mark.parametrize("end", [one_idle, cancelled])
@pytest.mark.parametrize(("sharing", "cap"), [("session", 2), ("concurrent", 1)])
def test_an_instance_that_is_idle_for_a_moment_makes_room_at_the_process_cap(
    end: Any, sharing: str, cap: int
) -> None:
    """No time passes between the end of its call and its next one."""
    rig = PoolsRig(spec(sharing="session"), spec(EDIT, sharing=sharing), cap=cap)
    for number in range(cap):
        rig.call(number, f"t{number}", EDIT, principal="token")
        rig.up()
    rig.call(9, "u")
    rig.wait(0.3)
    assert rig.closing == []
    busy = rig.on(0)
    end(rig, 0)
    assert rig.closing == [busy]


def test_without_a_line_of_leases_no_token_gives_back_its_only_instance_of_a_server() -> None:
    servers = [PoolKey(f"held{number}:1") for number in range(3)]
    rig = PoolsRig(*(spec(key, sharing="session") for key in servers), spec(EDIT), cap=3)
    for number, key in enumerate(servers):
        rig.call(number, f"t{number}", key, principal="token")
        rig.up()
        rig.answer(number)
    rig.call(8, "v", EDIT)
    rig.wait(29.0)
    assert rig.closing == []


@behaviour("lease:returned-ended", "lease:with-holder")
def test_a_returned_instance_ends_and_without_demand_none_takes_its_place() -> None:
    rig = PoolsRig(spec(sharing="session"))
    first = rig.served(1, "a")
    rig.gone("a")
    rig.killed(first)
    assert rig.spawned == []
    assert rig.core.has_no_process


@behaviour("lease:crash:one-state-lost")
def test_a_crash_is_told_once_and_the_next_call_runs_on_a_fresh_instance() -> None:
    rig = PoolsRig(spec(sharing="session"))
    first = rig.served(1, "a")
    rig.killed(first)
    rig.call(2, "a")
    assert (rig.fault(2), rig.failed[2].delivered) == ("state_lost", "no")
    assert "ended by itself" in rig.failed[2].text
    rig.wait(1.0)
    assert rig.served(3, "a") != first


def test_a_holder_whose_instance_was_ended_as_silent_is_told_that_and_not_of_a_crash() -> None:
    rig = PoolsRig(spec(sharing="session", probe_s=4.0, timeout_s=8.0))
    first = rig.served(1, "a")
    rig.wait(20.0)
    assert rig.core.instances.by_id[first].state is InstanceState.KILLED
    rig.call(2, "a")
    assert rig.fault(2) == "state_lost"
    assert "it was silent for too long, and was ended" in rig.failed[2].text


def test_a_holder_whose_instance_was_ended_as_its_output_was_closed_is_told_that() -> None:
    rig = PoolsRig(spec(sharing="session"))
    rig.feed(ev.StdoutClosed(rig.served(1, "a")))
    rig.wait(1.0)
    rig.call(2, "a")
    assert "it closed its output, and was ended" in rig.failed[2].text


def test_a_crash_before_any_call_was_delivered_has_lost_no_state() -> None:
    rig = PoolsRig(spec(sharing="session"))
    rig.call(1, "a")
    rig.up()
    rig.killed(rig.on(1), (rig.written[1].wire,))
    assert rig.failed == {}
    rig.wait(1.0)
    rig.up()
    rig.answer(1)
    assert rig.answered == {1}


def test_an_undelivered_call_of_a_used_lease_is_told_that_the_state_is_gone() -> None:
    rig = PoolsRig(spec(sharing="session"))
    first = rig.served(1, "a")
    rig.call(2, "a")
    rig.killed(first, (rig.written[2].wire,))
    assert rig.fault(2) == "state_lost"


@behaviour("lease:idle")
def test_an_idle_lease_ends_by_its_own_limit_not_by_that_of_instances() -> None:
    rig = PoolsRig(spec(sharing="session", idle_s=10.0, lease_idle_s=60.0))
    first = rig.served(1, "a")
    rig.wait(50.0)
    assert rig.closing == []
    rig.wait(10.0)
    assert rig.closing == [first]
    rig.call(2, "a")
    assert "idle limit" in rig.failed[2].text


def test_a_restart_by_an_operator_is_told_to_the_holder() -> None:
    rig = PoolsRig(spec(sharing="session"))
    first = rig.served(1, "a")
    rig.feed(Operate(1, WEB, "restart"))
    assert first in rig.closing
    rig.call(2, "a")
    assert "operator" in rig.failed[2].text


def test_a_lease_outlives_the_broker() -> None:
    rig = PoolsRig(spec(sharing="session"))
    first = rig.served(1, "a")
    rig.feed(ev.BrokerConnected())
    assert rig.closing == []
    assert rig.served(2, "a") == first


def test_after_a_cut_link_each_session_that_lives_on_is_told_of_its_lost_lease() -> None:
    rig = PoolsRig(spec(sharing="session"))
    first = rig.served(1, "a")
    rig.feed(ev.BrokerConnected(same=True))
    assert rig.closing == [first]
    rig.call(2, "a")
    assert "lost their connection" in rig.failed[2].text
    assert rig.served(3, "a") != first


@behaviour("lease:spares")
def test_while_a_pool_is_in_use_a_spare_is_warm_and_the_next_lease_is_instant() -> None:
    rig = PoolsRig(spec(sharing="session", spares=1, idle_s=10.0))
    rig.call(1, "a")
    assert len(rig.spawned) == 2
    rig.up()
    rig.call(2, "b")
    assert 2 in rig.written
    assert len(rig.spawned) == 1, "and another one takes its place"
    rig.up()
    rig.wait(100.0)
    assert rig.closing == [], "a spare that is wanted does not idle out"
    states = [each.state for each in rig.core.pool_reports()[0].instances]
    assert sorted(states) == ["serving", "serving", "spare"]


@behaviour("lease:spares")
def test_a_spare_idles_out_when_no_session_holds_or_waits() -> None:
    rig = PoolsRig(spec(sharing="session", spares=1, idle_s=10.0))
    rig.served(1, "a")
    rig.gone("a")
    for instance in list(rig.closing):
        rig.killed(instance)
    rig.wait(20.0)
    for instance in list(rig.closing):
        rig.killed(instance)
    assert rig.core.has_no_process


@behaviour("lease:holders-shown")
def test_the_report_shows_holders_and_open_asks() -> None:
    rig = PoolsRig(spec(sharing="session"))
    rig.call(1, "a")
    rig.up()
    rig.ask(1)
    [instance] = rig.core.pool_reports()[0].instances
    assert (instance.holder, instance.asks) == ("a", 1)
    assert rig.core.pool_reports()[0].sharing == "session"


def test_a_waiting_call_is_refused_at_once_when_its_pool_gives_up_though_others_hold_leases() -> None:
    rig = PoolsRig(spec(sharing="session", give_up_after=1))
    rig.served(1, "a")
    rig.call(2, "b")
    rig.killed(rig.spawned.pop())
    assert rig.fault(2) == "breaker_open"
    rig.call(3, "b")
    assert rig.fault(3) == "breaker_open"
    rig.call(4, "a")
    assert 4 in rig.written, "who holds one goes on"


# --- calls that are over and may still run -----------------------------------------------------------------


def cancel_many(rig: PoolsRig, count: int) -> None:
    for number in range(100, 100 + count):
        rig.call(number, "a")
        rig.cancel(number)


@behaviour("asks:in-flight:tainted-replaced")
def test_an_instance_on_which_too_many_calls_may_still_run_is_replaced_and_none_of_them_forgotten() -> None:
    rig = PoolsRig(spec(sharing="concurrent", max_instances=1))
    rig.call(1, "b")
    rig.up()
    first = rig.on(1)
    cancel_many(rig, MAX_ABANDONED - 1)
    assert rig.core.instances.by_id[first].state is InstanceState.SERVING
    rig.call(2, "a")
    rig.cancel(2)
    assert rig.core.instances.by_id[first].state is InstanceState.DRAINING
    assert len(rig.core.instances.by_id[first].abandoned) == MAX_ABANDONED
    rig.up()
    rig.call(3, "a")
    assert rig.on(3) != first
    assert rig.closing == [], "what is open there is finished"
    rig.answer(1)
    assert (rig.closing, rig.answered, rig.failed) == ([first], {1}, {})


def test_a_holder_does_not_lose_its_state_for_its_own_calls_that_are_never_answered() -> None:
    rig = PoolsRig(spec(sharing="session"))
    first = rig.served(1, "a")
    cancel_many(rig, MAX_ABANDONED + 5)
    assert len(rig.core.instances.by_id[first].abandoned) == MAX_ABANDONED
    assert rig.served(2, "a") == first


# --- verdicts change ---------------------------------------------------------------------------------------


def test_a_catalog_that_speaks_of_state_makes_the_first_instance_a_lease() -> None:
    rig = PoolsRig(spec())
    for number, session in ((1, "a"), (2, "b")):
        rig.call(number, session)
    assert len(rig.spawned) == 1
    rig.one_up("browser_click")
    assert (1 in rig.written, 2 in rig.written) == (True, False)
    rig.one_up("browser_click")
    assert rig.on(2) != rig.on(1)
    assert rig.said[WEB].mode == "session"


@behaviour("modes:new-placements")
def test_an_instance_that_served_several_is_never_leased_it_ends_when_its_calls_have() -> None:
    rig = PoolsRig(spec())
    rig.call(1, "a")
    rig.up()
    rig.call(2, "b")
    rig.feed(
        ev.KnowledgeChanged(
            (ev.PoolKnowledge(WEB, None, (Evidence(kind="probe_diverged", first="", last=""),)),)
        )
    )
    rig.call(3, "a")
    rig.up()
    assert rig.on(3) != rig.on(1)
    rig.answer(1)
    assert rig.closing == []
    rig.answer(2)
    assert rig.closing == [rig.on(1)]


def test_a_server_that_is_leased_no_more_leaves_holders_their_instance_for_a_while() -> None:
    rig = PoolsRig(spec(sharing="session", drain_s=20.0))
    first = rig.served(1, "a")
    rig.feed(SetPools([spec(sharing="concurrent", drain_s=20.0)]))
    assert rig.served(2, "a") == first
    assert rig.served(3, "b") != first
    rig.wait(20.0)
    rig.call(4, "a")
    assert rig.fault(4) == "state_lost"
    rig.call(5, "a")
    assert rig.on(5) == rig.on(3)
    assert rig.core.pools[WEB].plain


# --- reload ------------------------------------------------------------------------------------------------


@behaviour("lease:reload")
def test_after_a_reload_a_holder_keeps_its_instance_until_the_drain_limit_and_is_told_then() -> None:
    rig = PoolsRig(spec(sharing="session", drain_s=20.0))
    first = rig.served(1, "a")
    rig.feed(SetPools([spec(NEW, replaces=WEB, sharing="session")]))
    assert rig.core.instances.by_id[first].state is InstanceState.DRAINING
    assert rig.served(2, "a", NEW) == first
    assert rig.served(3, "b", NEW) != first
    rig.wait(20.0)
    assert rig.closing == [first]
    rig.call(4, "a", NEW)
    assert "configuration was changed" in rig.failed[4].text
    assert rig.served(5, "a", NEW) not in (first, rig.on(3))


@pytest.mark.parametrize(
    "end",
    [
        CancelCall(CallId(2), "not wanted"),
        EndCall(CallId(2)),
        ev.AnswerUnreadable(InstanceId(1), WireId(2), "bad_answer", "It was nonsense."),
        None,
    ],
    ids=["cancelled", "cancelled by an operator", "answered invalidly", "timed out"],
)
def test_room_at_the_old_version_goes_at_once_to_the_call_that_waits_at_the_new_one(end: Any) -> None:
    limits: dict[str, Any] = {"sharing": "session", "max_in_flight": 1, "drain_s": 200.0, "timeout_s": 10.0}
    rig = PoolsRig(spec(**limits))
    first = rig.served(1, "a")
    rig.feed(SetPools([spec(NEW, replaces=WEB, **limits)]))
    rig.call(2, "a", NEW)
    rig.call(3, "a", NEW)
    assert 3 not in rig.written
    if end is None:
        rig.wait(10.0)
    else:
        rig.feed(end)
    assert rig.on(3) == first


def test_an_old_version_that_reads_again_gets_the_call_that_waits_at_the_new_one() -> None:
    rig = PoolsRig(spec(sharing="session", drain_s=20.0))
    first = rig.served(1, "a")
    rig.feed(SetPools([spec(NEW, replaces=WEB, sharing="session")]))
    rig.feed(ev.StdinBlocked(first, True))
    rig.call(2, "a", NEW)
    assert 2 not in rig.written
    rig.feed(ev.StdinBlocked(first, False))
    assert rig.on(2) == first


def test_a_holder_that_leaves_after_a_reload_lets_the_old_pool_go_at_once() -> None:
    rig = PoolsRig(spec(sharing="session"))
    first = rig.served(1, "a")
    rig.feed(SetPools([spec(NEW, replaces=WEB, sharing="session")]))
    rig.gone("a")
    assert rig.closing == [first]
    rig.killed(first)
    assert list(rig.core.pools) == [NEW]


def test_two_reloads_in_a_row_lose_nobody() -> None:
    last = PoolKey("web:3")
    rig = PoolsRig(spec(sharing="session", drain_s=20.0))
    first = rig.served(1, "a")
    rig.feed(SetPools([spec(NEW, replaces=WEB, sharing="session")]))
    rig.feed(SetPools([spec(last, replaces=NEW, sharing="session")]))
    assert rig.served(2, "a", last) == first
    rig.wait(20.0)
    rig.call(3, "a", last)
    assert rig.fault(3) == "state_lost"


def test_a_loss_is_told_once_at_either_of_two_pools_that_replace_the_lost_one() -> None:
    other = PoolKey("web:2:asking")
    for key in (NEW, other):
        rig = PoolsRig(spec(sharing="session"))
        first = rig.served(1, "a")
        rig.feed(SetPools([spec(each, replaces=WEB, sharing="session") for each in (NEW, other)]))
        rig.killed(first)
        rig.call(2, "a", key)
        assert rig.fault(2) == "state_lost"
        for number, heir in ((3, NEW), (4, other)):
            rig.wait(1.0)
            rig.served(number, "a", heir)
        assert list(rig.failed) == [2], "and it is told once"


def test_a_call_that_waits_at_a_new_pool_which_goes_too_is_told_of_the_loss() -> None:
    rig = PoolsRig(spec(sharing="session", max_in_flight=1))
    rig.served(1, "a")
    rig.feed(SetPools([spec(NEW, replaces=WEB, sharing="session")]))
    rig.call(2, "a", NEW)
    rig.call(3, "a", NEW)
    rig.feed(SetPools([]))
    rig.killed(rig.on(1))
    assert rig.fault(3) == "state_lost"


@behaviour("lease:never-silently")
def test_a_call_in_line_at_the_old_version_follows_its_session_to_the_new_one() -> None:
    rig = PoolsRig(spec(sharing="session"))
    rig.call(1, "a")
    rig.feed(SetPools([spec(NEW, replaces=WEB, sharing="session")]))
    old = rig.spawned.pop()
    first = rig.served(2, "a", NEW)
    assert rig.on(1) == first, "one session has one instance of a server, whatever its version"
    rig.answer(1)
    rig.wait(5.0)
    assert rig.closing == [old]


def test_a_call_in_line_at_the_old_version_waits_for_room_where_its_session_is() -> None:
    rig = PoolsRig(spec(sharing="session", max_in_flight=1))
    rig.call(1, "a")
    rig.feed(SetPools([spec(NEW, replaces=WEB, sharing="session", max_in_flight=1)]))
    old = rig.spawned.pop()
    rig.call(2, "a", NEW)
    rig.up()
    rig.spawned.append(old)
    rig.up()
    assert 1 not in rig.written
    assert rig.core.leases.waiting_sessions(WEB) == (), "nor does it get an instance beside"
    rig.answer(2)
    assert rig.on(1) == rig.on(2)


@behaviour("lease:never-silently")
def test_a_loss_at_one_of_two_wanted_versions_is_told_at_the_other() -> None:
    back = spec(WEB, replaces=NEW, sharing="session", drain_s=20.0)
    rig = PoolsRig(spec(sharing="session", drain_s=20.0))
    rig.served(1, "a")
    rig.feed(SetPools([spec(NEW, replaces=WEB, sharing="session")]))
    rig.feed(SetPools([spec(NEW, sharing="session"), back]))
    rig.wait(20.0)
    rig.call(2, "a", NEW)
    assert rig.fault(2) == "state_lost"
    rig.served(3, "a", NEW)
    rig.served(4, "a", WEB)
    assert (rig.on(3), list(rig.failed)) == (rig.on(4), [2]), "and it is told once"


def test_a_loss_at_the_new_version_is_told_to_a_call_in_line_at_the_old_one() -> None:
    rig = PoolsRig(spec(sharing="session", max_in_flight=1))
    rig.call(1, "a")
    rig.feed(SetPools([spec(NEW, replaces=WEB, sharing="session", max_in_flight=1)]))
    rig.spawned.pop()
    rig.call(2, "a", NEW)
    rig.up()
    rig.killed(rig.on(2))
    assert rig.fault(2) == "instance_died"
    assert rig.fault(1) == "state_lost"


@behaviour("lease:reload")
def test_a_server_removed_while_a_holders_calls_wait_at_its_new_pool_ends_each_with_its_true_cause() -> None:
    rig = PoolsRig(spec(sharing="session", max_in_flight=1))
    first = rig.served(1, "a")
    rig.feed(SetPools([spec(NEW, replaces=WEB, sharing="session")]))
    for number in (2, 3, 4, 5):
        rig.call(number, "a", NEW)
    rig.feed(SetPools([]))
    rig.answer(2)
    assert rig.on(3) == first, "while its instance drains its calls run there"
    rig.killed(first)
    assert [rig.fault(number) for number in (3, 4, 5)] == ["instance_died", "state_lost", "state_lost"]
    assert rig.core.pools == {}


@pytest.mark.parametrize("sharing", ["concurrent", "serial", "session"])
def test_a_call_that_waits_at_a_removed_server_is_refused_when_its_last_instance_dies(sharing: str) -> None:
    rig = PoolsRig(spec(sharing=sharing, max_in_flight=1, max_instances=1))
    rig.call(1, "a")
    rig.up()
    rig.call(2, "b")
    rig.feed(SetPools([]))
    if sharing == "session":
        assert rig.fault(2) == "draining", "the only instance is another's"
    assert (sharing == "session") == (2 in rig.failed), "it may still come to its turn"
    rig.killed(rig.on(1))
    assert (rig.fault(2), rig.failed[2].delivered) == ("draining", "no")
    assert (rig.spawned, rig.core.pools) == ([], {})


def test_a_queue_at_a_removed_server_is_served_only_by_an_instance_that_already_starts() -> None:
    rig = PoolsRig(spec(sharing="session"), cap=1)
    rig.call(1, "a")
    rig.call(2, "b")
    rig.feed(SetPools([]))
    assert rig.failed == {}
    rig.up()
    assert 1 in rig.written
    assert rig.fault(2) == "draining"


def test_a_server_that_comes_back_before_it_has_gone_starts_as_if_it_were_new() -> None:
    rig = PoolsRig(spec(sharing="session", give_up_after=1))
    rig.served(1, "a")
    rig.call(2, "a")
    rig.killed(rig.served(3, "b"))
    assert rig.core.pools[WEB].restart.breaker == "open"
    rig.feed(SetPools([]))
    rig.feed(SetPools([spec(sharing="session", give_up_after=1)]))
    rig.served(4, "c")
    assert rig.failed == {}


def test_a_server_that_is_configured_no_more_ends_its_leases_at_once() -> None:
    rig = PoolsRig(spec(sharing="session"))
    first = rig.served(1, "a")
    rig.feed(SetPools([]))
    assert rig.closing == [first]
    rig.killed(first)
    assert rig.core.pools == {}


# --- the process cap ---------------------------------------------------------------------------------------


@behaviour("wait:cap-yields-lease")
def test_a_waiting_session_with_an_idle_lease_gives_it_up_at_the_process_cap() -> None:
    rig = PoolsRig(spec(sharing="session"), spec(EDIT, sharing="session"), cap=1)
    first = rig.served(1, "a")
    rig.call(2, "a", EDIT)
    assert rig.closing == [first]
    rig.killed(first)
    rig.up()
    assert 2 in rig.written
    rig.call(3, "a")
    assert "had to make room" in rig.failed[3].text


@behaviour("wait:cap")
def test_an_idle_instance_without_a_lease_ends_before_any_lease_at_the_process_cap() -> None:
    rig = PoolsRig(spec(sharing="session"), spec(EDIT), spec(PoolKey("c:1")), cap=2)
    rig.served(1, "a")
    free = rig.served(2, "b", EDIT)
    rig.call(3, "a", PoolKey("c:1"))
    assert rig.closing == [free]


@behaviour("wait:slot-for-each")
def test_a_server_without_any_instance_gets_a_slot_also_where_all_are_leased() -> None:
    rig = PoolsRig(spec(sharing="session"), spec(EDIT), cap=2)
    first, second = rig.served(1, "a"), rig.served(2, "b")
    rig.call(3, "b")
    rig.call(4, "c", EDIT)
    assert rig.closing == [first], "the idle one, not that in use"
    rig.killed(first)
    rig.up()
    assert 4 in rig.written
    assert rig.on(3) == second
    rig.call(5, "a")
    assert "another server had no instance" in rig.failed[5].text


def test_a_spare_displaces_no_instance() -> None:
    rig = PoolsRig(spec(EDIT), spec(sharing="session", spares=1), cap=2)
    rig.served(1, "a", EDIT)
    rig.served(2, "b")
    rig.wait(10.0)
    assert rig.closing == []
    assert rig.spawned == []


# --- waiting -----------------------------------------------------------------------------------------------


@behaviour("wait:progress")
def test_an_agent_that_wants_progress_hears_of_its_wait_and_the_numbers_only_rise() -> None:
    rig = PoolsRig(spec(sharing="serial", max_instances=1, wait_s=12.0))
    rig.call(1, "a")
    rig.up()
    rig.call(2, "b")
    rig.call(3, "c", wants_progress=True)
    rig.wait(12.0)
    assert [each["progress"] for each in rig.heard[3]] == [-12.0, -7.0, -2.0]
    assert rig.heard[3][0]["message"] == "Waiting for an instance of web: 1 call ahead, at most 12 s more."
    assert (2 in rig.heard, rig.fault(3)) == (False, "waited_too_long")


def test_a_notice_of_a_leased_pool_counts_agents_ahead_and_the_refusal_says_that_all_are_taken() -> None:
    rig = PoolsRig(spec(sharing="session", max_instances=1, wait_s=4.0))
    rig.served(1, "a")
    rig.call(2, "b")
    rig.call(3, "c", wants_progress=True)
    assert "1 agent ahead" in rig.heard[3][0]["message"]
    rig.wait(4.0)
    assert "all 1 are taken" in rig.failed[3].text


def test_a_call_that_waits_for_a_second_time_is_told_nothing_that_steps_back() -> None:
    rig = PoolsRig(spec(wait_s=20.0))
    rig.call(1, "a", wants_progress=True)
    rig.wait(12.0)
    rig.up()
    rig.killed(rig.on(1), (rig.written[1].wire,))
    rig.wait(19.0)
    told = [each["progress"] for each in rig.heard[1]]
    assert told == sorted(set(told))
    assert len(told) > 3


@pytest.mark.parametrize("sharing", ["concurrent", "serial", "session"])
def test_the_broker_is_told_the_mode_and_again_when_it_changes(sharing: str) -> None:
    rig = PoolsRig(spec())
    rig.feed(SetPools([spec(sharing=sharing)]))
    rig.feed(DiscoverCatalog(WEB))
    assert rig.said[WEB].mode == sharing


# --- needs before wishes at the process cap ----------------------------------------------------------------

CON, AUT, SER = PoolKey("con:1"), PoolKey("aut:1"), PoolKey("ser:1")


def crowded(cap: int = 3) -> PoolsRig:
    """`a` and `b` hold idle leases of a pool with a spare, beside three servers that have no instance."""
    others = (spec(CON), spec(AUT), spec(SER, sharing="serial"))
    rig = PoolsRig(spec(sharing="session", spares=1), *others, cap=cap)
    rig.served(1, "a")
    rig.served(2, "b")
    rig.up()
    return rig


def ended(rig: PoolsRig) -> list[InstanceId]:
    """Let all that is asked to end do so, and what follows from that; nothing new greets meanwhile."""
    gone = []
    while rig.closing:
        gone.append(rig.closing[0])
        rig.killed(gone[-1])
    return gone


@behaviour("wait:cap-yields-lease")
def test_room_that_was_made_for_a_server_with_callers_is_not_taken_by_a_spare() -> None:
    rig = crowded()
    for number, key in ((3, CON), (4, AUT), (5, SER)):
        rig.call(number, "a", key)
    [spare] = rig.closing
    assert ended(rig) == [spare, rig.on(1)], "one instance for each that starts"
    started = [rig.core.instances.by_id[each].pool.key for each in rig.spawned]
    assert started == [CON, AUT]
    assert rig.core.leases.held_instance(SessionId("b"), ServerName("web")) == (WEB, rig.on(2))
    rig.one_up()
    rig.answer(3)
    rig.one_up()
    assert ended(rig) == [rig.on(3)], "the idle one goes for the third"
    rig.up()
    assert 5 in rig.written
    rig.answer(4)
    rig.answer(5)
    rig.wait(10.0)
    rig.call(6, "b")
    assert rig.on(6) == rig.on(2), "and nobody lost a lease for a spare"


def test_a_spare_that_still_starts_makes_room_before_any_lease() -> None:
    rig = PoolsRig(spec(sharing="session", spares=1), spec(CON), cap=2)
    rig.call(1, "a")
    lease, spare = rig.spawned
    rig.one_up()
    rig.answer(1)
    rig.call(2, "a", CON)
    assert rig.closing == [spare]
    rig.spawned.remove(spare)
    rig.killed(spare)
    rig.up()
    assert 2 in rig.written
    assert rig.core.leases.held_instance(SessionId("a"), ServerName("web")) == (WEB, lease)


def test_a_spare_starts_when_room_is_left_and_no_call_waits_for_it() -> None:
    rig = crowded(cap=4)
    rig.call(3, "a", CON)
    rig.up()
    assert rig.closing == []
    rig.call(4, "c")
    rig.up()
    assert 4 in rig.written
    assert rig.core.leases.spare_count(WEB) == 0, "there is no room for another one"
    rig.answer(3)
    rig.feed(Operate(1, CON, "stop"))
    ended(rig)
    rig.up()
    assert rig.core.leases.spare_count(WEB) == 1


# --- the last places of an instance ------------------------------------------------------------------------


def one_crowd(calls: int, **policy: Any) -> PoolsRig:
    """One instance, and so many calls of one token, of several sessions."""
    rig = PoolsRig(spec(max_instances=1, **{"sharing": "concurrent"} | policy))
    for number in range(calls):
        rig.call(number, f"t{number % 5}", principal="token")
    rig.up()
    return rig


@behaviour("wait:last-places")
def test_the_last_eighth_of_the_places_is_for_whoever_holds_fewer_than_are_left() -> None:
    rig = one_crowd(40, max_in_flight=32)
    assert len(rig.written) == 28
    for number, session in enumerate(("a", "a", "a", "b", "c", "d"), start=50):
        rig.call(number, session)
    assert sorted(each for each in rig.written if each >= 50) == [50, 51, 53, 54]
    rig.answer(0)
    assert 55 in rig.written, "d holds none, and so gets the only place, though others have waited longer"
    assert 52 not in rig.written
    for number in (1, 2, 3):
        rig.answer(number)
    assert 52 in rig.written, "three places are left, and a holds two"
    placed = len(rig.written)
    rig.answer(4)
    rig.answer(5)
    assert len(rig.written) == placed, "the token gets no place as long as others have come"
    rig.answer(50)
    assert len(rig.written) == placed + 1, "it does when one of the places is free that are for all"


@behaviour("wait:last-places")
@pytest.mark.parametrize(("most", "kept"), [(1, 0), (7, 0), (8, 1), (15, 1), (16, 2), (256, 32)])
def test_at_least_one_place_is_kept_where_there_are_eight(most: int, kept: int) -> None:
    rig = one_crowd(most + 5, max_in_flight=most)
    assert len(rig.written) == most - kept
    rig.call(1000, "a")
    assert (1000 in rig.written) == (kept > 0)


def test_one_agent_that_waits_for_a_place_for_all_holds_up_no_other_and_keeps_its_own_order() -> None:
    rig = one_crowd(15, max_in_flight=16)
    rig.call(20, "a")
    rig.call(21, "t0", principal="token")
    assert 20 in rig.written
    for number in (0, 1, 2):
        rig.answer(number)
    assert [each for each in rig.written if each >= 14] == [20, 14, 21]


def work_of_an_answer(agents: int) -> int:
    """The bytecodes of an answer at an instance with 256 places that are all taken, while more calls of each
    of so many agents wait: nobody gets its place but who had it.
    """
    rig = PoolsRig(spec(sharing="concurrent", max_instances=1, max_in_flight=256))
    rig.call(0, "s0")
    rig.up()
    for number in range(1, 256 + agents):
        rig.core.handle(tool_call(number, WEB, f"s{number % agents}"), rig.now)
    instance = rig.core.instances.by_id[rig.on(0)]
    assert len(instance.in_flight) == 256 - (agents < 256)
    answer = ev.ServerAnswered(instance.id, next(reversed(instance.in_flight)), is_error=False, body=OK)
    return count_bytecodes(lambda: rig.core.handle(answer, rig.now))


@behaviour("wait:last-places")
def test_a_turn_that_waits_for_another_place_costs_an_answer_next_to_nothing() -> None:
    few, many = 128, 256
    work_of_an_answer(few)  # caches of the process are warm then
    more = work_of_an_answer(many) - work_of_an_answer(few)
    assert more < 40 * (many - few), f"{more} bytecodes for {many - few} more turns that wait"


@behaviour("wait:last-places")
def test_few_turns_are_passed_over_for_a_last_place_however_many_wait() -> None:
    rig = one_crowd(0, max_in_flight=16)
    rig.call(0, "a")
    rig.up()
    for number in range(1, 13):
        rig.call(number, f"s{(number - 1) // 3}")
    rig.call(13, "s4")
    turns = [SessionId(f"s{number}") for number in range(5)]
    turns += [SessionId(f"new{number}") for number in range(1000)]
    left = iter(turns)
    found = rig.core.pools[WEB].pick_last_place(left)
    assert found is not None
    assert found[0] == "s4", "the first in order that holds fewer than the two places that are left"
    assert next(left) == turns[5]


def test_turns_are_counted_only_while_an_instance_is_nearly_full() -> None:
    rig = one_crowd(14, max_in_flight=16)
    instance = rig.core.instances.by_id[rig.on(0)]
    assert not instance.turns
    for number, session in enumerate(("a", "b"), start=20):
        rig.call(number, session)
    assert dict(instance.turns) == {"@token": 14, "a": 1, "b": 1}
    rig.answer(20)
    assert "a" not in instance.turns
    for number in range(9):
        rig.answer(number)
    assert not instance.turns


@behaviour("wait:last-places")
def test_calls_that_cannot_ask_leave_places_of_a_serial_instance_to_others() -> None:
    rig = PoolsRig(spec(sharing="serial", max_instances=1, max_in_flight=8))
    for number in range(9):
        rig.call(number, "t", method="resources/subscribe", principal="token")
    rig.up()
    assert len(rig.written) == 7
    rig.call(20, "a", method="resources/subscribe")
    assert 20 in rig.written


def test_a_call_about_a_task_leaves_the_last_places_to_others_too_unless_it_cancels_the_task() -> None:
    rig = one_crowd(7, max_in_flight=8)
    about = msgspec.structs.replace(
        tool_call(20, WEB, "t0", principal="token"), method="tasks/result", instance=rig.on(0)
    )
    rig.feed(about)
    assert rig.fault(20) == "unavailable"
    rig.feed(msgspec.structs.replace(about, call=CallId(21), method="tasks/cancel"))
    assert 21 in rig.written
    rig.answer(21)
    rig.feed(msgspec.structs.replace(about, call=CallId(22), session=SessionId("a"), principal=""))
    assert 22 in rig.written


@behaviour("wait:last-places")
@given(
    st.lists(
        st.tuples(st.sampled_from(["call", "answer", "cancel"]), st.integers(0, 3), st.integers(0, 40)),
        max_size=120,
    ),
    st.sampled_from(["concurrent", "serial"]),
)
@settings(max_examples=40, deadline=None)
def test_whatever_comes_and_goes_no_call_waits_that_has_a_place(
    steps: list[tuple[str, int, int]], sharing: str
) -> None:
    """The rig asserts the invariants of the core after each event."""
    rig = PoolsRig(spec(sharing=sharing, max_instances=2, max_in_flight=8, scale_up_at=2))
    rig.call(1, "a")
    rig.up()
    number = 1
    for verb, who, which in steps:
        running = [CallId(each) for each in rig.written if CallId(each) in rig.core.dispatcher.calls]
        if verb == "call" or not running:
            number += 1
            method = "tools/call" if which % 4 == 0 else "resources/subscribe"
            rig.call(number, f"s{which % 2}.{who}", method=method, principal="" if who == 3 else f"p{who}")
            rig.up()
        elif verb == "answer":
            rig.answer(running[which % len(running)])
        else:
            rig.cancel(running[which % len(running)])
    rig.core.check()
