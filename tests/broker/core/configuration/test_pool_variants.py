"""Agents that can be asked and agents that cannot (rule 12): who sees which pool, who is told of a change."""

from typing import Any

from carpool_broker.core.model import events as ev
from carpool_broker.core.model.bounds import SessionBounds
from carpool_broker.core.model.capabilities import Capabilities
from carpool_broker.core.model.effects import Reply, SendListChanged
from carpool_broker.core.model.events import SourceId
from carpool_protocol.ids import EMPTY_OBJECT, CallId, PoolKey, RawJson, SessionId
from carpool_protocol.link.messages import (
    Call,
    CallAnswered,
    DiscoverCatalog,
    SetPools,
)
from tests.behaviours import behaviour
from tests.broker.core.test_broker import names
from tests.kit.broker_rig import BrokerRig, pool_spec, supervisor_comes
from tests.kit.effects import of_kind

PLAIN, ASKING = SessionId("plain"), SessionId("asking")
DAEMON = SourceId("daemon")
CAN = Capabilities(sampling=True, form=True, url=True)
SIXTEEN = tuple(f"t{number:02}" for number in range(16))
THIRTEEN = SIXTEEN[:13]


class PoolVariantsRig(BrokerRig):
    """A core with a supervisor and servers, each with a pool `s:1` and a pool `s:1?`."""

    def __init__(self, *keys: str, max_open_calls: int = 64) -> None:
        super().__init__(SessionBounds(max_open_calls=max_open_calls))
        self.wanted: list[str] = []
        self.read(*(keys or ("s:1",)))
        self.supervisor_comes()

    def observe(self, effects: list[Any], event: ev.AnyEvent | None) -> None:
        for wanted in of_kind(effects, SetPools):
            self.wanted = [spec.key for spec in wanted.pools]

    def read(self, *keys: str, source: SourceId = DAEMON, **more: Any) -> list[Any]:
        twins = {PoolKey(key): pool_spec(f"{key}?", asking=True) for key in keys}
        return super().read(*keys, source=source, twins=twins, **more)

    def come(self, session: SessionId) -> list[Any]:
        self.attach(session)
        return self.greet(session, CAN if session == ASKING else None)

    def listed(self, session: SessionId) -> list[str]:
        (reply,) = self.list_tools(session)
        assert isinstance(reply, Reply)
        return [name.removeprefix("s__") for name in names(reply)]

    def call(self, session: SessionId, name: str, request: bytes = b"1") -> list[Any]:
        return self.request(name, request.decode(), session)

    def call_goes_to(self, session: SessionId, name: str) -> str:
        (call,) = self.call(session, name)
        assert isinstance(call, Call)
        self.answer(call.call)
        return call.key


def discovered(effects: list[Any]) -> list[str]:
    return [effect.key for effect in effects if isinstance(effect, DiscoverCatalog)]


def told(effects: list[Any]) -> list[SessionId]:
    return [effect.session for effect in effects if isinstance(effect, SendListChanged)]


@behaviour("classes:apart")
def test_each_class_sees_the_server_as_it_was_greeted_for_it() -> None:
    rig = PoolVariantsRig()
    assert discovered(rig.come(PLAIN)) == ["s:1"]
    assert discovered(rig.come(ASKING)) == ["s:1?"]
    assert rig.wanted == ["s:1", "s:1?"]
    rig.serve("s:1", *THIRTEEN)
    rig.serve("s:1?", *SIXTEEN)
    assert (rig.listed(PLAIN), rig.listed(ASKING)) == (list(THIRTEEN), list(SIXTEEN))
    assert rig.call_goes_to(PLAIN, "s__t00") == "s:1"
    assert rig.call_goes_to(ASKING, "s__t15") == "s:1?"


def test_an_agent_that_can_be_asked_starts_no_plain_process() -> None:
    rig = PoolVariantsRig()
    rig.feed(ev.SessionOpened(session=ASKING, source=DAEMON, agent="", pid=1, carrier="shim"))
    rig.feed(ev.SupervisorLost())
    assert discovered(supervisor_comes(rig.feed)) == [], "its class is not known before it greets"
    effects = rig.feed(ev.InitializeRequested(ASKING, RawJson(b"0"), "2025-11-25", "x", CAN))
    assert discovered(effects) == ["s:1?"]


