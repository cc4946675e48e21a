"""The era of each server, kept on disk, so that a server is probed in the other era once and not at every
start.

Owns one file, `eras.json` in the state directory. Keys are `sharing.launch_identity`: server and program, no
arguments, so no secrets. A verdict is kept if the other era was tried and did not work, with its date and the
version of the server; it does not hold for another version. A verdict "handshake" holds for a week: a server
may learn the newer era without a new version, and still answer `initialize`.

Invariants: as in `sharing_evidence`; of two supervisors that share the file, the one that saw a server last
is right. Knows nothing of: clocks (wall time comes in), how an era is detected.
"""

import os
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Final, Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from carpool_protocol.files import state_file
from carpool_protocol.link.messages import Era

NAME: Final = "eras.json"
MAX_BYTES: Final = 1024 * 1024
MAX_SERVERS: Final = 1000
"""The most servers in the file; the one that was not seen for longest is dropped first."""
MAX_TEXT: Final = 200
HOLDS: Final = timedelta(days=7)
LOST: Final = "the eras of servers are detected again"


class EraVerdict(Struct, frozen=True):
    """The known era of one server."""

    era: Era
    why: str
    """The server's reaction to the greeting of the other era; empty: not tried with this version."""
    server: str
    """The name and version that the server reported."""
    at: str
    """The time, as `wallclock` writes it."""


class EraVerdicts(Struct, frozen=True, forbid_unknown_fields=True):
    """The form of the whole file."""

    version: Literal[1] = 1
    servers: Mapping[str, EraVerdict] = {}


NOTHING_KNOWN: Final = EraVerdicts()

_decode = msgspec.json.Decoder(EraVerdicts).decode


def eras_file(state: str) -> str:
    """The path of the file in the state directory."""
    return os.path.join(state, NAME)


def era_of(verdicts: EraVerdicts, key: str, now: str) -> Era | None:
    """The era that this server speaks at this time; None: it must be detected."""
    known = verdicts.servers.get(key)
    if known is None or not known.why:
        return None
    return known.era if known.era == "stateless" or _age(known.at, now) < HOLDS else None


def _age(at: str, now: str) -> timedelta:
    try:
        age = datetime.fromisoformat(now) - datetime.fromisoformat(at)
    except (ValueError, TypeError):
        return HOLDS
    return age if age >= timedelta() else HOLDS  # a clock that was set back proves nothing


def with_observation(verdicts: EraVerdicts, key: str, seen: EraVerdict) -> EraVerdicts:
    """The verdicts after a server has greeted. Returns the same object if nothing is new."""
    seen = replace(seen, why=seen.why[:MAX_TEXT], server=seen.server[:MAX_TEXT])
    before = verdicts.servers.get(key)
    if not seen.why:
        if before is None or not before.why:
            return verdicts
        if (before.era, before.server) == (seen.era, seen.server):
            return verdicts
    return _bounded({**verdicts.servers, key: seen})


def merged_eras(one: EraVerdicts, other: EraVerdicts) -> EraVerdicts:
    """For each server the verdict that is newer."""
    servers = dict(one.servers)
    for key, theirs in other.servers.items():
        mine = servers.get(key)
        if mine is None or (theirs.at, theirs.era, theirs.why) > (mine.at, mine.era, mine.why):
            servers[key] = theirs
    return _bounded(servers)


def _bounded(servers: dict[str, EraVerdict]) -> EraVerdicts:
    while len(servers) > MAX_SERVERS:
        del servers[min(servers, key=lambda key: servers[key].at)]
    return EraVerdicts(servers=servers)


def load_eras(path: str) -> tuple[EraVerdicts, str]:
    """Read the file. Returns its verdicts, and a sentence for the log if something was wrong (else empty)."""
    return state_file.load_state_file(path, MAX_BYTES, _decode, NOTHING_KNOWN, what="an eras file", lost=LOST)


def save_eras(path: str, verdicts: EraVerdicts) -> tuple[EraVerdicts, str]:
    """Write the file, merged with what another supervisor has written meanwhile. Returns all of it, and a
    sentence for the log if something was wrong (else empty).
    """
    on_disk, problem = load_eras(path)
    whole = merged_eras(on_disk, verdicts)
    trouble = state_file.write_state_file(
        path, msgspec.json.format(msgspec.json.encode(whole), indent=1) + b"\n"
    )
    return whole, f"{trouble}; {LOST} after a restart" if trouble else problem
