"""What every scope sees of all catalogs: lists, pages, names, changes (design section 9, rule 18)."""

import json
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from carpool_broker.core.registry import Registry
from carpool_broker.core.scope import Scope, ScopeEntry
from carpool_broker.core.view import BadCursor, Denied, Page, View, ViewTool
from carpool_protocol.faults import InvariantBroken
from carpool_protocol.ids import EMPTY_OBJECT, PoolKey, RawJson, ServerName
from carpool_protocol.messages import Catalog, ToolOffer
from carpool_protocol.names import Ambiguous, Unknown, qualify_all


def entry(server: str, key: str = "", **rest: Any) -> ScopeEntry:
    return ScopeEntry(server=ServerName(server), key=PoolKey(key or server), **rest)


def scope(*servers: str | ScopeEntry, separator: str = "__") -> Scope:
    return Scope(tuple(entry(it) if isinstance(it, str) else it for it in servers), separator)


def definition(name: str, description: str = "") -> RawJson:
    return RawJson(json.dumps({"name": name, "description": description, "x-kept": [1.0]}).encode())


def catalog(key: str, *tools: str, instructions: str = "", description: str = "") -> Catalog:
    offers = [ToolOffer(name, definition(name, description)) for name in tools]
    return Catalog(PoolKey(key), offers, instructions, EMPTY_OBJECT, EMPTY_OBJECT, "2025-06-18")


def listed(view: View) -> list[str]:
    return [tool.qualified for tool in view.tools]


def page(view: View, cursor: str | None = None) -> Page:
    found = view.page(cursor)
    assert isinstance(found, Page)
    return found


def all_pages(view: View, cursor: str | None = None) -> list[dict[str, Any]]:
    """Every tool object from `cursor` on, read the way an agent reads them."""
    tools: list[dict[str, Any]] = []
    while True:
        result = json.loads(page(view, cursor).body)
        tools += result["tools"]
        if "nextCursor" not in result:
            return tools
        cursor = result["nextCursor"]


def names_on(found: Page) -> list[str]:
    return [tool["name"] for tool in json.loads(found.body)["tools"]]


# --- lists -------------------------------------------------------------------------------------------------


def test_a_list_is_sorted_by_server_and_tool_whatever_order_catalog_and_scope_have() -> None:
    registry = Registry()
    registry.learn(catalog("time", "now", "convert"))
    registry.learn(catalog("git", "log", "add"))
    forth, back = registry.retain(scope("time", "git")), registry.retain(scope("git", "time"))
    assert listed(forth) == listed(back) == ["git__add", "git__log", "time__convert", "time__now"]


def test_a_definition_keeps_everything_but_its_name() -> None:
    registry = Registry()
    registry.learn(catalog("time", "now", description="What time is it?"))
    tool = registry.retain(scope("time")).tools[0]
    expected = {"name": "time__now", "description": "What time is it?", "x-kept": [1.0]}
    assert json.loads(tool.definition) == expected
    assert (tool.server, tool.tool, tool.key) == ("time", "now", "time")


def test_a_description_prefix_names_the_server() -> None:
    registry = Registry()
    registry.learn(catalog("time", "now", description="Tells."))
    view = registry.retain(scope(entry("time", description_prefix=True)))
    assert json.loads(view.tools[0].definition)["description"] == "[time] Tells."


def test_a_server_exposed_as_itself_is_passed_on_byte_for_byte() -> None:
    registry = Registry()
    offered = catalog("time", "now", instructions="  Use it. ")
    registry.learn(offered)
    view = registry.retain(scope(entry("time", prefix="")))
    assert view.tools[0].definition == offered.tools[0].definition
    assert view.instructions == "  Use it. "