def test_roots_alone_make_no_agent_that_can_be_asked() -> None:
    rig = PoolVariantsRig()
    rig.feed(ev.SessionOpened(session=PLAIN, source=DAEMON, agent="", pid=1, carrier="shim"))
    greeted = ev.InitializeRequested(PLAIN, RawJson(b"0"), "2025-11-25", "x", Capabilities(roots=True))
    assert discovered(rig.feed(greeted)) == ["s:1"]
    assert rig.wanted == ["s:1"]


@behaviour("classes:merged")
def test_equal_catalogs_end_in_one_pool_without_a_list_change() -> None:
    rig = PoolVariantsRig()
    rig.come(PLAIN)
    rig.serve("s:1", *THIRTEEN)
    before = rig.listed(PLAIN)
    rig.come(ASKING)
    effects = rig.serve("s:1?", *THIRTEEN)
    assert told(effects) == []
    assert rig.wanted == ["s:1?"]
    assert rig.listed(PLAIN) == rig.listed(ASKING) == before
    assert rig.call_goes_to(PLAIN, "s__t00") == "s:1?"
    assert rig.come(SessionId("late"))[0].__class__ is not DiscoverCatalog, (
        "there is nothing left to find out"
    )


@behaviour("classes:merged")
def test_a_server_that_turns_out_to_ask_is_split_without_a_list_change() -> None:
    rig = PoolVariantsRig()
    rig.come(PLAIN)
    rig.come(ASKING)
    rig.serve("s:1", "x")
    rig.serve("s:1?", "x")
    assert rig.listed(PLAIN) == rig.listed(ASKING) == ["x"]
    effects = rig.serve("s:1?", "x", asks=True)
    assert (rig.wanted, discovered(effects)) == (["s:1", "s:1?"], ["s:1"])
    assert rig.call_goes_to(PLAIN, "s__x") == "s:1?", "until the plain pool has greeted"
    assert told(rig.serve("s:1", "x")) == []
    assert rig.call_goes_to(PLAIN, "s__x") == "s:1"
    assert rig.call_goes_to(ASKING, "s__x") == "s:1?"


def test_only_agents_whose_list_differs_after_a_split_are_told() -> None:
    rig = PoolVariantsRig()
    rig.come(PLAIN)
    rig.come(ASKING)
    rig.serve("s:1", "x")
    rig.serve("s:1?", "x")
    rig.listed(PLAIN)
    rig.listed(ASKING)
    rig.serve("s:1?", "x", asks=True)
    assert told(rig.serve("s:1", "x", "y")) == [PLAIN]
    assert rig.listed(PLAIN) == ["x", "y"]


def test_calls_that_wait_here_go_where_the_server_is_served_now() -> None:
    rig = PoolVariantsRig(max_open_calls=1)
    rig.come(PLAIN)
    rig.come(ASKING)
    rig.serve("s:1", "x")
    rig.call(PLAIN, "s__x", b"1")
    assert rig.call(PLAIN, "s__x", b"2") == []
    rig.serve("s:1?", "x")
    assert rig.wanted == ["s:1?"]
    reply, call = rig.feed(CallAnswered(CallId(1), is_error=False, body=EMPTY_OBJECT))
    assert (reply.id, call.key) == (b"1", "s:1?")


def test_calls_that_wait_here_during_a_reload_go_to_the_new_pool() -> None:
    rig = PoolVariantsRig(max_open_calls=1)
    rig.come(PLAIN)
    rig.serve("s:1", "x")
    rig.call(PLAIN, "s__x", b"1")
    rig.call(PLAIN, "s__x", b"2")
    rig.feed(ev.RequestCancelled(PLAIN, RawJson(b"none"), ""))
    rig.read("s:2")
    rig.serve("s:2", "x")
    assert rig.wanted == ["s:2"]
    _, call = rig.feed(CallAnswered(CallId(1), is_error=False, body=EMPTY_OBJECT))
    assert call.key == "s:2"


