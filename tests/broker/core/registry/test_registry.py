"""What every scope sees of all catalogs: lists, pages, names, changes (docs/names.md, rule 18)."""

import json
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from carpool_broker.core.model.pagination import FAMILIES, Family
from carpool_broker.core.model.scope import Scope, ScopeEntry
from carpool_broker.core.registry.registry import Registry
from carpool_broker.core.registry.view import BadCursor, DeniedName, ListPage, UriRoute, View, ViewTool
from carpool_protocol.faults.fault_answers import InvariantBroken
from carpool_protocol.ids import EMPTY_OBJECT, PoolKey, RawJson, ServerName
from carpool_protocol.link.messages import Catalog, Offer, ResourceOffer, ToolOffer
from carpool_protocol.wire.tool_name_resolver import AmbiguousName, NoSuchName, qualify_all
from tests.behaviours import behaviour
from tests.kit.broker_rig import no_effect


def entry(server: str, key: str = "", **rest: Any) -> ScopeEntry:
    return ScopeEntry(server=ServerName(server), key=PoolKey(key or server), **rest)


def scope(*servers: str | ScopeEntry, separator: str = "__") -> Scope:
    return Scope(tuple(entry(it) if isinstance(it, str) else it for it in servers), separator)


def definition(name: str, description: str = "") -> RawJson:
    return RawJson(json.dumps({"name": name, "description": description, "x-kept": [1.0]}).encode())


def catalog(key: str, *tools: str, instructions: str = "", description: str = "") -> Catalog:
    offers = [ToolOffer(name, definition(name, description)) for name in tools]
    return Catalog(PoolKey(key), offers, instructions, EMPTY_OBJECT, EMPTY_OBJECT, "2025-06-18")


Offers = dict[Family, dict[str, str]]


def offered(key: PoolKey, offers: Offers, *, reverse: bool = False) -> Catalog:
    def in_turn(family: Family) -> list[tuple[str, str]]:
        return list(offers.get(family, {}).items())[:: -1 if reverse else 1]

    def resources(family: Family, member: str) -> list[ResourceOffer]:
        return [
            ResourceOffer(own, RawJson(json.dumps({member: own, "description": text}).encode()))
            for own, text in in_turn(family)
        ]

    return Catalog(
        key,
        [Offer(own, definition(own, text)) for own, text in in_turn("tools")],
        "",
        EMPTY_OBJECT,
        EMPTY_OBJECT,
        "",
        [Offer(own, definition(own, text)) for own, text in in_turn("prompts")],
        resources("resources", "uri"),
        resources("templates", "uriTemplate"),
    )


def listed(view: View) -> list[str]:
    return [tool.qualified for tool in view.tools]


def page(view: View, cursor: str | None = None, family: Family = "tools") -> ListPage:
    found = view.page(family, cursor)
    assert isinstance(found, ListPage)
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


def read(view: View, family: Family, cursor: str | None = None) -> list[tuple[str, str]]:
    """(name or URI, description) of every entry from `cursor` on, read the way an agent reads them."""
    members = {"tools": "name", "prompts": "name", "resources": "uri", "templates": "uriTemplate"}
    body = "resourceTemplates" if family == "templates" else family
    found: list[tuple[str, str]] = []
    while True:
        result = json.loads(page(view, cursor, family).body)
        found += [(it[members[family]], it["description"]) for it in result[body]]
        if "nextCursor" not in result:
            return found
        cursor = result["nextCursor"]


def names_on(found: ListPage) -> list[str]:
    return [tool["name"] for tool in json.loads(found.body)["tools"]]


# --- lists -------------------------------------------------------------------------------------------------


@behaviour("lists:stable-order")
def test_a_list_is_sorted_by_server_and_tool_whatever_order_catalog_and_scope_have() -> None:
    registry = Registry(no_effect)
    registry.catalog_received(catalog("time", "now", "convert"))
    registry.catalog_received(catalog("git", "log", "add"))
    forth, back = registry.retain_scope(scope("time", "git")), registry.retain_scope(scope("git", "time"))
    assert listed(forth) == listed(back) == ["git__add", "git__log", "time__convert", "time__now"]


