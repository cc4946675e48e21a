"""Recovery: how the sessions of a broker that died go on at this one (docs/decisions/0019).

Owns which sessions have come back, and until when others may; the requests that wait for the records of all
supervisors (`supervisor_record`); and the decision about each. A request that a record has goes on as that
call, under its old number. A request that the same supervisors do not know was never seen by a server, and
is a new call. Any other request may have been run and is answered `link_broken`. Where an id was used twice,
each use has its own call (`match_request`). A recorded call that no request claims was cancelled or
answered, and the supervisor may forget it.

Until all expected sessions are back, supervisors keep what they have for the others: pools, log levels and
subscriptions.

Invariants (`check`): a request waits here only while its session is back and a record is not complete, and
it has a deadline; a session that is back is not awaited once all records are complete; no session is awaited
once all are known. Refuses to know: how carriers keep lines, what is in requests and answers.
"""

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final

from msgspec.structs import replace

from carpool_broker.core.calls import lost_state
from carpool_broker.core.calls.call_table import CallTable
from carpool_broker.core.calls.input_required import ParkedCalls
from carpool_broker.core.calls.repeated_requests import RepeatedAsks
from carpool_broker.core.calls.request_state import CALL_ENDED, RequestState
from carpool_broker.core.model.answers import error_reply
from carpool_broker.core.model.effects import AnyEffect, SetSupervisorEpoch
from carpool_broker.core.model.events import CallRequested, SessionResumed
from carpool_broker.core.model.session import OpenCall, Session
from carpool_broker.core.model.timer_kinds import BrokerTimers
from carpool_broker.core.recovery.supervisor_record import RecordedCalls, match_request
from carpool_broker.core.requests.dispatch import RequestDispatch
from carpool_protocol.ids import (
    CallId,
    Epoch,
    PoolKey,
    RawJson,
    ServerName,
    SessionId,
    SupervisorName,
    life_of,
    server_of_pool,
)
from carpool_protocol.link.messages import (
    CallsRecorded,
    Catalog,
    PoolChanged,
    RecordedCall,
    SessionEnded,
    SessionNote,
)
from carpool_protocol.wire.request_targets import TASK_ID_KEYS

RESUME_GRACE_S: Final = 5.0
"""Sessions that had nothing open are expected for this long: the record has nothing about them."""

UNREAD: Final = 8
"""A session can bring back this many times its limit of open requests, because some answers were not read."""

NO_SUPERVISOR: Final = Epoch("")


def joint_epoch(epochs: Sequence[Epoch]) -> Epoch:
    """Return the epoch of several supervisors together, for their sessions' carriers; `NO_SUPERVISOR` for one
    that is away.
    """
    return Epoch("|".join(epochs)) if any(epochs) else NO_SUPERVISOR


