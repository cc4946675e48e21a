"""Storms of the simulated world for as long as wanted: new seeds, or one again.

    python -m tests.world.soak SECONDS [FIRST]  seeds that nobody has tried, or from this one on
    python -m tests.world.soak --seed KIND:N [...]   these again

Each seed is a storm of every kind (`storms`). Prints each that breaks a promise or does not end with
the command that repeats it, at the end how much was simulated. Exit code 1 if any did. SIGTERM ends it after
the storm at hand. Owns that only; knows nothing of: what a storm is.
"""

import secrets
import signal
import sys
import time
import traceback
from collections.abc import Iterable, Iterator, Sequence
from types import FrameType

from tests.world.sim.cluster import SimCluster
from tests.world.sim.storms import EVERY
from tests.world.sim.world import World

AGAIN = "python -m tests.world.soak --seed"
STORM_S = 120
"""A storm takes a second or two; one that takes so long does not end."""


def new_seeds(for_s: float, first: int | None = None) -> Iterator[tuple[str, int]]:
    """All kinds of one after the other from somewhere, until the time is over. Odd ones have disasters, even
    ones none.
    """
    until = time.monotonic() + for_s
    ended: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: ended.append(number))
    seed = secrets.randbelow(10**9) if first is None else first
    while time.monotonic() < until:
        for kind in EVERY:
            if ended:
                return
            yield kind, seed
        seed += 1


def soak(seeds: Iterable[tuple[str, int]]) -> list[str]:
    """Run these storms; which of them broke a promise."""
    began, storms, calls, broken = time.process_time(), 0, 0, list[str]()
    for kind, seed in seeds:
        storms += 1
        signal.alarm(STORM_S)
        try:
            world = EVERY[kind](seed)
            calls += world.book.asked if isinstance(world, World | SimCluster) else 0
        except Exception as wrong:  # noqa: BLE001 - whatever it is, the next seed is tried
            broken.append(f"{kind}:{seed}")
            traceback.print_exception(wrong, limit=-3, file=sys.stdout)
            print(f"seed {seed}: {AGAIN} {kind}:{seed}", flush=True)
        finally:
            signal.alarm(0)
    took_s = time.process_time() - began
    rate = calls / took_s if took_s else 0
    print(f"{storms} storms, {calls} requests, {rate:.0f} a second of CPU time; broken: {broken or 'none'}")
    return broken


def _too_long(_number: int, _frame: FrameType | None) -> None:
    raise TimeoutError(f"the storm has not ended after {STORM_S} s")


def main(words: Sequence[str]) -> int:
    """See the module."""
    signal.signal(signal.SIGALRM, _too_long)
    if words[:1] == ["--seed"]:
        split = (word.rpartition(":") for word in words[1:])
        return bool(soak((kind or "plain", int(seed)) for kind, _, seed in split))
    return bool(soak(new_seeds(float(words[0]), *map(int, words[1:2]))))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
