"""When the launcher begins a door, and what it makes of its end; and tokens for those who come in."""

import json
import os
from pathlib import Path

import pytest

from carpool import launcher_lock
from carpool.cli.status import status_page, with_door
from carpool.control.verdict import with_verdict
from carpool.http.core.access import AccessRules
from carpool.http.server import DoorFile, write_url
from carpool.launcher.http_address import split_address
from carpool.launcher.http_door import (
    EXIT_CONFIG,
    EXIT_TAKEN,
    EXIT_UNWANTED,
    HttpDoorStatus,
    HttpDoorWatch,
    read_door_status,
    read_door_tokens,
    read_door_url,
    remove_door_file,
    write_door_problem,
)
from carpool_protocol.bootstrap import paths
from tests.behaviours import behaviour
from tests.kit.private_daemon import PrivateDaemon


def write(file: Path, text: str, at: int) -> None:
    file.write_text(text)
    os.utime(file, ns=(at, at))


def test_a_door_is_due_when_the_file_mentions_one_and_again_when_it_changes(tmp_path: Path) -> None:
    file = tmp_path / "carpool.json"
    write(file, '{"mcpServers": {}}', 1)
    watch = HttpDoorWatch("", str(file), {})
    assert not watch.is_start_due()
    write(file, '{"http": {}}', 2)
    assert watch.is_start_due()
    assert not watch.is_start_due(), "not twice for the same file"
    write(file, "{}", 3)
    assert not watch.is_start_due()


def test_a_file_that_replaces_another_of_the_same_size_and_time_is_a_change(tmp_path: Path) -> None:
    file, fresh = tmp_path / "carpool.json", tmp_path / "fresh.json"
    write(file, '{"http": []}', 1)
    watch = HttpDoorWatch("", str(file), {})
    assert watch.is_start_due()
    write(fresh, '{"http": {}}', 1)
    os.replace(fresh, file)
    assert watch.is_start_due()


def test_a_door_is_due_where_the_last_good_reading_mentions_one(tmp_path: Path) -> None:
    file, kept = tmp_path / "carpool.json", tmp_path / "last-good.json"
    write(file, "", 1)
    write(kept, json.dumps({"texts": {"c": '{"mcpServers": {"x": {"url": "http://h"}}}'}}), 1)
    assert not HttpDoorWatch("", str(file), {}, str(kept)).is_start_due()
    write(kept, json.dumps({"texts": {"c": '{"http": {}}'}}), 2)
    assert HttpDoorWatch("", str(file), {}, str(kept)).is_start_due()


def test_an_address_on_the_command_line_wants_a_door_without_a_file(tmp_path: Path) -> None:
    watch = HttpDoorWatch("127.0.0.1:0", "", {"XDG_CONFIG_HOME": str(tmp_path)})
    assert watch.is_start_due()
    assert not watch.is_start_due()


def test_a_configuration_directory_in_a_project_is_ignored(tmp_path: Path) -> None:
    home, project = tmp_path / "home", tmp_path / "project"
    for directory in (home / ".config/carpool", project / ".git", project / "carpool"):
        directory.mkdir(parents=True)
    write(project / "carpool/carpool.json", '{"http": {}}', 1)
    watch = HttpDoorWatch("", "", {"HOME": str(home), "XDG_CONFIG_HOME": str(project)})
    assert not watch.is_start_due()
    write(home / ".config/carpool/carpool.json", '{"http": {}}', 1)
    assert watch.is_start_due()


@pytest.mark.parametrize(
    ("status", "again"),
    [(0, True), (-9, True), (70, True), (EXIT_TAKEN, True), (EXIT_CONFIG, False), (EXIT_UNWANTED, False)],
)
def test_what_starting_again_cannot_help_waits_for_another_file(status: int, again: bool) -> None:
    assert HttpDoorWatch("", "/none", {}).should_restart(status) is again


def test_the_same_complaint_is_told_once() -> None:
    watch = HttpDoorWatch("", "/none", {})
    said = "something else\nthe port is taken"
    assert [watch.new_problem(said), watch.new_problem(said), watch.new_problem("other")] == [
        "the port is taken",
        "",
        "other",
    ]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"url": "u"}', '{"url": "u", "pid": "x"}'])
def test_a_file_that_tells_no_door_is_no_door(tmp_path: Path, text: str) -> None:
    (tmp_path / "http.json").write_text(text)
    assert read_door_url(str(tmp_path)) == ""


def test_a_door_that_lives_tells_its_url_and_a_dead_one_does_not(tmp_path: Path) -> None:
    (tmp_path / "http.json").write_text(json.dumps({"url": "http://x/mcp", "pid": os.getpid()}))
    assert read_door_url(str(tmp_path)) == "http://x/mcp"
    (tmp_path / "http.json").write_text(json.dumps({"url": "http://x/mcp", "pid": 1 << 30}))
    assert read_door_url(str(tmp_path)) == ""


def test_a_token_comes_in_by_the_hash_that_is_printed_with_it(house: PrivateDaemon) -> None:
    one, two = (json.loads(house.run("token", "add", name, "--json").stdout) for name in ("ann", "bob"))
    assert one["token"] != two["token"]
    gate = AccessRules(tokens={"ann": one["hash"]})
    assert gate.principal(f"Bearer {one['token']}") == "ann"
    assert gate.principal(f"Bearer {two['token']}") is None
    assert one["token"] not in one["hash"]
    assert house.run("token", "add", "\n").returncode == 2


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
    assert read_door_url(str(tmp_path)) == ""


