"""A broker's core of a second life, for the tests of what it makes of the first one's sessions.

Owns the shorthands: two servers, a supervisor that remembers, sessions that come back, requests of both eras.
"""

from typing import Any, Final

from carpool_broker.core.model import events as ev
from carpool_broker.core.model.bounds import SessionBounds
from carpool_broker.core.model.capabilities import Capabilities, StatelessAgent
from carpool_broker.core.model.events import InputResponse, SourceId
from carpool_protocol.ids import (
    ABSENT,
    EMPTY_OBJECT,
    AskId,
    CallId,
    Epoch,
    PoolKey,
    RawJson,
    ServerName,
    SessionId,
    call_of,
)
from carpool_protocol.link.messages import (
    AskOpened,
    CallsRecorded,
    RecordedCall,
    RecordedSession,
)
from tests.kit.broker_rig import BrokerRig, pool_spec

ONE, TWO = SessionId("s1"), SessionId("s2")
A, B = PoolKey("a:1"), PoolKey("b:1")
EPOCH, OTHER = Epoch("e1"), Epoch("e2")
DAEMON: Final = SourceId("daemon")
RESULT: Final = RawJson(b'{"content":[]}')
SECRET: Final = b"of the launcher"
ALL: Final = Capabilities(sampling=True, form=True, url=True)
SAMPLING: Final = "sampling/createMessage"


def recorded(number: int, session: SessionId = ONE, request: str = "1", **more: Any) -> RecordedCall:
    """A call of the first broker, to `a`."""
    return RecordedCall(call_of(0, number), session, RawJson(request.encode()), A, "x", **more)


RETURN_S = SessionBounds().return_s


class RecoveryRig(BrokerRig):
    """Servers `a` (tool `x`) and `b` (tool `y`), and a clock. No supervisor is there yet."""

    def __init__(self, *, life: int = 1, now: float = 100.0) -> None:
        super().__init__(secret=SECRET, life=life)
        self.now = now
        self.configure(DAEMON, A, B)

    def configure(
        self, source: SourceId, *keys: PoolKey, twins: dict[PoolKey, PoolKey] | None = None
    ) -> list[Any]:
        """A configuration has these servers. `twins`: their pools for agents that can be asked."""
        asking = {plain: pool_spec(key, asking=True) for plain, key in (twins or {}).items()}
        return self.read(*keys, source=source, twins=asking)

    def link(
        self,
        *calls: RecordedCall,
        epoch: Epoch = EPOCH,
        held: dict[SessionId, list[ServerName]] | None = None,
        idle: tuple[SessionId, ...] = (),
    ) -> list[Any]:
        """A supervisor greets and remembers these. What the broker says to its record."""
        self.feed(ev.SupervisorConnected(1_000_000, epoch))
        sessions = [RecordedSession(session, servers) for session, servers in (held or {}).items()]
        sessions += [RecordedSession(session) for session in idle]
        effects = self.feed(ev.RecordReceived(CallsRecorded(sessions, list(calls))))
        self.catalog(A, "x")
        self.catalog(B, "y")
        return effects

    def unlink(self) -> list[Any]:
        """The supervisor is gone."""
        return self.feed(ev.SupervisorLost())

    def come(
        self,
        session: SessionId = ONE,
        *,
        source: SourceId = DAEMON,
        greets: bool = True,
        keeps: bool = False,
        fleeting: bool = False,
    ) -> None:
        """A session attaches, and what its carrier replays is read."""
        self.attach(session, source=source, keeps=keeps, fleeting=fleeting)
        if greets:
            self.greet(session, ALL, request=b'"i"')

    def resume(
        self,
        *calls: ev.CallRequested,
        session: SessionId = ONE,
        epoch: Epoch = EPOCH,
        asks: tuple[str, ...] = (),
        stateful: tuple[str, ...] = (),
        greets: bool = True,
    ) -> list[Any]:
        """A session comes back with requests that it has no answer to."""
        self.come(session, greets=greets, keeps=True)
        return self.feed(
            ev.SessionResumed(session, epoch, calls, tuple(AskId(ask) for ask in asks), stateful)
        )

    def answer(self, call: CallId, body: RawJson = RESULT) -> list[Any]:
        """A server's answer."""
        return super().answer(call, body)

    def ask(self, call: CallId, ask: str, name: str = "") -> list[Any]:
        """A server wants something of the agent behind a call."""
        return self.feed(AskOpened(call, AskId(ask), SAMPLING, EMPTY_OBJECT, False, name=name))


def called(request: str = "1", name: str = "a__x", session: SessionId = ONE) -> ev.CallRequested:
    """A request of an agent of the handshake era."""
    return ev.CallRequested(session, RawJson(request.encode()), name, EMPTY_OBJECT, ABSENT, ABSENT)


def says(
    request: str = "1",
    *,
    state: str = "",
    session: SessionId = ONE,
    given: dict[str, RawJson] | None = None,
) -> ev.CallRequested:
    """One of the stateless era; `state` and `given`: it is a retry."""
    return ev.CallRequested(
        session, RawJson(request.encode()), "a__x", EMPTY_OBJECT, ABSENT, ABSENT,
        by=StatelessAgent(ALL), digest="d", state=state,
        given=tuple(InputResponse(key, body) for key, body in (given or {}).items()),
    )  # fmt: skip
