"""What the door's process takes from the configuration, and what it says where it cannot."""

from pathlib import Path

import pytest

from carpool.http.process import UnservableError, settings_of
from carpool_protocol.config.reading.load import ConfigFile


def test_a_broken_configuration_is_told_as_people_read_it(tmp_path: Path) -> None:
    path = tmp_path / "carpool.json"
    path.write_text('{\n "http": {"prt": 0} }', encoding="utf-8")
    with pytest.raises(UnservableError) as error:
        settings_of(ConfigFile(str(path), asked_for=True), "")
    where = f"{path}:2: http.prt: unknown key; did you mean `port`?"
    assert str(error.value) == f"the configuration is broken, no door is opened: {where}"
