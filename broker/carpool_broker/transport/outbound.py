"""What the core has decided to tell agents, as lines on their carriers.

Owns which adapter words which effect, and what is cut out of a server's answer for an agent that could not
read it (`outward`). An effect for a session that is gone meanwhile is passed over by the door.

Knows nothing of: effects that go to the supervisor, bursts, sockets.
"""

from collections.abc import Callable, Mapping
from typing import Protocol

from carpool_broker.builtin_tools.results import as_tool, is_search, own_answer
from carpool_broker.builtin_tools.search import Finder, Searching
from carpool_broker.core.broker import BrokerCore
from carpool_broker.core.model import effects, events
from carpool_broker.core.model.effects import NO_CALL
from carpool_broker.core.registry.answer_rewrites import outward
from carpool_broker.core.registry.view import View
from carpool_broker.era import handshake, server_requests, stateless_encode
from carpool_broker.transport.connections import NO_ASK
from carpool_protocol.faults.faults import TOOLS_CALL
from carpool_protocol.ids import ABSENT, AskId, CallId, RawJson, SessionId
from carpool_protocol.wire.downgrade import NEWEST, STATELESS, downgrade_result
from carpool_protocol.wire.jsonrpc import result_line


class Write(Protocol):
    """`Connections.write`."""

    def __call__(
        self,
        session: SessionId,
        line: bytes,
        about: RawJson = ABSENT,
        *,
        answers: bool = False,
        call: CallId = NO_CALL,
        ask: AskId = NO_ASK,
    ) -> None:
        """See there."""


class Saying:
    """The ways of one broker to tell agents something."""

    def __init__(
        self, core: BrokerCore, release: str, write: Write, feed: Callable[[events.AnyEvent], None]
    ) -> None:
        """`feed`: for what cannot be asked as it came; the core hears so in its turn."""
        self._core = core
        self._words = words = stateless_encode.Words(release)
        self._write = write
        self._feed = feed
        self._finder = Finder()
        self.searching = Searching(self._finder, self._say_own)
        self.ways: Mapping[type, Callable[..., None]] = {
            effects.Reply: lambda e: write(e.session, handshake.reply(e), e.id, answers=True, call=e.call),
            effects.Greet: lambda e: write(e.session, handshake.greeting(e, release), e.id, answers=True),
            effects.ReportProgress: lambda e: write(e.session, handshake.progress(e), e.request),
            effects.ReplyOutward: self._reply_outward,
            effects.SayListChanged: lambda e: write(
                e.session,
                stateless_encode.list_changed(e) if e.listen else handshake.LIST_CHANGED[e.family],
                e.listen,
            ),
            effects.SayLog: lambda e: write(e.session, handshake.log_message(e), e.request),
            effects.SayUpdated: lambda e: write(
                e.session, stateless_encode.updated(e) if e.listen else handshake.updated(e), e.listen
            ),
            effects.SayTask: self._say_task,
            effects.SendAsk: self._ask,
            effects.WithdrawAsk: lambda e: write(e.session, server_requests.withdrawal(e), e.request),
            effects.SayElicited: lambda e: write(e.session, server_requests.elicited(e)),
            effects.ReplyStateless: self._reply_stateless,
            effects.AnswerOwn: self._answer_own,
            effects.Describe: lambda e: write(e.session, words.describe(e), e.id, answers=True),
            effects.RequireInput: lambda e: write(e.session, words.require(e), e.id, answers=True),
            effects.Acknowledge: lambda e: write(e.session, stateless_encode.acknowledgement(e), e.id),
            effects.EndListen: self._end_listen,
        }

    def _reply_outward(self, effect: effects.ReplyOutward) -> None:
        if effect.session in self._core.sessions:
            view = self._core.view_of(effect.session)
            body = _outward(view, effect, effect.version)
            line = result_line(effect.id, body)
            self._write(effect.session, line, effect.id, answers=True, call=effect.call)

    def _reply_stateless(self, effect: effects.ReplyStateless) -> None:
        body = effect.body
        if (effect.key or effect.as_tool) and effect.session in self._core.sessions:
            body = _outward(self._core.view_of(effect.session), effect, STATELESS)
        line = self._words.reply(effect, body)
        self._write(effect.session, line, effect.id, answers=True, call=effect.call)

    def _answer_own(self, effect: effects.AnswerOwn) -> None:
        if effect.session in self._core.sessions and is_search(effect.kind, effect.rest):
            self.searching.wanted(effect, self._core.view_of(effect.session))
        else:
            self._say_own(effect)

    def _say_own(self, effect: effects.AnswerOwn) -> None:
        if effect.session not in self._core.sessions:
            return
        view = self._core.view_of(effect.session)
        body = own_answer(view, effect.kind, effect.rest, self._finder, effect.version)
        if effect.stateless:
            said = effects.ReplyStateless(effect.session, effect.id, False, body, TOOLS_CALL)
            line = self._words.reply(said)
        else:
            line = result_line(effect.id, body)
        self._write(effect.session, line, effect.id, answers=True)

    def _say_task(self, effect: effects.SayTask) -> None:
        params = effect.params
        if effect.key and effect.session in self._core.sessions:
            params = outward(self._core.view_of(effect.session), effect.key, "tasks/get", STATELESS, params)
        self._write(effect.session, stateless_encode.task_told(effect, params), effect.listen)

    def _end_listen(self, effect: effects.EndListen) -> None:
        *before, result = self._words.end(effect)
        for line in before:
            self._write(effect.session, line, effect.id)
        self._write(effect.session, result, effect.id, answers=True)

    def _ask(self, effect: effects.SendAsk) -> None:
        said = server_requests.ask(effect)
        if isinstance(said, bytes):
            self._write(effect.session, said, effect.request, ask=effect.ask)
        else:
            self._feed(said)


def _outward(view: View, effect: effects.ReplyOutward | effects.ReplyStateless, version: str) -> RawJson:
    """A server's result as this agent is to read it."""
    body = outward(view, effect.key, effect.as_tool or effect.method, version, effect.body)
    if not effect.as_tool:
        return body
    body = as_tool(effect.as_tool, body)
    return body if version in {NEWEST, STATELESS} else downgrade_result(effect.method, version, body)
