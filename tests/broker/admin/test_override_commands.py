"""`carpool/switch`: what follows for sessions, what the operator is told, what outlives the broker."""

import json
from pathlib import Path
from typing import Any

import pytest

from carpool_broker.admin.override_commands import CannotOverrideError, OverrideCommands, OverrideParams
from carpool_broker.config.configuration import DEFAULT_SOURCE, ConfigurationChange
from carpool_broker.config.locations import Location, WorkspaceRequest
from carpool_broker.core.model.events import (
    PausedServersChanged,
    SessionSourceChanged,
    SourceDropped,
    SourceId,
    SourceRead,
)
from carpool_broker.storage.override_store import OverrideStore
from carpool_protocol.bootstrap.carrier_contract import ATTACH_VERSION
from carpool_protocol.carrier.attach_line import Attach, RunCommand
from carpool_protocol.config.reading.load import ConfigFile
from carpool_protocol.config.reading.project import find_workspace
from carpool_protocol.config.reading.trust import grant_trust
from carpool_protocol.ids import ServerName, SessionId
from tests.behaviours import behaviour
from tests.kit.synchronous_configuration import SynchronousConfiguration

ONE, TWO = SessionId("s1"), SessionId("s2")
A, OFF = {"command": "x"}, {"command": "y", "disabled": True}


class OverrideRig:
    """A configuration with an operator, over a runtime directory."""

    def __init__(
        self, place: Path, file: str = "carpool.json", *, carpool: str = "c", **servers: dict[str, Any]
    ) -> None:
        self.file = place / file
        self.kept = place / "switches.json"
        self.store = str(place / "trust.json")
        if servers:
            self.write(**servers)
        self.followed: list[ConfigurationChange | PausedServersChanged] = []
        self.configuration = SynchronousConfiguration(
            ConfigFile(str(self.file), asked_for=True),
            {"HOME": "/h"},
            self.store,
            board=OverrideStore(str(self.kept), carpool),
        )
        self.switching = OverrideCommands(self.configuration, self.followed.extend)

    def write(self, **servers: dict[str, Any]) -> None:
        self.file.write_text(json.dumps({"mcpServers": servers}), encoding="utf-8")

    def reload(self) -> list[str]:
        self.followed += self.configuration.read_again()
        return self.configuration.problem.splitlines()

    def come(self, session: SessionId, cwd: str = "", **more: Any) -> SourceId:
        attach = Attach(version=ATTACH_VERSION, carrier="shim", cwd=cwd, **more)
        return self.configuration.session_opened(session, attach, {})[0]

    def turn(self, server: str, session: str = "", *, on: bool | None) -> dict[str, Any]:
        self.followed.clear()
        problems = self.reload() if on is None else []
        return self.switching.switch(OverrideParams(server, on, session), [ONE, TWO], problems)

    def refused(self, server: str, session: str = "", *, on: bool | None = False) -> str:
        with pytest.raises(CannotOverrideError) as caught:
            self.turn(server, session, on=on)
        assert self.followed == []
        return str(caught.value)

    def listed(self, source: SourceId = DEFAULT_SOURCE) -> list[str]:
        return [entry.server for entry in self.configuration.resolve_source(source).scope.servers]


@behaviour("switch:live")
def test_a_server_is_off_for_every_source_and_back_again(tmp_path: Path) -> None:
    house = OverrideRig(tmp_path, a=A, off=OFF)
    house.come(ONE)
    told = house.turn("a", on=False)
    assert told == {
        "server": "a",
        "session": "",
        "enabled": False,
        "until": "carpool stops",
        "disabled_in": [],
        "problems": [],
    }
    (read,) = house.followed
    assert isinstance(read, SourceRead)
    assert (read.specs, sorted(read.disabled)) == ((), ["a", "off"])
    assert "`carpool disable`" in read.disabled[ServerName("a")].why
    assert read.disabled[ServerName("off")].why == f"{house.file} says so."
    told = house.turn("off", on=True)
    assert (told["enabled"], told["until"], told["disabled_in"]) == (True, "carpool stops", [str(house.file)])
    told = house.turn("a", on=True)
    assert (told["enabled"], told["until"]) == (True, "")
    assert house.listed() == ["a", "off"]


@behaviour("switch:session")
def test_a_session_with_a_switch_of_its_own_has_a_source_of_its_own(tmp_path: Path) -> None:
    house = OverrideRig(tmp_path, a=A, b=A)
    assert house.come(ONE) == house.come(TWO) == DEFAULT_SOURCE
    told = house.turn("a", ONE, on=False)
    assert (told["enabled"], told["until"], told["session"]) == (False, "the session ends", ONE)
    daemon, read, moved = house.followed
    assert isinstance(daemon, SourceRead)
    assert isinstance(read, SourceRead)
    assert [entry.server for entry in daemon.scope.servers] == ["a", "b"]
    assert [entry.server for entry in read.scope.servers] == ["b"]
    assert {spec.key for spec in read.specs} < {spec.key for spec in daemon.specs}, "the pools of all"
    assert moved == SessionSourceChanged(ONE, read.source)
    assert house.turn("a", ONE, on=True)["until"] == ""
    assert house.followed[-2:] == [SessionSourceChanged(ONE, DEFAULT_SOURCE), SourceDropped(read.source)]
    house.turn("a", ONE, on=False)
    house.configuration.session_closed(ONE)
    assert house.come(ONE) == DEFAULT_SOURCE, "a session's switch ends with it"


