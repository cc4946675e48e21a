"""The circuit breaker of a pool: when it opens, which starts it allows, how it closes."""

from typing import Any

import pytest

from carpool_protocol.ids import InstanceId, PoolKey, ServerName
from carpool_protocol.link.messages import (
    DiscoverCatalog,
    Operate,
    Policy,
    PoolSpec,
    SetPools,
)
from carpool_supervisor.core.model import events as ev
from carpool_supervisor.core.model.effects import Spawn
from carpool_supervisor.core.model.version_offers import VERSIONS
from tests.behaviours import behaviour
from tests.kit.supervisor_rig import SupervisorRig

KEY = PoolKey("git:1")


def spec(**policy: Any) -> PoolSpec:
    given = {"give_up_after": 2, "first_delay_s": 0.0, "open_s": 60.0, "idle_s": 1000.0, "probe_s": 900.0}
    return PoolSpec(
        key=KEY, server=ServerName("git"), argv=[], env={}, cwd="/", policy=Policy(**(given | policy))
    )


class CircuitBreakerRig(SupervisorRig):
    """One pool. Instances do what they are told to."""

    def __init__(self, **policy: Any) -> None:
        self.states: list[str] = []
        super().__init__(spec(**policy))

    def observe(self, effects: list[Any]) -> None:
        self.states += [state for effect in effects if (state := getattr(effect, "state", None))]

    def greeted(self) -> InstanceId:
        instance = self.spawned[0]
        self.greet(instance)
        return instance

    def die(self, instance: InstanceId | None = None) -> None:
        self.exit(instance or self.spawned.pop(0))

    def broken(self) -> "CircuitBreakerRig":
        """Until its breaker is open."""
        self.call(1)
        while self.core.pools[KEY].restart.breaker == "closed":
            self.die()
            self.wait(0.1)
        return self

    @property
    def breaker(self) -> str:
        return self.core.pools[KEY].restart.breaker


def refusal(rig: CircuitBreakerRig, number: int) -> tuple[str, str, float | None]:
    failed = rig.failed[number]
    return failed.fault, failed.delivered, failed.retry_after_s


@behaviour("silence:breaker")
def test_a_program_that_cannot_be_started_is_named_and_its_fault_has_no_wait() -> None:
    rig = CircuitBreakerRig()
    rig.call(1)
    rig.feed(ev.SpawnFailed(rig.spawned.pop(0), "could not be started: no command uvx", 0.0, passing=False))
    assert refusal(rig, 1) == ("cannot_start", "no", None)
    assert "no command uvx" in rig.failed[1].text
    rig.call(2)
    assert refusal(rig, 2) == ("cannot_start", "no", None)
    rig.wait(60.0)
    rig.call(3)
    rig.greeted()
    assert rig.breaker == "half_open"
    rig.answer(3, is_error=True)
    assert rig.breaker == "closed"
    assert not rig.core.pools[KEY].restart.hopeless


@behaviour("silence:breaker")
def test_an_open_breaker_refuses_calls_at_once_and_says_how_long() -> None:
    rig = CircuitBreakerRig().broken()
    assert refusal(rig, 1) == ("breaker_open", "no", 60.0)
    assert "exit code 1" in rig.failed[1].text
    rig.wait(19.9)
    rig.call(2)
    fault, delivered, retry_after_s = refusal(rig, 2)
    assert (fault, delivered) == ("breaker_open", "no")
    assert retry_after_s is not None
    assert 39 < retry_after_s < 41
    assert rig.spawned == []
    assert rig.core.pool_reports()[0].breaker == "open"


@behaviour("silence:breaker-on-demand")
def test_no_instance_starts_after_the_open_time_without_need() -> None:
    rig = CircuitBreakerRig().broken()
    rig.wait(1000.0)
    assert rig.spawned == []
    assert rig.core.pools[KEY].state_at(rig.now) == rig.states[-1] == "half_open"
    assert rig.core.next_deadline() is None


@behaviour("silence:breaker-on-demand")
def test_a_list_request_missed_while_the_breaker_was_open_starts_the_server_later() -> None:
    rig = CircuitBreakerRig().broken()
    rig.wait(10.0)
    rig.feed(DiscoverCatalog(KEY))
    rig.wait(49.0)
    assert rig.spawned == []
    rig.wait(2.0)
    assert len(rig.spawned) == 1


