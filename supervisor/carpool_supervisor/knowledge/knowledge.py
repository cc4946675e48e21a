"""Everything that carpool knows about the programs of pools: the well-known list, evidence and eras on disk.

Owns the evidence on sharing and the known eras in this process. They are loaded once at the start, recorded
at once, and written by a thread, one write at a time, so that a slow disk delays nobody. Adds wall times.
Reads the well-known list (`well_known.json`). A file that cannot be read or written is logged and has no
other effect.

Knows nothing of: the meaning of evidence (`sharing`), the time at which pools get it (the shell feeds the
core).
"""

import logging
import os
from collections.abc import Iterable, Mapping
from functools import cache
from importlib import resources
from typing import Final

import trio

from carpool_protocol.config.schema.settings_cluster import ANY_NODE
from carpool_protocol.ids import PoolKey
from carpool_protocol.link.messages import Era, ExplainSharing, NodeTarget, PoolSpec, SharingExplained
from carpool_protocol.runtime.wallclock import wallclock
from carpool_protocol.wire.content import text_of
from carpool_supervisor.core.calls.refusals import left_out_text
from carpool_supervisor.core.model import effects
from carpool_supervisor.core.model.events import PoolKnowledge
from carpool_supervisor.core.model.pool import Pool
from carpool_supervisor.core.model.sharing import EvidenceKind, explain_sharing, launch_identity
from carpool_supervisor.core.model.well_known import WellKnownServers, read_well_known
from carpool_supervisor.knowledge import era_cache
from carpool_supervisor.knowledge.era_cache import NOTHING_KNOWN, EraVerdict
from carpool_supervisor.knowledge.sharing_evidence import (
    NO_EVIDENCE,
    evidence_of,
    load_evidence,
    merged_evidence,
    save_evidence,
    with_evidence,
)


@cache
def well_known() -> WellKnownServers:
    """The well-known list, read once."""
    return read_well_known((resources.files("carpool_supervisor") / "well_known.json").read_bytes())


log = logging.getLogger("carpool.supervisor")

NAMES: Final[dict[Era, str]] = {
    "handshake": "the handshake era (MCP 2024-11-05 to 2025-11-25)",
    "stateless": "the stateless era (MCP 2026-07-28)",
}
FLUSH_S: Final = 5.0
"""The longest wait for a disk when the process ends."""


class Knowledge:
    """The well-known list and the evidence of one supervisor. Only the writing happens in another thread."""

    def __init__(self, path: str) -> None:
        """`path`: the evidence file (`sharing_evidence.verdicts_file`); the file of eras lies beside it."""
        self._path = path
        self._eras_path = era_cache.eras_file(os.path.dirname(path))
        self._verdicts = NO_EVIDENCE
        self._eras = NOTHING_KNOWN
        self._eras_saved = NOTHING_KNOWN
        self._unsaved = trio.Event()
        self._one_at_a_time = trio.CapacityLimiter(1)

    async def load(self) -> None:
        """Read the files. Before that only the well-known list is known."""
        found, trouble = await trio.to_thread.run_sync(load_evidence, self._path, limiter=self._one_at_a_time)
        self._verdicts = merged_evidence(found, self._verdicts)
        _log_trouble(trouble)
        limiter = self._one_at_a_time
        eras, trouble = await trio.to_thread.run_sync(era_cache.load_eras, self._eras_path, limiter=limiter)
        self._eras = self._eras_saved = era_cache.merged_eras(eras, self._eras)
        _log_trouble(trouble)

    def pool_knowledge(self, spec: PoolSpec) -> PoolKnowledge:
        """The knowledge about the program of this pool."""
        identity = launch_identity(spec)
        evidence = evidence_of(self._verdicts, identity)
        era = era_cache.era_of(self._eras, identity, wallclock())
        return PoolKnowledge(spec.key, well_known().find(spec.argv), evidence, era)

    def observe_era(
        self, spec: PoolSpec, seen: effects.RecordEra, specs: Iterable[PoolSpec]
    ) -> list[PoolKnowledge]:
        """An instance of this pool has greeted. Returns what is new for pools of the same program. `specs`:
        those of the server.
        """
        identity = launch_identity(spec)
        name, version = (text_of(seen.server_info, key) or "" for key in ("name", "version"))
        sighting = EraVerdict(seen.era, seen.why, f"{name} {version}".strip(), wallclock())
        before, self._eras = self._eras, era_cache.with_observation(self._eras, identity, sighting)
        if self._eras is before:
            return []
        self._unsaved.set()
        return [self.pool_knowledge(each) for each in specs if launch_identity(each) == identity]

    def era_lines(self, pool: Pool, spec: PoolSpec) -> list[str]:
        """The era of the pool's server and the reason, as `carpool why` prints them."""
        era = NAMES[pool.era]
        if pool.era_wish in ("handshake", "stateless"):
            return [f"carpool talks to it in {era}, as configured."]
        if not pool.ever_fit:
            return ["carpool detects the era of MCP that it speaks at its next start."]
        known = self._eras.servers.get(launch_identity(spec))
        if known is None or not known.why or known.era != pool.era:
            return [f"carpool talks to it in {era}, which it answered; the other was not tried."]
        seen = f"{known.server or 'it'} {known.why}"
        return [f"carpool talks to it in {era}: on {known.at[:10]}, {seen}."]

    def observe(
        self, spec: PoolSpec, kind: EvidenceKind, detail: str, specs: Iterable[PoolSpec]
    ) -> list[PoolKnowledge]:
        """Record evidence on this pool's program. Returns what is new for pools of the same program. `specs`:
        as of `observe_era`.
        """
        identity = launch_identity(spec)
        self._verdicts = with_evidence(self._verdicts, identity, kind, wallclock(), detail)
        self._unsaved.set()
        return [self.pool_knowledge(each) for each in specs if launch_identity(each) == identity]

    async def run(self) -> None:
        """Write what was recorded, until cancelled."""
        while True:
            await self._unsaved.wait()
            await self._save(wait=True)

    async def flush(self) -> None:
        """Write what is left at the end, if the disk is fast enough."""
        with trio.move_on_after(FLUSH_S):
            if self._unsaved.is_set():
                await self._save(wait=False)

    async def _save(self, *, wait: bool) -> None:
        self._unsaved = trio.Event()
        whole, trouble = await trio.to_thread.run_sync(
            save_evidence, self._path, self._verdicts, limiter=self._one_at_a_time, abandon_on_cancel=not wait
        )
        self._verdicts = merged_evidence(whole, self._verdicts)
        _log_trouble(trouble)
        if self._eras is not self._eras_saved:
            known, trouble = await trio.to_thread.run_sync(
                era_cache.save_eras,
                self._eras_path,
                self._eras,
                limiter=self._one_at_a_time,
                abandon_on_cancel=not wait,
            )
            self._eras = self._eras_saved = era_cache.merged_eras(known, self._eras)
            _log_trouble(trouble)


