"""The placement of servers on supervisors, and the credit of each link."""

from collections import Counter

from carpool_broker.core.model.supervisors import ONLY, SupervisorLinks
from carpool_protocol.ids import PoolKey, ServerName, SupervisorName
from tests.behaviours import behaviour

NAMES = [SupervisorName(f"sup{number}") for number in (1, 2, 3)]
SERVERS = [ServerName(f"server-{number}") for number in range(300)]


def placed(names: list[SupervisorName]) -> dict[ServerName, SupervisorName]:
    links = SupervisorLinks(names)
    return {server: links.owner_of_server(server) for server in SERVERS}


def test_all_pools_of_a_server_have_one_supervisor_and_every_broker_chooses_the_same() -> None:
    first, second = SupervisorLinks(NAMES), SupervisorLinks(NAMES)
    for server in SERVERS:
        owner = first.owner_of_server(server)
        assert first.owner_of(PoolKey(f"{server}:a")) == first.owner_of(PoolKey(f"{server}:b")) == owner
        assert second.owner_of_server(server) == owner


@behaviour("supervisors:several")
def test_another_number_of_supervisors_waits_for_a_restart() -> None:
    links = SupervisorLinks(NAMES[:2])
    assert links.pending_number(2) == ""
    assert links.pending_number(3) == (
        "supervisors: 3 in the configuration, and 2 in force; the number changes with `carpool restart --all`"
    )


def test_servers_are_spread_and_few_move_when_a_supervisor_is_added() -> None:
    two, three = placed(NAMES[:2]), placed(NAMES)
    assert min(Counter(three.values()).values()) > len(SERVERS) / 3 * 0.7
    assert all(three[server] in {two[server], NAMES[2]} for server in SERVERS)


def test_the_placement_stays_after_pools_were_forgotten() -> None:
    links = SupervisorLinks(NAMES)
    before = {server: links.owner_of(PoolKey(f"{server}:a")) for server in SERVERS}
    links.retain_pools([PoolKey(f"{SERVERS[0]}:a")])
    assert {server: links.owner_of(PoolKey(f"{server}:a")) for server in SERVERS} == before


def test_each_supervisor_has_its_own_credit() -> None:
    links = SupervisorLinks(NAMES[:2])
    here, there = (
        next(PoolKey(f"{s}:x") for s in SERVERS if links.owner_of_server(s) == name) for name in NAMES[:2]
    )
    assert not links.has_any_credit
    assert links.ready == []
    links.grant(NAMES[0], 50)  # it is not connected
    links.supervisor_ready(NAMES[1], 100)
    assert (links.is_served(here), links.is_served(there)) == (False, True)
    links.spend(there, 100)
    assert not links.has_credit(there)
    assert links.is_served(there)
    links.grant(NAMES[1], 1)
    assert (links.has_credit(here), links.has_credit(there)) == (False, True)
    links.supervisor_lost(NAMES[1])
    assert links.ready == []


def test_a_single_supervisor_runs_everything() -> None:
    links = SupervisorLinks()
    assert {links.owner_of_server(server) for server in SERVERS} == {ONLY}
    assert links.owner_of(PoolKey("x:1")) == ONLY
