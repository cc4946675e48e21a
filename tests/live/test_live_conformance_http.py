"""The official conformance suite through carpool's HTTP door, where the suite is installed."""

import json
import sys
from pathlib import Path
from typing import Final

import pytest
import trio

from tests.behaviours import behaviour
from tests.conformance.run import INSTALLED, REVISIONS
from tests.kit.private_daemon import ROOT

LIMIT_S: Final = 240.0
"""The suite alone takes 8 to 15 s on the SDK's own HTTP, for both revisions."""
TRIES: Final = 3
"""It gives a stream 0.8 s for its first line: what is bad each time is not the machine's fault."""


@behaviour("eras:conformance")
@pytest.mark.skipif(
    not (INSTALLED / "ready").exists(),
    reason="needs Node.js 22 and the suite, which could not be installed: make .venv/conformance/ready",
)
async def test_every_required_scenario_of_both_revisions_is_good_through_the_door(tmp_path: Path) -> None:
    wrong: dict[str, str] = {}
    for at in range(TRIES):
        again = await wrong_in(tmp_path / str(at))
        wrong = {name: said for name, said in again.items() if name in wrong or not at}
        if not wrong:
            break
    assert not wrong, "\n".join(f"{name}: {said}" for name, said in wrong.items())


async def wrong_in(out: Path) -> dict[str, str]:
    """Required scenarios of both revisions that are bad, and what the suite says of them."""
    command = [sys.executable, "-m", "tests.conformance.run", "--through", "--json", "--out", str(out)]
    with trio.fail_after(LIMIT_S):
        done = await trio.run_process(
            command, cwd=ROOT, capture_stdout=True, capture_stderr=True, check=False
        )
    assert done.returncode in (0, 1), done.stderr.decode()
    found = json.loads(done.stdout)
    assert set(found) == set(REVISIONS)
    wrong = {
        f"{revision} {scenario['name']}": str(scenario["said"])
        for revision, runs in found.items()
        for run in runs
        for scenario in run["scenarios"]
        if scenario["required"] and not scenario["ok"]
    }
    assert done.returncode == bool(wrong)
    return wrong
