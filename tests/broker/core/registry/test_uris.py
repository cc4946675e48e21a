"""URIs of one scope: who gets which, what a collision does to them."""

import json
import re
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import AnyUrl, TypeAdapter

from carpool_broker.core.model.scope import Scope, ScopeEntry
from carpool_broker.core.registry.registry import Registry
from carpool_broker.core.registry.uris import (
    ServerUris,
    UnroutableUri,
    UriRoute,
    UriTable,
    encode_server,
    parent_uris,
    rewritten_uri,
)
from carpool_broker.core.registry.view import BadReference, CompletionTarget, View, ViewPrompt
from carpool_protocol.ids import EMPTY_OBJECT, PoolKey, RawJson, ServerName
from carpool_protocol.link.messages import Catalog, Feature, Offer, ResourceOffer
from carpool_protocol.machine.slices import run_all_slices
from carpool_protocol.wire.tool_name_resolver import AmbiguousName, NoSuchName
from tests.behaviours import behaviour
from tests.kit.broker_rig import no_effect

LEGAL_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:[A-Za-z0-9._~:/?#\[\]@!$&'()*+,;=%{}-]*")


BOTH = UnroutableUri((ServerName("a"), ServerName("b")))
LISTED_BY_BOTH = UnroutableUri(BOTH.candidates, collides=True)


def listed(server: str, *uris: str, templates: tuple[str, ...] = (), serves: bool = True) -> ServerUris:
    return ServerUris(ServerName(server), PoolKey(server), uris, templates, serves)


def uri_table(servers: Sequence[ServerUris]) -> UriTable:
    return run_all_slices(UriTable.build(servers))


def route(table: UriTable, uri: str) -> tuple[str, str, str]:
    found = table.route(uri)
    assert isinstance(found, UriRoute), found
    assert str(found.key) == str(found.server)
    return found.server, found.uri, found.by


def resource(uri: str, member: str = "uri") -> ResourceOffer:
    return ResourceOffer(uri, RawJson(json.dumps({member: uri, "name": "n", "x-kept": 1.0}).encode()))


def catalog(
    key: str,
    *,
    prompts: tuple[str, ...] = (),
    resources: tuple[str, ...] = (),
    templates: tuple[str, ...] = (),
    features: tuple[Feature, ...] = (),
) -> Catalog:
    return Catalog(
        PoolKey(key),
        [],
        "",
        EMPTY_OBJECT,
        EMPTY_OBJECT,
        "",
        [Offer(name, RawJson(json.dumps({"name": name, "description": "d"}).encode())) for name in prompts],
        [resource(uri) for uri in resources],
        [resource(uri, "uriTemplate") for uri in templates],
        list(features),
    )


def view_of(*catalogs: Catalog, servers: str = "", **rest: Any) -> View:
    registry = Registry(no_effect)
    for it in catalogs:
        registry.catalog_received(it)
    names = servers.split() or [it.key for it in catalogs]
    entries = tuple(ScopeEntry(server=ServerName(name), key=PoolKey(name), **rest) for name in names)
    return registry.retain_scope(Scope(entries))


def body(view: View, family: Any) -> Any:
    page = view.page(family, None)
    return json.loads(page.body)  # type: ignore[union-attr]


# --- routes ------------------------------------------------------------------------------------------------


@behaviour("resources:routed-by-table")
def test_a_listed_uri_goes_to_the_server_that_lists_it_even_if_another_has_its_scheme() -> None:
    table = uri_table([listed("a", templates=("file:///{+path}",)), listed("b", "file:///x")])
    assert route(table, "file:///x") == ("b", "file:///x", "listed")
    assert table.route("file:///y") == BOTH, "no template decides while another server has the scheme"


@behaviour("resources:routed-by-table")
def test_an_unlisted_uri_goes_to_the_only_server_that_has_its_scheme() -> None:
    table = uri_table([listed("a", "file:///w"), listed("b", "db://t/", templates=("memo://{name}",))])
    assert route(table, "file:///w/sub/deep/x.txt") == ("a", "file:///w/sub/deep/x.txt", "scheme")
    assert route(table, "FILE:///elsewhere")[0] == "a"
    assert route(table, "memo://7")[0] == "b"
    assert route(table, "db://u")[0] == "b"
    assert table.route("what://ever") == BOTH


HOSTILE: list[dict[str, Any]] = [
    {"uris": ("file:///home/me/plan.txt",)},
    {"uris": ("FILE://localhost/home//me/plan.txt",)},
    {"uris": ("file:///",)},
    {"uris": ("file:///home/me/",)},
    {"templates": ("file:///{+path}",)},
    {"templates": ("file:///home/me/plan.{ext}",)},
    {"templates": ("{+any}",)},
    {"uris": ("file:///home/me/plan.txt",), "templates": ("file:///{+path}", "{+any}")},
]
"""What a server may list to get what is read from another one."""


@behaviour("resources:not-taken-over")
@pytest.mark.parametrize("hostile", HOSTILE)
@pytest.mark.parametrize(
    "files",
    [
        {"uris": ("file:///home/me/plan.txt",)},
        {"templates": ("file:///{+path}",)},
        {"uris": ("file:///home/me/plan.txt",), "templates": ("file:///{+path}",)},
        {"uris": ("file:///home/me/",)},
    ],
)
def test_no_server_gets_by_what_it_lists_what_another_one_is_asked_for(
    hostile: dict[str, Any], files: dict[str, Any]
) -> None:
    for name in ("a", "z"):  # before and behind `files` in the order of names
        both = [
            listed(name, *hostile.get("uris", ()), templates=hostile.get("templates", ())),
            listed("files", *files.get("uris", ()), templates=files.get("templates", ())),
        ]
        table = uri_table(sorted(both, key=lambda it: it.server))
        for uri in ("file:///home/me/plan.txt", "file:///home/me/other.txt"):
            if uri in hostile.get("uris", ()) and uri not in files.get("uris", ()):
                continue  # it is shown as the hostile server's own
            found = table.route(uri)
            assert isinstance(found, UnroutableUri) or found.server == "files", uri
            shown = table.agent_uri(PoolKey("files"), uri)
            assert route(table, shown)[:2] == ("files", uri)
        for template in files.get("templates", ()):
            shown = table.agent_templates.get((ServerName("files"), template), template)
            expanded = shown.replace("{+path}", "home/me/plan.txt")
            assert route(table, expanded)[:2] == ("files", "file:///home/me/plan.txt")


def test_an_unlisted_uri_goes_to_the_only_server_that_serves_resources() -> None:
    table = uri_table([listed("a", serves=False), listed("b"), listed("c", serves=False)])
    assert route(table, "any://x") == ("b", "any://x", "only")
    assert uri_table([listed("a", serves=False)]).route("any://x") == UnroutableUri(())


def test_ancestors_end_at_path_boundaries_and_the_longest_comes_first() -> None:
    assert list(parent_uris("file:///a/b")) == ["file:///a/", "file:///a", "file:///", "file://", "file:/"]
    assert list(parent_uris("x:a?b#c")) == ["x:a?b", "x:a"]
    assert list(parent_uris("nothing")) == []
    assert len(list(parent_uris("x:/" + "a/" * 10_000))) < 200


# --- collisions --------------------------------------------------------------------------------------------


@behaviour("lists:readable")
def test_a_uri_without_a_scheme_is_listed_as_one_that_every_agent_can_read() -> None:
    table = uri_table([listed("a", "notes/x y")])
    assert table.agent_uri(PoolKey("a"), "notes/x y") == "carpool+a:notes/x y"
    assert route(table, "carpool+a:notes/x y") == ("a", "notes/x y", "listed")
    assert route(table, "notes/x y") == ("a", "notes/x y", "scheme"), "as its server's own texts name it"


@behaviour("resources:rewritten-on-collision")
def test_without_a_collision_every_uri_and_definition_goes_through_byte_for_byte() -> None:
    ours, theirs = (
        catalog("a", resources=("file:///x", "urn:x")),
        catalog("b", resources=("note://1",), templates=("note://{p}",)),
    )
    view = view_of(ours, theirs)
    assert [it.definition for it in view.resources] == [
        it.definition for it in (*ours.resources, *theirs.resources)
    ]
    assert view.templates[0].definition == theirs.templates[0].definition
    assert PoolKey("a") not in view.rewritten_pools
    assert view.agent_uri(PoolKey("a"), "file:///unlisted") == "file:///unlisted"


@behaviour("resources:rewritten-on-collision")
def test_two_servers_with_one_uri_both_say_their_name_in_it() -> None:
    view = view_of(catalog("b", resources=("file:///x",)), catalog("a", resources=("file:///x", "file:///y")))
    assert [it["uri"] for it in body(view, "resources")["resources"]] == [
        "carpool+a+file:///x",
        "file:///y",
        "carpool+b+file:///x",
    ]
    assert body(view, "resources")["resources"][2]["x-kept"] == 1.0
    assert view.route("file:///x") == LISTED_BY_BOTH
    assert view.route("carpool+a+file:///x") == UriRoute(PoolKey("a"), ServerName("a"), "file:///x", "listed")
    assert view.route("carpool+b+file:///x") == UriRoute(PoolKey("b"), ServerName("b"), "file:///x", "listed")
    assert view.agent_uri(PoolKey("b"), "file:///x") == "carpool+b+file:///x"
    assert view.agent_uri(PoolKey("a"), "file:///x") == "carpool+a+file:///x"
    assert view.agent_uri(PoolKey("a"), "file:///y") == "file:///y", "it leads back as it is"
    assert PoolKey("a") in view.rewritten_pools
    assert PoolKey("b") in view.rewritten_pools


@behaviour("resources:rewritten-on-collision")
def test_two_spellings_of_one_uri_collide() -> None:
    view = view_of(catalog("a", resources=("file:///x",)), catalog("b", resources=("FILE://localhost//x",)))
    assert [it.shown for it in view.resources] == ["carpool+a+file:///x", "carpool+b+FILE://localhost//x"]


def test_templates_of_one_scheme_say_their_server() -> None:
    view = view_of(
        catalog("a", templates=("n://{id}", "m://{id}")),
        catalog("b", resources=("n://1",), templates=("{+all}",)),
    )
    shown = [it["uriTemplate"] for it in body(view, "templates")["resourceTemplates"]]
    assert shown == ["m://{id}", "carpool+a+n://{id}", "carpool+b:{+all}"]
    assert view.route("carpool+a+n://7") == UriRoute(PoolKey("a"), ServerName("a"), "n://7", "named")
    assert view.route("carpool+b:n://7") == UriRoute(PoolKey("b"), ServerName("b"), "n://7", "named")
    assert view.route("n://7") == BOTH
    assert view.agent_uri(PoolKey("a"), "n://7") == "carpool+a+n://7"
    assert view.agent_uri(PoolKey("b"), "n://1") == "n://1", "it leads back as it is"


def test_a_uri_keeps_its_spelling_while_the_other_server_is_away() -> None:
    registry = Registry(no_effect)
    scope = Scope(tuple(ScopeEntry(server=ServerName(it), key=PoolKey(it)) for it in "ab"))
    registry.catalog_received(catalog("a", resources=("x://1",)))
    registry.catalog_received(catalog("b", resources=("x://1",)))
    registry.retain_scope(scope)
    assert registry.hide_pool(PoolKey("a")) == {scope: {"resources"}}
    view = registry.view(scope)
    assert [it.shown for it in view.resources] == ["carpool+b+x://1"]
    assert view.route("x://1") == LISTED_BY_BOTH


def test_a_server_that_lists_carpools_spelling_of_a_uri_cannot_take_it() -> None:
    table = uri_table([listed("a", "x://1", "carpool+b+x://1"), listed("b", "x://1")])
    assert route(table, "carpool+b+x://1") == ("b", "x://1", "listed")
    assert table.agent_uri(PoolKey("a"), "carpool+b+x://1") == "carpool+a+carpool+b+x://1"
    assert route(table, "carpool+a+carpool+b+x://1") == ("a", "carpool+b+x://1", "listed")


def test_a_uri_that_names_a_server_reaches_it_without_a_collision_in_any_case_of_letters() -> None:
    table = uri_table([listed("My_Srv", serves=False), listed("b", "x://1")])
    assert rewritten_uri("My_Srv", "File:///X") == "carpool+.my...srv+File:///X"
    assert route(table, "CARPOOL+.MY...SRV+File:///X") == ("My_Srv", "File:///X", "named")
    assert route(table, "carpool+.my...srv:plain") == ("My_Srv", "plain", "named")
    assert route(table, "carpool+nobody+x://1")[2] == "only"


names = st.from_regex(r"[A-Za-z0-9-]{1,4}(_[A-Za-z0-9-]{1,4}){0,2}", fullmatch=True)


@given(st.lists(names, min_size=2, max_size=2, unique=True))
@settings(deadline=None)
def test_no_two_servers_share_a_spelling_in_any_case_of_letters(pair: list[str]) -> None:
    assert encode_server(pair[0]).lower() != encode_server(pair[1]).lower()


@given(
    names,
    st.sampled_from(["file:///a b", "http://h/p?q#f", "urn:x:y", "a.txt", "//h/p", "", "x{y}:z", "é:/ü"]),
)
@settings(deadline=None)
def test_a_rewritten_uri_is_a_legal_uri_and_is_taken_back(server: str, uri: str) -> None:
    spelled = rewritten_uri(server, uri)
    if uri.isascii() and " " not in uri:
        assert LEGAL_URI.fullmatch(spelled)
    assert route(uri_table([listed(server, serves=False)]), spelled) == (server, uri, "named")


def test_a_rewritten_uri_survives_the_parsers_of_agents() -> None:
    table = uri_table([listed("My_Srv")])
    for uri in (
        "file:///home/x.txt",
        "http://h/p?q=1#f",
        "memo://insights",
        "ui://w/i.html",
        "urn:x:y",
        "a.txt",
    ):
        parsed = str(TypeAdapter(AnyUrl).validate_python(rewritten_uri("My_Srv", uri)))
        assert route(table, parsed) == ("My_Srv", uri, "named")


# --- a large scope, hostile URIs ---------------------------------------------------------------------------


def test_no_uri_is_too_long_or_too_odd_to_be_routed() -> None:
    table = uri_table([listed("a", "x://1", templates=("x://{a}/{b}/{+c}/z",)), listed("b", "y://1")])
    for uri in (
        "",
        "/",
        "x://" + "/" * 5_000_000,
        "x://" + "a/" * 2000,
        "\ud800",
        "carpool+",
        "carpool+b+",
        "{",
    ):
        assert isinstance(table.route(uri), UriRoute | UnroutableUri)


# --- prompts, completion, what is announced ----------------------------------------------------------------


@behaviour("prompts:own-names")
def test_prompts_are_named_like_tools_in_a_name_space_of_their_own() -> None:
    view = view_of(catalog("a", prompts=("review", "sum")), catalog("b", prompts=("review",)))
    assert [it["name"] for it in body(view, "prompts")["prompts"]] == ["a__review", "a__sum", "b__review"]
    found = view.resolve_prompt("mcp:b:review")
    assert isinstance(found, ViewPrompt)
    assert (found.key, found.prompt) == ("b", "review")
    assert view.resolve_prompt("review") == AmbiguousName(("a__review", "b__review"))
    assert isinstance(view.resolve("a__review"), NoSuchName), "no tool is called that"


def test_tools_deny_keeps_no_prompt_back_and_a_description_prefix_names_the_server() -> None:
    view = view_of(catalog("a", prompts=("p",)), tools_allow=(), tools_deny=("*",), description_prefix=True)
    assert body(view, "prompts")["prompts"] == [{"name": "a__p", "description": "[a] d"}]


def test_a_prompt_of_a_server_that_told_nothing_yet_is_worth_waiting_for() -> None:
    view = view_of(catalog("a", prompts=("p",)), servers="a b")
    assert view.possible_pools("b__p", "prompts") == ("b",)
    assert view.possible_pools("a__q", "prompts") == ()


def test_a_completion_goes_to_the_server_of_its_reference_in_that_servers_words() -> None:
    view = view_of(
        catalog("a", templates=("n://{id}",)), catalog("b", prompts=("p",), templates=("n://{id}", "m://{x}"))
    )

    def target(**ref: str) -> Any:
        return view.completion_target(RawJson(json.dumps(ref).encode()))

    prompt = target(type="ref/prompt", name="b__p", title="T")
    assert isinstance(prompt, CompletionTarget)
    assert (prompt.key, json.loads(prompt.ref)) == ("b", {"type": "ref/prompt", "name": "p", "title": "T"})
    rewritten = target(type="ref/resource", uri="carpool+b+n://{id}")
    assert (rewritten.key, json.loads(rewritten.ref)["uri"]) == ("b", "n://{id}")
    plain = RawJson(b'{"type":"ref/resource", "uri":"m://{x}"}')
    assert view.completion_target(plain) == CompletionTarget(PoolKey("b"), ServerName("b"), plain)
    assert target(type="ref/resource", uri="m://7").key == "b"
    assert isinstance(target(type="ref/prompt", name="nothing"), NoSuchName)
    assert isinstance(target(type="ref/resource", uri="z://"), UnroutableUri)
    for bad in (
        b"{}",
        b"[]",
        b'"ref/prompt"',
        b'{"type":"ref/prompt"}',
        b'{"type":"ref/resource","uri":1}',
        b"",
    ):
        assert isinstance(view.completion_target(RawJson(bad)), BadReference)


@behaviour("features:announced")
def test_a_view_announces_capabilities_of_its_servers_and_list_changes_of_lists_that_exist() -> None:
    view = view_of(
        catalog("a", features=("prompts", "completions")), catalog("b", features=("resources.subscribe",))
    )
    assert view.capabilities() == {"prompts", "prompts.listChanged", "completions", "resources.subscribe"}
    offering = view_of(catalog("a", resources=("x://1",)))
    assert offering.capabilities() == {"resources", "resources.listChanged"}, "listed, if not announced"


@behaviour("features:announced")
def test_a_server_that_told_nothing_yet_may_serve_any_list() -> None:
    lists = {family + flag for family in ("tools", "prompts", "resources") for flag in ("", ".listChanged")}
    lists |= {"completions", "logging", "resources.subscribe"}
    assert view_of(catalog("a", features=("logging",)), servers="a b").capabilities() == lists
    assert Registry(no_effect).retain_scope(Scope(())).capabilities() == lists


def test_a_server_that_is_away_still_counts_for_what_is_announced() -> None:
    registry = Registry(no_effect)
    scope = Scope((ScopeEntry(server=ServerName("a"), key=PoolKey("a")),))
    registry.catalog_received(catalog("a", features=("prompts",)))
    registry.hide_pool(PoolKey("a"))
    assert "prompts" in registry.retain_scope(scope).capabilities()


def test_a_change_of_prompts_alone_leaves_the_other_lists_and_tables_as_they_were() -> None:
    registry = Registry(no_effect)
    scope = Scope((ScopeEntry(server=ServerName("a"), key=PoolKey("a")),))
    registry.catalog_received(catalog("a", prompts=("p",), resources=("x://1",)))
    before = registry.retain_scope(scope)
    assert registry.catalog_received(catalog("a", prompts=("q",), resources=("x://1",))) == {
        scope: {"prompts"}
    }
    after = registry.view(scope)
    assert after.page("resources", None) is before.page("resources", None)
    assert after.tool_names is before.tool_names
    assert after.uris is before.uris
    assert after.version("prompts") > before.version("prompts")


def test_a_server_that_begins_to_serve_resources_can_be_read_from_without_listing_any() -> None:
    registry = Registry(no_effect)
    scope = Scope((ScopeEntry(server=ServerName("a"), key=PoolKey("a")),))
    registry.catalog_received(catalog("a"))
    assert isinstance(registry.retain_scope(scope).route("x://1"), UnroutableUri)
    assert registry.catalog_received(catalog("a", features=("resources",))) == {}
    assert isinstance(registry.view(scope).route("x://1"), UriRoute)
