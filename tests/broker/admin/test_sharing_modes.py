"""The modes of servers are told when they change."""

from typing import cast

import trio
from trio.testing import MockClock

from carpool_broker.admin.sharing_modes import SharingModes, SharingModesParams, modes_of
from carpool_broker.core.configuration.session_views import SessionViews
from carpool_protocol.ids import PoolKey
from carpool_protocol.link.messages import Mode, PoolChanged


class Views:
    """The part of `SessionViews` that is read."""

    def __init__(self) -> None:
        self.states: dict[PoolKey, PoolChanged] = {}

    def set(self, key: str, mode: Mode) -> None:
        """Note the mode of a pool."""
        self.states[PoolKey(key)] = PoolChanged(PoolKey(key), "serving", "", mode=mode)


def test_a_server_has_the_modes_of_all_its_pools() -> None:
    views = Views()
    views.set("git:1", "session")
    views.set("git:2", "concurrent")
    views.set("time:1", "serial")
    assert modes_of(views.states) == {"git": ["concurrent", "session"], "time": ["serial"]}


async def test_a_request_waits_until_a_mode_is_another_or_its_time_is_over(autojump_clock: MockClock) -> None:
    views = Views()
    views.set("git:1", "concurrent")
    modes = SharingModes(cast("SessionViews", views))
    known = {"git": ["concurrent"]}
    assert await modes.changed(SharingModesParams()) == {"modes": known}
    began_at = trio.current_time()
    assert await modes.changed(SharingModesParams(known, 20.0)) == {"modes": known}
    assert trio.current_time() == began_at + 20.0
    async with trio.open_nursery() as nursery:

        async def change() -> None:
            await trio.sleep(5.0)
            assert modes.waiting == 1
            views.set("git:1", "session")

        nursery.start_soon(change)
        assert await modes.changed(SharingModesParams(known, 20.0)) == {"modes": {"git": ["session"]}}
    assert trio.current_time() < began_at + 26.0
    assert modes.waiting == 0
