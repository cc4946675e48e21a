"""`carpool token`: tokens in the user's own file, whose comments stay."""

import json
import os
import socket
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from carpool.cli import token as token_verb
from carpool.http.core.access import hash_of
from carpool.http.server import DoorFile
from carpool_protocol.bootstrap import paths
from carpool_protocol.config.reading.parse import read_config
from carpool_protocol.config.schema.model import HttpToken
from tests.behaviours import behaviour
from tests.kit.private_daemon import PrivateDaemon

PAST, TO_COME = "2020-01-31T00:00:00Z", "2999-01-31T00:00:00Z"
FILE = f"""{{
  // what our agents use
  "http": {{"port": 0, "tokens": {{
    "ann": "{hash_of("a")}", // of the night shift
    "old": {{"hash": "{hash_of("b")}", "expires": "{PAST}"}}
  }}}},
  "profiles": {{"reader": {{"allow": ["*"]}}}}
}}
"""


@pytest.fixture
def file(house: PrivateDaemon) -> Path:
    found = house.base / "carpool.json"
    found.write_text(FILE)
    house.environ["CARPOOL_CONFIG"] = str(found)
    return found


def tokens(file: Path) -> dict[str, HttpToken]:
    config = read_config(file.read_text(), str(file)).config
    assert config is not None
    return config.http.tokens


def output(house: PrivateDaemon, *arguments: str) -> Any:
    done = house.run("token", *arguments, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@behaviour("http:tokens:verbs")
def test_a_fresh_token_is_shown_once_and_its_hash_is_in_the_file_beside_the_comments(
    house: PrivateDaemon, file: Path
) -> None:
    added = output(house, "add", "bob", "--profile", "reader", "--expires", TO_COME)
    found = tokens(file)["bob"]
    assert found.hash == hash_of(added["token"]) == added["hash"]
    assert (found.profile, added["expires"], added["running"]) == ("reader", TO_COME, False)
    assert added["token"] not in file.read_text()
    assert "// of the night shift" in file.read_text()
    assert output(house, "add", "ops", "--operator", "read")["operator"] == "read"
    assert tokens(file)["ops"].operator == "read"


@behaviour("http:tokens:verbs")
def test_tokens_are_listed_with_their_end(house: PrivateDaemon, file: Path) -> None:
    ann, old = output(house, "list")
    assert ann == {
        "name": "ann",
        "profile": "",
        "operator": "",
        "workspaces": [],
        "expires": "",
        "expired": False,
    }
    assert (old["expires"], old["expired"]) == (PAST, True)
    rows = house.run("token", "list").stdout.splitlines()
    assert [row.split()[-1] for row in rows] == ["EXPIRES", "never", PAST]
    assert "expired" in rows[2]
    assert "the token old expired at" in house.run("check").stderr


@behaviour("http:tokens:verbs")
def test_a_token_is_revoked_and_the_last_one_only_if_that_is_said(house: PrivateDaemon, file: Path) -> None:
    assert output(house, "revoke", "old")["name"] == "old"
    assert tokens(file).keys() == {"ann"}
    refused = house.run("token", "revoke", "ann")
    assert (
        refused.returncode,
        "the token that the HTTP door makes by itself lets agents in" in refused.stderr,
    ) == (1, True)
    assert output(house, "revoke", "ann", "--last")["name"] == "ann"
    assert tokens(file) == {}
    assert "// what our agents use" in file.read_text()


@behaviour("http:tokens:verbs")
def test_the_first_token_says_that_a_door_opens_and_that_all_need_one(house: PrivateDaemon) -> None:
    made = house.base / "new.json"
    said = house.run("token", "add", "ann", "--config", str(made)).stderr
    assert "the HTTP door is wanted from now on" in said
    assert "the one that the HTTP door has made lets nobody in" in said
    assert tokens(made).keys() == {"ann"}


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("add",), 2, "`token add` needs the NAME of a token"),
        (("list", "ann"), 2, "`token list` takes no name"),
        (("revoke", "ann", "--expires", "1d"), 2, "go with `token add`"),
        (("add", "x", "--expires", PAST), 2, "--expires takes a time to come"),
        (("add", "x", "--expires", "soon"), 2, "--expires takes a time to come"),
        (("add", "x", "--profile", "reader", "--operator", "full"), 2, "--profile is for agents"),
        (("add", "x", "--profile", "nope"), 1, "there is no profile nope"),
        (("add", "ann"), 1, "there is a token ann already"),
        (("add", "x" * 65), 2, "1 to 64 printable characters"),
        (("revoke", "nope"), 1, "there is no token nope"),
    ],
)
def test_what_cannot_be_done_is_refused_and_the_file_stays(
    house: PrivateDaemon, file: Path, arguments: tuple[str, ...], code: int, said: str
) -> None:
    done = house.run("token", *arguments)
    assert (done.returncode, said in done.stderr) == (code, True), done.stderr
    assert file.read_text() == FILE


@behaviour("http:tokens:at-once")
def test_a_token_is_revoked_in_a_file_that_is_broken_elsewhere(house: PrivateDaemon, file: Path) -> None:
    broken = FILE.replace('"profiles"', '"no_such_key": 1,\n  "profiles"')
    file.write_text(broken)
    assert house.run("token", "list").returncode == 2
    done = house.run("token", "revoke", "old")
    assert done.returncode == 0, done.stderr
    assert '"old"' not in file.read_text()
    assert "// of the night shift" in file.read_text()
    assert "no_such_key" in file.read_text()
    assert house.run("token", "revoke", "nope").returncode == 1
    file.write_text(broken.replace('"port": 0', '"port": 0,,'))
    refused = house.run("token", "revoke", "old")
    assert (refused.returncode, "carpool.json:3" in refused.stderr) == (2, True), "it cannot be read at all"


