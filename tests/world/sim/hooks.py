"""Hooks in the simulated world: what they say of each call, late, badly or never.

Owns the hooks of one world and their verdicts, drawn from its seed. What must hold is what must hold anyway:
the book judges the answers, and the invariants of the core the rest.

Knows nothing of: processes, what is in a call.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from carpool_broker.core.broker import BrokerCore
from carpool_broker.core.model import effects as bf
from carpool_broker.core.model import events as bv
from carpool_protocol.config.schema.capability import capability
from carpool_supervisor.core.supervisor import SupervisorCore
from tests.world.sim.oracles.violation import Violation
from tests.world.sim.profiles import PROFILE
from tests.world.sim.world import World

TIMEOUT_S = 0.4
SLOW_S = 0.1


class HookedWorld(World):
    """A world whose broker has hooks."""

    def __init__(self, seed: int, *args: Any, **settings: Any) -> None:
        self.verdicts: Counter[str] = Counter()
        super().__init__(seed, *args, **settings)
        self.book.bound_s += 6 * TIMEOUT_S

    def read_config(self) -> None:
        """Some other hooks each time."""
        names = [name for name in ("first", "second", "third") if self.rng.random() < 0.7 or self.calm]
        patterns = ("*", "*", "mcp:s0:*", "mcp:*:t0")
        rules = tuple(
            bv.HookRule(
                name=name,
                before=self.rng.random() < 0.7,
                after=self.rng.random() < 0.5,
                match=(capability(self.rng.choice(patterns)),),
                profiles=self.rng.choice(((), (), (PROFILE,))),
                timeout_s=TIMEOUT_S,
                closed=self.rng.random() < 0.5,
                rewrite=self.rng.random() < 0.7,
            )
            for name in names
        )
        self.broker.feed(bv.HooksRead(rules))
        super().read_config()

    def look(self, core: BrokerCore | SupervisorCore, event: Struct, effects: Sequence[Any]) -> None:
        """Also: begin the runs of hooks."""
        super().look(core, event, effects)
        for effect in effects:
            if isinstance(effect, bf.BeginHook):
                self._run(effect)
            elif isinstance(effect, bf.EndHook):
                self._say(bv.HookAnswered(effect.run, "failed", "it was ended"), SLOW_S)

    def _run(self, what: bf.BeginHook) -> None:
        roll = 1.0 if self.calm else self.rng.random()
        if roll < 0.03:
            self.verdicts["never"] += 1
            return
        verdict: bv.HookVerdict = "allow"
        body = what.body if what.outcome else what.arguments
        if roll < 0.1:
            verdict = "deny"
        elif roll < 0.3 and what.outcome in ("", "answered") and not what.is_error:
            verdict = "rewrite"
        elif roll < 0.35:
            verdict = "failed"
        self.verdicts[verdict] += 1
        late = self.rng.random() < 0.03 and not self.calm
        delay_s = 1.5 * TIMEOUT_S if late else self.rng.uniform(0, SLOW_S)
        self._say(bv.HookAnswered(what.run, verdict, "", body), delay_s)

    def _say(self, event: bv.HookAnswered, delay_s: float) -> None:
        broker = self.broker

        def say() -> None:
            if broker.alive:
                broker.feed(event)

        self.later(delay_s, say)


def no_hook_waits(world: HookedWorld) -> None:
    """When all is quiet."""
    hooks = world.broker.core.hooks
    if hooks._runs or hooks._held or hooks._passed or hooks.pending or hooks.held_bytes:
        raise Violation(f"hooks still run: {hooks._runs}, {hooks._held}, {hooks._passed}")
