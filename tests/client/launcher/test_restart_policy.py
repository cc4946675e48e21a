"""When a daemon process is started again, and when its silence is too long."""

from carpool.launcher.restart_policy import RestartPolicy
from tests.behaviours import behaviour


def runs() -> bool:
    """It is not stopped."""
    return False


def test_delays_double_up_to_five_seconds() -> None:
    vigil = RestartPolicy()
    delays = []
    for second in range(7):
        vigil.started(second)
        delays.append(vigil.exited(second + 0.5))
    assert delays == [0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]
    assert vigil.deaths == 7


def test_half_a_minute_of_life_makes_a_death_the_first_again() -> None:
    vigil = RestartPolicy()
    vigil.started(0)
    vigil.exited(1)
    vigil.started(2)
    vigil.exited(3)
    vigil.started(10)
    assert vigil.exited(40) == 0.2
    assert vigil.deaths == 1


def test_silence_counts_from_the_last_word() -> None:
    vigil = RestartPolicy(silent_s=20)
    vigil.started(100)
    assert not vigil.is_silent(119.9, runs)
    assert vigil.is_silent(120, runs)
    vigil.alive_received(120)
    assert not vigil.is_silent(139, runs)


@behaviour("silence:daemons-replaced")
def test_one_that_was_stopped_has_time_to_say_something_when_it_goes_on() -> None:
    vigil = RestartPolicy(silent_s=20)
    vigil.started(100)
    for second in range(101, 140):
        assert not vigil.is_silent(second, lambda: True)
    for second in range(140, 154):
        assert not vigil.is_silent(second, runs)
    assert vigil.is_silent(160, runs), "it goes on, and is mute"