def test_allow_and_deny_decide_what_a_scope_lists_and_resolves() -> None:
    registry = Registry()
    registry.learn(catalog("git", "log", "add", "delete_branch"))
    view = registry.retain(scope(entry("git", tools_allow=("*log", "delete_*"), tools_deny=("delete_*",))))
    assert listed(view) == ["git__log"]
    assert view.resolve("git__delete_branch") == Denied(ServerName("git"), "delete_branch")
    assert view.resolve("mcp:git:add") == Denied(ServerName("git"), "add")
    assert isinstance(view.resolve("git__push"), Unknown)
    assert listed(registry.retain(scope(entry("git", tools_allow=())))) == []


def test_a_catalog_with_one_name_twice_lists_the_first() -> None:
    registry = Registry()
    twice = [ToolOffer("now", definition("now", "first")), ToolOffer("now", definition("now", "second"))]
    registry.learn(Catalog(PoolKey("time"), twice, "", EMPTY_OBJECT, EMPTY_OBJECT, ""))
    assert [tool["description"] for tool in all_pages(registry.retain(scope("time")))] == ["first"]


def test_instructions_of_several_servers_are_told_under_their_names() -> None:
    registry = Registry()
    registry.learn(catalog("time", instructions="Ask me.\n"))
    registry.learn(catalog("git", instructions="Clone first."))
    registry.learn(catalog("mute", instructions=" "))
    seen = scope("time", "git", "mute")
    assert registry.retain(seen).instructions == "# git\n\nClone first.\n\n# time\n\nAsk me."
    registry.hide(PoolKey("git"))
    assert registry.view(seen).instructions == "# time\n\nAsk me."


# --- changes -----------------------------------------------------------------------------------------------


def test_only_scopes_whose_list_changed_are_told() -> None:
    registry = Registry()
    both, git, quiet = scope("time", "git"), scope("git"), scope(entry("git", tools_deny=("*",)))
    for seen in (both, git, quiet):
        registry.retain(seen)
    assert registry.learn(catalog("git", "log")) == [both, git]
    assert registry.learn(catalog("time", "now")) == [both]
    assert registry.learn(catalog("elsewhere", "x")) == []


def test_the_same_tools_in_another_order_or_with_other_instructions_change_no_list() -> None:
    registry = Registry()
    seen = scope("git")
    registry.learn(catalog("git", "log", "add"))
    before = registry.retain(seen)
    assert registry.learn(catalog("git", "add", "log", instructions="New.")) == []
    after = registry.view(seen)
    assert after.version == before.version
    assert after.instructions == "New."
    assert page(after) is page(before)


def test_a_changed_definition_is_a_change_and_the_held_view_stays_as_it_was() -> None:
    registry = Registry()
    seen = scope("git")
    registry.learn(catalog("git", "log", description="old"))
    before = registry.retain(seen)
    assert registry.learn(catalog("git", "log", description="new")) == [seen]
    assert [tool["description"] for tool in all_pages(before)] == ["old"]
    assert [tool["description"] for tool in all_pages(registry.view(seen))] == ["new"]
    assert registry.view(seen).version > before.version


def test_a_first_catalog_without_tools_ends_the_waiting_without_a_change() -> None:
    registry = Registry()
    seen = scope("git", "time")
    assert registry.retain(seen).unknown == {"git", "time"}
    assert registry.learn(catalog("git")) == []
    assert registry.view(seen).unknown == {"time"}


# --- servers that are away ---------------------------------------------------------------------------------


def test_a_hidden_server_leaves_every_list_keeps_its_names_and_returns() -> None:
    registry = Registry()
    seen = scope(entry("a", prefix=""), entry("b", prefix=""))
    registry.learn(catalog("a", "search", "read"))
    registry.learn(catalog("b", "search"))
    before = registry.retain(seen)
    assert registry.hide(PoolKey("b")) == [seen]
    assert registry.hide(PoolKey("b")) == []
    during = registry.view(seen)
    name_of_b = next(tool.qualified for tool in before.tools if tool.key == "b")
    assert set(listed(during)) == set(listed(before)) - {name_of_b}
    away = during.resolve(name_of_b)
    assert isinstance(away, ViewTool)
    assert away.key in during.away
    assert isinstance(during.resolve("search"), Ambiguous), "must not become a's because b is away"
    assert registry.show(PoolKey("b")) == [seen]
    assert registry.view(seen).tools == before.tools


