"""A carpool of fakes, and default handlers of signals, for each test that asks for them."""

import signal
from collections.abc import Iterator
from typing import Any

import pytest

from tests.kit.private_daemon import PrivateDaemon


@pytest.fixture
def house() -> Iterator[PrivateDaemon]:
    """Nothing runs yet; broker, supervisor and sweep are fakes."""
    house = PrivateDaemon(fakes=True)
    yield house
    house.close()


@pytest.fixture
def default_signals() -> Iterator[None]:
    """The signals that end a command have their default handlers, whoever started the tests (`nohup`); what a
    command sets in this process ends with the test.
    """
    defaults: dict[signal.Signals, Any] = {
        signal.SIGINT: signal.default_int_handler,
        signal.SIGTERM: signal.SIG_DFL,
        signal.SIGHUP: signal.SIG_DFL,
    }
    before = {number: signal.signal(number, handler) for number, handler in defaults.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)
