"""Servers that are told the agent's own roots (rule 6): who is asked, what waits, where the session goes."""

from typing import Any

import msgspec
import pytest

from carpool_broker.core.model import events as ev
from carpool_broker.core.model.capabilities import Capabilities
from carpool_broker.core.model.effects import ApplyRoots, Reply, SendAsk, SendListChanged
from carpool_broker.core.model.events import SourceId
from carpool_broker.era import handshake
from carpool_broker.era.server_requests import MAX_ROOTS, read_roots
from carpool_protocol.ids import AskId, PoolKey, RawJson, ServerName, SessionId
from carpool_protocol.link.messages import (
    Call,
    DiscoverCatalog,
    Root,
    SessionPoolChanged,
)
from carpool_protocol.machine.journal import Journal, load_journal, replay
from tests.behaviours import behaviour
from tests.broker.core.test_broker import code, names
from tests.kit.broker_rig import BrokerRig, broker_core

ME, OTHER = SessionId("me"), SessionId("other")
WORKSPACE, MINE = SourceId("workspace"), SourceId("mine")
FILES, TIME = ServerName("f"), ServerName("t")


class RootsRig(BrokerRig):
    """A core with a supervisor, a server `f` with `roots: agent` and a server `t` without."""

    def __init__(self, *, own: bool = True) -> None:
        super().__init__()
        self.own = own
        self.journal = Journal()
        self.configure(WORKSPACE, "f:w", "t:1")
        self.supervisor_comes()

    @classmethod
    def with_lists(cls) -> "RootsRig":
        """The agent has come with its roots, and both servers have told their lists."""
        rig = cls()
        rig.come()
        rig.answer_roots("roots-1", "file:///a")
        rig.move()
        rig.serve("f:m", "read")
        rig.serve("t:1", "now")
        return rig

    def observe(self, effects: list[Any], event: ev.AnyEvent | None) -> None:
        if event is not None:
            self.journal.record(self.now, event, effects)

    def hear(self, line: bytes) -> list[Any]:
        """The agent writes a line."""
        event = handshake.read_line(ME, b'{"jsonrpc":"2.0",%b}' % line)
        assert isinstance(event, ev.AnyEvent)
        return self.feed(event)

    def configure(self, source: SourceId, *keys: str) -> list[Any]:
        return self.read(*keys, source=source, own_roots=frozenset({FILES} if self.own else ()))

    def come(
        self, session: SessionId = ME, *, roots: bool = True, ready: bool = True, wanders: bool = False
    ) -> list[Any]:
        self.attach(session, source=WORKSPACE, wanders=wanders)
        effects = self.greet(session, Capabilities(roots=roots))
        return effects + (self.feed(ev.InitializedReceived(session)) if ready else [])

    def change_roots(self, *uris: str, session: SessionId = ME) -> list[Any]:
        """The agent's roots change, and it is asked and answers at once."""
        ((_, ask, _),) = asked(self.feed(ev.RootsListChanged(session)))
        return self.answer_roots(ask, *uris, session=session)

    def come_with_roots(self, session: SessionId, token: str = "") -> list[Any]:
        """A session comes and names its first roots."""
        self.attach(session, source=WORKSPACE, principal=token)
        self.greet(session, Capabilities(roots=True))
        ((_, ask, _),) = asked(self.feed(ev.InitializedReceived(session)))
        return self.answer_roots(ask, f"file:///first-{session}", session=session)

    def answer_roots(self, ask: str, *uris: str, session: SessionId = ME) -> list[Any]:
        return self.feed(ev.RootsAnswered(session, AskId(ask), tuple(map(Root, uris))))

    def move(self, *, to: str = "f:m", source: SourceId = MINE) -> list[Any]:
        return self.configure(source, to, "t:1") + self.feed(ev.SessionSourceChanged(ME, source))

    def lists(self) -> Any:
        return self.list_tools(ME)

    def call(self, name: str, request: bytes = b"1") -> Any:
        return self.request(name, request.decode(), ME)


def asked(effects: list[Any]) -> list[tuple[SessionId, str, str]]:
    return [(it.session, it.ask, it.method) for it in effects if isinstance(it, SendAsk)]


def discovered(effects: list[Any]) -> list[str]:
    return [effect.key for effect in effects if isinstance(effect, DiscoverCatalog)]