def test_a_server_that_must_always_run_is_tried_again_without_a_call() -> None:
    for policy in ({"min_instances": 1}, {"auto_connect": True}):
        rig = CircuitBreakerRig(**policy).broken()
        rig.wait(61.0)
        assert len(rig.spawned) == 1, policy


@behaviour("silence:breaker-probes")
def test_a_half_open_breaker_starts_an_instance_for_one_call_and_refuses_others() -> None:
    rig = CircuitBreakerRig().broken()
    rig.wait(61.0)
    rig.call(2)
    assert len(rig.spawned) == 1
    rig.call(3, "b")
    assert refusal(rig, 3)[:2] == ("breaker_open", "no")
    assert refusal(rig, 3)[2] is not None
    assert 2 not in rig.failed


@behaviour("silence:breaker-probes")
def test_a_trial_instance_gets_one_call_at_a_time_until_one_is_answered() -> None:
    rig = CircuitBreakerRig(max_instances=3, scale_up_at=1).broken()
    rig.wait(61.0)
    rig.call(2)
    rig.greeted()
    for number in (3, 4, 5):
        rig.call(number, "b")
    assert list(rig.written) == [2]
    assert rig.core.pool_reports()[0].breaker == "half_open"
    assert rig.spawned == []
    rig.answer(2, is_error=True)
    assert sorted(rig.written) == [2, 3, 4, 5]
    assert rig.breaker == "closed"
    assert rig.failed.keys() == {1}


def test_a_call_that_times_out_on_trial_makes_way_for_the_next_one() -> None:
    rig = CircuitBreakerRig(timeout_s=5.0).broken()
    rig.wait(61.0)
    rig.call(2)
    rig.greeted()
    rig.call(3)
    rig.wait(6.0)
    assert rig.failed[2].fault == "timed_out"
    assert 3 in rig.written
    assert rig.breaker == "half_open"


@behaviour("silence:breaker-probes")
def test_a_failure_while_it_is_half_open_opens_it_again_for_as_long() -> None:
    rig = CircuitBreakerRig().broken()
    rig.wait(61.0)
    rig.call(2)
    rig.die(rig.greeted())
    assert (rig.breaker, rig.failed[2].fault) == ("open", "instance_died")
    rig.call(3)
    assert refusal(rig, 3) == ("breaker_open", "no", 60.0)
    assert rig.states[-2:] == ["serving", "breaker_open"]


def test_a_start_that_fails_while_it_is_half_open_refuses_the_call_that_had_it_started() -> None:
    rig = CircuitBreakerRig().broken()
    rig.wait(61.0)
    rig.call(2)
    rig.die()
    assert refusal(rig, 2) == ("breaker_open", "no", 60.0)


def test_soon_after_it_closed_one_failure_opens_it_and_after_a_healthy_life_it_does_not() -> None:
    for lived_s, breaker in ((1.0, "open"), (61.0, "closed")):
        rig = CircuitBreakerRig().broken()
        rig.wait(61.0)
        rig.call(2)
        instance = rig.greeted()
        rig.answer(2, is_error=True)
        rig.wait(lived_s)
        rig.die(instance)
        assert rig.breaker == breaker


def test_a_healthy_life_without_any_call_closes_it_too() -> None:
    rig = CircuitBreakerRig(auto_connect=True).broken()
    rig.wait(61.0)
    rig.greeted()
    assert rig.breaker == "half_open"
    rig.wait(70.0)
    assert rig.breaker == "closed"


def test_instances_that_serve_go_on_while_others_fail_and_one_at_a_time_is_tried() -> None:
    rig = CircuitBreakerRig(max_instances=3, scale_up_at=1, max_in_flight=1)
    rig.call(1)
    rig.greeted()
    for number in (2, 3):
        rig.call(number)
        rig.die()
        rig.wait(0.1)
    rig.call(4)
    assert rig.breaker == "open"
    assert set(rig.failed) == set()
    assert rig.core.pools[KEY].state_at(rig.now) == "serving"
    rig.wait(25.0)
    rig.answer(1, is_error=True)
    rig.wait(36.0)
    rig.call(5)
    rig.call(6)
    assert len(rig.spawned) == 1
    rig.greeted()
    assert rig.breaker == "closed"


