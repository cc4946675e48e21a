"""Cached catalogs: the offers of servers on disk by pool key, so that lists exist before any server runs.

Owns one file for each pool that has sent a catalog, in `catalogs/` of the state directory: private, sealed
with the secret of the pool keys, replaced whole, bounded in number and size (the oldest is removed first). A
file holds the server's own information and lists, and their time; nothing of its environment. A catalog that
contains a value of that environment or of a variable is not kept. Neither is one of a pool with unknown
values (its sessions have ended, or have not resumed after the death of a broker). A file without our seal, of
another version or of another key is ignored with one line in the log, and replaced when the server sends its
catalog.

Invariant: no failure here is fatal, and no writing delays the broker. Knows nothing of: the agents that see a
catalog, and when it counts (`registry`).
"""

import contextlib
import hmac
import json
import logging
import os
import re
from collections.abc import Callable, Iterable
from hashlib import blake2b
from typing import Final

import msgspec
import trio
from msgspec import Struct

from carpool_protocol.files import state_file
from carpool_protocol.ids import PoolKey
from carpool_protocol.link.messages import Catalog
from carpool_protocol.runtime.wallclock import wallclock

log = logging.getLogger("carpool.broker")

DIRECTORY: Final = "catalogs"
MAX_FILE_BYTES: Final = 4 * 1024 * 1024
MAX_FILES: Final = 512
MAX_BYTES: Final = 64 * 1024 * 1024
"""All files together."""
MAX_LOADED: Final = 256
"""Catalogs that are kept in memory, so that they are not read again."""
WRITE_DELAY_S: Final = 1.0
"""Pause between writes, for a server that announces changes all the time."""
FLUSH_TIMEOUT_S: Final = 3.0
"""How long the end of the process waits for the disk."""
MIN_SECRET_CHARS: Final = 8
"""Shorter values are not searched for: they stand in any text."""

_HEAD: Final = b"carpool catalog 1\n"
_SEAL_BYTES: Final = 32
_NAME: Final = re.compile(r"[0-9a-f]{16}\.catalog")
_PART: Final = re.compile(r"[0-9a-f]{16}\.catalog\.part-([0-9]+)")
"""The name that `private_files.replace` gives an unfinished file; it ends with the writer's pid."""


class CachedCatalog(Struct, frozen=True, array_like=True):
    """The catalog of one pool, and the time at which it was received (in the form of `wallclock`)."""

    catalog: Catalog
    told_at: str


_decode = msgspec.msgpack.Decoder(CachedCatalog).decode


class CatalogCache:
    """The files of one broker."""

    def __init__(self, state: str, secret: bytes) -> None:
        """`secret`: empty: nothing is kept."""
        self._directory = os.path.join(state, DIRECTORY)
        self._secret = blake2b(b"catalogs", key=secret, digest_size=32).digest() if secret else b""
        self._loaded: dict[PoolKey, CachedCatalog] = {}
        self._unwritten: dict[PoolKey, bytes] = {}
        """The next content of these files; empty: remove the file."""
        self._wakeup = trio.Event()
        self._logged: set[PoolKey] = set()
        self._disk_lock = trio.CapacityLimiter(1)

    # --- reading ---------------------------------------------------------------------------------------

    def find(self, key: PoolKey) -> CachedCatalog | None:
        """The last catalog of this pool, of this broker or an earlier one; None: there is none."""
        kept = self._loaded.get(key)
        if kept is None and self._secret:
            kept = self._read(key)
            if kept is not None:
                self._add_loaded(key, kept)
        return kept

    def told_at(self, key: PoolKey) -> str:
        """The time of that catalog; empty: there is none."""
        kept = self.find(key)
        return "" if kept is None else kept.told_at

    def _read(self, key: PoolKey) -> CachedCatalog | None:
        path = self._path(key)
        try:
            data: bytes | str = state_file.read_state_file(path, MAX_FILE_BYTES)
        except FileNotFoundError:
            return None
        except OSError as error:
            data = f"cannot be read ({error.strerror})"
        if isinstance(data, bytes):
            kept = unseal(data, self._secret)
            if kept is not None and kept.catalog.key == key:
                return kept
            data = "is not a catalog of this carpool"
        self._log_once(key, f"{path} {data}; it is ignored until the server has sent its lists again")
        return None

    def _log_once(self, key: PoolKey, text: str) -> None:
        if key not in self._logged:
            self._logged.add(key)
            log.warning("%s", text)

    def _add_loaded(self, key: PoolKey, kept: CachedCatalog) -> None:
        self._loaded.pop(key, None)
        self._loaded[key] = kept
        if len(self._loaded) > MAX_LOADED:
            del self._loaded[next(iter(self._loaded))]

    # --- writing ---------------------------------------------------------------------------------------

    def catalog_received(self, catalog: Catalog, secrets: Iterable[str] | None) -> None:
        """Keep a catalog that a pool has sent. It is written soon.

        `secrets`: values of environment and variables of the pool; None: they are not known.
        """
        if not self._secret or secrets is None:
            return
        kept = CachedCatalog(catalog, wallclock())
        # A server sends all its lists with each change. A catalog that is far too large is not even encoded.
        data = seal_catalog(kept, self._secret) if definition_bytes(catalog) <= MAX_FILE_BYTES else b""
        why = ""
        if not data or len(data) > MAX_FILE_BYTES:
            why = f"are larger than {MAX_FILE_BYTES} bytes"
        elif contains_secret(data, secrets):
            why = "hold a value of its environment or of a variable"
        if why:
            server = catalog.key.rpartition(":")[0]
            self._log_once(catalog.key, f"the lists of {server} {why}: they are not kept for the next start")
            self._loaded.pop(catalog.key, None)
            data = b""
        else:
            self._add_loaded(catalog.key, kept)
        self._unwritten[catalog.key] = data
        self._wakeup.set()

    async def run(self) -> None:
        """Write received catalogs, until cancelled."""
        if self._secret:
            await self._in_thread(remove_old_files, self._directory)
        while True:
            await self._wakeup.wait()
            await self._write(abandon=False)
            await trio.sleep(WRITE_DELAY_S)

    async def flush(self) -> None:
        """Write the rest at the end of the process, if the disk is fast enough."""
        with trio.move_on_after(FLUSH_TIMEOUT_S):
            if self._wakeup.is_set():
                await self._write(abandon=True)

    async def _write(self, *, abandon: bool) -> None:
        self._wakeup = trio.Event()
        todo, self._unwritten = self._unwritten, {}
        await self._in_thread(
            write_files,
            self._directory,
            {self._path(key): data for key, data in todo.items()},
            abandon=abandon,
        )

    async def _in_thread(self, do: Callable[..., str], *what: object, abandon: bool = False) -> None:
        trouble = await trio.to_thread.run_sync(do, *what, limiter=self._disk_lock, abandon_on_cancel=abandon)
        if trouble:
            log.warning("%s", trouble)

    def _path(self, key: PoolKey) -> str:
        return os.path.join(self._directory, f"{key.rpartition(':')[2]}.catalog")


