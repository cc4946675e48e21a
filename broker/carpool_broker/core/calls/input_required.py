"""Calls that want something of an agent of the stateless era, which cannot be asked: it is answered with what
is wanted, and says its request again with that.

Owns every such call from its first question to its end: questions that come together are gathered into one
round; the round ends its request, and the call is *parked* until the retry comes; the retry brings answers,
each of which goes to the server that asked. Servers of the handshake era know nothing of it: to them their
call is open all the time. A server that sends its user to URLs first has ended its call; that one is said
again when the user has been there. Source: MCP 2026-07-28, basic/utilities/mrtr; rules 9, 14.

A retry is known by our token (`request_state`), which nobody can guess: good for one round of one call,
once, and only for the session that was asked, with the same request (method, name and params), in time.
Whatever does not fit gets one error and changes nothing. Answers without any token begin the call afresh
and are given in advance: to what it wants of its agent before it is first answered, by the server's own
names.

Invariants (`check`): a parked call is in no session's `open_calls`, and in `calls` unless it has ended;
whatever is parked has a deadline; each open question belongs to one round; what ended is kept within a
bound. Knows nothing of: how it is worded, what is in params and answers, which server a call goes to.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from msgspec.structs import replace

from carpool_broker.core.calls.call_listeners import CallResult
from carpool_broker.core.calls.call_table import CallTable
from carpool_broker.core.calls.request_state import RequestState, RequestStateTokens, UsedTokens
from carpool_broker.core.model.effects import AnyEffect, ForgetRecordedCall, RequiredInput, RequireInput
from carpool_broker.core.model.events import CallRequested
from carpool_broker.core.model.session import OpenCall, Session, asking_server
from carpool_broker.core.model.timer_kinds import BrokerTimers
from carpool_protocol.faults.fault_answers import fault, fault_answer
from carpool_protocol.ids import ABSENT, AskId, CallId, RawJson, SessionId
from carpool_protocol.link.messages import AnswerAsk, AskOpened, Payload

RESUMABLE_METHODS: Final = frozenset({"tools/call", "prompts/get", "resources/read"})
"""The methods that may be answered with `input_required` (MCP 2026-07-28, basic/utilities/mrtr)."""
GATHER_ASKS_S: Final = 0.005
"""Questions that come within this time are put into one round."""
MAX_INPUTS: Final = 64
"""The greatest number of questions in one round."""
MAX_PARKED: Final = 256
"""The greatest number of calls of one session that are parked or gather questions. On a session that many
agents share it is half of the calls that it may have open: agents that never retry must leave room for the
others.
"""
MAX_URL_ROUNDS: Final = 10
"""The number of rounds with URLs; the official SDKs give up after as many."""
MAX_HELD_BYTES: Final = 64 * 1024 * 1024
"""The limit of all results that came while a call was parked. Beyond it an error of ours is kept in their
place, of `_INPUT_OVERHEAD_BYTES` at most.
"""

_INPUT_OVERHEAD_BYTES: Final = 1024


class RoundInput:
    """One question of a round."""

    __slots__ = ("ask", "input")

    def __init__(self, wanted: RequiredInput, ask: AskId | None) -> None:
        self.input = wanted
        self.ask = ask
        """The server's question; None for a URL that the user must visit, behind which there is no question.
        """


class InputRequiredRound:
    """What a call wants of its agent in the present round."""

    __slots__ = ("again", "declined", "inputs", "number", "open_call", "outcome", "told")

    def __init__(self, open_call: OpenCall) -> None:
        self.open_call = open_call
        self.inputs: dict[str, RoundInput] = {}
        """The questions, by the keys under which the retry brings the answers."""
        self.told: frozenset[str] = frozenset()
        """The keys that the agent was told last. The next retry brings only these, and none of them may mean
        another question meanwhile.
        """
        self.number = 0
        """The number of URLs over all rounds of the call, for keys."""
        self.again = False
        """True if the server ended its call and wants it again once the user has visited the URLs."""
        self.declined = False
        self.outcome: CallResult | None = None
        """How the call ended while it was parked."""


class ParkedCalls:
    """The rounds of all sessions. `secret` signs the tokens of retries."""

    def __init__(
        self,
        sessions: dict[SessionId, Session],
        call_table: CallTable,
        out: Callable[[AnyEffect], None],
        secret: bytes,
        timers: BrokerTimers,
    ) -> None:
        self._sessions = sessions
        self._call_table = call_table
        self._emit = out
        self.state_tokens = RequestStateTokens(secret)
        self.used_tokens = UsedTokens()
        self._timers = timers
        self._resumed_inputs: dict[CallId, RequestState] = {}
        """Calls of an earlier broker, and the token of the retry with which each goes on here."""
        self._rounds: dict[CallId, InputRequiredRound] = {}
        self._of_session: dict[SessionId, dict[CallId, None]] = {}
        self._asks: dict[AskId, tuple[CallId, str]] = {}
        self._held_bytes = 0

    # --- servers ---------------------------------------------------------------------------------------

    def has_ask(self, ask: AskId) -> bool:
        """True if this question is open here."""
        return ask in self._asks

    def has_room(self, open_call: OpenCall) -> bool:
        """True if this call may ask its agent for one thing more."""
        found = self._rounds.get(open_call.call)
        if found is not None:
            return len(found.inputs) < MAX_INPUTS
        most = (open_call.session.max_open_calls + 1) // 2 or MAX_PARKED
        return len(self._of_session.get(open_call.session.id, ())) < most

    def ask_opened(self, open_call: OpenCall, ask: AskOpened, now: float) -> None:
        """A server asks the agent behind this call for something that the agent has declared."""
        told = _advance_input(open_call, ask.name)
        if told is not None:
            self._emit(AnswerAsk(ask.ask, is_error=False, body=told))
            return
        token = self._resumed_inputs.get(open_call.call)
        if token is not None and self.state_tokens.covers_ask(token, ask.ask):
            told = _resumed_input(open_call, ask)
            if told is not None:
                self._emit(AnswerAsk(ask.ask, is_error=False, body=told))
                return
        found = self._round_of(open_call)
        key = ask.name or _input_key(ask.ask)
        if key in found.inputs or key in found.told:
            key = _input_key(ask.ask)
        while key in found.inputs or key in found.told:  # somebody has named a question like that
            key += "-"
        found.inputs[key] = RoundInput(
            RequiredInput(key, ask.method, ask.params, asking_server(open_call)), ask.ask
        )
        self._asks[ask.ask] = (open_call.call, key)
        if not open_call.is_parked and not self._timers.has("gathered_round", open_call.call):
            self._timers.arm("gathered_round", open_call.call, now, GATHER_ASKS_S)

    def ask_withdrawn(self, ask: AskId) -> None:
        """The server no longer waits for the answer."""
        call, key = self._asks.pop(ask, (CallId(0), ""))
        found = self._rounds.get(call)
        if found is not None:
            del found.inputs[key]
            if not found.inputs and not found.open_call.is_parked:
                self._drop_round(call)

    def urls_required(self, open_call: OpenCall, urls: Sequence[RawJson], now: float) -> bool:
        """See `StatelessCallListener`. The server has ended its call and done nothing."""
        if (
            open_call.asked.method not in RESUMABLE_METHODS
            or open_call.rounds >= MAX_URL_ROUNDS
            or not self.has_room(open_call)
        ):
            return False
        waits = not open_call.is_parked
        if waits:
            self._timers.disarm("gathered_round", open_call.call)
            self._call_table.park(open_call)
        self._call_table.note_end(open_call, "input_required", "yes")
        self._call_table.close(open_call)  # takes the questions of the call along
        found = self._round_of(open_call)
        found.again = True
        for url in urls[:MAX_INPUTS]:
            found.number += 1
            key = f"url-{open_call.rounds + 1}-{found.number}"
            found.inputs[key] = RoundInput(
                RequiredInput(key, "elicitation/create", url, asking_server(open_call)), None
            )
        if waits:
            self._answer_input_required(found, now)
        # Once its agent knows nothing of the call need be remembered: the retry says all that is needed. What
        # it was told when it was parked may be unread still, and then its carrier says the request again.
        self._emit(ForgetRecordedCall(open_call.session.id, open_call.call))
        return True

    # --- agents ----------------------------------------------------------------------------------------

    def _answer_input_required(self, found: InputRequiredRound, now: float) -> None:
        """Answer the waiting request with the questions of the round."""
        open_call = found.open_call
        open_call.rounds += 1
        self._timers.arm("parked_call", open_call.call, now, self._call_table.bounds.park_s)
        found.told = frozenset(found.inputs)
        inputs = tuple(wanted.input for wanted in found.inputs.values())
        asks = None if found.again else [wanted.ask for wanted in found.inputs.values() if wanted.ask]
        token = self.state_tokens.make(open_call.call, open_call.rounds, open_call.asked, asks)
        self._resumed_inputs.pop(open_call.call, None)
        self._emit(RequireInput(open_call.session.id, open_call.asked.id, inputs, token))

    def retry_received(self, found: InputRequiredRound, event: CallRequested, now: float) -> OpenCall | None:
        """A retry has come for this round. Returns the call if it must be dispatched again."""
        open_call = found.open_call
        session = open_call.session
        self._timers.disarm("parked_call", open_call.call)
        self._spend_token(found)
        if found.outcome is not None or found.again:
            open_call.asked = event
        else:
            self._call_table.resume(open_call, event)
        self._take_inputs(found, event)
        if found.inputs and not found.declined:
            if not found.again:
                self._call_table.park(open_call)
            self._answer_input_required(found, now)
            return None
        self._drop_round(open_call.call)
        if found.outcome is not None:
            self._call_table.reply(open_call, found.outcome)
        elif found.declined:
            said = fault("url_declined", server=open_call.server, tool=open_call.target)
            self._call_table.reply(open_call, CallResult(*fault_answer(said, event.agent_method)))
        elif found.again:
            fresh = self._call_table.open(session, event)
            fresh.rounds = open_call.rounds
            return fresh
        elif open_call.latest and event.token:
            self._call_table.report_progress(open_call, open_call.latest)
            open_call.latest = ABSENT
        return None

    def _spend_token(self, found: InputRequiredRound) -> None:
        """Note that the token of this round is good no more, if a later look could not tell it from one that
        an earlier broker gave.
        """
        open_call = found.open_call
        if found.again or open_call.call < self._call_table.before:
            self.used_tokens.use(open_call.session.id, open_call.call, open_call.rounds)

    def _take_inputs(self, found: InputRequiredRound, event: CallRequested) -> None:
        """Take the answers that the retry brings to what its agent was told."""
        for given in event.given:
            wanted = found.inputs.pop(given.key, None) if given.key in found.told else None
            if wanted is None:
                continue
            if wanted.ask is None:
                found.declined = found.declined or not given.accepted
            else:
                del self._asks[wanted.ask]
                self._emit(AnswerAsk(wanted.ask, is_error=False, body=given.body))

    def find(self, session: Session, event: CallRequested) -> InputRequiredRound | None:
        """Return the round that this retry belongs to."""
        token = self.state_tokens.read(event)
        found = None if token is None else self._rounds.get(token.call)
        if token is None or found is None or found.open_call.session is not session:
            return None
        if not self._timers.has("parked_call", token.call) or found.open_call.rounds != token.round:
            return None  # it was used, or has expired
        return found

    # --- of a broker before this one -------------------------------------------------------------------

    def call_resumed(self, open_call: OpenCall, call: CallId, token: RequestState) -> None:
        """Note that this request continues that call, and what its agent was told with this token. The open
        questions are asked again.
        """
        open_call.rounds = token.round
        self._resumed_inputs[call] = token

    def reissue_call(self, session: Session, event: CallRequested, token: RequestState) -> OpenCall | None:
        """Return the call to dispatch again: the server had ended it, and the user has visited the URLs.
        None: the user has declined.
        """
        open_call = self._call_table.open(session, event)
        open_call.rounds = token.round
        if all(given.accepted for given in event.given):
            return open_call
        self._call_table.fail(open_call, "url_declined")
        return None

    # --- what happens to the call (`StatelessCallListener`) ---------------------------------------------

    def call_closed(self, open_call: OpenCall) -> None:
        """The call is closed, and its questions with it."""
        self._resumed_inputs.pop(open_call.call, None)
        found = self._rounds.get(open_call.call)
        if found is None:
            return
        for wanted in found.inputs.values():
            if wanted.ask is not None:
                del self._asks[wanted.ask]
        found.inputs.clear()
        if not open_call.is_parked:
            self._drop_round(open_call.call)

    def parked_call_ended(self, open_call: OpenCall, outcome: CallResult) -> None:
        """Keep the result for the retry, if one comes."""
        found = self._rounds[open_call.call]
        if self._held_bytes + len(outcome.body) > MAX_HELD_BYTES:
            said = fault(
                "lost",
                detail="Its answer came while the agent was asked for something, and was too large to keep.",
                server=open_call.server,  # no target: a URI may be as long as the answer
            )
            outcome = CallResult(*fault_answer(said, open_call.asked.agent_method))
        found.outcome = outcome
        self._held_bytes += len(outcome.body)

    def session_closed(self, session: Session) -> None:
        """The session has closed."""
        for call in list(self._of_session.get(session.id, ())):
            self._end_call(call, "the agent is gone", leaves=True)
        self.used_tokens.session_closed(session.id)

    def require_gathered(self, calls: Iterable[CallId], now: float) -> None:
        """The rounds of these calls are complete: tell their agents."""
        for call in calls:
            found = self._rounds[call]
            self._call_table.park(found.open_call)
            self._answer_input_required(found, now)

    def end_parked(self, calls: Iterable[CallId], now: float) -> None:
        """End these calls: no retry has come in time."""
        for call in calls:
            session = self._rounds[call].open_call.session
            self._spend_token(self._rounds[call])
            self._end_call(call, "the agent did not bring in time what it wants")
            self._call_table.admission.send_queued(session, now)

    def _end_call(self, call: CallId, reason: str, *, leaves: bool = False) -> None:
        """End a call for which no retry will come. `leaves`: as in `CallTable.drop`."""
        found = self._rounds[call]
        if call in self._call_table.calls:
            self._call_table.drop(found.open_call, reason, leaves=True)
        if not found.again and not leaves:  # what it was told when it was parked may be unread still
            self._emit(ForgetRecordedCall(found.open_call.session.id, call))
        self._drop_round(call)

    def _round_of(self, open_call: OpenCall) -> InputRequiredRound:
        found = self._rounds.get(open_call.call)
        if found is None:
            found = self._rounds[open_call.call] = InputRequiredRound(open_call)
            self._of_session.setdefault(open_call.session.id, {})[open_call.call] = None
        return found

    def _drop_round(self, call: CallId) -> None:
        """Forget a round whose questions are answered or over."""
        found = self._rounds.pop(call, None)
        if found is None:
            return
        self._timers.disarm("gathered_round", call)
        self._timers.disarm("parked_call", call)
        if found.outcome is not None:
            self._held_bytes -= len(found.outcome.body)
        of = self._of_session[found.open_call.session.id]
        del of[call]
        if not of:
            del self._of_session[found.open_call.session.id]

    def check(self) -> None:
        """Assert every invariant."""
        calls = self._call_table.calls
        open_asks: dict[AskId, tuple[CallId, str]] = {}
        for call, found in self._rounds.items():
            open_call = found.open_call
            assert open_call.call == call
            assert self._sessions.get(open_call.session.id) is open_call.session, "a round of nobody"
            assert call in self._of_session[open_call.session.id]
            assert self._timers.has("parked_call", call) == open_call.is_parked
            assert self._timers.has("gathered_round", call) == (not open_call.is_parked)
            assert (call in calls) == (found.outcome is None and not found.again)
            assert open_call.is_parked or found.inputs, "a round that wants nothing"
            assert (
                all(other is not open_call for other in open_call.session.open_calls.values())
                or not open_call.is_parked
            )
            for key, wanted in found.inputs.items():
                assert wanted.input.key == key
                if wanted.ask is not None:
                    assert call in calls, "a question of a call that is over"
                    open_asks[wanted.ask] = (call, key)
        assert open_asks == self._asks
        assert sum(len(of) for of in self._of_session.values()) == len(self._rounds)
        timers = self._timers.keys("gathered_round") | self._timers.keys("parked_call")
        assert timers == self._rounds.keys()
        assert {call for call, open_call in calls.items() if open_call.is_parked} <= self._rounds.keys()
        held = sum(len(f.outcome.body) for f in self._rounds.values() if f.outcome is not None)
        assert self._resumed_inputs.keys() <= calls.keys(), "brought for a call that is over"
        assert held == self._held_bytes <= MAX_HELD_BYTES + _INPUT_OVERHEAD_BYTES * len(self._rounds)


def _advance_input(open_call: OpenCall, name: str) -> Payload | None:
    """Return what the first request of this call brought for a question of this name. It is used once, in
    the first round.
    """
    if not name or open_call.rounds or not open_call.asked.given:
        return None
    for given in open_call.asked.given:
        if given.key == name:
            left = tuple(each for each in open_call.asked.given if each is not given)
            open_call.asked = replace(open_call.asked, given=left)
            return given.body
    return None


def _input_key(ask: AskId) -> str:
    """Return the key of a question, which is the same at each broker that asks it."""
    return f"ask-{ask}"


def _resumed_input(open_call: OpenCall, ask: AskOpened) -> Payload | None:
    """Return what the retry brought for a question that its agent was told."""
    by_key = {given.key: given.body for given in open_call.asked.given}
    return by_key.get(_input_key(ask.ask)) or (by_key.get(ask.name) if ask.name else None)
