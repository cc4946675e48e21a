"""Which server a request goes to, and how its answer is written for one agent."""

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from carpool_broker.core.model.scope import Scope, ScopeEntry
from carpool_broker.core.registry.answer_rewrites import needs_rewrite, rewrite_answer
from carpool_broker.core.registry.registry import Registry
from carpool_broker.core.registry.request_target import NoTarget, Target, find_target, with_similar_names
from carpool_broker.core.registry.view import View
from carpool_protocol.faults.kinds import KINDS
from carpool_protocol.ids import EMPTY_OBJECT, PoolKey, RawJson, ServerName
from carpool_protocol.link.messages import Catalog, Feature, Offer, ResourceOffer
from carpool_protocol.wire.content import TooManyPartsError
from tests.behaviours import behaviour
from tests.kit.broker_rig import no_effect

NEW, OLD = "2025-11-25", "2024-11-05"
METHODS = ["tools/call", "prompts/get", "resources/read", "completion/complete"]


def catalog(
    key: str,
    tools: str = "",
    prompts: str = "",
    resources: str = "",
    templates: str = "",
    *,
    features: tuple[Feature, ...] = ("resources",),
) -> Catalog:
    return Catalog(
        PoolKey(f"k:{key}"),
        [Offer(name, RawJson(json.dumps({"name": name}).encode())) for name in tools.split()],
        "",
        EMPTY_OBJECT,
        EMPTY_OBJECT,
        "",
        [Offer(name, RawJson(json.dumps({"name": name}).encode())) for name in prompts.split()],
        [ResourceOffer(uri, RawJson(json.dumps({"uri": uri}).encode())) for uri in resources.split()],
        [ResourceOffer(uri, RawJson(json.dumps({"uriTemplate": uri}).encode())) for uri in templates.split()],
        list(features),
    )


def view(*catalogs: Catalog, unknown: str = "", hidden: str = "", **rest: Any) -> View:
    """Servers named as their catalogs' keys; `unknown`: more that told nothing yet."""
    registry = Registry(no_effect)
    for it in catalogs:
        registry.catalog_received(it)
    for name in hidden.split():
        registry.hide_pool(PoolKey(f"k:{name}"))
    names = [*(it.key[2:] for it in catalogs), *unknown.split()]
    entries = tuple(ScopeEntry(server=ServerName(it), key=PoolKey(f"k:{it}"), **rest) for it in names)
    return registry.retain_scope(Scope(entries))


def target(seen: View, method: str, subject: str) -> Target:
    found = find_target(seen, method, subject)
    assert isinstance(found, Target), found
    return found


def none(seen: View, method: str, subject: str) -> NoTarget:
    found = find_target(seen, method, subject)
    assert isinstance(found, NoTarget), found
    return found


def ref(kind: str, **fields: str) -> str:
    return json.dumps({"type": f"ref/{kind}", **fields})


def test_a_bare_name_is_not_settled_while_a_server_that_may_have_it_too_is_unknown() -> None:
    for method in ("tools/call", "prompts/get"):
        known = catalog("a", tools="x", prompts="x")
        assert not target(view(known, unknown="b"), method, "x").final
        assert target(view(known, unknown="b"), method, "a__x").final
        assert target(view(known), method, "x").final


# --- tools and prompts -----------------------------------------------------------------------------------


def test_tools_and_prompts_of_one_name_are_two_things() -> None:
    seen = view(catalog("a", tools="x"), catalog("b", prompts="x"))
    assert target(seen, "tools/call", "x") == Target(ServerName("a"), PoolKey("k:a"), "x")
    assert target(seen, "prompts/get", "x") == Target(ServerName("b"), PoolKey("k:b"), "x")
    assert none(seen, "prompts/get", "a__x").fault == "unknown_prompt"
    assert none(seen, "tools/call", "b__x").fault == "unknown_tool"


@pytest.mark.parametrize(
    ("method", "slug"), [("tools/call", "unknown_tool"), ("prompts/get", "unknown_prompt")]
)
def test_a_name_that_two_servers_have_is_refused_with_both(method: str, slug: str) -> None:
    seen = view(catalog("a", "x", "x"), catalog("b", "x", "x"))
    found = none(seen, method, "x")
    assert (found.fault, found.suspects) == (slug, ())
    assert "a__x, b__x" in found.detail


@pytest.mark.parametrize("method", ["tools/call", "prompts/get"])
def test_a_name_nearly_right_is_refused_with_the_right_one(method: str) -> None:
    seen = view(catalog("alpha", "search", "search"))
    found = none(seen, method, "alpha__serach")
    assert not found.detail, "similar names are searched only where they are told"
    assert "alpha__search" in with_similar_names(seen, method, found)


