"""The workspaces of connected sessions, and the readings of their project files.

Owns the scans of requested workspaces, from the first session there to the last, the trust in their projects,
and the files that they were read from. Of two scans the one that began later counts, whichever ends last. A
file that breaks, or cannot be read any more, leaves its last good reading in force; a changed file needs
trust again. A trusted reading is kept for later brokers until an untrusted one takes its place. It is used
again only if exactly its bytes are trusted then.

Knows nothing of: sessions, sources, the user's own file, disks (it gets the results).
"""

import logging
import os
import re
from collections import Counter
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
"""Maximum number of trusted projects with a last good reading that outlives a broker."""

log = logging.getLogger("carpool.broker")

BROKEN = "its file is broken"
LOST = "its directory could not be read in time"
MAX_SHOWN_PATH_CHARS: Final = 200
"""Longest directory that is shown to agents."""
_PLAIN_PATH: Final = re.compile(r"[A-Za-z0-9_./~+@-]+")


class WatchedFiles(Struct, frozen=True):
    """Files on disk that are checked together."""

    key: str
    """A name that distinguishes them from other groups."""
    seen: Mapping[str, Stamp]
    """Path → stamp at the last reading."""
    requests: tuple[WorkspaceRequest, ...] = ()
    """Workspaces to rescan when one of these files changes. Empty: all, because these are the user's own
    files.
    """


class Project:
    """One project file and its last good reading."""

    def __init__(self) -> None:
        self.workspace = FoundWorkspace("")
        self.config: Config | None = None
        """None: it was never good."""
        self.number = -1
        """Number of the scan that read it."""
        self.env: dict[str, str] = {}
        self.digest = ""
        self.trust: Trust = "untrusted"
        self.trust_store: Stamp = None
        """Stamp of the trust file at the last reading."""
        self.listed: frozenset[str] = frozenset()
        """Servers that the trust question named as replacing the user's own."""
        self.problems: list[str] = []
        """Why the present file is not in force."""
        self.warnings: list[str] = []
        self.seen: dict[str, Stamp] = {}
        self.variables: frozenset[str] = frozenset()
        """Variables that its servers use, also those that may not run yet."""
        self.name = ""
        """The named workspace around it."""

    def apply(self, scan: WorkspaceScan, read: ProjectReading) -> None:
        """Apply a new reading of the file. A broken one leaves the last good content in force."""
        layer = read.layer
        self.number, self.workspace, self.name = scan.number, scan.workspace, scan.location.name
        self.seen = layer.seen
        self.trust_store, self.listed = read.store, read.listed
        self.problems = [each.render() for each in layer.loaded.problems]
        if layer.loaded.config is not None:
            self._use_reading(layer, read)
        elif self.config is None and (kept := read.trusted_earlier_layer()) is not None:
            # It was never good here, and this is its earlier content.
            self._use_reading(kept, read)
            self.seen = {**kept.seen, **self.seen}
        self.trust = trust_state(read.trusted, self.digest)

    def _use_reading(self, layer: ConfigLayer, read: ProjectReading) -> None:
        self.config, self.env, self.digest = layer.loaded.config, layer.env, layer.digest
        self.variables = read.variables
        self.warnings = [each.render() for each in layer.loaded.warnings]

    def messages(self) -> list[str]:
        """Texts for the author of the file."""
        return [*self.problems, *self.notes()]

    def notes(self) -> list[str]:
        """The messages, without problems that keep the present file from being in force."""
        return [*unread_warnings(self.workspace), *self.warnings]

    def holds_servers(self) -> bool:
        """True if it has anything that could be run."""
        return self.config is not None and bool(self.config.servers or self.config.unusable)

    def is_lost(self) -> bool:
        """True if it is broken and no earlier reading has servers either."""
        return bool(self.problems) and not self.holds_servers()

    def lost_reason(self) -> str:
        """Why it is lost, as a clause for agents; empty: it is not."""
        if not self.is_lost():
            return ""
        return BROKEN if self.workspace.file else LOST

    def trust_needed(self) -> str:
        """Why its servers may not run yet; empty: they may. Agents read this text: see `safe_path`."""
        if self.trust == "trusted":
            return ""
        root = self.workspace.root
        path, command = self.workspace.file, f"`carpool trust {root}`"
        if not safe_path(root):
            path = f"the file {os.path.relpath(path, root)} of this project"
            command = "`carpool trust` in the project's directory"
        change = "has changed since it was trusted" if self.trust == "changed" else "is not trusted yet"
        return f"{path} {change}; look at it with {command}"


def safe_path(path: str) -> bool:
    """True if agents may read this directory, which a stranger may have named: no sentence, nothing for a
    shell.
    """
    return len(path) <= MAX_SHOWN_PATH_CHARS and _PLAIN_PATH.fullmatch(path) is not None