def test_nobody_waits_for_a_hidden_server_whose_catalog_was_never_told() -> None:
    registry = Registry()
    seen = scope("git", "time")
    registry.hide(PoolKey("git"))
    view = registry.retain(seen)
    assert view.unknown == {"time"}
    assert view.away == {"git"}
    assert view.suspects("git__log") == ("git",)
    assert view.suspects("mcp:time:now") == ("time",)
    assert view.suspects("other__x") == ()


def test_forgetting_a_pool_forgets_that_it_was_hidden() -> None:
    registry = Registry()
    seen = scope("git")
    registry.learn(catalog("git", "log"))
    registry.retain(seen)
    registry.hide(PoolKey("git"))
    assert registry.forget(PoolKey("git")) == []
    assert registry.view(seen).unknown == {"git"}
    assert registry.catalog(PoolKey("git")) is None
    assert registry.learn(catalog("git", "log")) == [seen]


# --- pages -------------------------------------------------------------------------------------------------


def numbered(count: int) -> list[str]:
    return [f"t{number:05}" for number in range(count)]


def test_one_page_holds_a_thousand_entries_and_is_encoded_once() -> None:
    registry = Registry()
    seen = scope("git")
    registry.learn(catalog("git", *numbered(2001)))
    view = registry.retain(seen)
    first = page(view)
    assert first is page(registry.view(seen))
    second = page(view, first.next_cursor)
    third = page(view, second.next_cursor)
    assert [len(names_on(it)) for it in (first, second, third)] == [1000, 1000, 1]
    assert third.next_cursor is None
    assert [tool["name"] for tool in all_pages(view)] == listed(view)


def test_one_page_stays_under_its_bytes_and_a_giant_tool_has_one_to_itself() -> None:
    registry = Registry(page_bytes=1000)
    offers = [
        ToolOffer(name, definition(name, "d" * size)) for name, size in (("a", 300), ("b", 300), ("c", 300))
    ]
    offers += [ToolOffer("giant", definition("giant", "d" * 5000)), ToolOffer("z", definition("z"))]
    registry.learn(Catalog(PoolKey("git"), offers, "", EMPTY_OBJECT, EMPTY_OBJECT, ""))
    view = registry.retain(scope("git"))
    pages = [page(view)]
    while pages[-1].next_cursor is not None:
        pages.append(page(view, pages[-1].next_cursor))
    assert [names_on(it) for it in pages] == [["git__a", "git__b"], ["git__c"], ["git__giant"], ["git__z"]]
    assert all(len(it.body) <= 1000 for it in pages if names_on(it) != ["git__giant"])


def test_an_empty_list_is_one_empty_page() -> None:
    assert page(Registry().retain(scope("git"))) == Page(RawJson(b'{"tools":[]}'), None)


def test_an_old_cursor_pages_its_own_list_for_seven_changes_and_then_is_refused() -> None:
    registry = Registry(page_entries=2)
    seen = scope("git")
    registry.learn(catalog("git", *numbered(3)))
    cursor = page(registry.retain(seen)).next_cursor
    for change in range(7):
        registry.learn(catalog("git", *numbered(4), description=str(change)))
        assert names_on(page(registry.view(seen), cursor)) == ["git__t00002"]
    registry.learn(catalog("git", "x"))
    assert registry.view(seen).page(cursor) == BadCursor()


