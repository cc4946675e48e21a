"""Agents of the stateless era in the simulated world: one on a session of its own, or several behind one
principal who know nothing of each other.

Owns what each of them has open, the tokens it was given and what it listens to, and the rules about those:
one reply per request id, what is wanted comes with the answer to the very request and to the agent that it
is about, a token is good once, nothing is heard but on a listen that is open. A broken rule is a `Violation`;
answers are judged by the `CallBook`, questions by the `AskBook`.

Knows nothing of: cores' insides, when anybody acts.
"""

import re
from random import Random

import msgspec
from msgspec import Struct

from carpool_broker.core.model import effects as bf
from carpool_broker.core.model import events as bv
from carpool_broker.core.model.capabilities import StatelessAgent
from carpool_protocol.ids import ABSENT, AskId, RawJson, SessionId
from tests.world.sim.agents import CAPABILITIES, SimAgent
from tests.world.sim.oracles.asks import SimAsk, result_of
from tests.world.sim.oracles.calls import CallBook, Kind, SentCall
from tests.world.sim.oracles.violation import Violation
from tests.world.sim.traits import READ

_page = re.compile(rb"u=([0-9]+)").search
EDGE_S = 0.001
"""At the very moment when a token expires it may be good or not."""


class WantedInput(Struct):
    """One thing that is wanted of an agent."""

    key: str
    ask: SimAsk | None
    """None: it is sent to a page."""


class StateToken(Struct):
    """What a request was answered with, and what came along."""

    state: str
    person: SessionId
    number: int
    name: str
    method: str
    rest: RawJson
    wanted: list[WantedInput]
    until: float
    own: tuple[bv.BuiltinCall, ...] = ()
    used: bool = False
    survived: bool = False
    """The broker that made it has died. The next one does not know since when it is out, nor always that it
    was used: it may give the same answer again, or say a call again that had ended for a page.
    """

    @property
    def kind(self) -> Kind:
        """Of requests with it that are good."""
        return "read" if self.method == READ else "call"


class OpenRequest(Struct):
    """One request that waits for its reply."""

    request: SentCall
    person: SessionId
    name: str = ""
    method: str = ""
    rest: RawJson = ABSENT
    token: StateToken | None = None
    is_second: bool = False
    """It has a token that another request had before: the next broker may take it, or refuse it."""
    """What this retry brings back."""
    own: tuple[bv.BuiltinCall, ...] = ()
    again: bool = False
    """It was said to another broker once more, which may not know what is good."""


class OpenListen(Struct):
    """One `subscriptions/listen`."""

    person: SessionId
    uris: tuple[str, ...]
    granted: bool = False
    families: tuple[str, ...] = ()
    held_uris: tuple[str, ...] = ()
    is_elsewhere: bool = False
    """Its session has gone to another workspace since."""
    tools: list[str] | None = None
    """The list as it was read while this listen was open; None: there is none, or it was said to be old."""


