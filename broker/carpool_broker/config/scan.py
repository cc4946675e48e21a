"""What is found on disk where a session wants to be.

Owns the looking: which directory it is, which project's file counts there, what that says, and what of it was
trusted. All of this waits for file systems, and a large file takes a while, so it is done in threads
(`watcher`), of which several may be in here at once: nothing is kept.

Knows nothing of: sessions, threads, what an earlier look has found, what is in force.
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
    """Where it is broken: what an earlier broker has kept of it, if that is good."""
    trusted: str | None = None
    """The digest of what is trusted of it; None: nothing is."""
    listed: frozenset[str] = frozenset()
    """Servers that were named as taking the place of the user's when trust was asked for."""
    variables: frozenset[str] = frozenset()
    """Those that any of its servers uses."""
    store: Stamp = None
    """The file of trust as it was then."""
    wrong: str = ""
    """What is wrong with that file, a sentence."""

    def comes_back(self) -> ConfigLayer | None:
        """What was kept, where its very bytes are trusted still."""
        is_trusted = self.kept is not None and trust_state(self.trusted, self.kept.digest) == "trusted"
        return self.kept if is_trusted else None


class WorkspaceScan(Struct, frozen=True):
    """What one look has found."""

    wish: WorkspaceRequest
    number: int = 0
    """Of two looks at the same, that with the higher number began later."""
    spot: Location = Location()
    workspace: FoundWorkspace = FoundWorkspace("")
    project: ProjectReading | None = None
    """What its file says; None: there is none, or it was known."""
    directory: str = ""
    """That which `wish.workspace` names, in the spelling that sessions share; empty: there is none."""

    @property
    def objection(self) -> str:
        """Why nobody can be sent there, as a sentence; empty: they can."""
        if self.directory or self.spot.lost or not self.wish.workspace.startswith("/"):
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
    """Look there. `config`: the user's; `store`: the file of trust, empty: nothing is trusted; `known`: files
    of projects that need not be read; `kept`: the texts of such a file that an earlier broker has kept.
    """
    named = workspace_request.workspace
    directory = os.path.realpath(named) if named.startswith("/") and os.path.isdir(named) else ""
    spot = locate(config, home, workspace_request)
    workspace = find_workspace(spot.base, home, spot.root, config.files) if spot.base else FoundWorkspace("")
    needed = workspace.file and workspace.file not in known
    project = read_project(workspace, home, store, kept) if needed else None
    return WorkspaceScan(workspace_request, number, spot, workspace, project, directory)


def read_project(
    workspace: FoundWorkspace, home: str, store: str, kept: Callable[[str], LayerTexts | None]
) -> ProjectReading:
    """What its file says now."""
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