def test_a_definition_keeps_everything_but_its_name() -> None:
    registry = Registry(no_effect)
    registry.catalog_received(catalog("time", "now", description="What time is it?"))
    tool = registry.retain_scope(scope("time")).tools[0]
    expected = {"name": "time__now", "description": "What time is it?", "x-kept": [1.0]}
    assert json.loads(tool.definition) == expected
    assert (tool.server, tool.tool, tool.key) == ("time", "now", "time")


def test_a_description_prefix_names_the_server() -> None:
    registry = Registry(no_effect)
    registry.catalog_received(catalog("time", "now", description="Tells."))
    view = registry.retain_scope(scope(entry("time", description_prefix=True)))
    assert json.loads(view.tools[0].definition)["description"] == "[time] Tells."


def test_a_server_exposed_as_itself_is_passed_on_byte_for_byte() -> None:
    registry = Registry(no_effect)
    offered = catalog("time", "now", instructions="  Use it. ")
    registry.catalog_received(offered)
    view = registry.retain_scope(scope(entry("time", prefix="")))
    assert view.tools[0].definition == offered.tools[0].definition
    assert view.instructions == "  Use it. "


def test_allow_and_deny_decide_what_a_scope_lists_and_resolves() -> None:
    registry = Registry(no_effect)
    registry.catalog_received(catalog("git", "log", "add", "delete_branch"))
    view = registry.retain_scope(
        scope(entry("git", tools_allow=("*log", "delete_*"), tools_deny=("delete_*",)))
    )
    assert listed(view) == ["git__log"]
    assert view.resolve("git__delete_branch") == DeniedName(ServerName("git"), "delete_branch")
    assert view.resolve("mcp:git:add") == DeniedName(ServerName("git"), "add")
    assert isinstance(view.resolve("git__push"), NoSuchName)
    assert listed(registry.retain_scope(scope(entry("git", tools_allow=())))) == []


def test_a_catalog_with_one_name_twice_lists_the_first() -> None:
    registry = Registry(no_effect)
    twice = [ToolOffer("now", definition("now", "first")), ToolOffer("now", definition("now", "second"))]
    registry.catalog_received(Catalog(PoolKey("time"), twice, "", EMPTY_OBJECT, EMPTY_OBJECT, ""))
    assert [tool["description"] for tool in all_pages(registry.retain_scope(scope("time")))] == ["first"]


@behaviour("features:instructions-merged")
def test_instructions_of_several_servers_are_told_under_their_names() -> None:
    registry = Registry(no_effect)
    registry.catalog_received(catalog("time", instructions="Ask me.\n"))
    registry.catalog_received(catalog("git", instructions="Clone first."))
    registry.catalog_received(catalog("mute", instructions=" "))
    seen = scope("time", "git", "mute")
    assert registry.retain_scope(seen).instructions == "# git\n\nClone first.\n\n# time\n\nAsk me."
    registry.hide_pool(PoolKey("git"))
    assert registry.view(seen).instructions == "# time\n\nAsk me."


# --- what was told to an earlier carpool -------------------------------------------------------------------


def keep(*catalogs: Catalog) -> dict[PoolKey, Catalog]:
    return {each.key: each for each in catalogs}


def test_a_cached_catalog_is_listed_without_a_wait_and_does_not_count_as_the_servers_own() -> None:
    registry = Registry(no_effect)
    registry.set_cached_catalogs(keep(catalog("git", "log", instructions="Commit often.")))
    view = registry.retain_scope(scope("git", "time"))
    assert listed(view) == ["git__log"]
    assert "Commit often." in view.instructions
    assert view.unknown_pools == {PoolKey("time")}
    assert view.unconfirmed == {PoolKey("git")}
    assert registry.told_catalog(PoolKey("git")) is None
    assert registry.known_catalog(PoolKey("git")) == catalog("git", "log", instructions="Commit often.")
    registry.check()


def test_the_server_telling_the_same_as_before_changes_no_list() -> None:
    registry = Registry(no_effect)
    registry.set_cached_catalogs(keep(catalog("git", "log")))
    before = registry.retain_scope(scope("git"))
    assert registry.catalog_received(catalog("git", "log")) == {}
    view = registry.view(scope("git"))
    assert view.version("tools") == before.version("tools")
    assert view.unconfirmed == set()
    registry.check()


