"""Schedules scans of workspaces and readings of the user's file, and brings the results into force.

Owns when and where to scan, the limit of `blocking_io.BLOCKING_TIMEOUT_S` for every caller, and the rule that
of two overlapping scans of one place the later wins. A place that takes longer is given up: its sessions go
on without it, a late result is brought into force under them, and meanwhile the place is not scanned again.
Also owns how long to wait for a file that is still being written. Many programs do not save in one step: a
file vanishes for a moment (editors that keep a backup, a checkout of another branch), or is empty. Read then,
all its servers would seem to be gone, and agents would lose their leases for nothing.

Knows nothing of: the work of a scan (`scan`), its consequences (`configuration`), agents.
"""

from collections.abc import Awaitable, Callable, Collection, Sequence
from functools import partial
from itertools import count
from typing import Final

import trio

from carpool_broker.config.blocking_io import BLOCKING_TIMEOUT_S, BlockingWork, StartSoon
from carpool_broker.config.configuration import Configuration, ConfigurationChange
from carpool_broker.config.locations import WorkspaceRequest
from carpool_broker.config.scan import WorkspaceScan
from carpool_broker.config.workspaces import WatchedFiles
from carpool_protocol.config.schema.model import Config
from carpool_protocol.config.text.file_stamps import Stamp, is_current, stamp

STABLE_S: Final = 0.1
MAX_CHECKS: Final = 10
"""A file that changes all the time is read after this many checks."""


async def settled(
    files: Collection[str], stamps: Callable[[Collection[str]], Awaitable[list[Stamp]]]
) -> None:
    """Return once the files have not changed for `STABLE_S`. `stamps`: reads their stamps."""
    previous = await stamps(files)
    for _ in range(MAX_CHECKS):
        await trio.sleep(STABLE_S)
        now = await stamps(files)
        if now == previous:
            return
        previous = now


READ_TIMED_OUT = (
    f"could not be read within {BLOCKING_TIMEOUT_S:g} s; it takes effect as soon as it can be read"
)
USER_FILE = ""
"""The key of the user's own files (`Configuration.watched_files`)."""
EVERYTHING: Final = (WatchedFiles(USER_FILE, {}),)
"""As if the user's file had changed: then each location may change."""
ScanDone = Callable[[WorkspaceScan], None]


