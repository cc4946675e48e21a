"""Which session uses which source, when that changes, and what the core is told of it."""

import json
from pathlib import Path
from typing import Any

import pytest

from carpool_broker.config.configuration import DEFAULT_SOURCE
from carpool_broker.config.layers import BrokenConfigError
from carpool_broker.config.locations import SessionContext, WorkspaceRequest
from carpool_broker.config.workspaces import Workspaces
from carpool_broker.core.model.events import (
    SessionSourceChanged,
    SourceDropped,
    SourceId,
    SourceRead,
    SourceUnused,
)
from carpool_protocol.bootstrap.carrier_contract import ATTACH_VERSION
from carpool_protocol.carrier.attach_line import Attach, ResumeSession, RunCommand, WorkspaceChanged
from carpool_protocol.carrier.streams import StreamRefused
from carpool_protocol.config.reading.last_good import LastGoodReadings
from carpool_protocol.config.reading.load import ConfigFile
from carpool_protocol.ids import SessionId
from carpool_protocol.link.messages import Root
from tests.behaviours import behaviour
from tests.kit.synchronous_configuration import SynchronousConfiguration

ONE, TWO = SessionId("s1"), SessionId("s2")


class ConfigurationHome:
    """A configuration file that can be written again."""

    def __init__(self, directory: Path, **servers: dict[str, Any]) -> None:
        self.file = directory / "carpool.json"
        self.write(**servers)
        self.configuration = SynchronousConfiguration(
            ConfigFile(str(self.file), asked_for=True), {"HOME": "/h"}
        )

    def write(self, **servers: dict[str, Any]) -> None:
        self.file.write_text(json.dumps({"mcpServers": servers}), encoding="utf-8")

    def reborn(self, kept: str) -> SynchronousConfiguration:
        """As another broker reads it."""
        return SynchronousConfiguration(
            ConfigFile(str(self.file), asked_for=True), {"HOME": "/h"}, last_good=LastGoodReadings(kept)
        )

    def come(self, session: SessionId, cwd: str = "/w", run: RunCommand | None = None) -> SourceId:
        attach = Attach(
            version=ATTACH_VERSION, carrier="run" if run is not None else "shim", cwd=cwd, run=run
        )
        source, followed = self.configuration.session_opened(session, attach, {})
        assert all(isinstance(event, SourceRead) and event.source == source for event in followed)
        return source

    def roots(self, session: SessionId, *uris: str) -> list[Any]:
        return list(self.configuration.roots_received(session, tuple(map(Root, uris))))


def kinds(events: list[Any]) -> list[str]:
    return [type(event).__name__ for event in events]


def told(event: Any) -> list[str] | None:
    """The roots of the only server of a reading."""
    assert isinstance(event, SourceRead)
    (spec,) = event.specs
    return None if spec.roots is None else [root.uri for root in spec.roots]


def test_sessions_share_a_source_unless_the_configuration_makes_a_difference_between_them(
    tmp_path: Path,
) -> None:
    house = ConfigurationHome(tmp_path, a={"command": "x"})
    assert house.come(ONE, "/one") == house.come(TWO, "/two") == DEFAULT_SOURCE
    house = ConfigurationHome(tmp_path, a={"command": "x", "roots": "workspace"})
    one, two = house.come(ONE, "/one"), house.come(TWO, "/two")
    assert len({one, two, DEFAULT_SOURCE}) == 3
    assert house.come(SessionId("s3"), "/one") == one
    assert house.configuration.session_closed(ONE) == []
    assert house.configuration.session_closed(SessionId("s3")) == [SourceUnused(one)]


