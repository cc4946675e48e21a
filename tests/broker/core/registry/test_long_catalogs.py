"""A long catalog is taken over in slices: what passes meanwhile, what waits, and nobody sees a part of it."""

from typing import Any

from carpool_broker.core.model import events as ev
from carpool_broker.core.model.effects import Reply, SendListChanged
from carpool_protocol.ids import EMPTY_OBJECT, PoolKey, RawJson, SessionId
from carpool_protocol.link.messages import Call, CallAnswered, Catalog, ToolOffer
from tests.behaviours import behaviour
from tests.broker.core.test_broker import ONE, TWO, TwoServersRig

MANY = 20_000


class LongRig(TwoServersRig):
    """Server `a` has a long list, `b` a short one."""

    def __init__(self) -> None:
        super().__init__()
        self.come(ONE)
        self.come(TWO)
        for key in ("a:1", "b:1"):
            self.pool(key, "serving")
        self.catalog("b:1", "put")

    def many(self, words: str, tools: int = MANY) -> list[Any]:
        """`a` tells a list; with other words it is another one."""
        said = words.encode()
        every = [ToolOffer(f"t{at}", RawJson(b'{"name":"t%d","x":"%b"}' % (at, said))) for at in range(tools)]
        return self.feed(Catalog(PoolKey("a:1"), every, "", EMPTY_OBJECT, EMPTY_OBJECT, "2025-11-25"))

    @property
    def is_busy(self) -> bool:
        return bool(self.core.timers.keys("catalog_slice"))

    def slice(self) -> list[Any]:
        """The tick that is due at once."""
        assert self.core.next_deadline() == self.now
        effects = self.core.tick(self.now)
        self.core.check()
        return effects

    def slices(self) -> tuple[int, list[Any]]:
        """All that are left: how many, and what came of them."""
        count, effects = 0, []
        while self.is_busy:
            effects += self.slice()
            count += 1
        return count, effects

    def words(self) -> bytes:
        """What the tools of `a` say in the view of an agent, the same for all of them."""
        tools = [tool for tool in self.core.view_of(ONE).tools if tool.server == "a"]
        found = {bytes(tool.own).partition(b'"x":"')[2].rstrip(b'"}') for tool in tools}
        assert len(found) <= 1, "a part of one list and a part of another"
        assert len(tools) in (0, MANY)
        return found.pop() if found else b""


def long_rig() -> LongRig:
    rig = LongRig()
    rig.many("one")
    rig.slices()
    return rig


@behaviour("lists:in-slices")
def test_a_call_of_another_agent_is_answered_before_a_long_catalog_is_taken_over() -> None:
    rig = long_rig()
    assert rig.words() == b"one"
    rig.many("two")
    assert rig.is_busy
    [called] = [it for it in rig.call("b__put", session=TWO) if isinstance(it, Call)]
    rig.slice()
    [reply] = [
        it for it in rig.feed(CallAnswered(called.call, False, RawJson(b"{}"))) if isinstance(it, Reply)
    ]
    assert reply.session == TWO
    assert rig.words() == b"one"
    count, _ = rig.slices()
    assert count > 3
    assert rig.words() == b"two"


@behaviour("lists:in-slices")
def test_the_number_of_slices_grows_with_the_list_and_a_short_one_needs_none() -> None:
    rig = LongRig()
    counts = []
    for tools in (500, 500, MANY // 2, MANY, 2 * MANY):
        rig.many(f"w{tools}", tools)
        counts.append(rig.slices()[0])
    assert counts[:2] == [0, 0]
    assert 0 < counts[2] < counts[3] < counts[4]


@behaviour("lists:in-slices")
def test_agents_hear_of_the_change_once_when_it_is_in_force() -> None:
    rig = long_rig()
    rig.lists(session=ONE)
    assert not any(isinstance(it, SendListChanged) for it in rig.many("two"))
    _, effects = rig.slices()
    told = [it for it in effects if isinstance(it, SendListChanged)]
    assert [it.session for it in told] == [ONE]
    assert rig.words() == b"two"


@behaviour("lists:in-slices")
def test_a_later_message_about_a_pool_is_applied_after_its_catalog() -> None:
    """So a pool never serves with a list that nobody has; what other pools tell does not wait."""
    rig = long_rig()
    rig.many("two")
    rig.pool("a:1", "given_up", "why")
    rig.pool("b:1", "given_up", "why")
    assert rig.core.states[PoolKey("a:1")].state == "serving"
    assert rig.core.states[PoolKey("b:1")].state == "given_up"
    rig.pool("a:1", "serving")
    rig.slices()
    assert rig.core.states[PoolKey("a:1")].state == "serving"
    assert rig.words() == b"two"


def test_catalogs_are_taken_over_in_the_order_in_which_they_were_told() -> None:
    rig = long_rig()
    rig.many("two")
    rig.many("three")
    rig.catalog("b:1", "get")
    seen = []
    while rig.is_busy:
        rig.slice()
        short = [tool.tool for tool in rig.core.view_of(ONE).tools if tool.server == "b"]
        if (rig.words(), short) not in seen:
            seen.append((rig.words(), short))
    assert seen == [(b"one", ["put"]), (b"two", ["put"]), (b"three", ["put"]), (b"three", ["get"])]


def test_messages_of_a_supervisor_are_applied_before_its_loss() -> None:
    rig = long_rig()
    rig.many("two")
    rig.feed(ev.SupervisorLost())
    assert not rig.is_busy
    assert rig.words() == b"two"


def test_the_rest_of_a_catalog_of_an_unwanted_pool_is_dropped() -> None:
    rig = long_rig()
    rig.many("two")
    rig.slice()
    rig.read("b:1")
    rig.slices()
    assert rig.words() == b""
    rig.many("three")
    assert rig.words() == b""


def test_an_agent_that_comes_meanwhile_sees_the_old_list_and_then_the_new_one() -> None:
    rig = long_rig()
    rig.many("two")
    rig.slice()
    rig.come(SessionId("s3"))
    assert rig.core.view_of(SessionId("s3")).tools == rig.core.view_of(ONE).tools
    rig.slices()
    assert rig.core.view_of(SessionId("s3")).tools == rig.core.view_of(ONE).tools
    assert rig.words() == b"two"
