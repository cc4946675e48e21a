"""The workspaces of the sessions that are here, and what their projects' own files say.

Owns what was found where sessions want to be (`scan`), from the first session there to the last, what is
trusted of it, and what on disk all that comes from. Of two looks the one that began later counts, whichever
comes last. A file that breaks, or can be read no more, leaves its last good reading in force; one that
changes waits for trust again. A trusted reading is kept for the brokers after this one, until another one
that is not trusted takes its place. It comes back only where its very bytes are trusted then.

Knows nothing of: sessions, sources, the user's own file, disks: it is told.
"""

import logging
import os
import re
from collections.abc import Callable, Iterable, Mapping, Set
from functools import partial
from typing import Final

from msgspec import Struct

from carpool_broker.config.locations import Location, WorkspaceRequest
from carpool_broker.config.scan import ProjectReading, WorkspaceScan, scan_workspace
from carpool_protocol.config.reading.last_good import LastGoodReadings
from carpool_protocol.config.reading.load import ConfigLayer
from carpool_protocol.config.reading.project import FoundWorkspace, unread_warnings
from carpool_protocol.config.reading.trust import Trust, trust_state
from carpool_protocol.config.schema.model import Config
from carpool_protocol.config.text.file_stamps import Stamp

MAX_KEPT_PROJECTS: Final = 64
"""Of so many trusted projects the last good reading outlives a broker."""

log = logging.getLogger("carpool.broker")

BROKEN = "its file is broken"
LOST = "its directory could not be read in time"
MAX_SHOWN_PATH_CHARS: Final = 200
"""Characters of a directory that agents are told by name."""
_PLAIN_PATH: Final = re.compile(r"[A-Za-z0-9_./~+@-]+")


class WatchedFiles(Struct, frozen=True):
    """Files on disk that stand and fall together."""

    key: str
    """What they are told apart by."""
    seen: Mapping[str, Stamp]
    """As they were."""
    wishes: tuple[WorkspaceRequest, ...] = ()
    """Where there is to be looked again when one is another; empty: everywhere, they are the user's."""


class Project:
    """One project file and its last good reading."""

    def __init__(self) -> None:
        self.workspace = FoundWorkspace("")
        self.config: Config | None = None
        """None: it never was good."""
        self.number = -1
        """Of the look that it was read with."""
        self.env: dict[str, str] = {}
        self.digest = ""
        self.trust: Trust = "untrusted"
        self.trust_store: Stamp = None
        """The file of trust as it was then."""
        self.listed: frozenset[str] = frozenset()
        """Servers that were named as taking the place of the user's when trust was asked for."""
        self.problems: list[str] = []
        """Why the file as it is now is not in force."""
        self.warnings: list[str] = []
        self.seen: dict[str, Stamp] = {}
        self.variables: frozenset[str] = frozenset()
        """Those that its servers use, also those that may not run yet."""
        self.name = ""
        """Of the named workspace that it is in."""

    def apply(self, scan: WorkspaceScan, read: ProjectReading) -> None:
        """It was read."""
        layer = read.layer
        self.number, self.workspace, self.name = scan.number, scan.workspace, scan.spot.name
        self.seen = layer.seen
        self.trust_store, self.listed = read.store, read.listed
        self.problems = [each.render() for each in layer.loaded.problems]
        if layer.loaded.config is not None:
            self._use_reading(layer, read)
        elif self.config is None and (kept := read.comes_back()) is not None:
            # It never was good here, and this is what it was before.
            self._use_reading(kept, read)
            self.seen = {**kept.seen, **self.seen}
        self.trust = trust_state(read.trusted, self.digest)

    def _use_reading(self, layer: ConfigLayer, read: ProjectReading) -> None:
        self.config, self.env, self.digest = layer.loaded.config, layer.env, layer.digest
        self.variables = read.variables
        self.warnings = [each.render() for each in layer.loaded.warnings]

    def messages(self) -> list[str]:
        """What its author should know."""
        return [*self.problems, *self.notes()]

    def notes(self) -> list[str]:
        """The same without what keeps the file as it is now from being in force."""
        return [*unread_warnings(self.workspace), *self.warnings]

    def holds_servers(self) -> bool:
        """Whether there is anything in it that could be run."""
        return self.config is not None and bool(self.config.servers or self.config.unusable)

    def is_lost(self) -> bool:
        """Whether it is broken and nothing of an earlier reading could be run either."""
        return bool(self.problems) and not self.holds_servers()

    def lost_reason(self) -> str:
        """The same as a clause for agents; empty: it is not."""
        if not self.is_lost():
            return ""
        return BROKEN if self.workspace.file else LOST

    def trust_needed(self) -> str:
        """Why its servers may not run yet; empty: they may. Agents read this: see `_safe_path`."""
        if self.trust == "trusted":
            return ""
        root = self.workspace.root
        path, command = self.workspace.file, f"`carpool trust {root}`"
        if not _safe_path(root):
            path = f"the file {os.path.relpath(path, root)} of this project"
            command = "`carpool trust` in the project's directory"
        what = "has changed since it was trusted" if self.trust == "changed" else "is not trusted yet"
        return f"{path} {what}; look at it with {command}"


