"""Directories for sockets."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A directory with a short path: that of a socket is at most 103 bytes long."""
    path = Path(tempfile.mkdtemp(prefix="cpc-", dir="/tmp"))
    yield path
    shutil.rmtree(path)
