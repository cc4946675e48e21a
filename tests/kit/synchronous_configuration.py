"""A disk that answers at once, in the same thread: for tests and worlds that have no loop.

`SynchronousConfiguration` is the real configuration with nothing between it and the disk.

Knows nothing of: time.
"""

from collections.abc import Callable
from typing import Any

from carpool_broker.config.configuration import Configuration, Followed
from carpool_broker.config.locations import Wish
from carpool_broker.config.scan import Sight
from carpool_broker.config.watcher import Reader
from carpool_broker.config.workspaces import Workspaces
from carpool_protocol.config.schema.model import Config
from carpool_protocol.config.text.file_stamps import is_current


class _Eager(Workspaces):
    """Looks at whatever is asked for."""

    config: Callable[[], Config]

    def knows(self, wish: Wish) -> bool:
        return self.sight_of(wish) is not None

    def sight_of(self, wish: Wish) -> Sight:
        if wish != Wish() and wish not in self.sights:
            self.look(wish)
        return super().sight_of(wish)

    def look(self, wish: Wish) -> None:
        """Once, and again where a project's file is not known any more."""
        assert self.take(self.looker(wish, self.config(), 0)()) or self.take(self.read(wish, self.config()))

    def read(self, wish: Wish, config: Config) -> Sight:
        """All that is there."""
        return self.looker(wish, config, 0, again=True)()


class SynchronousConfiguration(Configuration):
    """See the module."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        before = self.layers.workspaces
        self.eager = self.layers.workspaces = _Eager(before._home, before._store, before._last_good)
        self.eager.config = lambda: self.config

    def changed(self) -> bool:
        """Whether a file is another one than was last read."""
        return not all(is_current(each.seen) for each in self.watched())

    def read_again(self) -> list[Followed]:
        """Everything."""
        layer = self.users.load()
        config = layer.loaded.config or self.config
        return self.reload(layer, [self.eager.read(each, config) for each in self.wishes()])

    def look(self, wish: Wish, then: Callable[[Sight], None], *, spell: bool = False) -> None:
        """See `moving.Looks`."""
        sight = self.eager.sight_of(wish)
        if spell and sight.directory not in {"", wish.workspace}:
            sight = self.eager.sight_of(Wish(sight.directory, wish.cwd))
        then(sight)


class ReaderWithoutThreads(Reader):
    """A reader whose sessions are told at once what a `SynchronousConfiguration` finds."""

    def look(self, wish: Wish, then: Callable[[Sight], None], *, spell: bool = False) -> None:
        assert isinstance(self._configuration, SynchronousConfiguration)
        self._configuration.look(wish, then, spell=spell)
