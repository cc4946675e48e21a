"""Scans one workspace on disk: its directory, its project file, and how much of it is trusted.

Owns the scan. It waits for file systems, and a large file takes a while, so it runs in threads (`watcher`).
Several threads may be in here at once: nothing is kept.

Knows nothing of: sessions, threads, earlier scans, the configuration in force.
"""

import os
from collections.abc import Callable

from msgspec import Struct
from msgspec.structs import replace

from carpool_broker.config.locations import Location, WorkspaceRequest, locate
from carpool_protocol.config.reading.load import ConfigFile, ConfigLayer, LayerTexts, load_layer
from carpool_protocol.config.reading.project import FoundWorkspace, find_workspace
from carpool_protocol.config.reading.trust import (
    read_listed,
    read_trust,
    store_problem,
    trust_key,
    trust_state,
)
from carpool_protocol.config.schema.model import Config, variables
from carpool_protocol.config.text.file_stamps import Stamp, stamp


class ProjectReading(Struct, frozen=True):
    """One reading of a project's file."""

    layer: ConfigLayer
    kept: ConfigLayer | None = None
    """If it is broken: a good reading that an earlier broker kept."""
    trusted: str | None = None
    """The trusted digest of the file; None: it is not trusted."""
    listed: frozenset[str] = frozenset()
    """Servers that the trust question named as replacing the user's own."""
    variables: frozenset[str] = frozenset()
    """Variables that any of its servers uses."""
    store: Stamp = None
    """Stamp of the trust file at that time."""
    wrong: str = ""
    """The problem of the trust file, a sentence."""

    def trusted_earlier_layer(self) -> ConfigLayer | None:
        """The kept reading, if exactly its bytes are still trusted."""
        is_trusted = self.kept is not None and trust_state(self.trusted, self.kept.digest) == "trusted"
        return self.kept if is_trusted else None


class WorkspaceScan(Struct, frozen=True):
    """The result of one scan."""

    request: WorkspaceRequest
    number: int = 0
    """Of two scans of one request, the one with the higher number began later."""
    location: Location = Location()
    workspace: FoundWorkspace = FoundWorkspace("")
    project: ProjectReading | None = None
    """The reading of its project file; None: there is none, or it was known already."""
    directory: str = ""
    """The directory that `request.workspace` names, in one spelling for all sessions; empty: it does not
    exist.
    """

    @property
    def objection(self) -> str:
        """Why no session can move there, as a clause; empty: it can."""
        if self.directory or self.location.lost or not self.request.workspace.startswith("/"):
            return ""
        return "there is no such directory"


def scan_workspace(
    workspace_request: WorkspaceRequest,
    config: Config,
    home: str,
    store: str,
    *,
    number: int = 0,
    known: frozenset[str] = frozenset(),
    kept: Callable[[str], LayerTexts | None] = lambda _: None,
) -> WorkspaceScan:
    """Scan the requested workspace. `config`: the user's; `store`: the trust file, empty: nothing is trusted.

    `known`: files of projects that need not be read; `kept`: returns the texts of a project file that an
    earlier broker kept.
    """
    named = workspace_request.workspace
    directory = os.path.realpath(named) if named.startswith("/") and os.path.isdir(named) else ""
    location = locate(config, home, workspace_request)
    workspace = (
        find_workspace(location.base, home, location.root, config.files)
        if location.base
        else FoundWorkspace("")
    )
    needed = workspace.file and workspace.file not in known
    project = read_project(workspace, home, store, kept) if needed else None
    return WorkspaceScan(workspace_request, number, location, workspace, project, directory)


def read_project(
    workspace: FoundWorkspace, home: str, store: str, kept: Callable[[str], LayerTexts | None]
) -> ProjectReading:
    """Read the project file of a workspace."""
    file = ConfigFile(workspace.file, asked_for=True)
    read = ProjectReading(good := load_layer(file, home, project=True))
    if good.loaded.config is None and (texts := kept(workspace.file)) is not None:
        good = load_layer(file, home, project=True, earlier=texts)
        read = replace(read, kept=good if good.loaded.config is not None else None)
    if good.loaded.config is not None:
        read = replace(read, variables=variables(good.loaded.config, disabled=True))
    if not store:
        return read
    return replace(
        read,
        store=stamp(store),
        trusted=read_trust(store).get(trust_key(workspace)),
        listed=read_listed(store, workspace),
        wrong=store_problem(store),
    )
