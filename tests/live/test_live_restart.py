"""`carpool restart --all` under load: what runs is waited for, what was not sent goes to the next broker."""

from collections import Counter
from pathlib import Path

import trio

from tests.behaviours import behaviour
from tests.kit.line_agent import LIMIT_S, Json, fault_of
from tests.kit.live import Daemon, Make, observer
from tests.kit.waits import until

AGENTS = 16
ROUNDS = 2


def keeping(file: Path) -> Json:
    """A server whose count of what it has run outlives it."""
    return observer("--order", str(file), pool={"max": 1})


def runs(file: Path) -> Counter[str]:
    return Counter(file.read_text().split("\n")[:-1] if file.exists() else [])


async def restart(daemon: Daemon) -> None:
    done = await daemon.carpool("restart", "--all")
    assert done[0] == 0, done


@behaviour("restart:drains")
async def test_calls_under_load_are_all_run_once_and_answered_over_two_restarts(
    daemon: Make, tmp_path: Path
) -> None:
    file = tmp_path / "order"
    one = daemon({"good": keeping(file)})
    done = trio.Event()
    said: dict[str, Json] = {}

    async def work(at: int, started: trio.Event) -> None:
        """Two calls at a time, one after the other, until all restarts are over."""
        async with one.shim() as agent:
            started.set()
            count = 0
            while not done.is_set() or count < 3:
                names = [f"a{at}-{count}-{each}" for each in range(2)]
                seconds = 0.2 + 0.8 * ((at + count) % 5) / 4
                ids = [await agent.start("good__hold", {"text": n, "seconds": seconds}) for n in names]
                for name, each in zip(names, ids, strict=True):
                    said[name] = await agent.answer(each)
                count += 1
            assert len(agent.answers) == len(set(agent.answers))

    with trio.fail_after(LIMIT_S):
        async with trio.open_nursery() as nursery:
            for at in range(AGENTS):
                started = trio.Event()
                nursery.start_soon(work, at, started)
                await started.wait()
            for _ in range(ROUNDS):
                before = len(said)
                await until(lambda before=before: len(said) >= before + AGENTS, "every agent works", LIMIT_S)  # type: ignore[misc]
                await restart(one)
            done.set()
    wrong = {name: answer for name, answer in said.items() if answer.get("result", {}).get("isError", True)}
    assert not wrong
    assert runs(file) == dict.fromkeys(said, 1)


@behaviour("restart:drains")
async def test_while_carpool_drains_what_runs_goes_on_what_comes_waits_or_is_refused(
    daemon: Make, tmp_path: Path
) -> None:
    file = tmp_path / "order"
    one = daemon({"good": keeping(file)})
    end = tmp_path / "end"
    steps: Json = {"delay_s": 0.05, "text": "steps", "until": str(end)}
    with trio.fail_after(LIMIT_S):
        async with one.shim() as agent, one.shim() as other, one.agent() as plain:
            held = await agent.start("good__wait", {"gate": "g", "text": "held"})
            stepping = await other.start("good__steps", steps, token="t")
            await agent.inside("good", 2)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(restart, one)
                await until(lambda: "draining" in one.log("broker"), "the broker drains", LIMIT_S)
                seen = len(other.notices)
                late = await agent.start("good__echo", {"text": "late"})
                refused = await plain.ask("tools/call", {"name": "good__echo", "arguments": {}})
                assert fault_of(refused["result"])["delivered"] == "no"
                assert "result" in await other.ask("ping")
                await other.notice("notifications/progress", since=seen)
                end.touch()
                assert "result" in await other.answer(stepping)
                assert late not in agent.answers
                await agent.cancel(held)  # an end as good as an answer
            assert (await agent.answer(late))["result"]["content"][0]["text"] == "late"
            assert held not in agent.answers
    assert runs(file) == {"held": 1, "steps": 1, "late": 1}
