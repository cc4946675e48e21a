"""A long catalog is taken over in slices: what passes meanwhile, what waits, and nobody sees a part of it."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from carpool_broker.core.model import events as ev
from carpool_broker.core.model.approval import PinId
from carpool_broker.core.model.compiled_profile import ALL_RIGHTS, Rights
from carpool_broker.core.model.effects import Reply, SendListChanged
from carpool_broker.core.model.scope import Scope, ScopeEntry
from carpool_broker.core.registry.catalog_queue import NEXT_SLICE
from carpool_broker.core.registry.registry import Registry
from carpool_protocol.config.schema.capability import capability
from carpool_protocol.ids import EMPTY_OBJECT, PoolKey, RawJson, ServerName, SessionId
from carpool_protocol.link.messages import Call, CallAnswered, Catalog, Offer, ResourceOffer, ToolOffer
from carpool_protocol.machine.slices import Steps
from tests.behaviours import behaviour
from tests.broker.core.test_broker import ONE, TWO, TwoServersRig
from tests.kit.broker_rig import no_effect
from tests.kit.bytecodes import count_bytecodes

MANY = 8_000
RESTED_S = 10.0


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
        """`a` tells a list, after the rest that follows the last one; with other words it is another one."""
        if not self.is_busy:
            self.now += RESTED_S
        said = words.encode()
        every = [ToolOffer(f"t{at}", RawJson(b'{"name":"t%d","x":"%b"}' % (at, said))) for at in range(tools)]
        return self.feed(Catalog(PoolKey("a:1"), every, "", EMPTY_OBJECT, EMPTY_OBJECT, "2025-11-25"))

    @property
    def is_busy(self) -> bool:
        return self.core.timers.has("catalogs", NEXT_SLICE)

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
        rig.now = rig.core.next_deadline() or rig.now
        rig.slice()
        short = [tool.tool for tool in rig.core.view_of(ONE).tools if tool.server == "b"]
        if (rig.words(), short) not in seen:
            seen.append((rig.words(), short))
    assert seen == [(b"one", ["put"]), (b"two", ["put"]), (b"three", ["get"])], "what waited is one change"


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


# --- every kind of list -------------------------------------------------------------------------------------


def longest_step(steps: Steps[Any]) -> int:
    """The bytecodes of the longest step of this work."""
    longest, is_done = 0, False

    def step() -> None:
        nonlocal is_done
        try:
            next(steps)
        except StopIteration:
            is_done = True

    while not is_done:
        longest = max(longest, count_bytecodes(step))
    return longest


def resources(*uris: str) -> dict[str, Any]:
    return {"resources": [ResourceOffer(uri, RawJson(json.dumps({"uri": uri}).encode())) for uri in uris]}


def templates(*uris: str) -> dict[str, Any]:
    offers = [ResourceOffer(uri, RawJson(json.dumps({"uriTemplate": uri}).encode())) for uri in uris]
    return {"templates": offers}


LISTS: dict[str, Callable[[int], dict[str, Any]]] = {
    "resources": lambda many: resources(*(f"zz:///{at}" for at in range(many))),
    "resources with a shared scheme": lambda many: resources(*(f"file:///{at}" for at in range(many))),
    "resources that another server lists": lambda many: resources(*(f"file:///x/{at}" for at in range(many))),
    "resources in another spelling": lambda many: resources(*(f"FILE:///x/%{at:04}" for at in range(many))),
    "hosts in Unicode": lambda many: resources(*(f"file://\u00e9{at}/x" for at in range(many))),
    "templates": lambda many: templates(*(f"file:///{at}/{{x}}" for at in range(many))),
    "tools": lambda many: {"tools": [ToolOffer(f"t{at}", RawJson(b"{}")) for at in range(many)]},
    "tools without legal names": lambda many: {
        "tools": [ToolOffer(f"t.{at}", RawJson(b"{}")) for at in range(many)]
    },
    "prompts": lambda many: {"prompts": [Offer(f"p{at}", RawJson(b"{}")) for at in range(many)]},
}
HALF = Rights(deny=(capability("resource:a:file:///*1"), capability("prompt:a:*1"), capability("mcp:a:*1")))
FEW, LONG = 500, 2_000


def step_of_a_change(kind: str, rights: Rights, many: int) -> int:
    """The longest step after the server has changed its whole list, and another one has a list as long."""
    registry = Registry(no_effect)
    scope = Scope(
        tuple(ScopeEntry(server=ServerName(name), key=PoolKey(name)) for name in ("a", "b")), rights=rights
    )
    registry.retain_scope(scope)

    def told(name: str, **lists: Any) -> Catalog:
        tools = lists.pop("tools", [])
        return Catalog(PoolKey(name), tools, "", EMPTY_OBJECT, EMPTY_OBJECT, "2025-11-25", **lists)

    registry.catalog_received(told("b", **resources(*(f"file:///x/{at}" for at in range(many)))))
    registry.catalog_received(told("a", **LISTS[kind](many // 2)))
    longest = longest_step(registry.apply_in_slices([told("a", **LISTS[kind](many))]))
    registry.check()
    return longest


@behaviour("lists:in-slices")
@pytest.mark.parametrize("rights", [ALL_RIGHTS, HALF], ids=["all", "some kept back"])
@pytest.mark.parametrize("kind", LISTS)
def test_no_step_grows_with_the_list(kind: str, rights: Rights) -> None:
    few, many = (step_of_a_change(kind, rights, each) for each in (FEW, LONG))
    assert many < 1.5 * few + 5_000


def resolving(many: int, separator: str) -> Callable[[str], int]:
    """The bytecodes of the first look at a name, after one server has listed many tools."""
    registry = Registry(no_effect)
    names = ("evil", "good")
    scope = Scope(
        tuple(ScopeEntry(server=ServerName(name), key=PoolKey(name)) for name in names),
        rights=Rights(deny=(capability("mcp:evil:*1"),)),
        name_chars=50,
    )
    registry.retain_scope(scope)
    for name, tools in (("good", ["echo"]), ("evil", [f"t{separator}{at}" for at in range(many)])):
        offers = [ToolOffer(tool, RawJson(b"{}")) for tool in tools]
        registry.catalog_received(
            Catalog(PoolKey(name), offers, "", EMPTY_OBJECT, EMPTY_OBJECT, "2025-11-25")
        )
    return lambda spelling: count_bytecodes(lambda: registry.view(scope).resolve(spelling))


@behaviour("lists:in-slices")
@pytest.mark.parametrize("separator", ["_", "."], ids=["legal names", "other names"])
@pytest.mark.parametrize("spelling", ["mcp__good__echo", "echo", "good__ecoh", "ecoh"])
def test_the_first_look_at_a_name_does_not_grow_with_the_tools_of_a_server(
    spelling: str, separator: str
) -> None:
    """A wrong name is compared with a bounded number of names."""
    few, many = 2_000, 4_000
    growth = resolving(many, separator)(spelling) - resolving(few, separator)(spelling)
    assert growth <= 20 * (many - few)


PINNED: dict[str, Callable[[int], dict[str, RawJson]]] = {
    "many tools": lambda many: {f"t{at}": RawJson(b'{"a":[{},{}]}') for at in range(many)},
    "many parts": lambda many: {
        f"t{at}": RawJson(b'{"n":%d,"x":[%b0]}' % (many, b"{}," * 20)) for at in range(many)
    },
    "a tool with very many parts": lambda many: {"t": RawJson(b"[%b0]" % (b"{}," * 20 * many))},
}


@behaviour("lists:in-slices")
@pytest.mark.parametrize("kind", PINNED)
def test_no_step_grows_with_what_a_pinned_server_lists(kind: str) -> None:
    def steps(many: int) -> tuple[int, int]:
        registry = Registry(lambda _: None)
        pin = PinId("a:0123456789abcdef")
        scope = Scope((ScopeEntry(server=ServerName("a"), key=PoolKey("a"), pin=pin),))
        registry.retain_scope(scope)
        registry.approvals.pins_read({pin: None})
        found = []
        for size in (many - 100, many):
            offers = [ToolOffer(name, text) for name, text in PINNED[kind](size).items()]
            told = Catalog(PoolKey("a"), offers, "", EMPTY_OBJECT, EMPTY_OBJECT, "2025-11-25")
            found.append(longest_step(registry.apply_in_slices([told])))
        registry.check()
        return found[0], found[1]

    few, many = steps(FEW), steps(LONG)
    assert many[0] < 1.5 * few[0] + 5_000, "of the first list, which is approved"
    assert many[1] < 1.5 * few[1] + 5_000, "of a later one, which is compared"
