"""The last good readings of configuration files, kept for the next broker and the next door.

A broken file is refused at a first start; a carpool that was running goes on with what it had, also where
one of its processes or all of them died meanwhile (docs/decisions/0019). Owns a file in the runtime
directory: the texts of a configuration, of what it includes and of its `tools_file`s, as they were, mode
0600. There is one for the user's, and one for those of projects, the last that were read. It goes when
carpool stops. Never the texts of an `env_file`: these are values, which are in memory only (rule 13).

Invariant: what is not there, or is not what it should be, is as if nothing had been kept. Nothing that is
kept is trusted for being there: whoever reads texts of a project again asks for their digest (`trust`).
Knows nothing of: when it is written, and what follows from a broken file.
"""

import contextlib
import os

import msgspec
from msgspec import Struct

from carpool_protocol.config.reading.load import MAX_LAYER_BYTES, ConfigLayer, LayerTexts
from carpool_protocol.files import private_files, state_file

_MAX_BYTES = 6 * MAX_LAYER_BYTES + 65536
"""JSON makes six characters of one at most."""


class _SavedReading(Struct, frozen=True):
    file: str
    """The configuration file it is of."""
    texts: dict[str, str]
    included: list[str]


_decoder = msgspec.json.Decoder(list[_SavedReading])


class LastGoodReadings:
    """Those of one runtime directory. `path`: without one nothing is kept. `most`: so many files; of several
    no more than `MAX_LAYER_BYTES`.
    """

    def __init__(self, path: str = "", *, most: int = 1) -> None:
        self._path = path
        self._most = most
        self._known: dict[str, _SavedReading] | None = None
        """What is in the file; None: nobody has looked. The one that was read last is the last."""

    def find(self, file: str) -> LayerTexts | None:
        """What was kept of this configuration file. Never raises."""
        found = self._readings().get(file)
        return None if found is None else LayerTexts(found.texts, tuple(found.included))

    def save(self, layer: ConfigLayer) -> str:
        """This is a good reading. A clause about what went wrong; else empty. One that is kept already is not
        written again.
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
        """What was kept of this configuration file is nothing to go by any more."""
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
