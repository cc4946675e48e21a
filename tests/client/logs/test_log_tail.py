"""The end of a log file over its rotations."""

from pathlib import Path

from carpool.logs.log_tail import LogTail, all_lines


def test_the_last_lines_are_whole_and_in_order(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_text("".join(f"line {n}\n" for n in range(10_000)) + "unfinished")
    tail = LogTail(str(log))
    assert tail.last_lines(3) == ["line 9997", "line 9998", "line 9999"]
    assert tail.new_lines() == []
    with log.open("a") as file:
        file.write(" business\nmore\n")
    assert tail.new_lines() == ["unfinished business", "more"]


def test_a_short_file_is_completed_from_the_one_before(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    (tmp_path / "a.log.1").write_text("dropped\nold 1\nold 2\n")
    log.write_text("new\n")
    assert LogTail(str(log)).last_lines(3) == ["old 1", "old 2", "new"]
    assert LogTail(str(log)).last_lines(0) == []


def test_lines_of_any_length_come_in_the_count_that_was_asked_for(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    lines = [f"{number} {'x' * (number * 37 % 5000)}" for number in range(300)]
    for name, part in (("a.log.2", lines[:100]), ("a.log.1", lines[100:298]), ("a.log", lines[298:])):
        (tmp_path / name).write_text("".join(line + "\n" for line in part))
    for count in (1, 2, 3, 150, 200, 201, 300, 400):
        assert LogTail(str(log)).last_lines(count) == lines[-count:]


def test_following_goes_on_over_a_rotation_and_a_file_that_comes_late(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    tail = LogTail(str(log))
    assert tail.last_lines(5) == []
    log.write_text("one\n")
    assert tail.new_lines() == ["one"]
    with log.open("a") as file:
        file.write("two\nha")
    log.rename(tmp_path / "a.log.1")
    assert tail.new_lines() == []
    log.write_text("lf\nthree\n")
    assert tail.new_lines() == ["two", "half", "three"]
    log.write_text("4\n")  # emptied and written again, shorter
    assert tail.new_lines() == ["4"]


def test_a_line_that_never_ends_does_not_grow_for_ever(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_text("")
    tail = LogTail(str(log))
    tail.last_lines(1)
    log.write_text("x" * 100_000)
    assert tail.new_lines() == ["x" * 100_000]


def test_all_lines_come_from_the_oldest_file_on(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    assert [*all_lines(str(log))] == []
    (tmp_path / "a.log.2").write_text("1\n")
    (tmp_path / "a.log.1").write_text("2\r\n3\x0bx\n")
    log.write_bytes(b"4 \xff\nhalf")
    assert [*all_lines(str(log))] == ["1", "2", "3\x0bx", "4 \ufffd", "half"]