def _log_trouble(trouble: str) -> None:
    if trouble:
        log.warning("%s", trouble)


def explain_pool(
    pools: Mapping[PoolKey, Pool], asked: ExplainSharing, knowledge: Knowledge, spec: PoolSpec | None
) -> SharingExplained:
    """The sharing of a pool, the reasons and its era, as `carpool why` prints them. `spec`: the pool's."""
    pool = pools.get(asked.key)
    if pool is None:
        lines = ["This server has no pool at the moment: it is not configured, or not any more."]
        return SharingExplained(asked.token, lines, "concurrent", verified=False, source="")
    if spec is not None and spec.target is not None:
        lines = _explain_node_server(pool.server, spec.target)
        return SharingExplained(asked.token, lines, pool.verdict.mode, verified=False, source="node")
    if pool.offline:
        lines = [
            f"{pool.server} is offline: its `tools_file` lists tools and nothing runs: nothing is shared.",
            'To make it run: set "command", "url" or "python" beside "tools_file" for it in the config.',
        ]
        return SharingExplained(asked.token, lines, pool.verdict.mode, verified=False, source="")
    lines = explain_sharing(
        pool.server,
        pool.verdict,
        configured=pool.policy.sharing,
        entry=pool.well_known_server,
        evidence=pool.evidence,
    )
    others = (each for each in pools.values() if each.server == pool.server and each.era_wish == "newest")
    if spec is not None and any(each.ever_fit and each.era == "stateless" for each in others):
        lines.append("It speaks both eras of MCP: the agents of each era get processes of their own.")
    elif spec is not None:
        lines += knowledge.era_lines(pool, spec)
    if over := left_out_text(pool):
        lines.append(f"Agents do not see everything that it offers: {over}.")
    verdict = pool.verdict
    return SharingExplained(
        asked.token, lines, verdict.mode, verified=verdict.verified, source=verdict.source
    )


def _explain_node_server(server: str, target: NodeTarget) -> list[str]:
    """The lines of a server of other nodes, whose instances are shared as those nodes decide."""
    where = "a node of the cluster that offers it" if target.node == ANY_NODE else f"node {target.node}"
    there = "that node" if target.node == ANY_NODE else target.node
    name = f", where it is called {target.server}" if target.server != server else ""
    return [
        f"{server} runs at {where}{name}: each agent has a session of its own there.",
        f"How its instances are shared is decided at {there}: run `carpool why {target.server}` there.",
    ]