def test_the_server_telling_something_else_changes_the_list_that_is_another_one() -> None:
    registry = Registry(no_effect)
    registry.set_cached_catalogs(
        keep(offered(PoolKey("git"), {"tools": {"log": ""}, "prompts": {"ask": ""}}))
    )
    registry.retain_scope(scope("git"))
    told = offered(PoolKey("git"), {"tools": {"log": "", "add": ""}, "prompts": {"ask": ""}})
    assert registry.catalog_received(told) == {scope("git"): {"tools"}}
    assert listed(registry.view(scope("git"))) == ["git__add", "git__log"]
    registry.check()


def test_a_cached_catalog_never_replaces_the_servers_own() -> None:
    registry = Registry(no_effect)
    registry.retain_scope(scope("git"))
    registry.catalog_received(catalog("git", "log"))
    assert registry.set_cached_catalogs(keep(catalog("git", "old"))) == {}
    assert listed(registry.view(scope("git"))) == ["git__log"]
    registry.check()


def test_a_name_that_a_kept_catalog_does_not_have_may_still_be_the_servers() -> None:
    registry = Registry(no_effect)
    registry.set_cached_catalogs(keep(catalog("git", "log")))
    view = registry.retain_scope(scope("git"))
    assert view.possible_pools("git__add") == ("git",)
    registry.catalog_received(catalog("git", "log"))
    assert registry.view(scope("git")).possible_pools("git__add") == ()


# --- tools files -------------------------------------------------------------------------------------------


def by_file(server: str, *tools: str) -> ScopeEntry:
    return entry(server, offline=tuple(ToolOffer(name, definition(name)) for name in tools))


@behaviour("tools-file:listed")
def test_a_tools_file_speaks_for_a_server_that_has_not_told_or_is_away_and_never_against_it() -> None:
    registry = Registry(no_effect)
    seen = scope(by_file("git", "log"))
    registry.set_cached_catalogs(keep(catalog("git", "kept")))
    view = registry.retain_scope(seen)
    assert listed(view) == ["git__log"]
    assert view.unknown_pools == set()
    assert registry.catalog_received(catalog("git", "log", "add")) == {seen: {"tools"}}
    assert listed(registry.view(seen)) == ["git__add", "git__log"]
    assert registry.hide_pool(PoolKey("git")) == {seen: {"tools"}}
    view = registry.view(seen)
    assert listed(view) == ["git__log"]
    assert view.hidden_pools == {PoolKey("git")}
    registry.check()
    registry.show_pool(PoolKey("git"))
    assert listed(registry.view(seen)) == ["git__add", "git__log"]
    registry.check()


def test_a_tools_file_is_seen_in_its_own_scope_only() -> None:
    registry = Registry(no_effect)
    assert listed(registry.retain_scope(scope(by_file("git", "log")))) == ["git__log"]
    plain = registry.retain_scope(scope("git"))
    assert listed(plain) == []
    assert plain.unknown_pools == {PoolKey("git")}
    registry.check()


def test_prompts_and_resources_are_announced_where_only_a_tools_file_speaks() -> None:
    registry = Registry(no_effect)
    view = registry.retain_scope(scope(by_file("git", "log")))
    assert {"tools", "prompts", "resources"} <= view.capabilities()


# --- changes -----------------------------------------------------------------------------------------------


@behaviour("lists:changes-told")
def test_only_scopes_whose_list_changed_are_told() -> None:
    registry = Registry(no_effect)
    both, git, quiet = scope("time", "git"), scope("git"), scope(entry("git", tools_deny=("*",)))
    for seen in (both, git, quiet):
        registry.retain_scope(seen)
    assert registry.catalog_received(catalog("git", "log")) == {both: {"tools"}, git: {"tools"}}
    assert registry.catalog_received(catalog("time", "now")) == {both: {"tools"}}
    assert registry.catalog_received(catalog("elsewhere", "x")) == {}


def test_the_same_tools_in_another_order_or_with_other_instructions_change_no_list() -> None:
    registry = Registry(no_effect)
    seen = scope("git")
    registry.catalog_received(catalog("git", "log", "add"))
    before = registry.retain_scope(seen)
    assert registry.catalog_received(catalog("git", "add", "log", instructions="New.")) == {}
    after = registry.view(seen)
    assert after.version("tools") == before.version("tools")
    assert after.instructions == "New."
    assert page(after) is page(before)