def test_calls_that_only_the_link_kept_back_go_to_the_new_pool_too() -> None:
    rig = PoolVariantsRig()
    rig.come(PLAIN)
    rig.serve("s:1", "x")
    rig.feed(ev.SupervisorLost())
    assert rig.call(PLAIN, "s__x") == []
    rig.read("s:2")
    (call,) = [it for it in supervisor_comes(rig.feed, 10) if isinstance(it, Call)]
    assert call.key == "s:2"
    assert rig.feed(ev.CreditReceived(10_000)) == []


def test_a_request_that_waits_for_a_catalog_waits_for_that_of_the_replacing_pool() -> None:
    rig = PoolVariantsRig()
    rig.come(PLAIN)
    rig.list_tools(PLAIN)
    rig.call(PLAIN, "s__x")
    assert discovered(rig.read("s:2")) == ["s:2"]
    reply, call = sorted(rig.serve("s:2", "x"), key=lambda it: isinstance(it, Call))
    assert (names(reply), call.key) == (["s__x"], "s:2")


def test_the_command_line_starts_no_second_process() -> None:
    rig = PoolVariantsRig()
    operator = SessionId("operator")
    rig.feed(ev.SessionOpened(session=operator, source=DAEMON, agent="", pid=1, carrier="cli", control=True))
    rig.feed(ev.InitializeRequested(operator, RawJson(b"0"), "2025-11-25", "carpool"))
    assert rig.wanted == ["s:1"]
    rig.serve("s:1", *THIRTEEN)
    assert rig.call_goes_to(operator, "s__t00") == "s:1"
    rig.listed(operator)
    rig.come(ASKING)
    assert told(rig.serve("s:1?", *SIXTEEN)) == [], "it was told when its list went away"
    assert rig.call_goes_to(operator, "s__t15") == "s:1?"


def test_a_reload_that_changes_no_list_is_told_to_no_agent() -> None:
    rig = PoolVariantsRig()
    rig.come(PLAIN)
    rig.serve("s:1", "x")
    rig.listed(PLAIN)
    rig.read("s:2")
    assert told(rig.serve("s:2", "x")) == []
    assert rig.wanted == ["s:2"]
    rig.read("s:3")
    assert told(rig.serve("s:3", "x", "y")) == [PLAIN]


def test_an_agent_with_a_list_hears_of_an_added_server_once_its_catalog_is_known() -> None:
    rig = PoolVariantsRig()
    rig.come(PLAIN)
    rig.serve("s:1", "x")
    rig.listed(PLAIN)
    effects = rig.read("s:1", "n:1")
    assert (told(effects), discovered(effects)) == ([], ["n:1"])
    assert told(rig.serve("n:1", "y")) == [PLAIN]
    assert told(rig.read("s:1")) == [], "it was told that its list is old"
    assert rig.listed(PLAIN) == ["x"]


def test_the_supervisor_is_told_what_is_wanted_only_when_that_changes() -> None:
    rig = PoolVariantsRig()
    assert [type(effect) for effect in rig.read("s:1")] == []
    rig.come(ASKING)
    assert not any(isinstance(effect, SetPools) for effect in rig.come(SessionId("another")))


def test_the_command_line_goes_to_the_new_pool_when_the_last_agent_leaves() -> None:
    rig = PoolVariantsRig()
    rig.read("s:1", of_sessions=True)
    operator = SessionId("operator")
    rig.feed(ev.SessionOpened(session=operator, source=DAEMON, agent="", pid=1, carrier="cli", control=True))
    rig.feed(ev.InitializeRequested(operator, RawJson(b"0"), "2025-11-25", "carpool"))
    rig.come(PLAIN)
    rig.serve("s:1", "x")
    rig.listed(operator)
    rig.read("s:2", of_sessions=True)
    assert rig.call_goes_to(operator, "s__x") == "s:1", "until the new pool has greeted"
    rig.feed(ev.SessionClosed(PLAIN))
    effects = rig.call(operator, "s__x")
    assert set(discovered(effects)) == {"s:2"}
    assert not of_kind(effects, Call)
