"""Timers of several kinds: which are due, and in which order they are handed out."""

from carpool_protocol.machine.timers import Timers


def test_what_is_due_is_handed_out_by_kind_and_within_a_kind_the_earliest_first() -> None:
    timers: Timers[str] = Timers(["a", "b"])
    timers.arm("b", 1, 0.0, 1.0)
    timers.arm("a", 2, 0.0, 3.0)
    timers.arm("a", 1, 0.0, 2.0)
    timers.arm("b", 2, 0.0, 9.0)
    assert timers.next_deadline() == 1.0
    assert list(timers.due(5.0)) == [("a", [1, 2]), ("b", [1])]
    assert list(timers.due(5.0)) == []
    assert timers.next_deadline() == 9.0


def test_a_key_has_a_timer_of_each_kind() -> None:
    timers: Timers[str] = Timers(["a", "b"])
    timers.arm("a", 1, 0.0, 1.0)
    timers.arm("b", 1, 0.0, 2.0)
    timers.arm("a", 1, 0.0, 3.0)
    assert (timers.deadline_of("a", 1), timers.deadline_of("b", 1)) == (3.0, 2.0)
    assert timers.disarm("b", 1)
    assert not timers.disarm("b", 1)
    assert not timers.rearm("b", 1, 0.0)
    assert timers.rearm("a", 1, 1.0)
    assert (timers.has("a", 1), timers.has("b", 1)) == (True, False)
    assert set(timers.keys("a")) == {1}
    assert not timers.keys("b")
    assert timers.next_deadline() == 4.0
    timers.check()


def test_what_is_done_about_one_kind_may_disarm_and_arm_timers_of_the_next() -> None:
    timers: Timers[str] = Timers(["a", "b", "c"])
    for kind in ("a", "b"):
        timers.arm(kind, 1, 0.0, 1.0)
    handed = []
    for kind, keys in timers.due(1.0):
        handed.append((kind, keys))
        timers.disarm("b", 1)
        timers.arm("a", 2, 1.0, 0.0)
        if kind == "a":
            timers.arm("c", 1, 1.0, 0.0)
    assert handed == [("a", [1]), ("c", [1])]
    assert timers.keys("a") == {2}, "it is due at the next tick"


def test_without_timers_nothing_is_due() -> None:
    timers: Timers[str] = Timers(["a"])
    assert timers.next_deadline() is None
    assert list(timers.due(1e9)) == []
