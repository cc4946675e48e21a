"""What the servers of the simulated world ask, and the book of every ask: the oracle about asks.

Owns each ask from the server that sends it to the answer it gets: whose it is in truth, who was shown it,
what was said to it. A broken promise is a `Violation`: an ask shown to another agent, an answer of another
agent or to another ask, two answers or none, a server left waiting.

Servers and agents are as confusing as they can be: the request ids, progress tokens, task ids and elicitation
ids of servers are equal on all instances, agents know each other's asks and answer those too.

Knows nothing of: cores, the link, when servers ask.
"""

import re
from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Literal

import msgspec
from msgspec import Struct

from carpool_protocol.ids import ABSENT, AskId, InstanceId, RawJson, SessionId, WireId
from carpool_protocol.link.messages import Call, Need
from carpool_protocol.wire.capabilities import needed_capabilities
from carpool_supervisor.core.model import events as ev
from carpool_supervisor.core.model.attribution import RELATED_TASK, AskFacts, facts_of
from tests.world.sim.oracles.violation import Violation
from tests.world.sim.pauses import Pauses

if TYPE_CHECKING:
    from tests.world.sim.interfaces import AskingServerHost

Echo = Literal["no", "exact", "tracer"]
"""What a server does with the trace context of a call when it asks: nothing; sends it back (Python SDK from 2
on); sends it back with a span of its own (a tracer in the server).
"""
Kind = Literal["sampling", "sampling_tools", "form", "multi_select", "url", "roots"]
"""`multi_select`: a form that requires what agents of 2025-06-18 have no words for. `roots`: only servers of
the stateless era want them, of an agent that has said that it has some.
"""
KINDS: tuple[Kind, ...] = ("sampling", "sampling_tools", "form", "multi_select", "url")
FORMS: tuple[Kind, ...] = ("form", "multi_select", "url")

SPARE_S = 1.0
"""For lag, on top of the time an agent has."""

_mark = re.compile(rb"k=([0-9]+)").search


class SimAsk(Struct, eq=False):
    """One request of a server."""

    number: int
    kind: Kind
    instance: InstanceId
    about: int
    """The number of the agent's request that made it; 0 for none."""
    certain: bool
    """The server plays by the rules or says what it asks about: only one agent may ever see it."""
    at: float
    id: RawJson
    token: RawJson
    elicitation: str
    exact: bool = False
    """It says which call it is about: the answer to no other may show it."""
    principals: bool = False
    """Its call was said to be the principal's own: agents who are one to it are one here."""
    answered: bool = False
    withdrawn: bool = False
    shown: AskId | None = None
    said: dict[SessionId, RawJson] = {}
    """By agent: the first answer it gave."""


