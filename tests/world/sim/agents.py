"""Agents of the handshake era in the simulated world.

Owns what each has open, its list and its subscriptions, and the rule that an agent is asked only what it can
be asked. Answers are judged by the oracle (`oracles/calls`). A broken rule is a `Violation`.

Knows nothing of: cores' insides, the link, instances.
"""

from random import Random

import msgspec

from carpool_broker.core.model import effects as bf
from carpool_broker.core.model import events as bv
from carpool_broker.core.model.capabilities import Capabilities
from carpool_protocol.ids import ABSENT, AskId, RawJson, SessionId
from tests.world.sim.oracles.asks import SimAsk, result_of
from tests.world.sim.oracles.calls import CallBook, Kind, SentCall
from tests.world.sim.oracles.lists import Rows, rows_of
from tests.world.sim.oracles.violation import Violation

SHARED_TRACE = f"00-{'a' * 32}-{'b' * 16}-01"
"""Several agents work on one thing: their own contexts are the same."""
FIND = RawJson(b'{"arguments":{"query":""}}')
FOUND = RawJson(b"{}")
"""What a search tells is for whoever words it; here it is only an answer."""
CAPABILITIES = (
    Capabilities(),
    Capabilities(sampling=True, form=True),
    Capabilities(sampling=True, sampling_tools=True, form=True, url=True),
)


