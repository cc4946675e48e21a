"""Two nodes' processes with real pipes and sockets, on virtual time."""

import asyncio
import os

import pytest

from carpool.cluster.core.sessions import WINDOW_BYTES
from carpool.launcher_lock import take_lock
from tests.behaviours import behaviour
from tests.kit.node_pair import NodePair, play
from tests.kit.node_pair_storms import KERNEL_BYTES, TO_AGENT_BYTES, TO_BROKER_BYTES, pair_storm
from tests.kit.scripted_ends import ScriptedEnd

MIB = 1 << 20


def line(size: int) -> bytes:
    """A line of this size that repeats nowhere in itself."""
    text = b"".join(b"%d " % number for number in range(size // 6 + 1))
    return text[: size - 1] + b"\n"


async def until_all_arrive(pair: NodePair, *ends: ScriptedEnd) -> None:
    """Wait until everything that was said at these ends has come to the other ones."""
    await pair.until(
        lambda: not any(each.is_behind or each.unheard for each in ends), "all bytes have arrived", 300
    )


@behaviour("cluster:bytes")
@pytest.mark.parametrize("seed", [3, 4, 11, 20])
def test_each_byte_arrives_once_in_order_and_nothing_piles_up_through_a_storm(seed: int) -> None:
    pair_storm(seed)


@behaviour("cluster:bytes")
def test_a_session_goes_on_after_answers_larger_than_what_may_wait_for_the_other_node() -> None:
    async def script(pair: NodePair) -> None:
        agent, broker = await pair.session()
        for _ in range(3):
            broker.say(line(3 * MIB))
            await until_all_arrive(pair, broker)
            agent.say(line(100))
            await until_all_arrive(pair, agent)

    play(script)


@behaviour("cluster:bytes")
def test_an_agent_that_reads_again_gets_everything_that_waited_for_it() -> None:
    async def script(pair: NodePair) -> None:
        agent, broker = await pair.session()
        agent.stop_reading()
        for _ in range(3000):
            broker.say(line(2000))
        await asyncio.sleep(10)
        assert broker.is_behind
        agent.read_on()
        await until_all_arrive(pair, broker)

    play(script)


@behaviour("cluster:bytes")
def test_a_broker_that_reads_again_gets_everything_that_waited_for_it() -> None:
    async def script(pair: NodePair) -> None:
        agent, broker = await pair.session()
        broker.stop_reading()
        for _ in range(12):
            agent.say(line(MIB))
        await asyncio.sleep(10)
        assert agent.is_behind, "the broker reads nothing"
        broker.read_on()
        await until_all_arrive(pair, agent)

    play(script)


@behaviour("cluster:bytes")
def test_an_agent_that_fills_the_window_while_a_broker_starts_is_read_on_then() -> None:
    async def script(pair: NodePair) -> None:
        pair.broker.shut()
        lock = take_lock(pair.broker.directory, "")
        assert lock is not None
        agent = pair.agents[pair.open()]
        agent.say(line(3 * WINDOW_BYTES))
        await asyncio.sleep(5)
        pair.broker.listen()
        os.close(lock)
        await pair.until(lambda: agent.partner is not None, "the broker has the session")
        await until_all_arrive(pair, agent)

    play(script)


@behaviour("cluster:deaths")
def test_a_session_for_which_no_broker_runs_ends_with_the_reason() -> None:
    async def script(pair: NodePair) -> None:
        pair.broker.shut()
        instance, supervisor = pair.open(), pair.supervisor
        assert supervisor is not None
        await pair.until(lambda: supervisor.answers("ended", instance), "the agent's supervisor is told")
        assert "not running" in supervisor.answers("ended", instance)[0]["text"]
        pair.broker.listen()

    play(script)


def test_short_lines_for_an_agent_that_does_not_read_wait_at_the_broker_and_not_in_the_node() -> None:
    async def script(pair: NodePair) -> None:
        agent, broker = await pair.session()
        agent.stop_reading()
        for _ in range(20_000):
            broker.say(line(1000))
        await asyncio.sleep(20)
        assert broker.unheard <= TO_AGENT_BYTES - 3_000_000  # no line is long
        broker.end()

    play(script)


def test_bytes_for_a_broker_that_does_not_read_wait_at_the_agent_and_not_in_the_node() -> None:
    async def script(pair: NodePair) -> None:
        agent, broker = await pair.session()
        broker.stop_reading()
        for _ in range(20):
            agent.say(line(MIB))
        await asyncio.sleep(20)
        assert agent.unheard <= TO_BROKER_BYTES
        agent.end()

    play(script)


def test_a_session_that_gets_the_descriptors_of_an_ended_one_gets_none_of_its_bytes() -> None:
    async def script(pair: NodePair) -> None:
        agent, broker = await pair.session()
        agent.stop_reading()
        broker.say(line(MIB))
        await asyncio.sleep(1)
        broker.end()
        await pair.until(lambda: pair.supervisor and pair.supervisor.answers("ended", 1), "it has ended")
        agent.end()
        agent, broker = await pair.session()
        agent.stop_reading()
        broker.say(line(MIB))
        await asyncio.sleep(1)
        agent.read_on()
        await until_all_arrive(pair, broker)

    play(script)


@behaviour("cluster:fair")
def test_several_answers_of_megabytes_at_once_all_arrive() -> None:
    async def script(pair: NodePair) -> None:
        sessions = [await pair.session() for _ in range(5)]
        for _, broker in sessions:
            broker.say(line(8 * MIB))
        await until_all_arrive(pair, *(broker for _, broker in sessions))

    play(script)


def test_a_link_that_is_quick_carries_megabytes_in_seconds() -> None:
    """By the virtual clock, on which only timers cost time."""

    async def script(pair: NodePair) -> None:
        _, broker = await pair.session()
        began = pair.now
        broker.say(line(8 * MIB))
        await until_all_arrive(pair, broker)
        assert pair.now - began < 10

    play(script)


@behaviour("cluster:deaths")
def test_a_session_that_the_broker_drops_ends_at_the_agent_with_the_reason() -> None:
    async def script(pair: NodePair) -> None:
        await pair.session()
        pair.broker.drop(1, "an operator has ended it")
        supervisor = pair.supervisor
        assert supervisor is not None
        await pair.until(lambda: supervisor.answers("ended", 1), "the agent's supervisor is told")
        assert "An operator has ended it" in supervisor.answers("ended", 1)[0]["text"]

    play(script)


@behaviour("cluster:deaths")
def test_a_cut_that_lasts_ends_sessions_at_both_nodes_and_the_next_one_works() -> None:
    async def script(pair: NodePair) -> None:
        agent, broker = await pair.session()
        pair.network.cut()
        broker.say(line(3 * MIB))
        await pair.until(lambda: agent.is_over and broker.is_over, "both ends are over")
        pair.network.heal()
        await pair.meet()
        agent, broker = await pair.session()
        broker.say(line(MIB))
        await until_all_arrive(pair, broker)

    play(script)


@pytest.mark.xfail(
    reason="an answer that is larger than what the link carries in `slow_reader_s` stops the node's process "
    "from reading the broker, which drops the session of a healthy agent"
)
@behaviour("cluster:bytes")
def test_two_large_answers_over_a_slow_link_both_arrive() -> None:
    async def script(pair: NodePair) -> None:
        _, broker = await pair.session()
        pair.network.slow(bytes_per_s=50_000)
        for _ in range(2):
            broker.say(line(4 * MIB))
        await pair.until(lambda: broker.is_over or not (broker.is_behind or broker.unheard), "they arrive")
        assert not pair.broker.dropped

    play(script)


@pytest.mark.xfail(
    reason="the node's process takes a whole line of a broker before it passes any of it on, and a session "
    "may hold lines of 64 MiB"
)
def test_a_long_line_for_an_agent_that_does_not_read_waits_at_the_broker_and_not_in_the_node() -> None:
    async def script(pair: NodePair) -> None:
        agent, broker = await pair.session()
        agent.stop_reading()
        broker.say(line(16 * MIB))
        await asyncio.sleep(20)
        try:
            assert broker.unheard <= KERNEL_BYTES + 3 * WINDOW_BYTES
        finally:
            broker.end()

    play(script)


@behaviour("cluster:memory")
def test_long_answers_of_several_sessions_arrive_though_little_may_be_held(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("carpool.cluster.near_ends.HELD_BYTES", MIB)

    async def script(pair: NodePair) -> None:
        sessions = [await pair.session() for _ in range(4)]
        for _, broker in sessions:
            broker.say(line(4 * MIB))
        await until_all_arrive(pair, *(broker for _, broker in sessions))

    play(script)
