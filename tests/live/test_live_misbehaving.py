"""Servers that misbehave, each beside a good one that must never notice, and each with its defined answer."""

import json
from collections.abc import Iterator

import pytest
import trio

from tests.behaviours import behaviour
from tests.kit.line_agent import LIMIT_S, LineAgent, fault_of
from tests.kit.live import Daemon, alive, gone, kit, observer, undisturbed
from tests.kit.waits import until
from tests.live.conftest import shared_daemon

QUICK = {"give_up_after": 2, "first_delay_s": 0, "max_delay_s": 0}
PATIENT = {"give_up_after": 1000, "first_delay_s": 0.2, "max_delay_s": 0.2}


@pytest.fixture(scope="module")
def shared() -> Iterator[Daemon]:
    servers = {
        "good": observer(),
        "noisy": kit("noisy"),
        "half": kit("half_line", restart=PATIENT),
        "big": kit("big"),
        "double": kit("double_answer"),
        "wrong": kit("wrong_id"),
        "unread": kit("never_reads", timeout_s=0.5, wait_s=1.5),
        "stillborn": kit("dies_at_start", restart=QUICK),
        "mute": kit("never_greets", first_start_s=1.0, restart=QUICK | {"give_up_after": 1}),
        "silent": kit("silent", timeout_s=0.3),
        "dead": kit("silent", "--dead", timeout_s=0.4, probe_s=0.2, restart=PATIENT),
        "breeder": kit("breeder"),
        "mortal": kit("dies_after", "2", "--kill", restart=PATIENT),
        "asker": kit("asks_back"),
        "pinger": kit("pings"),
        "nothing": {"command": "/no/such/program"},
        "looper": kit("paged", "--loop"),
    }
    yield from shared_daemon(servers, list_wait_s=10.0, max_greeting=8)


async def ended(agent: LineAgent, tool: str, code: str, delivered: str) -> str:
    """Call, and expect carpool to end it so. The text for the model."""
    result = await agent.call(tool, {"text": "x"})
    fault = fault_of(result)
    assert (fault["code"], fault["delivered"]) == (code, delivered), result
    text: str = result["content"][0]["text"]
    return text


async def test_junk_on_stdout_is_passed_over_and_shown(shared: Daemon) -> None:
    with trio.fail_after(LIMIT_S):
        async with undisturbed(shared), shared.agent() as agent:
            for at in range(20):
                assert await agent.text("noisy__echo", {"text": str(at)}) == str(at)
            assert (await shared.status())["servers"]["noisy"]["last_error"]


async def test_a_server_that_dies_in_mid_line_loses_that_call_and_serves_the_next(shared: Daemon) -> None:
    with trio.fail_after(LIMIT_S):
        async with undisturbed(shared), shared.agent() as agent:
            before = (await shared.status())["servers"]["half"]["restarts"]  # other tests share it
            for _ in range(3):
                await ended(agent, "half__die", "instance_died", "maybe")
            assert (await shared.status())["servers"]["half"]["restarts"] == before + 3


async def test_16_mib_answers_pass_whole_beside_small_calls(shared: Daemon) -> None:
    with trio.fail_after(LIMIT_S):
        async with undisturbed(shared), shared.agent() as agent:
            ids = [await agent.start("big__big") for _ in range(3)]
            for id_ in ids:
                answer = await agent.answer(id_)
                assert len(answer["result"]["content"][0]["text"]) == 16 * 1024 * 1024


async def test_a_second_answer_to_a_call_is_dropped(shared: Daemon) -> None:
    with trio.fail_after(LIMIT_S):
        async with undisturbed(shared), shared.agent() as agent:
            for at in range(20):  # Agent fails at its end when one came twice
                arguments = {"text": str(at), "error": bool(at % 2)}
                assert await agent.text("double__echo", arguments) == str(at)


async def test_answers_under_ids_that_nobody_gave_are_dropped(shared: Daemon) -> None:
    """Only `"17"` counts as 17, as in the Python SDK; the server writes that before its right answer."""
    with trio.fail_after(LIMIT_S):
        async with undisturbed(shared), shared.agent() as agent:
            ids = [await agent.start("wrong__echo", {"text": "the right one"}) for at in range(20)]
            for id_ in ids:
                said = (await agent.answer(id_))["result"]["content"][0]["text"]
                assert said in {"for somebody else", "the right one"}


async def test_a_server_that_never_reads_its_stdin_times_out_and_holds_up_nobody(shared: Daemon) -> None:
    with trio.fail_after(LIMIT_S):
        async with undisturbed(shared), shared.agent() as agent:
            ids = [await agent.start("unread__echo", {"text": "x" * 300_000}) for _ in range(3)]
            for id_ in ids:
                fault = fault_of((await agent.answer(id_))["result"])
                assert fault["code"] in {"timed_out", "waited_too_long"}, fault