@behaviour("pools:outlive-sessions")
def test_a_source_without_a_session_is_read_again_and_watched_until_it_is_forgotten(tmp_path: Path) -> None:
    house = ConfigurationHome(tmp_path, a={"command": "x", "cwd": "${workspace}"})
    source, other = house.come(ONE, "/one"), house.come(TWO, "/two")
    house.configuration.session_closed(ONE)
    assert WorkspaceRequest("", "/one") in house.configuration.workspace_requests()
    house.write(a={"command": "y", "cwd": "${workspace}"})
    events = list(house.configuration.read_again())
    commands = [event.specs[0].argv for event in events if event.source in (source, other)]  # type: ignore[union-attr]
    assert commands == [["y"], ["y"]]
    assert house.come(SessionId("s3"), "/one") == source
    assert house.configuration.forget_source(source, "late") == [], "a session has come to it"
    house.configuration.session_closed(SessionId("s3"))
    assert house.configuration.forget_source(source, "late") == [SourceDropped(source, "late")]
    assert house.configuration.forget_source(source, "late") == []
    assert set(house.configuration.workspace_requests()) == {WorkspaceRequest("", "/two")}


def test_only_a_move_of_its_session_leaves_a_source_and_not_a_change_of_the_file(tmp_path: Path) -> None:
    house = ConfigurationHome(tmp_path, a={"command": "x", "cwd": "${workspace}"})
    before = house.come(ONE, "/one")
    _, moved, left = house.configuration.move_session(ONE, WorkspaceChanged("/two"))
    assert (moved.source, left) == (house.configuration.session_context(ONE).source, SourceUnused(before))  # type: ignore[union-attr]
    house.write(a={"command": "x"})
    assert kinds(list(house.configuration.read_again()))[-1] == "SourceDropped"


def test_the_source_of_a_run_command_goes_with_its_session(tmp_path: Path) -> None:
    house = ConfigurationHome(tmp_path)
    source = house.come(ONE, run=RunCommand(argv=["x"], env={}, cwd="/"))
    assert house.configuration.session_closed(ONE) == [SourceDropped(source)]


@behaviour("roots:of-the-agent")
def test_roots_that_an_agent_names_move_its_session_to_the_source_that_goes_with_them(tmp_path: Path) -> None:
    house = ConfigurationHome(tmp_path, a={"command": "x", "roots": "agent"})
    before = house.come(ONE)
    house.come(TWO)
    read, moved = house.roots(ONE, "file:///r")
    assert (told(read), read.own_roots) == (["file:///r"], {"a"})
    assert moved == SessionSourceChanged(ONE, read.source)
    again, dropped = house.roots(TWO, "file:///r")
    assert again == SessionSourceChanged(TWO, read.source), "equal roots share"
    assert dropped == SourceDropped(before)
    assert house.roots(ONE, "file:///r") == [SessionSourceChanged(ONE, read.source)]


def test_roots_of_a_closed_session_move_no_session(tmp_path: Path) -> None:
    house = ConfigurationHome(tmp_path, a={"command": "x", "roots": "agent"})
    source = house.come(ONE)
    assert house.configuration.session_closed(ONE) == [SourceUnused(source)]
    assert house.roots(ONE, "file:///r") == []


def test_the_workspace_of_a_session_counts_from_the_moment_a_server_wants_it(tmp_path: Path) -> None:
    house = ConfigurationHome(tmp_path, a={"command": "x"})
    house.come(ONE, "/one")
    house.come(TWO, "/two")
    house.write(a={"command": "x", "roots": "workspace"})
    events = list(house.configuration.read_again())
    assert kinds(events) == [
        "SourceRead",
        "SourceRead",
        "SessionSourceChanged",
        "SourceRead",
        "SessionSourceChanged",
    ]
    assert [told(event) for event in (events[1], events[3])] == [["file:///one"], ["file:///two"]]
    house.write(a={"command": "x"})
    events = list(house.configuration.read_again())
    assert kinds(events[3:]) == ["SessionSourceChanged", "SourceDropped"] * 2
    assert {event.source for event in events if isinstance(event, SessionSourceChanged)} == {DEFAULT_SOURCE}


