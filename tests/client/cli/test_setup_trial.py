"""The trial of servers by `carpool setup` where it cannot come to its end.

`tests/live/test_live_setup.py` has those with real servers.
"""

import contextlib
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest
from click.testing import CliRunner, Result

from carpool.cli.main import verbs
from carpool.launcher.sandbox import PrivateCarpool, PrivateCarpoolError
from tests.behaviours import behaviour
from tests.kit.private_daemon import PrivateDaemon


@pytest.fixture
def house() -> Iterator[PrivateDaemon]:
    made = PrivateDaemon(fakes=False)
    yield made
    made.close()


def setup_with(house: PrivateDaemon, up: object, left: list[str]) -> tuple[Result, bool, list[Path]]:
    """`carpool setup --yes` while the private carpool starts and ends like this.

    Returns the result, if the program's file is unchanged, and the directories of private carpools.
    """
    file = house.base / ".claude.json"
    file.write_text(json.dumps({"mcpServers": {"a": {"command": "a", "env": {"A_TOKEN": "ghp_0123456789"}}}}))
    before = file.read_bytes()
    made: list[Path] = []

    def close(private: PrivateCarpool) -> list[str]:
        made.append(private.base)
        return [*real(private), *left]

    real = PrivateCarpool.close
    with (
        contextlib.chdir(house.base),
        mock.patch.dict(os.environ, house.environ, clear=True),
        mock.patch.object(PrivateCarpool, "up", side_effect=up),
        mock.patch.object(PrivateCarpool, "close", close),
    ):
        result = CliRunner().invoke(verbs, ["setup", "--yes"], prog_name="carpool")
    return result, file.read_bytes() == before, made


@behaviour("setup:tried")
def test_nothing_is_changed_where_the_private_carpool_does_not_run(house: PrivateDaemon) -> None:
    handlers = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]
    result, is_unchanged, made = setup_with(house, PrivateCarpoolError("`carpool up` failed: no room"), [])
    assert (result.exit_code, is_unchanged) == (1, True)
    assert "`--no-try` moves them untried" in result.stderr
    assert "no room" in result.stderr
    assert not (house.base / ".config").exists()
    assert not any(each.exists() for each in made), "its directory held a secret"
    assert [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)] == handlers


@behaviour("setup:tried")
def test_nothing_is_changed_and_a_process_is_named_that_could_not_be_ended(house: PrivateDaemon) -> None:
    result, is_unchanged, _ = setup_with(house, PrivateCarpoolError("late"), ["process 7 is left: a"])
    assert (result.exit_code, is_unchanged) == (1, True)
    assert "process 7 is left: a" in result.stderr


@behaviour("setup:tried")
def test_an_interrupt_changes_nothing_and_ends_the_private_carpool(house: PrivateDaemon) -> None:
    result, is_unchanged, made = setup_with(house, KeyboardInterrupt(), [])
    assert (result.exit_code, is_unchanged) == (1, True)
    assert "nothing is changed" in result.stderr
    assert len(made) == 1
    assert not made[0].exists()
