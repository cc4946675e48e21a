"""The table of `carpool check --start` and `carpool setup`: which servers work, what repairs the others."""

from pathlib import Path
from typing import Any

from carpool.check.layers import CheckedLayers, read_layers
from carpool.cli.start_report import server_starts, start_table
from carpool_protocol.wire.jsonrpc import NOT_A_MESSAGE
from tests.behaviours import behaviour

NOISE = f"{NOT_A_MESSAGE}: the line is not JSON"


def nothing_configured(home: Path) -> CheckedLayers:
    return read_layers({"HOME": str(home)}, None, str(home), str(home / "trust.json"))


def status(**rows: dict[str, Any]) -> dict[str, Any]:
    return {"servers": rows}


@behaviour("doctor:repair")
def test_a_server_that_has_not_started_in_time_is_told_with_its_last_error_and_its_repair(
    tmp_path: Path,
) -> None:
    noise = {"state": "starting", "well": False, "last_error": NOISE, "stderr": []}
    said = [{"server": "noise", "ok": False, "text": "it has not started after 60 s"}]
    (start,) = server_starts(said, status(noise=noise), nothing_configured(tmp_path))
    assert start.text == f"it has not started after 60 s (its last error: {NOISE})"
    assert (start.problem, "log to stderr" in start.repair) == ("stdout-noise", True)


@behaviour("doctor:repair")
def test_a_server_that_works_has_no_repair(tmp_path: Path) -> None:
    well = {"state": "serving", "well": True, "last_error": ""}
    (start,) = server_starts(
        [{"server": "git", "ok": True, "text": "done"}], status(git=well), nothing_configured(tmp_path)
    )
    assert (start.ok, start.text, start.problem, start.repair) == (True, "done", "", "")
    assert start_table([start]).splitlines()[1].split() == ["git", "yes"]
