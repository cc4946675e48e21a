"""A carpool of fakes for each test that asks for one."""

from collections.abc import Iterator

import pytest

from tests.kit.private_daemon import PrivateDaemon


@pytest.fixture
def house() -> Iterator[PrivateDaemon]:
    """Nothing runs yet; broker, supervisor and sweep are fakes."""
    house = PrivateDaemon(fakes=True)
    yield house
    house.close()