class Workspaces:
    """The workspaces of all sessions."""

    def __init__(self, home: str, store: str, last_good: LastGoodReadings) -> None:
        """`store`: the trust file; empty: nothing is trusted. `last_good`: storage of good readings."""
        self._home = home
        self._store = store
        self._last_good = last_good
        last_good.find("")  # read the file once; from now on it is in memory
        self._unkept = ""
        """Why the last reading could not be kept."""
        self._store_wrong = ""
        """The last logged problem of the trust file."""
        self.scans: dict[WorkspaceRequest, WorkspaceScan] = {}
        self._by_location: dict[Location, FoundWorkspace] = {}
        self._scans_at = Counter[Location]()
        self._locations_of = Counter[str]()
        """The number of locations with this project file. Thousands of sessions may end at once, so counts
        tell what nobody uses any more.
        """
        self.projects: dict[str, Project] = {}
        """By path of the project file; unreadable ones by their directory."""

    def has_scan(self, workspace_request: WorkspaceRequest) -> bool:
        """True if the workspace was scanned."""
        return workspace_request == WorkspaceRequest() or workspace_request in self.scans

    def scan_of(self, workspace_request: WorkspaceRequest) -> WorkspaceScan:
        """The scan of a workspace; an empty one if there is none."""
        return self.scans.get(workspace_request) or WorkspaceScan(workspace_request)

    def make_scan(
        self, workspace_request: WorkspaceRequest, config: Config, number: int, *, again: bool = False
    ) -> Callable[[], WorkspaceScan]:
        """A function that scans the workspace; it waits for the disk. `config`: the user's. `again`: read
        known files too.
        """
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
        """The workspace at a location."""
        return self._by_location.get(location, _NO_WORKSPACE)

    def project_at(self, location: Location) -> Project | None:
        """The project at a location, if it has a file with servers, or a broken one."""
        found = self.projects.get(self.workspace_at(location).file)
        return found if found is not None and (found.holds_servers() or found.is_lost()) else None

    def add_scan(self, scan: WorkspaceScan) -> bool:
        """Add a scan. False: it is useless without the reading of its project file, which was forgotten."""
        workspace, read = scan.workspace, scan.project
        if workspace.file and read is None and workspace.file not in self.projects:
            return False
        before = self.scans.get(scan.request)
        if before is None or before.number <= scan.number:
            self._put_scan(scan, workspace)
        if read is not None:
            project = self.projects.setdefault(workspace.file, Project())
            if project.number <= scan.number:
                self._apply_reading(project, scan, read)
        return True

    def replace_scans(self, scans: Iterable[WorkspaceScan]) -> None:
        """Add scans, and forget projects with files that no longer exist."""
        for each in scans:
            self.add_scan(each)
        self._prune()

    def scan_timed_out(self, workspace_request: WorkspaceRequest, number: int, why: str) -> None:
        """Note that a scan takes too long. `why`: a clause. Earlier results stay in force."""
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
            location = Location(lost=directory or workspace_request.workspace)
            scan = WorkspaceScan(workspace_request, number, location)
            self._put_scan(scan, FoundWorkspace("", location.lost))
            project = self.projects.setdefault(location.lost, Project())
            project.workspace, project.problems = FoundWorkspace(directory), [f"{what} {why}"]
            project.name = "" if directory else workspace_request.workspace

    def retain(self, requests: Set[WorkspaceRequest]) -> None:
        """Forget the scans of all workspaces but these."""
        for request in self.scans.keys() - requests:
            self.forget(request)

    def forget(self, request: WorkspaceRequest) -> None:
        """Forget the scan of a workspace, and what no other scan has found either. The cost does not depend
        on the number of others.
        """
        scan = self.scans.pop(request, None)
        if scan is None:
            return
        self._scans_at[scan.location] -= 1
        if not self._scans_at[scan.location]:
            self._forget_location(scan.location)

    def _put_scan(self, scan: WorkspaceScan, workspace: FoundWorkspace) -> None:
        """Put a scan in the place of an earlier one. What only the earlier one has found stays until the end
        of the rescan (`_prune`): a later scan of it may find the same.
        """
        if (before := self.scans.get(scan.request)) is not None:
            self._scans_at[before.location] -= 1
        self._scans_at[scan.location] += 1
        self.scans[scan.request] = scan
        if (earlier := self._by_location.get(scan.location)) is not None:
            self._locations_of[earlier.file] -= 1
        self._locations_of[workspace.file] += 1
        self._by_location[scan.location] = workspace

    def _prune(self) -> None:
        """Forget locations without a scan, and projects without a location."""
        for location in [each for each, count in self._scans_at.items() if not count]:
            self._forget_location(location)
        for file in [each for each, count in self._locations_of.items() if not count]:
            self._forget_file(file)

    def _forget_location(self, location: Location) -> None:
        del self._scans_at[location]
        file = self._by_location.pop(location).file
        self._locations_of[file] -= 1
        if not self._locations_of[file]:
            self._forget_file(file)

    def _forget_file(self, file: str) -> None:
        del self._locations_of[file]
        self.projects.pop(file, None)

    def watched_files(self) -> list[WatchedFiles]:
        """All files that were read, with their stamps, by workspace."""
        found: dict[str, tuple[dict[str, Stamp], list[WorkspaceRequest]]] = {}
        for request, scan in self.scans.items():
            seen, requests = found.setdefault(scan.workspace.file or scan.location.base, ({}, []))
            seen |= scan.workspace.seen
            requests.append(request)
            project = self.projects.get(scan.workspace.file)
            if project is not None and project.workspace.file:
                seen |= {**project.seen, self._store: project.trust_store}
        return [WatchedFiles(key, seen, tuple(requests)) for key, (seen, requests) in found.items() if seen]

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
        """Keep a trusted reading for later brokers, or delete the kept one."""
        if project.trust != "trusted":
            self._last_good.delete(project.workspace.file)
        elif layer.loaded.config is not None:
            why = self._last_good.save(layer)
            if why and why != self._unkept:
                log.warning(
                    "%s: if carpool dies while a project's file is broken, that project has no servers", why
                )
            self._unkept = why


_NO_WORKSPACE = FoundWorkspace("")