async def test_a_server_that_dies_at_start_is_given_up_with_its_last_words(shared: Daemon) -> None:
    with trio.fail_after(LIMIT_S):
        async with undisturbed(shared), shared.agent() as agent:
            text = await ended(agent, "stillborn__anything", "breaker_open", "no")
            assert "exit code 3" in text
            facts = (await shared.status())["servers"]["stillborn"]
            assert facts["state"] == "breaker_open"
            assert "exit code 3" in facts["last_error"]
            assert "dies_at_start: no configuration" in facts["stderr"]
            assert "giving up" in shared.log("server-stillborn")
            assert not [name for name in await agent.tools() if name.startswith("stillborn")]
        async with shared.agent(greet=False) as fresh:
            assert "stillborn" in (await fresh.greet())["instructions"]


async def test_a_server_that_never_greets_is_given_up_at_its_limit(shared: Daemon) -> None:
    with trio.fail_after(LIMIT_S):
        async with undisturbed(shared), shared.agent() as agent:
            assert "did not greet within 1 s" in await ended(agent, "mute__anything", "breaker_open", "no")


async def test_a_command_that_does_not_exist_is_given_up_at_once_with_the_reason(shared: Daemon) -> None:
    with trio.fail_after(LIMIT_S):
        async with undisturbed(shared), shared.agent() as agent:
            text = await ended(agent, "nothing__anything", "cannot_start", "no")
            assert "/no/such/program" in text or "No such file" in text, text


async def test_a_cursor_without_end_does_not_keep_a_server_from_serving(shared: Daemon) -> None:
    with trio.fail_after(LIMIT_S):
        async with undisturbed(shared), shared.agent() as agent:
            assert await agent.text("looper__tool_0000") == "tool_0000"


@behaviour("silence:timeouts-kill-nobody")
async def test_a_silent_call_times_out_is_cancelled_and_its_process_lives_on(shared: Daemon) -> None:
    with trio.fail_after(LIMIT_S):
        async with undisturbed(shared), shared.agent() as agent:
            await ended(agent, "silent__wait", "timed_out", "maybe")
            before = await shared.pids("silent")
            await ended(agent, "silent__wait", "timed_out", "maybe")
            assert before
            assert await shared.pids("silent") == before


async def test_an_instance_silent_also_to_pings_is_replaced(shared: Daemon) -> None:
    with trio.fail_after(LIMIT_S):
        async with undisturbed(shared), shared.agent() as agent:
            fault = fault_of(await agent.call("dead__wait"))
            assert fault["delivered"] == "maybe"
            facts = await shared.until(lambda facts: facts["servers"]["dead"]["restarts"], "it is replaced")
            assert "silent" in facts["servers"]["dead"]["last_error"]


@behaviour("children:end-with-us")
async def test_a_breeders_grandchildren_end_with_it_also_those_that_left_its_group(shared: Daemon) -> None:
    with trio.fail_after(LIMIT_S):
        async with undisturbed(shared), shared.agent() as agent:
            bred = [int(await agent.text(f"breeder__{tool}")) for tool in ("breed", "breed_away", "breed")]
            assert all(map(alive, bred))
            [done] = await shared.operate("stop", "breeder")
            assert done["ok"], done
            await until(lambda: gone(bred), "no grandchild is left", LIMIT_S)


async def test_each_death_by_sigkill_costs_only_the_call_that_it_hits(shared: Daemon) -> None:
    with trio.fail_after(LIMIT_S):
        async with undisturbed(shared), shared.agent() as agent:
            for _ in range(3):
                assert await agent.text("mortal__echo", {"text": "1"}) == "1"
                assert await agent.text("mortal__echo", {"text": "2"}) == "2"
                await ended(agent, "mortal__echo", "instance_died", "maybe")


async def test_a_server_that_asks_for_sampling_gets_an_error_and_its_call_an_answer(shared: Daemon) -> None:
    with trio.fail_after(LIMIT_S):
        async with undisturbed(shared), shared.agent() as agent:
            got = json.loads(await agent.text("asker__ask", {"text": "secret of this agent"}))
            assert got["error"]["code"] == -32601
            assert not agent.notices


@behaviour("ping:answered-here")
async def test_a_server_that_pings_is_answered(shared: Daemon) -> None:
    with trio.fail_after(LIMIT_S):
        async with undisturbed(shared), shared.agent() as agent:
            assert json.loads(await agent.text("pinger__ping_me")) == {"result": {}}
            assert not agent.notices  # its log messages are for operators


async def test_all_misbehave_at_once_and_the_good_one_serves(shared: Daemon) -> None:
    """Everything at the same time, from one agent; every request is answered exactly once."""
    tools = [
        "noisy__echo",
        "half__die",
        "double__echo",
        "wrong__echo",
        "unread__echo",
        "stillborn__x",
        "mute__x",
    ]
    tools += [
        "silent__wait",
        "dead__wait",
        "mortal__echo",
        "asker__ask",
        "pinger__ping_me",
        "deaf__echo",
        "nothing__x",
    ]
    with trio.fail_after(LIMIT_S):
        async with undisturbed(shared), shared.shim() as agent:
            ids = [await agent.start(tool, {"text": "x"}) for tool in tools * 3]
            for id_ in ids:
                await agent.answer(id_)
