"""`python -m bench.long_line`: what one very long answer costs everybody else.

One agent calls a tool whose answer is one line of so many MB; a further agent, in a process of its own, calls
another server every 10 ms. Both come by the socket, then both by the HTTP door. Shown are the longest wait of
the further agent, beside its longest wait in as much time without the long answer, and how much more memory
each process of carpool held at most than before, in lines (`VmHWM` of Linux). Of `ROUNDS` the least time
counts, because other work on the machine only adds, and the most memory.

Knows nothing of: how lines are cut and carried.
"""

import argparse
import time
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from bench.growth import Carpool, carpool
from bench.other_agent import AnyAgent, OtherAgent, attached
from bench.revisions import HERE

ROUNDS: Final = 5
MEGABYTES: Final = (1, 10, 50)


class LongAnswerRound(NamedTuple):
    """The figures of one long answer."""

    answer_s: float
    wait_s: float
    """The longest wait of a call at another server meanwhile."""
    quiet_wait_s: float
    """The same, in as much time without a long answer."""
    lines: tuple[float, ...]
    """The most memory that each process held above what it had before, in lines."""


def _memory_bytes(pid: int, field: str) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(field):
            return 1024 * int(line.split()[1])
    raise ValueError(field)


def one_round(pids: tuple[int, ...], place: str, agent: AnyAgent, megabytes: int) -> LongAnswerRound:
    """Return the figures of one answer."""
    size = megabytes * 1_000_000
    before = [_memory_bytes(pid, "VmRSS") for pid in pids]
    for pid in pids:
        Path(f"/proc/{pid}/clear_refs").write_text("5")
    others = OtherAgent(place)
    began_s = time.perf_counter()
    agent.call("big__t0", str(size))
    answer_s = time.perf_counter() - began_s
    wait_s = others.worst_s()
    most = [_memory_bytes(pid, "VmHWM") for pid in pids]
    lines = tuple((high - low) / size for high, low in zip(most, before, strict=True))
    others = OtherAgent(place)
    time.sleep(answer_s)
    return LongAnswerRound(answer_s, wait_s, others.worst_s(), lines)


def rows(way: str) -> None:
    """Print the rows of one way in."""
    for megabytes in MEGABYTES:
        settings: dict[str, Any] = {"http": {"port": 0, "tokens": False}} if way == "HTTP" else {}
        with carpool(HERE, {"echo": 1, "big": 1}, settings) as here:
            place, pids = _place(here, way)
            agent = attached(place)
            agent.call("big__t0", "1000")
            rounds = [one_round(pids, place, agent, megabytes) for _ in range(ROUNDS)]
        cells = [f"{max(each):.1f} lines" for each in zip(*(each.lines for each in rounds), strict=True)]
        cells += [""] * (3 - len(cells))
        print(
            f"| {megabytes} MB, {way} | {min(each.answer_s for each in rounds):.2f} s | "
            f"{1000 * min(each.wait_s for each in rounds):.0f} ms | "
            f"{1000 * min(each.quiet_wait_s for each in rounds):.0f} ms | {' | '.join(cells)} |",
            flush=True,
        )


def _place(here: Carpool, way: str) -> tuple[str, tuple[int, ...]]:
    pids = (here.pid("broker"), here.pid("supervisor"))
    if way != "HTTP":
        return here.directory, pids
    status = here.status()
    (door,) = (each["pid"] for each in status["processes"] if each["role"] == "door")
    return str(urlsplit(status["door"]["url"]).port), (*pids, door)


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(prog="python -m bench.long_line", description=__doc__.partition("\n")[0])
    parser.parse_args()
    print("| answer | whole call | longest wait elsewhere | without it | broker | supervisor | HTTP door |")
    print("|---|---|---|---|---|---|---|")
    for way in ("socket", "HTTP"):
        rows(way)


if __name__ == "__main__":
    main()
