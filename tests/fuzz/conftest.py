"""What all fuzzing shares: one directory for the files of carpools that live in memory."""

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def house(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("house")
