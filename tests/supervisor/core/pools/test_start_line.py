"""A line of pools that wait for a start: in order, those that are slow to greet last."""

from carpool_protocol.ids import PoolKey, ServerName
from carpool_protocol.link.messages import Policy
from carpool_supervisor.core.model.pool import Pool
from carpool_supervisor.core.pools.start_line import StartLine


def pool(name: str, *, slow: bool = False) -> Pool:
    made = Pool(PoolKey(name), ServerName(name), Policy())
    made.is_slow_to_greet = slow
    return made


def line_of(*pools: Pool) -> StartLine:
    line = StartLine()
    for each in pools:
        line.add(each)
    return line


def test_pools_that_are_slow_to_greet_stand_behind_all_others() -> None:
    line = line_of(pool("s", slow=True), pool("a"), pool("b"))
    assert line.keys(with_slow=True) == ["a", "b", "s"]
    assert line.keys(with_slow=False) == ["a", "b"]
    assert (len(line), line.has_slow) == (3, True)


def test_a_pool_keeps_its_place_when_it_is_added_again_and_changes_its_part_when_it_becomes_slow() -> None:
    first = pool("a")
    line = line_of(first, pool("b"))
    line.add(first)
    assert line.keys(with_slow=True) == ["a", "b"]
    first.is_slow_to_greet = True
    line.add(first)
    assert line.keys(with_slow=True) == ["b", "a"]
    first.is_slow_to_greet = False
    line.add(first)
    assert (line.keys(with_slow=False), line.has_slow) == (["b", "a"], False)


def test_a_pool_that_is_taken_out_is_in_no_part_of_the_line() -> None:
    line = line_of(pool("a"), pool("s", slow=True))
    for key in (PoolKey("a"), PoolKey("s"), PoolKey("nobody")):
        line.discard(key)
        assert key not in line
    assert (len(line), line.has_slow) == (0, False)


def test_a_pool_moves_within_its_part_only() -> None:
    line = line_of(pool("a"), pool("b"), pool("s", slow=True), pool("t", slow=True))
    line.move(PoolKey("t"), last=False)
    line.move(PoolKey("a"), last=True)
    line.move(PoolKey("nobody"), last=True)
    assert line.keys(with_slow=True) == ["b", "a", "t", "s"]