def test_a_changed_definition_is_a_change_and_the_held_view_stays_as_it_was() -> None:
    registry = Registry(no_effect)
    seen = scope("git")
    registry.catalog_received(catalog("git", "log", description="old"))
    before = registry.retain_scope(seen)
    assert registry.catalog_received(catalog("git", "log", description="new")) == {seen: {"tools"}}
    assert [tool["description"] for tool in all_pages(before)] == ["old"]
    assert [tool["description"] for tool in all_pages(registry.view(seen))] == ["new"]
    assert registry.view(seen).version("tools") > before.version("tools")


@pytest.mark.parametrize("family", FAMILIES)
def test_a_changed_definition_in_one_list_changes_that_list_alone(family: Family) -> None:
    registry = Registry(no_effect)
    both, other = scope("a", "b"), scope("b")
    old: Offers = {
        "tools": {"t": ""},
        "prompts": {"p": ""},
        "resources": {"x:1": ""},
        "templates": {"x:{a}": ""},
    }
    registry.catalog_received(offered(PoolKey("a"), old))
    registry.catalog_received(offered(PoolKey("b"), old))
    before = registry.retain_scope(both)
    registry.retain_scope(other)
    new: Offers = {**old, family: dict.fromkeys(old[family], "new")}
    assert registry.catalog_received(offered(PoolKey("a"), new)) == {both: {family}}
    view = registry.view(both)
    assert [text for _, text in read(view, family)] == ["new", ""]
    for unchanged in set(FAMILIES) - {family}:
        assert view.version(unchanged) == before.version(unchanged)
        assert view.page(unchanged, None) is before.page(unchanged, None)


def test_another_tool_that_agents_read_as_the_same_is_no_change_and_is_the_one_that_is_called() -> None:
    """Two names that differ in what no agent may see (`t.2`, `t_2`) are one name to agents."""
    registry = Registry(no_effect)
    seen = scope("git")
    registry.catalog_received(offered(PoolKey("git"), {"tools": {"t_2": ""}, "prompts": {"p_2": ""}}))
    before = registry.retain_scope(seen)
    assert (
        registry.catalog_received(offered(PoolKey("git"), {"tools": {"t.2": ""}, "prompts": {"p.2": ""}}))
        == {}
    )
    after = registry.view(seen)
    assert after.version("tools") == before.version("tools")
    assert [tool.tool for tool in after.tools] == ["t.2"]
    assert [prompt.prompt for prompt in after.prompts] == ["p.2"]


def test_a_first_catalog_without_tools_ends_the_waiting_without_a_change() -> None:
    registry = Registry(no_effect)
    seen = scope("git", "time")
    assert registry.retain_scope(seen).unknown_pools == {"git", "time"}
    assert registry.catalog_received(catalog("git")) == {}
    assert registry.view(seen).unknown_pools == {"time"}


# --- servers that are away ---------------------------------------------------------------------------------


@behaviour("lists:away-and-back")
def test_a_hidden_server_leaves_every_list_keeps_its_names_and_returns() -> None:
    registry = Registry(no_effect)
    seen = scope(entry("a", prefix=""), entry("b", prefix=""))
    registry.catalog_received(catalog("a", "search", "read"))
    registry.catalog_received(catalog("b", "search"))
    before = registry.retain_scope(seen)
    assert registry.hide_pool(PoolKey("b")) == {seen: {"tools"}}
    assert registry.hide_pool(PoolKey("b")) == {}
    during = registry.view(seen)
    name_of_b = next(tool.qualified for tool in before.tools if tool.key == "b")
    assert set(listed(during)) == set(listed(before)) - {name_of_b}
    away = during.resolve(name_of_b)
    assert isinstance(away, ViewTool)
    assert away.key in during.hidden_pools
    assert isinstance(during.resolve("search"), AmbiguousName), "must not become a's because b is away"
    assert registry.show_pool(PoolKey("b")) == {seen: {"tools"}}
    assert registry.view(seen).tools == before.tools


def test_a_list_does_not_wait_for_a_hidden_server_without_a_catalog() -> None:
    registry = Registry(no_effect)
    seen = scope("git", "time")
    registry.hide_pool(PoolKey("git"))
    view = registry.retain_scope(seen)
    assert view.unknown_pools == {"time"}
    assert view.hidden_pools == {"git"}
    assert view.possible_pools("git__log") == ("git",)
    assert view.possible_pools("mcp:time:now") == ("time",)
    assert view.possible_pools("other__x") == ()


