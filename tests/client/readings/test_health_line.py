"""The sentence about the whole of carpool, where something beside the broker is away."""

import pytest

from carpool.control.verdict import is_well
from carpool.readings.health_line import health_line

FINE = {"healthy": True, "reason": "ok", "door": None, "cluster": None}


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({}, "all is well"),
        ({"cluster": {"is_up": True}}, "all is well"),
        ({"cluster": {"is_up": False}}, "serving; this node does not reach its cluster"),
        ({"door": {"url": ""}}, "serving agents on the socket; the HTTP door is not open"),
    ],
)
def test_all_is_well_only_if_the_door_is_open_and_the_cluster_is_reached(
    more: dict[str, object], said: str
) -> None:
    facts = {**FINE, **more}
    assert health_line(facts) == said
    assert is_well(facts) == (said == "all is well")