class AskOracle:
    """Every ask there was, by number."""

    def __init__(self, owners: dict[int, SessionId], ask_timeout_s: float, pauses: Pauses) -> None:
        self._pauses = pauses
        self.owners = owners
        """Whose each request of an agent is."""
        self.principals: dict[SessionId, SessionId] = {}
        """Of agents that share a session: that session."""
        self.left: dict[int, SessionId] = {}
        """As a call of which session a request has left its node for another one."""
        self.aliases: dict[SessionId, SessionId] = {}
        """Of sessions that an agent has begun because nobody knew its old one: that old one."""
        self.bound_s = ask_timeout_s + SPARE_S
        self.asks: dict[int, SimAsk] = {}
        self.shown: dict[AskId, SimAsk] = {}
        self.outcomes: dict[str, int] = {}

    def put(self, ask: SimAsk) -> None:
        """A server sends it."""
        self.asks[ask.number] = ask

    def show(self, shown: AskId, params: RawJson, session: SessionId) -> SimAsk:
        """An agent sees it."""
        found = _mark(params)
        if found is None:
            raise Violation(f"{session} was asked something that no server asked")
        ask = self.asks[int(found[1])]
        if shown in self.shown or ask.shown is not None:
            raise Violation(f"ask {ask.number} was shown twice")
        ask.shown = shown
        self.shown[shown] = ask
        self._only_owner(ask, session, "was shown")
        self._count("shown")
        return ask

    def want(self, params: RawJson, session: SessionId, number: int) -> SimAsk:
        """An agent of the stateless era reads it in the answer to one of its requests: perhaps again."""
        found = _mark(params)
        if found is None:
            raise Violation(f"{session} was asked something that no server asked")
        ask = self.asks[int(found[1])]
        # Another node is told what is asked of its agent, and not about which of the agent's calls.
        if ask.exact and ask.about != number and ask.about not in self.left:
            raise Violation(f"ask {ask.number} is about request {ask.about} and came with that of {number}")
        if ask.shown is not None:
            raise Violation(f"ask {ask.number} was shown to an agent that can be asked, and to {session}")
        self._only_owner(ask, session, "was told of")
        self._count("wanted")
        return ask

    def elicited(self, session: SessionId, params: RawJson) -> None:
        """An agent hears that what it was sent to a URL for is done."""
        about = msgspec.json.decode(params)["about"]
        if self.owners.get(about) != self.first_of(session):
            raise Violation(f"{session} hears that an elicitation of {self.owners.get(about)} is done")
        self._count("elicited")

    def answer(self, ask: SimAsk, is_error: bool, body: RawJson, now: float) -> None:
        """A server gets an answer to it."""
        if ask.answered:
            raise Violation(f"ask {ask.number} was answered twice")
        if ask.withdrawn:
            raise Violation(f"ask {ask.number} was answered after its server had withdrawn it")
        took_s = self._pauses.took_s(ask.at, now)
        if took_s > self.bound_s:
            raise Violation(f"ask {ask.number} was answered only after {took_s:.1f} s")
        ask.answered = True
        mark = mark_of(is_error, body)
        if mark is None:
            if not is_error:
                raise Violation(f"nobody gave the answer to ask {ask.number}")
            self._count("refused")
            return
        number, session = mark
        if number != ask.number:
            raise Violation(f"ask {ask.number} got the answer to ask {number}")
        if ask.said.get(session) != body:
            raise Violation(f"the answer of {session} to ask {ask.number} was changed on its way")
        self._only_owner(ask, session, "answered")
        self._count("erred" if is_error else "answered")

    def progress(self, ask: SimAsk, params: RawJson) -> None:
        """A server hears how far its agent is."""
        said = msgspec.json.decode(params)
        if said["k"] != ask.number or ask.answered or ask.withdrawn:
            raise Violation(f"ask {ask.number} got progress of ask {said['k']}, or after its end")
        self._only_owner(ask, SessionId(said["by"]), "made progress with")
        self._count("progress")

    def _only_owner(self, ask: SimAsk, session: SessionId, what: str) -> None:
        owner, session = self.owners.get(ask.about), self.first_of(session)
        if ask.principals and owner is not None:
            session, owner = self.principals.get(session, session), self.principals.get(owner, owner)
        if ask.certain and session != owner:
            raise Violation(
                f"{session} {what} ask {ask.number}, which is about request {ask.about} of {owner}"
            )

    def first_of(self, session: SessionId) -> SessionId:
        """The first session of this agent."""
        return self.first_of(self.aliases[session]) if session in self.aliases else session

    def _count(self, word: str) -> None:
        self.outcomes[word] = self.outcomes.get(word, 0) + 1


def result_of(ask: SimAsk, session: SessionId, *, is_error: bool) -> RawJson:
    """What this agent says to it: marked with both."""
    mark = b'"k":%d,"by":"%b"' % (ask.number, session.encode())
    if is_error:
        return RawJson(b'{"code":-1,"message":"The person said no.","data":{%b}}' % mark)
    if ask.kind in FORMS:
        return RawJson(b'{"action":"accept","content":{%b}}' % mark)
    if ask.kind == "roots":
        return RawJson(b'{"roots":[],%b}' % mark)
    return RawJson(b'{"role":"assistant","model":"sim","content":{"type":"text","text":""},%b}' % mark)


def mark_of(is_error: bool, body: RawJson) -> tuple[int, SessionId] | None:
    """Which agent said this to which ask; None for what carpool says."""
    said = msgspec.json.decode(body)
    marked = said.get("data") if is_error else said.get("content", {}) if "action" in said else said
    if not isinstance(marked, dict) or "by" not in marked:
        return None
    return marked["k"], SessionId(marked["by"])