def test_forgetting_a_pool_forgets_that_it_was_hidden() -> None:
    registry = Registry(no_effect)
    seen = scope("git")
    registry.catalog_received(catalog("git", "log"))
    registry.retain_scope(seen)
    registry.hide_pool(PoolKey("git"))
    assert registry.forget_pool(PoolKey("git")) == {}
    assert registry.view(seen).unknown_pools == {"git"}
    assert registry.told_catalog(PoolKey("git")) is None
    assert registry.catalog_received(catalog("git", "log")) == {seen: {"tools"}}


# --- pages -------------------------------------------------------------------------------------------------


def numbered(count: int) -> list[str]:
    return [f"t{number:05}" for number in range(count)]


def test_one_page_holds_a_thousand_entries_and_is_encoded_once() -> None:
    registry = Registry(no_effect)
    seen = scope("git")
    registry.catalog_received(catalog("git", *numbered(2001)))
    view = registry.retain_scope(seen)
    first = page(view)
    assert first is page(registry.view(seen))
    second = page(view, first.next_cursor)
    third = page(view, second.next_cursor)
    assert [len(names_on(it)) for it in (first, second, third)] == [1000, 1000, 1]
    assert third.next_cursor is None
    assert [tool["name"] for tool in all_pages(view)] == listed(view)


def test_one_page_stays_under_its_bytes_and_a_giant_tool_has_one_to_itself() -> None:
    registry = Registry(no_effect, page_bytes=1000)
    offers = [
        ToolOffer(name, definition(name, "d" * size)) for name, size in (("a", 300), ("b", 300), ("c", 300))
    ]
    offers += [ToolOffer("giant", definition("giant", "d" * 5000)), ToolOffer("z", definition("z"))]
    registry.catalog_received(Catalog(PoolKey("git"), offers, "", EMPTY_OBJECT, EMPTY_OBJECT, ""))
    view = registry.retain_scope(scope("git"))
    pages = [page(view)]
    while pages[-1].next_cursor is not None:
        pages.append(page(view, pages[-1].next_cursor))
    assert [names_on(it) for it in pages] == [["git__a", "git__b"], ["git__c"], ["git__giant"], ["git__z"]]
    assert all(len(it.body) <= 1000 for it in pages if names_on(it) != ["git__giant"])


def test_an_empty_list_is_one_empty_page() -> None:
    assert page(Registry(no_effect).retain_scope(scope("git"))) == ListPage(RawJson(b'{"tools":[]}'), None)


@behaviour("pages:own-cursors")
def test_an_old_cursor_pages_its_own_list_for_seven_changes_and_then_is_refused() -> None:
    registry = Registry(no_effect, page_entries=2)
    seen = scope("git")
    registry.catalog_received(catalog("git", *numbered(3)))
    cursor = page(registry.retain_scope(seen)).next_cursor
    for change in range(7):
        registry.catalog_received(catalog("git", *numbered(4), description=str(change)))
        assert names_on(page(registry.view(seen), cursor)) == ["git__t00002"]
    registry.catalog_received(catalog("git", "x"))
    assert registry.view(seen).page("tools", cursor) == BadCursor()


@behaviour("pages:long-lists")
@pytest.mark.parametrize(("kept_entries", "kept"), [(30, 3), (29, 2), (10, 1), (0, 1), (1000, 7)])
def test_the_earlier_versions_of_a_list_are_bounded_by_their_entries_together(
    kept_entries: int, kept: int
) -> None:
    registry = Registry(no_effect, page_entries=5, kept_entries=kept_entries)
    seen = scope("git")
    registry.retain_scope(seen)
    cursors: list[str | None] = []
    for number in range(12):
        registry.catalog_received(catalog("git", *[f"t{number}_{at}" for at in range(10)]))
        cursors.append(page(registry.view(seen)).next_cursor)
        registry.check()
    answered = [isinstance(registry.view(seen).page("tools", cursor), ListPage) for cursor in cursors]
    assert answered == [False] * (11 - kept) + [True] * (kept + 1)


@behaviour("pages:own-cursors")
def test_a_cursor_of_another_scope_or_another_life_of_the_broker_is_refused() -> None:
    registry, later = (
        Registry(no_effect, mark="a.", page_entries=2),
        Registry(no_effect, mark="b.", page_entries=2),
    )
    one, two = scope("git"), scope("git", separator="-")
    for it in (registry, later):
        it.catalog_received(catalog("git", *numbered(3)))
    cursor = page(registry.retain_scope(one)).next_cursor
    assert registry.retain_scope(two).page("tools", cursor) == BadCursor()
    assert later.retain_scope(one).page("tools", cursor) == BadCursor()


