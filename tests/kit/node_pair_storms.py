"""Storms over the real near ends and processes of two nodes (`node_pair`). By seed.

Sessions carry lines of a few bytes and of megabytes, cut anywhere; each end stops reading, writing or both;
sessions end at either end, and the broker drops those that do not read; the link is slow, loses frames and is
cut. After each step no session has more bytes on its way than its bound. A storm ends with everything healed:
then each open session has all of its bytes, and each other one has ended at both ends, once.

Owns the odds of what happens, and the bounds.
"""

import asyncio
from functools import partial
from random import Random
from typing import Final, NamedTuple

from carpool.api.connection import OUT_BYTES, READ_BYTES
from carpool.cluster.core.channel import LOST_S
from carpool.cluster.core.sessions import WINDOW_BYTES
from carpool.cluster.near_ends import MAX_UNSENT_BYTES
from tests.kit.node_pair import NodePair, play, play_over
from tests.kit.real_pair_network import real_pair_network
from tests.kit.scripted_ends import ScriptedEnd

MAX_SESSIONS: Final = 6
SIZES: Final = (20, 20, 2000, 60_000, 400_000, 3_000_000)
LONGEST: Final = max(SIZES)
KERNEL_BYTES: Final = 512 * 1024
"""More than a pipe and both buffers of a Unix socket hold."""
TO_BROKER_BYTES: Final = KERNEL_BYTES + 2 * WINDOW_BYTES + OUT_BYTES
"""The most bytes of one session on their way to a broker that reads nothing."""
TO_AGENT_BYTES: Final = KERNEL_BYTES + WINDOW_BYTES + MAX_UNSENT_BYTES + READ_BYTES + LONGEST
"""The most bytes of one session on their way to an agent that reads nothing, with one unfinished line."""


class StormClock(NamedTuple):
    """How many steps a storm has, and what lies between them."""

    steps: int
    pauses_s: tuple[float, ...]
    rates: tuple[int, ...]
    """The bandwidths of slow links, in bytes per second."""
    cut_odds: float
    silence_s: float
    """After it, links that were healed too late are known as lost."""


VIRTUAL: Final = StormClock(150, (0.001, 0.05, 0.3, 0.3, 2.0, 8.0), (300_000, 3_000_000), 0.5, 2 * LOST_S)
REAL: Final = StormClock(60, (0.001, 0.01, 0.05, 0.2), (3_000_000, 30_000_000), 2.0, 0.0)
"""All of it takes less than `LOST_S`: no link is lost."""
REAL_SLOW_READER_S: Final = 1.0


def pair_storm(seed: int) -> None:
    """Run the storm of this seed. Raises `AssertionError` if a promise is broken."""

    async def storm(pair: NodePair) -> None:
        await _Storm(pair, Random(f"pair {seed}"), VIRTUAL).run()

    play(storm, seed=seed)


def real_pair_storm(kind: str, seed: int) -> None:
    """The same over a link of the product (`real_pair_network.KINDS`)."""

    async def storm(pair: NodePair) -> None:
        await pair.reach()
        await _Storm(pair, Random(f"pair {seed}"), REAL).run()

    play_over(partial(real_pair_network, kind), storm, REAL_SLOW_READER_S)


class _Storm:
    def __init__(self, pair: NodePair, chance: Random, clock: StormClock) -> None:
        self._pair = pair
        self._chance = chance
        self._clock = clock

    async def run(self) -> None:
        """Run it to its end."""
        self._open()
        for _ in range(self._clock.steps):
            self._step()
            await asyncio.sleep(self._chance.choice(self._clock.pauses_s))
            self._check_bounds()
        await self._calm()

    def _ends(self) -> list[ScriptedEnd]:
        """Both ends of each session that the broker has and that is open."""
        pairs = ((each, each.partner) for each in self._pair.broker.sessions.values())
        return [end for pair in pairs if not any(one and one.is_over for one in pair) for end in pair if end]

    def _step(self) -> None:
        ends = self._ends()
        kind = self._chance.choices(
            ("open", "say", "deaf", "hear", "mute", "speak", "end", "slow", "lose", "cut", "heal"),
            (6, 20, 3, 4, 2, 4, 1, 2, 1, self._clock.cut_odds, 4),
        )[0]
        if kind == "open":
            self._open()
        elif kind in {"slow", "lose", "cut", "heal"}:
            self._change_link(kind)
        elif ends:
            self._change_end(kind, self._chance.choice(ends))

    def _open(self) -> None:
        if sum(not each.is_over for each in self._pair.agents.values()) < MAX_SESSIONS:
            self._pair.open()

    def _change_link(self, kind: str) -> None:
        network = self._pair.network
        match kind:
            case "slow":
                network.slow(
                    bytes_per_s=self._chance.choice(self._clock.rates),
                    lag_s=self._chance.choice((0.001, 0.1)),
                )
            case "lose":
                network.disturb()
            case "cut":
                network.cut()
            case _:
                network.heal()

    def _change_end(self, kind: str, end: ScriptedEnd) -> None:
        match kind:
            case "say":
                for _ in range(self._chance.choice((1, 1, 4))):
                    size = self._chance.choice(SIZES)
                    end.say(self._chance.randbytes(size - 1).replace(b"\n", b" ") + b"\n")
            case "deaf":
                end.stop_reading()
            case "hear":
                end.read_on()
            case "mute":
                end.stop_writing()
            case "speak":
                end.write_on()
            case _:
                self._end(end)

    def _end(self, end: ScriptedEnd) -> None:
        broker, supervisor = self._pair.broker, self._pair.supervisor
        instance = int(end.name.partition(" ")[2])
        assert supervisor is not None
        if end.name.startswith("broker"):
            broker.drop(instance, "an operator ends it")
        elif self._chance.random() < 0.5:
            supervisor.end(instance)
        else:
            end.end()

    def _check_bounds(self) -> None:
        for end in self._ends():
            bound = TO_BROKER_BYTES if end.name.startswith("agent") else TO_AGENT_BYTES
            assert end.unheard <= bound, f"{end.unheard} bytes of {end.name} are on their way"

    async def _calm(self) -> None:
        """Heal everything. What is open gets its bytes, what has ended has ended everywhere."""
        pair = self._pair
        pair.network.slow()
        pair.network.heal()
        agents, brokers = pair.agents.values(), pair.broker.sessions
        for end in (*agents, *brokers.values()):
            end.write_on()
            end.read_on()
        await asyncio.sleep(self._clock.silence_s)
        await pair.until(
            lambda: not any(each.is_behind or each.unheard for each in self._ends()),
            "each open session has all of its bytes",
        )
        await pair.until(
            lambda: not any(self._unsettled(each) for each in pair.agents),
            "each session is open at both ends, or has ended at both",
        )
        await pair.reach()  # whatever is told twice comes before its answer
        assert [fault for each in pair.agents if (fault := self._unsettled(each))] == []

    def _unsettled(self, instance: int) -> str:
        """What is wrong with a session; empty: it is open, or has ended at both ends and was told so once."""
        supervisor, broker = self._pair.supervisor, self._pair.broker.sessions.get(instance)
        assert supervisor is not None
        told = supervisor.answers("ended", instance) + supervisor.answers("failed", instance)
        is_open = broker is not None and not broker.is_over
        if len(told) != (not is_open):
            return f"session {instance}: {told}, open at the broker: {is_open}"
        is_over = self._pair.agents[instance].is_over
        return "" if is_over == (not is_open) else f"agent {instance} is over: {is_over}"