def test_an_operator_closes_it_at_once() -> None:
    rig = CircuitBreakerRig().broken()
    rig.feed(Operate(1, KEY, "start"))
    assert len(rig.spawned) == 1
    rig.greeted()
    for number in (2, 3):
        rig.call(number)
    assert sorted(rig.written) == [2, 3]


def test_a_breaker_without_an_open_time_stays_open_until_an_operator_starts_the_server() -> None:
    rig = CircuitBreakerRig(open_s=0.0).broken()
    assert refusal(rig, 1) == ("given_up", "no", None)
    rig.feed(DiscoverCatalog(KEY))
    rig.wait(10_000.0)
    assert rig.spawned == []
    assert rig.states[-1] == "given_up"
    rig.feed(SetPools([spec(open_s=30.0)]))
    rig.call(2)
    assert refusal(rig, 2) == ("breaker_open", "no", 30.0)
    rig.feed(Operate(1, KEY, "start"))
    assert len(rig.spawned) == 1


def test_a_command_that_cannot_be_started_opens_it_at_once_and_is_tried_again_too() -> None:
    rig = CircuitBreakerRig(give_up_after=5)
    rig.call(1)
    rig.feed(ev.SpawnFailed(rig.spawned.pop(), "could not be started: no such command", 0.0))
    assert refusal(rig, 1) == ("cannot_start", "no", None)
    rig.wait(61.0)
    rig.call(2)
    assert len(rig.spawned) == 1


@behaviour("faults:descriptors")
def test_a_machine_at_a_limit_is_tried_again_after_a_pause_while_the_call_waits() -> None:
    rig = CircuitBreakerRig(give_up_after=3, first_delay_s=1.0)
    failed = ("could not be started: no pipe could be made", 0.0, True)
    rig.call(1)
    for pause_s in (0.5, 1.0):
        rig.feed(ev.SpawnFailed(rig.spawned.pop(), *failed))
        assert rig.spawned == []
        assert not rig.failed
        rig.wait(pause_s)
    rig.feed(ev.SpawnFailed(rig.spawned.pop(), *failed))
    assert refusal(rig, 1)[:2] == ("breaker_open", "no")


def siblings(count: int, **policy: Any) -> tuple[CircuitBreakerRig, list[InstanceId]]:
    """A pool with so many instances, each of which has answered a call of an agent of its own."""
    rig = CircuitBreakerRig(max_instances=count, min_instances=count, scale_up_at=1, **policy)
    rig.call(99)
    instances = []
    while rig.spawned:
        instances.append(rig.spawned.pop(0))
        rig.greet(instances[-1])
    assert len(instances) == count
    rig.answer(99)
    for number in range(1, count + 1):
        rig.call(number, f"s{number}")
    assert all(each.in_flight for each in rig.core.pools[KEY].serving)
    for number in range(1, count + 1):
        rig.answer(number)
    rig.wait(1.0)
    return rig, instances


@behaviour("silence:breaker-siblings")
def test_the_ends_of_all_instances_within_a_second_are_one_failure() -> None:
    rig, instances = siblings(6)
    for instance in instances:
        rig.die(instance)
        rig.wait(0.1)
    assert rig.breaker == "closed"
    assert rig.core.pools[KEY].restart.failures == 1
    rig.call(9)
    while rig.spawned:
        rig.greet(rig.spawned.pop(0))
    rig.answer(9)
    assert not rig.failed


@behaviour("silence:breaker-siblings")
def test_starts_that_fail_within_a_second_of_each_other_are_one_failure() -> None:
    rig = CircuitBreakerRig(max_instances=3, scale_up_at=1, min_instances=3)
    rig.call(1)
    rig.wait(0.1)
    together = rig.spawned.copy()
    rig.spawned.clear()
    assert len(together) == 3
    for instance in together:
        rig.die(instance)
    assert rig.breaker == "closed"


