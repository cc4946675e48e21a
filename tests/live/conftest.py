"""Live tests: real processes and real time, and a proof after each test that nothing is left."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.kit import leaks
from tests.kit.cluster import ClusterUnderTest
from tests.kit.cut_cluster import CutCluster
from tests.kit.live import Daemon


@pytest.fixture(autouse=True)
def _real_time(request: pytest.FixtureRequest) -> None:
    """A jumping clock ends real children before their time."""
    for name in ("autojump_clock", "mock_clock"):
        assert name not in request.fixturenames, f"{name} does not go with real processes"


@pytest.fixture(autouse=True)
def _nothing_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """No descriptor and no zombie of this process, and in a shared daemon no session, call or stranger."""
    shared = request.getfixturevalue("shared") if "shared" in request.fixturenames else None
    without = shared.descriptors if isinstance(shared, CutCluster) else None
    with leaks.no_leaks(without=without):
        yield
        if isinstance(shared, Daemon | ClusterUnderTest | CutCluster):
            shared.quiet()


@pytest.fixture
def daemon() -> Iterator[Callable[..., Daemon]]:
    """Makes daemons of this test's own: `daemon(servers, **settings)`; at the end each is proven gone."""
    made: list[Daemon] = []

    def make(servers: dict[str, Any] | None = None, *, up: bool = True, **settings: Any) -> Daemon:
        one = Daemon(servers, **settings)
        made.append(one)
        if up:
            one.up()
        return one

    yield make
    for one in made:
        one.close()


def shared_daemon(servers: dict[str, Any], **settings: Any) -> Iterator[Daemon]:
    """For a module's fixture `shared`: one daemon for all of its tests."""
    one = Daemon(servers, **settings)
    try:
        one.up()
        yield one
    finally:
        one.close()