class SimAgent:
    """One agent on one session. Each method gives the event to feed; `take` judges what comes back."""

    def __init__(self, book: CallBook, rng: Random, session: SessionId, *, careless: bool) -> None:
        self.book = book
        self.rng = rng
        self.session = session
        self.careless = careless
        """Uses an id again while it is open."""
        self.silent = False
        """Never answers what it is asked."""
        self.open: dict[RawJson, SentCall] = {}
        self.doubles: dict[RawJson, int] = {}
        self.tokens: dict[RawJson, RawJson] = {}
        self.tools: list[str] = []
        self.has_read: Rows | None = None
        """The list as it was read; None: there is none, or it was said to be old."""
        self.searches = False
        """It is shown tools of carpool's own, and calls the others through one of those."""
        self.greeted = False
        self.list_is_old = True
        self.capabilities = rng.choice(CAPABILITIES)
        self.asks: dict[AskId, SimAsk] = {}
        """What it was asked and has neither answered nor been told to forget."""
        self.watched: set[str] = set()
        """Resources whose changes it wants to hear of."""
        self.subscribed: set[str] = set()
        """Those of them that it was told it hears of, as long as it is in one workspace."""
        self.level = ""
        """Of the log messages that it wants; empty: none."""
        self.updated = self.logged = 0
        """How many of each it has heard."""
        self._next = 0

    def greet(self, now: float) -> bv.AnyEvent:
        """`initialize`."""
        version, id_ = self.version, self._open("greet", now)
        return bv.InitializeRequested(self.session, id_, version, "sim", self.capabilities)

    @property
    def version(self) -> str:
        """Who can be asked everything is of the newest version, all others of an older one."""
        return "2025-11-25" if self.capabilities.url else "2025-06-18"

    def list_tools(self, now: float) -> bv.AnyEvent:
        """`tools/list`."""
        self.list_is_old = False
        request = self._open("list", now)
        if self.searches and self.rng.random() < 0.7:
            return bv.CallRequested(self.session, request, "find_tools", FIND, ABSENT, ABSENT)
        return bv.ListPageRequested(self.session, request, None)

    def ping(self, now: float) -> bv.AnyEvent:
        """`ping`."""
        return bv.PingRequested(self.session, self._open("ping", now))

    def watch(self, uri: str, now: float) -> bv.AnyEvent:
        """`resources/subscribe`."""
        self.watched.add(uri)
        return bv.SubscribeRequested(self.session, self._open("watch", now), uri, on=True)

    def set_level(self, level: str, now: float) -> bv.AnyEvent:
        """`logging/setLevel`."""
        self.level = level
        return bv.LogLevelRequested(self.session, self._open("level", now), level)

    def call(self, name: str, now: float, *, size_bytes: int = 0, progress: bool = False) -> bv.AnyEvent:
        """`tools/call`."""
        if self.careless and self.open and self.rng.random() < 0.1:
            request = self.rng.choice(list(self.open))
            if self.open[request].kind in ("call", "list"):
                self.doubles[request] = self.doubles.get(request, 0) + 1
                return bv.CallRequested(
                    self.session, request, name, RawJson(b'{"arguments":{"n":0}}'), ABSENT, ABSENT
                )
        request = self._open("call", now)
        rest = RawJson(b'{"arguments":{"n":%d,"pad":"%s"}}' % (self.open[request].number, b"x" * size_bytes))
        token = request if progress else ABSENT
        if token:
            self.tokens[token] = request
        trace = SHARED_TRACE if self.rng.random() < 0.3 else ""
        meta = RawJson(b'{"traceparent":"%b"}' % trace.encode()) if trace else ABSENT
        if self.searches and self.rng.random() < 0.7:
            inner = RawJson(b'{"arguments":{"name":%b,%b' % (msgspec.json.encode(name), rest[1:] + b"}"))
            own = (bv.BuiltinCall(name, rest),)
            return bv.CallRequested(
                self.session, request, "call_tool", inner, meta, token, trace=trace, own=own
            )
        return bv.CallRequested(self.session, request, name, rest, meta, token, trace=trace)

    def answer(self, shown: AskId, ask: SimAsk) -> bv.AnyEvent:
        """Its answer to an ask: also to one that is another's, or over."""
        self.asks.pop(shown, None)
        is_error = self.rng.random() < 0.2
        body = result_of(ask, self.session, is_error=is_error)
        ask.said.setdefault(self.session, body)
        return bv.AskAnswered(self.session, shown, is_error, body)

    def progress(self, shown: AskId, ask: SimAsk) -> bv.AnyEvent:
        """Its progress with an ask."""
        params = RawJson(b'{"progress":1,"k":%d,"by":"%b"}' % (ask.number, self.session.encode()))
        return bv.AskProgressed(self.session, shown, params)

    def leave(self, now: float) -> bv.AnyEvent:
        """It is gone: nobody wants any of its answers."""
        for ask in self.open.values():
            self.book.cancelled[ask.number] = now
        return bv.SessionClosed(self.session)

    def cancel(self, now: float) -> bv.AnyEvent | None:
        """`notifications/cancelled` of an open call or list: nothing may come for it any more."""
        able = [request for request, ask in self.open.items() if ask.kind in ("call", "list")]
        if not able:
            return None
        request = self.rng.choice(able)
        self.book.cancelled[self.open.pop(request).number] = now
        return bv.RequestCancelled(self.session, request, "no longer wanted")

    def take(self, effect: bf.LocalEffect, now: float) -> str:  # noqa: C901 - an arm per effect
        """What the broker writes to this agent. Returns a word for what it was."""
        match effect:
            case bf.AnswerInitialize():
                ask = self._close(effect.id)
                if ask.kind != "greet":
                    raise Violation(f"{self.session} was greeted for {effect.id!r}")
                self.greeted = True
                return "greeted"
            case bf.Reply():
                return self._answered(effect, now)
            case bf.ReplyRewritten():
                plain = bf.Reply(effect.session, effect.id, is_error=False, body=effect.body)
                return self._answered(plain, now)
            case bf.AnswerBuiltin():
                self.list_is_old = self.rng.random() < 0.3  # it may look again any time
                return self.book.outcome(self._close(effect.id), FOUND, now, is_error=False)
            case bf.SendProgress():
                request = self.tokens.get(effect.token)
                told = msgspec.json.decode(effect.params)
                if "n" not in told:  # it hears that its call waits for an instance
                    return "waits"
                number = told["n"]
                if request is None or request not in self.open or self.open[request].number != number:
                    raise Violation(
                        f"{self.session} got progress of call {number}, which is not its own or not open"
                    )
                return "progress"
            case bf.SendListChanged():
                if effect.family == "tools":
                    self.list_is_old, self.has_read = True, None
                return "list_changed"
            case bf.SendAsk() | bf.WithdrawAsk() | bf.SendElicitationComplete():
                return self._heard_of_ask(effect)
            case bf.SendResourceUpdated():
                if effect.uri not in self.watched:
                    raise Violation(f"{self.session} hears of {effect.uri}, which it never asked for")
                self.updated += 1
                return "updated"
            case bf.SendLog():
                about = msgspec.json.decode(effect.params)["n"]
                if not self.level or self.book.owners[about] != self.book.asks.first_of(self.session):
                    raise Violation(f"{self.session} got the log of call {about}")
                self.logged += 1
                return "logged"
            case bf.ApplyRoots() | bf.LogLine():
                return "note"
            case _:
                raise Violation(f"{self.session} speaks the handshake era and got {type(effect).__name__}")

    def _answered(self, effect: bf.Reply, now: float) -> str:
        if effect.is_error and b'"duplicate_request_id"' in bytes(effect.body):
            self.doubles[effect.id] = self.doubles.get(effect.id, 0) - 1
            if self.doubles[effect.id] < 0:
                raise Violation(f"{self.session} {effect.id!r} is refused as double and is none")
            return "double"
        ask = self._close(effect.id)
        word = self.book.outcome(ask, effect.body, now, is_error=effect.is_error)
        if ask.kind == "list" and not effect.is_error:
            listed = [tool["name"] for tool in msgspec.json.decode(effect.body).get("tools", ())]
            if bytes(effect.body).startswith(b'{"tools":['):
                self.has_read = rows_of(effect.body)
            self.searches = self.searches or "find_tools" in listed
            self.tools = [] if self.searches else listed
            self.list_is_old = self.list_is_old or self.searches  # it looks what it can find
        return word

    def _heard_of_ask(self, effect: bf.SendAsk | bf.WithdrawAsk | bf.SendElicitationComplete) -> str:
        match effect:
            case bf.SendAsk():
                ask = self.book.asks.show(effect.ask, effect.params, self.session)
                if ask.kind not in able(self.capabilities):
                    raise Violation(f"{self.session} was asked for {ask.kind}, which it has not declared")
                if effect.wants_progress != bool(ask.token):
                    raise Violation(f"ask {ask.number} lost what it says about progress")
                self.asks[effect.ask] = ask
                return "asked"
            case bf.WithdrawAsk():
                if self.asks.pop(effect.ask, None) is None:
                    raise Violation(
                        f"{self.session} is told that {effect.ask} is over, which it has not open"
                    )
                return "withdrawn"
            case bf.SendElicitationComplete():
                if not self.capabilities.url:
                    raise Violation(f"{self.session} hears of a URL and knows none")
                self.book.asks.elicited(self.session, effect.params)
                return "elicited"

    def _open(self, kind: Kind, now: float) -> RawJson:
        """Every agent uses the same ids, in all the spellings that JSON allows."""
        self._next += 1
        spellings = (b"%d", b'"%d"', b"%d.0", b"-%d")
        request = RawJson(spellings[self._next % 4] % (self._next // 4))
        self.book.asked += 1
        self.book.owners[self.book.asked] = self.book.asks.first_of(self.session)
        self.open[request] = SentCall(self.book.asked, kind, now)
        return request

    def _close(self, request: RawJson) -> SentCall:
        ask = self.open.pop(request, None)
        if ask is None:
            raise Violation(f"{self.session} got an answer to {request!r}, which it does not wait for")
        return ask


def able(declared: Capabilities) -> set[str]:
    """What an agent can be asked that has declared this."""
    kinds = {"sampling": declared.sampling, "form": declared.form, "url": declared.url}
    kinds["sampling_tools"] = declared.sampling_tools
    kinds["multi_select"] = declared.form and declared.url  # of the newest version
    return {kind for kind, can in kinds.items() if can}
