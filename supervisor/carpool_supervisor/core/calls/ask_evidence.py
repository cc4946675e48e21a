"""Evidence from asks of a server: kept on disk, and told to the broker.

Owns which asks count. Each ask for a call shows that the server asks; agents that cannot be asked then get
instances of their own (rule 12). An ask whose agent is uncertain shows that calls of this server must not
overlap (docs/sharing.md).

Invariants: at most one `RecordEvidence` per pool and kind, because a server may ask a thousand times a
second. Once a server is known to ask, its catalog says so. Knows nothing of: files, the sharing mode that
follows (`sharing`), open asks.
"""

from collections.abc import Callable

from msgspec.structs import replace

from carpool_protocol.link.messages import Catalog
from carpool_supervisor.core.model.effects import AnyEffect, RecordEvidence, WriteLogLine
from carpool_supervisor.core.model.pool import Instance, Pool
from carpool_supervisor.core.model.sharing import EvidenceKind

Emit = Callable[[AnyEffect], None]


def record_ask(pool: Pool, method: str, out: Emit) -> None:
    """The server asked for a call; the outcome does not matter."""
    if not known_to_ask(pool):
        _observe(pool, "asks", method, out)
    if pool.catalog is not None and not pool.catalog.asks:
        pool.catalog = with_ask_evidence(pool, pool.catalog)
        pool.is_catalog_sent = False


def record_ambiguous_ask(instance: Instance, method: str, sessions: int, out: Emit) -> None:
    """The server asked while calls of this many sessions were open, without naming one."""
    pool = instance.pool
    if _observe(pool, "asked_ambiguously", f"{method} with calls of {sessions} sessions open", out):
        text = (
            f"{pool.server} #{instance.id} asked ({method}) while calls of {sessions} sessions were open, "
            f"and did not say for which call: refused. See `carpool why {pool.server}`."
        )
        out(WriteLogLine("warning", text, pool.server, instance.id))


def known_to_ask(pool: Pool) -> bool:
    """True if this server has ever asked, now or in an earlier life of the supervisor."""
    return bool(pool.seen_evidence) or any(
        each.kind in ("asks", "asked_ambiguously") for each in pool.evidence
    )


def with_ask_evidence(pool: Pool, catalog: Catalog) -> Catalog:
    """The catalog to announce, with what is known about the server's asks."""
    return replace(catalog, asks=True) if known_to_ask(pool) and not catalog.asks else catalog


def _observe(pool: Pool, kind: EvidenceKind, detail: str, out: Emit) -> bool:
    if kind in pool.seen_evidence:
        return False
    pool.seen_evidence.add(kind)
    out(RecordEvidence(pool.key, kind, detail))
    return True
