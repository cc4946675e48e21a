"""Streams whose broker, or whose door, has died: sessions that go on (docs/decisions/0019)."""

from collections.abc import Callable
from typing import Any

import pytest

from carpool_broker.core.model.effects import NO_CALL
from carpool_broker.core.model.events import (
    AnyEvent,
    CallRequested,
    CarrierAnnounced,
    InitializeRequested,
    ListenRequested,
    ListenResumed,
    SessionResumed,
)
from carpool_broker.era import repeated_lines
from carpool_broker.era.handshake import LineMeaning, read_line
from carpool_broker.transport.detached_sessions import DETACHED_TIMEOUT_S, MAX_HELD_BYTES, DetachedSessions
from carpool_broker.transport.incarnation import Incarnation
from carpool_broker.transport.multiplexed import MultiplexedConnection, with_exchange
from carpool_broker.transport.resume import SessionResume
from carpool_broker.transport.streams import SessionStream
from carpool_protocol.bootstrap.carrier_contract import ATTACH_VERSION, name_of
from carpool_protocol.carrier.attach_line import Attach, ResumeSession
from carpool_protocol.carrier.streams import (
    CONTROL,
    CloseStream,
    ControlMessage,
    ExchangeClientGone,
    Kind,
    OpenStream,
    ServersStateful,
    StreamOpened,
    StreamRefused,
    SupervisorAssigned,
    control_line,
    frame_line,
    read_control,
    split_frame,
)
from carpool_protocol.ids import CallId, Epoch, RawJson, SessionId
from tests.behaviours import behaviour

SECRET = b"s" * 32
EPOCH = Epoch("e1")
ASK = b'{"jsonrpc":"2.0","id":"q1","method":"elicitation/create"}\n'
GREET = b'{"jsonrpc":"2.0","id":"carpool-1","method":"initialize","params":{"protocolVersion":"2025-11-25"}}'
CALL = b'{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"t"}}'


class RecordingHost:
    """A host that reads messages as the real one does, and keeps what it is told."""

    def __init__(self) -> None:
        self.here: list[SessionId] = []
        self.replayed: list[AnyEvent] = []
        self.resumes: list[tuple[SessionResumed, list[LineMeaning]]] = []
        self.took: list[bytes] = []
        self.carried: list[tuple[SessionId, int]] = []

    def unread_changed(self, session: SessionId, unread_bytes: int) -> None:
        raise AssertionError("its door takes everything at once")

    def scan_workspace(self, attach: Attach, then: Callable[[], None]) -> None:
        then()

    def attach_note(self, attach: Attach) -> str:
        return ""

    def attach_objection(self, attach: Attach) -> StreamRefused | None:
        return None

    def session_opened(
        self,
        session: SessionId,
        attach: Attach,
        environment: dict[str, str],
        stream: OpenStream | None = None,
    ) -> None:
        self.here.append(session)

    def message_received(
        self, stream: SessionStream, message: bytes, exchange: int, burst: list[AnyEvent]
    ) -> None:
        stream.exchanges.open(RawJson(b"7"), exchange)
        self.took.append(message)

    def resume_message(
        self, stream: SessionStream, message: bytes, exchange: int, resume: SessionResume
    ) -> None:
        granted = repeated_lines.read_acknowledgement(stream.id, message)
        said = with_exchange(
            stream, granted or read_line(stream.id, message, shared=stream.exchanges.shared), exchange
        )
        assert isinstance(said, CallRequested | ListenResumed | InitializeRequested | ListenRequested)
        if resume.is_replayed(message):
            stream.request_replayed(said)
            self.replayed.append(said)
        else:
            resume.add(said)

    def session_resumed(self, session: SessionId, resume: SessionResume) -> None:
        self.resumes.append(resume.finish())

    def version_of(self, session: SessionId) -> str:
        return "2025-11-25"

    def feed(self, burst: list[AnyEvent]) -> None:
        self.carried += [(each.session, each.pid) for each in burst if isinstance(each, CarrierAnnounced)]
        burst.clear()

    def request_abandoned(self, session: SessionId, request: RawJson) -> None:
        raise AssertionError("nobody gives up")

    def session_closed(self, session: SessionId) -> None:
        self.here.remove(session)