def test_a_tool_that_is_kept_back_says_so_and_a_prompt_never_is() -> None:
    seen = view(catalog("a", "x", "x"), tools_deny=("x",))
    found = none(seen, "tools/call", "a__x")
    assert (found.fault, found.server, found.subject) == ("not_permitted", "a", "x")
    assert target(seen, "prompts/get", "a__x").subject == "x"


@pytest.mark.parametrize("method", ["tools/call", "prompts/get"])
def test_only_servers_whose_name_is_at_its_head_are_suspects_of_an_unknown_name(method: str) -> None:
    seen = view(catalog("a", "x", "x"), unknown="b c")
    assert none(seen, method, "b__x").suspects == ("k:b",)
    assert none(seen, method, "a__y").suspects == ()


def test_names_in_the_catalog_of_a_hidden_server_still_lead_to_it() -> None:
    seen = view(catalog("a", "x", "x", "a:x", "a:{y}"), hidden="a")
    for method, subject in (
        ("tools/call", "a__x"),
        ("prompts/get", "a__x"),
        ("resources/read", "a:x"),
        ("completion/complete", ref("prompt", name="a__x")),
        ("completion/complete", ref("resource", uri="a:{y}")),
    ):
        assert target(seen, method, subject).key == "k:a"


# --- resources -------------------------------------------------------------------------------------------


def test_only_a_listed_or_a_named_uri_is_final() -> None:
    seen = view(catalog("a", resources="f:///x s://d", templates="t://{p}"), catalog("b", resources="s://d"))
    finals = {
        "f:///x": ("a", "f:///x", True),
        "carpool+a+s://d": ("a", "s://d", True),
        "carpool+b+s://d": ("b", "s://d", True),
        "carpool+b+never://listed": ("b", "never://listed", True),
        "t://anything": ("a", "t://anything", False),
        "f:///x/below": ("a", "f:///x/below", False),
        "F:///x": ("a", "F:///x", False),
    }
    for uri, (server, own, final) in finals.items():
        assert target(seen, "resources/read", uri) == Target(
            ServerName(server), PoolKey(f"k:{server}"), own, final
        )


def test_the_only_server_of_resources_gets_every_uri() -> None:
    seen = view(catalog("a", features=()), catalog("b"))
    found = target(seen, "resources/read", "what://ever")
    assert (found.server, found.final) == ("b", False)


def test_a_uri_that_several_list_is_refused_with_that_reason() -> None:
    both = view(catalog("a", resources="f:///x"), catalog("b", resources="f:///x"))
    found = none(both, "resources/read", "f:///x")
    assert (found.fault, found.detail) == (
        "unknown_resource",
        "More than one server lists it; put one of these before it: carpool+a+, carpool+b+.",
    )


def test_a_uri_that_several_may_have_and_nobody_lists_is_refused_with_all_of_them() -> None:
    found = none(view(catalog("a"), catalog("b"), unknown="z y"), "resources/read", "what://ever")
    assert (found.fault, found.suspects) == ("unknown_resource", ("k:y", "k:z"))
    assert found.detail.endswith("put one of these before it: carpool+a+, carpool+b+.")
    found = none(
        view(catalog("a", resources="s://d"), catalog("b", resources="s://d")), "resources/read", "s://d"
    )
    assert found.detail.endswith("carpool+a+, carpool+b+.")
    assert none(view(catalog("a", features=())), "resources/read", "x:y").detail == ""


# --- completions -----------------------------------------------------------------------------------------


@behaviour("completion:routed")
def test_a_completion_goes_where_its_reference_leads_in_the_servers_own_words() -> None:
    seen = view(catalog("a", prompts="p", templates="t://{x}"), catalog("b", templates="t://{x}"))
    found = target(seen, "completion/complete", '{"name":"mcp__a__p", "type":"ref/prompt","title":1.0}')
    assert (found.server, json.loads(found.subject)) == (
        "a",
        {"type": "ref/prompt", "name": "p", "title": 1.0},
    )
    assert '"title":1.0' in found.subject
    found = target(seen, "completion/complete", ref("resource", uri="carpool+b+t://{x}"))
    assert (found.server, json.loads(found.subject)["uri"]) == ("b", "t://{x}")
    assert none(seen, "completion/complete", ref("resource", uri="t://{x}")).fault == "unknown_resource"
    own = ref("resource", uri="t://{x}")
    alone = view(catalog("a", templates="t://{x}"))
    assert target(alone, "completion/complete", own).subject == own


@pytest.mark.parametrize(
    ("subject", "slug"),
    [
        ("{}", "bad_params"),
        ('{"type":"ref/tool","name":"p"}', "bad_params"),
        ('{"type":"ref/prompt"}', "bad_params"),
        ('{"type":"ref/resource","name":"p"}', "bad_params"),
        (ref("prompt", name="nobody"), "unknown_prompt"),
        (ref("prompt", name="p"), "unknown_prompt"),
        (ref("resource", uri="what://ever"), "unknown_resource"),
    ],
)
def test_a_reference_that_leads_nowhere_is_refused(subject: str, slug: str) -> None:
    seen = view(catalog("a", prompts="p"), catalog("b", prompts="p"))
    assert none(seen, "completion/complete", subject).fault == slug


