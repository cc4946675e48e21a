"""Configurations that are read again: what is in force, and which pools are wanted for it."""

from carpool_broker.core.events import SourceId, SourceRead
from carpool_broker.core.registry import Registry
from carpool_broker.core.scope import Scope, ScopeEntry
from carpool_broker.core.sources import Sources
from carpool_protocol.ids import PoolKey, ServerName
from carpool_protocol.messages import Policy, PoolChanged, PoolSpec, PoolState

ONE, TWO = SourceId("one"), SourceId("two")


def reading(*keys: str, source: SourceId = ONE, stop_first: bool = False, cap: int = 8) -> SourceRead:
    entries = tuple(ScopeEntry(server=ServerName(key[0]), key=PoolKey(key)) for key in keys)
    specs = tuple(
        PoolSpec(key=entry.key, server=entry.server, argv=[], env={}, cwd="/", policy=Policy())
        for entry in entries
    )
    return SourceRead(
        source=source,
        scope=Scope(entries),
        specs=specs,
        misconfigured={},
        stop_first=frozenset({ServerName("a"), ServerName("b")} if stop_first else ()),
        max_processes=cap,
        max_greeting=3,
    )


class Rig:
    def __init__(self, *readings: SourceRead) -> None:
        self.states: dict[PoolKey, PoolChanged] = {}
        self.sources = Sources(Registry(mark="m"), self.states)
        for each in readings:
            self.sources.read(each)

    def pool(self, key: str, state: PoolState) -> list[SourceId]:
        self.states[PoolKey(key)] = PoolChanged(PoolKey(key), state, "")
        return self.sources.advance()

    def in_force(self, source: SourceId = ONE) -> list[str]:
        self.sources.check()
        return [entry.key for entry in self.sources.scope(source).servers]

    def wanted(self) -> dict[str, str]:
        return {spec.key: spec.start_after for spec in self.sources.wanted().pools}


def test_a_first_reading_is_in_force_at_once() -> None:
    rig = Rig(reading("a:1", "b:1"))
    assert rig.in_force() == ["a:1", "b:1"]
    assert rig.wanted() == {"a:1": "", "b:1": ""}


def test_a_changed_server_that_serves_stays_until_the_new_pool_serves() -> None:
    rig = Rig(reading("a:1", "b:1"))
    rig.pool("a:1", "serving")
    assert rig.sources.read(reading("a:2", "b:1")) is False
    assert rig.in_force() == ["a:1", "b:1"]
    assert rig.wanted() == {"a:1": "", "a:2": "", "b:1": ""}
    assert rig.sources.to_discover() == ["a:2"]
    assert rig.pool("a:2", "starting") == []
    assert rig.pool("a:2", "serving") == [ONE]
    assert rig.in_force() == ["a:2", "b:1"]
    assert rig.wanted() == {"a:2": "", "b:1": ""}
    assert rig.sources.to_discover() == []


def test_a_new_pool_that_gives_up_leaves_the_old_one_in_force() -> None:
    rig = Rig(reading("a:1"))
    rig.pool("a:1", "serving")
    rig.sources.read(reading("a:2"))
    assert rig.pool("a:2", "given_up") == []
    assert rig.in_force() == ["a:1"]


def test_a_changed_server_that_does_not_serve_is_replaced_at_once() -> None:
    rig = Rig(reading("a:1"))
    rig.pool("a:1", "backing_off")
    assert rig.sources.read(reading("a:2")) is True
    assert rig.in_force() == ["a:2"]


def test_a_change_taken_back_before_the_new_pool_served_leaves_no_trace() -> None:
    rig = Rig(reading("a:1"))
    rig.pool("a:1", "serving")
    rig.sources.read(reading("a:2"))
    assert rig.sources.read(reading("a:1")) is False
    assert rig.wanted() == {"a:1": ""}
    assert rig.sources.to_discover() == []


def test_stop_first_is_in_force_at_once_and_starts_after_the_old_pool_however_often_it_is_read() -> None:
    rig = Rig(reading("a:1", stop_first=True))
    rig.pool("a:1", "serving")
    assert rig.sources.read(reading("a:2", stop_first=True)) is True
    assert rig.in_force() == ["a:2"]
    assert rig.wanted() == {"a:2": "a:1"}
    rig.sources.read(reading("a:2", "b:1", stop_first=True))
    assert rig.wanted() == {"a:2": "a:1", "b:1": ""}
    rig.sources.read(reading("a:1", stop_first=True))
    assert rig.wanted() == {"a:1": "a:2"}


def test_pools_of_two_sources_are_wanted_once_and_until_the_last_of_them_goes() -> None:
    rig = Rig(reading("a:1", cap=4), reading("a:1", "b:1", source=TWO, cap=9))
    assert rig.wanted() == {"a:1": "", "b:1": ""}
    assert rig.sources.wanted().max_processes == 9
    rig.sources.drop(TWO)
    assert rig.wanted() == {"a:1": ""}
    rig.sources.drop(TWO)
    rig.sources.drop(ONE)
    assert rig.wanted() == {}