@pytest.mark.parametrize(
    "cursor", ["", "0", "1.0", "1.1", "1.-2", "1.02", "1.2 ", "1.٢", "2.2", "x" * 10**6, "\ud800"]
)
def test_anything_but_a_page_beginning_is_a_bad_cursor(cursor: str) -> None:
    registry = Registry(no_effect, page_entries=2)
    registry.catalog_received(catalog("git", *numbered(3)))
    view = registry.retain_scope(scope("git"))
    assert page(view).next_cursor == "1.2"
    assert view.page("tools", cursor) == BadCursor()


# --- who looks ---------------------------------------------------------------------------------------------


def test_equal_scopes_share_one_view_until_the_last_lets_go() -> None:
    registry = Registry(no_effect)
    view = registry.retain_scope(scope("git"))
    assert registry.retain_scope(scope("git")) is view
    registry.release_scope(scope("git"))
    assert registry.view(scope("git")) is view
    registry.release_scope(scope("git"))
    with pytest.raises(InvariantBroken):
        registry.view(scope("git"))
    with pytest.raises(InvariantBroken):
        registry.release_scope(scope("git"))
    assert registry.catalog_received(catalog("git", "log")) == {}


def test_a_scope_that_names_a_server_twice_is_a_bug_and_leaves_nothing_behind() -> None:
    registry = Registry(no_effect)
    with pytest.raises(InvariantBroken):
        registry.retain_scope(scope(entry("git", "k1"), entry("git", "k2")))
    registry.check()


def test_views_of_several_scopes_share_their_definitions() -> None:
    registry = Registry(no_effect)
    registry.catalog_received(catalog("git", "log"))
    one, two = registry.retain_scope(scope("git")), registry.retain_scope(scope("git", "time"))
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
    scope(by_file("a", "t0", "t2"), "b"),
]
KEPT = 3
PAGED_BY = 2
NAMES = ["t0", "t1", "t2", "t.2", "t_2", "u"]
OWN: dict[Family, list[str]] = {
    "tools": NAMES,
    "prompts": NAMES,
    "resources": ["x://a", "x://b", "x://a/b", "plain", "carpool+b+x://a", "carpool+c+x://a"],
    "templates": ["x://{id}", "x://{name}", "x://{+path}", "carpool+a+x://{id}", "broken{"],
}
SAID = ["x://a", "x://a/b/c", "x://new", "y://z", "plain", "plain/x", "carpool+b+x://new", "x://{id}"]
Seen = list[tuple[str, str]]
"""(name or URI, description), as an agent reads them."""


def scheme_of(own: str) -> str:
    return own.partition(":")[0] if ":" in own else ""


def some_of(family: Family) -> st.SearchStrategy[dict[str, str]]:
    return st.dictionaries(st.sampled_from(OWN[family]), st.sampled_from(["", "x"]), max_size=4)