def test_a_cursor_of_another_scope_or_another_life_of_the_broker_is_refused() -> None:
    registry, later = Registry(mark="a.", page_entries=2), Registry(mark="b.", page_entries=2)
    one, two = scope("git"), scope("git", separator="-")
    for it in (registry, later):
        it.learn(catalog("git", *numbered(3)))
    cursor = page(registry.retain(one)).next_cursor
    assert registry.retain(two).page(cursor) == BadCursor()
    assert later.retain(one).page(cursor) == BadCursor()


@pytest.mark.parametrize(
    "cursor", ["", "0", "1.0", "1.1", "1.-2", "1.02", "1.2 ", "1.٢", "2.2", "x" * 10**6, "\ud800"]
)
def test_anything_but_a_page_beginning_is_a_bad_cursor(cursor: str) -> None:
    registry = Registry(page_entries=2)
    registry.learn(catalog("git", *numbered(3)))
    view = registry.retain(scope("git"))
    assert page(view).next_cursor == "1.2"
    assert view.page(cursor) == BadCursor()


# --- who looks ---------------------------------------------------------------------------------------------


def test_equal_scopes_share_one_view_until_the_last_lets_go() -> None:
    registry = Registry()
    view = registry.retain(scope("git"))
    assert registry.retain(scope("git")) is view
    registry.release(scope("git"))
    assert registry.view(scope("git")) is view
    registry.release(scope("git"))
    with pytest.raises(InvariantBroken):
        registry.view(scope("git"))
    with pytest.raises(InvariantBroken):
        registry.release(scope("git"))
    assert registry.learn(catalog("git", "log")) == []


def test_a_scope_that_names_a_server_twice_is_our_bug_and_leaves_nothing_behind() -> None:
    registry = Registry()
    with pytest.raises(InvariantBroken):
        registry.retain(scope(entry("git", "k1"), entry("git", "k2")))
    registry.check()


def test_views_of_several_scopes_share_their_definitions() -> None:
    registry = Registry()
    registry.learn(catalog("git", "log"))
    one, two = registry.retain(scope("git")), registry.retain(scope("git", "time"))
    assert one.tools[0] is two.tools[0]


# --- against a model ---------------------------------------------------------------------------------------

KEYS = [PoolKey(key) for key in ("a", "b", "b2")]
SCOPES = [
    scope("a"),
    scope("a", "b"),
    scope("b", "a", separator="-"),
    scope(entry("a", prefix=""), entry("b", "b2", prefix="")),
    scope(entry("a", tools_deny=("t[01]",)), entry("b", "b2", description_prefix=True)),
    scope(entry("b", "b2")),
]
KEPT = 3
PAGED_BY = 2
Seen = list[tuple[str, str]]
"""(name, description), as an agent reads them."""