def test_a_global_override_reaches_sessions_with_overrides_of_their_own(tmp_path: Path) -> None:
    house = OverrideRig(tmp_path, a=A)
    house.come(ONE)
    house.turn("a", ONE, on=False)
    house.turn("a", on=True)
    assert SessionSourceChanged(ONE, DEFAULT_SOURCE) in house.followed
    assert not house.kept.exists()


def test_an_impossible_override_is_refused_with_its_reason_and_changes_nothing(tmp_path: Path) -> None:
    big = {**OFF, "pool": {"min": 64, "max": 64}}
    house = OverrideRig(
        tmp_path, "mcp_config.json", git={**A, "pool": {"min": 1}}, big=big, none={"disabled": True}
    )
    house.come(ONE)
    house.come(TWO, run=RunCommand(argv=["y"], env={}, cwd="/w"))
    assert "did you mean 'git'?" in house.refused("gti")
    assert "there are: big, git" in house.refused("zzz")
    assert "Sessions: s1, s2" in house.refused("git", "s9")
    assert "belongs to another workspace" in house.refused("git", TWO), (
        "one of `carpool run` has its own server"
    )
    assert "only disables the server" in house.refused("none", on=True)
    assert "max_instances" in house.refused("big", on=True)
    assert not house.kept.exists()


@behaviour("switch:kept")
def test_the_next_broker_knows_all_overrides_and_another_carpool_the_global_ones(tmp_path: Path) -> None:
    house = OverrideRig(tmp_path, a=A, b=A, off=OFF)
    house.come(ONE)
    house.turn("a", on=False)
    house.turn("off", on=True)
    house.turn("b", ONE, on=False)
    heir = OverrideRig(tmp_path)
    assert heir.listed() == ["b", "off"]
    assert heir.listed(heir.come(ONE)) == ["off"]
    assert heir.listed(heir.come(TWO)) == ["b", "off"]
    stranger = OverrideRig(tmp_path, carpool="d")
    assert stranger.listed(stranger.come(ONE)) == ["b", "off"], "its session of this id is another one"


def test_a_server_that_leaves_the_configuration_takes_its_switch_with_it(tmp_path: Path) -> None:
    house = OverrideRig(tmp_path, a=A, b=A)
    house.turn("a", on=False)
    house.write(b=A)
    house.reload()
    house.write(a=A, b=A)
    house.reload()
    assert house.listed() == ["a", "b"]
    assert not house.kept.exists()


def test_a_broken_file_drops_no_switch(tmp_path: Path) -> None:
    house = OverrideRig(tmp_path, a=A)
    house.turn("a", on=False)
    house.file.write_text("{")
    assert house.reload()
    assert house.listed() == []
    house.write(a=A)
    assert house.reload() == []
    assert house.listed() == []


def test_a_server_that_cannot_be_run_for_a_moment_keeps_its_switch(tmp_path: Path) -> None:
    house = OverrideRig(tmp_path, a={**A, "tools_file": "tools.json"})
    (tmp_path / "tools.json").write_text("[]")
    house.reload()
    house.turn("a", on=False)
    for half in ("[", "[]"):  # its tools_file is being written
        (tmp_path / "tools.json").write_text(half)
        house.reload()
    assert house.listed() == []


def test_another_project_that_comes_to_have_the_name_drops_no_switch(tmp_path: Path) -> None:
    house = OverrideRig(tmp_path, a=A)
    work, strange = tmp_path / "work", tmp_path / "strange"
    for each in (work, strange):
        each.mkdir()
        (each / ".mcp.json").write_text(json.dumps({"mcpServers": {"its": A} if each is work else {}}))
    house.come(ONE, str(work))
    house.turn("its", on=False)
    house.configuration.session_closed(ONE)
    house.come(TWO, str(strange))
    (strange / ".mcp.json").write_text(json.dumps({"mcpServers": {"its": A}}))
    house.reload()
    assert house.configuration.overrides.global_overrides == {"its": False}


