"""When the launcher begins a door, and what it makes of its end; and tokens for those who come in."""

import json
import os
from pathlib import Path

import pytest

from carpool import lock
from carpool.door_watch import EXIT_CONFIG, EXIT_TAKEN, EXIT_UNWANTED, DoorWatch, told_url
from carpool.http.gate import Gate
from carpool_protocol import paths
from tests.kit.house import House


def write(file: Path, text: str, at: int) -> None:
    file.write_text(text)
    os.utime(file, ns=(at, at))


def test_a_door_is_due_when_the_file_mentions_one_and_again_when_it_changes(tmp_path: Path) -> None:
    file = tmp_path / "carpool.json"
    write(file, '{"mcpServers": {}}', 1)
    watch = DoorWatch("", str(file), {})
    assert not watch.due()
    write(file, '{"http": {}}', 2)
    assert watch.due()
    assert not watch.due(), "not twice for the same file"
    write(file, "{}", 3)
    assert not watch.due()


def test_a_door_is_due_where_the_last_good_reading_mentions_one(tmp_path: Path) -> None:
    file, kept = tmp_path / "carpool.json", tmp_path / "last-good.json"
    write(file, "", 1)
    write(kept, json.dumps({"texts": {"c": '{"mcpServers": {"x": {"url": "http://h"}}}'}}), 1)
    assert not DoorWatch("", str(file), {}, str(kept)).due()
    write(kept, json.dumps({"texts": {"c": '{"http": {}}'}}), 2)
    assert DoorWatch("", str(file), {}, str(kept)).due()


def test_an_address_on_the_command_line_wants_a_door_without_a_file(tmp_path: Path) -> None:
    watch = DoorWatch("127.0.0.1:0", "", {"XDG_CONFIG_HOME": str(tmp_path)})
    assert watch.due()
    assert not watch.due()


@pytest.mark.parametrize(
    ("status", "again"),
    [(0, True), (-9, True), (70, True), (EXIT_TAKEN, True), (EXIT_CONFIG, False), (EXIT_UNWANTED, False)],
)
def test_what_starting_again_cannot_help_waits_for_another_file(status: int, again: bool) -> None:
    assert DoorWatch("", "/none", {}).again(status) is again


def test_the_same_complaint_is_told_once() -> None:
    watch = DoorWatch("", "/none", {})
    said = "2026 http: something else\n2026 http: the port is taken"
    assert [watch.news(said), watch.news(said), watch.news("2026 http: other")] == [
        "the port is taken",
        "",
        "other",
    ]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"url": "u"}', '{"url": "u", "pid": "x"}'])
def test_a_file_that_tells_no_door_is_no_door(tmp_path: Path, text: str) -> None:
    (tmp_path / "http.json").write_text(text)
    assert told_url(str(tmp_path)) == ""


def test_a_door_that_lives_tells_its_url_and_a_dead_one_does_not(tmp_path: Path) -> None:
    (tmp_path / "http.json").write_text(json.dumps({"url": "http://x/mcp", "pid": os.getpid()}))
    assert told_url(str(tmp_path)) == "http://x/mcp"
    (tmp_path / "http.json").write_text(json.dumps({"url": "http://x/mcp", "pid": 1 << 30}))
    assert told_url(str(tmp_path)) == ""


def test_a_token_comes_in_by_the_hash_that_is_printed_with_it(house: House) -> None:
    one, two = (json.loads(house.run("token", "ann", "--json").stdout) for _ in range(2))
    assert one["token"] != two["token"]
    gate = Gate(tokens={"ann": one["hash"]})
    assert gate.principal(f"Bearer {one['token']}") == "ann"
    assert gate.principal(f"Bearer {two['token']}") is None
    assert one["token"] not in one["hash"]
    assert house.run("token", "\n").returncode == 2


@pytest.mark.parametrize(
    "text",
    [
        f'{{"pid": {10**30}, "url": "http://x"}}',
        '{"pid": 1e400, "url": "http://x"}',
        "[" * 100_000,
        f'{{"pid": {os.getpid()}, "url": "\\u001b]0;gone\\u0007"}}',
    ],
    ids=["a pid past all", "an infinite pid", "too deep", "a URL that moves the cursor"],
)
def test_a_door_file_that_is_none_tells_no_url(tmp_path: Path, text: str) -> None:
    Path(paths.door_file(str(tmp_path))).write_text(text)
    assert told_url(str(tmp_path)) == ""


@pytest.mark.parametrize("pid", ["9" * 30, "9" * 5000, "-1", "\u0663" * 12, "x", ""])
def test_a_lock_file_without_a_pid_names_nobody(tmp_path: Path, pid: str) -> None:
    file = tmp_path / "lock"
    file.write_text(f"pid={pid}\nconfig=\n")
    descriptor = os.open(file, os.O_RDONLY)
    assert lock._read(descriptor).pid == 0
    os.close(descriptor)
