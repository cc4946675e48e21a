"""A line of pools that wait for a start: in order, those that are slow to greet last."""

from carpool_protocol.ids import CallId, PoolKey, ServerName, SessionId
from carpool_protocol.link.messages import Policy
from carpool_supervisor.core.model.pool import Pool
from carpool_supervisor.core.pools.start_line import StartLine


def pool(name: str, *, slow: bool = False, layer: str = "") -> Pool:
    made = Pool(PoolKey(name), ServerName(name), Policy())
    made.is_slow_to_greet, made.layer = slow, layer
    return made


def anything(_layer: str, _is_slow: bool) -> bool:
    return True


def no_slow(_layer: str, is_slow: bool) -> bool:
    return not is_slow


def line_of(*pools: Pool) -> StartLine:
    line = StartLine()
    for each in pools:
        line.add(each)
    return line


def test_pools_that_are_slow_to_greet_stand_behind_all_others() -> None:
    line = line_of(pool("s", slow=True), pool("a"), pool("b"))
    assert line.keys(anything) == ["a", "b", "s"]
    assert line.keys(no_slow) == ["a", "b"]
    assert (len(line), line.is_held_up(no_slow), line.is_held_up(anything)) == (3, True, False)


def test_a_pool_keeps_its_place_when_it_is_added_again_and_changes_its_part_when_it_becomes_slow() -> None:
    first = pool("a")
    line = line_of(first, pool("b"))
    line.add(first)
    assert line.keys(anything) == ["a", "b"]
    first.is_slow_to_greet = True
    line.add(first)
    assert line.keys(anything) == ["b", "a"]
    first.is_slow_to_greet = False
    line.add(first)
    assert (line.keys(no_slow), line.is_held_up(no_slow)) == (["b", "a"], False)


def test_a_pool_that_is_taken_out_is_in_no_part_of_the_line() -> None:
    line = line_of(pool("a"), pool("s", slow=True))
    for key in (PoolKey("a"), PoolKey("s"), PoolKey("nobody")):
        line.discard(key)
        assert key not in line
    assert (len(line), line.is_held_up(no_slow)) == (0, False)


def test_a_pool_moves_within_its_part_only() -> None:
    first = pool("a")
    line = line_of(first, pool("b"), pool("s", slow=True), pool("t", slow=True))
    line.move_to_front(PoolKey("t"))
    line.pool_started(first)
    line.move_to_front(PoolKey("nobody"))
    assert line.keys(anything) == ["b", "a", "t", "s"]


def test_layers_take_turns_and_each_keeps_its_own_order() -> None:
    line = line_of(pool("a1", layer="a"), pool("a2", layer="a"), pool("a3", layer="a"), pool("b1", layer="b"))
    line.add(pool("s", slow=True, layer="c"))
    assert line.keys(anything) == ["a1", "b1", "a2", "a3", "s"]
    line.pool_started(pool("elsewhere", layer="a"))
    assert line.keys(anything) == ["b1", "a1", "a2", "a3", "s"]
    line.pool_started(pool("elsewhere", layer="nobody"))
    line.move_to_front(PoolKey("a3"))
    assert line.keys(anything) == ["b1", "a3", "a1", "a2", "s"], "its layer keeps its place"


def test_a_layer_that_may_not_start_is_passed_over() -> None:
    line = line_of(pool("a1", layer="a"), pool("b1", layer="b"), pool("a2", layer="a"))
    assert line.keys(lambda layer, _: layer == "a") == ["a1", "a2"]
    assert line.is_held_up(lambda layer, _: layer == "a")
    line.discard(PoolKey("b1"))
    assert not line.is_held_up(lambda layer, _: layer == "a")


def test_a_pool_whose_layer_changes_stands_at_the_end_of_the_other_layer() -> None:
    moved = pool("a1", layer="a")
    line = line_of(moved, pool("a2", layer="a"), pool("b1", layer="b"))
    moved.layer = "b"
    line.add(moved)
    assert line.keys(lambda layer, _: layer == "b") == ["b1", "a1"]
    assert len(line) == 3


# --- whose calls wait ---------------------------------------------------------------------------------------


def asked(name: str, *sessions: str, principal: str = "") -> Pool:
    """A pool in which a call of each of these sessions waits."""
    made = pool(name)
    wait_in(made, *sessions, principal=principal)
    return made


def wait_in(pool: Pool, *sessions: str, principal: str = "") -> None:
    for session in sessions:
        pool.queue.add(SessionId(session), CallId(pool.queue.calls + 1), 1, principal)


def asked_line_of(*pools: Pool) -> StartLine:
    line = StartLine(of_askers=True)
    for each in pools:
        line.add(each)
    return line


def test_those_whose_calls_wait_take_turns() -> None:
    pools = [asked("a1", "a"), asked("a2", "a"), asked("a3", "a"), asked("b1", "b"), asked("b2", "b")]
    line = asked_line_of(*pools)
    assert line.keys(anything) == ["a1", "b1", "a2", "b2", "a3"]
    line.pool_started(pools[0])
    assert line.keys(anything) == ["b1", "a2", "b2", "a3", "a1"]
    for each in pools:
        line.discard(each.key)
    assert (line.keys(anything), len(line)) == ([], 0)


def test_sessions_of_one_token_share_a_turn() -> None:
    of_token = [asked(f"t{n}", f"s{n}", principal="token") for n in range(3)]
    line = asked_line_of(*of_token, asked("b1", "b"))
    assert line.keys(anything) == ["t0", "b1", "t1", "t2"]


def test_a_pool_for_which_somebody_waits_who_waits_for_few_is_among_the_pools_of_that_one() -> None:
    shared = asked("shared", "a")
    line = asked_line_of(asked("a1", "a"), asked("a2", "a"), shared)
    wait_in(shared, "b")
    line.add(shared)
    assert line.keys(anything) == ["a1", "shared", "a2"]
    wait_in(shared, "c")
    line.add(shared)
    assert line.keys(anything) == ["a1", "shared", "a2"], "it keeps its place"


def test_somebody_who_waits_for_many_pools_takes_none_of_another_with_them() -> None:
    of_other = asked("b1", "b")
    line = asked_line_of(asked("a1", "a"), asked("a2", "a"), asked("a3", "a"), of_other)
    wait_in(of_other, "a")
    line.add(of_other)
    assert line.keys(anything) == ["a1", "b1", "a2", "a3"]


def test_a_pool_keeps_its_place_when_its_first_caller_is_served() -> None:
    first = asked("first", "a", "b")
    line = asked_line_of(first, asked("c1", "c"))
    assert first.queue.pop() == CallId(1)
    line.add(first)
    assert line.keys(anything) == ["first", "c1"]
    first.queue.clear()
    line.add(first)
    assert line.keys(anything) == ["first", "c1"]
