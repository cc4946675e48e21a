"""The share of one owner in a budget: as much as is left for all others."""

from hypothesis import given
from hypothesis import strategies as st

from carpool_protocol.machine.memory_shares import MemoryUse, exceeds_share


def test_an_owner_alone_may_have_half() -> None:
    assert not exceeds_share(100, 49, 49, 1)
    assert exceeds_share(100, 50, 50, 1)


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(1, 40)), max_size=60))
def test_all_owners_together_never_have_more_than_the_budget(steps: list[tuple[int, int]]) -> None:
    used = [0] * 5
    for owner, more in steps:
        if not exceeds_share(100, sum(used), used[owner], more):
            used[owner] += more
        assert sum(used) <= 100
        assert max(used) <= 50 + 40 // 2, "half, and half of the last step"


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 40), st.booleans()), max_size=60))
def test_the_use_of_each_owner_and_its_share_follow_what_was_added(
    steps: list[tuple[str, int, bool]],
) -> None:
    use: MemoryUse[str] = MemoryUse()
    used = dict.fromkeys("abc", 0)
    for owner, more, is_ended in steps:
        size = -used[owner] if is_ended else more
        use.add(owner, size)
        used[owner] += size
        use.check(used)
        assert use.of(owner) == used[owner]
        assert use.exceeds_share(200, owner, 5) == exceeds_share(200, sum(used.values()), used[owner], 5)