@behaviour("http:tokens:at-once")
@pytest.mark.parametrize("tells", [True, False], ids=["it still admits the token", "it tells no tokens"])
def test_revoking_fails_aloud_if_a_running_door_does_not_confirm(
    house: PrivateDaemon, file: Path, monkeypatch: pytest.MonkeyPatch, tells: bool
) -> None:
    for name, value in house.environ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(token_verb, "_CONFIRM_S", 0.2)
    told = DoorFile("http://127.0.0.1:1/mcp", os.getpid(), "key", {"old": hash_of("b")}, "")._asdict()
    if not tells:
        del told["tokens"]
    Path(paths.door_file(str(house.directory))).write_text(json.dumps(told))
    done = CliRunner().invoke(token_verb.token, ["revoke", "old"])
    assert done.exit_code == 1
    assert "has not confirmed it within" in done.stderr
    assert "`carpool restart --all`" in done.stderr
    assert tokens(file).keys() == {"ann"}, "the file has the change"


@behaviour("http:tokens:at-once")
def test_revoking_ends_once_the_door_has_shut_the_token_out(
    house: PrivateDaemon, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in house.environ.items():
        monkeypatch.setenv(name, value)
    answers = iter([{"old": hash_of("b")}, {"old": hash_of("b")}, {"ann": hash_of("a")}])
    monkeypatch.setattr(token_verb, "read_door_tokens", lambda _: next(answers))
    done = CliRunner().invoke(token_verb.token, ["revoke", "old", "--json"])
    assert (done.exit_code, json.loads(done.stdout)["confirmed"]) == (0, True)
    assert not list(answers), "it waited for the door"


@behaviour("http:tokens:at-once")
def test_revoking_connects_to_the_door_which_looks_seldom_while_nobody_does(
    house: PrivateDaemon, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in house.environ.items():
        monkeypatch.setenv(name, value)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(10)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/mcp"

        def tokens_of_the_door(_: str) -> dict[str, str]:
            listener.accept()[0].close()
            return {}

        told = DoorFile(url, os.getpid(), "key", {"old": hash_of("b")}, "")
        Path(paths.door_file(str(house.directory))).write_text(json.dumps(told._asdict()))
        monkeypatch.setattr(token_verb, "read_door_tokens", tokens_of_the_door)
        done = CliRunner().invoke(token_verb.token, ["revoke", "old", "--json"])
    assert (done.exit_code, json.loads(done.stdout)["confirmed"]) == (0, True)


@behaviour("http:tokens:generated")
def test_the_generated_token_is_shown_and_replaced(house: PrivateDaemon, tmp_path: Path) -> None:
    first = house.run("token", "show").stdout.strip()
    assert len(first) == 43
    shown = json.loads(house.run("token", "show", "--json").stdout)
    kept = Path(shown["file"])
    assert (shown["token"], kept.read_text().strip()) == (first, first)
    assert kept.stat().st_mode & 0o777 == 0o600
    assert first not in house.run("token", "list").stdout
    done = house.run("token", "revoke", "generated")
    assert done.returncode == 0, done.stderr
    assert house.run("token", "show").stdout.strip() not in {first, ""}


@behaviour("http:tokens:generated")
def test_the_token_of_the_door_that_runs_is_shown_wherever_it_keeps_it(house: PrivateDaemon) -> None:
    elsewhere = house.base / "elsewhere" / "http-token"
    told = DoorFile("http://127.0.0.1:1/mcp", os.getpid(), "key", {}, str(elsewhere))
    Path(paths.door_file(str(house.directory))).write_text(json.dumps(told._asdict()))
    shown = json.loads(house.run("token", "show", "--json").stdout)
    assert (shown["file"], shown["token"]) == (str(elsewhere), elsewhere.read_text().strip())


@pytest.mark.parametrize(
    ("http", "said"),
    [
        ({"tokens": False}, '"tokens": false'),
        ({"tokens": {"ann": hash_of("a")}}, "their values are kept nowhere"),
    ],
)
def test_where_no_token_is_generated_none_is_shown(house: PrivateDaemon, http: Any, said: str) -> None:
    file = house.base / "carpool.json"
    file.write_text(json.dumps({"http": http}))
    for what in (("show",), ("revoke", "generated")):
        done = house.run("token", *what, "--config", str(file))
        assert done.returncode == 1
    assert said in house.run("token", "show", "--config", str(file)).stderr


@behaviour("http:tokens:verbs")
def test_a_first_token_takes_the_place_of_false(house: PrivateDaemon) -> None:
    file = house.base / "carpool.json"
    file.write_text('{"http": {"tokens": false}}')
    house.environ["CARPOOL_CONFIG"] = str(file)
    done = house.run("token", "add", "ann")
    assert "every request over HTTP needs one" in done.stderr
    assert tokens(file).keys() == {"ann"}


@behaviour("workspaces:tokens")
def test_a_token_is_bound_to_workspaces_that_there_are(house: PrivateDaemon, file: Path) -> None:
    file.write_text(FILE.replace('"profiles"', '"workspaces": {"shop": {}, "lab": {}},\n  "profiles"'))
    added = output(house, "add", "bob", "--workspace", "shop", "--workspace", "lab")
    assert added["workspaces"] == ["shop", "lab"]
    assert tokens(file)["bob"].workspaces == ("shop", "lab")
    assert "shop, lab" in house.run("token", "list").stdout
    refused = house.run("token", "add", "eve", "--workspace", "shp")
    assert (refused.returncode, "there are: lab, shop" in refused.stderr) == (1, True)
    assert house.run("token", "add", "ops", "--workspace", "shop", "--operator", "read").returncode == 2
