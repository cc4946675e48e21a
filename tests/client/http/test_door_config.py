"""Tokens that a door admits after each change of its file, also of one that is broken or not servable."""

import asyncio
import errno
import json
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from carpool.http import process
from carpool.http.core.access import hash_of
from carpool.http.door_config import UnservableError, read_first, save_tokens
from carpool.http.generated_token import keep_generated_token, read_generated_token
from carpool.http.process import EarlierDoor, LauncherLine
from carpool.launcher.http_door import EXIT_CONFIG, read_door_tokens
from carpool_protocol.bootstrap import paths
from carpool_protocol.config.reading.door_tokens import AdmittedTokens, read_admitted_tokens
from carpool_protocol.config.reading.last_good import LastGoodReadings
from carpool_protocol.config.reading.load import ConfigFile, load_layer
from carpool_protocol.config.schema.model import HttpToken
from carpool_protocol.config.text.file_stamps import stamp
from carpool_protocol.files import state_file
from tests.behaviours import behaviour

WAIT_S = 30.0
ANN, BOB, EVE = ({name: hash_of(name)} for name in ("ann", "bob", "eve"))
NETWORK = {"host": "0.0.0.0", "port": 0}
BROKEN = {"no_such_key": 1}
UNREADABLE = "{"


class DoorUnderTest:
    """A door that reads a file of the test's own as often as the test says."""

    def __init__(self, directory: Path, text: Any) -> None:
        self.file = directory / "carpool.json"
        self.directory = str(directory)
        self.write(text)
        config = ConfigFile(str(self.file), asked_for=True)
        found = read_first(config, "", self.directory)
        assert found is not None
        self.listener = socket.create_server(("127.0.0.1", 0))
        served = process.DoorConfig(config, "", found[0], stamp(config.path), found[1])
        begin = EarlierDoor(self.listener, goes_on=False, connections=[])
        self.door = process._HttpDoor(self.directory, served, LauncherLine(-1), begin)
        self.door._listening()

    def write(self, text: Any) -> None:
        self.file.write_text(text if isinstance(text, str) else json.dumps(text))

    def look(self, text: Any = None) -> None:
        """Let the door read the file once, with this text in it."""
        if text is not None:
            self.write(text)
        asyncio.run(self.door._look_at_config())

    def admits(self, token: str = "") -> bool:
        headers = {"host": "localhost"}
        if token:
            headers["authorization"] = f"Bearer {token}"
        return isinstance(self.door._core.body_bound("/mcp", headers, 1), int)

    def admitted(self, *tokens: str) -> list[str]:
        """Those of these tokens that come in; the empty one stands for none."""
        return [each for each in tokens if self.admits(each)]

    @property
    def exit_code(self) -> int:
        return self.door._exit


Start = Callable[[Any], DoorUnderTest]


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv(paths.STATE_VARIABLE, str(tmp_path / "state"))
    made: list[DoorUnderTest] = []

    def begin(text: Any) -> DoorUnderTest:
        made.append(DoorUnderTest(tmp_path, text))
        return made[-1]

    yield begin
    for each in made:
        each.listener.close()


@behaviour("http:tokens:at-once")
def test_the_last_token_of_a_network_door_is_worth_nothing_once_it_is_taken_out(start: Start) -> None:
    door = start({"http": {**NETWORK, "tokens": ANN}})
    assert door.admitted("ann", "") == ["ann"]
    door.look({"http": {**NETWORK, "tokens": {}}})
    assert door.admitted("ann", "") == []


@behaviour("http:tokens:at-once", "http:tokens:elsewhere")
def test_a_network_door_that_may_need_no_token_any_more_admits_nobody_and_ends(start: Start) -> None:
    door = start({"http": {**NETWORK, "tokens": ANN}})
    door.look({"http": {**NETWORK, "tokens": False}})
    assert door.admitted("ann", "") == []
    assert door.exit_code == EXIT_CONFIG, "the launcher tells `status` why"


