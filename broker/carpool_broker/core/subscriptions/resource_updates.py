"""Changes of resources on their way to the agents that are subscribed to them.

Owns when each is told. A change goes to every subscriber, so a short line of a server can make thousands of
lines to agents. A change that few hear of is told at once. What costs more waits and is told in slices, with
other events in between (docs/decisions/0039). A change that waits is told once, however often it comes again,
and the last one of each resource is always told. Owners take turns: each token, and all sessions without one
together, so that a change of which thousands of sessions hear is noted a few times only. All telling
together takes a bounded part of the broker's time: it has an allowance that grows with time. An agent that
leaves much unread is told once it reads, in slices too.

What waits is bounded by what agents are subscribed to. If an owner has too many changes of parts of such
resources waiting, the resource itself is told as changed in their place. Long params do not wait: the URI is
told alone.

Deterministic: costs are counted in units of about a microsecond, time is a parameter. Invariant (`check`):
what waits has a timer. Knows nothing of: who is subscribed to what (`subscription_table`), wording.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

from carpool_broker.core.calls.call_table import CallTable
from carpool_broker.core.configuration.session_views import SessionViews
from carpool_broker.core.model.effects import AnyEffect, SendResourceUpdated
from carpool_broker.core.model.session import Session
from carpool_broker.core.model.timer_kinds import BrokerTimers
from carpool_broker.core.subscriptions.subscription_table import Resource, SubscriptionTable
from carpool_protocol.ids import ABSENT, PoolKey, RawJson, SessionId
from carpool_protocol.link.messages import ResourceChanged
from carpool_protocol.machine.allowance import Allowance
from carpool_protocol.machine.slices import Steps
from carpool_protocol.wire.jsonrpc import quote

NEXT_SLICE: Final = "next"
"""The key of the timer for the next slice."""
LINE_UNITS: Final = 20
"""The cost of a line to an agent."""
BYTES_OF_UNIT: Final = 64
"""A line costs one unit more for each so many bytes of its params."""
FEW_SESSIONS: Final = 100
"""A change that so many hear of is told at once if nothing waits. If more do, owners take turns."""
PASSED_UNITS: Final = 2
"""The cost of a subscriber that is not told."""
SLICE_UNITS: Final = 2_000
"""The cost of one slice: a hundred lines."""
TURN_UNITS: Final = 200
"""After so much the next owner has its turn."""
UNITS_S: Final = 100_000
"""The units that lines to all agents together may cost in a second: a tenth of the broker's time."""
SAVED_UNITS: Final = 25_000
"""The most that may be saved up, and so told without a rest: 1,250 lines."""
MAX_PARTS: Final = 1024
"""If so many changes wait for one owner or one agent, a further part of a resource is told as a change of
that.
"""
KEPT_PARAMS_BYTES: Final = 256
"""Params that are longer than the URI and this do not wait."""

_Change = tuple[PoolKey, str]
_EVERYBODY: Final = None
"""Stands for all owners while a change is told to few sessions."""


class _WaitingOfOwner:
    """The changes that wait for the sessions of one owner, in order."""

    __slots__ = ("begun", "steps", "told_later")

    def __init__(self) -> None:
        self.told_later: dict[_Change | SessionId, RawJson] = {}
        """Changes with their params, and sessions with postponed updates."""
        self.begun: _Change | SessionId | None = None
        """The change that some of its sessions have been told of. The same change may wait once more."""
        self.steps: Steps[None] | None = None
        """The telling of that."""

    def __bool__(self) -> bool:
        return self.steps is not None or bool(self.told_later)


