"""Evidence about servers, kept on disk, so that a restart does not share a stateful server wrongly again.

Owns one file, `verdicts.json` in the state directory: JSON, versioned, mode 0600, replaced as a whole. Keys
are `sharing.launch_identity`: server and program, no arguments, so no secrets. The file holds evidence; modes
are decided from it anew each time.

Invariants: nothing here is fatal. A file that is broken, foreign, of another user or of another version is
renamed and reported; a disk that cannot be written is reported. Several supervisors may share the file:
saving merges. Knows nothing of: clocks (wall time comes in), the meaning of evidence.
"""

import os
from collections.abc import Mapping
from typing import Final, Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from carpool_protocol.files import state_file
from carpool_supervisor.core.model.sharing import Evidence, EvidenceKind

NAME: Final = "verdicts.json"
MAX_BYTES: Final = 4 * 1024 * 1024
MAX_SERVERS: Final = 1000
"""The most servers in the file; the one that was not seen for longest is dropped first."""
MAX_DETAIL: Final = 200
LOST: Final = "sharing starts without earlier evidence"


class ServerEvidence(Struct, frozen=True):
    """The evidence about one server, at most one piece of each kind."""

    evidence: tuple[Evidence, ...]


class EvidenceFile(Struct, frozen=True, forbid_unknown_fields=True):
    """The form of the whole file."""

    version: Literal[1] = 1
    servers: Mapping[str, ServerEvidence] = {}


NO_EVIDENCE: Final = EvidenceFile()

_decode = msgspec.json.Decoder(EvidenceFile).decode


def verdicts_file(state: str) -> str:
    """The path of the file in the state directory."""
    return os.path.join(state, NAME)


def evidence_of(verdicts: EvidenceFile, key: str) -> tuple[Evidence, ...]:
    """The evidence about this server."""
    known = verdicts.servers.get(key)
    return known.evidence if known is not None else ()


def with_evidence(
    verdicts: EvidenceFile, key: str, kind: EvidenceKind, at: str, detail: str = ""
) -> EvidenceFile:
    """Add one observation at wall time `at` (as `wallclock` writes it). `detail` never holds argument
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
    return _bounded({**verdicts.servers, key: ServerEvidence(tuple(known.values()))})


def merged_evidence(one: EvidenceFile, other: EvidenceFile) -> EvidenceFile:
    """All evidence of both. Of a piece that both have, the wider period, so merging twice changes nothing."""
    servers = dict(one.servers)
    for key, known in other.servers.items():
        mine = {each.kind: each for each in evidence_of(one, key)}
        for each in known.evidence:
            mine[each.kind] = _wider(mine[each.kind], each) if each.kind in mine else each
        servers[key] = ServerEvidence(tuple(mine.values()))
    return _bounded(servers)


def _wider(one: Evidence, other: Evidence) -> Evidence:
    return Evidence(
        kind=one.kind,
        first=min(one.first, other.first),
        last=max(one.last, other.last),
        times=max(one.times, other.times),
        detail=max(one, other, key=lambda each: (each.last, each.detail)).detail,
    )


def _bounded(servers: dict[str, ServerEvidence]) -> EvidenceFile:
    while len(servers) > MAX_SERVERS:
        del servers[
            min(servers, key=lambda key: max((each.last for each in servers[key].evidence), default=""))
        ]
    return EvidenceFile(servers=servers)


def load_evidence(path: str) -> tuple[EvidenceFile, str]:
    """Read the file. Returns its evidence, and a sentence for the log if something was wrong (else empty)."""
    return state_file.load_state_file(
        path, MAX_BYTES, _decode, NO_EVIDENCE, what="a verdicts file", lost=LOST
    )


def save_evidence(path: str, verdicts: EvidenceFile) -> tuple[EvidenceFile, str]:
    """Write the file, merged with what another supervisor has written meanwhile. Returns all of it, and a
    sentence for the log if something was wrong (else empty). If the write fails the old file stays.
    """
    on_disk, problem = load_evidence(path)
    whole = merged_evidence(on_disk, verdicts)
    trouble = state_file.write_state_file(
        path, msgspec.json.format(msgspec.json.encode(whole), indent=1) + b"\n"
    )
    return whole, f"{trouble}; evidence about servers is kept only until carpool ends" if trouble else problem
