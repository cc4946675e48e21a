"""The user's own file: its last good reading, and why it is not in force as it is now.

A broken file leaves the last good one in force, also that of a broker before this one; where there is none it
is refused. What has changed on disk is read when somebody says so: `load` waits for the file system and keeps
nothing, so that it can be done in a thread.

Knows nothing of: what lies over it (`layers`), sessions, when to look, threads.
"""

from typing import Final

from carpool_protocol.config.reading.last_good import LastGood
from carpool_protocol.config.reading.load import ConfigFile, Layer, load_layer
from carpool_protocol.config.schema.model import Config
from carpool_protocol.config.text.file_stamps import Stamp

_NEVER: Final = (-1, -1, -1)
"""The stamp of no file: what was seen so has changed once it can be looked at."""


class BrokenConfigError(Exception):
    """The file cannot be used. The text has one line per problem."""


class UsersFile:
    """The file with what belongs to it."""

    def __init__(self, file: ConfigFile, home: str, last_good: LastGood) -> None:
        """Raises `BrokenConfigError`."""
        self._file = file
        self._home = home
        self._last_good = last_good
        self.problem = ""
        """Why the file as it is now is not in force; empty when it is."""
        self.env: dict[str, str] = {}
        """The variables of its `env_file`. Secrets: memory only."""
        self.seen: dict[str, Stamp] = {}
        """Every file that was looked at, as it was then."""
        self.warnings: list[str] = []
        """What was passed over in files of other programs."""
        self.config = self._read_at_first()

    def load(self) -> Layer:
        """What is there now."""
        return load_layer(self._file, self._home)

    def take(self, layer: Layer) -> None:
        """This is there now. When it is broken, `problem` says why and the last good one stays."""
        try:
            self.config = self._take(layer)
            self.problem = ""
        except BrokenConfigError as error:
            self.problem = str(error)

    def give_up(self, why: str) -> None:
        """Loading it takes too long. `why`: a clause."""
        self.problem = f"{self._file.path} {why}"
        self.seen = dict.fromkeys(self.seen, _NEVER)

    def _read_at_first(self) -> Config:
        """As it is; where that is broken, as the broker before this one has read it last."""
        kept = self._last_good.find(self._file.path)
        try:
            return self._take(self.load())
        except BrokenConfigError as error:
            layer = None if kept is None else load_layer(self._file, self._home, earlier=kept)
            if layer is None or layer.loaded.config is None:
                raise
            self.problem = str(error)
            self.seen = layer.seen | self.seen
            self.env = layer.env
            return layer.loaded.config

    def _take(self, layer: Layer) -> Config:
        self.seen = layer.seen
        loaded = layer.loaded
        if loaded.config is None:
            raise BrokenConfigError("\n".join(problem.render() for problem in loaded.problems))
        self.env = layer.env
        self.warnings = [each.render() for each in loaded.warnings]
        if trouble := self._last_good.keep(layer):
            self.warnings.append(f"{trouble}: if carpool dies while the file is broken, it stays down")
        return loaded.config