def _safe_path(path: str) -> bool:
    """Agents are told this directory, which a stranger may have named: no sentence, nothing for a shell."""
    return len(path) <= MAX_SHOWN_PATH_CHARS and _PLAIN_PATH.fullmatch(path) is not None


class Workspaces:
    """All that sessions are in."""

    def __init__(self, home: str, store: str, last_good: LastGoodReadings) -> None:
        """`trust_store`: the file of trust; empty: nothing is trusted. `last_good`: what is kept."""
        self._home = home
        self._store = store
        self._last_good = last_good
        last_good.find("")  # from now on it is in memory
        self._unkept = ""
        """Why the last one that was to be kept is not."""
        self._store_wrong = ""
        """What was last said of it."""
        self.scans: dict[WorkspaceRequest, WorkspaceScan] = {}
        self._by_location: dict[Location, FoundWorkspace] = {}
        self.projects: dict[str, Project] = {}
        """By the path of the project file; those that could not be looked at, by their directory."""

    def has_scan(self, workspace_request: WorkspaceRequest) -> bool:
        """Whether it is known what is there."""
        return workspace_request == WorkspaceRequest() or workspace_request in self.scans

    def scan_of(self, workspace_request: WorkspaceRequest) -> WorkspaceScan:
        """What was found there; where nobody has looked: nothing."""
        return self.scans.get(workspace_request) or WorkspaceScan(workspace_request)

    def make_scan(
        self, workspace_request: WorkspaceRequest, config: Config, number: int, *, again: bool = False
    ) -> Callable[[], WorkspaceScan]:
        """How to look there; it waits for the disk. `config`: the user's. `again`: whatever is known."""
        known = frozenset[str]() if again else frozenset(self.projects)
        kept = self._last_good.find
        return partial(
            scan_workspace,
            workspace_request,
            config,
            self._home,
            self._store,
            number=number,
            known=known,
            kept=kept,
        )

    def workspace_at(self, location: Location) -> FoundWorkspace:
        """The workspace of a place."""
        return self._by_location.get(location, _NO_WORKSPACE)

    def project_at(self, location: Location) -> Project | None:
        """The project of a place, if it has a file with servers, or one that is broken."""
        found = self.projects.get(self.workspace_at(location).file)
        return found if found is not None and (found.holds_servers() or found.is_lost()) else None

    def add_scan(self, scan: WorkspaceScan) -> bool:
        """This was found. False: it is of no use without the project's file, which is not known any more."""
        workspace, read = scan.workspace, scan.project
        if workspace.file and read is None and workspace.file not in self.projects:
            return False
        before = self.scans.get(scan.wish)
        if before is None or before.number <= scan.number:
            self.scans[scan.wish] = scan
            self._by_location[scan.spot] = workspace
        if read is not None:
            project = self.projects.setdefault(workspace.file, Project())
            if project.number <= scan.number:
                self._apply_reading(project, scan, read)
        return True

    def replace_scans(self, sights: Iterable[WorkspaceScan]) -> None:
        """These were found. A project whose file is not there any more is forgotten."""
        for each in sights:
            self.add_scan(each)
        self._prune()

    def scan_timed_out(self, workspace_request: WorkspaceRequest, number: int, why: str) -> None:
        """Looking there takes too long. `why`: a clause. What was known before stays in force."""
        if (before := self.scans.get(workspace_request)) is not None:
            project = self.projects.get(before.workspace.file)
            if project is not None and not project.workspace.file:
                return  # it was lost already
            if project is not None:
                project.problems = [f"{project.workspace.file} {why}"]
        directory = (
            workspace_request.workspace
            if workspace_request.workspace.startswith("/")
            else workspace_request.cwd
        )
        what = directory or f"the workspace {workspace_request.workspace}"
        log.warning("%s %s", what, why)
        if before is None:
            spot = Location(lost=directory or workspace_request.workspace)
            self.scans[workspace_request] = WorkspaceScan(workspace_request, number, spot)
            self._by_location[spot] = FoundWorkspace("", spot.lost)
            project = self.projects.setdefault(spot.lost, Project())
            project.workspace, project.problems = FoundWorkspace(directory), [f"{what} {why}"]
            project.name = "" if directory else workspace_request.workspace

    def retain(self, wishes: Set[WorkspaceRequest]) -> None:
        """Forget everything but these."""
        if self.scans.keys() - wishes:
            self.scans = {wish: scan for wish, scan in self.scans.items() if wish in wishes}
        self._prune()

    def _prune(self) -> None:
        """Forget the places and projects that no sight leads to."""
        self._by_location = {
            each.spot: found
            for each in self.scans.values()
            if (found := self._by_location.get(each.spot)) is not None
        }
        for file in self.projects.keys() - {each.file for each in self._by_location.values()}:
            del self.projects[file]

    def watched_files(self) -> list[WatchedFiles]:
        """Everything on disk that was looked at, as it was then, by workspace."""
        found: dict[str, tuple[dict[str, Stamp], list[WorkspaceRequest]]] = {}
        for wish, scan in self.scans.items():
            seen, wishes = found.setdefault(scan.workspace.file or scan.spot.base, ({}, []))
            seen |= scan.workspace.seen
            wishes.append(wish)
            project = self.projects.get(scan.workspace.file)
            if project is not None and project.workspace.file:
                seen |= {**project.seen, self._store: project.trust_store}
        return [WatchedFiles(key, seen, tuple(wishes)) for key, (seen, wishes) in found.items() if seen]

    def _apply_reading(self, project: Project, scan: WorkspaceScan, read: ProjectReading) -> None:
        before = set(project.messages())
        project.apply(scan, read)
        if read.wrong and read.wrong != self._store_wrong:
            log.warning("%s", read.wrong)
        self._store_wrong = read.wrong
        self._save_last_good(project, read.layer)
        for text in project.messages():
            if text not in before:
                log.warning("%s", text)

    def _save_last_good(self, project: Project, layer: ConfigLayer) -> None:
        """For the brokers after this one: what stands is trusted, or nothing is to come back."""
        if project.trust != "trusted":
            self._last_good.delete(project.workspace.file)
        elif layer.loaded.config is not None:
            why = self._last_good.save(layer)
            if why and why != self._unkept:
                log.warning("%s: if carpool dies while a project's file is broken, that has no servers", why)
            self._unkept = why


_NO_WORKSPACE = FoundWorkspace("")