@behaviour("roots:of-the-agent")
def test_a_ready_agent_is_asked_once_and_its_answer_is_given_on() -> None:
    rig = RootsRig()
    assert asked(rig.come(ready=False)) == [], "before initialized it must not be asked"
    assert asked(rig.feed(ev.InitializedReceived(ME))) == [(ME, "roots-1", "roots/list")]
    assert asked(rig.feed(ev.InitializedReceived(ME))) == []
    assert rig.answer_roots("roots-1", "file:///a", "file:///b") == [
        ApplyRoots(
            ME,
            (
                Root("file:///a"),
                Root("file:///b"),
            ),
        )
    ]
    assert rig.answer_roots("roots-1", "file:///c") == [], "a question has one answer"


@behaviour("roots:of-the-agent")
def test_an_agent_is_asked_for_roots_only_if_it_has_some_and_a_server_wants_them() -> None:
    rig = RootsRig()
    assert asked(rig.come(roots=False)) == []
    assert discovered(rig.lists()) == ["f:w", "t:1"], "its workspace is the answer"
    rig = RootsRig(own=False)
    effects = rig.come() + rig.feed(ev.RootsListChanged(ME))
    assert (asked(effects), discovered(effects)) == ([], ["f:w", "t:1"])
    rig.serve("t:1", "now")
    (call,) = rig.call("t__now")
    assert isinstance(call, Call)


@behaviour("workspaces:roots-move")
def test_an_agent_whose_roots_may_move_it_is_asked_when_they_change_also_if_no_server_wants_them() -> None:
    rig = RootsRig(own=False)
    assert asked(rig.come(wanders=True)) == [], "where it begins its directory says"
    assert asked(rig.feed(ev.RootsListChanged(ME))) == [(ME, "roots-1", "roots/list")]
    assert discovered(rig.lists()) == ["f:w", "t:1"], "nothing waits for that"
    assert rig.answer_roots("roots-1", "file:///a") == [ApplyRoots(ME, (Root("file:///a"),), changed=True)]


def test_an_answer_of_another_agent_or_to_another_question_says_nothing() -> None:
    rig = RootsRig()
    rig.come()
    rig.come(OTHER)
    assert rig.answer_roots("roots-2", "file:///a") == []
    assert rig.answer_roots("roots-1", "file:///a", session=OTHER) == []
    assert rig.answer_roots("roots-1", "file:///a") == [ApplyRoots(ME, (Root("file:///a"),))]


def test_while_the_answer_is_out_its_servers_are_not_started_and_only_what_concerns_them_waits() -> None:
    rig = RootsRig()
    assert discovered(rig.come()) == ["t:1"]
    rig.serve("t:1", "now")
    rig.serve("f:w", "read")  # another session's
    assert rig.lists() == []
    assert rig.call("f__read", b"1") == []
    (call,) = rig.call("t__now", b"2")
    assert call.key == "t:1"
    assert rig.answer_roots("roots-1", "file:///a") == [ApplyRoots(ME, (Root("file:///a"),))]
    assert set(discovered(rig.move())) == {"f:m"}
    reply, call = sorted(rig.serve("f:m", "read", "write"), key=lambda it: isinstance(it, Call))
    assert (names(reply), call.key) == (["f__read", "f__write", "t__now"], "f:m")


@behaviour("roots:of-the-agent")
def test_an_agent_that_cannot_tell_its_roots_is_served_with_its_workspace() -> None:
    rig = RootsRig()
    rig.come()
    rig.serve("t:1", "now")
    rig.serve("f:w", "read")
    rig.lists()
    effects = rig.feed(ev.RootsAnswered(ME, AskId("roots-1"), None))
    assert [names(effect) for effect in effects] == [["f__read", "t__now"]]


def test_roots_that_do_not_come_in_time_are_the_workspace_and_late_ones_still_count() -> None:
    rig = RootsRig()
    rig.come()
    rig.serve("t:1", "now")
    assert rig.lists() + rig.call("f__read") == []
    assert set(discovered(rig.wait(10.0))) == {"f:w"}, "now its catalog is waited for"
    effects = rig.serve("f:w", "read")
    assert sorted(type(effect).__name__ for effect in effects) == ["Call", "Reply"]
    assert rig.answer_roots("roots-1", "file:///a") == [ApplyRoots(ME, (Root("file:///a"),))]
    effects = rig.move()
    assert [effect for effect in effects if isinstance(effect, SendListChanged)] == [SendListChanged(ME)]


def test_requests_do_not_wait_for_ever_for_roots_and_a_server() -> None:
    rig = RootsRig()
    rig.come()
    rig.lists()
    rig.call("f__read")
    rig.wait(10.0)
    replies = rig.wait(10.0)
    assert [type(it) for it in replies] == [Reply, Reply]
    assert "unavailable" in [code(it) for it in replies if it.id == b"1"]
    assert rig.core.next_deadline() is None


