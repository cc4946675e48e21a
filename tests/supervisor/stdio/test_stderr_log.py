"""The log of a server's stderr: format, bounds, rotation, tails, and a disk that fails."""

import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from carpool_protocol.ids import InstanceId
from carpool_protocol.runtime.poller import TURN_LINES, ReadySet
from carpool_protocol.runtime.wallclock import unix_s, wallclock
from carpool_supervisor.stdio.stderr_log import (
    BURST_BYTES,
    LINE_BYTES,
    RATE_BYTES_S,
    TAIL_LINES,
    StderrLog,
)
from tests.behaviours import behaviour
from tests.kit.leaks import no_leaks

NOW = "2026-11-21T22:00:01.123Z"
ONE, TWO = InstanceId(1), InstanceId(2)


class Bench:
    """A log and the writing ends of its instances' stderr."""

    def __init__(self, path: Path, file_bytes: int) -> None:
        self.time = 0.0
        self.ready = ReadySet()
        self.troubles: list[str] = []
        self.ends: dict[InstanceId, int] = {}
        self.log = StderrLog(
            self.ready,
            path,
            server="git",
            on_trouble=self.troubles.append,
            now_text=lambda: NOW,
            now=lambda: self.time,
            file_bytes=file_bytes,
        )

    def attach(self, instance: InstanceId) -> None:
        fd, self.ends[instance] = os.pipe()
        os.set_blocking(fd, False)
        self.log.attach(instance, fd)

    def says(self, instance: InstanceId, data: bytes) -> None:
        for at in range(0, len(data), 4096):
            os.write(self.ends[instance], data[at : at + 4096])
            while self.more():
                self.ready._round()

    def more(self) -> bool:
        """True if anything can be read."""
        return bool(self.ready._to_read_again or self.ready._poll.poll(0, 1))

    def read(self) -> list[int]:
        """Read until nothing is left. Returns the number of lines that each round added to the file."""
        added, before = list[int](), self.lines()
        while self.more():
            self.ready._round()
            added.append(self.lines() - before)
            before += added[-1]
        return added

    def lines(self) -> int:
        """The number of lines in all files."""
        files = self.log.path.parent.glob("*.log*")
        return sum(file.read_bytes().count(b"\n") for file in files if file.is_file())

    def ends_speech(self, instance: InstanceId) -> None:
        os.close(self.ends.pop(instance))
        while self.log.drain(instance):
            pass

    def close(self) -> None:
        self.log.close()
        for fd in self.ends.values():
            os.close(fd)
        assert len(self.ready) == 0
        self.ready.close()


Start = Callable[..., Bench]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    with no_leaks():
        made: list[Bench] = []

        def begin(path: Path = tmp_path / "logs" / "git.log", file_bytes: int = 1 << 20) -> Bench:
            made.append(Bench(path, file_bytes))
            made[-1].attach(ONE)
            return made[-1]

        yield begin
        for bench in made:
            bench.close()


def told(bench: Bench) -> list[tuple[int, str]]:
    """Instance and text of each line in the file."""
    lines = [json.loads(line) for line in bench.log.path.read_text().splitlines()]
    own = {"at": NOW, "level": "info", "process": "server", "server": "git", "stream": "stderr"}
    assert all(own.items() <= line.items() for line in lines)
    return [(line["instance"], line["message"]) for line in lines]


@behaviour("logs:format")
def test_each_line_has_its_time_and_its_server_and_no_server_can_forge_that(start: Start) -> None:
    bench = start()
    bench.attach(TWO)
    bench.says(ONE, b"hello\nhalf ")
    bench.says(TWO, b"\x1b[31mred\x1b[0m\n\n")
    bench.says(ONE, b'line\n{"at": "forged"}\r\nno newline at the end')
    bench.ends_speech(ONE)
    assert told(bench) == [
        (1, "hello"),
        (2, "\x1b[31mred\x1b[0m"),
        (1, "half line"),
        (1, '{"at": "forged"}\r'),
        (1, "no newline at the end"),
    ]
    assert "\x1b" not in bench.log.path.read_text()


