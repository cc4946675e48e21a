"""Runs of agent programs. `make programs-ci` and `make programs` alone collect them: a run takes seconds.

Bridges are left out of `make programs-ci`. Features that are judged by one run stay in one process.
"""

import os
import re
from typing import Any, Final

import pytest
from xdist.scheduler import LoadGroupScheduling

from tests.programs.bridge_places import PLACES
from tests.programs.features import FEATURES

_LEFT_OUT = {"": ["test_*.py"], "ci": ["test_bridge*.py"]}
collect_ignore_glob = _LEFT_OUT.get(os.environ.get("CARPOOL_PROGRAMS", ""), [])
_CASE: Final = re.compile(r"\[(.+?): (.+)\]$")


class ScenarioScheduling(LoadGroupScheduling):  # type: ignore[misc]  # xdist ships no types
    """One group for each run: a program, or a bridge at a place, and a scenario. With pytest 9.2 the mark
    `xdist_group` groups nothing.
    """

    def _split_scope(self, nodeid: str) -> str:
        found = _CASE.search(nodeid)
        if found is None:
            return nodeid
        name, feature = found.groups()
        if name in PLACES:
            return f"{name}: {PLACES[name].scenario_of(feature)}"
        return f"{name}: {FEATURES[feature].scenario}" if feature in FEATURES else nodeid


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ScenarioScheduling | None:
    return ScenarioScheduling(config, log) if config.getvalue("dist") == "loadgroup" else None