class RegistryMachine(RuleBasedStateMachine):
    """The registry against the simplest thing that could be right: compute every list from scratch."""

    def __init__(self) -> None:
        super().__init__()
        self.registry = Registry(no_effect, page_entries=PAGED_BY, kept_versions=KEPT)
        self.catalogs: dict[PoolKey, Offers] = {}
        self.kept: dict[PoolKey, Offers] = {}
        self.hidden: set[PoolKey] = set()
        self.holders: dict[Scope, int] = {}
        self.history: dict[Scope, dict[Family, list[Seen]]] = {}
        self.versions: dict[tuple[Scope, Family], int] = {}
        self.cursors: list[tuple[Scope, Family, list[Seen], int, str, Seen]] = []

    def by_file(self, it: ScopeEntry) -> bool:
        """Whether its `tools_file` speaks for it."""
        return it.offline is not None and (it.key not in self.catalogs or it.key in self.hidden)

    def listed(self, it: ScopeEntry, family: Family) -> bool:
        return it.key not in self.hidden or (family == "tools" and self.by_file(it))

    def offered(self, it: ScopeEntry) -> Offers:
        known = self.catalogs.get(it.key, self.kept.get(it.key, {}))
        if self.by_file(it):
            return {**known, "tools": {offer.name: "" for offer in it.offline or ()}}
        return known

    def offers(self, seen: Scope, family: Family) -> list[tuple[ScopeEntry, str, str]]:
        """(entry, own name or URI, description), in the order of lists."""
        return [
            (it, own, text)
            for it in sorted(seen.servers, key=lambda it: it.server)
            for own, text in sorted(self.offered(it).get(family, {}).items())
            if family != "tools" or it.allows(own)
        ]

    def schemes(self, it: ScopeEntry) -> set[str]:
        """What the server serves; empty text where it serves anything at all."""
        offered = self.offered(it)
        both = [*offered.get("resources", {}), *offered.get("templates", {})]
        return {scheme_of(own) for own in both} | ({""} if both else set())

    def expected(self, seen: Scope, family: Family) -> Seen:
        offers = self.offers(seen, family)
        if family in ("tools", "prompts"):
            pairs = [(it.server, own) for it, own, _ in offers]
            names = qualify_all(pairs, {it.server: it.prefix for it in seen.servers}, seen.separator)
            return [
                (names[it.server, own], (f"[{it.server}] " if it.description_prefix else "") + text)
                for it, own, text in offers
                if self.listed(it, family)
            ]
        shown: Seen = []
        for it, own, text in offers:
            others = [each for each in seen.servers if each.server != it.server]
            if family == "resources":
                is_shared = any(own in self.offered(each).get("resources", {}) for each in others)
                is_shared |= ":" not in own  # no URI, which some agents cannot read
            else:
                is_shared = any(scheme_of(own) in self.schemes(each) for each in others)
            reads_rewritten = any(
                own.startswith(f"carpool+{server}+") for server in (it.server for it in seen.servers)
            )
            uri = own
            if is_shared or reads_rewritten:
                uri = f"carpool+{it.server}{'+' if ':' in own else ':'}{own}"
            if self.listed(it, family):
                shown.append((uri, text))
        return shown

    def judge(self, told: dict[Scope, frozenset[Family]]) -> None:
        changed: dict[Scope, set[Family]] = {}
        for seen in self.holders:
            for family in FAMILIES:
                version = self.registry.view(seen).version(family)
                if (now := self.expected(seen, family)) != self.history[seen][family][-1]:
                    changed.setdefault(seen, set()).add(family)
                    self.history[seen][family].append(now)
                    assert version > self.versions[seen, family]
                    self.versions[seen, family] = version
                else:
                    assert version == self.versions[seen, family]
        assert told == changed

    @initialize(held=st.lists(st.sampled_from(SCOPES), min_size=2, unique_by=SCOPES.index), data=st.data())
    def begin(self, held: list[Scope], data: st.DataObject) -> None:
        for seen in held:
            self.retain(seen)
        for key in KEYS:
            self.catalogs[key] = {family: data.draw(some_of(family)) for family in FAMILIES}
            self.judge(self.registry.catalog_received(offered(key, self.catalogs[key])))

    @rule(data=st.data(), key=st.sampled_from(KEYS), family=st.sampled_from(FAMILIES), reverse=st.booleans())
    def learn(self, data: st.DataObject, key: PoolKey, family: Family, reverse: bool) -> None:
        self.catalogs[key] = {**self.catalogs.get(key, {}), family: data.draw(some_of(family))}
        self.judge(self.registry.catalog_received(offered(key, self.catalogs[key], reverse=reverse)))

    @rule(key=st.sampled_from(KEYS), family=st.sampled_from(FAMILIES), text=st.sampled_from(["", "x", "y"]))
    def learn_other_words(self, key: PoolKey, family: Family, text: str) -> None:
        offers = self.catalogs.get(key, {})
        self.catalogs[key] = {**offers, family: dict.fromkeys(offers.get(family, {}), text)}
        self.judge(self.registry.catalog_received(offered(key, self.catalogs[key])))

    @rule(data=st.data(), keys=st.sets(st.sampled_from(KEYS)))
    def keep(self, data: st.DataObject, keys: set[PoolKey]) -> None:
        self.kept = {key: {family: data.draw(some_of(family)) for family in FAMILIES} for key in sorted(keys)}
        self.judge(
            self.registry.set_cached_catalogs({key: offered(key, what) for key, what in self.kept.items()})
        )

    @rule(key=st.sampled_from(KEYS))
    def forget(self, key: PoolKey) -> None:
        self.catalogs.pop(key, None)
        self.hidden.discard(key)
        self.judge(self.registry.forget_pool(key))

    @rule(key=st.sampled_from(KEYS))
    def hide(self, key: PoolKey) -> None:
        self.hidden.add(key)
        self.judge(self.registry.hide_pool(key))

    @rule(key=st.sampled_from(KEYS))
    def show(self, key: PoolKey) -> None:
        self.hidden.discard(key)
        self.judge(self.registry.show_pool(key))

    @rule(seen=st.sampled_from(SCOPES))
    def retain(self, seen: Scope) -> None:
        view = self.registry.retain_scope(seen)
        if seen not in self.holders:
            self.history[seen] = {family: [self.expected(seen, family)] for family in FAMILIES}
            self.versions |= {(seen, family): view.version(family) for family in FAMILIES}
        self.holders[seen] = self.holders.get(seen, 0) + 1

    @precondition(lambda self: self.holders)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        seen = data.draw(st.sampled_from(sorted(self.holders, key=SCOPES.index)))
        self.registry.release_scope(seen)
        self.holders[seen] -= 1
        if not self.holders[seen]:
            del self.holders[seen], self.history[seen]

    @precondition(lambda self: self.holders)
    @rule(data=st.data(), family=st.sampled_from(FAMILIES))
    def list_and_keep_a_cursor(self, data: st.DataObject, family: Family) -> None:
        seen = data.draw(st.sampled_from(sorted(self.holders, key=SCOPES.index)))
        view = self.registry.view(seen)
        history = self.history[seen][family]
        assert read(view, family) == history[-1]
        cursor = page(view, None, family).next_cursor
        assert (cursor is None) == (len(history[-1]) <= PAGED_BY)
        if cursor is not None:
            self.cursors.append((seen, family, history, len(history), cursor, history[-1][PAGED_BY:]))

    @precondition(lambda self: self.cursors)
    @rule(data=st.data(), other=st.sampled_from(FAMILIES))
    def page_on_with_a_kept_cursor(self, data: st.DataObject, other: Family) -> None:
        seen, family, history, then, cursor, rest = data.draw(st.sampled_from(self.cursors))
        if seen not in self.holders:
            return
        view = self.registry.view(seen)
        if self.history[seen][family] is history and len(history) - then < KEPT:
            assert read(view, family, cursor) == rest
        else:
            assert view.page(family, cursor) == BadCursor()
        assert other == family or view.page(other, cursor) == BadCursor()

    @precondition(lambda self: self.holders)
    @rule(data=st.data(), uri=st.sampled_from(SAID + OWN["resources"]))
    def what_a_server_with_a_rewritten_uri_says_leads_back_to_it(self, data: st.DataObject, uri: str) -> None:
        view = self.registry.view(data.draw(st.sampled_from(sorted(self.holders, key=SCOPES.index))))
        for it in view.scope.servers:
            outward = view.agent_uri(it.key, uri)
            if it.key in view.rewritten_pools:
                there = view.uris.route_template(outward)
                assert isinstance(there, UriRoute)
                assert (there.key, there.uri) == (it.key, uri)
            else:
                assert outward == uri

    @invariant()
    def every_fact_agrees(self) -> None:
        self.registry.check()
        for seen in self.holders:
            view = self.registry.view(seen)
            assert listed(view) == [name for name, _ in self.history[seen]["tools"][-1]]
            assert [it.qualified for it in view.prompts] == [
                name for name, _ in self.history[seen]["prompts"][-1]
            ]
            keys = {it.key for it in seen.servers}
            told = self.catalogs.keys()
            offline = {it.key for it in seen.servers if it.offline is not None}
            assert view.unknown_pools == keys - told - self.hidden - self.kept.keys() - offline
            assert view.unconfirmed == (keys - told) & (offline | self.kept.keys())
            assert view.hidden_pools == keys & self.hidden
            for it in seen.servers:
                for own in self.catalogs.get(it.key, {}).get("resources", {}):
                    there = view.route(view.agent_uri(it.key, own))
                    assert there == UriRoute(it.key, it.server, own, "listed"), "hidden or not"


RegistryMachine.TestCase.settings = settings(deadline=None, max_examples=40, stateful_step_count=20)
TestRegistryAgainstItsModel = behaviour("pages:own-cursors", "lists:changes-told")(RegistryMachine.TestCase)