class ConfigWatcher:
    """The watcher of one broker. `feed`: takes changes for the core from late results; `settle`: ends a
    burst.
    """

    def __init__(
        self,
        configuration: Configuration,
        feed: Callable[[list[ConfigurationChange]], None],
        settle: Callable[[], None],
        start_soon: StartSoon,
    ) -> None:
        self._configuration = configuration
        self._workspaces = configuration.layers.workspaces
        self._feed = feed
        self._settle = settle
        self._start_soon = start_soon
        self.blocking_work = BlockingWork(settle, start_soon)
        self._session_comes = trio.Event()
        self._numbers = count(1)
        self._waiting: dict[WorkspaceRequest, list[ScanDone]] = {}
        """Callers that wait for a running scan."""
        self._stuck: set[str] = set()
        """Keys of `WatchedFiles` that do not answer and are not checked for changes."""
        self._changing = trio.Lock()
        """Lock for changes that concern all sessions: one at a time."""

    # --- one session ------------------------------------------------------------------------------------

    def scan(self, workspace_request: WorkspaceRequest, then: ScanDone, *, spell: bool = False) -> None:
        """As `workspace_moves.WorkspaceScanner.scan`."""
        self._session_comes.set()
        if spell:
            then = partial(self._spelled, then)
        if self._workspaces.has_scan(workspace_request):
            then(self._workspaces.scan_of(workspace_request))
        elif workspace_request in self._waiting:
            self._waiting[workspace_request].append(then)
        else:
            self._waiting[workspace_request] = [then]
            self._start_soon(self._scan, workspace_request)

    def _spelled(self, then: ScanDone, scan: WorkspaceScan) -> None:
        if scan.directory in {"", scan.request.workspace}:
            then(scan)
        else:
            self.scan(WorkspaceRequest(scan.directory, scan.request.cwd), then)

    async def _scan(self, workspace_request: WorkspaceRequest) -> None:
        await self._scan_until_current(workspace_request)
        for then in self._waiting.pop(workspace_request):
            self.scan(
                workspace_request, then
            )  # an earlier caller may have ended at once, and with it the result
        self._settle()

    async def _scan_until_current(self, workspace_request: WorkspaceRequest) -> None:
        """Scan until the result fits the configuration that is in force at the end."""
        workspaces, configuration = self._workspaces, self._configuration
        while not workspaces.has_scan(workspace_request):
            config, number = configuration.config, next(self._numbers)
            scan_work = workspaces.make_scan(workspace_request, config, number)
            scan = await self.blocking_work.run(
                workspace_request, scan_work, partial(self._late_scan_done, config)
            )
            if scan is None:
                workspaces.scan_timed_out(workspace_request, number, READ_TIMED_OUT)
            elif configuration.config is config:
                workspaces.add_scan(scan)

    def _late_scan_done(self, config: Config, scan: WorkspaceScan) -> None:
        """Apply a late result. Its callers have gone on without it."""
        if scan.request not in (requests := self._configuration.workspace_requests()):
            self._workspaces.retain(requests)  # a session on its way there has it scanned once more
            return
        if config is self._configuration.config:
            self._feed(self._configuration.workspaces_scanned([scan]))
        else:
            self._start_soon(self._catch_up, scan.request)

    async def _catch_up(self, workspace_request: WorkspaceRequest) -> None:
        self._feed(await self.rescan([workspace_request]))
        self._settle()

    # --- all of them ------------------------------------------------------------------------------------

    async def reload(self, changed: Sequence[WatchedFiles] = EVERYTHING) -> list[ConfigurationChange]:
        """Read changed files again, or all. The result must be fed to the core at once."""
        if all(each.requests for each in changed):
            return await self.rescan({request for each in changed for request in each.requests})
        async with self._changing:
            configuration, users = self._configuration, self._configuration.user_file
            layer = await self.blocking_work.run(USER_FILE, users.load)
            if layer is None:
                users.load_timed_out(READ_TIMED_OUT)
            config = (layer.loaded.config if layer is not None else None) or configuration.config
            found: dict[WorkspaceRequest, WorkspaceScan | None] = {}
            while missing := {
                each for each in configuration.workspace_requests() if self._needs_scan(each, found)
            }:
                found |= await self._scan_all(missing, config)
            return configuration.reload(layer, filter(None, found.values()))

    def _needs_scan(
        self, workspace_request: WorkspaceRequest, found: dict[WorkspaceRequest, WorkspaceScan | None]
    ) -> bool:
        """True if a session has asked for this place meanwhile, and no present scan covers it."""
        if workspace_request not in found:
            return True
        scan = found[workspace_request]
        return scan is not None and scan.number < self._workspaces.scan_of(workspace_request).number

    async def rescan(self, requests: Collection[WorkspaceRequest]) -> list[ConfigurationChange]:
        """Scan these places again. The result must be fed to the core at once."""
        async with self._changing:
            found = await self._scan_all(requests, self._configuration.config)
            return self._configuration.workspaces_scanned(filter(None, found.values()))

    async def _scan_all(
        self, requests: Collection[WorkspaceRequest], config: Config
    ) -> dict[WorkspaceRequest, WorkspaceScan | None]:
        found: dict[WorkspaceRequest, WorkspaceScan | None] = {}

        async def one(workspace_request: WorkspaceRequest) -> None:
            number = next(self._numbers)
            scan_work = self._workspaces.make_scan(workspace_request, config, number, again=True)
            found[workspace_request] = await self.blocking_work.run(
                workspace_request, scan_work, partial(self._late_scan_done, config)
            )
            if found[workspace_request] is None:
                self._workspaces.scan_timed_out(workspace_request, number, READ_TIMED_OUT)

        async with trio.open_nursery() as nursery:
            for request in requests:
                nursery.start_soon(one, request)
        return found

    # --- what changes on disk ---------------------------------------------------------------------------

    async def wait_for_session(self, limit_s: float) -> None:
        """Wait until a session comes, for which the files must be looked at now, or this long."""
        with trio.move_on_after(limit_s):
            await self._session_comes.wait()
        self._session_comes = trio.Event()  # only now: one that came during the last look counts too

    async def find_changes(self) -> list[WatchedFiles]:
        """Files that changed since the last scan. A file that is still being written is left until it is
        stable.
        """
        hanging = self._stuck | ({USER_FILE} if self.blocking_work.is_hanging(USER_FILE) else set())
        once = _ChangeCheck([each for each in self._configuration.watched_files() if each.key not in hanging])
        if await self.blocking_work.run(once, once.run, self._retry_hanging) is None:
            once.stuck_at = once.at
            self._stuck.add(once.at)  # the next round continues behind it
        changed = [*once.changed]
        if changed:
            await settled([file for each in changed for file in each.seen], self._read_stamps)
        return changed

    def _retry_hanging(self, once: "_ChangeCheck") -> None:
        self._stuck.discard(once.stuck_at)

    async def _read_stamps(self, files: Collection[str]) -> list[Stamp]:
        found = await self.blocking_work.run(object(), lambda: [stamp(each) for each in files])
        return found or []


class _ChangeCheck:
    """Compares the stamps of all watched files with the disk, in a thread."""

    def __init__(self, groups: Sequence[WatchedFiles]) -> None:
        self._groups = groups
        self.at = USER_FILE
        """The key that is being checked."""
        self.stuck_at = USER_FILE
        """The key at which the check was given up."""
        self.changed: list[WatchedFiles] = []

    def run(self) -> "_ChangeCheck":
        for each in self._groups:
            self.at = each.key
            if not is_current(each.seen):
                self.changed.append(each)
        return self
