"""Files of processes that say themselves how long they are."""

import subprocess
import sys
from collections.abc import Iterator

import pytest

from carpool_protocol.runtime.process_files import (
    MOST_BYTES,
    MOST_VARIABLES,
    read_environment,
    read_process_file,
)
from tests.behaviours import behaviour
from tests.kit.private_daemon import until

_GROWS = """
import ctypes, mmap, sys
from pathlib import Path

PR_SET_MM, PR_SET_MM_MAP = 35, 14
size = int(sys.argv[1])
area = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
area.write(sys.argv[2].encode().replace(b"|", b"\\0") * (size // len(sys.argv[2])))
begin = ctypes.addressof(ctypes.c_char.from_buffer(area))
fields = [int(each) for each in Path("/proc/self/stat").read_text().rpartition(")")[2].split()[1:]]
of = lambda number: fields[number - 4]
libc = ctypes.CDLL(None, use_errno=True)
libc.sbrk.restype = ctypes.c_void_p
code, data, brk, stack = (of(26), of(27)), (of(45), of(46)), (of(47), libc.sbrk(0)), of(28)
words = (ctypes.c_uint64 * 13)(*code, *data, *brk, stack, begin, begin + size, begin, begin + size, 0, 0)
raw = bytes(words)[:-8] + (0).to_bytes(4, "little") + (0xFFFFFFFF).to_bytes(4, "little")
done = libc.prctl(PR_SET_MM, PR_SET_MM_MAP, raw, len(raw), 0)
print("grown" if done == 0 else f"errno {ctypes.get_errno()}", flush=True)
sys.stdin.read()
"""


@pytest.fixture(params=["x|", "NAME=value|"])
def grown(request: pytest.FixtureRequest) -> Iterator[int]:
    """A process whose arguments and environment are twice as long as Linux gives a program."""
    words = [sys.executable, "-c", _GROWS, str(2 * MOST_BYTES), request.param]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        said = process.stdout.readline().strip()
        if said != "grown":
            process.kill()
            pytest.skip(f"this kernel gives no PR_SET_MM_MAP ({said})")
        yield process.pid
        process.kill()


@behaviour("children:bounded-look")
def test_a_process_that_makes_its_environment_long_costs_a_look_no_more_than_any_program(grown: int) -> None:
    assert len(read_process_file(grown, "environ")) == MOST_BYTES
    assert len(read_process_file(grown, "cmdline")) == MOST_BYTES
    assert 0 < len(read_environment(grown)) <= MOST_VARIABLES


def test_a_process_that_has_ended_has_no_environment() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    assert read_environment(process.pid) == []
    assert read_process_file(process.pid, "stat") == b""


def test_the_variables_of_a_process_are_read_as_it_was_given_them() -> None:
    environ = {"EMPTY": "", "TEXT": "a=b"}
    words = ["/bin/sh", "-c", "read line"]
    with subprocess.Popen(words, env=environ, stdin=subprocess.PIPE) as process:
        # It is empty for a moment while a program begins.
        until(lambda: read_environment(process.pid), "the program has begun")
        found = read_environment(process.pid)
        process.kill()
    assert [each for each in found if not each.startswith(b"PWD=")] == [b"EMPTY=", b"TEXT=a=b"]
