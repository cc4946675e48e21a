"""Storms of the simulated world for as long as wanted: new seeds, or one again.

    python -m tests.kit.soak SECONDS         seeds that nobody has tried
    python -m tests.kit.soak --seed N [...]  these again

Prints each seed that breaks a promise with the command that repeats it, at the end how much was simulated.
Exit code 1 if any did. Owns that only; knows nothing of: what a storm is.
"""

import secrets
import sys
import time
import traceback
from collections.abc import Iterable, Iterator, Sequence

from tests.kit.world_weather import storm

AGAIN = "python -m tests.kit.soak --seed"


def new_seeds(for_s: float) -> Iterator[int]:
    """One after the other from somewhere, until the time is over. Odd ones have disasters, even ones none."""
    until, seed = time.monotonic() + for_s, secrets.randbelow(10**9)
    while time.monotonic() < until:
        yield seed
        seed += 1


def soak(seeds: Iterable[int]) -> list[int]:
    """Run these storms; the seeds of those that broke a promise."""
    began, storms, calls, broken = time.process_time(), 0, 0, list[int]()
    for seed in seeds:
        storms += 1
        try:
            calls += storm(seed).book.asked
        except Exception as wrong:  # noqa: BLE001 - whatever it is, the next seed is tried
            broken.append(seed)
            traceback.print_exception(wrong, limit=-3, file=sys.stdout)
            print(f"seed {seed}: {AGAIN} {seed}", flush=True)
    took_s = time.process_time() - began
    rate = calls / took_s if took_s else 0
    print(f"{storms} storms, {calls} requests, {rate:.0f} a second of CPU time; broken: {broken or 'none'}")
    return broken


def main(words: Sequence[str]) -> int:
    """See the module."""
    again = words[:1] == ["--seed"]
    return bool(soak(map(int, words[1:]) if again else new_seeds(float(words[0]))))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