class BrokerStreams:
    """One broker's streams, without sockets."""

    def __init__(self, life: int = 0) -> None:
        self.shell = RecordingHost()
        self.heritage = Incarnation(SECRET, life)
        self.streams: dict[SessionId, SessionStream] = {}
        self.written: list[CallId] = []
        self.detached: DetachedSessions[SessionStream] = DetachedSessions(self.written.append)
        self.frames: list[bytes] = []
        self._count = 0

    def door(self) -> MultiplexedConnection:
        return MultiplexedConnection(
            SessionId("s0"),
            Attach(version=ATTACH_VERSION, carrier="door", streams=True, pid=7),
            self.shell,
            self.streams,
            detached=self.detached,
            incarnation=self.heritage,
            enter=self._enter,
            write=self._write,
            written_bytes=lambda: 0,
            drop=pytest.fail,
        )

    def _write(self, frame: bytes | memoryview, _call: CallId = NO_CALL, /) -> bool:
        self.frames.append(bytes(frame[:-1]))
        return False

    def _enter(self, resume: ResumeSession | None) -> tuple[SessionId, Epoch]:
        if resume is not None and self.heritage.claim_session(SessionId(resume.session), resume.secret):
            return SessionId(resume.session), Epoch(resume.supervisor)
        self._count += 1
        return SessionId(f"n{self._count}"), EPOCH

    def said(self) -> list[tuple[int, ControlMessage | bytes | None, int]]:
        """What was told since the last look."""
        frames, self.frames = self.frames, []
        cuts = [cut for frame in frames if (cut := split_frame(frame)) is not None]
        assert len(cuts) == len(frames)
        return [(s, read_control(said) if x == CONTROL else said, x) for s, said, x in cuts]


def taken(door: MultiplexedConnection, *lines: bytes) -> None:
    door.lines_received([line.removesuffix(b"\n") for line in lines])


def opened(broker: BrokerStreams, door: MultiplexedConnection, number: int = 1, **said: Any) -> StreamOpened:
    taken(door, control_line(number, OpenStream(**said)))
    (_, word, _), *_ = broker.said()
    assert isinstance(word, StreamOpened)
    return word


def say(broker: BrokerStreams, session: str, line: bytes, about: bytes = b"", *, last: bool = False) -> None:
    broker.streams[SessionId(session)].write(line, RawJson(about), last=last, call=CallId(9 * last))


@behaviour("reattach:http")
def test_a_stream_of_a_broker_that_died_goes_on_as_the_same_session() -> None:
    before = BrokerStreams()
    was = opened(before, before.door())
    after = BrokerStreams(life=1)
    door = after.door()
    resume = ResumeSession(
        session=was.name, secret=was.secret, supervisor="e0",
        kept=1, open=1, last=f"{name_of(CALL):x}", asks=["q1"],
    )  # fmt: skip
    taken(door, control_line(4, OpenStream(resume=resume)), frame_line(4, GREET), frame_line(4, CALL, 12))
    ((_, word, _),) = after.said()
    assert isinstance(word, StreamOpened)
    assert (word.name, word.session, word.supervisor) == (was.name, was.session, "e0")
    assert word.secret != was.secret
    ((event, rest),) = after.shell.resumes
    assert (event.session, event.supervisor, event.asks, rest) == (was.name, "e0", ("q1",), [])
    assert [each.id for each in event.calls] == [b"7"]
    say(after, was.name, b"{}\n", b'"carpool-1"', last=True)
    assert not after.said(), "its agent has that answer"
    say(after, was.name, b'{"a":1}\n', b"7", last=True)
    assert after.said() == [(4, b'{"a":1}', 12)]
    taken(door, frame_line(4, b"{}", 13))
    assert after.shell.took == [b"{}"], "and what comes now is new"


@behaviour("lease:everything-died")
def test_an_http_door_remembers_where_a_stream_may_have_state_and_a_later_broker_hears_of_it() -> None:
    before = BrokerStreams()
    was = opened(before, before.door())
    before.streams[SessionId(was.name)].set_stateful_servers(("counter",))
    ((number, word, _),) = before.said()
    assert (number, word) == (1, ServersStateful(["counter"]))
    after = BrokerStreams(life=1)
    resume = ResumeSession(session=was.name, secret=was.secret, supervisor="e0", stateful=["counter"])
    taken(after.door(), control_line(4, OpenStream(resume=resume)))
    ((event, _),) = after.shell.resumes
    assert event.stateful == ("counter",)


