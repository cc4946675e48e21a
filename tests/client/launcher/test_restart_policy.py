"""When a daemon process is started again, and when its silence is too long."""

from carpool.launcher.restart_policy import Vigil
from tests.behaviours import behaviour


def runs() -> bool:
    """It is not stopped."""
    return False


def test_delays_double_up_to_five_seconds() -> None:
    vigil = Vigil()
    delays = []
    for second in range(7):
        vigil.started(second)
        delays.append(vigil.died(second + 0.5))
    assert delays == [0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]
    assert vigil.deaths == 7


def test_half_a_minute_of_life_makes_a_death_the_first_again() -> None:
    vigil = Vigil()
    vigil.started(0)
    vigil.died(1)
    vigil.started(2)
    vigil.died(3)
    vigil.started(10)
    assert vigil.died(40) == 0.2
    assert vigil.deaths == 1


def test_silence_counts_from_the_last_word() -> None:
    vigil = Vigil(silent_s=20)
    vigil.started(100)
    assert not vigil.silent(119.9, runs)
    assert vigil.silent(120, runs)
    vigil.heard(120)
    assert not vigil.silent(139, runs)


@behaviour("silence:daemons-replaced")
def test_one_that_was_stopped_has_time_to_say_something_when_it_goes_on() -> None:
    vigil = Vigil(silent_s=20)
    vigil.started(100)
    for second in range(101, 140):
        assert not vigil.silent(second, lambda: True)
    for second in range(140, 154):
        assert not vigil.silent(second, runs)
    assert vigil.silent(160, runs), "it goes on, and is mute"