@behaviour("roots:changes-rekey")
def test_changed_roots_are_asked_for_again_and_move_the_session_to_a_pool_of_its_own() -> None:
    rig = RootsRig.with_lists()
    rig.lists()
    assert asked(rig.feed(ev.RootsListChanged(ME))) == [(ME, "roots-2", "roots/list")]
    (call,) = rig.call("f__read")
    assert call.key == "f:m", "until they are known, the old ones are right"
    assert rig.answer_roots("roots-2", "file:///b") == [ApplyRoots(ME, (Root("file:///b"),), changed=True)]
    effects = rig.move(to="f:n", source=SourceId("next"))
    assert SessionPoolChanged(ME, PoolKey("f:m"), PoolKey("f:n")) in effects, "a lease of the old pool ends"
    rig.feed(ev.SourceDropped(MINE))
    rig.serve("f:n", "read")
    (call,) = rig.call("f__read", b"2")
    assert call.key == "f:n"


def test_the_same_roots_again_change_nothing_and_changes_during_a_question_cause_one_more() -> None:
    rig = RootsRig()
    rig.come()
    assert rig.feed(ev.RootsListChanged(ME)) + rig.feed(ev.RootsListChanged(ME)) == []
    effects = rig.answer_roots("roots-1", "file:///a")
    assert asked(effects) == [(ME, "roots-2", "roots/list")]
    rig.move()
    assert rig.answer_roots("roots-2", "file:///a") == []
    assert discovered(rig.lists()) == ["f:m", "t:1"], "nothing waits for roots any more"


def test_an_attached_agent_is_asked_for_roots_when_a_server_begins_to_want_them() -> None:
    rig = RootsRig(own=False)
    rig.come()
    rig.own = True
    assert asked(rig.configure(WORKSPACE, "f:w", "t:1")) == [(ME, "roots-1", "roots/list")]


def test_the_question_ends_with_the_agent() -> None:
    rig = RootsRig()
    rig.come()
    rig.feed(ev.SessionClosed(ME))
    assert rig.answer_roots("roots-1", "file:///a") == []
    assert rig.feed(ev.SessionSourceChanged(ME, WORKSPACE)) == []


def test_a_journal_replays_to_where_the_roots_of_agents_took_their_sessions() -> None:
    rig = RootsRig()
    rig.come()
    effects = rig.hear(b'"id":"roots-1","result":{"roots":[{"uri":"file:///a"}]}') + rig.move()
    for line in (
        b'"id":"roots-2","result":{"roots":[{"uri":"file:///a","name":""}]}',
        b'"id":"roots-3","error":{"code":-1,"message":"no"}',
        b'"id":"roots-4","result":{"roots":[{"uri":"file:///b"}]}',
    ):
        effects += rig.feed(ev.RootsListChanged(ME)) + rig.hear(line)
    used = [effect.roots for effect in effects if isinstance(effect, ApplyRoots)]
    assert used == [(Root("file:///a"),), (Root("file:///b"),)]
    again = broker_core()
    decided = replay(again, load_journal(rig.journal.dump(), [ev.AnyEvent]))
    kept = [[effect["type"] for effect in entry.effects] for entry in rig.journal.entries()]
    assert [[type(effect).__name__ for effect in each] for each in decided] == kept
    assert [it.roots for each in decided for it in each if isinstance(it, ApplyRoots)] == used
    assert again.sessions[ME].scope == rig.core.sessions[ME].scope


@pytest.mark.parametrize(
    ("body", "roots"),
    [
        (b'{"roots":[]}', ()),
        (
            b'{"roots":[{"uri":"file:///a","name":"a"},{"uri":"file:///a"},{"uri":"https://x/"}]}',
            (Root("file:///a", "a"),),
        ),
        (b'{"roots":[{"uri":"file:///a","name":"%b"}]}' % (b"n" * 300), (Root("file:///a"),)),
        (b'{"roots":[{"name":"a"},{"uri":""},{"uri":"file:///\\u0000"}]}', ()),
        (b'{"roots":[{"uri":"file:///%b"}]}' % (b"a" * 5000), ()),
        (b'{"roots":[{"uri":"file://[x"}]}', ()),
        (b"{}", None),
        (b'{"roots":[1]}', None),
        (b'{"roots":{}}', None),
        (b"[" * 100_000, None),
    ],
)
def test_only_file_uris_of_an_answer_count_as_roots(body: bytes, roots: tuple[Root, ...] | None) -> None:
    assert read_roots(RawJson(body)) == roots


def test_there_is_an_end_to_roots() -> None:
    body = msgspec.json.encode({"roots": [{"uri": f"file:///{number}"} for number in range(1000)]})
    assert len(read_roots(RawJson(body)) or ()) == MAX_ROOTS