@behaviour("http:tokens:at-once")
@pytest.mark.parametrize("rest", [BROKEN, {"mcpServers": {"s": {"comand": "x"}}}, {"cluster": {"url": 5}}])
def test_a_token_that_a_broken_file_does_not_have_any_more_is_shut_out(start: Start, rest: Any) -> None:
    door = start({"http": {"port": 0, "tokens": {**ANN, **BOB}}})
    door.look({"http": {"port": 0, "tokens": BOB}, **rest})
    assert door.admitted("ann", "bob", "") == ["bob"]


@behaviour("http:tokens:at-once")
def test_a_name_that_is_written_twice_elsewhere_keeps_no_token_in_force(start: Start) -> None:
    door = start({"http": {"port": 0, "tokens": {**ANN, **BOB}}})
    http = json.dumps({"port": 0, "tokens": {**BOB, **EVE}})
    door.look(f'{{"http": {http}, "mcpServers": {{"s": {{"command": "x"}}, "s": {{"command": "y"}}}}}}')
    assert door.admitted("ann", "bob", "eve", "") == ["bob"]


@behaviour("http:tokens:at-once")
@pytest.mark.parametrize(
    "hidden", ['"tokens": {}, "tokens": {}', '"tokens": {"ann": "\\ud800"}', '"tokens": {"ann": 1, "ann": 2}']
)
def test_where_it_cannot_be_told_which_tokens_a_file_has_those_in_force_stay(
    start: Start, hidden: str
) -> None:
    door = start({"http": {"port": 0, "tokens": {**ANN, **BOB}}})
    for text in (f'{{"http": {{"port": 0, {hidden}}}}}', '{"http": {"port": 0}, "http": {"port": 0}}'):
        door.look(text)
        assert door.admitted("ann", "bob", "") == ["ann", "bob"]


@behaviour("http:tokens:at-once")
def test_a_broken_file_admits_nobody_new(start: Start) -> None:
    door = start({"http": {"port": 0, "tokens": ANN}})
    for broken in (
        {"http": {"port": 0, "tokens": {**ANN, **EVE}}, **BROKEN},
        {"http": {"port": 0, "tokens": {"ann": hash_of("ann"), "eve": 5}}},
        {"http": {"port": 0, "tokens": 5}},
        {"http": 5},
        UNREADABLE,
    ):
        door.look(broken)
        assert door.admitted("ann", "eve", "") == ["ann"], broken
    for emptied in ({"http": {"port": 0, "tokens": False}, **BROKEN}, {"http": {"port": 0}, **BROKEN}):
        door.look(emptied)
        assert door.admitted("ann", "eve", "") == [], "ann is not in it, and nobody came in without a token"
    door.look({"http": {"port": 0, "tokens": {**ANN, **EVE}}})
    assert door.admitted("ann", "eve", "") == ["ann", "eve"]


@behaviour("http:tokens:at-once")
def test_a_file_that_is_gone_or_open_to_all_admits_nobody_new(start: Start) -> None:
    door = start({"http": {"port": 0, "tokens": ANN}})
    door.write({"http": {"port": 0, "tokens": EVE}})
    door.file.chmod(0o666)
    door.look()
    assert door.admitted("ann", "eve") == ["ann"]
    door.file.unlink()
    door.look()
    assert door.admitted("ann", "eve") == ["ann"]


@behaviour("http:tokens:at-once")
def test_a_token_with_another_hash_in_a_broken_file_lets_neither_in(start: Start) -> None:
    door = start({"http": {"port": 0, "tokens": ANN}})
    door.look({"http": {"port": 0, "tokens": {"ann": hash_of("fresh")}}, **BROKEN})
    assert door.admitted("ann", "fresh") == []


@behaviour("http:tokens:at-once")
def test_a_door_that_ends_for_another_one_still_shuts_tokens_out(start: Start) -> None:
    door = start({"http": {"port": 0, "tokens": {**ANN, **BOB}}})
    door.look({"http": {"port": 0, "path": "/other", "tokens": {**BOB, **EVE}}})
    assert door.door._is_leaving
    assert door.admitted("ann", "bob", "eve") == ["bob"]
    door.look({"http": {"port": 0, "path": "/other", "tokens": EVE}})
    assert door.admitted("ann", "bob", "eve") == []


