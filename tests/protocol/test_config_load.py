"""Which file is the configuration, and that no file makes reading it raise or wait."""

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from carpool_protocol.config.load import (
    MAX_FILE_BYTES,
    ConfigFile,
    env_file_path,
    find_config_file,
    load_config,
    load_env_file,
)
from carpool_protocol.config.shape import Loaded
from tests.behaviours import behaviour


@pytest.mark.parametrize(
    ("option", "environ", "path", "asked_for"),
    [
        ("/o.json", {"CARPOOL_CONFIG": "/v.json", "HOME": "/h"}, "/o.json", True),
        ("~/o.json", {"HOME": "/h"}, "/h/o.json", True),
        (None, {"CARPOOL_CONFIG": "/v.json", "XDG_CONFIG_HOME": "/x", "HOME": "/h"}, "/v.json", True),
        (None, {"XDG_CONFIG_HOME": "/x", "HOME": "/h"}, "/x/carpool/carpool.json", False),
        (
            None,
            {"CARPOOL_CONFIG": "", "XDG_CONFIG_HOME": "relative", "HOME": "/h"},
            "/h/.config/carpool/carpool.json",
            False,
        ),
        (None, {"HOME": "/h"}, "/h/.config/carpool/carpool.json", False),
    ],
)
def test_the_configuration_is_found(
    option: str | None, environ: dict[str, str], path: str, asked_for: bool
) -> None:
    assert find_config_file(environ, option) == ConfigFile(path, asked_for)


def test_a_relative_option_is_meant_from_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert find_config_file({"HOME": "/h"}, "c.json").path == str(tmp_path / "c.json")


def asked(path: Path) -> Loaded:
    return load_config(ConfigFile(str(path), asked_for=True))


def test_a_missing_file_matters_only_to_whoever_named_it(tmp_path: Path) -> None:
    missing = tmp_path / "none.json"
    assert [problem.render() for problem in asked(missing).problems] == [
        f"{missing}:1: there is no such file"
    ]
    loaded = load_config(ConfigFile(str(missing), asked_for=False))
    assert loaded.problems == []
    assert loaded.config is not None
    assert loaded.config.servers == {}


def test_what_is_no_readable_text_file_is_a_problem(tmp_path: Path) -> None:
    directory, fifo, huge, bad = (tmp_path / name for name in ("directory", "fifo", "huge", "bad"))
    directory.mkdir()
    os.mkfifo(fifo)
    huge.write_bytes(b" " * (MAX_FILE_BYTES + 1))
    bad.write_bytes(b'{\n"a": "\xff"}')
    texts = [asked(path).problems[0].render() for path in (directory, fifo, huge, bad, Path("/\0"))]
    assert texts[0] == f"{directory}:1: is not a regular file"
    assert texts[1] == f"{fifo}:1: is not a regular file"
    assert texts[2] == f"{huge}:1: is larger than {MAX_FILE_BYTES} bytes"
    assert texts[3] == f"{bad}:2: is not UTF-8 here; save it as UTF-8"
    assert "cannot be opened" in texts[4]


@behaviour("private:places")
def test_a_file_that_anybody_may_write_is_not_read(tmp_path: Path) -> None:
    file, env_file = tmp_path / "c.json", tmp_path / "secrets"
    file.write_text('{"env_file": "secrets"}')
    env_file.write_text("A=1")
    for mode, readable in ((0o664, True), (0o666, False), (0o602, False)):
        file.chmod(mode)
        assert (asked(file).config is not None) is readable
        assert [each.render() for each in asked(file).problems] == [
            f"{file}:1: may be written by anybody, who could have any program run; run `chmod o-w` on it"
        ] * (not readable)
    file.chmod(0o600)
    config = asked(file).config
    assert config is not None
    env_file.chmod(0o666)
    values, problems = load_env_file(config, "/h")
    assert values == {}
    assert "written by anybody" in problems[0].render()


def test_no_descriptor_stays_open(tmp_path: Path) -> None:
    file, open_file = tmp_path / "c.json", tmp_path / "o.json"
    file.write_text("{}")
    open_file.write_text("{}")
    open_file.chmod(0o666)
    before = set(os.listdir("/dev/fd"))
    for path in (file, open_file, tmp_path, tmp_path / "none"):
        asked(path)
    assert set(os.listdir("/dev/fd")) == before


@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary() | st.text().map(str.encode))
def test_no_bytes_make_loading_raise(tmp_path: Path, data: bytes) -> None:
    file = tmp_path / "c.json"
    file.write_bytes(data)
    loaded = asked(file)
    assert (loaded.config is None) == bool(loaded.problems)


def test_the_env_file_lies_beside_the_configuration(tmp_path: Path) -> None:
    file = tmp_path / "c.json"
    file.write_text('{\n"env_file": "secrets.env"}')
    config = asked(file).config
    assert config is not None
    assert env_file_path(config, "/h") == str(tmp_path / "secrets.env")
    values, problems = load_env_file(config, "/h")
    assert values == {}
    assert [each.render() for each in problems] == [
        f"{file}:2: env_file: there is no file {tmp_path / 'secrets.env'}"
    ]
    (tmp_path / "secrets.env").write_text("A=1\n")
    assert load_env_file(config, "/h") == ({"A": "1"}, [])
    file.write_text('{"env_file": "~/s.env"}')
    config = asked(file).config
    assert config is not None
    assert env_file_path(config, "/h") == "/h/s.env"
