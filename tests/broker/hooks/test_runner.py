"""Processes of hooks: one that is slow to start, and runs that nobody waits for any more."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest
import trio
import trio.testing

from carpool_broker.core.model.effects import BeginHook, EndHook
from carpool_broker.core.model.events import HookAnswered, RunId
from carpool_broker.hooks import hook_child, runner
from carpool_broker.hooks.spec import HookSpec
from carpool_protocol.hooks.lines import BeginHookRun, HookAnswer, line_of
from carpool_protocol.hooks.verdicts import HookDescription
from carpool_protocol.ids import CallId, RawJson, ServerName, SessionId
from tests.behaviours import behaviour
from tests.kit.line_agent import WAIT_S
from tests.kit.live import alive
from tests.kit.waits import until

SLOW = """
import os, time
while not os.path.exists({gate!r}):
    time.sleep(0.01)
def look(call):
    return None
"""


RUNTIME = f"test-{os.getpid()}"
SYSTEM_PATH = ("/usr/bin", "/bin")


@pytest.fixture(autouse=True)
def _no_wait_for_a_supervisor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "PATH_TIMEOUT_S", 0.0)


def new_runner(feed: Callable[[HookAnswered], None]) -> runner.HookRunner:
    return runner.HookRunner(
        {}, lambda _: "", {}, feed, lambda: None, search_path=SYSTEM_PATH, runtime_id=RUNTIME
    )


def run_of(number: int) -> BeginHook:
    return BeginHook(
        run=RunId(number), hook="slow", call=CallId(number), session=SessionId("s1"), method="tools/call",
        server=ServerName("good"), target="echo", arguments=RawJson(b'{"arguments":{}}'),
    )  # fmt: skip


async def test_a_process_that_still_imports_its_module_is_not_taken_for_one_that_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = tmp_path / "gate"
    (tmp_path / "slow.py").write_text(SLOW.format(gate=str(gate)))
    spec = HookSpec(name="slow", python="slow:look", cwd=str(tmp_path), folder=str(tmp_path))
    answers: dict[int, HookAnswered] = {}

    def feed(event: HookAnswered) -> None:
        answers[event.run] = event

    one = new_runner(feed)
    async with trio.open_nursery() as nursery:
        await nursery.start(one.run)
        one.hooks_read([spec])
        await until(lambda: one.pid_of("slow"), "it is started")
        pid = one.pid_of("slow")
        monkeypatch.setattr(runner, "HANG_TIMEOUT_S", 0.0)
        one.begin_run(run_of(1))
        one.end_run(EndHook(RunId(1), "slow"))
        await trio.testing.wait_all_tasks_blocked()
        monkeypatch.setattr(runner, "HANG_TIMEOUT_S", WAIT_S)
        one.begin_run(run_of(2))
        gate.touch()
        await until(lambda: len(answers) == 2, "both runs are over")
        assert (answers[1].verdict, answers[1].reason) == ("failed", "it was ended")
        assert answers[2].verdict == "allow"
        assert one.pid_of("slow") == pid
        nursery.cancel_scope.cancel()


async def test_a_run_that_begins_because_the_process_has_died_is_over_as_well(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text("import os\ndef look(call):\n    os._exit(3)\n")
    spec = HookSpec(name="slow", python="slow:look", cwd=str(tmp_path), folder=str(tmp_path))
    answers: dict[int, HookAnswered] = {}

    def feed(event: HookAnswered) -> None:
        answers[event.run] = event
        if event.run == 1:  # its turn in the line of this hook has come by that
            one.begin_run(run_of(2))

    one = new_runner(feed)
    async with trio.open_nursery() as nursery:
        await nursery.start(one.run)
        one.hooks_read([spec])
        one.begin_run(run_of(1))
        await until(lambda: len(answers) == 2, "both runs are over")
        assert [each.reason for each in answers.values()] == ["its process ended with exit code 3"] * 2
        nursery.cancel_scope.cancel()


@pytest.mark.skipif(sys.platform == "darwin", reason="macOS has no command `setsid`")
@behaviour("hooks:nothing-left")
@pytest.mark.parametrize("how", ["ends", "dies"])
async def test_a_process_in_a_session_of_its_own_ends_with_the_process_of_its_hook(
    tmp_path: Path, how: str
) -> None:
    pid_file = tmp_path / "pid"
    helper = "setsid sh -c 'echo $$; exec sleep 1000 >/dev/null 2>&1' </dev/null"
    script = f"{{ {helper} & }} | head -n 1 >{pid_file}; cat >/dev/null"
    spec = HookSpec(name="slow", argv=("sh", "-c", script), cwd=str(tmp_path), folder=str(tmp_path))
    answers: list[HookAnswered] = []
    one = new_runner(answers.append)
    try:
        async with trio.open_nursery() as nursery:
            await nursery.start(one.run)
            one.hooks_read([spec])
            one.begin_run(run_of(1))
            await until(lambda: answers, "the run is over")
            left = int(pid_file.read_text())
            assert answers[0].verdict == "allow"
            assert alive(left), "a helper may serve the next run"
            if how == "dies":
                os.kill(one.pid_of("slow"), signal.SIGKILL)
                await until(lambda: not alive(left), "the helper has ended")
            nursery.cancel_scope.cancel()
        assert not alive(left)
    finally:
        with suppress(OSError, ValueError):
            os.kill(int(pid_file.read_text()), signal.SIGKILL)


def test_a_run_that_is_ended_before_it_has_begun_is_over() -> None:
    said: list[HookAnswer] = []
    told = HookDescription(
        hook="slow", phase="before", call="c1", method="tools/call", server="good", name="echo", session="s1",
        arguments=msgspec.Raw(b"{}"),
    )  # fmt: skip
    begin = BeginHookRun(run=1, call=msgspec.Raw(msgspec.json.encode(told)))

    async def run(number: int, call: bytes) -> HookAnswer:
        raise AssertionError("nobody waits for it")

    async def main() -> None:
        lines = asyncio.StreamReader()
        lines.feed_data(
            line_of(begin) + line_of(BeginHookRun(run=1))
        )  # as both stand in a pipe that was not read
        lines.feed_eof()
        await hook_child.serve(lines, run, said.append)
        for _ in range(3):
            await asyncio.sleep(0)

    asyncio.run(main())
    assert said == [HookAnswer(run=1, failed="it was ended")]


@behaviour("path:login")
@pytest.mark.parametrize("is_told", [True, False])
async def test_a_hook_gets_the_path_of_servers_and_its_first_start_waits_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_told: bool
) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "own-hook").write_text("#!/bin/sh\ncat >/dev/null\n")
    (tools / "own-hook").chmod(0o700)
    if is_told:
        monkeypatch.setattr(runner, "PATH_TIMEOUT_S", WAIT_S)
    spec = HookSpec(name="slow", argv=("own-hook",), cwd=str(tmp_path), folder=str(tmp_path))
    answers: list[HookAnswered] = []
    one = new_runner(answers.append)
    async with trio.open_nursery() as nursery:
        await nursery.start(one.run)
        one.hooks_read([spec])
        one.begin_run(run_of(1))
        await trio.testing.wait_all_tasks_blocked()
        if is_told:
            assert not one.pid_of("slow")
            one.search_path_told([str(tools), *SYSTEM_PATH])
        await until(lambda: answers, "the run is over")
        nursery.cancel_scope.cancel()
    (answer,) = answers
    assert answer.verdict == ("allow" if is_told else "failed"), answer.reason