@behaviour("reattach:http")
def test_the_acknowledgement_of_a_listen_that_goes_on_is_not_said_twice_but_its_end_is() -> None:
    broker = BrokerStreams(life=1)
    secret = Incarnation(SECRET, 0).resume_secret(SessionId("s5"))
    resume = ResumeSession(session="s5", secret=secret, kept=2)
    meta = (
        b'"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28",'
        b'"io.modelcontextprotocol/clientCapabilities":{}}'
    )
    listens = [
        b'{"jsonrpc":"2.0","id":%d,"method":"subscriptions/listen",'
        b'"params":{"notifications":{"toolsListChanged":true},%b}}' % (number, meta)
        for number in (1, 2)
    ]
    taken(
        broker.door(),
        control_line(1, OpenStream(kind="shared", resume=resume)),
        frame_line(1, listens[0], 5),
        frame_line(1, listens[1], 6),
    )
    broker.said()
    assert len(broker.shell.replayed) == 2
    say(broker, "s5", b'{"ack":1}\n', b"@5 1")
    say(broker, "s5", b'{"changed":1}\n', b"@5 1")
    say(broker, "s5", b'{"end":1}\n', b"@6 2", last=True)
    assert broker.said() == [(1, b'{"changed":1}', 5), (1, b'{"end":1}', 6)]


@behaviour("reattach:listens")
@pytest.mark.parametrize(("kind", "name"), [("shared", b"@5 1"), ("session", b"1")])
def test_the_grant_of_a_listen_comes_before_it_under_the_request_id_of_this_broker(
    kind: Kind, name: bytes
) -> None:
    broker = BrokerStreams(life=1)
    secret = Incarnation(SECRET, 0).resume_secret(SessionId("s5"))
    resume = ResumeSession(session="s5", secret=secret, kept=1)
    params = b'{"_meta":{"io.modelcontextprotocol/subscriptionId":1},"notifications":{"taskIds":["t"]}}'
    ack = b'{"jsonrpc":"2.0","method":"notifications/subscriptions/acknowledged","params":%b}' % params
    taken(broker.door(), control_line(1, OpenStream(kind=kind, resume=resume)), frame_line(1, ack, 5))
    assert broker.shell.replayed == [ListenResumed(SessionId("s5"), RawJson(name), (), (), ("t",))]
    broker.said()
    say(broker, "s5", b"{}\n", name)
    assert len(broker.said()) == 1, "nothing about it is swallowed for that"


def test_a_stream_with_another_secret_begins_anew() -> None:
    broker = BrokerStreams(life=1)
    bad = ResumeSession(session="s5", secret="0.00", supervisor="e0")
    word = opened(broker, broker.door(), resume=bad)
    assert word.name == "n1"
    ((event, _),) = broker.shell.resumes
    assert event.session == "n1"


def test_each_stream_is_told_which_supervisor_serves_it() -> None:
    broker = BrokerStreams()
    door = broker.door()
    assert opened(broker, door).supervisor == EPOCH
    stream = broker.streams[SessionId("n1")]
    stream.set_supervisor_epoch(EPOCH)
    assert not broker.said(), "that is known"
    stream.set_supervisor_epoch(Epoch("e2"))
    assert broker.said() == [(1, SupervisorAssigned("e2"), CONTROL)]
    door.connection_closed()
    stream.set_supervisor_epoch(Epoch("e3"))
    assert opened_again(broker, broker.door(), broker.heritage.public_id(stream.id)).supervisor == "e3"


def opened_again(
    broker: BrokerStreams, door: MultiplexedConnection, public: str, number: int = 1, **said: Any
) -> StreamOpened:
    word = taken_over(broker, door, public, number, **said)
    assert isinstance(word, StreamOpened)
    return word


def taken_over(
    broker: BrokerStreams, door: MultiplexedConnection, public: str, number: int = 1, **said: Any
) -> object:
    resume = ResumeSession(session="", secret=public)
    taken(door, control_line(number, OpenStream(resume=resume, **said)))
    return broker.said()[0][1]


