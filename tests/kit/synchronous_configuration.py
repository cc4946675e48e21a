"""A disk that answers at once, in the same thread: for tests and worlds that have no loop.

`SynchronousConfiguration` is the real configuration with nothing between it and the disk.

Knows nothing of: time.
"""

from collections.abc import Callable
from typing import Any

from carpool_broker.config.configuration import Configuration, ConfigurationChange
from carpool_broker.config.locations import WorkspaceRequest
from carpool_broker.config.scan import WorkspaceScan
from carpool_broker.config.watcher import ConfigWatcher
from carpool_broker.config.workspaces import Workspaces
from carpool_protocol.config.schema.model import Config
from carpool_protocol.config.text.file_stamps import is_current


class _Eager(Workspaces):
    """Looks at whatever is asked for."""

    config: Callable[[], Config]

    def has_scan(self, workspace_request: WorkspaceRequest) -> bool:
        return self.scan_of(workspace_request) is not None

    def scan_of(self, workspace_request: WorkspaceRequest) -> WorkspaceScan:
        if workspace_request != WorkspaceRequest() and workspace_request not in self.scans:
            self.look(workspace_request)
        return super().scan_of(workspace_request)

    def look(self, workspace_request: WorkspaceRequest) -> None:
        """Once, and again where a project's file is not known any more."""
        assert self.add_scan(self.make_scan(workspace_request, self.config(), 0)()) or self.add_scan(
            self.read(workspace_request, self.config())
        )

    def read(self, workspace_request: WorkspaceRequest, config: Config) -> WorkspaceScan:
        """All that is there."""
        return self.make_scan(workspace_request, config, 0, again=True)()


class SynchronousConfiguration(Configuration):
    """See the module."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        before = self.layers.workspaces
        self.eager = self.layers.workspaces = _Eager(before._home, before._store, before._last_good)
        self.eager.config = lambda: self.config

    def changed(self) -> bool:
        """Whether a file is another one than was last read."""
        return not all(is_current(each.seen) for each in self.watched_files())

    def read_again(self) -> list[ConfigurationChange]:
        """Everything."""
        layer = self.user_file.load()
        config = layer.loaded.config or self.config
        return self.reload(layer, [self.eager.read(each, config) for each in self.workspace_requests()])

    def scan(
        self,
        workspace_request: WorkspaceRequest,
        then: Callable[[WorkspaceScan], None],
        *,
        spell: bool = False,
    ) -> None:
        """See `moving.Looks`."""
        scan = self.eager.scan_of(workspace_request)
        if spell and scan.directory not in {"", workspace_request.workspace}:
            scan = self.eager.scan_of(WorkspaceRequest(scan.directory, workspace_request.cwd))
        then(scan)


class WatcherWithoutThreads(ConfigWatcher):
    """A reader whose sessions are told at once what a `SynchronousConfiguration` finds."""

    def scan(
        self,
        workspace_request: WorkspaceRequest,
        then: Callable[[WorkspaceScan], None],
        *,
        spell: bool = False,
    ) -> None:
        assert isinstance(self._configuration, SynchronousConfiguration)
        self._configuration.scan(workspace_request, then, spell=spell)
