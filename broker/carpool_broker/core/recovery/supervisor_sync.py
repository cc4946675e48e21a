"""What a supervisor is told when it comes, and what is wanted of it from then on.

Owns the order: which pools are wanted; then the supervisor tells what it remembers (`recovery`); then who is
there and who has moved meanwhile, what sessions want to hear and what they look at; then calls flow. Owns
what was said as wanted.

Knows nothing of: what is in the record, why a pool is wanted.
"""

from collections.abc import Callable, Mapping

from msgspec.structs import replace

from carpool_broker.core.calls import lost_state
from carpool_broker.core.calls.call_table import Ledger
from carpool_broker.core.configuration.session_views import Outlook
from carpool_broker.core.model.effects import AnyEffect
from carpool_broker.core.model.events import SupervisorCame
from carpool_broker.core.model.session import Session
from carpool_broker.core.recovery.recovery import Recovery
from carpool_broker.core.registry.catalog_queue import CatalogQueue
from carpool_broker.core.registry.registry import Registry
from carpool_broker.core.requests.dispatch import Requests
from carpool_broker.core.requests.notifications import Hearing
from carpool_protocol.ids import PoolKey, SessionId
from carpool_protocol.link.messages import Discover, Recorded, SessionRekeyed, Wanted


class Linking:
    """The link to the supervisor."""

    def __init__(
        self,
        sessions: Mapping[SessionId, Session],
        registry: Registry,
        outlook: Outlook,
        ledger: Ledger,
        requests: Requests,
        *,
        recovery: Recovery,
        hearing: Hearing,
        queue: CatalogQueue,
        out: Callable[[AnyEffect], None],
    ) -> None:
        self._sessions = sessions
        self._registry = registry
        self._outlook = outlook
        self._ledger = ledger
        self._requests = requests
        self._recovery = recovery
        self._out = out
        self._hearing = hearing
        self._queue = queue
        self._credit_bytes: int | None = None
        """The link's, until the record is told."""
        self.wanted: set[PoolKey] = set()
        self._said: Wanted | None = None
        """What the supervisor knows to be wanted."""
        self._moved: dict[tuple[SessionId, PoolKey], SessionRekeyed] = {}
        """Who is served elsewhere since a supervisor last took calls, by where it was before."""
        recovery.known = self._say_everybody
        recovery.settled = self._say_all_interests

    # --- supervisors come and go -----------------------------------------------------------------------

    def came(self, event: SupervisorCame) -> None:
        """It greeted. What it remembers comes next; nothing else is said to it before."""
        self._outlook.states.clear()
        self._credit_bytes = event.credit_bytes
        self._recovery.supervisor_came(event.epoch)
        self._said = self._all_wanted()
        self._out(self._said)

    def heard(self, event: Recorded, now: float) -> None:
        """A part of what it remembers. After the last one it takes calls."""
        if self._credit_bytes is None:
            return
        self._recovery.hear(event)
        if not event.last:
            return
        self._ledger.admission.credit_bytes, self._credit_bytes = self._credit_bytes, None
        self.say_wanted()
        self._recovery.met()
        self._say_sessions()
        for word in self._moved.values():
            self._out(word)
        self._moved.clear()
        self._recovery.told(now)
        self._requests.hints.supervisor_came()
        self._say_all_interests()
        self._discover_used()
        self._ledger.admission.pump_all(now)

    def went(self) -> None:
        """It is gone."""
        self._credit_bytes = None
        self._recovery.supervisor_went(self._outlook.states)

    def is_linked(self) -> bool:
        """Whether there is a supervisor that takes calls."""
        return self._ledger.admission.credit_bytes is not None

    def is_heard(self) -> bool:
        """Whether it is told what sessions want to hear."""
        return self.is_linked() and not self._recovery.hushed

    def _say_sessions(self) -> None:
        self._out(lost_state.said(self._sessions.values(), self._recovery.expected()))

    def _say_everybody(self) -> None:
        """Nobody comes back any more."""
        if self.is_linked():
            self.say_wanted()
            self._say_sessions()

    def _say_all_interests(self) -> None:
        """All at once: the supervisor says then what has changed of it while no broker was there."""
        self._requests.interests.restart()
        self.say_interests()

    def say_interests(self) -> None:
        """Tell what the supervisor does not know yet of levels and subscriptions."""
        if self.is_heard():
            for news in self._requests.interests.news():
                self._out(news)

    def _discover_used(self) -> None:
        """A new supervisor knows nothing: ask for what sessions look at and for what shall be replaced."""
        looking = {(s.scope, s.rooting): s for s in self._sessions.values() if s.served}
        for session in looking.values():
            self._outlook.discover(session, self._outlook.view(session))
        for key in self._outlook.sources.to_discover():
            self._out(Discover(key))

    def say_rekeyed(self, word: SessionRekeyed) -> None:
        """A session is served elsewhere. Where it was it may hold a lease also when only the link is down."""
        if self.is_linked():
            self._out(word)
        else:
            self._moved[word.session, word.old] = word

    def forget(self, session: SessionId) -> None:
        """The agent is gone."""
        self._moved = {key: word for key, word in self._moved.items() if key[0] != session}

    # --- what is wanted --------------------------------------------------------------------------------

    def _all_wanted(self) -> Wanted:
        wanted = self._outlook.sources.wanted()
        return wanted if self._recovery.everybody else replace(wanted, complete=False)

    def say_wanted(self) -> None:
        """Other pools are wanted now, perhaps."""
        wanted = self._all_wanted()
        self._ledger.learn_limits(wanted.pools)
        keys = {spec.key for spec in wanted.pools}
        for key in sorted(self.wanted - keys):
            state = self._outlook.states.pop(key, None)
            for told in (self._registry.catalog(key), state, *self._queue.drop(key)):
                if told is not None:  # while not all is said that is wanted it is not told again
                    self._recovery.keep(told)
            self._ledger.fresh.forget(key)
            self._outlook.retry_at.pop(key, None)
            self._hearing.tell_all(self._registry.forget(key))
        self._outlook.slow &= keys
        self._requests.hints.keep(keys)
        self.wanted = keys
        if self.is_linked():
            if wanted != self._said:
                self._said = wanted
                self._out(wanted)
            self._requests.interests.is_stale = True
            for key in self._outlook.sources.to_discover():
                self._out(Discover(key))