@behaviour("http:tokens:at-once")
def test_changed_rights_of_a_token_hold_at_a_door_that_ends_and_not_those_of_a_broken_file(
    start: Start,
) -> None:
    profiles: dict[str, Any] = {"profiles": {"reader": {"allow": []}}}
    limited = {"http": {"port": 0, "tokens": {"ann": {"hash": hash_of("ann"), "profile": "reader"}}}}
    door = start({"http": {"port": 0, "tokens": ANN}, **profiles})
    door.look({**limited, **profiles, **BROKEN})
    assert door.door._core.gate.profile_of("ann") == "", "as the last good file says"
    door.look({"http": {**limited["http"], "path": "/other"}, **profiles})
    assert door.door._is_leaving
    assert door.door._core.gate.profile_of("ann") == "reader"


@behaviour("http:tokens:at-once")
def test_a_door_whose_file_wants_none_any_more_shuts_its_tokens_out(start: Start) -> None:
    door = start({"http": {"port": 0, "tokens": ANN}})
    door.look("{}")
    assert door.admitted("ann", "") == []


@behaviour("handover:requests")
def test_an_open_door_that_ends_for_another_open_one_serves_on(start: Start, tmp_path: Path) -> None:
    door = start({"http": {"port": 0, "tokens": False}})
    door.look({"http": {"port": 0, "tokens": False, "json_response": True}})
    assert door.door._is_leaving
    assert door.admits()
    assert not kept(tmp_path).exists()


def test_an_open_door_that_is_not_wanted_any_more_answers_what_is_open(start: Start) -> None:
    door = start({"http": {"port": 0, "tokens": False}})
    door.look("{}")
    assert door.admits()


@behaviour("http:tokens:at-once")
def test_a_door_that_starts_on_a_broken_file_admits_only_who_was_admitted_last(
    start: Start, tmp_path: Path
) -> None:
    file = ConfigFile(str(tmp_path / "carpool.json"), asked_for=True)
    tokens = {name: HttpToken(hash_of(name)) for name in ("ann", "bob")}
    for last_seen, broken, those in (
        (None, UNREADABLE, ["ann", "bob"]),
        ({"bob"}, UNREADABLE, ["bob"]),
        (None, json.dumps({"http": {"tokens": {**ANN, **EVE}}, **BROKEN}), ["ann"]),
        ({"bob"}, json.dumps({"http": {"tokens": {**ANN, **EVE}}, **BROKEN}), []),
    ):
        Path(file.path).write_text(json.dumps({"http": {"port": 0, "tokens": {**ANN, **BOB}}}))
        assert LastGoodReadings(paths.last_good_file(str(tmp_path))).save(load_layer(file, "")) == ""
        Path(paths.door_tokens_file(str(tmp_path))).unlink(missing_ok=True)
        if last_seen is not None:
            admitted = AdmittedTokens({name: tokens[name] for name in last_seen})
            save_tokens(file, str(tmp_path), admitted)
        assert start(broken).admitted("ann", "bob", "eve", "") == those


def test_a_door_without_any_good_reading_does_not_open(tmp_path: Path) -> None:
    (tmp_path / "carpool.json").write_text(UNREADABLE)
    with pytest.raises(UnservableError, match="no door is opened"):
        read_first(ConfigFile(str(tmp_path / "carpool.json"), asked_for=True), "", str(tmp_path))


def test_tokens_of_a_missing_file_are_unknown_only_if_it_was_asked_for(tmp_path: Path) -> None:
    path = str(tmp_path / "none.json")
    assert read_admitted_tokens(ConfigFile(path, asked_for=True)) is None
    assert read_admitted_tokens(ConfigFile(path, asked_for=False)) == AdmittedTokens(has_generated=True)


