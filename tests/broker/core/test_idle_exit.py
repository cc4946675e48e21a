"""The time after which a carpool that nobody uses may end."""

from carpool_broker.core.idle_exit import IdleExit
from tests.behaviours import behaviour


@behaviour("start:idle")
def test_it_is_due_after_the_limit_and_use_begins_it_anew() -> None:
    idle = IdleExit()
    assert not idle.is_due(10.0, 60.0, is_used=False)
    assert not idle.is_due(69.9, 60.0, is_used=False)
    assert idle.is_due(70.0, 60.0, is_used=False)
    assert not idle.is_due(71.0, 60.0, is_used=True)
    assert not idle.is_due(72.0, 60.0, is_used=False)
    assert idle.is_due(132.0, 60.0, is_used=False)


@behaviour("start:idle")
def test_a_limit_of_zero_is_never_reached() -> None:
    idle = IdleExit()
    assert not any(idle.is_due(now, 0.0, is_used=False) for now in (0.0, 1e9))