class StatelessAgents:
    """All agents of one session. Each method gives the event to feed; `take` judges what comes back."""

    def __init__(self, book: CallBook, rng: Random, session: SessionId, *, count: int, park_s: float) -> None:
        self.book = book
        self.rng = rng
        self.session = session
        self.park_s = park_s
        self.persons = [SessionId(f"{session}/{each}") for each in range(count)]
        self.by: dict[SessionId, StatelessAgent] = {}
        for person in self.persons:
            book.asks.principals[person] = session
            self.by[person] = self._asker()
        self.open: dict[RawJson, OpenRequest] = {}
        self.doubles: dict[RawJson, int] = {}
        self.asks: dict[AskId, SimAsk] = {}
        """Such agents cannot be asked: there is never one."""
        self.listens: dict[RawJson, OpenListen] = {}
        self.tokens: list[StateToken] = []
        self.tools: list[str] = []
        self.searches = False
        self.uris: list[str] = []
        self._next = 0

    def _asker(self) -> StatelessAgent:
        declared = self.rng.choice(CAPABILITIES)
        if self.rng.random() < 0.5:
            declared = msgspec.structs.replace(declared, roots=True)
        return StatelessAgent(declared, "people", self.rng.choice(("", "", "info")))

    # --- what they say ----------------------------------------------------------------------------------

    def call(self, name: str, now: float, *, size_bytes: int = 0, progress: bool = False) -> bv.AnyEvent:
        """`tools/call`."""
        return self._begin("call", name, "tools/call", now, size_bytes=size_bytes, progress=progress)

    def read(self, uri: str, now: float) -> bv.AnyEvent:
        """`resources/read`."""
        return self._begin("read", uri, READ, now)

    def _begin(
        self, kind: Kind, name: str, method: str, now: float, *, size_bytes: int = 0, progress: bool = False
    ) -> bv.AnyEvent:
        person = self.rng.choice(self.persons)
        id_ = self._open(kind, person, now)
        made = self.open[id_]
        made.name, made.method = name, method
        pad = b"x" * size_bytes
        made.rest = RawJson(b'{"arguments":{"n":%d,"pad":"%s"}}' % (made.request.number, pad))
        if self.searches and kind == "call" and self.rng.random() < 0.7:
            made.name, made.own = "call_tool", (bv.BuiltinCall(name, made.rest),)
        return self._called(id_, made, progress=progress)

    def _called(
        self,
        id_: RawJson,
        made: OpenRequest,
        state: str = "",
        given: tuple[bv.InputResponse, ...] = (),
        *,
        progress: bool,
    ) -> bv.CallRequested:
        return bv.CallRequested(
            self.session,
            id_,
            made.name,
            made.rest,
            ABSENT,
            id_ if progress else ABSENT,
            method=made.method,
            by=self.by[made.person],
            digest=f"digest of {made.request.number}",
            state=state,
            given=given,
            own=made.own,
        )

    def retry(self, token: StateToken, now: float, *, some: bool = False) -> bv.AnyEvent:
        """The same request again, with what was wanted (or `some` of it), if it may still be good."""
        pages = [each for each in token.wanted if each.ask is None]
        no_good = token.used and not token.survived
        kind: Kind = "refused" if no_good else token.kind
        id_ = self._open(kind, token.person, now, token.number)
        made = self.open[id_]
        made.name, made.method, made.rest, made.own = token.name, token.method, token.rest, token.own
        if not no_good:
            made.token = token
        agrees = self.rng.random() < 0.8
        brought = token.wanted[: max(1, len(token.wanted) // 2)] if some else token.wanted
        if pages and agrees and not no_good and len(brought) == len(token.wanted):
            self.book.again[token.number] = self.book.again.get(token.number, 0) + 1
        given = [self._give(token.person, each, agrees=agrees) for each in brought]
        if self.rng.random() < 0.1:
            given.append(bv.InputResponse("nobody wanted this", RawJson(b'{"action":"accept"}')))
        if now <= token.until + EDGE_S:
            token.used = True
        return self._called(id_, made, token.state, tuple(given), progress=self.rng.random() < 0.3)

    def _give(self, person: SessionId, wanted: WantedInput, *, agrees: bool) -> bv.InputResponse:
        if wanted.ask is None:
            action = b"accept" if agrees else b"decline"
            return bv.InputResponse(wanted.key, RawJson(b'{"action":"%b"}' % action), accepted=agrees)
        body = result_of(wanted.ask, person, is_error=False)
        wanted.ask.said.setdefault(person, body)
        return bv.InputResponse(wanted.key, body)

    def misuse(self, token: StateToken, now: float) -> bv.AnyEvent:
        """A retry that must be refused: with another's token, a changed request, or a token that is none."""
        id_ = self._open("refused", self.rng.choice(self.persons), now)
        made = self.open[id_]
        made.name, made.method = token.name, token.method
        made.rest = RawJson(b'{"arguments":{"n":%d}}' % made.request.number)
        state, own = token.state, token.person in self.persons
        if own or self.rng.random() < 0.3:  # of another session it is no good in any case
            spoilt = (state[:-1], state.replace(".1.", ".2.", 1), f"0{state}", "1.1")
            state = self.rng.choice((state, *(each for each in spoilt if each != state)))
        digest = f"digest of {made.request.number if own else token.number}"
        stolen = bv.InputResponse("in-0", RawJson(b'{"by":"nobody"}'))
        given = (stolen, *(bv.InputResponse(each.key, RawJson(b'{"by":"nobody"}')) for each in token.wanted))
        event = self._called(id_, made, state, given, progress=False)
        return msgspec.structs.replace(event, digest=digest)

    def list_tools(self, now: float) -> bv.AnyEvent:
        """`tools/list`."""
        person = self.rng.choice(self.persons)
        return bv.ListPageRequested(self.session, self._open("list", person, now), None, by=self.by[person])

    def discover(self, now: float) -> bv.AnyEvent:
        """`server/discover`."""
        person = self.rng.choice(self.persons)
        return bv.DiscoverRequested(self.session, self._open("discover", person, now), self.by[person])

    def listen(self, uris: tuple[str, ...], now: float) -> bv.AnyEvent:
        """`subscriptions/listen`, for tools and these resources."""
        person = self.rng.choice(self.persons)
        id_ = self._open("listen", person, now)
        self.listens[id_] = OpenListen(person, uris)
        return bv.ListenRequested(self.session, id_, self.by[person], ("tools", "prompts"), uris)

    def leave(self, now: float) -> bv.AnyEvent:
        """All of them are gone: nobody wants any of their answers."""
        gone, self.open = self.open, {}
        for each in gone.values():
            self._give_up(each.request, now)
        return bv.SessionClosed(self.session)

    def _give_up(self, request: SentCall, now: float) -> None:
        if request.kind != "refused" and request.number not in {e.request.number for e in self.open.values()}:
            self.book.cancelled[request.number] = now

    def cancel(self, now: float, *, listens: bool = False) -> bv.AnyEvent | None:
        """One goes away from an open request, or from a listen: nothing may come for it any more."""
        able = list(self.listens) if listens else list(self.open)
        if not able:
            return None
        id_ = self.rng.choice(able)
        was = self.open.pop(id_, None)
        if was is not None:
            self._give_up(was.request, now)
        self.listens.pop(id_, None)
        return bv.RequestCancelled(self.session, id_, "gone")

    def _open(self, kind: Kind, person: SessionId, now: float, number: int | None = None) -> RawJson:
        self._next += 1
        spellings = (b"%d", b'"%d"', b'"%d:x"', b"-%d")
        id_ = RawJson(spellings[self._next % 4] % (self._next // 4))
        if number is None:
            self.book.asked += 1
            number = self.book.asked
            self.book.owners[number] = person
        self.book.cancelled.pop(number, None)
        self.open[id_] = OpenRequest(SentCall(number, kind, now), person)
        return id_

    # --- what they hear ---------------------------------------------------------------------------------

    def take(self, effect: bf.LocalEffect, now: float) -> StateToken | None:  # noqa: C901 - an arm per effect
        """What the broker writes to this session. A token, where more is wanted."""
        match effect:
            case bf.ReplyStateless():
                self._answered(effect, now)
            case bf.AnswerDiscover():
                if self._close(effect.id).request.kind != "discover":
                    raise Violation(f"{self.session} is described what it has not asked for")
            case bf.RequireInput():
                return self._wanted(effect, now)
            case bf.SendProgress():
                self._progressed(effect)
            case bf.SendLog():
                self._logged(effect)
            case bf.AcknowledgeListen():
                self._acknowledged(effect)
            case bf.SendListChanged():
                listen = self._on(effect.listen)
                if effect.family not in listen.families:
                    raise Violation(f"{listen.person} hears of {effect.family}, which was not granted")
                listen.tools = None if effect.family == "tools" else listen.tools
            case bf.SendResourceUpdated():
                listen = self._on(effect.listen)
                if effect.uri not in listen.held_uris:
                    raise Violation(f"{listen.person} hears of {effect.uri}, which was not granted")
                self._count("updated")
            case bf.EndListen():
                self._on(effect.id)
                del self.listens[effect.id]
            case bf.LogLine():
                pass
            case _:
                raise Violation(f"{self.session} speaks the stateless era and got {type(effect).__name__}")
        return None

    def _answered(self, effect: bf.ReplyStateless, now: float) -> None:
        was = self._close(effect.id)
        refused = effect.is_error and b'"bad_request_state"' in bytes(effect.body)
        if was.request.kind == "refused":
            lost = was.again and b'"link_broken"' in bytes(effect.body)
            if not refused and not lost:
                raise Violation(f"{was.person} got further with a token that is no good: {effect.body!r}")
            self._count("refused")
            return
        if refused:
            if was.token is None or (was.request.at < was.token.until - EDGE_S and not was.token.survived):
                raise Violation(f"request {was.request.number} of {was.person} is refused, and was good")
            self._count("expired")
            return
        is_lost = b'"code":"lost"' in bytes(effect.body)  # true of its call, early or late
        if was.token is not None and self._is_late(was.request, was.token) and not is_lost:
            raise Violation(f"request {was.request.number} of {was.person} came too late and was served")
        if was.request.kind == "listen":
            del self.listens[effect.id]
            return
        self.book.outcome(was.request, effect.body, now, is_error=effect.is_error)
        if was.request.kind == "list" and not effect.is_error:
            listed = [tool["name"] for tool in msgspec.json.decode(effect.body)["tools"]]
            self.searches = "find_tools" in listed
            self.tools = [] if self.searches else listed
            for listen in self.listens.values():
                if listen.granted:
                    listen.tools = listed

    def _wanted(self, effect: bf.RequireInput, now: float) -> StateToken:
        was = self._close(effect.id)
        number, person = was.request.number, was.person
        if was.request.kind not in ("call", "read"):
            raise Violation(f"{person} is wanted something for {was.request.kind}")
        if was.token is not None and self._is_late(was.request, was.token):
            raise Violation(f"request {number} of {person} came too late and goes on")
        took_s = self.book.pauses.took_s(was.request.at, now)
        if took_s > self.book.bound_s:
            raise Violation(f"request {number} was answered only after {took_s:.1f} s")
        keys = [each.key for each in effect.inputs]
        if not keys or len(set(keys)) != len(keys):
            raise Violation(f"{person} cannot tell what is wanted: {keys}")
        given = next((token for token in self.tokens if token.state == effect.state), None)
        if given is not None:
            if was.token is None or not (was.token.survived and given.survived):
                raise Violation(f"{person} was given a token again")
            return given  # the next broker does not know that the one before it has said this
        wanted = [self._input(each, person, number) for each in effect.inputs]
        until = now + self.park_s
        token = StateToken(
            effect.state, person, number, was.name, was.method, was.rest, wanted, until, was.own
        )
        self.tokens.append(token)
        self._count("parked")
        return token

    def _is_late(self, request: SentCall, token: StateToken) -> bool:
        """A broker that was stopped meanwhile may take it for in time."""
        late_s = self.book.pauses.took_s(token.until, request.at) if request.at > token.until else 0.0
        return late_s > EDGE_S and not token.survived

    def _input(self, wanted: bf.RequiredInput, person: SessionId, number: int) -> WantedInput:
        declared = self.by[person].capabilities
        page = _page(bytes(wanted.params))
        if page is not None:
            if int(page[1]) != number or not declared.url:
                raise Violation(f"{person} is sent to a page for request {number}: {wanted.params!r}")
            return WantedInput(wanted.key, None)
        ask = self.book.asks.want(wanted.params, person, number)
        can = {"sampling": declared.sampling, "form": declared.form, "url": declared.url}
        can |= {"sampling_tools": declared.sampling_tools, "multi_select": declared.form}
        can["roots"] = declared.roots
        if not can[ask.kind]:
            raise Violation(f"{person} was asked for {ask.kind}, which it has not declared")
        return WantedInput(wanted.key, ask)

    def _progressed(self, effect: bf.SendProgress) -> None:
        was = self.open.get(effect.token)
        told = msgspec.json.decode(effect.params)
        if was is None or effect.request != effect.token:
            raise Violation(f"{self.session} got progress of a request that is not open")
        if "n" in told and told["n"] != was.request.number:
            raise Violation(f"{was.person} got progress of call {told['n']}")

    def _logged(self, effect: bf.SendLog) -> None:
        was = self.open.get(effect.request)
        told = msgspec.json.decode(effect.params)
        if was is None or told["n"] != was.request.number:
            raise Violation(f"{self.session} got the log of call {told['n']}")
        if not self.by[was.person].level:
            raise Violation(f"{was.person} got a log message and wants none")
        self._count("logged")

    def _acknowledged(self, effect: bf.AcknowledgeListen) -> None:
        was, listen = self._close(effect.id), self.listens.get(effect.id)
        if listen is None or was.request.kind != "listen" or listen.granted:
            raise Violation(f"{self.session} does not wait to listen as {effect.id!r}")
        if not set(effect.uris) <= set(listen.uris) or not set(effect.families) <= {"tools", "prompts"}:
            raise Violation(f"{listen.person} was granted what it does not want")
        listen.granted = True
        listen.families, listen.held_uris = effect.families, effect.uris
        self._count("listens")

    def _on(self, id_: RawJson) -> OpenListen:
        listen = self.listens.get(id_)
        if listen is None or not listen.granted:
            raise Violation(f"{self.session} hears on {id_!r}, which is no open listen")
        return listen

    def _close(self, id_: RawJson) -> OpenRequest:
        was = self.open.pop(id_, None)
        if was is None:
            raise Violation(f"{self.session} got a reply to {id_!r}, which does not wait for one")
        return was

    def _count(self, word: str) -> None:
        self.book.eras[word] = self.book.eras.get(word, 0) + 1


AnyAgents = SimAgent | StatelessAgents
