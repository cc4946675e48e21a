"""What comes between agents of the stateless era and the broker of the simulated world: the shim of one, or
the door for several who share a session.

Owns what is kept of them (docs/decisions/0019): requests without a reply, listens that are in force, the
supervisor's epoch as told; what is read of a broker that dies; what is said to the next one; and how long
the tokens of a broker that died are good. It keeps events where the real ones keep lines.

Knows nothing of: when brokers die, what becomes of what is said again.
"""

from collections import Counter
from collections.abc import Iterator

from msgspec.structs import replace

from carpool_broker.core.model import effects as bf
from carpool_broker.core.model import events as bv
from carpool_protocol.ids import RawJson, SessionId
from tests.world.sim.carriers import LOST, BaseCarrier, HandshakeCarrier, WrittenLine
from tests.world.sim.oracles.violation import Violation
from tests.world.sim.stateless_agents import OpenRequest, StatelessAgents

REFUSED = b'"bad_request_state"'
Said = bv.CallRequested | bv.ListPageRequested | bv.DiscoverRequested | bv.ListenRequested
Last = bf.ReplyStateless | bf.AnswerDiscover | bf.RequireInput | bf.EndListen


class StatelessCarrier(BaseCarrier[StatelessAgents]):
    """Of all agents of one session."""

    def __init__(self, agent: StatelessAgents, came: bv.SessionOpened) -> None:
        super().__init__(agent, came)
        self._said: dict[RawJson, Said] = {}
        """Requests without an answer, and listens that are in force."""
        self._good: set[RawJson] = set()
        """Those that bring a token which was good still when the next broker was there."""
        self._granted: dict[RawJson, bv.ListenResumed] = {}
        """What listens were told that they are for."""

    # --- what passes ------------------------------------------------------------------------------------

    def says(self, event: bv.AnyEvent) -> None:
        """See `BaseCarrier`."""
        if isinstance(event, Said):
            self._said.setdefault(event.id, event)
        elif isinstance(event, bv.SessionSourceChanged) and event.elsewhere:
            for listen in self.agent.listens.values():
                listen.is_elsewhere = True

    def is_silent(self, effect: bf.LocalEffect) -> bool:
        """Whether they have had this at an earlier broker: that a listen is in force, for just what it said.
        Where it is so no more, each of several hears that.
        """
        request = getattr(effect, "id", None)
        if request not in self._silent:
            return False
        self._silent.discard(request)
        was = self._granted.get(request)
        if isinstance(effect, bf.AcknowledgeListen):
            if was is None or (was.families, was.uris) != (effect.families, effect.uris):
                raise Violation(f"{request!r} is for {effect} now, and it was told {was}")
        elif isinstance(effect, Last):
            self.agent.listens.pop(request, None)
        return True

    def crosses(self, line: WrittenLine) -> bool:
        """See `BaseCarrier`."""
        agent = self.agent
        match line.effect:
            case bf.ReplyStateless() | bf.AnswerDiscover() | bf.RequireInput() | bf.AcknowledgeListen():
                return line.effect.id not in agent.open
            case bf.EndListen():
                return line.effect.id not in agent.listens
            case bf.SendListChanged() | bf.SendResourceUpdated():
                return line.effect.listen not in agent.listens
            case bf.SendProgress() | bf.SendLog():
                return line.effect.request not in agent.open
            case _:
                return False

    def passed(self, effect: bf.LocalEffect, mishaps: int) -> None:
        """See `BaseCarrier`."""
        match effect:
            case bf.SetSupervisorEpoch():
                self.epoch = effect.epoch
            case bf.SetStatefulServers():
                self.stateful = effect.servers if len(self.agent.persons) == 1 else ()
            case bf.AcknowledgeListen():
                self._granted[effect.id] = bv.ListenResumed(
                    effect.session, effect.id, effect.families, effect.uris, effect.tasks
                )
            case bf.ReplyStateless() | bf.AnswerDiscover() | bf.RequireInput() | bf.EndListen():
                self._said.pop(effect.id, None)
                said = bytes(effect.body) if isinstance(effect, bf.ReplyStateless) else b""
                lost = any(word in said for word in LOST) or (effect.id in self._good and REFUSED in said)
                if self._sure.pop(effect.id, None) == mishaps and lost:
                    raise Violation(f"{self.agent.session} lost {effect.id!r}, and only the broker had died")
            case _:
                pass

    # --- between two brokers ----------------------------------------------------------------------------

    def renamed(self, session: SessionId) -> None:
        """See `BaseCarrier`. No token is good any more."""
        agent = self.agent
        agent.book.asks.principals.update(dict.fromkeys(agent.persons, session))
        agent.session = session
        agent.book.of_lost_sessions.update(each.request.number for each in agent.open.values())
        for token in agent.tokens:
            token.until = 0.0

    def again(self, session: SessionId, mishaps: int | None) -> Iterator[bv.AnyEvent]:
        """See `BaseCarrier`."""
        agent = self.agent
        for token in agent.tokens:
            token.survived = True
            if mishaps is None:
                token.until = 0.0
        open_, listens = agent.open, agent.listens
        self._said = {id_: each for id_, each in self._said.items() if id_ in open_ or id_ in listens}
        said = self._said.values()
        for waits in open_.values():
            waits.again = True
        for each in said:
            if isinstance(each, bv.CallRequested) and each.state:
                self._perhaps_good(open_[each.id], each)
        tokens = {id_: each.token for id_, each in open_.items() if not each.is_second}
        states = Counter(each.token.state for each in open_.values() if each.token)
        self._good = {
            id_
            for id_, each in tokens.items()  # of several with one token the next broker takes one
            if each and open_[id_].request.at < each.until and states[each.state] == 1
        }
        held = [each for each in said if each.id not in open_]
        calls = tuple(each for each in said if isinstance(each, bv.CallRequested))
        rest = [each for each in said if each.id in open_ and not isinstance(each, bv.CallRequested)]
        self._silent = {each.id for each in held}
        self._sure = {} if mishaps is None else dict.fromkeys(open_, mishaps)
        self._granted = {id_: each for id_, each in self._granted.items() if id_ in listens}
        yield self.came
        for each in held:
            if (granted := self._granted.get(each.id)) is not None:
                yield granted
            yield each
        ours = tuple(replace(each, session=session) for each in calls)
        yield bv.SessionResumed(session, self.epoch, ours, (), self.stateful)
        yield from rest

    def _perhaps_good(self, retry: OpenRequest, event: bv.CallRequested) -> None:
        """A second retry with one token: where the refusal was not read the next broker may take it."""
        for token in self.agent.tokens if retry.request.kind == "refused" else ():
            if (token.state, token.number) == (event.state, retry.request.number):
                retry.request.kind, retry.token, retry.is_second = token.kind, token, True
                if any(wanted.ask is None for wanted in token.wanted):
                    self.agent.book.again[token.number] = self.agent.book.again.get(token.number, 0) + 1


AnyCarrier = HandshakeCarrier | StatelessCarrier
