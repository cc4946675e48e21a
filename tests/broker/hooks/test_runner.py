"""Processes of hooks: one that is slow to start, and runs that nobody waits for any more."""

import asyncio
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
from tests.kit.line_agent import WAIT_S
from tests.kit.waits import until

SLOW = """
import os, time
while not os.path.exists({gate!r}):
    time.sleep(0.01)
def look(call):
    return None
"""


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

    one = runner.HookRunner({}, lambda _: "", {}, feed, lambda: None)
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

    one = runner.HookRunner({}, lambda _: "", {}, feed, lambda: None)
    async with trio.open_nursery() as nursery:
        await nursery.start(one.run)
        one.hooks_read([spec])
        one.begin_run(run_of(1))
        await until(lambda: len(answers) == 2, "both runs are over")
        assert [each.reason for each in answers.values()] == ["its process ended with exit code 3"] * 2
        nursery.cancel_scope.cancel()


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
