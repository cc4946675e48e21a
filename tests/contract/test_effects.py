"""Every effect that a core can ask for has a performer in its process, and no performer is left over."""

from pathlib import Path
from typing import get_args

from carpool_broker.core.model import effects as broker_effects
from carpool_protocol.link.messages import ToBroker, ToSupervisor
from carpool_supervisor.core.model import effects as supervisor_effects
from tests.kit.in_process_daemon import in_process_daemon


def test_each_own_effect_of_the_broker_has_a_performer(tmp_path: Path) -> None:
    with in_process_daemon(tmp_path, {}, {}) as daemon:
        performers = daemon.broker._perform_one
    assert set(performers) == set(get_args(broker_effects.LocalEffect))


def test_each_own_effect_of_the_supervisor_has_a_performer(tmp_path: Path) -> None:
    with in_process_daemon(tmp_path, {}, {}) as daemon:
        performers = daemon.supervisor._perform_one
    messages = set(get_args(supervisor_effects.LinkEffect))  # some are sent in a way of their own
    assert set(performers) - messages == set(get_args(supervisor_effects.OwnEffect))


def test_the_other_effects_of_the_broker_are_messages_to_the_supervisor() -> None:
    assert set(get_args(broker_effects.LinkEffect)) <= set(get_args(ToSupervisor))


def test_the_other_effects_of_the_supervisor_are_messages_to_the_broker() -> None:
    assert set(get_args(supervisor_effects.LinkEffect)) <= set(get_args(ToBroker))