@pytest.mark.parametrize("pid", ["9" * 30, "9" * 5000, "-1", "\u0663" * 12, "x", ""])
def test_a_lock_file_without_a_pid_names_nobody(tmp_path: Path, pid: str) -> None:
    file = tmp_path / "lock"
    file.write_text(f"pid={pid}\nconfig=\n")
    descriptor = os.open(file, os.O_RDONLY)
    assert launcher_lock._read(descriptor).pid == 0
    os.close(descriptor)


@behaviour("http:not-open")
@pytest.mark.parametrize(
    ("status", "words", "problem"),
    [
        (EXIT_TAKEN, "earlier\nthe port is taken", "the port is taken"),
        (EXIT_CONFIG, "no tokens", "no tokens"),
        (
            EXIT_CONFIG,
            "the HTTP door needs more than is installed",
            "the HTTP door needs more than is installed",
        ),
        (-9, "MCP is spoken", "the HTTP door ended with SIGKILL; see `carpool logs --daemon`"),
        (EXIT_TAKEN, "\x1b[2Jgone", "?[2Jgone"),
    ],
)
def test_why_a_door_is_not_open_is_told_until_it_listens(
    tmp_path: Path, status: int, words: str, problem: str
) -> None:
    directory = str(tmp_path)
    for retried in (True, False):
        write_door_problem(directory, status, words, retried=retried)
        assert read_door_status(directory) == HttpDoorStatus("", problem, retried)
    assert read_door_url(directory) == ""
    assert read_door_tokens(directory) == {}, "no door admits anybody"
    write_url(
        directory, DoorFile("http://x/mcp", os.getpid(), "key", {"ann": "sha256:0"}, "/state/http-token")
    )
    assert read_door_status(directory) == HttpDoorStatus("http://x/mcp", "", False, "/state/http-token")
    assert read_door_tokens(directory) == {"ann": "sha256:0"}
    remove_door_file(directory)
    assert read_door_status(directory) is None


def test_a_file_that_wants_no_door_any_more_is_told_once(tmp_path: Path) -> None:
    file = tmp_path / "carpool.json"
    write(file, '{"http": {}}', 1)
    watch = HttpDoorWatch("", str(file), {})
    assert (watch.is_start_due(), watch.is_no_longer_wanted()) == (True, False)
    write(file, "{}", 2)
    assert (watch.is_start_due(), watch.is_no_longer_wanted(), watch.is_no_longer_wanted()) == (
        False,
        True,
        False,
    )


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("8808", ("127.0.0.1", 8808)),
        (":0", ("127.0.0.1", 0)),
        ("[::1]:1", ("::1", 1)),
        ("here.example:65535", ("here.example", 65535)),
    ],
)
def test_an_address_is_read_as_people_write_it(text: str, address: tuple[str, int]) -> None:
    assert split_address(text) == address


@behaviour("http:not-open")
@pytest.mark.parametrize(
    "text",
    ["nonsense", "", "host:", "host:x", "host:65536", "host:-1", "a b:1", "http://h:1", "h:\u0663", "h:1\n"],
)
def test_an_address_that_is_none_ends_up_with_code_2_before_anything_starts(
    house: PrivateDaemon, text: str
) -> None:
    with pytest.raises(ValueError, match="want HOST:PORT"):
        split_address(text)
    if text:
        for options in ((), ("--detach",)):
            done = house.run("up", *options, "--http", text)
            assert (done.returncode, "want HOST:PORT" in done.stderr) == (2, True)
    assert not house.launcher


@behaviour("http:not-open")
@pytest.mark.parametrize("reason", ["ok", "servers_failing", "config_broken", "supervisor_away"])
def test_a_door_that_is_not_open_is_not_well(reason: str) -> None:
    healthy = reason != "supervisor_away"
    closed = with_verdict(
        with_door({"healthy": healthy, "reason": reason}, HttpDoorStatus("", "the port is taken", True))
    )
    told = {"url": "", "problem": "the port is taken", "retried": True, "token_file": ""}
    assert closed["door"] == told
    assert (closed["healthy"], closed["reason"]) == (False, "door_closed" if healthy else reason)
    for door in (None, HttpDoorStatus("http://x", "", False)):
        told = with_verdict(with_door({"healthy": healthy, "reason": reason}, door))
        assert (told["healthy"], told["reason"]) == (healthy, reason)


def test_people_are_told_of_a_closed_door_beside_what_else_is_wrong() -> None:
    door = HttpDoorStatus("", "the port is taken", False)
    well = status_page(with_door({"healthy": True, "reason": "ok"}, door))
    assert "all is well" not in well
    assert (
        "the HTTP door is not open: the port is taken (it is tried again when the file has changed)" in well
    )
    broken = status_page(
        with_door({"healthy": True, "reason": "config_broken", "config": {"problem": "a.json:3"}}, door)
    )
    assert "a.json:3" in broken
    assert "the port is taken" in broken
