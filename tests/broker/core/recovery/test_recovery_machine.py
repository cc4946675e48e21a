"""Brokers that die at any moment, against the smallest supervisor and the smallest carriers that can be
right.

What a broker has said and nobody has heard yet is lost with it, up to any point; what it has said to an agent
that does not read, all the more. The oracle counts what servers have run: no request twice, each is answered
once, what is told as not delivered was not, and no agent is shown a question twice.
"""

from typing import Any

import msgspec
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from carpool_broker.core.calls.repeated_requests import REPEAT_WAIT_S
from carpool_broker.core.model import effects as ef
from carpool_broker.core.model import events as ev
from carpool_protocol.ids import EMPTY_OBJECT, AskId, CallId, Epoch, RawJson, SessionId
from carpool_protocol.link.messages import (
    AnswerAsk,
    AnswersWritten,
    AskOpened,
    Call,
    CallAnswered,
    CallFailed,
    CallsRecorded,
    CancelCall,
    Message,
    RecordedCall,
    RecordedSession,
    ResumeCall,
    SessionEnded,
)
from tests.behaviours import behaviour
from tests.broker.recovery_rig import RESULT, RETURN_S, SAMPLING, A, B, RecoveryRig, called

NAMES = ("s1", "s2", "s3")
SESSIONS = st.sampled_from([SessionId(name) for name in NAMES])
PICK = st.integers(0, 50)
KEPT = st.sampled_from([0, 0, 1, 2, 3, 99])


class SimCall:
    """One call at the supervisor."""

    def __init__(self, call: Call) -> None:
        self.said = call
        self.ended = False
        self.stripped = False
        """How it ended is forgotten."""
        self.asks: list[AskId] = []
        """Open ones."""


class SimCarrier:
    """One agent, and what its carrier knows."""

    def __init__(self) -> None:
        self.here = True
        """It is attached to the broker that is there."""
        self.open: list[RawJson] = []
        self.asked: list[AskId] = []
        self.epoch = Epoch("")
        self.reads = True
        self.unread: list[Any] = []
        """What lies in the broker as long as it does not read."""


class RecoveryMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.life = 0
        self.rig = RecoveryRig(life=0)
        self.count = 0
        self.epochs = 1
        self.record: dict[CallId, SimCall] = {}
        self.gone: set[SessionId] = set()
        """Whom the supervisor has heard to be given up."""
        self.link = "down"
        """Or `greeted`, or `up`."""
        self.met = (0, 0)
        """Which supervisor has met which broker last."""
        self.unheard: list[Message] = []
        """What the supervisor has not heard yet."""
        self.unread: list[Any] = []
        """What carriers have not read yet."""
        self.carriers: dict[SessionId, SimCarrier] = {}
        self.run: dict[tuple[SessionId, RawJson], int] = {}

    @property
    def epoch(self) -> Epoch:
        return Epoch(f"e{self.epochs}")

    @initialize(calls=st.integers(0, 4), asks=st.integers(0, 2), cut=st.booleans(), died=st.booleans())
    def some_are_there(self, calls: int, asks: int, *, cut: bool, died: bool) -> None:
        """Most runs begin in the middle of things: few would get there by themselves."""
        for name in NAMES[:2]:
            self.comes(SessionId(name))
        self.supervisor_greets()
        self.supervisor_tells(3)
        for number in range(calls):
            self.calls_something(SessionId(NAMES[number % 2]))
        self.settle()
        for number in range(asks if calls else 0):
            self.a_server_asks(number)
        if cut:
            self.reads_no_more(SessionId(NAMES[0]))
            self.the_supervisor_dies(told=False)
            self.supervisor_greets()
            self.supervisor_tells(1)
        self.settle()
        if died:
            self.the_broker_dies(0, 0)
            self.supervisor_greets()

    # --- who hears what -----------------------------------------------------------------------------------

    def feed(self, event: Any) -> None:
        self.take(self.rig.feed(event))

    def take(self, effects: list[Any]) -> None:
        for effect in effects:
            (self.unheard if isinstance(effect, Message) else self.unread).append(effect)

    def settle(self) -> None:
        """Everybody hears all that was said to them, and says what follows."""
        while self.unheard or self.unread:
            self.carry(99, 99)

    def carry(self, heard: int, read: int) -> None:
        unheard, self.unheard = self.unheard[:heard], self.unheard[heard:]
        unread, self.unread = self.unread[:read], self.unread[read:]
        for effect in unread:
            carrier = self.carriers.get(getattr(effect, "session", SessionId("")))
            if carrier is None or carrier.reads:
                self.reads(effect)
            else:
                carrier.unread.append(effect)
        for message in unheard:
            if self.link != "down":
                self.hears(message)

    def reads(self, effect: Any) -> None:
        carrier = self.carriers.get(getattr(effect, "session", SessionId("")))
        if carrier is None:
            return
        match effect:
            case ef.Reply():
                if effect.id == b'"i"':
                    return
                assert effect.id in carrier.open, "answered twice, or after a cancel"
                carrier.open.remove(effect.id)
                self.judge(effect)
                if effect.call:
                    self.unheard.append(AnswersWritten([effect.call]))
            case ef.ForgetRecordedCall():
                self.unheard.append(AnswersWritten([effect.call]))
            case ef.SendAsk():
                assert effect.ask not in carrier.asked, "shown twice"
                carrier.asked.append(effect.ask)
            case ef.WithdrawAsk():
                carrier.asked.remove(effect.ask)
            case ef.SetSupervisorEpoch():
                carrier.epoch = effect.epoch
            case _:
                pass

    def judge(self, reply: ef.Reply) -> None:
        body = msgspec.json.decode(reply.body)
        said = body.get("_meta", {}).get("carpool/error") if not reply.is_error else body["data"]
        if said is not None and said["delivered"] == "no":
            assert not self.run.get((reply.session, reply.id)), "it is said not to have run"

    def hears(self, message: Message) -> None:
        match message:
            case Call():
                who = (message.session, message.request)
                self.run[who] = self.run.get(who, 0) + 1
                assert self.run[who] == 1, "run twice"
                assert message.call not in self.record
                self.record[message.call] = SimCall(message)
            case CancelCall(answered=True):
                sim = self.record[message.call]
                sim.ended = sim.stripped = True
            case CancelCall():
                self.record.pop(message.call, None)
            case AnswersWritten():
                for call in message.calls:
                    assert call not in self.record or self.record[call].ended
                    self.record.pop(call, None)
            case SessionEnded():
                of = [call for call, sim in self.record.items() if sim.said.session == message.session]
                assert all(self.record[call].ended for call in of), "its calls are cancelled before"
                for call in of:
                    del self.record[call]
                self.gone.add(message.session)
            case ResumeCall():
                self.resumes(message.call)
            case AnswerAsk():
                for sim in self.record.values():
                    if message.ask in sim.asks:
                        assert message.body == sim.said.session.encode() or message.is_error
                        sim.asks.remove(message.ask)
            case _:
                pass

    def resumes(self, call: CallId) -> None:
        sim = self.record.get(call)
        if self.link != "up":
            return
        if sim is None or sim.stripped:
            self.feed(CallFailed(call, "lost", "maybe", ""))
        elif sim.ended:
            self.feed(CallAnswered(call, is_error=False, body=RESULT))
        else:
            for ask in sim.asks:
                self.feed(AskOpened(call, ask, SAMPLING, EMPTY_OBJECT, False))

    # --- agents -------------------------------------------------------------------------------------------

    @rule(session=SESSIONS)
    def comes(self, session: SessionId) -> None:
        self.settle()
        if session not in self.carriers:
            # Whoever comes anew has another name: sessions are numbered by life.
            if any(who[0] == session for who in self.run):
                return
            self.carriers[session] = SimCarrier()
            self.rig.come(session)
            if self.link == "up":
                self.carriers[session].epoch = self.epoch

    @precondition(lambda self: self.carriers)
    @rule(session=SESSIONS)
    def leaves(self, session: SessionId) -> None:
        self.settle()
        carrier = self.carriers.pop(session, None)
        if carrier is not None and carrier.here:
            self.feed(ev.SessionClosed(session))

    @rule(session=SESSIONS)
    def calls_something(self, session: SessionId) -> None:
        self.settle()
        carrier = self.carriers.get(session)
        if carrier is not None:
            self.count += 1
            request = RawJson(b"%d" % self.count)
            carrier.open.append(request)
            self.run.setdefault((session, request), 0)
            if carrier.here:
                self.feed(called(request.decode(), session=session))

    @rule(session=SESSIONS, pick=PICK)
    def cancels(self, session: SessionId, pick: int) -> None:
        self.settle()
        carrier = self.carriers.get(session)
        if carrier is not None and carrier.open and not carrier.unread:
            request = carrier.open.pop(pick % len(carrier.open))
            if carrier.here:
                self.feed(ev.RequestCancelled(session, request, ""))

    @rule(session=SESSIONS, pick=PICK)
    def answers(self, session: SessionId, pick: int) -> None:
        """An agent answers what it was asked."""
        self.settle()
        carrier = self.carriers.get(session)
        if carrier is not None and carrier.here and carrier.asked and not carrier.unread:
            ask = carrier.asked.pop(pick % len(carrier.asked))
            said = RawJson(session.encode())
            self.feed(ev.AskAnswered(session, ask, is_error=False, body=said))

    @rule(session=SESSIONS)
    def reads_no_more(self, session: SessionId) -> None:
        self.settle()
        carrier = self.carriers.get(session)
        if carrier is not None and carrier.here:
            carrier.reads = False

    @rule(session=SESSIONS)
    def reads_again(self, session: SessionId) -> None:
        self.settle()
        carrier = self.carriers.get(session)
        if carrier is not None:
            self.read_on(carrier, 99)

    def read_on(self, carrier: SimCarrier, read: int) -> None:
        unread, carrier.unread, carrier.reads = carrier.unread[:read], [], True
        for effect in unread:
            self.reads(effect)

    @precondition(lambda self: any(not carrier.here for carrier in self.carriers.values()))
    @rule(pick=PICK)
    def comes_back(self, pick: int) -> None:
        self.settle()
        away = [session for session, carrier in self.carriers.items() if not carrier.here]
        session = away[pick % len(away)]
        carrier = self.carriers[session]
        carrier.here = True
        self.rig.come(session)
        calls = tuple(called(request.decode(), session=session) for request in carrier.open)
        self.feed(ev.SessionResumed(session, carrier.epoch, calls, tuple(carrier.asked)))

    # --- servers ------------------------------------------------------------------------------------------

    def running(self) -> list[CallId]:
        return [call for call, sim in self.record.items() if not sim.ended]

    @precondition(lambda self: self.running())
    @rule(pick=PICK)
    def a_server_answers(self, pick: int) -> None:
        self.settle()
        running = self.running()
        if running:
            call = running[pick % len(running)]
            self.record[call].ended = True
            self.record[call].asks.clear()
            if self.link == "up":
                self.feed(CallAnswered(call, is_error=False, body=RESULT))

    @precondition(lambda self: self.running())
    @rule(pick=PICK)
    def a_server_asks(self, pick: int) -> None:
        self.settle()
        running = self.running()
        if running:
            call = running[pick % len(running)]
            self.count += 1
            ask = AskId(f"q{self.count}")
            self.record[call].asks.append(ask)
            if self.link == "up":
                self.feed(AskOpened(call, ask, SAMPLING, EMPTY_OBJECT, False))

    # --- deaths -------------------------------------------------------------------------------------------

    @rule(heard=KEPT, read=KEPT)
    def the_broker_dies(self, heard: int, read: int) -> None:
        """With whatever it had said that nobody has heard."""
        self.carry(heard, read)
        for carrier in self.carriers.values():
            if not carrier.reads:
                self.read_on(carrier, read)
        self.unheard.clear()
        self.unread.clear()
        self.link = "down"
        self.life += 1
        self.rig = RecoveryRig(life=self.life, now=self.rig.now)
        for carrier in self.carriers.values():
            carrier.here = False

    @precondition(lambda self: self.link == "down")
    @rule()
    def supervisor_greets(self) -> None:
        self.settle()
        self.link = "greeted"
        if self.met == (self.epochs, self.life):  # all that was open is cancelled, and not forgotten
            for sim in self.record.values():
                sim.stripped = sim.stripped or not sim.ended
                sim.ended = True
        self.met = (self.epochs, self.life)
        self.feed(ev.SupervisorConnected(100_000, self.epoch))

    @precondition(lambda self: self.link == "greeted")
    @rule(pieces=st.integers(1, 3))
    def supervisor_tells(self, pieces: int) -> None:
        self.settle()
        calls = [
            RecordedCall(call, sim.said.session, sim.said.request, sim.said.key, sim.said.target, sim.ended)
            for call, sim in self.record.items()
        ]
        for _ in range(pieces - 1):
            self.feed(ev.RecordReceived(CallsRecorded([], calls[:1], last=False)))
            calls = calls[1:]
        self.link = "up"
        self.feed(
            ev.RecordReceived(
                CallsRecorded([RecordedSession(session, gone=True) for session in sorted(self.gone)], calls)
            )
        )
        self.take([*self.rig.catalog(A, "x"), *self.rig.catalog(B, "y")])

    @rule(told=st.booleans())
    def the_supervisor_dies(self, told: bool) -> None:
        """`told`: the broker had heard of it before; or the link only was down, and it remembers."""
        self.settle()
        if self.link != "down":
            self.link = "down"
            self.take(self.rig.unlink())
        if told:
            self.record.clear()
            self.gone.clear()
            self.epochs += 1

    @rule(dt=st.sampled_from([0.5, 6.0, 31.0]))
    def wait(self, dt: float) -> None:
        self.settle()
        self.take(self.rig.wait(dt))

    @invariant()
    def the_core_agrees_with_the_model(self) -> None:
        core = self.rig.core
        core.check()
        if not self.unread and not self.unheard:
            for session, carrier in self.carriers.items():
                if carrier.here and not carrier.unread:
                    assert sorted(core.sessions[session].open_calls) == sorted(carrier.open)
            if self.link == "up":
                assert {
                    call for call, open_call in core.call_table.calls.items() if open_call.stage == "sent"
                } <= set(self.record)

    def teardown(self) -> None:
        """Everybody comes back, every server answers, and nothing is left."""
        for session in list(self.carriers):
            self.reads_again(session)
        if self.link == "down":
            self.supervisor_greets()
        if self.link == "greeted":
            self.supervisor_tells(1)
        while any(not carrier.here for carrier in self.carriers.values()):
            self.comes_back(0)
        self.settle()
        self.wait(max(RETURN_S, REPEAT_WAIT_S) + 0.1)
        self.settle()
        while self.running():
            self.a_server_answers(0)
        self.settle()
        assert not any(carrier.open for carrier in self.carriers.values()), "a request without an answer"
        assert not self.record, "the supervisor remembers what nobody wants"
        assert self.rig.core.recovery.everybody
        self.wait(RETURN_S)
        assert self.rig.core.next_deadline() is None


RecoveryMachine.TestCase.settings = settings(
    max_examples=150, stateful_step_count=30, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
TestRecoveryMachine = behaviour("death:broker-pause", "calls:one-answer", "calls:honest-delivery")(
    RecoveryMachine.TestCase
)