def definition_bytes(catalog: Catalog) -> int:
    """Bytes of all entries of a catalog, without anything around them."""
    families = (catalog.tools, catalog.prompts, catalog.resources, catalog.templates)
    return sum(len(offer.definition) for family in families for offer in family)


def seal_catalog(kept: CachedCatalog, secret: bytes) -> bytes:
    """The content of a file."""
    body = msgspec.msgpack.encode(kept)
    return _HEAD + _seal(body, secret) + body


def unseal(data: bytes, secret: bytes) -> CachedCatalog | None:
    """The catalog in a file. None: it was not written with this secret in this version."""
    seal, body = data[len(_HEAD) : len(_HEAD) + _SEAL_BYTES], data[len(_HEAD) + _SEAL_BYTES :]
    if not data.startswith(_HEAD) or not hmac.compare_digest(seal, _seal(body, secret)):
        return None
    try:
        return _decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError):  # from another carpool with the same secret
        return None


def _seal(body: bytes, secret: bytes) -> bytes:
    return blake2b(body, key=secret, digest_size=_SEAL_BYTES).digest()


def contains_secret(data: bytes, secrets: Iterable[str]) -> bool:
    """True if one of these values stands in the data, as it is or as JSON writes it.

    Short values and paths are ignored: they are everywhere and no secrets.
    """
    for value in secrets:
        if len(value) < MIN_SECRET_CHARS or _is_path(value):
            continue
        forms = {value, json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1]}
        if any(form.encode(errors="replace") in data for form in forms):
            return True
    return False


def _is_path(value: str) -> bool:
    """True if it names a place on this machine, or could. A key may begin with `/` too."""
    path = os.path.expanduser(value)
    above = os.path.dirname(path)
    try:
        return os.path.isabs(path) and (os.path.lexists(path) or (above != "/" and os.path.isdir(above)))
    except ValueError:  # it holds a NUL character
        return False


def write_files(directory: str, files: dict[str, bytes]) -> str:
    """Write these files, remove those without content, and keep the bounds. Returns a problem, or an empty
    text.
    """
    trouble = ""
    for path, data in files.items():
        if data:
            trouble = state_file.write_state_file(path, data) or trouble
        else:
            with contextlib.suppress(OSError):
                os.unlink(path)
    return trouble or remove_old_files(directory)


def remove_old_files(directory: str) -> str:
    """Remove the oldest files above the bounds, and unfinished files of dead brokers.

    Always returns an empty text: it is tried again later.
    """
    found: list[tuple[int, int, str]] = []
    with contextlib.suppress(OSError), os.scandir(directory) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):  # a file that vanished meanwhile must not end the search
                if _NAME.fullmatch(entry.name):
                    stat = entry.stat(follow_symlinks=False)
                    found.append((stat.st_mtime_ns, stat.st_size, entry.path))
                elif (part := _PART.fullmatch(entry.name)) and not _is_alive(int(part[1])):
                    os.unlink(entry.path)
    found.sort(reverse=True)
    total = 0
    for number, (_, size, path) in enumerate(found):
        total += size
        if number >= MAX_FILES or total > MAX_BYTES:
            with contextlib.suppress(OSError):
                os.unlink(path)
    return ""


def _is_alive(pid: int) -> bool:
    """True if there may be such a process."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        pass
    return True