def test_roots_that_do_not_matter_for_a_while_are_remembered(tmp_path: Path) -> None:
    house = ConfigurationHome(
        tmp_path, a={"command": "x", "roots": "agent"}, b={"command": "x", "disabled": True}
    )
    house.come(ONE, "/one")
    house.roots(ONE, "file:///r")
    house.write(a={"command": "x", "roots": "agent", "disabled": True})
    events = list(house.configuration.read_again())
    assert SessionSourceChanged(ONE, DEFAULT_SOURCE) in events
    house.write(a={"command": "x", "roots": "agent"})
    read = next(event for event in house.configuration.read_again() if event.source != DEFAULT_SOURCE)
    assert told(read) == ["file:///r"], "what the agent said is still so"


def test_a_run_is_a_source_of_its_own_whatever_the_file_says_of_roots(tmp_path: Path) -> None:
    house = ConfigurationHome(tmp_path, a={"command": "x", "roots": "agent"})
    run = RunCommand(argv=["y"], env={}, cwd="/w")
    source = house.come(ONE, "/one", run)
    assert source == house.come(TWO, "/two", run) != DEFAULT_SOURCE
    reading = house.configuration.resolve_source(source)
    assert (told(reading), reading.own_roots) == (None, frozenset())
    assert house.roots(ONE, "file:///r") == [SessionSourceChanged(ONE, source)]


def test_a_broken_file_moves_no_session(tmp_path: Path) -> None:
    house = ConfigurationHome(tmp_path, a={"command": "x"})
    house.come(ONE)
    house.file.write_text("{", encoding="utf-8")
    assert kinds(house.configuration.read_again()) == ["SourceRead"]
    assert house.configuration.problem
    assert not house.configuration.changed(), "it is not read again before it changes again"


@behaviour("config:last-good")
def test_a_broker_that_finds_a_broken_file_goes_on_with_what_the_one_before_it_read_last(
    tmp_path: Path,
) -> None:
    house = ConfigurationHome(tmp_path, a={"command": "x"})
    kept = str(tmp_path / "last-good.json")
    before = house.reborn(kept)
    house.file.write_text('{"mcpServers": {"a": {"comand": "x"}}}', encoding="utf-8")
    after = house.reborn(kept)
    assert "comand" in after.problem
    assert after.config.servers == before.config.servers
    assert not after.changed(), "it is not read again before it changes again"
    house.write(b={"command": "y"})
    assert after.changed()
    after.read_again()
    assert (after.problem, list(after.config.servers)) == ("", ["b"])
    house.file.write_text("{", encoding="utf-8")
    assert list(house.reborn(kept).config.servers) == ["b"]


@behaviour("config:broken-is-named")
def test_agents_are_told_of_a_broken_file_and_those_with_a_profile_not_where_it_is(tmp_path: Path) -> None:
    house = ConfigurationHome(tmp_path, a={"command": "x"})
    house.file.write_text(
        json.dumps({"mcpServers": {"a": {"command": "x"}}, "profiles": {"p": {"allow": ["tag:t"]}}})
    )
    house.configuration.read_again()
    attach = Attach(version=ATTACH_VERSION, carrier="shim", profile="p")
    limited, _ = house.configuration.session_opened(ONE, attach, {})
    run = house.come(TWO, "/two", RunCommand(argv=["y"], env={}, cwd="/w"))

    def told(source: SourceId) -> str:
        return house.configuration.resolve_source(source).user_broken

    assert told(DEFAULT_SOURCE) == ""
    house.file.write_text("{\n,", encoding="utf-8")
    house.configuration.read_again()
    why = "so servers that it names may be missing. The user can run `carpool check`."
    assert told(DEFAULT_SOURCE) == f"The user's configuration cannot be read ({house.file}:2), {why}"
    assert told(limited) == f"The user's configuration cannot be read, {why}"
    assert told(run) == "", "its one server is in no file"


def test_a_broken_file_without_a_last_good_reading_is_refused(tmp_path: Path) -> None:
    house = ConfigurationHome(tmp_path)
    house.file.write_text("{", encoding="utf-8")
    with pytest.raises(BrokenConfigError, match=r"carpool\.json:1"):
        house.reborn(str(tmp_path / "last-good.json"))


