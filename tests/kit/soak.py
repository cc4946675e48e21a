"""Storms of the simulated world for as long as wanted: new seeds, or one again.

    python -m tests.kit.soak SECONDS [FIRST]  seeds that nobody has tried, or from this one on
    python -m tests.kit.soak --seed N [...]   these again

Prints each seed that breaks a promise or does not end with the command that repeats it, at the end how much
was simulated. Exit code 1 if any did. Owns that only; knows nothing of: what a storm is.
"""

import secrets
import signal
import sys
import time
import traceback
from collections.abc import Iterable, Iterator, Sequence
from types import FrameType

from tests.kit.world_weather import storm

AGAIN = "python -m tests.kit.soak --seed"
STORM_S = 120
"""A storm takes a second or two; one that takes so long does not end."""


def new_seeds(for_s: float, first: int | None = None) -> Iterator[int]:
    """One after the other from somewhere, until the time is over. Odd ones have disasters, even ones none."""
    until = time.monotonic() + for_s
    seed = secrets.randbelow(10**9) if first is None else first
    while time.monotonic() < until:
        yield seed
        seed += 1


def soak(seeds: Iterable[int]) -> list[int]:
    """Run these storms; the seeds of those that broke a promise."""
    began, storms, calls, broken = time.process_time(), 0, 0, list[int]()
    for seed in seeds:
        storms += 1
        signal.alarm(STORM_S)
        try:
            calls += storm(seed).book.asked
        except Exception as wrong:  # noqa: BLE001 - whatever it is, the next seed is tried
            broken.append(seed)
            traceback.print_exception(wrong, limit=-3, file=sys.stdout)
            print(f"seed {seed}: {AGAIN} {seed}", flush=True)
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
        return bool(soak(map(int, words[1:])))
    return bool(soak(new_seeds(float(words[0]), *map(int, words[1:2]))))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
