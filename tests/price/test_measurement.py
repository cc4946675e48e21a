"""Bytecodes are counted exactly, processes run one at a time, and heartbeats are no part of a price."""

import dis
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from carpool_supervisor.marks import state_and_group
from tests.kit.private_daemon import until
from tests.price import opcode_counter
from tests.price.lock_step import LockStep, are_idle
from tests.price.measurement import FEWEST_BURSTS, do_agree, price_of_bursts
from tests.price.price_list import FunctionPrice, Way
from tests.price.priced_calls import PRICED_CALLS

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="processes run in lock step by means of /proc"
)

PROGRAM = """
def work(number):
    return number + 1

for line in open(0):
    for number in range(int(line)):
        work(number)
    print("done", flush=True)
"""
PERIODIC_PROGRAM = """
import asyncio

def work(number):
    return number + 1

async def beat():
    for number in range(3):
        await asyncio.sleep(0)
        await asyncio.sleep(0.001)
        work(number)

async def answer(count):
    beats = asyncio.create_task(beat())
    for number in range(count):
        work(number)
    await beats

for line in open(0):
    asyncio.run(answer(int(line)))
    print("done", flush=True)
"""
LONE = next(kind for kind in PRICED_CALLS if kind.calls == 1)


def work(number: int) -> int:
    """The same function, to look at."""
    return number + 1


@contextmanager
def counted_program(base: Path, text: str = PROGRAM) -> Iterator["subprocess.Popen[bytes]"]:
    """A program with the counter in it, in the place of a broker."""
    package = base / "carpool_broker"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text(text)
    shutil.copy(opcode_counter.__file__, base / "sitecustomize.py")
    program = subprocess.Popen(
        [sys.executable, "-P", "-m", "carpool_broker"],
        env={**os.environ, "PYTHONPATH": str(base)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        bufsize=0,
    )
    try:
        yield program
    finally:
        program.kill()
        program.communicate()


def ask(program: "subprocess.Popen[bytes]", count: int) -> None:
    """Have it work so often."""
    assert program.stdin is not None
    assert program.stdout is not None
    program.stdin.write(b"%d\n" % count)
    assert program.stdout.readline() == b"done\n"


def command(base: Path, word: str) -> list[tuple[str, str, int, int]]:
    with socket.socket(socket.AF_UNIX) as counter:
        counter.connect(str(base / "carpool_broker.sock"))
        counter.sendall(word.encode())
        found: list[tuple[str, str, int, int]] = json.loads(
            b"".join(iter(lambda: counter.recv(1 << 16), b""))
        )
        return found


def test_each_entry_and_each_bytecode_of_a_function_is_counted(short_path: Path) -> None:
    # The first instruction of a function is its entry.
    instructions = len([each for each in dis.get_instructions(work) if each.opname != "RESUME"])
    with counted_program(short_path) as program:
        ask(program, 3)
        assert command(short_path, "take") == []
        command(short_path, "start")
        ask(program, 1)
        command(short_path, "take")
        for count in (1, 7):
            ask(program, count)
            rows = {name: (entries, bytecodes) for _, name, entries, bytecodes in command(short_path, "take")}
            assert rows["work"] == (count, count * instructions)
            assert rows["<module>"][1] > 0, "the function that is running since before `start`"


def test_what_a_coroutine_does_that_sleeps_for_a_time_is_not_counted(short_path: Path) -> None:
    with counted_program(short_path, PERIODIC_PROGRAM) as program:
        ask(program, 1)
        command(short_path, "start")
        ask(program, 1)
        command(short_path, "take")
        ask(program, 5)
        rows = {name: entries for _, name, entries, _ in command(short_path, "take")}
        assert (rows["work"], rows["answer"], "beat" in rows) == (5, 2, False)


def test_a_process_in_lock_step_runs_in_its_turn_only(short_path: Path) -> None:
    with counted_program(short_path) as program:
        ask(program, 1)
        assert program.stdin is not None
        assert program.stdout is not None
        os.set_blocking(program.stdout.fileno(), False)
        with LockStep([program.pid]) as lock_step:
            until(lambda: state_and_group(program.pid)[0] == "T", "it is stopped")
            program.stdin.write(b"1\n")
            assert program.stdout.read() is None
            lock_step.give_turn(program.pid)
            assert program.stdout.read() == b"done\n"
            until(lambda: state_and_group(program.pid)[0] == "T", "it is stopped again")
        until(lambda: are_idle([program.pid]), "it runs again and waits")


def burst(**extra: float) -> dict[str, Way]:
    """A burst with the bytecodes of a call, and what happened by the clock beside it."""
    way = {"call": FunctionPrice(1, 1000), "flush": FunctionPrice(1, 100)}
    way |= {name: FunctionPrice(1, bytecodes) for name, bytecodes in extra.items()}
    return {process: dict(way) for process in LONE.processes}


def test_what_happens_in_some_of_the_bursts_is_no_part_of_the_price() -> None:
    bursts = [burst(heartbeat=300), burst(), burst(heartbeat=300, timeout=50), burst(flush=130), burst()]
    assert do_agree(LONE, bursts)
    assert price_of_bursts(LONE, bursts)["broker"] == burst()["broker"]


def test_the_price_is_that_of_one_call_of_a_burst() -> None:
    kind = next(each for each in PRICED_CALLS if each.calls == 100)
    found = price_of_bursts(kind, [burst()] * FEWEST_BURSTS)["broker"]
    assert found == {"call": FunctionPrice(0.01, 10), "flush": FunctionPrice(0.01, 1)}


def test_bursts_that_differ_are_followed_by_more() -> None:
    bursts = [burst(call=1000 + 100 * number) for number in range(FEWEST_BURSTS)]
    assert not do_agree(LONE, bursts)
    assert not do_agree(LONE, [burst()] * (FEWEST_BURSTS - 1))
    assert do_agree(LONE, [*bursts, burst(call=1000), burst(call=1000)])