def test_a_line_of_carpools_own_names_no_stream_and_a_server_cannot_write_one(start: Start) -> None:
    bench = start()
    bench.log.write_line(ONE, "git #1 starts", level="warning")
    bench.log.write_line(ONE, "a\nbanner", "stdout")
    bench.says(ONE, b"[carpool] starts\n")
    lines = [json.loads(line) for line in bench.log.path.read_text().splitlines()]
    assert [(each["process"], each.get("stream"), each["level"], each["message"]) for each in lines] == [
        ("supervisor", None, "warning", "git #1 starts"),
        ("server", "stdout", "info", "a banner"),
        ("server", "stderr", "info", "[carpool] starts"),
    ]


def test_the_file_and_its_directory_are_the_users_alone(start: Start) -> None:
    bench = start()
    bench.says(ONE, b"x\n")
    assert bench.log.path.stat().st_mode & 0o777 == 0o600
    assert bench.log.path.parent.stat().st_mode & 0o777 == 0o700


def test_invalid_utf8_is_replaced_and_an_overlong_line_cut_once_whatever_the_chunks(start: Start) -> None:
    bench = start()
    bench.says(ONE, b"bad \xff\xfe\n" + b"y" * (5 * LINE_BYTES) + b"\nafter\n" + b"z" * LINE_BYTES + b"\n")
    lines = [text for _, text in told(bench)]
    assert lines == ["bad \ufffd\ufffd", "y" * LINE_BYTES + " [cut]", "after", "z" * LINE_BYTES]


def test_the_last_lines_are_kept_for_the_server_and_for_each_instance(
    start: Start,
) -> None:
    bench = start()
    bench.attach(TWO)
    bench.says(TWO, b"two says this\n")
    bench.says(ONE, b"".join(b"line %d\n" % at for at in range(50)))
    bench.ends_speech(ONE)
    assert bench.log.tail_of(ONE) == [f"line {at}" for at in range(50 - TAIL_LINES, 50)]
    assert bench.log.tail_of(TWO) == ["two says this"]
    assert bench.log.tail() == [f"#1 line {at}" for at in range(50 - TAIL_LINES, 50)]
    bench.log.detach(ONE)
    assert bench.log.tail_of(ONE) == []
    assert len(bench.log.tail()) == TAIL_LINES


LINE = b"x" * 4095 + b"\n"