@behaviour("reattach:http:door")
def test_a_session_of_a_dead_http_door_keeps_its_messages_for_the_next_one() -> None:
    broker = BrokerStreams()
    door = broker.door()
    was = opened(broker, door, server="git")
    taken(door, frame_line(1, CALL, 5))
    door.connection_closed()
    say(broker, was.name, ASK, b"7")
    say(broker, was.name, b'{"late":1}\n', b"7", last=True)
    broker.streams[SessionId(was.name)].forget_recorded_call(CallId(10))
    assert not broker.frames
    assert broker.written == [9, 10], "nobody gets that answer, and the record may forget it"
    assert broker.shell.here == [was.name]
    resume = ResumeSession(session="", secret=was.session)
    taken(broker.door(), control_line(3, OpenStream(server="git", resume=resume)))
    (_, word, _), *said = broker.said()
    assert isinstance(word, StreamOpened)
    assert (word.name, word.session, word.version) == (was.name, was.session, "2025-11-25")
    assert said == [(3, ASK[:-1], 0)], "of no exchange: that one died"
    assert broker.shell.carried == [(was.name, 0), (was.name, 7)], "status shows no process that is dead"
    say(broker, was.name, b"{}\n")
    assert broker.said() == [(3, b"{}", 0)]
    assert not broker.detached.expired(1e9)


@behaviour("reattach:http:door")
def test_a_session_is_given_to_the_next_http_door_once_and_on_its_own_terms_only() -> None:
    broker = BrokerStreams()
    door = broker.door()
    was = opened(broker, door, principal="ann", server="git")
    assert isinstance(taken_over(broker, broker.door(), was.session), StreamRefused), "its door lives"
    door.connection_closed()
    others: list[dict[str, Any]] = [{}, {"principal": "bob", "server": "git"}, {"principal": "ann"}]
    for terms in others:
        assert isinstance(taken_over(broker, broker.door(), was.session, **terms), StreamRefused)
    for guess in ("", was.name, was.secret, was.session[:-1]):
        said = taken_over(broker, broker.door(), guess, principal="ann", server="git")
        assert said == StreamRefused("there is no such session", "unknown_session")
    heir = broker.door()
    assert opened_again(broker, heir, was.session, principal="ann", server="git").name == was.name
    second = taken_over(broker, heir, was.session, 2, principal="ann", server="git")
    assert isinstance(second, StreamRefused)
    taken(heir, control_line(1, CloseStream()), control_line(2, ExchangeClientGone(1)))
    assert not broker.shell.here


@behaviour("reattach:http:door")
def test_an_unclaimed_session_ends_after_a_while() -> None:
    broker = BrokerStreams()
    door = broker.door()
    opened(broker, door)
    opened(broker, door, 2, kind="shared")
    opened(broker, door, 3, kind="control")
    door.connection_closed()
    assert len(broker.shell.here) == 1, "who has no name cannot come back"
    assert not broker.detached.expired(10.0)
    assert not broker.detached.expired(10.0 + DETACHED_TIMEOUT_S - 1)
    assert [each.id for each in broker.detached.expired(10.0 + DETACHED_TIMEOUT_S)] == broker.shell.here
    assert not len(broker.detached)


def test_a_session_is_not_given_back_when_too_much_was_said_meanwhile() -> None:
    broker = BrokerStreams()
    door = broker.door()
    was = opened(broker, door)
    door.connection_closed()
    say(broker, was.name, b"x" * MAX_HELD_BYTES)
    say(broker, was.name, b"y")
    assert isinstance(taken_over(broker, broker.door(), was.session), StreamRefused)


def test_a_dropped_http_door_leaves_no_session() -> None:
    broker = BrokerStreams()
    door = broker.door()
    opened(broker, door)
    door.connection_closed(dropped=True)
    assert not broker.shell.here
    assert not len(broker.detached)


def test_a_public_session_id_is_the_same_at_every_broker_and_tells_no_secret() -> None:
    first, second = Incarnation(SECRET, 0), Incarnation(SECRET, 1)
    session = SessionId("s5")
    assert first.public_id(session) == second.public_id(session)
    assert len(first.public_id(session)) == 22
    assert first.public_id(session) != Incarnation(b"t" * 32, 0).public_id(session)
    assert first.public_id(session) not in first.resume_secret(session)