@behaviour("silence:breaker-siblings")
def test_an_instance_that_has_answered_is_not_counted_in_a_row_with_its_siblings() -> None:
    rig, instances = siblings(4)
    for instance in instances:
        rig.die(instance)
        rig.wait(10.0)
    assert rig.breaker == "closed"


def test_a_process_that_replaces_a_failed_one_counts_anew_however_soon_it_fails() -> None:
    rig, instances = siblings(2)
    for instance in instances:
        rig.die(instance)
    assert rig.breaker == "closed"
    rig.wait(0.1)
    rig.die()
    assert rig.breaker == "open"


def test_the_last_error_is_not_that_a_sibling_had_not_greeted_yet() -> None:
    rig = CircuitBreakerRig(max_instances=2, min_instances=2)
    rig.call(1)
    first, second = rig.spawned
    rig.greet(first)
    rig.answer(1)
    rig.wait(1.0)
    for each in (first, second):
        rig.exit(each, why="was killed by SIGKILL")
    assert rig.core.pools[KEY].last_error == "was killed by SIGKILL"


class OfferedVersionRig(CircuitBreakerRig):
    """A pool whose processes end while they are greeted; the versions that each one was offered first."""

    def __init__(self, **policy: Any) -> None:
        self.offered: list[str] = []
        super().__init__(**policy)

    def observe(self, effects: list[Any]) -> None:
        super().observe(effects)
        self.offered += [effect.version for effect in effects if isinstance(effect, Spawn)]

    def end_greeting(self, *refusals: tuple[str, str], failed: bool = False) -> None:
        """The next process refuses versions (version, the one offered next), and ends."""
        instance = self.spawned.pop(0)
        self.feed(ev.InstanceSpawned(instance, 100))
        for version, then in refusals:
            self.feed(ev.VersionRefused(instance, version, then))
        if failed:
            self.feed(ev.GreetingFailed(instance, "refused initialize: Invalid Request (-32600)"))
        self.exit(instance)
        self.wait(0.1)


@behaviour("versions:exit")
@pytest.mark.parametrize("how", ["in silence", "after a refusal", "by a final refusal"])
def test_processes_that_end_in_their_greeting_are_offered_each_version_before_the_breaker_opens(
    how: str,
) -> None:
    rig = OfferedVersionRig(give_up_after=1)
    rig.call(1)
    for index, version in enumerate(VERSIONS):
        assert (rig.offered, rig.breaker) == (list(VERSIONS[: index + 1]), "closed")
        older = VERSIONS[index + 1] if index + 1 < len(VERSIONS) else ""
        refusals = {"after a refusal": [(version, older)], "by a final refusal": [(version, "")]}.get(how, [])
        rig.end_greeting(*refusals, failed=how == "by a final refusal")
    assert rig.breaker == "open"
    rig.wait(61.0)
    rig.call(2)
    assert rig.offered[-1] == VERSIONS[0]
    rig.end_greeting()
    assert rig.breaker == "open", "each version once"


@behaviour("versions:exit")
def test_the_version_that_a_process_has_accepted_is_offered_to_all_later_ones() -> None:
    rig = OfferedVersionRig(give_up_after=9)
    rig.call(1)
    rig.end_greeting()
    instance = rig.greeted()
    rig.exit(instance)
    rig.call(2)
    rig.wait(0.1)
    rig.end_greeting()
    assert rig.offered == [VERSIONS[0], VERSIONS[1], VERSIONS[1], VERSIONS[1]]


@behaviour("versions:exit")
@pytest.mark.parametrize("why", ["not greeted", "accepted", "killed by carpool"])
def test_an_end_that_is_no_matter_of_versions_changes_no_offer(why: str) -> None:
    rig = OfferedVersionRig(first_start_s=5.0)
    rig.call(1)
    instance = rig.spawned.pop(0)
    if why != "not greeted":
        rig.feed(ev.InstanceSpawned(instance, 100))
    if why == "accepted":
        rig.feed(ev.ListRequestChanged(instance, "tools/list"))
    if why == "killed by carpool":
        rig.wait(6.0)
    rig.exit(instance)
    rig.wait(0.1)
    assert rig.offered == [VERSIONS[0]] * 2
