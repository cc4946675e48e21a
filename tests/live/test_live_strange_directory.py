"""carpool is started where an agent works: in a directory that a stranger may have filled."""

import os
import sys
import tomllib
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest
import trio

from carpool.launcher.launcher import accepts
from tests.behaviours import behaviour
from tests.kit.line_agent import LIMIT_S
from tests.kit.live import Daemon, Make
from tests.kit.private_daemon import ROOT, ROOTS
from tests.kit.waits import until

SCRIPT = ROOT / "client" / "scripts" / "carpool"
"""The command as it is installed, but for its first line."""
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


@behaviour("trust:directory")
@pytest.mark.parametrize("verb", ["connect", "up"])
@pytest.mark.parametrize(
    "path",
    [["", *ROOTS], [*ROOTS, ""], [*ROOTS, "{place}"], [*ROOTS, ".", "../stranger"]],
    ids=["empty-first", "empty-last", "absolute", "relative"],
)
async def test_no_module_is_taken_from_a_repository_that_is_on_pythonpath(
    daemon: Make, verb: str, path: list[str]
) -> None:
    one = daemon(up=False)
    place, sprung = trapped(one)
    (place / ".git").mkdir()
    one.environ["PYTHONPATH"] = os.pathsep.join(path).format(place=place)
    with trio.fail_after(LIMIT_S):
        async with starting(one, place, str(SCRIPT), verb):
            assert not sprung.exists(), sprung.read_text()
            done = await trio.run_process(
                [sys.executable, str(SCRIPT), "status", "--json"],
                env=one.environ,
                cwd=place,
                capture_stdout=True,
            )
            assert b'"broker"' in done.stdout
            assert not sprung.exists(), sprung.read_text()
            # `python -m carpool`, as tests end it, imports of the standard library before anything of ours.
            one.environ["PYTHONPATH"] = os.pathsep.join(ROOTS)
            await one.until(lambda facts: facts["supervisors"], "the supervisor is linked")
        assert not sprung.exists(), sprung.read_text()


@behaviour("trust:directory")
def test_the_script_is_the_one_that_is_installed() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    scripts = settings["tool"]["hatch"]["build"]["targets"]["wheel"]["shared-scripts"]
    assert {ROOT / file: name for file, name in scripts.items()} == {SCRIPT: "carpool"}
    assert "scripts" not in settings["project"], "installers would make another one of that name"
    assert SCRIPT.read_text().startswith("#!python\n"), "installers put the interpreter there"
    assert os.access(SCRIPT, os.X_OK)