@behaviour("http:tokens:verbs")
def test_the_door_writes_down_which_tokens_are_in_force(start: Start, tmp_path: Path) -> None:
    door = start({"http": {"port": 0, "tokens": {**ANN, **BOB}}})
    assert read_door_tokens(str(tmp_path)) == {**ANN, **BOB}
    door.look({"http": {"port": 0, "tokens": BOB}})
    assert read_door_tokens(str(tmp_path)) == BOB


# --- the token that the door makes ---


def kept(tmp_path: Path) -> Path:
    return Path(paths.generated_token_file(str(tmp_path / "state")))


@behaviour("http:tokens:generated")
@pytest.mark.parametrize("http", [{"port": 0}, {"port": 0, "tokens": {}}, NETWORK])
def test_a_door_without_tokens_in_its_file_makes_one(start: Start, tmp_path: Path, http: Any) -> None:
    door = start({"http": http})
    token = read_generated_token(str(kept(tmp_path)))
    assert len(token) == 43
    assert kept(tmp_path).stat().st_mode & 0o777 == 0o600
    assert door.admitted(token, "other", "") == [token]
    again = start({"http": http})
    assert again.admitted(token, "") == [token], "the next door takes the same one"


@behaviour("http:tokens:generated")
def test_with_tokens_in_the_file_the_generated_one_lets_nobody_in(start: Start, tmp_path: Path) -> None:
    door = start({"http": {"port": 0}})
    token = read_generated_token(str(kept(tmp_path)))
    door.look({"http": {"port": 0, "tokens": ANN}})
    assert door.admitted(token, "ann", "") == ["ann"]
    door.look({"http": {"port": 0}})
    assert door.admitted(token, "ann", "") == [token]


@behaviour("http:tokens:generated")
def test_a_door_with_tokens_false_needs_none_and_makes_none(start: Start, tmp_path: Path) -> None:
    door = start({"http": {"port": 0, "tokens": False}})
    assert door.admits()
    assert not kept(tmp_path).exists()
    door.look({"http": {"port": 0}})
    assert not door.admits()
    door.look({"http": {"port": 0, "tokens": False}})
    assert door.admits()


@behaviour("http:tokens:generated")
def test_the_file_of_the_generated_token_is_the_truth(start: Start, tmp_path: Path) -> None:
    door = start({"http": {"port": 0}})
    path = kept(tmp_path)
    known = [read_generated_token(str(path))]

    def replaced() -> bool:
        door.look()
        known.append(read_generated_token(str(path)))
        told = read_door_tokens(str(tmp_path))
        return door.admitted(*known) == [known[-1]] and told == {"": hash_of(known[-1])}

    path.unlink()
    assert replaced()
    path.write_text("damaged")
    assert replaced()
    path.chmod(0o644)
    assert replaced(), "others could read it"
    assert path.stat().st_mode & 0o777 == 0o600
    target = tmp_path / "target"
    target.write_text("x" * 43)
    path.unlink()
    path.symlink_to(target)
    assert replaced()
    assert len(set(known)) == len(known)


@behaviour("http:tokens:generated")
def test_a_token_that_cannot_be_kept_lets_nobody_in(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "state").write_text("no directory")
    door = start({"http": {"port": 0}})
    door.look()
    assert not door.admits()
    assert capfd.readouterr().err.count("nobody comes in: the token cannot be kept in") == 1


@behaviour("http:tokens:generated")
def test_a_shortage_of_descriptors_replaces_no_token(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    door = start({"http": {"port": 0}})
    token = read_generated_token(str(kept(tmp_path)))

    def fail(*_: object) -> bytes:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with monkeypatch.context() as patch:
        patch.setattr(state_file, "read_state_file", fail)
        door.look()
        assert door.admitted(token, "") == [], "it cannot be told if it was revoked"
    door.look()
    assert door.admitted(token, "") == [token]


def test_two_makers_of_a_token_agree(tmp_path: Path) -> None:
    path = str(tmp_path / "state" / "http-token")
    first = keep_generated_token(path)
    assert keep_generated_token(path) == first
    assert os.stat(os.path.dirname(path)).st_mode & 0o777 == 0o700