class RegistryMachine(RuleBasedStateMachine):
    """The registry against the simplest thing that could be right: compute every list from scratch."""

    def __init__(self) -> None:
        super().__init__()
        self.registry = Registry(page_entries=PAGED_BY, kept_versions=KEPT)
        self.catalogs: dict[PoolKey, dict[str, str]] = {}
        self.hidden: set[PoolKey] = set()
        self.holders: dict[Scope, int] = {}
        self.history: dict[Scope, list[Seen]] = {}
        self.versions: dict[Scope, int] = {}
        self.cursors: list[tuple[Scope, list[Seen], int, str, Seen]] = []

    def expected(self, seen: Scope) -> Seen:
        entries = {it.server: it for it in seen.servers}
        tools = [
            (server, tool)
            for server, it in entries.items()
            for tool in self.catalogs.get(it.key, {})
            if it.allows(tool)
        ]
        names = qualify_all(tools, {it.server: it.prefix for it in seen.servers}, seen.separator)
        return [
            (
                names[server, tool],
                (f"[{server}] " if entries[server].description_prefix else "")
                + self.catalogs[entries[server].key][tool],
            )
            for server, tool in sorted(tools)
            if entries[server].key not in self.hidden
        ]

    def judge(self, told: list[Scope]) -> None:
        changed = {seen for seen in self.holders if self.expected(seen) != self.history[seen][-1]}
        assert len(told) == len(set(told))
        assert set(told) == changed
        for seen in changed:
            self.history[seen].append(self.expected(seen))
            assert self.registry.view(seen).version > self.versions[seen]
            self.versions[seen] = self.registry.view(seen).version

    @rule(
        key=st.sampled_from(KEYS),
        tools=st.dictionaries(
            st.sampled_from(["t0", "t1", "t2", "t.2", "t_2", "u"]), st.sampled_from(["", "x"])
        ),
        reverse=st.booleans(),
    )
    def learn(self, key: PoolKey, tools: dict[str, str], reverse: bool) -> None:
        self.catalogs[key] = tools
        offers = [ToolOffer(name, definition(name, text)) for name, text in tools.items()]
        offers = offers[::-1] if reverse else offers
        self.judge(self.registry.learn(Catalog(key, offers, "", EMPTY_OBJECT, EMPTY_OBJECT, "")))

    @rule(key=st.sampled_from(KEYS))
    def forget(self, key: PoolKey) -> None:
        self.catalogs.pop(key, None)
        self.hidden.discard(key)
        self.judge(self.registry.forget(key))

    @rule(key=st.sampled_from(KEYS))
    def hide(self, key: PoolKey) -> None:
        self.hidden.add(key)
        self.judge(self.registry.hide(key))

    @rule(key=st.sampled_from(KEYS))
    def show(self, key: PoolKey) -> None:
        self.hidden.discard(key)
        self.judge(self.registry.show(key))

    @rule(seen=st.sampled_from(SCOPES))
    def retain(self, seen: Scope) -> None:
        view = self.registry.retain(seen)
        if seen not in self.holders:
            self.history[seen] = [self.expected(seen)]
            self.versions[seen] = view.version
        self.holders[seen] = self.holders.get(seen, 0) + 1

    @precondition(lambda self: self.holders)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        seen = data.draw(st.sampled_from(sorted(self.holders, key=SCOPES.index)))
        self.registry.release(seen)
        self.holders[seen] -= 1
        if not self.holders[seen]:
            del self.holders[seen], self.history[seen]

    @precondition(lambda self: self.holders)
    @rule(data=st.data())
    def list_and_keep_a_cursor(self, data: st.DataObject) -> None:
        seen = data.draw(st.sampled_from(sorted(self.holders, key=SCOPES.index)))
        view = self.registry.view(seen)
        assert [(tool["name"], tool["description"]) for tool in all_pages(view)] == self.history[seen][-1]
        cursor = page(view).next_cursor
        assert (cursor is None) == (len(self.history[seen][-1]) <= PAGED_BY)
        if cursor is not None:
            rest = self.history[seen][-1][PAGED_BY:]
            self.cursors.append((seen, self.history[seen], len(self.history[seen]), cursor, rest))

    @precondition(lambda self: self.cursors)
    @rule(data=st.data())
    def page_on_with_a_kept_cursor(self, data: st.DataObject) -> None:
        seen, history, then, cursor, rest = data.draw(st.sampled_from(self.cursors))
        if seen not in self.holders:
            return
        view = self.registry.view(seen)
        if self.history[seen] is history and len(history) - then < KEPT:
            assert [(tool["name"], tool["description"]) for tool in all_pages(view, cursor)] == rest
        else:
            assert view.page(cursor) == BadCursor()

    @invariant()
    def every_fact_agrees(self) -> None:
        self.registry.check()
        for seen in self.holders:
            view = self.registry.view(seen)
            assert listed(view) == [name for name, _ in self.history[seen][-1]]
            keys = {it.key for it in seen.servers}
            assert view.unknown == keys - self.catalogs.keys() - self.hidden
            assert view.away == keys & self.hidden


RegistryMachine.TestCase.settings = settings(deadline=None, max_examples=120, stateful_step_count=30)
TestRegistryAgainstItsModel = RegistryMachine.TestCase
