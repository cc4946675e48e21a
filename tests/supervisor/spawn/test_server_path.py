"""The PATH of servers through a whole supervisor: real login shells, real spawns."""

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from carpool_protocol.bootstrap import paths
from carpool_protocol.ids import PoolKey, ServerName
from carpool_protocol.link.messages import (
    Operate,
    OperationEnded,
    Policy,
    PoolSpec,
    SetPools,
    Survey,
    Surveyed,
    UseLoginShell,
)
from carpool_protocol.runtime import login_path
from carpool_supervisor import marks
from carpool_supervisor.process import SupervisorShell
from carpool_supervisor.spawn import orphans
from tests.behaviours import behaviour
from tests.kit.in_process_supervisor import FakeBrokerLink, supervised
from tests.kit.spawner_rig import server_argv
from tests.kit.waits import until

KEY = PoolKey("s:1")
SAYS = 'PATH="$HOME/tools:/usr/bin:/bin"; export PATH\n'
ANSWERS = 'exec /bin/sh -c "$4"\n'
OTHERS = {
    "hangs": "exec /bin/sleep 600\n",
    "garbage": "echo '<PATH>/x:/y</PATH>'; exit 0\n",
    "fails": "exit 3\n",
    "endless": "exec /bin/cat /dev/zero\n",
    "binary": "printf '\\377\\376'; kill -9 $$\n",
    "answers an empty one": 'PATH=; /bin/sh -c "PATH=; $4"\n',
}
"""Login shells that do not say a PATH."""


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(paths.RUNTIME_VARIABLE, str(tmp_path))
    monkeypatch.setenv(paths.STATE_VARIABLE, str(tmp_path / "state"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", "/usr/bin:/bin:relative")
    monkeypatch.setenv("SECRET", "of the first agent")
    monkeypatch.setenv("SHELL", str(tmp_path / "shells" / "bash"))
    program(tmp_path / "tools" / "own-server", f"exec {' '.join(server_argv('asks_back'))}\n")


def program(file: Path, text: str) -> None:
    file.parent.mkdir(exist_ok=True)
    file.write_text(f"#!/bin/sh\n{text}")
    file.chmod(0o755)


def shell(home: Path, text: str) -> None:
    program(home / "shells" / "bash", text)


def wanted(command: str, **env: str) -> SetPools:
    spec = PoolSpec(
        key=KEY,
        server=ServerName("s"),
        argv=[command],
        env=env,
        cwd="/",
        policy=Policy(auto_connect=True),
    )
    return SetPools([spec])


async def survey(broker: FakeBrokerLink, token: int) -> Surveyed:
    broker.say(Survey(token, []))
    return await broker.heard(Surveyed, lambda it: it.token == token)


async def operated(broker: FakeBrokerLink, token: int) -> OperationEnded:
    broker.say(Operate(token, KEY, "start"))
    return await broker.heard(OperationEnded, lambda it: it.token == token)


@asynccontextmanager
async def asked(home: Path, text: str) -> AsyncIterator[tuple[SupervisorShell, FakeBrokerLink]]:
    shell(home, text)
    async with supervised(home) as (one, broker):
        broker.say(UseLoginShell(on=True))
        yield one, broker
    ours = f"{paths.runtime_id(str(home))}:"
    assert not orphans.find(marks.INSTANCE, lambda value: value.startswith(ours))


@behaviour("path:login")
async def test_the_first_start_waits_for_the_login_shell_and_finds_its_programs(tmp_path: Path) -> None:
    gate, begun = tmp_path / "gate", tmp_path / "begun"
    waiting = f": > {begun}; while [ ! -e {gate} ]; do /bin/sleep 0.01; done\n"
    async with asked(tmp_path, f"env > {tmp_path}/env; pwd > {tmp_path}/at\n{waiting}{SAYS}{ANSWERS}") as (
        one,
        broker,
    ):
        broker.say(wanted("own-server"))
        await until(begun.exists, "the shell runs")
        before = await survey(broker, 1)
        assert (before.login_shell, before.search_path) == ("asking", ["/usr/bin", "/bin"])
        assert [each.pid for each in before.pools[0].instances] == [0], "it is held, and has not failed"
        gate.touch()
        said = await operated(broker, 2)
        assert said.ok, said.text
        await until(lambda: one._server_path.login_shell == "asked", "it has answered")
        after = await survey(broker, 3)
        assert after.search_path == [f"{tmp_path}/tools", "/usr/bin", "/bin"]
    given = dict(line.split("=", 1) for line in (tmp_path / "env").read_text().splitlines())
    assert given.keys() - {"PWD", "_", "SHLVL", "OLDPWD"} <= {
        *("HOME", "USER", "LOGNAME", "LANG", "SHELL", "TERM", "PATH", marks.RUNTIME, marks.INSTANCE)
    }
    assert given["TERM"] == "dumb"
    assert (tmp_path / "at").read_text().strip() == str(tmp_path)


@behaviour("path:no-answer")
@pytest.mark.parametrize("kind", OTHERS)
async def test_a_login_shell_that_does_not_answer_costs_nothing_but_a_line(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(login_path, "LIMIT_S", 0.3)
    async with asked(tmp_path, OTHERS[kind]) as (_, broker):
        broker.say(wanted(str(tmp_path / "tools" / "own-server")))
        said = await operated(broker, 1)
        assert said.ok, said.text
        after = await survey(broker, 2)
        assert after.search_path == ["/usr/bin", "/bin"]
        assert after.login_shell.startswith(str(tmp_path / "shells" / "bash"))
    assert "servers get the PATH that carpool was started with" in caplog.text


@behaviour("path:late")
async def test_an_answer_that_is_late_counts_for_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(login_path, "LIMIT_S", 0.3)
    gate = tmp_path / "gate"
    waiting = f"while [ ! -e {gate} ]; do /bin/sleep 0.01; done\n"
    async with asked(tmp_path, waiting + SAYS + ANSWERS) as (one, broker):
        broker.say(wanted("own-server"))
        assert not (await operated(broker, 1)).ok
        before = await survey(broker, 2)
        assert before.search_path == ["/usr/bin", "/bin"]
        assert "did not answer within 0.3 s" in before.login_shell
        gate.touch()
        await until(lambda: one._server_path.login_shell == "asked", "it has answered")
        assert (await survey(broker, 3)).search_path == [f"{tmp_path}/tools", "/usr/bin", "/bin"]
        said = await operated(broker, 4)
        assert said.ok, said.text


@behaviour("path:late")
async def test_a_shell_that_is_late_is_given_up_for_a_newer_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(login_path, "LIMIT_S", 0.3)
    async with asked(tmp_path, OTHERS["hangs"]) as (one, broker):
        await until(lambda: "did not answer" in one._server_path.login_shell, "it is late")
        shell(tmp_path, SAYS + ANSWERS)
        monkeypatch.setattr(login_path, "LIMIT_S", 60.0)
        broker.say(UseLoginShell(on=False), UseLoginShell(on=True))
        await until(lambda: one._server_path.login_shell == "asked", "the newer one has answered")
        assert (await survey(broker, 1)).search_path == [f"{tmp_path}/tools", "/usr/bin", "/bin"]


@behaviour("path:no-answer")
@pytest.mark.parametrize("named", ["/nowhere/bash", "/bin/false", "bash"])
async def test_a_login_shell_that_cannot_be_asked_costs_nothing_but_a_line(
    tmp_path: Path, named: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("SHELL", named)
    async with supervised(tmp_path) as (_, broker):
        broker.say(UseLoginShell(on=True), wanted(str(tmp_path / "tools" / "own-server")))
        assert (await operated(broker, 1)).ok
        assert (await survey(broker, 2)).search_path == ["/usr/bin", "/bin"]
    assert "servers get the PATH that carpool was started with" in caplog.text


@behaviour("path:no-answer")
async def test_processes_that_the_files_of_the_login_shell_start_end_with_it(tmp_path: Path) -> None:
    left = tmp_path / "left"
    daemon = (
        f"import os, time; os.setsid(); open({str(left)!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    )
    start = f'{sys.executable} -S -E -c "{daemon}" >/dev/null 2>&1 &\n'
    wait = f"while [ ! -s {left} ]; do /bin/sleep 0.01; done\n"
    async with asked(tmp_path, start + wait + SAYS + ANSWERS) as (one, _):
        await until(lambda: one._server_path.login_shell == "asked", "it has answered")
        assert not marks.is_running(int(left.read_text()))


@behaviour("path:login")
@behaviour("path:clones")
async def test_a_shell_in_a_project_does_not_count_and_directories_in_one_only_if_the_login_shell_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = tmp_path / "project"
    (project / ".git").mkdir(parents=True)
    program(project / "bash", f": > {tmp_path}/ran; exit 1\n")
    monkeypatch.setattr(login_path, "_account_shell", lambda: str(tmp_path / "shells" / "bash"))
    monkeypatch.setenv("SHELL", str(project / "bash"))
    (tmp_path / "clone" / ".git").mkdir(parents=True)
    monkeypatch.setenv("PATH", f"{project}:{tmp_path}/clone/bin:/usr/bin")
    async with asked(tmp_path, f'PATH="{tmp_path}/clone/bin:$HOME/tools"\n{ANSWERS}') as (one, broker):
        await until(lambda: one._server_path.login_shell == "asked", "it has answered")
        said = (await survey(broker, 1)).search_path
        assert said == [f"{tmp_path}/clone/bin", f"{tmp_path}/tools", "/usr/bin"]
    assert not (tmp_path / "ran").exists()


@behaviour("path:login")
async def test_an_operators_start_asks_again_and_the_setting_turns_it_off(tmp_path: Path) -> None:
    async with asked(tmp_path, f"PATH=/usr/bin:/bin\n{ANSWERS}") as (_, broker):
        broker.say(wanted("own-server"))
        said = await operated(broker, 1)
        assert not said.ok
        assert "`carpool doctor` compares it with the PATH" in said.text
        shell(tmp_path, SAYS + ANSWERS)
        said = await operated(broker, 2)
        assert said.ok, said.text
        broker.say(UseLoginShell(on=False))
        now = await survey(broker, 3)
        assert (now.login_shell, now.search_path) == ("off", ["/usr/bin", "/bin"])


@behaviour("path:login")
async def test_starts_wait_for_the_last_answer_if_the_setting_is_turned_off_and_on_meanwhile(
    tmp_path: Path,
) -> None:
    def waiting(name: str) -> str:
        return f": > {tmp_path}/{name}-begun; while [ ! -e {tmp_path}/{name} ]; do /bin/sleep 0.01; done\n"

    async with asked(tmp_path, f"{waiting('first')}PATH=/nowhere\n{ANSWERS}") as (_, broker):
        broker.say(wanted("own-server"))
        await until((tmp_path / "first-begun").exists, "the shell is asked")
        shell(tmp_path, waiting("second") + SAYS + ANSWERS)
        broker.say(UseLoginShell(on=False), UseLoginShell(on=True))
        await survey(broker, 1)
        (tmp_path / "first").touch()
        await until((tmp_path / "second-begun").exists, "the shell is asked again")
        before = await survey(broker, 2)
        assert (before.login_shell, before.search_path) == ("asking", ["/usr/bin", "/bin"])
        assert [each.pid for each in before.pools[0].instances] == [0], "it is still held, and has not failed"
        (tmp_path / "second").touch()
        said = await operated(broker, 3)
        assert said.ok, said.text
        assert (await survey(broker, 4)).search_path == [f"{tmp_path}/tools", "/usr/bin", "/bin"]


@behaviour("path:login")
async def test_a_path_of_the_servers_own_stays(tmp_path: Path) -> None:
    async with asked(tmp_path, f"PATH=/nowhere\n{ANSWERS}") as (_, broker):
        broker.say(wanted("own-server", PATH=f"{tmp_path}/tools:/usr/bin:/bin"))
        assert (await operated(broker, 1)).ok
