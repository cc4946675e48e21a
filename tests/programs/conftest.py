"""Real programs: one namespace for the tests of a process, and nothing of a run left in it."""

from collections.abc import Iterator

import pytest

from tests.kit import leaks
from tests.programs.loopback import Loopback


@pytest.fixture(scope="session")
def loopback() -> Iterator[Loopback]:
    with Loopback() as found:
        yield found


@pytest.fixture(autouse=True)
def _nothing_left() -> Iterator[None]:
    with leaks.no_leaks():
        yield
