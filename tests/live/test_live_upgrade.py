"""An upgrade in place: the installed files are replaced by another version while agents and servers run.

In the next version each module of carpool is in a file of another name. Its own processes find it;
a process that runs since before, and imports a module of ours only now, does not.
"""

import json
import os
import shutil
import signal
import sys
import venv
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import trio

from tests.behaviours import behaviour
from tests.kit.line_agent import LIMIT_S, WAIT_S, Json, LineAgent, fault_of
from tests.kit.live import Daemon, alive, kit, observer
from tests.kit.private_daemon import ROOT
from tests.kit.waits import until

PACKAGES: Final = {
    "carpool": "client",
    "carpool_broker": "broker",
    "carpool_protocol": "protocol",
    "carpool_supervisor": "supervisor",
}
KIT: Final = Path(__file__).parents[1] / "kit"
MOVED: Final = "_moved.py"
FINDER: Final = f'''
def _find_moved():
    import importlib.util, os, sys

    class Moved:
        @staticmethod
        def find_spec(name, path=None, target=None):
            if name.partition(".")[0] == __name__:
                for place in path or ():
                    file = os.path.join(place, name.rpartition(".")[2] + "{MOVED}")
                    if os.path.exists(file):
                        return importlib.util.spec_from_file_location(name, file)
            return None

    sys.meta_path.insert(0, Moved)

_find_moved()
'''
"""Stands in front of a package's own code. A process that has imported the package before never runs it."""


class Installed(Daemon):
    """A carpool with an environment of its own, into which `install` puts versions."""

    def __init__(self, servers: dict[str, Json], **settings: Any) -> None:
        super().__init__(servers, **settings)
        self.environ.pop("PYTHONPATH")
        place = self.base / "venv"
        venv.EnvBuilder(symlinks=True, with_pip=False).create(place)
        self.python = str(place / "bin" / "python")
        self.packages = next(place.glob("lib/python*/site-packages"))
        others = [each for each in sys.path if Path(each).name == "site-packages"]
        (self.packages / "others.pth").write_text("\n".join(others) + "\n")
        self.install("1.0.0")

    def command(self, *arguments: str) -> list[str]:
        return [self.python, "-P", "-m", "carpool", *arguments]

    def install(self, version: str, *, moved: bool = False) -> None:
        """Replace what is installed. `moved`: by a version whose files have other names."""
        for old in (*self.packages.glob("carpool*"),):
            shutil.rmtree(old)
        for package, root in PACKAGES.items():
            fresh = self.packages / package
            shutil.copytree(ROOT / root / package, fresh, ignore=shutil.ignore_patterns("__pycache__"))
            if moved:
                for file in [*fresh.rglob("*.py")]:
                    if file.name != "__init__.py":
                        file.rename(file.with_name(file.stem + MOVED))
                first = fresh / "__init__.py"
                first.write_text(FINDER + first.read_text())
        release = self.packages / "carpool_protocol" / "bootstrap" / ("release" + (MOVED if moved else ".py"))
        release.write_text(f'RELEASE = "{version}"\n')
        facts = self.packages / f"carpool-{version}.dist-info"
        facts.mkdir()
        (facts / "METADATA").write_text(f"Metadata-Version: 2.1\nName: carpool\nVersion: {version}\n")


@pytest.fixture
def installed(tmp_path: Path) -> Iterator[Installed]:
    hooks = [
        {
            "name": "upper",
            "match": ["mcp:good:shouted"],
            "timeout_s": LIMIT_S,
            "rewrite": True,
            "python": "hook_functions:upper",
            "env": {"PYTHONPATH": str(KIT)},
        }
    ]
    servers = {
        "good": observer("--order", str(tmp_path / "order"), "--tool", "shouted", pool={"max": 1}),
        "counter": kit("counter", sharing="session"),
    }
    one = Installed(servers, hooks=hooks)
    try:
        one.up()
        yield one
    finally:
        one.close()


@pytest.fixture
def plain() -> Iterator[Installed]:
    """One without hooks: a hook child that starts while files are replaced logs an import error."""
    one = Installed({"echo": kit("echo")})
    try:
        one.up()
        yield one
    finally:
        one.close()


async def kill_broker(daemon: Daemon) -> int:
    pid: int = (await daemon.status())["broker"]["pid"]
    os.kill(pid, signal.SIGKILL)
    await until(lambda: not alive(pid), "the broker is dead", WAIT_S)
    return pid


