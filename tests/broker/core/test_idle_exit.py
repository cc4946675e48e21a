"""The time after which an idle carpool may end."""

from typing import Any

import pytest

from carpool_broker.core.idle_exit import IdleExit
from tests.behaviours import behaviour


def is_due(idle: IdleExit, now: float, limit_s: float = 60.0, **use: Any) -> bool:
    unused = {"agents": 0, "awaits_sessions": False, "has_http_door": False, "keeps_servers": False}
    return idle.is_due(now, limit_s, **{**unused, **use})


@behaviour("start:idle")
@pytest.mark.parametrize(
    "use", [{"agents": 1}, {"awaits_sessions": True}, {"has_http_door": True}, {"keeps_servers": True}]
)
def test_it_is_due_after_the_limit_and_any_use_begins_it_anew(use: dict[str, Any]) -> None:
    idle = IdleExit()
    assert not is_due(idle, 10.0)
    assert not is_due(idle, 69.9)
    assert is_due(idle, 70.0)
    assert not is_due(idle, 71.0, **use)
    assert not is_due(idle, 72.0)
    assert is_due(idle, 132.0)


@behaviour("start:idle")
def test_a_limit_of_zero_is_never_reached() -> None:
    idle = IdleExit()
    assert not any(is_due(idle, now, 0.0) for now in (0.0, 1e9))
