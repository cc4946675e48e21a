"""What comes between an agent of the simulated world and the broker: the shim, as far as it matters here.

Owns what a carrier keeps of one agent (docs/decisions/0019): requests without an answer, what made the
session what it is, questions shown and answered, the supervisor's epoch as told; what it reads of a broker
that dies; and what it says to the next one. It keeps events where the real one keeps lines. What is kept of
agents of the stateless era is `stateless_carriers`'.

Knows nothing of: when brokers die, what becomes of what it says again.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from random import Random
from typing import Generic, Literal, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from carpool_broker.core.model import effects as bf
from carpool_broker.core.model import events as bv
from carpool_protocol.ids import AskId, Epoch, RawJson, SessionId
from tests.world.sim.agents import SimAgent
from tests.world.sim.oracles.violation import Violation
from tests.world.sim.stateless_agents import AnyAgents

CarrierFate = Literal["back", "late", "impostor", "gone"]
"""What becomes of a carrier whose broker has died. `late`: it comes when nobody waits for it any more;
`impostor`: with a secret that is no good; both begin anew, and their agents do not notice.
"""

A = TypeVar("A", bound=AnyAgents)

LOST = (b'"link_broken"', b'"answer_overdue"')


class WrittenLine(Struct):
    """Something that the broker has written for this agent, and when."""

    effect: bf.LocalEffect
    at: float


class BaseCarrier(ABC, Generic[A]):
    """What any carrier keeps."""

    def __init__(self, agent: A, came: bv.SessionOpened) -> None:
        self.agent = agent
        self.came = came
        self.secret = ""
        self.epoch = Epoch("")
        self.stateful: tuple[str, ...] = ()
        self.fate: CarrierFate = "back"
        self.pipe: list[Callable[[], None]] = []
        """What the agent has said while no broker was there."""
        self.choked: list[WrittenLine] | None = None
        """What lies in the broker because nobody reads it; None: all is read at once."""
        self._silent: set[RawJson] = set()
        self._sure: dict[RawJson, int] = {}
        """Requests that may not be lost, and how many mishaps there were when they were said again."""

    @property
    def is_closed(self) -> bool:
        """Whether its agent has left, and the broker has not read that."""
        return False

    @abstractmethod
    def says(self, event: bv.AnyEvent) -> None:
        """The agent says this, whether it arrives or not."""

    @abstractmethod
    def is_silent(self, effect: bf.LocalEffect) -> bool:
        """Whether the agent has had this at an earlier broker."""

    @abstractmethod
    def crosses(self, line: WrittenLine) -> bool:
        """Whether it is about something that the agent has given up or answered while nobody read this."""

    @abstractmethod
    def passed(self, effect: bf.LocalEffect, mishaps: int) -> None:
        """The agent has read this."""

    @abstractmethod
    def renamed(self, session: SessionId) -> None:
        """The session begins anew under this id, and the agent does not notice."""

    @abstractmethod
    def again(self, session: SessionId, mishaps: int | None) -> Iterator[bv.AnyEvent]:
        """All that is said to the next broker, in order. `mishaps`: so many so far, where nothing may be lost
        unless there is another; None: something else than the broker's death may have cost a call.
        """

    def last_words(self, rng: Random) -> list[WrittenLine]:
        """What can be read of a broker that died: all that left it, and some of what lay in it."""
        self._silent.clear()
        lines, self.choked = self.choked or [], None
        return lines[: rng.randint(0, len(lines))]


class HandshakeCarrier(BaseCarrier[SimAgent]):
    """Of one agent of the handshake era."""

    def __init__(self, agent: SimAgent, came: bv.SessionOpened) -> None:
        super().__init__(agent, came)
        self._greeting: bv.InitializeRequested | None = None
        self._listings: dict[str, bv.ListPageRequested] = {}
        """The last of each family that was answered."""
        self._wants: dict[str, bv.SubscribeRequested | bv.LogLevelRequested] = {}
        """What it wants to hear of, and was told it does: by URI, and its level under no name."""
        self._said: dict[RawJson, bv.AnyEvent] = {}
        """Requests without an answer, as they were said."""
        self._for: dict[AskId, RawJson] = {}
        """For which request each question was asked."""
        self._given: dict[AskId, bv.AskAnswered] = {}
        """Answers to questions, until the request that they are for is over."""

    # --- what passes ------------------------------------------------------------------------------------

    def says(self, event: bv.AnyEvent) -> None:
        """See `BaseCarrier`."""
        match event:
            case bv.InitializeRequested():
                self._greeting = event
                self._said.setdefault(event.id, event)
            case bv.ListPageRequested() | bv.CallRequested() | bv.PingRequested():
                self._said.setdefault(event.id, event)
            case bv.SubscribeRequested() | bv.LogLevelRequested():
                self._said.setdefault(event.id, event)
            case bv.SessionSourceChanged(elsewhere=True):
                self.agent.subscribed.clear()
            case bv.AskAnswered() if event.ask in self._for:
                self._given.setdefault(event.ask, event)

    def is_silent(self, effect: bf.LocalEffect) -> bool:
        """See `BaseCarrier`."""
        request = getattr(effect, "id", None)
        if request not in self._silent:
            return False
        self._silent.discard(request)
        return True

    def crosses(self, line: WrittenLine) -> bool:
        """See `BaseCarrier`."""
        match line.effect:
            case bf.Reply() | bf.ReplyRewritten() | bf.AnswerBuiltin():
                return line.effect.id not in self.agent.open
            case bf.WithdrawAsk():
                return line.effect.ask not in self.agent.asks
            case bf.SendProgress():
                return line.effect.token not in self.agent.open
            case _:
                return False

    def passed(self, effect: bf.LocalEffect, mishaps: int) -> None:
        """See `BaseCarrier`."""
        match effect:
            case bf.SetSupervisorEpoch():
                self.epoch = effect.epoch
            case bf.SetStatefulServers():
                self.stateful = effect.servers
            case bf.SendAsk():
                self._for[effect.ask] = effect.request
            case bf.Reply() | bf.ReplyRewritten() | bf.AnswerBuiltin() | bf.AnswerInitialize():
                self._answered(effect, mishaps)
            case _:
                pass

    def _answered(
        self, effect: bf.Reply | bf.ReplyRewritten | bf.AnswerBuiltin | bf.AnswerInitialize, mishaps: int
    ) -> None:
        if effect.id in self.agent.open:
            return  # it was about another of the same id
        was = self._said.pop(effect.id, None)
        sure = self._sure.pop(effect.id, None)
        if isinstance(effect, bf.Reply):
            if isinstance(was, bv.ListPageRequested) and not effect.is_error:
                self._listings[was.family] = was
            if isinstance(was, bv.LogLevelRequested) and not effect.is_error:
                self._wants[""] = was
            if isinstance(was, bv.SubscribeRequested) and not effect.is_error:
                self._wants[was.uri] = replace(was, granted=True)
                self.agent.subscribed.add(was.uri)
            if sure == mishaps and any(word in bytes(effect.body) for word in LOST):
                raise Violation(f"{self.agent.session} lost {effect.id!r}, and only the broker had died")
        for ask in [ask for ask, request in self._for.items() if request == effect.id]:
            del self._for[ask]
            self._given.pop(ask, None)

    # --- between two brokers ----------------------------------------------------------------------------

    def renamed(self, session: SessionId) -> None:
        """See `BaseCarrier`."""
        self.agent.book.asks.aliases[session] = self.agent.session
        self.agent.session = session
        self.agent.book.of_lost_sessions.update(each.number for each in self.agent.open.values())

    def again(self, session: SessionId, mishaps: int | None) -> Iterator[bv.AnyEvent]:
        """See `BaseCarrier`."""
        agent = self.agent
        made: list[
            bv.InitializeRequested | bv.ListPageRequested | bv.SubscribeRequested | bv.LogLevelRequested
        ] = []
        if self._greeting is not None and agent.greeted:
            made.append(self._greeting)
        made += self._listings.values()
        made += self._wants.values()
        self._silent = {each.id for each in made}
        self._sure.clear()
        for ask in [ask for ask, request in self._for.items() if request and request not in agent.open]:
            del self._for[ask]
            self._given.pop(ask, None)
        self._said = {id_: each for id_, each in self._said.items() if id_ in agent.open}
        if mishaps is not None:
            self._sure = dict.fromkeys(self._said, mishaps)
        calls = tuple(each for each in self._said.values() if isinstance(each, bv.CallRequested))
        rest = [each for each in self._said.values() if not isinstance(each, bv.CallRequested)]
        yield self.came
        yield from made
        ours = tuple(replace(each, session=session) for each in calls)
        yield bv.SessionResumed(session, self.epoch, ours, tuple(agent.asks), self.stateful)
        yield from rest
        yield from self._given.values()
