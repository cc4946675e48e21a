"""carpool is started where an agent works: in a directory that a stranger may have filled."""

import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest
import trio

from carpool.launcher import accepts
from tests.behaviours import behaviour
from tests.kit.line_agent import LIMIT_S
from tests.kit.live import Daemon, Make
from tests.kit.waits import until

OURS = ("carpool", "carpool_broker", "carpool_protocol", "carpool_supervisor")
OTHERS = ("contextlib", "json", "msgspec", "psutil", "select", "socket", "subprocess", "trio", "zmq")
"""Some of what the processes import."""
CLIENT = """
import trio
from carpool import Carpool
async def main():
    async with Carpool():
        print("it is up", flush=True)
        await trio.sleep_forever()
trio.run(main)
"""


def trapped(one: Daemon) -> tuple[Path, Path]:
    """A directory full of modules, and the file in which those that were imported are named."""
    place, sprung = one.base / "stranger", one.base / "sprung"
    for name in (*OURS, *OTHERS):
        (place / name).mkdir(parents=True)
        (place / name / "__init__.py").write_text(f"open({str(sprung)!r}, 'a').write({name!r} + ' ')\n")
    return place, sprung


@asynccontextmanager
async def starting(one: Daemon, place: Path, *words: str) -> AsyncIterator[None]:
    """A process of this Python, in the directory; carpool is up because of it."""
    with (one.base / "starter.log").open("wb") as log:
        process = await trio.lowlevel.open_process(
            [sys.executable, "-P", *words],
            env=one.environ,
            cwd=place,
            stdin=-1,
            stdout=log,
            stderr=log,
        )
    try:
        sprung = one.base / "sprung"
        await until(
            lambda: accepts(str(one.directory)) or sprung.exists(), "carpool is up, or has gone astray"
        )
        yield
    finally:
        with trio.CancelScope(shield=True):
            await one.carpool("down")
            process.kill()
            await process.wait()
            assert process.stdin is not None
            await process.stdin.aclose()


def by_shim(one: Daemon, place: Path) -> AbstractAsyncContextManager[None]:
    return starting(one, place, "-m", "carpool", "connect")


def by_client(one: Daemon, place: Path) -> AbstractAsyncContextManager[None]:
    return starting(one, place, "-c", CLIENT)


def in_the_foreground(one: Daemon, place: Path) -> AbstractAsyncContextManager[None]:
    return starting(one, place, "-m", "carpool", "up")


@behaviour("trust:directory")
@pytest.mark.parametrize("door", [by_shim, by_client, in_the_foreground])
async def test_no_module_is_taken_from_the_directory_in_which_carpool_is_started(
    daemon: Make, door: Callable[[Daemon, Path], AbstractAsyncContextManager[None]]
) -> None:
    one = daemon(up=False)
    place, sprung = trapped(one)
    with trio.fail_after(LIMIT_S):
        async with door(one, place):
            assert not sprung.exists(), sprung.read_text()
            await one.until(lambda facts: facts["supervisors"], "the supervisor is linked")
    assert not sprung.exists(), sprung.read_text()
