"""The file of what is switched until carpool stops."""

from pathlib import Path

from carpool_protocol.files.overrides_file import (
    OverridesFile,
    forget_server,
    read_overrides,
    write_overrides,
)
from tests.behaviours import behaviour


@behaviour("switch:kept", "private:files")
def test_what_is_written_is_read_again_and_nothing_is_no_file(tmp_path: Path) -> None:
    path = tmp_path / "switches.json"
    held = OverridesFile({"a": False}, {"s1": {"b": True}}, ["p"], "c")
    write_overrides(str(path), held)
    assert read_overrides(str(path)) == held
    assert path.stat().st_mode & 0o777 == 0o600
    write_overrides(str(path), OverridesFile(carpool="c"))
    assert not path.exists()
    write_overrides(str(path), OverridesFile())


def test_a_server_that_its_file_speaks_for_is_forgotten_everywhere(tmp_path: Path) -> None:
    path = str(tmp_path / "switches.json")
    write_overrides(
        path, OverridesFile({"a": False, "b": False}, {"s1": {"a": True}, "s2": {"a": True, "b": True}})
    )
    forget_server(path, "a")
    assert read_overrides(path) == OverridesFile({"b": False}, {"s2": {"b": True}})


def test_a_file_that_cannot_be_read_says_nothing(tmp_path: Path) -> None:
    path = tmp_path / "switches.json"
    for text in ("", "[]", '{"servers": {"a": 3}}', "[" * 5000):
        path.write_text(text)
        assert read_overrides(str(path)) == OverridesFile()