@behaviour("streams:one-server")
def test_a_session_of_one_server_sees_that_under_its_own_names_from_the_pool_of_all(tmp_path: Path) -> None:
    house = ConfigurationHome(
        tmp_path, a={"command": "x"}, b={"command": "y"}, off={"command": "z", "disabled": True}
    )
    configuration = house.configuration
    everything = configuration.resolve_source(DEFAULT_SOURCE)

    def come(session: SessionId) -> tuple[SourceId, list[Any]]:
        attach = Attach(version=ATTACH_VERSION, carrier="shim", server="b")
        source, followed = configuration.session_opened(session, attach, {})
        return source, list(followed)

    source, (read,) = come(ONE)
    assert come(TWO) == (source, []), "equal ones share"
    assert source != DEFAULT_SOURCE
    (entry,) = read.scope.servers
    assert (entry.server, entry.prefix) == ("b", "")
    assert [spec.key for spec in read.specs] == [spec.key for spec in everything.specs if spec.server == "b"]
    assert set(read.twins) == {entry.key}
    house.write(a={"command": "x"})
    assert configuration.read_again() is not None
    assert configuration.resolve_source(source).scope.servers == (), "and nothing when that is gone"


def test_an_impossible_confinement_of_a_session_is_refused_with_its_reason(tmp_path: Path) -> None:
    house = ConfigurationHome(tmp_path, a={"command": "x"}, off={"command": "z", "disabled": True})

    def why(**said: str) -> str:
        attach = Attach(version=ATTACH_VERSION, carrier="shim", **said)  # type: ignore[arg-type]
        objection = house.configuration.attach_objection(attach)
        return objection.why if objection is not None else ""

    assert (why(), why(server="a")) == ("", "")
    assert (why(server="b"), why(server="off")) == ("unknown_server", "unknown_server")
    assert why(profile="reader") == "unknown_profile"


@behaviour("profiles:servers")
def test_a_server_that_a_profile_keeps_back_is_refused_as_one_that_there_is_not(tmp_path: Path) -> None:
    house = ConfigurationHome(tmp_path)
    servers = {
        "a": {"command": "x"},
        "b": {"command": "y", "tags": ["t"]},
        "off": {"command": "z", "disabled": True},
    }
    profiles = {"reader": {"allow": ["tag:t"]}}
    house.file.write_text(json.dumps({"mcpServers": servers, "profiles": profiles}), encoding="utf-8")
    house.configuration.read_again()

    def refused(server: str, resume: ResumeSession | None = None) -> StreamRefused | None:
        attach = Attach(
            version=ATTACH_VERSION, carrier="shim", server=server, profile="reader", resume=resume
        )
        return house.configuration.attach_objection(attach)

    assert refused("b") is None
    assert refused("a") == refused("none") == refused("off") != None  # noqa: E711 - one chain
    returning = ResumeSession(session="s1", secret="0.x", supervisor="e", kept=0, open=0)
    assert refused("a", returning) is None, "the profile may have changed under a session that is there"


def test_a_file_that_is_a_projects_as_well_is_read_again_whoever_has_looked_at_it(tmp_path: Path) -> None:
    file = tmp_path / ".mcp.json"
    file.write_text('{"mcpServers": {}}', encoding="utf-8")
    configuration = SynchronousConfiguration(ConfigFile(str(file), asked_for=True), {"HOME": "/h"})
    file.write_text('{"mcpServers": {"a": {"command": "x"}}}', encoding="utf-8")
    configuration.session_opened(ONE, Attach(version=ATTACH_VERSION, carrier="shim", cwd=str(tmp_path)), {})
    assert configuration.changed()


@behaviour("config:included")
def test_a_file_that_is_included_comes_changes_and_goes(tmp_path: Path) -> None:
    house = ConfigurationHome(tmp_path)
    house.file.write_text('{"include": ["servers.d/*.json"]}', encoding="utf-8")
    assert house.configuration.changed()
    house.configuration.read_again()
    part = tmp_path / "servers.d" / "one.json"
    part.parent.mkdir()
    assert house.configuration.changed()

    def listed() -> list[str]:
        (read, *_) = house.configuration.read_again()
        assert isinstance(read, SourceRead)
        assert not house.configuration.changed()
        return [spec.argv[0] for spec in read.specs]

    assert listed() == []
    for command in ("x", "y"):
        part.write_text(json.dumps({"mcpServers": {"a": {"command": command * 3}}}), encoding="utf-8")
        assert house.configuration.changed()
        assert listed() == [command * 3]
        part.unlink()
        assert house.configuration.changed()
        assert listed() == []


