"""Evidence about servers, kept on disk, so that a server found out once is not shared wrongly after a
restart.

Owns one file, `verdicts.json` in the state directory: JSON, versioned, mode 0600, replaced as a whole. Keys
are `sharing.launch_identity`: server and program, no arguments, so no secrets. What is kept is evidence;
modes are decided from it anew each time.

Invariants: nothing here is fatal. A file that is broken, foreign, of another user or of another version is
set aside under another name and that is said; a disk that cannot be written is said. Several supervisors
may share the file: saving merges what is there.
Knows nothing of: clocks (wall time comes in), what evidence means.
"""

import os
import stat
from collections.abc import Mapping
from contextlib import suppress
from typing import Final, Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from carpool_supervisor.core.sharing import Evidence, EvidenceKind

NAME: Final = "verdicts.json"
MAX_BYTES: Final = 4 * 1024 * 1024
MAX_SERVERS: Final = 1000
"""Past it, what was not seen for longest is forgotten."""
MAX_DETAIL: Final = 200
_ASIDE: Final = 9
"""So many files are kept aside; the last is written over."""


class Known(Struct, frozen=True):
    """What was seen of one server, at most one piece of each kind."""

    evidence: tuple[Evidence, ...]


class Verdicts(Struct, frozen=True, forbid_unknown_fields=True):
    """All of it: the file's own form."""

    version: Literal[1] = 1
    servers: Mapping[str, Known] = {}


EMPTY: Final = Verdicts()

_decode = msgspec.json.Decoder(Verdicts).decode


def verdicts_file(state: str) -> str:
    """Where it lies in the state directory."""
    return os.path.join(state, NAME)


def evidence_of(verdicts: Verdicts, key: str) -> tuple[Evidence, ...]:
    """What was seen of this server."""
    known = verdicts.servers.get(key)
    return known.evidence if known is not None else ()


def record(verdicts: Verdicts, key: str, kind: EvidenceKind, at: str, detail: str = "") -> Verdicts:
    """With one more sighting, at wall time `at` (as `wallclock` writes it). `detail` never holds argument
    values.
    """
    seen = Evidence(kind=kind, first=at, last=at, detail=detail[:MAX_DETAIL])
    known = {each.kind: each for each in evidence_of(verdicts, key)}
    before = known.get(kind)
    if before is not None:
        seen = replace(
            seen,
            first=min(before.first, at),
            last=max(before.last, at),
            times=before.times + 1,
            detail=seen.detail or before.detail,
        )
    known[kind] = seen
    return _bounded({**verdicts.servers, key: Known(tuple(known.values()))})


def merged(one: Verdicts, other: Verdicts) -> Verdicts:
    """Everything seen by either; of one piece that both have, the wider (so merging twice changes
    nothing).
    """
    servers = dict(one.servers)
    for key, known in other.servers.items():
        mine = {each.kind: each for each in evidence_of(one, key)}
        for each in known.evidence:
            mine[each.kind] = _wider(mine[each.kind], each) if each.kind in mine else each
        servers[key] = Known(tuple(mine.values()))
    return _bounded(servers)


def _wider(one: Evidence, other: Evidence) -> Evidence:
    return Evidence(
        kind=one.kind,
        first=min(one.first, other.first),
        last=max(one.last, other.last),
        times=max(one.times, other.times),
        detail=max(one, other, key=lambda each: (each.last, each.detail)).detail,
    )


def _bounded(servers: dict[str, Known]) -> Verdicts:
    while len(servers) > MAX_SERVERS:
        del servers[
            min(servers, key=lambda key: max((each.last for each in servers[key].evidence), default=""))
        ]
    return Verdicts(servers=servers)


def load(path: str) -> tuple[Verdicts, str]:
    """What the file holds, and a sentence for the log where something was wrong with it (else empty)."""
    try:
        data = _read(path)
    except FileNotFoundError:
        return EMPTY, ""
    except OSError as error:
        return EMPTY, f"{path} cannot be read ({error.strerror}); sharing starts without earlier evidence"
    if isinstance(data, str):
        return EMPTY, _set_aside(path, data)
    try:
        return _decode(data), ""
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return EMPTY, _set_aside(path, "is not a verdicts file of this version")


def _read(path: str) -> bytes | str:
    """The bytes, or what is wrong with the file. Never waits (a FIFO) and follows no link."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        if stat.S_ISLNK(os.lstat(path).st_mode):
            return "is a symbolic link"
        raise error from None
    try:
        found = os.fstat(file)
        if not stat.S_ISREG(found.st_mode):
            return "is no regular file"
        if found.st_uid != os.geteuid():
            return "belongs to another user"
        if found.st_size > MAX_BYTES:
            return f"is larger than {MAX_BYTES} bytes"
        with os.fdopen(os.dup(file), "rb") as stream:
            return stream.read(MAX_BYTES)
    finally:
        os.close(file)


def _set_aside(path: str, why: str) -> str:
    names = [f"{path}.aside-{number}" for number in range(1, _ASIDE + 1)]
    aside = next((name for name in names if not os.path.lexists(name)), names[-1])
    try:
        os.replace(path, aside)
    except OSError as error:
        return (
            f"{path} {why} and cannot be moved away ({error.strerror}); remove it, or verdicts are not kept"
        )
    return f"{path} {why}; it is now {aside}, and sharing starts without earlier evidence"


def save(path: str, verdicts: Verdicts) -> tuple[Verdicts, str]:
    """Put it on disk, together with what another supervisor put there meanwhile. Returns all of that, and a
    sentence for the log where something was wrong (else empty); a file that could not be written leaves the
    old one as it was.
    """
    on_disk, said = load(path)
    whole = merged(on_disk, verdicts)
    part = f"{path}.part-{os.getpid()}"
    try:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        _write(part, msgspec.json.format(msgspec.json.encode(whole), indent=1) + b"\n")
        os.replace(part, path)
    except OSError as error:
        with suppress(OSError):
            os.unlink(part)
        trouble = (
            f"{path} cannot be written ({error.strerror}); what was seen of servers holds until carpool ends"
        )
        return whole, trouble
    return whole, said


def _write(part: str, data: bytes) -> None:
    with suppress(FileNotFoundError):
        os.unlink(part)  # left by an earlier process of this number
    file = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(file, "wb") as stream:
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())
