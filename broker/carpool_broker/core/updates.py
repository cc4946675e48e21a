"""What follows when catalogs, states of pools or configurations are others than they were.

Owns the order of that: the registry learns it, sessions go along to the scope that is in force for them and
hear which lists are others, the supervisor is told what is wanted now, and what waited for it goes on. While
a long catalog is learned in slices (`catalog_queue`) all other events pass.

Knows nothing of: what a source or a catalog holds, what waits, how a change is told.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from carpool_broker.core.calls import lost_state
from carpool_broker.core.calls.call_table import Ledger
from carpool_broker.core.configuration.session_views import Followed, Outlook
from carpool_broker.core.model.effects import AnyEffect
from carpool_broker.core.model.events import PinsApproved, SessionMoved, SourceDropped, SourceRead
from carpool_broker.core.model.session import Session
from carpool_broker.core.recovery.recovery import Recovery
from carpool_broker.core.recovery.supervisor_sync import Linking
from carpool_broker.core.registry.catalog_queue import CatalogQueue, Learned
from carpool_broker.core.registry.registry import Registry
from carpool_broker.core.requests.dispatch import Requests
from carpool_broker.core.requests.notifications import Hearing
from carpool_broker.core.requests.roots import Roots
from carpool_protocol.ids import PoolKey, SessionId
from carpool_protocol.link.messages import Catalog, PoolChanged

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
        linking: Linking,
        queue: CatalogQueue,
        out: Callable[[AnyEffect], None],
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
        self._linking = linking
        self._queue = queue
        self._out = out

    # --- what happens ----------------------------------------------------------------------------------

    def catalog(self, event: Catalog, now: float) -> None:
        """The supervisor tells what a pool offers."""
        self._queue.add(event, now)
        if len(self._queue) == 1:
            self.learn_slice(now)

    def pool_changed(self, event: PoolChanged, now: float) -> None:
        """The supervisor tells how a pool is."""
        if self._queue.holds(event.key):
            self._queue.add(event, now)
        else:
            self._pool_changed(event, now)

    def learn_slice(self, now: float) -> None:
        """The next slice of what is told."""
        for told in self._queue.advance(now):
            if isinstance(told, PoolChanged):
                self._pool_changed(told, now)
            else:
                self._learned(told, now)

    def finish(self, now: float) -> None:
        """All that was told, at once: who has told it is gone."""
        while self._queue:
            self.learn_slice(now)

    def _learned(self, learned: Learned, now: float) -> None:
        event = learned.catalog
        self._outlook.slow.discard(event.key)
        self._requests.hints.told(event, learned.came)
        self._ledger.fresh.forget(event.key)
        self._hearing.tell_all(learned.changes)
        if self._registry.pins.known:
            self._requests.second_look.at_held()
        self._recovery.moved()
        self._moved(now, event.key)

    def _pool_changed(self, event: PoolChanged, now: float) -> None:
        was = self._outlook.states.get(event.key)
        self._outlook.learn(event, now)
        if event.mode == "session" and (was is None or was.mode != "session"):
            for each in lost_state.became_stateful(self._sessions.values(), event):
                self._out(each)
        self._ledger.fresh.forget(event.key)
        hidden = event.state in AWAY
        self._hearing.tell_all(self._registry.hide(event.key) if hidden else self._registry.show(event.key))
        self._moved(now, event.key)

    def read(self, readings: Sequence[SourceRead], now: float) -> None:
        """Configurations were read. The supervisor hears once what is wanted after all of them."""
        for reading in readings:
            self._registry.pins.read(reading.pins)
            self._hearing.tell_all(self._sources.read(reading))
        self.follow()
        sources = {reading.source for reading in readings}
        for each in self._sessions.values():
            if each.source in sources:
                self._roots.look(each)
        self._moved(now)

    def source_dropped(self, event: SourceDropped) -> None:
        """Nobody uses a configuration any more."""
        self._hearing.tell_all(self._sources.drop(event.source))
        self._linking.say_wanted()

    def approved(self, event: PinsApproved, now: float) -> None:
        """Tools that were held are let out."""
        self._hearing.tell_all(self._registry.approve(event.pin, event.tools))
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

    def follow(self, gone: Session | None = None) -> None:
        """Other scopes are in force, or other pools wanted: sessions go along, the supervisor is told.
        `gone`: it is served elsewhere by what it has done itself.
        """
        self._registry.meet()
        moved = self._outlook.follow(self._sessions.values())
        self._linking.say_wanted()
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
                    self._linking.say_rekeyed(word)
        for session, _, families in moved:
            self._hearing.tell(session, families)
            self._requests.followed(session)