def test_a_template_that_is_not_listed_yet_may_belong_to_a_server_that_told_nothing_yet() -> None:
    seen = view(catalog("a", templates="t://{x}"), unknown="b")
    assert target(seen, "completion/complete", ref("resource", uri="t://{x}")).final
    assert not target(seen, "completion/complete", ref("resource", uri="other://{x}")).final


@settings(deadline=None, max_examples=200)
@given(
    st.sampled_from(METHODS),
    st.text(max_size=30) | st.builds(ref, st.text(max_size=9), uri=st.text(), name=st.text()),
)
def test_no_subject_raises_and_every_refusal_is_a_known_one(method: str, subject: str) -> None:
    for seen in (
        SEVERAL,
        view(unknown="c"),
    ):
        found = find_target(seen, method, subject)
        assert isinstance(found, Target) or found.fault in KINDS


SEVERAL = view(catalog("a", "x", "x", "a:x", "a:{y}"), catalog("b", "x", "x", "a:x"), unknown="c")


# --- outward ---------------------------------------------------------------------------------------------

BLOCKS = [
    {"type": "audio", "data": "AAAA", "mimeType": "audio/wav"},
    {"type": "resource_link", "uri": "s://d", "name": "n"},
    {"type": "resource", "resource": {"uri": "s://d", "text": "s://d"}},
]
COLLIDING = view(catalog("a", resources="s://d"), catalog("b", resources="s://d b://own"))
ALONE = view(catalog("a", resources="s://d"))


def body(value: Any) -> RawJson:
    return RawJson(json.dumps(value).encode())


@behaviour("resources:rewritten-on-collision", "downgrade:content")
def test_an_answer_is_changed_only_for_old_agents_and_where_uris_collide() -> None:
    assert not needs_rewrite(ALONE, PoolKey("k:a"), NEW)
    assert needs_rewrite(COLLIDING, PoolKey("k:a"), NEW)
    assert needs_rewrite(COLLIDING, PoolKey("k:b"), NEW)
    assert needs_rewrite(ALONE, PoolKey("k:a"), OLD)


@pytest.mark.parametrize("method", METHODS)
def test_an_answer_without_a_rewrite_is_the_very_same_object(method: str) -> None:
    answer = body({"contents": [{"uri": "s://d"}], "content": BLOCKS, "messages": []})
    assert rewrite_answer(ALONE, PoolKey("k:a"), method, NEW, answer) is answer
    for version in (OLD, NEW):
        other = body({"contents": [{"uri": "b://own", "text": "t"}], "completion": {"values": ["uri"]}})
        assert rewrite_answer(COLLIDING, PoolKey("k:b"), method, version, other) is other


def test_a_link_in_words_has_the_uri_that_leads_back() -> None:
    for method, answer in (
        ("tools/call", {"content": BLOCKS}),
        ("prompts/get", {"messages": [{"role": "user", "content": block} for block in BLOCKS]}),
    ):
        said = json.loads(rewrite_answer(COLLIDING, PoolKey("k:b"), method, OLD, body(answer)))
        blocks = said.get("content") or [message["content"] for message in said["messages"]]
        assert [block["type"] for block in blocks] == ["text", "text", "resource"]
        assert "carpool+b+s://d" in blocks[1]["text"]
        shown = blocks[2]["resource"]["uri"]
        assert shown == "carpool+b+s://d"
        assert blocks[2]["resource"]["text"] == "s://d", "a server's own words stay"
        assert target(COLLIDING, "resources/read", shown).server == "b"


@behaviour("resources:rewritten-on-collision")
def test_a_read_resource_has_the_uri_of_the_agents_view() -> None:
    answer = body({"contents": [{"uri": "s://d", "text": "x"}, {"uri": "b://own", "blob": ""}]})
    said = json.loads(rewrite_answer(COLLIDING, PoolKey("k:b"), "resources/read", NEW, answer))
    assert [each["uri"] for each in said["contents"]] == ["carpool+b+s://d", "b://own"]


@settings(deadline=None, max_examples=150)
@given(st.sampled_from(METHODS), st.sampled_from([OLD, "2025-03-26", NEW]), st.binary(max_size=60))
def test_an_answer_raises_nothing_but_that_it_cannot_be_changed(
    method: str, version: str, tail: bytes
) -> None:
    for raw in (tail, b'{"contents":[{"uri":' + tail, b'{"content":[{"type":"audio"},"uri",' + tail):
        with suppress(TooManyPartsError):
            rewrite_answer(COLLIDING, PoolKey("k:b"), method, version, RawJson(raw))
