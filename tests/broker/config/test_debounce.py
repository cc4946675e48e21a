"""Files that are just being saved are not read in the middle of it."""

from collections.abc import Collection
from pathlib import Path

import trio

from carpool_broker.config.watcher import MAX_CHECKS, STABLE_S, settled
from carpool_protocol.config.text.file_stamps import Stamp, stamp


async def stamps(files: Collection[str]) -> list[Stamp]:
    return [stamp(each) for each in files]


async def waited(files: list[str]) -> float:
    """How long, in looks."""
    began = trio.current_time()
    await settled(files, stamps)
    return round((trio.current_time() - began) / STABLE_S, 1)


async def test_a_file_that_is_away_for_a_moment_is_waited_for(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    file = tmp_path / "carpool.json"
    file.write_text("{}")
    async with trio.open_nursery() as nursery:
        file.unlink()

        async def put_back() -> None:
            await trio.sleep(STABLE_S / 2)
            file.write_text("")
            await trio.sleep(STABLE_S)
            file.write_text("{} // again")

        nursery.start_soon(put_back)
        assert await waited([str(file), str(tmp_path / "none")]) == 3
    assert file.read_text() == "{} // again"


async def test_a_stable_file_is_read_after_a_moment_and_one_that_keeps_changing_in_the_end(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    file = tmp_path / "carpool.json"
    assert await waited([str(file)]) == 1
    async with trio.open_nursery() as nursery:

        async def write() -> None:
            while True:
                with file.open("a") as more:
                    more.write("x")
                await trio.sleep(STABLE_S / 2)

        nursery.start_soon(write)
        assert await waited([str(file)]) == MAX_CHECKS
        nursery.cancel_scope.cancel()
