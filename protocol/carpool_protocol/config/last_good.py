"""The last good reading of the user's configuration, kept for the next broker and the next door.

A broken file is refused at a first start; a carpool that was running goes on with what it had, also where one
of its processes or all of them died meanwhile (docs/decisions/0019). Owns the file in the runtime directory:
the texts of the configuration, of what it includes and of its `tools_file`s, as they were, mode 0600. It goes
when carpool stops. Never those of an `env_file`: these are values, which are in memory only (rule 13).

Invariant: what is not there, or is not what it should be, is as if nothing had been kept.
Knows nothing of: when it is written, and what follows from a broken file.
"""

import os

import msgspec
from msgspec import Struct

from carpool_protocol import private_files, state_file
from carpool_protocol.config.load import MAX_LAYER_BYTES, Layer, Texts

_MAX_BYTES = 6 * MAX_LAYER_BYTES + 65536
"""JSON makes six characters of one at most."""


class _File(Struct, frozen=True):
    file: str
    """The configuration file it is of."""
    texts: dict[str, str]
    included: list[str]


class LastGood:
    """That of one runtime directory. `path`: without one nothing is kept."""

    def __init__(self, path: str = "") -> None:
        self._path = path
        self._held = b""
        """What is in the file, as far as known here."""

    def find(self, file: str) -> Texts | None:
        """What was kept of this configuration file. Never raises."""
        if not self._path:
            return None
        try:
            data = state_file.read(self._path, _MAX_BYTES)
            if isinstance(data, str):
                return None
            found = msgspec.json.decode(data, type=_File)
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return None
        self._held = data
        return Texts(found.texts, tuple(found.included)) if found.file == file else None

    def keep(self, layer: Layer) -> str:
        """This is a good reading. A clause about what went wrong; else empty. One that is kept already is not
        written again.
        """
        if not self._path:
            return ""
        texts = layer.texts
        try:
            data = msgspec.json.encode(_File(layer.files[0], dict(texts.by_path), list(texts.included)))
            if data == self._held and os.path.lexists(self._path):
                return ""
            private_files.replace(self._path, data)
        except UnicodeEncodeError:
            return "the path of a file is not UTF-8"
        except OSError as error:
            return f"{self._path} cannot be written ({error.strerror})"
        self._held = data
        return ""
