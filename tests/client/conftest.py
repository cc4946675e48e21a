"""A carpool of fakes for each test that asks for one."""

from collections.abc import Iterator

import pytest

from tests.kit.private_daemon import House


@pytest.fixture
def house() -> Iterator[House]:
    """Nothing runs yet; broker, supervisor and sweep are fakes."""
    house = House(fakes=True)
    yield house
    house.close()