@pytest.mark.parametrize("only_there", [True, False])
def test_a_project_that_goes_takes_the_switches_of_its_servers_with_it(
    tmp_path: Path, *, only_there: bool
) -> None:
    house = OverrideRig(tmp_path, a=A)
    work, other = tmp_path / "work", tmp_path / "other"
    for each, name in ((work, "its"), (other, "theirs")):
        each.mkdir()
        (each / ".mcp.json").write_text(json.dumps({"mcpServers": {name: A}}))
    house.come(ONE, str(work))
    house.turn("its", on=False)
    house.come(TWO, str(other))
    house.turn("theirs", on=False)
    (work / ".mcp.json").unlink()
    if only_there:
        wish = WorkspaceRequest(cwd=str(work))
        house.configuration.workspaces_scanned(
            [house.configuration.eager.read(wish, house.configuration.config)]
        )
    else:
        house.reload()
    assert house.configuration.overrides.global_overrides == {"theirs": False}
    house.configuration.session_closed(TWO)
    house.reload()
    assert house.configuration.overrides.global_overrides == {"theirs": False}, "its file is there still"


@behaviour("switch:session")
def test_a_sessions_own_override_is_kept_only_while_the_session_may_resume(tmp_path: Path) -> None:
    house = OverrideRig(tmp_path, a=A)
    for session in (ONE, TWO):
        house.come(session)
        house.turn("a", session, on=False)
    heir = OverrideRig(tmp_path)
    heir.come(ONE)
    heir.switching.sessions_known([ONE])
    assert heir.configuration.overrides.session_overrides.keys() == {ONE}
    assert OverrideRig(tmp_path).configuration.overrides.session_overrides.keys() == {ONE}, (
        "as it is kept as well"
    )
    heir.kept.unlink()
    heir.switching.sessions_known([ONE])
    assert not heir.kept.exists(), "nothing was to be written"
    house.switching.sessions_known([])
    assert house.configuration.overrides.session_overrides == {}


@behaviour("switch:saved")
def test_an_override_ends_once_the_file_agrees_with_it(tmp_path: Path) -> None:
    house = OverrideRig(tmp_path, a=A)
    house.come(ONE)
    house.turn("a", on=False)
    house.turn("a", ONE, on=True)
    house.write(a={**A, "disabled": True})
    told = house.turn("a", on=None)
    assert (told["enabled"], told["until"], told["disabled_in"]) == (False, "", [str(house.file)])
    assert house.listed() == []
    assert not house.kept.exists()
    house.write(a=A)
    assert house.turn("a", on=None)["enabled"]


def test_a_switch_stays_while_the_file_that_speaks_for_it_is_not_in_force(tmp_path: Path) -> None:
    house = OverrideRig(tmp_path, a=A)
    house.turn("a", on=False)
    house.file.write_text("{")
    told = house.turn("a", on=None)
    assert (told["enabled"], told["until"], len(told["problems"])) == (False, "carpool stops", 1)
    assert house.listed() == []


def test_a_projects_server_is_switched_with_all_of_its_name(tmp_path: Path) -> None:
    house = OverrideRig(tmp_path, a=A)
    work = tmp_path / "work"
    work.mkdir()
    (work / ".mcp.json").write_text(json.dumps({"mcpServers": {"a": {"command": "z"}, "its": A}}))
    house.come(ONE, str(work))
    project = house.configuration.layers.workspaces.project_at(Location(cwd=str(work)))
    assert project is not None
    grant_trust(house.store, find_workspace(str(work), "/h"), project.digest)
    house.reload()
    assert "belongs to another workspace" in (house.come(TWO) and house.refused("its", TWO))
    house.turn("a", on=False)
    house.turn("its", on=False)
    assert all(not each.scope.servers for each in house.followed if isinstance(each, SourceRead))
    house.configuration.session_closed(ONE)
    house.reload()
    assert house.configuration.overrides.global_overrides == {"a": False, "its": False}, (
        "its sessions may come back"
    )


def test_a_session_of_one_server_comes_and_waits_for_it_to_be_switched_back(tmp_path: Path) -> None:
    house = OverrideRig(tmp_path, a=A, b=A)
    house.turn("a", on=False)
    attach = Attach(version=ATTACH_VERSION, carrier="shim", server="a")
    assert house.configuration.attach_objection(attach) is None
    source = house.come(ONE, server="a")
    assert house.listed(source) == []
    house.turn("a", on=True)
    assert house.listed(source) == ["a"]


def test_a_session_is_asked_for_the_variables_of_servers_that_are_off(tmp_path: Path) -> None:
    house = OverrideRig(tmp_path, a={"command": "x", "env": {"T": "${TOKEN}"}, "disabled": True})
    attach = Attach(version=ATTACH_VERSION, carrier="shim")
    assert house.configuration.wanted_variables(attach) == ["TOKEN"], "it cannot be asked again"
    source, _ = house.configuration.session_opened(ONE, attach, {"TOKEN": "v"})
    assert source == DEFAULT_SOURCE, "and nothing uses them"
    house.turn("a", on=True)
    reads = [each for each in house.followed if isinstance(each, SourceRead) and each.specs]
    assert [spec.env["T"] for each in reads for spec in each.specs] == ["v"]


def test_a_place_that_cannot_be_written_leaves_the_switch_in_force(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    house = OverrideRig(tmp_path, a=A)
    house.kept.mkdir()
    assert house.turn("a", on=False)["enabled"] is False
    assert house.listed() == []
    assert "cannot be saved" in caplog.text