def test_a_number_that_a_variable_decides_is_resolved_for_each_session(tmp_path: Path) -> None:
    house = ConfigurationHome(
        tmp_path, a={"command": "x", "disabled": "${OFF:-false}", "timeout_s": "${LIMIT}"}
    )
    attach = Attach(version=ATTACH_VERSION, carrier="shim")
    assert house.configuration.wanted_variables(attach) == ["LIMIT", "OFF"]
    readings = []
    for session, values in ((ONE, {"LIMIT": "7"}), (TWO, {"LIMIT": "7", "OFF": "true"})):
        _, (read,) = house.configuration.session_opened(session, attach, values)
        assert isinstance(read, SourceRead)
        readings.append([(spec.policy.timeout_s, read.misconfigured) for spec in read.specs])
    assert readings == [[(7.0, {})], []]
    _, (read,) = house.configuration.session_opened(SessionId("s3"), attach, {"LIMIT": "soon"})
    assert isinstance(read, SourceRead)
    (why,) = read.misconfigured.values()
    assert "carpool.json:1: mcpServers.a.timeout_s: once its variables are filled in: must be a number" in why
    assert "soon" not in why


def test_the_end_of_a_session_costs_the_same_however_many_others_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    house = ConfigurationHome(tmp_path, a={"command": "x"})
    sessions = [SessionId(f"s{number}") for number in range(100)]
    for session in sessions:
        house.come(session)
    read: list[SessionContext] = []
    request_of = vars(SessionContext)["workspace_request"].fget

    def counted(context: SessionContext) -> WorkspaceRequest:
        read.append(context)
        request: WorkspaceRequest = request_of(context)
        return request

    monkeypatch.setattr(SessionContext, "workspace_request", property(counted))
    house.configuration.session_closed(sessions[0])
    assert len(set(read)) <= 1, "the contexts of other sessions are not read"


def test_the_end_of_a_session_in_a_directory_of_its_own_leaves_the_scans_of_all_others_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    house = ConfigurationHome(tmp_path, a={"command": "x"})
    sessions = [SessionId(f"s{number}") for number in range(100)]
    for session in sessions:
        house.come(session, f"/{session}")
    workspaces = house.configuration.layers.workspaces
    assert len(workspaces.scans) == 100
    monkeypatch.delattr(Workspaces, "retain")
    monkeypatch.delattr(Workspaces, "_prune")
    for session in sessions:
        house.configuration.session_closed(session)
    assert not workspaces.scans


def test_the_workspaces_that_sessions_ask_for_follow_every_session(tmp_path: Path) -> None:
    house = ConfigurationHome(tmp_path, a={"command": "x"})
    configuration = house.configuration
    house.come(ONE, "/one")
    house.come(TWO, "/one")
    house.come(SessionId("s3"), run=RunCommand(argv=["x"], env={}, cwd="/"))
    assert set(configuration.workspace_requests()) == {WorkspaceRequest("", "/one")}
    configuration.move_session(ONE, WorkspaceChanged("/two"))
    assert set(configuration.workspace_requests()) == {
        WorkspaceRequest("", "/one"),
        WorkspaceRequest("/two", "/one"),
    }
    configuration.session_closed(TWO)
    configuration.session_closed(SessionId("s3"))
    assert set(configuration.workspace_requests()) == {WorkspaceRequest("/two", "/one")}
    assert configuration.layers.workspaces.scans.keys() == {WorkspaceRequest("/two", "/one")}
    configuration.session_closed(ONE)
    assert set(configuration.workspace_requests()) == set()
