"""A broker's core with agents of the stateless era, for the tests of what they get.

Owns the shorthands: a supervisor, two servers, sessions of every kind, requests with their `StatelessAgent`.
"""

from typing import Any, Final

from carpool_broker.core.model import events as ev
from carpool_broker.core.model.bounds import SessionBounds
from carpool_broker.core.model.capabilities import Capabilities, StatelessAgent
from carpool_broker.core.model.effects import RequireInput
from carpool_broker.core.model.events import InputResponse
from carpool_protocol.ids import ABSENT, EMPTY_OBJECT, AskId, CallId, PoolKey, RawJson, SessionId
from carpool_protocol.link.messages import (
    AskOpened,
    Call,
    Feature,
    Mode,
    PoolChanged,
    ResourceOffer,
)
from tests.kit.broker_rig import BrokerRig

ONE, TWO = SessionId("s1"), SessionId("s2")
A, B = PoolKey("a:1"), PoolKey("b:1")
PLAIN: Final = StatelessAgent()
ASKING: Final = StatelessAgent(Capabilities(sampling=True, form=True, url=True, roots=True), agent="able")
SAMPLING: Final = "sampling/createMessage"
ELICITATION: Final = "elicitation/create"
PARAMS: Final = RawJson(b'{"messages":[]}')
RESULT: Final = RawJson(b'{"content":[]}')
FEATURES: Final[list[Feature]] = [
    "tools",
    "tools.listChanged",
    "resources",
    "resources.listChanged",
    "resources.subscribe",
]
SECRET: Final = b"of the tests"


class StatelessRig(BrokerRig):
    """Servers `a` (tool `x`, resource `file:///a`) and `b` (tool `y`), a supervisor, a clock."""

    def __init__(self, *, told: bool = True, park_s: float = 300.0, **bounds: Any) -> None:
        super().__init__(SessionBounds(park_s=park_s, **bounds), secret=SECRET)
        self.count = 0
        self.read(A, B)
        self.supervisor_comes()
        if told:
            self.catalog(A, "x")
            self.catalog(B, "y")
        self.come(ONE)

    def catalog(self, key: str, *tools: str, **more: Any) -> list[Any]:
        """A pool tells what it has; `a` has a resource."""
        features = more.pop("features", None)
        told = FEATURES if features is None else features
        resource = ResourceOffer("file:///a", RawJson(b'{"uri":"file:///a"}'))
        has = [resource] if key == A and "resources" in told else []
        return super().catalog(key, *tools, resources=has, features=told, **more)

    def mode(self, key: PoolKey, mode: Mode) -> list[Any]:
        """The pool serves, shared like that."""
        return self.feed(PoolChanged(key, "serving", "", None, mode))

    def come(self, session: SessionId, *, shared: bool = False, anonymous: bool = False) -> None:
        """An agent attaches."""
        self.attach(session, shared=shared, anonymous=anonymous)

    def initialize(self, session: SessionId, capabilities: Capabilities | None = None) -> list[Any]:
        """An agent of the handshake era greets."""
        return self.greet(session, capabilities, request=b'"i"')

    def call_tool(
        self,
        request: str = "1",
        name: str = "a__x",
        *,
        session: SessionId = ONE,
        by: StatelessAgent = ASKING,
        method: str = "tools/call",
        state: str = "",
        given: dict[str, RawJson] | None = None,
        token: str = "",
        digest: str = "d",
        declined: bool = False,
        rest: RawJson = EMPTY_OBJECT,
    ) -> list[Any]:
        """One request for a server."""
        answers = tuple(
            InputResponse(key, body, accepted=not declined) for key, body in (given or {}).items()
        )
        return self.feed(
            ev.CallRequested(
                session, RawJson(request.encode()), name, rest, ABSENT, RawJson(token.encode()),
                method=method, by=by, digest=digest, state=state, given=answers,
            )
        )  # fmt: skip

    def call(self, request: str = "1", name: str = "a__x", **more: Any) -> Call:
        """The same, and what it becomes on the link."""
        effects = self.call_tool(request, name, **more)
        found = [effect for effect in effects if isinstance(effect, Call)]
        assert len(found) == 1, effects
        return found[0]

    def ask(self, call: CallId, ask: str = "q1", method: str = SAMPLING, **more: Any) -> list[Any]:
        """A server wants something of the agent behind a call."""
        return self.feed(AskOpened(call, AskId(ask), method, PARAMS, False, **more))

    def park(self, request: str = "1", *asks: str, **more: Any) -> tuple[CallId, RequireInput]:
        """A call whose server wants something, and what its agent is told."""
        call = self.call(request, **more).call
        for ask in asks or ("q1",):
            assert self.ask(call, ask) == []
        (said,) = self.wait(0.01)
        assert isinstance(said, RequireInput)
        return call, said
