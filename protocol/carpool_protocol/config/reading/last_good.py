"""The last good readings of configuration files, kept on disk for a later broker and HTTP door.

A broken file is refused at a first start. A carpool that was running continues with the earlier content, even
if some or all of its processes died meanwhile (docs/decisions/0019). Owns a file in the runtime directory
with the texts of a configuration, of the files it includes and of its `tools_file`s, mode 0600. One such file
is for the user's configuration, one for the last projects that were read. It is removed when carpool stops.
It never holds the text of an `env_file`: its values stay in memory only (rule 13).

Invariant: a missing or invalid file counts as an empty one. A text is not trusted because it is kept here:
code that reads kept texts of a project checks their digest again (`trust`). Knows nothing of: the time of
writing, the reaction to a broken file.
"""

import contextlib
import os

import msgspec
from msgspec import Struct

from carpool_protocol.config.reading.load import MAX_LAYER_BYTES, ConfigLayer, LayerTexts
from carpool_protocol.files import private_files, state_file

_MAX_BYTES = 6 * MAX_LAYER_BYTES + 65536
"""JSON needs at most six characters for one."""


class _SavedReading(Struct, frozen=True):
    file: str
    """The configuration file of this reading."""
    texts: dict[str, str]
    included: list[str]


_decoder = msgspec.json.Decoder(list[_SavedReading])


class LastGoodReadings:
    """The readings in one file. With an empty `path` nothing is kept.

    `most`: how many configuration files; with several, at most `MAX_LAYER_BYTES` in total.
    """

    def __init__(self, path: str = "", *, most: int = 1) -> None:
        self._path = path
        self._most = most
        self._known: dict[str, _SavedReading] | None = None
        """The content of the file, the latest reading last; None: not read yet."""

    def find(self, file: str) -> LayerTexts | None:
        """The kept texts of this configuration file, or None. Never raises."""
        found = self._readings().get(file)
        return None if found is None else LayerTexts(found.texts, tuple(found.included))

    def save(self, layer: ConfigLayer) -> str:
        """Keep a good reading. Returns a clause about a failure, else an empty text. An unchanged one is not
        rewritten.
        """
        if not self._path:
            return ""
        texts = layer.texts
        reading = _SavedReading(layer.files[0], dict(texts.by_path), list(texts.included))
        known = dict(self._readings())
        is_known = known.pop(reading.file, None) == reading
        known[reading.file] = reading
        if is_known and os.path.lexists(self._path):
            self._known = known
            return ""
        try:
            self._write(known)
        except UnicodeEncodeError:
            return "the path of a file is not UTF-8"
        except OSError as error:
            return f"{self._path} cannot be written ({error.strerror})"
        return ""

    def delete(self, file: str) -> None:
        """Forget the kept texts of this configuration file."""
        if file not in self._readings():
            return
        try:
            self._write({path: each for path, each in self._readings().items() if path != file})
        except OSError:
            self._remove()

    def _write(self, readings: dict[str, _SavedReading]) -> None:
        if not readings:
            self._remove()
            return
        encoded = {path: msgspec.json.encode(each) for path, each in readings.items()}
        oldest = list(encoded)[:-1]
        while oldest and (len(encoded) > self._most or sum(map(len, encoded.values())) > MAX_LAYER_BYTES):
            del encoded[oldest.pop(0)]
        private_files.replace(self._path, b"[%b]" % b",".join(encoded.values()))
        self._known = {path: readings[path] for path in encoded}

    def _remove(self) -> None:
        with contextlib.suppress(OSError):
            os.unlink(self._path)
        self._known = {}

    def _readings(self) -> dict[str, _SavedReading]:
        if self._known is None:
            self._known = {each.file: each for each in self._read()}
        return self._known

    def _read(self) -> list[_SavedReading]:
        if not self._path:
            return []
        try:
            data = state_file.read_state_file(self._path, _MAX_BYTES)
            return [] if isinstance(data, str) else _decoder.decode(data)
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return []
