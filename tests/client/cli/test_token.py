"""`carpool token`: tokens in the user's own file, whose comments stay."""

import json
from pathlib import Path
from typing import Any

import pytest

from carpool.http.core.access import hash_of
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
    assert ann == {"name": "ann", "profile": "", "operator": "", "expires": "", "expired": False}
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
    assert (refused.returncode, "every process of yours may use the HTTP door" in refused.stderr) == (1, True)
    assert output(house, "revoke", "ann", "--last")["name"] == "ann"
    assert tokens(file) == {}
    assert "// what our agents use" in file.read_text()


@behaviour("http:tokens:verbs")
def test_the_first_token_says_that_a_door_opens_and_that_all_need_one(house: PrivateDaemon) -> None:
    made = house.base / "new.json"
    said = house.run("token", "add", "ann", "--config", str(made)).stderr
    assert "the HTTP door is wanted from now on" in said
    assert "every request over HTTP needs one" in said
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