@behaviour("logs:flood")
def test_what_a_server_floods_is_left_out_of_the_file_and_told_there_and_its_last_lines_are_kept(
    start: Start,
) -> None:
    bench = start(file_bytes=4 * BURST_BYTES)
    bench.says(ONE, LINE * (BURST_BYTES // len(LINE)) + LINE * 50 + b"the last word\n")
    written = bench.log.path.read_text().splitlines(keepends=True)
    assert sum(map(len, written[:-1])) < BURST_BYTES <= sum(map(len, written))
    left_out = BURST_BYTES // len(LINE) + 50 - len(written)
    assert bench.log.tail_of(ONE)[-1] == "the last word"
    bench.time += 3 * len(LINE) / RATE_BYTES_S
    bench.says(ONE, b"a word again\n")
    *_, told_bytes, again = [json.loads(line) for line in bench.log.path.read_text().splitlines()]
    assert told_bytes["message"].startswith(
        f"{left_out * len(LINE) + 14} bytes of stderr are not in this log"
    )
    assert (told_bytes["process"], told_bytes["level"]) == ("supervisor", "warning")
    assert again["message"] == "a word again"


@behaviour("logs:flood")
def test_what_was_left_out_is_told_also_if_the_server_ends(start: Start) -> None:
    bench = start(file_bytes=4 * BURST_BYTES)
    bench.attach(TWO)
    bench.says(ONE, LINE * (BURST_BYTES // len(LINE)) + LINE)
    bench.says(TWO, b"another instance has its own rate\n")
    bench.ends_speech(ONE)
    *own, other, told_bytes = [
        json.loads(line)["message"] for line in bench.log.path.read_text().splitlines()
    ]
    assert other == "another instance has its own rate"
    left_out = BURST_BYTES // len(LINE) + 1 - len(own)
    assert told_bytes.startswith(f"{left_out * len(LINE)} bytes of stderr")


@behaviour("logs:flood")
def test_a_turn_writes_a_few_lines_and_the_rest_follows_in_order(start: Start) -> None:
    bench = start()
    os.write(bench.ends[ONE], b"".join(b"%d\n" % number for number in range(1000)))
    assert max(bench.read()) <= TURN_LINES
    assert [text for _, text in told(bench)] == [str(number) for number in range(1000)]


@behaviour("logs:flood")
def test_lines_of_an_ended_process_are_drained_a_few_in_a_turn(start: Start) -> None:
    bench = start()
    os.write(bench.ends[ONE], b"x\n" * 1000 + b"the last word")
    os.close(bench.ends.pop(ONE))
    before, has_more = 0, True
    while has_more:
        has_more = bench.log.drain(ONE)
        assert bench.lines() - before <= 2 * TURN_LINES
        before = bench.lines()
    assert before == 1001
    assert bench.log.tail_of(ONE)[-1] == "the last word"


@behaviour("logs:flood")
def test_the_rate_counts_what_the_file_gets_and_not_what_the_server_wrote(start: Start) -> None:
    bench = start(file_bytes=4 * BURST_BYTES)
    for _ in range(5):
        bench.says(ONE, b"x\n" * 10_000)
    assert BURST_BYTES <= bench.log.path.stat().st_size < BURST_BYTES + 200 * TURN_LINES
    assert bench.log.tail_of(ONE) == ["x"] * TAIL_LINES


@behaviour("logs:flood")
def test_line_ends_alone_cost_the_log_nothing(start: Start) -> None:
    bench = start()
    os.write(bench.ends[ONE], b"a\n" + b"\n" * 60_000 + b"b\n")
    assert len(bench.read()) == 1
    assert [text for _, text in told(bench)] == ["a", "b"]


@behaviour("logs:flood")
def test_no_file_grows_over_its_bound_by_short_lines_or_by_a_log_that_is_opened_again(start: Start) -> None:
    bench = start(file_bytes=100_000)
    os.write(bench.ends[ONE], b"x\n" * 5000)
    bench.read()
    bench.ends_speech(ONE)
    bench.log.detach(ONE)
    for _ in range(1000):
        bench.log.write_line(TWO, "starts")
    assert all(path.stat().st_size <= 100_000 for path in bench.log.path.parent.iterdir())


def test_the_file_is_rotated_and_at_most_three_are_kept(start: Start) -> None:
    bench = start(file_bytes=1000)
    for at in range(100):
        bench.says(ONE, b"%03d" % at + b"x" * 60 + b"\n")
    names = sorted(path.name for path in bench.log.path.parent.iterdir())
    assert names == ["git.log", "git.log.1", "git.log.2"]
    assert all(path.stat().st_size <= 1000 for path in bench.log.path.parent.iterdir())
    kept = "".join((bench.log.path.parent / name).read_text() for name in reversed(names))
    numbers = [int(found) for found in re.findall(r'"(\d{3})x', kept)]
    assert numbers == list(range(numbers[0], 100))
    assert bench.log.lost_lines == 0


def test_a_restarted_supervisor_appends_to_the_file_and_counts_its_size(start: Start) -> None:
    first = start(file_bytes=400)
    first.says(ONE, b"x" * 100 + b"\n")
    second = start(file_bytes=400)
    second.says(ONE, b"second\n")
    second.says(ONE, b"y" * 100 + b"\n")
    assert (second.log.path.parent / "git.log.1").read_text().count("\n") == 2


def test_a_file_that_cannot_be_written_is_said_once(start: Start, tmp_path: Path) -> None:
    in_the_way = tmp_path / "file"
    in_the_way.write_text("")
    bench = start(in_the_way / "git.log")
    for _ in range(3):
        bench.says(ONE, b"one\ntwo\n")
    assert bench.log.lost_lines == 6
    assert len(bench.troubles) == 1
    assert "cannot be written" in bench.troubles[0]
    assert bench.log.tail_of(ONE)[-1] == "two"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_counted_and_stops_nothing_else(start: Start) -> None:
    bench = start(Path("/dev/full"))
    bench.says(ONE, b"one\ntwo\n")
    assert bench.log.lost_lines == 2
    assert "No space left" in bench.troubles[0]


def test_a_log_that_is_a_link_or_a_fifo_is_not_used(start: Start, tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("mine")
    link = tmp_path / "link.log"
    link.symlink_to(target)
    fifo = tmp_path / "fifo.log"
    os.mkfifo(fifo)
    for path in (link, fifo):
        bench = start(path)
        bench.says(ONE, b"x\n")
        assert bench.log.lost_lines == 1
    assert target.read_text() == "mine"


def test_the_wall_clock_reads_as_people_write_it() -> None:
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", wallclock())
    assert wallclock() <= wallclock()
    assert unix_s() > 1_700_000_000