async def restart(daemon: Daemon) -> None:
    done = await daemon.carpool("restart", "--all")
    assert done[0] == 0, done


async def said(agent: LineAgent, id_: bytes) -> str:
    answer = await agent.answer(id_)
    assert not answer["result"].get("isError"), answer
    text: str = answer["result"]["content"][0]["text"]
    return text


@behaviour("upgrade:in-place")
async def test_agents_live_through_an_upgrade_in_place_a_dead_broker_and_a_restart(
    installed: Installed, tmp_path: Path
) -> None:
    one, end = installed, tmp_path / "end"
    with trio.fail_after(LIMIT_S):
        async with one.shim() as busy, one.shim() as idle, one.shim() as stateful:
            assert await idle.text("good__echo", {"text": "before"}) == "before"
            assert await busy.text("good__shouted", {"text": "loud"}) == "LOUD"
            assert [int(await stateful.text("counter__increment")) for _ in range(2)] == [1, 2]
            assert (await one.status())["broker"]["version"] == "1.0.0"
            opened = await busy.start("good__hold", {"text": "held", "seconds": 0, "until": str(end)})
            await idle.inside("good", 1)

            one.install("2.0.0", moved=True)
            await kill_broker(one)
            late = await idle.start("good__echo", {"text": "while nobody was there"})
            # An agent that finds no broker of the supervisor that it was served by hears `maybe` (rule 4).
            await until(lambda: one.log("broker").count("is resumed") == 3, "all agents are back", WAIT_S)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(restart, one)
                await until(lambda: "draining" in one.log("broker"), "the broker drains", WAIT_S)
                end.touch()
                assert await said(busy, opened) == "held"
            assert await said(idle, late) == "while nobody was there"

            facts = await one.until(lambda facts: facts["supervisors"], "the supervisor is linked")
            assert facts["broker"]["version"] == "2.0.0"
            lost = fault_of(await stateful.call("counter__increment"))
            assert (lost["code"], lost["delivered"]) == ("state_lost", "no")
            assert int(await stateful.text("counter__increment")) == 1
            assert await busy.text("good__shouted", {"text": "again"}) == "AGAIN"
            for each in (busy, idle, stateful):
                assert await each.text("good__echo", {"text": f"after {each.pid}"}) == f"after {each.pid}"
            pids = [busy.pid, idle.pid, stateful.pid]
            assert all(map(alive, pids))
    ran = Counter((tmp_path / "order").read_text().split("\n")[:-1])
    texts = ["before", "LOUD", "held", "while nobody was there", "AGAIN", *(f"after {pid}" for pid in pids)]
    assert ran == dict.fromkeys(texts, 1)


@behaviour("upgrade:in-place")
async def test_a_broker_that_dies_after_an_upgrade_is_a_pause_also_without_a_restart(
    installed: Installed,
) -> None:
    one = installed
    with trio.fail_after(LIMIT_S):
        async with one.shim() as agent, one.shim() as other:
            opened = await agent.start("good__wait", {"gate": "g", "text": "opened"})
            assert int(await agent.text("counter__increment")) == 1
            await other.inside("good", 1)
            one.install("2.0.0", moved=True)
            await kill_broker(one)
            assert await other.text("good__open", {"gate": "g"}) == "open"
            assert await said(agent, opened) == "opened"
            again = await agent.call("counter__increment")
            assert again["content"][0]["text"] == "2" or fault_of(again)["code"] == "state_lost"
            assert (await one.status())["broker"]["version"] == "2.0.0"


@behaviour("doctor:fix")
async def test_doctor_finds_a_carpool_from_before_the_upgrade_and_replaces_it(plain: Installed) -> None:
    one = plain
    one.install("2.0.0")
    with trio.fail_after(LIMIT_S):
        code, out, said = await one.carpool("doctor", "--json")
        (problem,) = json.loads(out)["problems"]
        assert (code, problem["id"], problem["fix"]) == (1, "old-daemon", "restart"), said
        assert problem["text"] == "carpool 1.0.0 is running, and 2.0.0 is installed."
        code, out, said = await one.carpool("doctor", "--json", "--fix", "--yes")
        found = json.loads(out)
        assert (code, found["ok"], found["problems"]) == (0, True, []), said
        assert [(each["fix"], each["ok"]) for each in found["repaired"]] == [("restart", True)]
        assert (await one.status())["broker"]["version"] == "2.0.0"
