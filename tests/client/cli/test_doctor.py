"""`carpool doctor`, run as a user does, without a carpool that runs."""

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest

from carpool.cli import doctor_facts
from carpool.doctor.diagnose import Facts, diagnose
from tests.behaviours import behaviour
from tests.kit.private_daemon import PrivateDaemon


def problems(house: PrivateDaemon, *arguments: str) -> list[dict[str, Any]]:
    """The problems of `carpool doctor --json`, which says nothing else and ends with their code."""
    done = house.run("doctor", "--json", *arguments)
    found = json.loads(done.stdout)
    assert done.returncode == (0 if found["ok"] else 1), done.stderr
    listed: list[dict[str, Any]] = found["problems"]
    return listed


@behaviour("doctor:repair")
@pytest.mark.parametrize("name", ["x" * 300, "file/state"], ids=["a name too long", "a file in the way"])
def test_a_state_directory_that_cannot_be_examined_is_a_problem_and_no_traceback(
    house: PrivateDaemon, name: str
) -> None:
    (house.base / "file").write_text("")
    house.environ["CARPOOL_STATE_DIR"] = str(house.base / name)
    (problem,) = problems(house)
    assert problem["id"] == "not-writable"
    assert "CARPOOL_STATE_DIR" in problem["repair"]


def test_a_directory_below_one_that_cannot_be_searched_is_not_writable(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Permission bits do not stop root, so `stat` refuses here."""
    inside, real = str(tmp_path / "closed" / "state"), os.stat

    def refusing(path: Any, *more: Any, **keywords: Any) -> os.stat_result:
        if str(path).startswith(str(tmp_path / "closed") + "/"):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return real(path, *more, **keywords)

    (tmp_path / "closed").mkdir()
    monkeypatch.setattr(os, "stat", refusing)
    place = doctor_facts.written_directory(inside, "CARPOOL_STATE_DIR")
    assert not place.writable
    found = diagnose(Facts(installed="1.0", places=(place,)))
    assert [each.id for each in found] == ["not-writable"]
