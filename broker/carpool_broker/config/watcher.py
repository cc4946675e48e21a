"""Schedules scans of workspaces and readings of the user's file, and brings into force what they find.

Owns when and where to scan, that nobody waits longer than `blocking_io.BLOCKING_TIMEOUT_S`, and that of two
overlapping scans of one place the later wins. A place that takes longer is given up: its sessions go on
without it, what comes in the end is brought into force under them, and meanwhile nobody scans it again.
Owns also how long to wait for a file that is still being written. Many programs do not save in one step: a
file is away for a moment (editors that keep a backup, a checkout of another branch), or empty. Read then, it
would say that all its servers are gone, and agents would lose their leases for nothing.

Knows nothing of: what a scan looks for (`scan`), what follows from it (`configuration`), agents.
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
"""A file that changes all the time is read all the same."""


async def settled(
    files: Collection[str], stamps: Callable[[Collection[str]], Awaitable[list[Stamp]]]
) -> None:
    """Return once the files have stayed as they are for `STABLE_S`, as `stamps` tells."""
    before = await stamps(files)
    for _ in range(MAX_CHECKS):
        await trio.sleep(STABLE_S)
        now = await stamps(files)
        if now == before:
            return
        before = now


READ_TIMED_OUT = (
    f"could not be read within {BLOCKING_TIMEOUT_S:g} s; what it says counts as soon as it can be"
)
USER_FILE = ""
"""The key of the user's own files (`Configuration.watched_files`)."""
EVERYTHING: Final = (WatchedFiles(USER_FILE, {}),)
"""As if the user's file had changed: then each place may be another one."""
ScanDone = Callable[[WorkspaceScan], None]


class ConfigWatcher:
    """That of one broker. `feed` takes what follows of late news for the core; `settle`: a burst is over."""

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
        self._numbers = count(1)
        self._waiting: dict[WorkspaceRequest, list[ScanDone]] = {}
        """Whom to tell of a look that is under way."""
        self._stuck: set[str] = set()
        """Which of `WatchedFiles` do not answer, so that what changes there is not looked for."""
        self._changing = trio.Lock()
        """What everybody sees is changed by one at a time."""

    # --- one session ------------------------------------------------------------------------------------

    def scan(self, workspace_request: WorkspaceRequest, then: ScanDone, *, spell: bool = False) -> None:
        """See `workspace_moves.Looks`."""
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
        if scan.directory in {"", scan.wish.workspace}:
            then(scan)
        else:
            self.scan(WorkspaceRequest(scan.directory, scan.wish.cwd), then)

    async def _scan(self, workspace_request: WorkspaceRequest) -> None:
        await self._scan_until_current(workspace_request)
        for then in self._waiting.pop(workspace_request):
            self.scan(
                workspace_request, then
            )  # one who was told may have left at once, and all that is known with them
        self._settle()

    async def _scan_until_current(self, workspace_request: WorkspaceRequest) -> None:
        """Have it known what is there, by the configuration that is in force in the end."""
        workspaces, configuration = self._workspaces, self._configuration
        while not workspaces.has_scan(workspace_request):
            config, number = configuration.config, next(self._numbers)
            look = workspaces.make_scan(workspace_request, config, number)
            scan = await self.blocking_work.run(
                workspace_request, look, partial(self._late_scan_done, config)
            )
            if scan is None:
                workspaces.scan_timed_out(workspace_request, number, READ_TIMED_OUT)
            elif configuration.config is config:
                workspaces.add_scan(scan)

    def _late_scan_done(self, config: Config, scan: WorkspaceScan) -> None:
        """It has come in the end. Whoever asked for it goes on without it since."""
        if scan.wish not in (wishes := self._configuration.workspace_requests()):
            self._workspaces.retain(wishes)  # whoever is on the way there has it looked once more
            return
        if config is self._configuration.config:
            self._feed(self._configuration.workspaces_scanned([scan]))
        else:
            self._start_soon(self._catch_up, scan.wish)

    async def _catch_up(self, workspace_request: WorkspaceRequest) -> None:
        self._feed(await self.rescan([workspace_request]))
        self._settle()

    # --- all of them ------------------------------------------------------------------------------------

    async def reload(self, changed: Sequence[WatchedFiles] = EVERYTHING) -> list[ConfigurationChange]:
        """Read again what has changed, or everything; what follows is for the core, at once."""
        if all(each.wishes for each in changed):
            return await self.rescan({wish for each in changed for wish in each.wishes})
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
        """Whether one has come there in between, and it was not looked yet, or since then by what is over."""
        if workspace_request not in found:
            return True
        scan = found[workspace_request]
        return scan is not None and scan.number < self._workspaces.scan_of(workspace_request).number

    async def rescan(self, wishes: Collection[WorkspaceRequest]) -> list[ConfigurationChange]:
        """Look there again; what follows is for the core, at once."""
        async with self._changing:
            found = await self._scan_all(wishes, self._configuration.config)
            return self._configuration.workspaces_scanned(filter(None, found.values()))

    async def _scan_all(
        self, wishes: Collection[WorkspaceRequest], config: Config
    ) -> dict[WorkspaceRequest, WorkspaceScan | None]:
        found: dict[WorkspaceRequest, WorkspaceScan | None] = {}

        async def one(workspace_request: WorkspaceRequest) -> None:
            number = next(self._numbers)
            look = self._workspaces.make_scan(workspace_request, config, number, again=True)
            found[workspace_request] = await self.blocking_work.run(
                workspace_request, look, partial(self._late_scan_done, config)
            )
            if found[workspace_request] is None:
                self._workspaces.scan_timed_out(workspace_request, number, READ_TIMED_OUT)

        async with trio.open_nursery() as nursery:
            for wish in wishes:
                nursery.start_soon(one, wish)
        return found

    # --- what changes on disk ---------------------------------------------------------------------------

    async def find_changes(self) -> list[WatchedFiles]:
        """What is another than it was, by now; files that are just being saved are waited for."""
        hanging = self._stuck | ({USER_FILE} if self.blocking_work.is_hanging(USER_FILE) else set())
        once = _ChangeCheck([each for each in self._configuration.watched_files() if each.key not in hanging])
        if await self.blocking_work.run(once, once.run, self._retry_hanging) is None:
            once.stuck_at = once.at
            self._stuck.add(once.at)  # without it the next round comes further
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
    """One look at whether anything has changed, in a thread."""

    def __init__(self, groups: Sequence[WatchedFiles]) -> None:
        self._groups = groups
        self.at = USER_FILE
        """What is being looked at."""
        self.stuck_at = USER_FILE
        """The same, when it was given up."""
        self.changed: list[WatchedFiles] = []

    def run(self) -> "_ChangeCheck":
        for each in self._groups:
            self.at = each.key
            if not is_current(each.seen):
                self.changed.append(each)
        return self
