"""What follows when catalogs, states of pools or configurations are others than they were.

Owns the order of that: the registry learns it, sessions go along to the scope that is in force for them and
hear which lists are others, the supervisor is told what is wanted now, and what waited for it goes on. A long
catalog is learned in slices, one with each tick: what else is told of its pool waits behind it, and so do
other catalogs. All other events pass.

Knows nothing of: what a source or a catalog holds, what waits, how a change is told.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from carpool_broker.core.calls import lost_state
from carpool_broker.core.calls.call_table import Ledger
from carpool_broker.core.configuration.session_views import Followed, Outlook
from carpool_broker.core.model.effects import AnyEffect
from carpool_broker.core.model.events import PinsApproved, SessionMoved, SourceDropped, SourceRead
from carpool_broker.core.model.session import Session
from carpool_broker.core.model.timer_kinds import BrokerTimers
from carpool_broker.core.recovery.recovery import Recovery
from carpool_broker.core.registry.registry import Changes, Registry
from carpool_broker.core.requests.dispatch import Requests
from carpool_broker.core.requests.notifications import Hearing
from carpool_broker.core.requests.roots import Roots
from carpool_protocol.ids import PoolKey, SessionId
from carpool_protocol.link.messages import Catalog, PoolChanged, SessionRekeyed
from carpool_protocol.machine.slices import Sliced

NEXT: Final = "next"
"""The slice that is due at once while a catalog is being learned."""

AWAY: Final = frozenset({"given_up", "stopped", "breaker_open", "half_open"})
"""States in which a server leaves every list."""


class Following:
    """For all sessions."""

    def __init__(
        self,
        sessions: Mapping[SessionId, Session],
        registry: Registry,
        outlook: Outlook,
        ledger: Ledger,
        requests: Requests,
        *,
        hearing: Hearing,
        roots: Roots,
        recovery: Recovery,
        out: Callable[[AnyEffect], None],
        timers: BrokerTimers,
    ) -> None:
        self._sessions = sessions
        self._registry = registry
        self._outlook = outlook
        self._sources = outlook.sources
        self._ledger = ledger
        self._requests = requests
        self._hearing = hearing
        self._roots = roots
        self._recovery = recovery
        self._out = out
        self._timers = timers
        self._told: deque[tuple[Catalog | PoolChanged, float]] = deque()
        """What is not taken over yet, and when it came."""
        self._learning: Sliced[Changes] | None = None
        """The first of it, under way."""
        self.say_wanted: Callable[[], None] = lambda: None
        """Tell the supervisor what is wanted now."""
        self.say_rekeyed: Callable[[SessionRekeyed], None] = lambda _: None
        """Tell it who is served elsewhere."""

    # --- what happens ----------------------------------------------------------------------------------

    def catalog(self, event: Catalog, now: float) -> None:
        """The supervisor tells what a pool offers."""
        self._told.append((event, now))
        if len(self._told) == 1:
            self.learn_slice(now)

    def learn_slice(self, now: float) -> None:
        """The next slice of what is told, and what waits behind its last one, up to another catalog."""
        self._timers.disarm("catalog_slice", NEXT)
        if self._told:
            self._go_on(now)
        if self._told:
            self._timers.arm("catalog_slice", NEXT, now, 0.0)

    def _go_on(self, now: float) -> None:
        event, came = self._told[0]
        if isinstance(event, Catalog):
            learning = self._learning = self._learning or Sliced(self._registry.learning(event))
            if not learning.go_on():
                return
            self._learning = None
            self._told.popleft()
            self._learned(event, learning.result, came, now)
        while self._told:
            state, _ = self._told[0]
            if isinstance(state, Catalog):
                return
            self._told.popleft()
            self._pool_changed(state, now)

    def finish(self, now: float) -> None:
        """All that was told, at once: who has told it is gone."""
        while self._told:
            self.learn_slice(now)

    def unwanted(self, key: PoolKey) -> list[Catalog | PoolChanged]:
        """Nobody wants this pool any more: what was told of it and is not taken over."""
        found = [event for event, _ in self._told if event.key == key]
        if found:
            if self._told[0][0].key == key:
                self._learning = None
            self._told = deque(each for each in self._told if each[0].key != key)
        return found

    def _learned(self, event: Catalog, changes: Changes, came: float, now: float) -> None:
        self._outlook.slow.discard(event.key)
        self._requests.hints.told(event, came)
        self._ledger.fresh.forget(event.key)
        self.told(changes)
        if self._registry.pins.known:
            self._requests.second_look.at_held()
        self._recovery.moved()
        self._moved(now, event.key)

    def pool_changed(self, event: PoolChanged, now: float) -> None:
        """The supervisor tells how a pool is."""
        if any(each.key == event.key for each, _ in self._told):
            self._told.append((event, now))
        else:
            self._pool_changed(event, now)

    def _pool_changed(self, event: PoolChanged, now: float) -> None:
        was = self._outlook.states.get(event.key)
        self._outlook.learn(event, now)
        if event.mode == "session" and (was is None or was.mode != "session"):
            for each in lost_state.became_stateful(self._sessions.values(), event):
                self._out(each)
        self._ledger.fresh.forget(event.key)
        hidden = event.state in AWAY
        self.told(self._registry.hide(event.key) if hidden else self._registry.show(event.key))
        self._moved(now, event.key)

    def read(self, readings: Sequence[SourceRead], now: float) -> None:
        """Configurations were read. The supervisor hears once what is wanted after all of them."""
        for reading in readings:
            self._registry.pins.read(reading.pins)
            self.told(self._sources.read(reading))
        self.follow()
        sources = {reading.source for reading in readings}
        for each in self._sessions.values():
            if each.source in sources:
                self._roots.look(each)
        self._moved(now)

    def source_dropped(self, event: SourceDropped) -> None:
        """Nobody uses a configuration any more."""
        self.told(self._sources.drop(event.source))
        self.say_wanted()

    def approved(self, event: PinsApproved, now: float) -> None:
        """Tools that were held are let out."""
        self.told(self._registry.approve(event.pin, event.tools))
        self._requests.moved(now)

    def move(self, session: Session, event: SessionMoved, now: float) -> None:
        """Its configuration comes from another source: nothing of it is lost, but it is served elsewhere."""
        if self._ledger.trail is not None:
            self._ledger.trail.forget(session)
        session.rooting = False
        session.source = event.source
        if (session.asking or session.stateless) and not session.control:
            self._sources.enter(event.source, asking=session.asking, stateless=session.stateless)
        before = session.scope
        self.follow(session)
        if event.elsewhere:
            self._hearing.left(session, before)
        self._roots.look(session)
        if session.served:
            self._outlook.discover(session, self._outlook.view(session))
        self._moved(now)

    # --- what comes of it ------------------------------------------------------------------------------

    def told(self, changes: Changes) -> None:
        """The views of these scopes are others now."""
        if changes:
            for session in self._sessions.values():
                self._hearing.tell(session, changes.get(session.scope, ()))

    def follow(self, gone: Session | None = None) -> None:
        """Other scopes are in force, or other pools wanted: sessions go along, the supervisor is told.
        `gone`: it is served elsewhere by what it has done itself.
        """
        self._registry.meet()
        moved = self._outlook.follow(self._sessions.values())
        self.say_wanted()
        self._led(moved, gone)

    def classed(self, session: Session) -> None:
        """It is of another class of agents now: it sees what that one does (rule 12)."""
        if self._sources.enter(session.source, asking=session.asking, stateless=session.stateless):
            self.follow(session)
        else:
            self._led(self._outlook.follow([session]), session)

    def _moved(self, now: float, key: PoolKey | None = None) -> None:
        """Catalogs or pool states are others now (`key`'s): what waited for that may go on."""
        if self._sources.advance(key):
            self.follow()
        self._requests.moved(now)

    def _led(self, moved: list[Followed], gone: Session | None) -> None:
        for session, before, _ in moved:
            for word in lost_state.moved(session, before):
                # A pool that nobody has any more gives its leases back by itself, and lets them finish.
                if session is gone or self._sources.goes_on(session.source, word.old, word.new):
                    self.say_rekeyed(word)
        for session, _, families in moved:
            self._hearing.tell(session, families)
            self._requests.followed(session)
