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

    def has_scan(self, wish: WorkspaceRequest) -> bool:
        return self.scan_of(wish) is not None

    def scan_of(self, wish: WorkspaceRequest) -> WorkspaceScan:
        if wish != WorkspaceRequest() and wish not in self.scans:
            self.look(wish)
        return super().scan_of(wish)

    def look(self, wish: WorkspaceRequest) -> None:
        """Once, and again where a project's file is not known any more."""
        assert self.add_scan(self.make_scan(wish, self.config(), 0)()) or self.add_scan(
            self.read(wish, self.config())
        )

    def read(self, wish: WorkspaceRequest, config: Config) -> WorkspaceScan:
        """All that is there."""
        return self.make_scan(wish, config, 0, again=True)()


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
        self, wish: WorkspaceRequest, then: Callable[[WorkspaceScan], None], *, spell: bool = False
    ) -> None:
        """See `moving.Looks`."""
        sight = self.eager.scan_of(wish)
        if spell and sight.directory not in {"", wish.workspace}:
            sight = self.eager.scan_of(WorkspaceRequest(sight.directory, wish.cwd))
        then(sight)


class WatcherWithoutThreads(ConfigWatcher):
    """A reader whose sessions are told at once what a `SynchronousConfiguration` finds."""

    def scan(
        self, wish: WorkspaceRequest, then: Callable[[WorkspaceScan], None], *, spell: bool = False
    ) -> None:
        assert isinstance(self._configuration, SynchronousConfiguration)
        self._configuration.scan(wish, then, spell=spell)
