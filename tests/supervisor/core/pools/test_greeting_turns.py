"""Greeting turns: a process that does not greet holds up every layer for a short turn, then its own layer."""

from carpool_protocol.ids import InstanceId, PoolKey, ServerName
from carpool_protocol.link.messages import Policy
from carpool_supervisor.core.model.pool import Instance, Pool
from carpool_supervisor.core.model.timer_kinds import supervisor_timers
from carpool_supervisor.core.pools.greeting_turns import GREETING_TURN_S, SHORT_TURN_S, GreetingTurns


class TurnsRig:
    """Turns with a clock; invariants are checked after each step."""

    def __init__(self, most: int) -> None:
        self.timers = supervisor_timers()
        self.instances: dict[InstanceId, Instance] = {}
        self.turns = GreetingTurns(self.instances, self.timers)
        self.turns.max_greeting = most
        self.now = 10.0

    def begin(self, layer: str, *, slow: bool = False) -> InstanceId:
        number = InstanceId(len(self.instances) + 1)
        pool = Pool(PoolKey(f"{layer}:{number}"), ServerName(layer), Policy())
        pool.layer, pool.is_slow_to_greet = layer, slow
        self.instances[number] = Instance(number, pool, 1, self.now)
        self.turns.begin(self.instances[number], self.now)
        self.turns.check()
        return number

    def wait(self, duration_s: float) -> list[InstanceId]:
        """Time passes, up to the end of a turn. Those that have used up their whole turn."""
        self.now += duration_s
        over: list[InstanceId] = []
        for _, due in self.timers.due(self.now):
            over += [each.id for each in self.turns.times_over(due, self.now)]
        self.turns.check()
        return over

    def free(self, *layers: str) -> list[int]:
        return [self.turns.free(layer) for layer in layers]


def test_a_late_greeting_holds_up_its_own_layer_alone_and_none_after_its_whole_turn() -> None:
    rig = TurnsRig(2)
    one, two = rig.begin("a"), rig.begin("a")
    assert (rig.free("a", "b"), rig.turns.is_any_free) == ([0, 0], False)
    assert rig.wait(SHORT_TURN_S) == []
    assert (rig.free("a", "b"), rig.turns.is_any_free) == ([0, 2], True)
    rig.begin("b")
    assert rig.free("a", "b", "c") == [-1, 1, 1], "a new greeting holds up every layer"
    assert rig.wait(GREETING_TURN_S - SHORT_TURN_S) == [one, two]
    assert rig.free("a", "b", "c") == [2, 1, 2]


def test_a_greeting_gives_back_its_turn_short_or_late_and_has_none_afterwards() -> None:
    rig = TurnsRig(2)
    one, two = rig.begin("a"), rig.begin("a")
    assert rig.turns.end(one)
    assert not rig.turns.end(one)
    rig.wait(SHORT_TURN_S)
    assert rig.free("a", "b") == [1, 2]
    assert rig.turns.end(two)
    rig.turns.check()
    assert rig.free("a", "b") == [2, 2]
    assert rig.wait(GREETING_TURN_S) == []
    assert not rig.turns.end(two)


def test_slow_pools_leave_a_turn_free_as_each_layer_sees_it() -> None:
    rig = TurnsRig(3)
    rig.begin("a", slow=True)
    rig.begin("a", slow=True)
    for layer in ("a", "b"):
        assert rig.turns.may_start(layer, False)
        assert not rig.turns.may_start(layer, True)
    rig.wait(SHORT_TURN_S)
    assert not rig.turns.may_start("a", True)
    assert rig.turns.may_start("b", True)


def test_turns_are_counted_by_pool_as_long_as_they_last() -> None:
    rig = TurnsRig(3)
    one = rig.begin("a")
    assert rig.turns.counts() == {PoolKey("a:1"): 1}
    rig.wait(SHORT_TURN_S)
    assert rig.turns.counts() == {PoolKey("a:1"): 1}
    rig.turns.end(one)
    assert rig.turns.counts() == {}
