"""What the supervisor counts of each server."""

from carpool_protocol.counters.call_counts import OTHER
from carpool_protocol.counters.snapshot import ServerCounts
from carpool_protocol.ids import InstanceId, PoolKey, ServerName
from carpool_protocol.link.messages import Policy, SetPools
from carpool_supervisor.core.model import events as ev
from carpool_supervisor.core.model.server_counters import MAX_SERVERS, ServerCounters
from tests.behaviours import behaviour
from tests.kit.supervisor_rig import SupervisorRig, pool_spec
from tests.supervisor.core.calls.test_server_requests import AskingServerRig

KEY, NEXT = PoolKey("git:1"), PoolKey("git:2")
GIT = ServerName("git")
ONE, TWO, THREE = InstanceId(1), InstanceId(2), InstanceId(3)


def counts(rig: SupervisorRig, server: ServerName = GIT) -> ServerCounts:
    return rig.core.targets.counters.report()[server]


@behaviour("counters:servers")
def test_starts_deaths_and_restarts_are_counted_and_outlive_their_pool() -> None:
    rig = SupervisorRig(pool_spec(KEY, Policy(min_instances=1)))
    rig.greet(ONE)
    assert counts(rig) == ServerCounts(starts=1)
    rig.exit(ONE)
    rig.wait(60.0)
    assert counts(rig) == ServerCounts(starts=2, deaths=1, restarts=1)
    rig.feed(ev.SpawnFailed(TWO, "no such command", 0.0, passing=False))
    assert counts(rig) == ServerCounts(starts=2, deaths=2, restarts=1), "the breaker is open: no restart"
    rig.feed(SetPools([pool_spec(NEXT, Policy(min_instances=1))], 64, 99))
    assert KEY not in rig.core.pools
    assert counts(rig) == ServerCounts(starts=3, deaths=2, restarts=1)


@behaviour("counters:servers")
def test_an_instance_that_is_stopped_has_not_died() -> None:
    rig = SupervisorRig(pool_spec(KEY, Policy(min_instances=1)))
    rig.greet(ONE)
    rig.feed(SetPools([], 64, 99))
    rig.exit(ONE, why="ended with exit code 0")
    assert counts(rig) == ServerCounts(starts=1)


@behaviour("counters:servers")
def test_asks_that_reach_an_agent_are_counted() -> None:
    rig = AskingServerRig()
    rig.call(1)
    rig.asked(b"1")
    rig.ask(b"2", task="a task that nobody knows")
    assert counts(rig, rig.core.pools[rig.key].server).asks == 1


@behaviour("counters:servers")
def test_a_session_that_waits_for_an_instance_is_counted_once() -> None:
    rig = SupervisorRig(pool_spec(KEY, Policy(min_instances=1, max_instances=1, sharing="session")))
    rig.greet(ONE)
    rig.call(1, "a")
    assert counts(rig).lease_waits == 0
    rig.call(2, "b")
    rig.call(3, "b")
    rig.wait(1.0)
    assert counts(rig).lease_waits == 1


def test_beyond_the_bound_servers_share_their_counts() -> None:
    counters = ServerCounters()
    for number in range(MAX_SERVERS + 5):
        counters.counts_of(ServerName(f"server {number}")).starts += 1
    found = counters.report()
    assert len(found) == MAX_SERVERS + 1
    assert found[ServerName(OTHER)].starts == 5


def test_a_report_is_a_copy() -> None:
    counters = ServerCounters()
    counters.counts_of(GIT)
    report = counters.report()
    counters.counts_of(GIT).starts += 1
    assert report[GIT].starts == 0
