"""Profiles in the simulated world: rights that change, and the rule that no call goes past them.

Owns the draw of rights, from a seed of its own so that no other storm changes by it, and the judgement of
each call that leaves the broker. Knows nothing of: how the broker keeps to them.
"""

from collections.abc import Collection, Iterator, Sequence
from random import Random
from typing import Any, Final

from msgspec.structs import replace

from carpool_broker.core.broker import BrokerCore
from carpool_broker.core.model.bounds import ProfileLimits, SessionBounds
from carpool_broker.core.model.compiled_profile import ALL_RIGHTS, Rights
from carpool_broker.core.model.events import LimitsRead, SessionOpened, SourceId
from carpool_broker.core.model.scope import Scope, ScopeEntry
from carpool_broker.core.registry.request_target import is_still_allowed
from carpool_protocol.config.schema.capability import capability
from carpool_protocol.link.messages import Call
from carpool_supervisor.core.supervisor import SupervisorCore
from tests.world.sim.oracles.violation import Violation

PROFILE: Final = "p"
LIMITS: Final = {PROFILE: ProfileLimits(max_in_flight=3, calls_per_minute=600)}
PATTERNS: Final = (
    "*",
    "mcp:*:t0",
    "mcp:*:t1",
    "mcp:s0",
    "mcp:s1:*",
    "mcp:s[12]",
    "resource:*:*",
    "resource:s0:*",
)


class Profiles:
    """The profile of one world. `sources`: whose sessions have it; without any there is none."""

    def __init__(self, seed: int, sources: Collection[SourceId]) -> None:
        self._rng = Random(f"rights {seed}")
        self._sources = sources
        self.rights = ALL_RIGHTS
        self.judged = 0
        self._came = 0

    def changed(self, bounds: SessionBounds, list_wait_s: float, *, calm: bool) -> Iterator[LimitsRead]:
        """The file is read again: other rights are drawn. In the calm after a storm all is permitted."""
        if self._sources:
            allow = self._rng.sample(PATTERNS, self._rng.randint(1, 3))
            deny = self._rng.sample(PATTERNS[1:], self._rng.randint(0, 2))
            drawn = Rights(tuple(map(capability, allow)), tuple(map(capability, deny)))
            self.rights = ALL_RIGHTS if calm else drawn
            yield LimitsRead(replace(bounds, profiles=LIMITS), list_wait_s, audits=True)

    def scope(self, entries: list[ScopeEntry], source: SourceId) -> Scope:
        """What sessions of this source see."""
        if source not in self._sources:
            return Scope(tuple(entries))
        seen = [entry for entry in entries if self.rights.sees_server(entry.server, ())]
        barred = tuple((entry.server, None) for entry in entries if entry not in seen)
        profile = "" if self.rights.are_all else PROFILE
        return Scope(tuple(seen), profile=profile, rights=self.rights, barred=barred)

    def brought(self, came: SessionOpened) -> SessionOpened:
        """As it comes with the profile, every other one with the same token."""
        if came.source not in self._sources:
            return came
        self._came += 1
        return replace(came, profile=PROFILE, principal="token" if self._came % 2 else "")

    def look(self, core: BrokerCore | SupervisorCore, effects: Sequence[Any]) -> None:
        """Judge each call that leaves: of a server that is configured still."""
        if not self._sources or not isinstance(core, BrokerCore):
            return
        for call in effects:
            if not isinstance(call, Call):
                continue
            open_call = core.call_table.calls[call.call]
            session = open_call.session
            if not session.profile or open_call.task:
                continue
            self.judged += 1
            if not is_still_allowed(core.view_of(session.id), call.method, open_call.server, call.target):
                raise Violation(
                    f"{session.id} reached {open_call.server} {call.target}, which its profile keeps back"
                )
            assert session.quota is not None
            if session.quota.sent > (LIMITS[PROFILE].max_in_flight or 0):
                ours = sum(
                    1
                    for each in session.quota.sessions.values()
                    for mine in each.open_calls.values()
                    if mine.stage == "sent" and mine.call >= core.call_table.before
                )
                if ours > (LIMITS[PROFILE].max_in_flight or 0):
                    raise Violation(f"{ours} calls of one holder are under way")
