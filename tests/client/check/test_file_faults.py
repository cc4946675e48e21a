"""What is wrong with the files that would give servers to a session in a directory."""

import json
import os
from pathlib import Path

import pytest
from msgspec import Raw

from carpool.check.file_faults import broken_file, faults_behind, file_faults
from carpool.control.control_client import AnsweredError
from carpool_protocol.config.reading.load import ConfigFile, load_layer
from carpool_protocol.config.reading.project import find_workspace
from carpool_protocol.config.reading.trust import grant_trust
from tests.behaviours import behaviour

OFF = {"mcpServers": {"q": {"command": "x", "disabled": True}}}


class Files:
    """A home with the user's file and one project."""

    def __init__(self, base: Path) -> None:
        self.own, self.home, self.project = base / "own.json", base / "home", base / "home" / "pj"
        self.project.mkdir(parents=True)
        self.file = self.project / ".mcp.json"
        self.store = str(base / "trust.json")
        self.environ = {"CARPOOL_CONFIG": str(self.own), "HOME": str(self.home)}
        self.own.write_text("{}")

    def faults(self, workspace: str = "") -> list[str]:
        """The faults for a session in the project, or of a workspace and elsewhere."""
        return file_faults(self.environ, self.store, str(self.home if workspace else self.project), workspace)

    def trust(self) -> None:
        """Trust the project's file as it is."""
        found = find_workspace(str(self.project), str(self.home))
        layer = load_layer(ConfigFile(found.file, asked_for=True), str(self.home), project=True)
        grant_trust(self.store, found, layer.digest)


@pytest.fixture
def files(tmp_path: Path) -> Files:
    """The user's file is empty, and there is no project file."""
    return Files(tmp_path)


def test_files_without_servers_have_no_fault(files: Files) -> None:
    assert files.faults() == []
    os.unlink(files.own)
    assert (files.faults(), broken_file(files.environ)) == ([], "")


@behaviour("config:broken-is-named")
def test_a_broken_file_is_named_with_its_line_also_one_of_a_trusted_project(files: Files) -> None:
    files.own.write_text("{\n,}")
    (own,) = files.faults()
    assert own.startswith(f"the configuration cannot be read: {files.own}:2: ")
    assert own == broken_file(files.environ)
    files.file.write_text(json.dumps(OFF))
    files.trust()
    files.file.write_text("{\n,}")
    _, project = files.faults()
    assert project.startswith(f"the project's file cannot be read: {files.file}:2: ")


@behaviour("config:broken-is-named")
def test_a_project_that_waits_for_trust_is_named_also_where_its_servers_are_disabled(
    files: Files,
) -> None:
    files.file.write_text(json.dumps(OFF))
    waits = f"q (disabled there) waits for `carpool trust {files.project}`"
    assert files.faults() == [f"{files.file} is not trusted: {waits}"]
    assert files.faults(str(files.project)) == files.faults(), "the workspace that a verb names counts"
    files.trust()
    assert files.faults() == [f"disabled in {files.file}: q (`carpool enable NAME`)"]
    files.file.write_text(json.dumps(OFF) + "\n")
    assert files.faults() == [f"{files.file} has changed since it was trusted: {waits}"]


def test_a_disabled_server_is_no_fault_beside_one_that_is_enabled(files: Files) -> None:
    files.own.write_text(json.dumps({"mcpServers": {"a": {"command": "x"}}}))
    files.file.write_text(json.dumps(OFF))
    files.trust()
    assert files.faults() == []


def test_a_named_workspace_counts_with_the_project_in_it(files: Files) -> None:
    named = {"shop": {"root": str(files.project), "mcpServers": {}}}
    files.own.write_text(json.dumps({"workspaces": named}))
    files.file.write_text("{")
    assert files.faults("shop")[0].startswith("the project's file cannot be read")


@pytest.mark.parametrize("code", ["busy", "unknown_tool", "unknown_prompt", "unknown_resource"])
def test_files_are_looked_at_only_for_what_was_not_found(
    files: Files, monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    for name, value in files.environ.items():
        monkeypatch.setenv(name, value)
    files.own.write_text("{")
    error = AnsweredError(Raw(json.dumps({"code": 1, "message": "m", "data": {"code": code}}).encode()), "m")
    assert ("cannot be read" in faults_behind(error)) == (code != "busy")
