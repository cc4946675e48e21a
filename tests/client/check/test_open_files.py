"""Files with secrets that every user of the machine can read."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from carpool.check import open_files
from carpool.check.open_files import OpenFile
from carpool_protocol.config.reading.parse import read_config
from carpool_protocol.config.schema.model import Config

SECRET = {"command": "x", "env": {"A_TOKEN": "abc", "PLAIN": "abc", "B_TOKEN": "${B}"}}


@pytest.fixture
def reachable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory that all users may enter, though pytest's own may not be entered."""
    real = os.stat

    def entered(path: Any, *more: Any, **keywords: Any) -> os.stat_result:
        found = real(path, *more, **keywords)
        is_above = str(tmp_path).startswith(str(path))
        return os.stat_result((found.st_mode | 0o001, *tuple(found)[1:])) if is_above else found

    monkeypatch.setattr(os, "stat", entered)
    return tmp_path


def config_in(place: Path, mode: int, server: dict[str, Any]) -> Config:
    file = place / "carpool.json"
    file.write_text(json.dumps({"mcpServers": {"a": server}}))
    file.chmod(mode)
    found = read_config(file.read_text(), str(file)).config
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("mode", "server", "names"),
    [
        (0o644, SECRET, ("A_TOKEN",)),
        (0o644, {"url": "https://h/mcp", "headers": {"Authorization": "Bearer x"}}, ("Authorization",)),
        (0o600, SECRET, ()),
        (0o640, SECRET, ()),
        (0o644, {"command": "x", "env": {"PLAIN": "abc", "B_TOKEN": "${B}"}}, ()),
    ],
)
def test_a_configuration_with_a_secret_written_out_that_all_may_read_is_found(
    reachable: Path, mode: int, server: dict[str, Any], names: tuple[str, ...]
) -> None:
    found = open_files.open_files(config_in(reachable, mode, server), {})
    assert found == ([OpenFile(str(reachable / "carpool.json"), names, may_restrict=True)] if names else [])


def test_an_env_file_counts_if_a_name_in_it_is_that_of_a_secret(reachable: Path) -> None:
    config = config_in(reachable, 0o600, {"command": "x"})
    (file := reachable / "secrets.env").write_text("KEY=x\n")
    file.chmod(0o644)
    (found,) = open_files.open_files(config, {str(file): ["API_KEY", "LANG"]})
    assert (found.path, found.names) == (str(file), ("API_KEY",))
    assert open_files.open_files(config, {str(file): ["LANG"]}) == []


def test_a_file_below_a_directory_that_others_may_not_enter_is_not_open(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    assert open_files.open_files(config_in(tmp_path, 0o644, SECRET), {}) == []
    assert not open_files.is_readable_by_all(str(tmp_path / "not-there"))
