"""What of a good reading outlives it, and that nothing else does."""

import json
import os
from pathlib import Path

import pytest

from carpool_protocol.config.reading.last_good import LastGoodReadings
from carpool_protocol.config.reading.load import ConfigFile, ConfigLayer, load_layer
from tests.behaviours import behaviour

HOME = "/h"


class LastGoodFiles:
    """A configuration in several files, and where it is kept."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.kept = base / "last-good.json"
        self.config = ConfigFile(str(base / "carpool.json"), asked_for=False)
        (base / "servers.d").mkdir()
        (base / "secrets.env").write_text("TOKEN=of-the-env-file\n")
        self.write("tools.json", {"tools": [{"name": "echo", "inputSchema": {"type": "object"}}]})
        self.write(
            "servers.d/more.json", {"mcpServers": {"b": {"command": "y", "tools_file": "../tools.json"}}}
        )
        self.write(
            "carpool.json",
            {
                "mcpServers": {"a": {"command": "x"}},
                "include": ["servers.d/*.json"],
                "env_file": "secrets.env",
            },
        )

    def write(self, name: str, what: object) -> None:
        (self.base / name).write_text(json.dumps(what), encoding="utf-8")

    def read(self) -> ConfigLayer:
        return load_layer(self.config, HOME)

    def last(self) -> ConfigLayer:
        found = LastGoodReadings(str(self.kept)).find(self.config.path)
        assert found is not None
        return load_layer(self.config, HOME, earlier=found)


@behaviour("config:last-good")
def test_a_reading_is_the_same_again_when_every_file_of_it_is_another_or_gone(tmp_path: Path) -> None:
    house = LastGoodFiles(tmp_path)
    before = house.read()
    assert LastGoodReadings(str(house.kept)).save(before) == ""
    (tmp_path / "carpool.json").write_text("{")
    (tmp_path / "servers.d" / "more.json").unlink()
    house.write("servers.d/other.json", {"mcpServers": {"c": {"command": "z"}}})
    (tmp_path / "tools.json").unlink()
    again = house.last()
    assert again.loaded.config == before.loaded.config
    assert again.env == before.env, "this one is read where it is"
    assert str(tmp_path / "servers.d") in again.seen, "a file that is mended is noticed"


def test_without_its_env_file_a_reading_stands_and_the_variables_are_not_set(tmp_path: Path) -> None:
    house = LastGoodFiles(tmp_path)
    before = house.read()
    LastGoodReadings(str(house.kept)).save(before)
    (tmp_path / "secrets.env").unlink()
    assert house.read().loaded.config is None
    again = house.last()
    assert (again.loaded.config, again.env) == (before.loaded.config, {})


def test_what_is_kept_is_for_this_user_alone_and_holds_no_value_of_an_env_file(tmp_path: Path) -> None:
    house = LastGoodFiles(tmp_path)
    LastGoodReadings(str(house.kept)).save(house.read())
    assert house.kept.stat().st_mode & 0o777 == 0o600
    assert "of-the-env-file" not in house.kept.read_text()


def test_no_file_is_a_good_reading_as_well(tmp_path: Path) -> None:
    house = LastGoodFiles(tmp_path)
    (tmp_path / "carpool.json").unlink()
    LastGoodReadings(str(house.kept)).save(house.read())
    (tmp_path / "carpool.json").write_text("{")
    config = house.last().loaded.config
    assert config is not None
    assert not config.servers


def test_what_was_kept_is_of_one_configuration_file(tmp_path: Path) -> None:
    house = LastGoodFiles(tmp_path)
    LastGoodReadings(str(house.kept)).save(house.read())
    assert LastGoodReadings(str(house.kept)).find(str(tmp_path / "other.json")) is None
    assert LastGoodReadings("").find(house.config.path) is None


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"file": 1}', b"\xff", b"[" * 100_000])
def test_what_is_not_what_it_should_be_is_as_if_nothing_had_been_kept(tmp_path: Path, data: bytes) -> None:
    house = LastGoodFiles(tmp_path)
    house.kept.write_bytes(data)
    assert LastGoodReadings(str(house.kept)).find(house.config.path) is None
    assert LastGoodReadings(str(house.kept)).save(house.read()) == ""
    assert house.last().loaded.config is not None


def test_the_same_reading_is_not_written_twice(tmp_path: Path) -> None:
    house = LastGoodFiles(tmp_path)
    last_good = LastGoodReadings(str(house.kept))
    last_good.save(house.read())
    before = house.kept.stat().st_ino
    last_good.save(house.read())
    assert house.kept.stat().st_ino == before
    house.kept.unlink()
    last_good.save(house.read())
    assert house.kept.exists(), "a runtime directory that was cleaned is filled again"


def test_where_it_cannot_be_written_is_said(tmp_path: Path) -> None:
    house = LastGoodFiles(tmp_path)
    assert "cannot be written" in LastGoodReadings(str(tmp_path / "none" / "last-good.json")).save(
        house.read()
    )
    os.symlink(tmp_path / "carpool.json", house.kept)
    assert LastGoodReadings(str(house.kept)).find(house.config.path) is None, "no link is followed"


def of(base: Path, name: str, *, size_bytes: int = 0) -> ConfigLayer:
    """A project's reading."""
    path = base / name
    path.write_text(json.dumps({"mcpServers": {"a": {"command": "x" * size_bytes or "x"}}}))
    return load_layer(ConfigFile(str(path), asked_for=True), HOME, project=True)


def kept(base: Path) -> list[str]:
    """Of which files a reading is kept, for whoever reads the file next."""
    last_good = LastGoodReadings(str(base / "kept.json"), most=3)
    names = sorted(each.name for each in base.glob("*.p"))
    return [name for name in names if last_good.find(str(base / name)) is not None]


def test_of_several_files_the_last_that_were_read_are_kept(tmp_path: Path) -> None:
    last_good = LastGoodReadings(str(tmp_path / "kept.json"), most=3)
    for name in ("1.p", "2.p", "3.p", "1.p"):
        assert last_good.save(of(tmp_path, name)) == ""
    assert kept(tmp_path) == ["1.p", "2.p", "3.p"]
    last_good.save(of(tmp_path, "4.p"))
    assert kept(tmp_path) == ["1.p", "3.p", "4.p"]
    next_one = LastGoodReadings(str(tmp_path / "kept.json"), most=3)
    next_one.delete(str(tmp_path / "3.p"))
    assert kept(tmp_path) == ["1.p", "4.p"]
    for name in ("1.p", "4.p"):
        next_one.delete(str(tmp_path / name))
    assert not (tmp_path / "kept.json").exists()


def test_the_readings_that_are_kept_are_bounded_in_bytes(tmp_path: Path) -> None:
    last_good = LastGoodReadings(str(tmp_path / "kept.json"), most=99)
    for number in range(12):
        last_good.save(of(tmp_path, f"{number:02}.p", size_bytes=500_000))
    assert kept(tmp_path) == [f"{number:02}.p" for number in range(4, 12)]
