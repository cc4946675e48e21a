"""Far more than there is, in every way: bounded memory, one answer to each request, and others served.

What `bench/overload.py` does in full, at a size that takes seconds. Budgets are small here, so that what
would exceed them by far costs little.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import trio

from carpool_protocol.bootstrap import paths
from tests.behaviours import behaviour
from tests.kit.line_agent import LIMIT_S, WAIT_S, Json, LineAgent, fault_of
from tests.kit.live import Daemon, kit, observer, undisturbed
from tests.kit.waits import until
from tests.live.conftest import shared_daemon

MIB = 1024 * 1024
BUDGET = 8 * MIB


@pytest.fixture(scope="module")
def shared() -> Iterator[Daemon]:
    servers = {
        "good": observer(),
        "slow": kit("turns", max_in_flight=4, max_waiting_calls=40),
        "roomy": kit("turns"),
        "big": kit("big"),
        "deaf": kit("never_reads", timeout_s=0.5, wait_s=1.0),
        "flood": kit("flood"),
    }
    session = {"slow_reader_s": 1.0}
    yield from shared_daemon(
        servers, session=session, argument_budget_bytes=BUDGET, unread_budget_bytes=BUDGET
    )


class Peak:
    """The largest size of broker and supervisor together since it was made, beyond what they had then."""

    def __init__(self, facts: Json) -> None:
        roles = {each["role"]: each["pid"] for each in facts["processes"]}
        self._pids = [roles["broker"], roles["supervisor"]]
        for pid in self._pids:
            Path(f"/proc/{pid}/clear_refs").write_text("5")  # VmHWM begins anew (proc_pid_clear_refs)
        self._before = self._read("VmRSS")

    def _read(self, what: str) -> int:
        lines = [line for pid in self._pids for line in Path(f"/proc/{pid}/status").read_text().splitlines()]
        return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(what + ":"))

    @property
    def grown_bytes(self) -> int:
        return self._read("VmHWM") - self._before


async def peak(daemon: Daemon) -> Peak:
    facts = await daemon.until(lambda facts: len(facts["processes"]) >= 3, "all processes are seen")
    return Peak(facts)


async def outcomes(agent: LineAgent, ids: list[bytes]) -> Counter[str]:
    """How these requests ended; the agent fails at its end when one was answered twice."""
    ended: Counter[str] = Counter()
    for id_ in ids:
        result = (await agent.answer(id_))["result"]
        ended[fault_of(result)["code"] if result.get("isError") else "answered"] += 1
    return ended


@behaviour("pressure:fair-share", "pressure:bounded-calls")
async def test_a_swarm_is_served_in_turns_and_told_when_to_come_back_and_a_lone_agent_has_its_share(
    shared: Daemon,
) -> None:
    agents = 8
    every: Counter[str] = Counter()

    async def one_of_many(started: trio.Event) -> None:
        async with shared.agent() as agent:
            ids = [await agent.start("slow__take", {"seconds": 0.05}) for _ in range(64)]
            started.set()
            for id_ in ids:
                result = (await agent.answer(id_))["result"]
                if result.get("isError"):
                    fault = fault_of(result)
                    assert (fault["code"], fault["delivered"]) == ("waiting_line_full", "no")
                    assert fault["retry_after_s"] > 0
                every["refused" if result.get("isError") else "answered"] += 1

    with trio.fail_after(LIMIT_S):
        async with shared.agent() as lone, undisturbed(shared):
            await lone.text("slow__take", {"seconds": 0})
            async with trio.open_nursery() as nursery:
                begun = [trio.Event() for _ in range(agents)]
                for each in begun:
                    nursery.start_soon(one_of_many, each)
                for each in begun:
                    await each.wait()
                for _ in range(3):  # fails where it is refused; its turns are counted in test_turns.py
                    await lone.text("slow__take", {"seconds": 0})
            assert every["refused"] + every["answered"] == 64 * agents
            assert every["answered"] >= 40, "the line at least; the lone agent's calls had places too"


@behaviour("pressure:arguments")
async def test_a_flood_of_arguments_is_kept_within_its_budget_and_each_call_is_answered(
    shared: Daemon,
) -> None:
    with trio.fail_after(LIMIT_S):
        async with undisturbed(shared), shared.agent() as agent, shared.agent() as other:
            before = await peak(shared)
            load = {"seconds": 0.5, "load": "x" * MIB}
            ids = [await agent.start("roomy__keep", load) for _ in range(40)]
            ended = await outcomes(agent, ids)
            assert set(ended) == {"answered", "arguments_too_many"}
            assert ended["answered"] >= 4
            assert before.grown_bytes < 5 * BUDGET, (
                "broker and supervisor have a copy each, and those on the way"
            )
            assert await other.text("roomy__keep", {"seconds": 0, "load": "x"}), "small ones get in"


@behaviour("pressure:unread-answers", "pressure:slow-reader")
async def test_what_an_agent_that_never_reads_is_told_is_kept_within_its_budget(shared: Daemon) -> None:
    with trio.fail_after(LIMIT_S):
        async with undisturbed(shared):
            before = await peak(shared)
            mark = "has not read for 1 s"
            count = shared.log("broker").count(mark)
            stream = await trio.open_unix_socket(paths.agents_socket(str(shared.directory)))
            async with stream:
                hello = b'"method":"initialize","params":{"protocolVersion":"2025-06-18"}'
                await stream.send_all(b'{"jsonrpc":"2.0","id":0,%s}\n' % hello)
                call = b'"method":"tools/call","params":{"name":"big__big","arguments":{"bytes":1048576}}'
                with suppress(trio.BrokenResourceError):  # it may be dropped before it has said all
                    for id_ in range(1, 200):
                        await stream.send_all(b'{"jsonrpc":"2.0","id":%d,%s}\n' % (id_, call))
                await until(lambda: shared.log("broker").count(mark) > count, "it is dropped", WAIT_S)
            assert before.grown_bytes < 5 * BUDGET


@behaviour("pressure:unread-answers")
async def test_each_request_is_answered_once_where_an_agent_wants_far_more_than_it_can_read_at_once(
    shared: Daemon,
) -> None:
    with trio.fail_after(LIMIT_S):
        async with shared.agent() as agent:
            ids = [await agent.start("big__big", {"bytes": 3 * MIB}) for _ in range(64)]
            ended = await outcomes(agent, ids)
            assert set(ended) <= {"answered", "unread_answers"}
            assert ended.total() == 64


async def test_a_server_that_never_reads_holds_no_more_than_the_budget_and_each_call_ends(
    shared: Daemon,
) -> None:
    with trio.fail_after(LIMIT_S):
        async with undisturbed(shared), shared.agent() as agent:
            before = await peak(shared)
            ids = [await agent.start("deaf__echo", {"text": "x" * MIB}) for _ in range(40)]
            ended = await outcomes(agent, ids)
            assert set(ended) <= {"timed_out", "waited_too_long", "arguments_too_many"}
            assert before.grown_bytes < 5 * BUDGET


@behaviour("lines:over-the-cap")
async def test_an_answer_of_100_mib_in_one_line_ends_its_call_and_costs_no_more_than_the_cap(
    shared: Daemon,
) -> None:
    with trio.fail_after(LIMIT_S):
        async with undisturbed(shared), shared.agent() as agent:
            before = await peak(shared)
            fault = fault_of(await agent.call("flood__line", {"mib": 100}))
            assert (fault["code"], fault["delivered"]) == ("answer_too_large", "maybe")
            assert before.grown_bytes < 100 * MIB, "64 MiB are read before it is too long"


@pytest.mark.parametrize(
    ("what", "mib"),
    [("strangers", 128), ("junk", 40), ("logs", 40), ("progress", 40)],
    ids=["strangers", "junk", "logs", "progress"],
)
async def test_lines_that_nobody_wants_cost_no_more_than_those_that_are_not_read_slowly(
    shared: Daemon, what: str, mib: int
) -> None:
    with trio.fail_after(LIMIT_S):
        async with undisturbed(shared), shared.agent() as agent:
            before = await peak(shared)
            id_ = await agent.start(f"flood__{what}", {"mib": mib, "words": 60_000}, token="t")
            assert (await agent.answer(id_))["result"]["content"][0]["text"] == what
            assert before.grown_bytes < 36 * MIB, "20 MiB at once; broker and supervisor may have a copy each"