class Recovery:
    """The sessions that come back."""

    def __init__(
        self,
        sessions: dict[SessionId, Session],
        call_table: CallTable,
        requests: RequestDispatch,
        parked: ParkedCalls,
        before: RepeatedAsks,
        *,
        record: RecordedCalls,
        out: Callable[[AnyEffect], None],
        timers: BrokerTimers,
        life: int,
    ) -> None:
        self._sessions = sessions
        self._call_table = call_table
        self._requests = requests
        self._parked_calls = parked
        self._before = before
        self._emit = out
        self._timers = timers
        self._life = life
        self.is_grace_over = False
        """Sessions that had nothing open are back or late. `SupervisorSync.recovery_advanced` takes it."""
        self.are_sessions_known = False
        """No session returns any more. `SupervisorSync.recovery_advanced` takes it."""
        self.record = record
        self._links = call_table.links
        self._epochs: dict[SupervisorName, Epoch] = {}
        """The epochs of the connected supervisors."""
        self._heard: set[SupervisorName] = set()
        """Those of them that have sent their whole record."""
        self.everybody = life == 0
        """True once no session is awaited any more. A first broker awaits none."""
        self.may_return = True
        """True while a session that attaches can be one that returns, also after all awaited ones are back.
        A first broker has no such time.
        """
        self._back: dict[SessionId, Epoch] = {}
        """The sessions that are back, and the epoch of the supervisor that had their requests."""
        self._again: dict[SessionId, frozenset[RawJson]] = {}
        """The ids of waiting requests that may have been used for an earlier request
        (`SessionResumed.again`).
        """
        self._left: set[SessionId] = set()
        """The sessions that closed before the record was complete."""
        self._bereft: dict[SessionId, set[ServerName]] = {}
        """The servers at which absent sessions have lost state with an earlier supervisor."""
        self._held: dict[SessionId, list[ServerName]] = {}
        """The servers at which they held instances of a last supervisor, while none took its place."""
        self._last: dict[SupervisorName, Epoch] = {}
        """The epochs of those last supervisors."""
        self._adopted: dict[CallId, OpenCall] = {}
        self.kept_pools: dict[PoolKey, dict[type, Catalog | PoolChanged]] = {}
        """Catalogs and states of pools that no present session wants."""

    # --- the supervisors -------------------------------------------------------------------------------

    @property
    def epoch(self) -> Epoch:
        """The epoch of the connected supervisors together; it changes with that of each."""
        return joint_epoch([self._epochs.get(name, NO_SUPERVISOR) for name in self._links.names])

    @property
    def _heard_epoch(self) -> Epoch:
        """The same, of those supervisors whose records are complete."""
        names = self._links.names
        return joint_epoch([self._epochs[name] if name in self._heard else NO_SUPERVISOR for name in names])

    @property
    def heard(self) -> bool:
        """True once every supervisor has sent its whole record."""
        return len(self._heard) == len(self._links.names)

    def has_heard(self, name: SupervisorName) -> bool:
        """True once this supervisor has sent its whole record."""
        return name in self._heard

    @property
    def is_hushed(self) -> bool:
        """True while subscriptions are not sent to the supervisor, because sessions that return may add to
        them.
        """
        return not self.everybody and (not self.heard or self._timers.has("return_window", "grace"))

    def supervisor_connected(self, name: SupervisorName, epoch: Epoch) -> None:
        """A supervisor has connected. Its record comes next."""
        self._epochs[name] = epoch

    def record_received(self, record: CallsRecorded, name: SupervisorName) -> None:
        """A supervisor has sent a part of its record."""
        self.record.record_received(record, name)

    def supervisor_greeted(self, name: SupervisorName) -> None:
        """Note what sessions have lost at its servers: all that they had, unless this is the same supervisor
        and still has it.
        """
        known = self.record.awaited if self._epochs[name] == self._last.get(name, NO_SUPERVISOR) else {}
        runs = partial(self._links.runs_server, name)
        lost_state.supervisor_connected(self._sessions.values(), known, runs)
        for session, held in list(self._held.items()):
            of_it = {server for server in held if runs(server)}
            lost = of_it.difference(known.get(session, ()))
            if lost:
                self._bereft.setdefault(session, set()).update(lost)
            self._held[session] = [server for server in held if server not in of_it]
            if not self._held[session]:
                del self._held[session]
        for session in self._bereft:
            self.record.awaited.setdefault(session, [])

    def record_completed(self, name: SupervisorName, now: float) -> None:
        """A supervisor has sent its whole record. When all have, requests that wait are decided about."""
        if not self._heard and not self.everybody and not self._timers.keys("return_window"):
            return_s = self._call_table.bounds.return_s
            self._timers.arm("return_window", "grace", now, min(RESUME_GRACE_S, return_s))
            self._timers.arm("return_window", "return", now, return_s)
        self._heard.add(name)
        for session in list(self.record.sessions()):
            if session not in self._back:
                self._release_own_calls(session)
        if self.heard:
            self.record.record_completed()
            for left in self._left & self.record.awaited.keys():
                self._give_up_session(left)
            self._left.clear()
        for back in [self._sessions[each] for each in self._back]:
            if self.heard or not (back.awaits_records or self._returning_calls(back)):
                self._settle_session(back, now)
        if self.heard and self.everybody:
            self._give_up_missing()
        for each in self._sessions.values():
            if each.id not in self._back:
                self._emit(SetSupervisorEpoch(each.id, self._heard_epoch))
        self.recheck()

    def _release_own_calls(self, session: SessionId) -> None:
        """Let go of calls that this very broker had sent before the link was down: they have ended here."""
        let_go = self.record.agent_done if session in self._sessions else self.record.session_given_up
        for call in self.record.calls_of(session):
            if call.call in self._call_table.calls:
                self.record.remove(call)  # its server has answered, and hooks look at that
            elif life_of(call.call) == self._life:
                let_go(call, "the link was down")

    def supervisor_lost(self, name: SupervisorName, states: Mapping[PoolKey, PoolChanged]) -> None:
        """A supervisor has gone, and its record with it. `states` has the states of the wanted pools."""
        if name in self._heard:
            self._last[name] = self._epochs[name]
        for session, held in self.record.awaited.items():
            had = {*held, *self._called_servers(session, states)}
            lost = {server for server in had if self._links.runs_server(name, server)}
            if lost and session not in self._sessions:
                self._held[session] = sorted(lost.union(self._held.get(session, ())))
        self.record.supervisor_lost(name, self._links)
        self._heard.discard(name)
        self._epochs.pop(name, None)
        if not self._heard:  # else others may repeat their asks
            for session in self._back:
                if not self._timers.has("returning_session", session):
                    self._before.stop_waiting(session)
        runs = partial(self._links.runs, name)
        self._adopted = {call: each for call, each in self._adopted.items() if not runs(each.key)}
        self.kept_pools = {key: told for key, told in self.kept_pools.items() if not runs(key)}

    def _called_servers(
        self, session: SessionId, states: Mapping[PoolKey, PoolChanged]
    ) -> Iterator[ServerName]:
        """Return the servers at which recorded calls of this session may have left state since then."""
        for call in self.record.calls_of(session):
            state = states.get(call.key) or self.kept_pools.get(call.key, {}).get(PoolChanged)
            if isinstance(state, PoolChanged) and state.mode == "session":
                yield server_of_pool(call.key)

    def keep_pool_state(self, told: Catalog | PoolChanged) -> None:
        """Keep a catalog or a state of a pool that no present session wants: a session that returns may want
        it.
        """
        if not self.everybody:
            self.kept_pools.setdefault(told.key, {})[type(told)] = told

    def take_kept_pools(self, wanted: Container[PoolKey]) -> list[Catalog | PoolChanged]:
        """Return what was kept of pools that are wanted now."""
        found = [key for key in self.kept_pools if key in wanted]
        return [told for key in found for told in self.kept_pools.pop(key).values()]

    # --- agents ----------------------------------------------------------------------------------------

    def awaits_calls(self) -> bool:
        """Sessions that are not back yet may have calls at servers, or answers that wait for them."""
        return not self.everybody and (
            not self.heard
            or any(
                not call.parked
                for session in self.record.sessions()
                if session not in self._back
                for call in self.record.calls_of(session)
            )
        )

    def expected_sessions(self) -> list[SessionNote]:
        """Return the absent sessions that may come back, as far as anything is recorded of them, with what
        they have lost. The supervisor remembers the losses from now on, so they count as reported.
        """
        awaited = {} if self.everybody else self.record.awaited
        notes: list[SessionNote] = []
        for each, held in awaited.items():
            if each not in self._sessions and each not in self._left:
                notes.append(SessionNote(each, sorted(self._bereft.pop(each, ()))))
                held.extend(notes[-1].bereft)
        return notes

    def session_resumed(self, session: Session, event: SessionResumed, now: float) -> None:
        """A session has come back. Its requests are in the call table from now on."""
        self._back[session.id] = event.supervisor
        self._again[session.id] = event.again
        self._before.session_resumed(session.id, event.asks, now)
        self._requests.resumed(session)
        session.awaits_records = not self.heard
        for server in self._held.pop(session.id, ()):
            session.server_use(server).has_run = True
        for told in lost_state.session_resumed(session, event.stateful):
            self._emit(told)
        for server in self._bereft.pop(session.id, ()):
            session.server_use(server).is_lost = True
        bounds = self._call_table.bounds
        most = (session.max_open_calls or bounds.max_open_calls) + bounds.max_waiting_calls
        for number, asked in enumerate(event.calls):
            if self._requests.refuse_invalid(session, asked):
                continue
            asked = self._requests.target_call(session, asked)  # noqa: PLW2901
            if number >= most * UNREAD:  # some may have been run
                self._requests.end_call(self._call_table.open(session, asked), "link_broken")
            else:
                self._hold_request(session, asked, now)
        if self.heard:
            self._settle_session(session, now)
            self.recheck()

    def retry_received(self, session: Session, event: CallRequested, now: float) -> None:
        """Handle a retry whose call is not parked here. It is refused unless an earlier broker parked that
        call and its token is unused.
        """
        if not self._resumes(session, event, now):
            self._emit(error_reply(session, event.id, event.by, "bad_request_state", method=event.method))

    def _resumes(self, session: Session, event: CallRequested, now: float) -> bool:
        if session.id not in self._back:
            return False
        token = self._parked_calls.state_tokens.read(event)
        if token is None or life_of(token.call) == self._life:
            return False
        if self._parked_calls.used_tokens.is_used(session.id, token.call, token.round):
            return False
        if not self.heard:
            self._hold_request(session, event, now)
            return True
        if token.marks == CALL_ENDED:
            good = self._parked_calls.used_tokens.use(session.id, token.call, token.round)
            if good and (open_call := self._parked_calls.reissue_call(session, event, token)) is not None:
                self._requests.dispatch_call(open_call, now)
            return good
        call = self.record.get(session.id, token.call)
        if call is not None:
            self._adopt_call(self._call_table.open(session, event), call, token, now)
        return call is not None

    def _hold_request(self, session: Session, request: CallRequested, now: float) -> None:
        self._call_table.open(session, request).stage = "returning"
        if not self._timers.has("returning_session", session.id):
            self._timers.arm("returning_session", session.id, now, self._call_table.bounds.return_s)

    def _returning_calls(self, session: Session) -> list[OpenCall]:
        return [open_call for open_call in session.open_calls.values() if open_call.stage == "returning"]

    def _settle_session(self, session: Session, now: float) -> None:
        """Decide about all requests of a session that is back."""
        held = self.record.awaited.pop(session.id, ())
        for server in held:
            use = session.server_use(server)
            use.is_called = use.is_reported = True
        same = self._same_supervisors(session.id)
        known = len(same) == len(self._links.names)
        if not known:
            owner_of = self._links.owner_of_server
            for told in lost_state.assume_state_lost(session, lambda server: owner_of(server) not in same):
                self._emit(told)
        self._timers.disarm("returning_session", session.id)
        self._before.start_waiting(session.id, now)
        by_request = self.record.calls_by_request(session.id)
        again = self._again.pop(session.id, frozenset())
        for open_call in self._returning_calls(session):
            asked = open_call.asked
            call, is_certain, token = self._claimed_call(asked, by_request, again)
            if call is not None and is_certain and self.record.get(session.id, call.call) is not None:
                self._adopt_call(open_call, call, token, now)
            elif call is None and known:
                self._call_table.withdraw(open_call)
                if not self._requests.call_requested(asked, now):
                    self.retry_received(session, asked, now)
            else:
                self._requests.end_call(open_call, "link_broken")  # or a retry of it goes on as that call
        given_up = [self._claimed_call(asked, by_request, again)[0] for asked in session.given_up]
        session.given_up.clear()
        self._settle_rest(session, {call.call for call in given_up if call is not None}, now)
        if not same and not any(open_call.session is session for open_call in self._adopted.values()):
            self._before.stop_waiting(session.id)
        self._back[session.id] = self._heard_epoch
        self._call_table.admission.records_settled(session)
        self._emit(SetSupervisorEpoch(session.id, self._heard_epoch))

    def _claimed_call(
        self,
        asked: CallRequested,
        by_request: Mapping[RawJson, Sequence[RecordedCall]],
        again: Container[RawJson],
    ) -> tuple[RecordedCall | None, bool, RequestState | None]:
        """Return the recorded call that this request continues, and whether that is certain.

        The third is the state that the call was parked with, if the request is a retry of it.
        """
        token = self._parked_calls.state_tokens.read(asked) if asked.state else None
        if token is not None and token.marks == CALL_ENDED:
            token = None  # it is said again, as a new call
        call, is_certain = match_request(asked, by_request.get(asked.id, ()), is_again=asked.id in again)
        rounds = None if token is None else self.record.get(asked.session, token.call)
        if rounds is not None and (call is None or call.call <= rounds.call):
            return rounds, True, token
        return call, is_certain, None

    def _same_supervisors(self, session: SessionId) -> set[SupervisorName]:
        """Return the supervisors that had the requests of this session that is back, and know of it."""
        if session in self.record.gone:
            return set()
        before = self._back[session].split("|")
        if len(before) != len(self._links.names):
            return set()
        return {
            name
            for name, epoch in zip(self._links.names, before, strict=True)
            if epoch and name in self._heard and epoch == self._epochs[name]
        }

    def _settle_rest(self, session: Session, given_up: Container[CallId], now: float) -> None:
        """Decide about recorded calls of the session that no request was matched with. `given_up` has the
        calls that the agent has cancelled.
        """
        for left in self.record.calls_of(session.id):
            if left.call in self._call_table.calls:
                self.record.remove(left)  # as in `_release_own_calls`
                continue
            # A call of the stateless era may have ended while its agent was asked.
            awaited = left.parked or (left.ended and not session.greeted)
            if awaited and life_of(left.call) != self._life and left.call not in given_up:
                self.record.wait_for_retry(left, now, self._call_table.bounds.park_s)
            else:
                self.record.agent_done(left, "the agent does not wait for it")

    def _adopt_call(
        self, open_call: OpenCall, call: RecordedCall, token: RequestState | None, now: float
    ) -> None:
        """Continue a request as a call of the record. `token` has the state that the call was parked with,
        if it was.
        """
        session = open_call.session
        self.record.remove(call)
        if token is None:  # given in advance, perhaps to a question that was answered with it before
            open_call.asked = replace(open_call.asked, given=())
        open_call.key, open_call.target = call.key, call.target
        open_call.server = session.scope.server_of(call.key) or open_call.server
        self._requests.update_rewrite(open_call)
        if open_call.asked.method in TASK_ID_KEYS:
            open_call.task = open_call.asked.name
        session.server_use(open_call.server).is_called = True
        self._adopted[call.call] = open_call
        if token is not None:
            self._parked_calls.call_resumed(open_call, call.call, token)
        self._call_table.adopt(open_call, call.call, now)

    def catalogs_changed(self) -> None:
        """Catalogs have come: decide again whether answers of adopted calls must be rewritten."""
        calls = self._call_table.calls
        self._adopted = {call: open_call for call, open_call in self._adopted.items() if call in calls}
        for open_call in self._adopted.values():
            self._requests.update_rewrite(open_call)

    def session_closed(self, session: Session) -> None:
        """The session has closed. A supervisor hears so at once, or after it has sent its record."""
        if self._heard:
            self._give_up_session(session.id)
        if not self.heard:
            self._left.add(session.id)
        self._back.pop(session.id, None)
        self._again.pop(session.id, None)
        self._timers.disarm("returning_session", session.id)
        self._before.session_closed(session.id)

    # --- time ------------------------------------------------------------------------------------------

    def recheck(self) -> None:
        """End the wait for sessions if none is awaited any more."""
        if self.heard and not (
            self.everybody or self.record.awaited or self._timers.has("return_window", "grace")
        ):
            self._end_grace()

    def _end_grace(self) -> None:
        self.everybody = True
        self.kept_pools.clear()
        self._bereft.clear()
        self._held.clear()
        self._give_up_missing()
        self.are_sessions_known = True

    def _give_up_missing(self) -> None:
        """Give up the awaited sessions that are not back."""
        for session in list(self.record.awaited):
            if session in self._back:
                continue
            self.record.gone.add(session)
            if session in self._sessions:
                self._release_calls(session)
            else:
                self._give_up_session(session)

    def _give_up_session(self, session: SessionId) -> None:
        self.record.awaited.pop(session, None)
        for call in self.record.calls_of(session):
            self.record.session_given_up(call, "the agent is gone")
        self._emit(SessionEnded(session))

    def _release_calls(self, session: SessionId) -> None:
        self.record.awaited.pop(session, None)
        for call in self.record.calls_of(session):
            self.record.release(call, "the agent is gone")

    def end_returning(self, sessions: Iterable[SessionId]) -> None:
        """End the requests of these sessions, which have waited for the record for too long."""
        for late in sessions:
            for open_call in self._returning_calls(self._sessions[late]):
                self._requests.end_call(open_call, "link_broken")

    def close_window(self, window: str, now: float) -> None:
        """End the time for sessions without open requests (`grace`), or for all (`return`), to come back.
        After it no session waits for the record of a supervisor that is away.
        """
        if window == "return":
            self.may_return = False
            for session in list(self._back):
                if self._sessions[session].awaits_records:
                    self._settle_session(self._sessions[session], now)
        if window == "grace":
            self.is_grace_over = not self.everybody
        elif not self.everybody:
            self._end_grace()
        self.recheck()

    def check(self) -> None:
        """Assert every invariant."""
        self.record.check()
        self._before.check(self._sessions)
        assert self._back.keys() <= self._sessions.keys(), "back, and not here"
        for session in self._sessions.values():
            waits = any(open_call.stage == "returning" for open_call in session.open_calls.values())
            assert not waits or (session.id in self._back and not self.heard), "a request waits for nothing"
            assert not waits or self._timers.has("returning_session", session.id)
        assert self._again.keys() <= self._back.keys()
        if self.heard:
            assert not self.record.awaited.keys() & self._back.keys(), "back, and awaited"
            assert not (self.everybody and self.record.awaited), "awaited, and known to be gone"
            assert not self._timers.keys("returning_session")