class ResourceUpdates:
    """The changes of all resources."""

    def __init__(
        self,
        sessions: Mapping[SessionId, Session],
        session_views: SessionViews,
        call_table: CallTable,
        subscriptions: SubscriptionTable,
        out: Callable[[AnyEffect], None],
        *,
        timers: BrokerTimers,
    ) -> None:
        self._sessions = sessions
        self._session_views = session_views
        self._call_table = call_table
        self._is_behind = call_table.unread.is_behind
        self._subscriptions = subscriptions
        self._emit = out
        self._timers = timers
        self._waiting: dict[str | None, _WaitingOfOwner] = {}
        """By owner, the one whose turn is next first."""
        self._units = Allowance(UNITS_S, SAVED_UNITS)
        """The units that are left for lines to agents."""

    def resource_changed(self, event: ResourceChanged, now: float) -> None:
        """A server tells that a resource has changed."""
        subscribed = self._subscriptions.subscribed(event.key, event.uri)
        if not subscribed:
            return
        if not self._waiting and self._subscriptions.has_few_sessions(subscribed, FEW_SESSIONS):
            self._tell_at_once(event, subscribed, now)
            return
        is_planned = bool(self._waiting)
        for resource in subscribed:
            for owner in self._subscriptions.owners(resource):
                self._await_turn(owner, event, resource[1], is_planned=is_planned)
        if not is_planned:
            self.tell_slice(now)

    def _tell_at_once(self, event: ResourceChanged, subscribed: Sequence[Resource], now: float) -> None:
        """Tell a change to all sessions, as far as one slice goes."""
        room = self._slice_units(now)
        steps = self._tell_change(event.key, event.uri, event.params, subscribed)
        for units in steps:
            self._units.left -= units
            room -= units
            if room <= 0:
                waiting = self._waiting[_EVERYBODY] = _WaitingOfOwner()
                waiting.begun, waiting.steps = (event.key, event.uri), steps
                self._plan(now)
                return

    def _await_turn(self, owner: str, event: ResourceChanged, subscribed: str, *, is_planned: bool) -> None:
        """Let a change wait that sessions of this owner hear of. They are subscribed to this URI: that of the
        resource, or of what it is a part of.
        """
        key, uri, params = event.key, event.uri, event.params
        told_later = self._waiting_of(owner).told_later
        if subscribed != uri and len(told_later) >= MAX_PARTS and (key, uri) not in told_later:
            told_later[key, subscribed] = _uri_alone(subscribed)
        elif is_planned and len(params) > KEPT_PARAMS_BYTES + len(uri):
            told_later[key, uri] = _uri_alone(uri)
        else:
            told_later[key, uri] = params

    def tell(self, effect: SendResourceUpdated, session: Session) -> None:
        """Tell one agent that a resource has changed, whether or not its server says so."""
        self._postpone(effect, session)
        self.unread_changed(session, self._call_table.now)

    def unread_changed(self, session: Session, now: float) -> None:
        """The agent may read again: what was postponed is told."""
        if session.postponed and not self._is_behind(session):
            is_planned = bool(self._waiting)
            self._waiting_of(session.principal).told_later.setdefault(session.id, ABSENT)
            if not is_planned:
                self.tell_slice(now)

    def pools_left(self, left: Collection[tuple[PoolKey, PoolKey]]) -> None:
        """Sessions have another pool of a server now: each pair is an old and a new one. What changed in the
        old one and is not told yet counts as changed in the new one.
        """
        changes = {
            (new, change[1]): None
            for waiting in self._waiting.values()
            for change in [waiting.begun, *waiting.told_later]
            for old, new in left
            if isinstance(change, tuple) and change[0] == old
        }
        for key, uri in changes:
            self.resource_changed(ResourceChanged(key, uri, _uri_alone(uri)), self._call_table.now)

    def session_closed(self, session: Session) -> None:
        """The session has closed."""
        session.postponed.clear()
        waiting = self._waiting.get(session.principal)
        if waiting is not None:
            waiting.told_later.pop(session.id, None)

    def tell_slice(self, now: float) -> None:
        """Tell as much as one slice may cost. The rest waits for the next one."""
        room = self._slice_units(now)
        while self._waiting and room > 0:
            owner, waiting = next(iter(self._waiting.items()))
            units = self._tell_turn(owner, waiting)
            room -= units
            self._units.left -= units
            if owner is _EVERYBODY and waiting:
                continue  # a session hears of changes in their order
            del self._waiting[owner]
            if waiting:
                self._waiting[owner] = waiting  # behind the others
        if self._waiting:
            self._plan(now)

    def _slice_units(self, now: float) -> float:
        """Return what the slice that begins now may cost."""
        return min(self._units.refill(now), SLICE_UNITS)

    def _plan(self, now: float) -> None:
        """Plan the next slice: as soon as there is an allowance for all of it."""
        self._timers.arm("resource_updates", NEXT_SLICE, now, self._units.wait_s(SLICE_UNITS))

    def _waiting_of(self, owner: str) -> _WaitingOfOwner:
        waiting = self._waiting.get(owner)
        if waiting is None:
            waiting = self._waiting[owner] = _WaitingOfOwner()
        return waiting

    def _tell_turn(self, owner: str | None, waiting: _WaitingOfOwner) -> int:
        """Tell some of what waits for this owner. Returns the cost."""
        units = 0
        while units < TURN_UNITS:
            if waiting.steps is None:
                if not waiting.told_later:
                    break
                units += PASSED_UNITS
                begun = waiting.begun = next(iter(waiting.told_later))
                params = waiting.told_later.pop(begun)
                waiting.steps = (
                    self._tell_change(*begun, params, self._subscriptions.subscribed(*begun), owner)
                    if isinstance(begun, tuple)
                    else self._tell_postponed(begun)
                )
            step = next(waiting.steps, None)
            if step is None:
                waiting.steps = waiting.begun = None
            else:
                units += step
        return units

    def _tell_change(
        self,
        key: PoolKey,
        uri: str,
        params: RawJson,
        subscribed: Sequence[Resource],
        owner: str | None = None,
    ) -> Steps[None]:
        """Tell a change to all sessions, or to those of one owner."""
        line_units = LINE_UNITS + len(params) // BYTES_OF_UNIT
        are_all_exact = len(subscribed) == 1 and subscribed[0][1] == uri
        for session_id, holders in self._subscriptions.subscribers(key, uri, subscribed, owner):
            if not holders:
                yield PASSED_UNITS
                continue
            session = self._sessions[session_id]
            agent_uri = uri if are_all_exact else self._session_views.view_of(session).agent_uri(key, uri)
            reads = not session.unread_bytes or not self._is_behind(session)
            for listen, (whole, spelled) in holders.items():
                if listen and listen not in session.listens:  # it has ended since the step before
                    continue
                told = spelled if whole == uri else agent_uri
                if reads:
                    if session.postponed:  # this one is newer
                        session.postponed.pop((told, listen), None)
                    self._emit(SendResourceUpdated(session_id, told, params, listen))
                    yield line_units
                    continue
                if whole != uri and len(session.postponed) >= MAX_PARTS:
                    self._postpone(
                        SendResourceUpdated(session_id, spelled, _uri_alone(spelled), listen), session
                    )
                else:
                    self._postpone(SendResourceUpdated(session_id, told, params, listen), session)
                yield PASSED_UNITS

    def _tell_postponed(self, session_id: SessionId) -> Steps[None]:
        """Tell a session what was postponed, as long as it reads."""
        while (session := self._sessions.get(session_id)) is not None:
            if not session.postponed or self._is_behind(session):
                break
            effect = session.postponed.pop(next(iter(session.postponed)))
            if not effect.listen or effect.listen in session.listens:
                self._emit(effect)
            yield LINE_UNITS

    def _postpone(self, effect: SendResourceUpdated, session: Session) -> None:
        if len(effect.params) > KEPT_PARAMS_BYTES + len(effect.uri):
            effect = SendResourceUpdated(session.id, effect.uri, _uri_alone(effect.uri), effect.listen)
        session.postponed[effect.uri, effect.listen] = effect

    def check(self) -> None:
        """Assert every invariant."""
        is_planned = self._timers.has("resource_updates", NEXT_SLICE)
        assert is_planned == bool(self._waiting), "a change waits for nothing"
        assert self._units.left <= SAVED_UNITS


def _uri_alone(uri: str) -> RawJson:
    return RawJson(b'{"uri":%b}' % quote(uri))
