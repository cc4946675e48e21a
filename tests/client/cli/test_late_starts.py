"""Servers that take long to start are named while the verb waits."""

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from carpool.cli import daemon, late_starts
from carpool.cli.late_starts import LOOKER
from carpool_protocol.bootstrap import paths
from tests.behaviours import behaviour
from tests.kit.fake_broker import FakeBroker, FakeError, Json

BOUND_S = 40.0


class TwoStarting(FakeBroker):
    """`mute` and `slow` are starting, `time` serves. A verb is answered when `is_over` returns."""

    def __init__(self, directory: Path, is_over: Callable[[], object]) -> None:
        super().__init__(directory)
        self._is_over = is_over

    def _result(self, method: str, params: Json) -> "Json | FakeError":
        rows = {
            "mute": {"state": "starting", "last_error": "has answered nothing to initialize for 9 s"},
            "slow": {"state": "starting"},
            "time": {"state": "serving"},
        }
        if method == "carpool/operate":
            self._is_over()
        return {"servers": rows} if method == "carpool/status" else super()._result(method, params)


def lookers_end() -> None:
    for each in [thread for thread in threading.enumerate() if thread.name == LOOKER]:
        each.join(BOUND_S)


def run(monkeypatch: pytest.MonkeyPatch, directory: Path, words: list[str], late_s: float) -> str:
    """What the verb says on stderr if the broker answers when the look is over."""
    monkeypatch.setenv(paths.RUNTIME_VARIABLE, str(directory))
    monkeypatch.setattr(late_starts, "LATE_S", late_s)
    directory.chmod(0o700)
    with TwoStarting(directory, lookers_end if late_s == 0 else lambda: None):
        done = CliRunner().invoke(daemon.start, words, catch_exceptions=False)
    return " ".join(done.stderr.split())


@behaviour("silence:greeting-told")
@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["mute", "time"], "mute (has answered nothing to initialize for 9 s);"),
        (["--all"], "mute (has answered nothing to initialize for 9 s), slow;"),
    ],
)
def test_a_server_that_a_verb_waits_for_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, words: list[str], named: str
) -> None:
    assert f"still starting: {named}" in run(monkeypatch, tmp_path, words, late_s=0.0)


@pytest.mark.parametrize(("words", "late_s"), [(["mute"], 1000.0), (["time"], 0.0)])
def test_nothing_is_said_where_the_verb_ends_first_or_no_server_is_starting(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, words: list[str], late_s: float
) -> None:
    assert run(monkeypatch, tmp_path, words, late_s) == ""