class AskingServer:
    """The asks of one instance."""

    def __init__(
        self, host: "AskingServerHost", instance: InstanceId, say: Callable[[ev.OwnEvent], None]
    ) -> None:
        self.host = host
        self.instance = instance
        self._say = say
        self._sent = 0
        self._elicitations = 0
        self.open: dict[RawJson, list[SimAsk]] = {}
        """By the server's own request id: two of one id, where it is careless."""
        self._then: list[tuple[int, Callable[[], None]]] = []

    def ask(self, call: Call, number: int, *, echo: Echo, task: str, live: bool, again: bool) -> SimAsk:
        """Ask about a request of an agent. `live`: it is written and not answered, as far as anybody knows.
        `again`: under the id of one that is still open.
        """
        rng = self.host.rng
        request = rng.choice(list(self.open)) if again and self.open else self._fresh()
        kind = rng.choice(KINDS)
        elicitation = self.elicitation() if kind == "url" else ""
        meta, names_it = _meta_of(call, echo, task, rng)
        ask = SimAsk(
            number=len(self.host.asks.asks) + 1,
            kind=kind,
            instance=self.instance,
            about=number,
            certain=live or names_it,
            at=self.host.now,
            id=request,
            token=request if rng.random() < 0.5 else ABSENT,
            elicitation=elicitation,
            exact=names_it,
            principals=self._is_of_principal(call, number, names_it=names_it),
        )
        self._send(ask, facts_of(_method_of(kind), meta, self.host.life))
        return ask

    def want(self, call: Call, number: int, wire_id: WireId, name: str) -> None:
        """In the stateless era: want something before the call goes on."""
        rng = self.host.rng
        has_roots = call.can is not None and "roots" in call.can
        kind = rng.choice((*KINDS, "roots") if has_roots else KINDS)
        ask = SimAsk(
            number=len(self.host.asks.asks) + 1,
            kind=kind,
            instance=self.instance,
            about=number,
            certain=True,
            at=self.host.now,
            id=self._fresh(),
            token=ABSENT,
            elicitation="",
            exact=True,
            principals=self._is_of_principal(call, number, names_it=True),
        )
        self._send(ask, AskFacts(_method_of(kind), wire=wire_id), name)

    def _is_of_principal(self, call: Call, number: int, *, names_it: bool) -> bool:
        """Whether any agent of the call's principal may see the ask. Another node is told which session is
        asked, and not about which of its calls.
        """
        asks = self.host.asks
        session = asks.left.get(number, call.session)
        owner = asks.principals.get(asks.owners.get(number) or call.session)
        return (not names_it or number in asks.left) and owner == session

    def forget(self, number: int) -> None:
        """Nothing of this request is wanted any more."""
        for request, asks in list(self.open.items()):
            for ask in [ask for ask in asks if ask.about == number]:
                ask.withdrawn = True
                asks.remove(ask)
            if not asks:
                del self.open[request]
        self._go_on()

    def ask_about_nothing(self) -> None:
        """Ask as no call made it."""
        request = self._fresh()
        ask = SimAsk(
            number=len(self.host.asks.asks) + 1,
            kind="form",
            instance=self.instance,
            about=0,
            certain=False,
            at=self.host.now,
            id=request,
            token=ABSENT,
            elicitation="",
        )
        self._send(ask, AskFacts(_method_of(ask.kind)))

    def _send(self, ask: SimAsk, facts: AskFacts, name: str = "") -> None:
        self.host.asks.put(ask)
        self.open.setdefault(ask.id, []).append(ask)
        params = _params_of(ask)
        needs: tuple[Need, ...] = ("roots",) if ask.kind == "roots" else ()
        needs = needs or tuple(needed_capabilities(facts.method, params))
        self._say(
            ev.ServerAsked(self.instance, ask.id, params, facts, ask.token, ask.elicitation, needs, name)
        )

    def elicitation(self) -> str:
        """A new elicitation id: equal on all instances."""
        self._elicitations += 1
        return f"e{self._elicitations}"

    def _fresh(self) -> RawJson:
        """Every instance uses the same ids, in the spellings that JSON allows."""
        self._sent += 1
        spellings = (b"%d", b'"%d"', b'"a-%d"', b"-%d")
        return RawJson(spellings[self._sent % 4] % (self._sent // 4))

    def waits(self, number: int) -> bool:
        """Whether an ask about this request is open."""
        return any(ask.about == number for asks in self.open.values() for ask in asks)

    def after(self, number: int, act: Callable[[], None]) -> None:
        """Do it when no ask about this request is open any more."""
        self._then.append((number, act))

    def withdraw(self, reason: str) -> None:
        """The server cancels one of its asks."""
        if self.open:
            request = self.host.rng.choice(list(self.open))
            for ask in self.open.pop(request):
                ask.withdrawn = True
            self._say(ev.ServerCancelledAsk(self.instance, request, reason))
            self._go_on()

    def answered(self, request: RawJson, is_error: bool, body: RawJson, now: float) -> None:
        """Carpool writes an answer."""
        asks = self.open.get(request)
        if not asks:
            raise Violation(
                f"instance {self.instance} got an answer to {request!r}, which it does not wait for"
            )
        mark = mark_of(is_error, body)
        ask = next((each for each in asks if mark and each.number == mark[0]), asks[-1])
        asks.remove(ask)
        if not asks:
            del self.open[request]
        self.host.asks.answer(ask, is_error, body, now)
        self._go_on()

    def progressed(self, token: RawJson, params: RawJson) -> None:
        """Carpool tells how far an agent is."""
        known = [ask for asks in self.open.values() for ask in asks if ask.token == token]
        if not known:
            raise Violation(
                f"instance {self.instance} got progress for {token!r}, which it does not wait for"
            )
        self.host.asks.progress(known[0], params)

    def _go_on(self) -> None:
        ready = [each for each in self._then if not self.waits(each[0])]
        self._then = [each for each in self._then if self.waits(each[0])]
        for _, act in ready:
            act()


def _meta_of(call: Call, echo: Echo, task: str, rng: Random) -> tuple[RawJson, bool]:
    """The `_meta` of an ask, and whether that names its call beyond doubt."""
    if task:
        return RawJson(b'{"%b":{"taskId":"%b"}}' % (RELATED_TASK.encode(), task.encode())), True
    if echo == "no" or not call.meta:
        return ABSENT, False
    sent = msgspec.json.decode(call.meta).get("traceparent")
    if sent is None:
        return ABSENT, False
    if echo == "tracer":
        sent = f"{sent[:36]}{rng.getrandbits(64):016x}{sent[52:]}"
    return RawJson(msgspec.json.encode({"traceparent": sent})), echo == "exact"


def _method_of(kind: Kind) -> str:
    if kind == "roots":
        return "roots/list"
    return "elicitation/create" if kind in FORMS else "sampling/createMessage"


def _params_of(ask: SimAsk) -> RawJson:
    text = b"k=%d" % ask.number
    match ask.kind:
        case "roots":
            return RawJson(b'{"mark":"%b"}' % text)
        case "form" | "multi_select":
            more = b'"m":{"type":"array"}},"required":["m"]' if ask.kind == "multi_select" else b"}"
            schema = b'{"type":"object","properties":{%b}' % more
            return RawJson(b'{"message":"%b","requestedSchema":%b}' % (text, schema))
        case "url":
            return RawJson(
                b'{"mode":"url","message":"%b","url":"https://x/y","elicitationId":"%b"}'
                % (text, ask.elicitation.encode())
            )
        case "sampling" | "sampling_tools":
            tools = b',"tools":[{"name":"t","inputSchema":{"type":"object"}}]'
            more = tools if ask.kind == "sampling_tools" else b""
            said = b'{"role":"user","content":{"type":"text","text":"%b"}}' % text
            return RawJson(b'{"messages":[%b],"maxTokens":9%b}' % (said, more))


def task_of(wire_id: WireId) -> str:
    """The server's own id of the task it makes of a call: equal on all instances."""
    return f"task-{wire_id}"
