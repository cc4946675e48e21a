"""Rights to resources: what a restricted profile reads, watches and completes, in every spelling of a URI."""

import json
from typing import Any

import pytest

from carpool_broker.core.registry.registry import Registry
from carpool_broker.core.registry.request_target import NoTarget, Target, find_target, is_still_allowed
from carpool_broker.core.registry.view import View
from carpool_protocol.ids import PoolKey, ServerName
from tests.behaviours import behaviour
from tests.broker.core.configuration.test_profiles import catalog, frame
from tests.kit.broker_rig import no_effect

SECRET = {
    "note://internal/secret": [
        "note://internal/secret",
        "note://x/secret",
        "note:///secret",
        "note:/secret",
        "note:secret",
        "note://user@internal/secret",
        "note://user:word@internal/secret",
        "note://internal:1/secret",
        "note://internal:/secret",
        "note://internal./secret",
        "NOTE://INTERNAL/secret",
        "note://internal//secret",
        "note://internal/%73ecret",
        "note://internal/%2573ecret",
        "note://internal\\secret",
        "note://internal/secret/",
        "note://internal/secret?x",
        "note://internal/secret#x",
        "note://internal/secret?x}",
        "note://internal/secret%00",
        "note://public/../internal/secret",
        "note://public/..%2fsecret",
        "note://public//internal/secret",
        "note://public/internal%2Fsecret",
    ],
    "file:///etc/shadow": [
        "file:///etc/shadow",
        "file://x/etc/shadow",
        "file://localhost/etc/shadow",
        "file://localhost:1/etc/shadow",
        "file://127.0.0.1/etc/shadow",
        "file:/etc/shadow",
        "file:etc/shadow",
        "file:////etc//shadow",
        "file:///pub/../etc/shadow",
        "file:///pub/%2e%2e/etc/shadow",
    ],
    "https://intranet.example/a": [
        "https://intranet.example/a",
        "https://intranet.example:443/a",
        "https://intranet.example:0443/a",
        "https://me@intranet.example/a",
        "https://me:word@intranet.example:443/a",
        "https://intranet.example./a",
        "https:/intranet.example/a",
        "https:intranet.example/a",
        "https:\\\\intranet.example/a",
        "HTTPS://Intranet.Example/a",
        "https://intranet.example:8443/a",
        "https://\uff49ntranet.example/a",
        "http://intranet.example/a",
    ],
}
"""A resource that is kept back: spellings in which some server reads the same one."""

LISTS = {
    "uris": "note://internal/secret note://public/open file:///etc/shadow file:///pub/open "
    "https://intranet.example/a https://public.example/open",
    "templates": "note://public/{name} file:///pub/{+path} https://public.example/{name}",
}
RESTRICTED: list[dict[str, Any]] = [
    {
        "allow": [
            f"resource:notes:{each}"
            for each in ("note://public/*", "file:///pub/*", "https://public.example/*")
        ]
    },
    {"deny": [f"resource:notes:{each}" for each in SECRET]},
    {
        "allow": ["mcp:notes"],
        "deny": [
            "resource:*:NOTE://INTERNAL/*",
            "resource:notes:file:///etc/*",
            "resource:n*:https://Me@Intranet.example:443/*",
        ],
    },
]


def view(profile: dict[str, Any], *, alone: bool, templates: str = LISTS["templates"]) -> View:
    servers = {"notes": {"command": "x"}} | ({} if alone else {"web": {"command": "y"}})
    registry = Registry(no_effect)
    registry.catalog_received(catalog("notes", "t", "", LISTS["uris"], templates))
    registry.catalog_received(catalog("web", "t", "", "web://x", "web://{+path}"))
    found = registry.retain_scope(frame(servers, **profile))
    registry.check()
    return found


def complete(uri: str) -> str:
    return json.dumps({"type": "ref/resource", "uri": uri})


@behaviour("profiles:uris", "profiles:listed")
@pytest.mark.parametrize("alone", [True, False])
@pytest.mark.parametrize("profile", RESTRICTED)
@pytest.mark.parametrize("uri", [each for several in SECRET.values() for each in several])
def test_no_spelling_of_a_resource_that_is_kept_back_leads_to_it(
    uri: str, profile: dict[str, Any], alone: bool
) -> None:
    seen = view(profile, alone=alone)
    for each in (uri, f"carpool+notes+{uri}", f"CARPOOL+Notes+{uri}"):
        for method, subject in (("resources/read", each), ("completion/complete", complete(each))):
            found = find_target(seen, method, subject)
            assert isinstance(found, NoTarget), f"{each} leads to {found}"
            assert found.fault in {"not_permitted", "unknown_resource"}
    entry = seen.scope.entry_of(ServerName("notes"))
    assert entry is not None
    assert not seen.still_readable(entry, uri), "its changes are not told either"
    assert not is_still_allowed(seen, "resources/read", ServerName("notes"), uri)


@behaviour("profiles:listed")
@pytest.mark.parametrize("profile", RESTRICTED)
@pytest.mark.parametrize(
    ("uri", "own"),
    [
        ("note://public/open", "note://public/open"),
        ("NOTE://me@Public//open", "note://public/open"),
        ("https://PUBLIC.example:443/open", "https://public.example/open"),
        ("file://localhost/pub/open", "file:///pub/open"),
        ("note://public/a%20b", "note://public/a%20b"),
        ("file:///pub/a/b", "file:///pub/a/b"),
        ("https://Public.Example/b", "https://Public.Example/b"),
        ("carpool+notes+note://public/c", "note://public/c"),
    ],
)
def test_a_permitted_and_listed_uri_is_read_under_the_servers_own_spelling(
    uri: str, own: str, profile: dict[str, Any]
) -> None:
    for alone in (True, False):
        found = find_target(view(profile, alone=alone), "resources/read", uri)
        assert isinstance(found, Target), uri
        assert (found.server, found.subject) == ("notes", own)


@behaviour("profiles:listed")
@pytest.mark.parametrize("profile", RESTRICTED)
@pytest.mark.parametrize(
    "uri",
    [
        "note://public/a/b",
        "note://other/open",
        "memo://x",
        "note://public:1/open",
        "note:",
        "note://me@public/b",
        "https://public.example:443/b",
        "file://localhost/pub/b",
        "note:%2f/public/b",
    ],
)
def test_an_unlisted_uri_is_refused_even_if_a_pattern_covers_it(uri: str, profile: dict[str, Any]) -> None:
    found = find_target(view(profile, alone=True), "resources/read", uri)
    assert isinstance(found, NoTarget), uri


@behaviour("profiles:listed")
def test_a_profile_that_keeps_no_resource_of_a_server_back_reads_what_is_not_listed() -> None:
    for profile in (
        {"allow": ["mcp:notes"], "deny": ["mcp:notes:t", "resource:web:*"]},
        {"allow": ["resource:*:*"]},
    ):
        found = find_target(view(profile, alone=True), "resources/read", "note://x/secret")
        assert isinstance(found, Target)


@behaviour("profiles:listed")
def test_a_template_with_a_free_authority_is_not_there_where_something_is_denied() -> None:
    templates = "note://{id} file://{+path} {+any} note://{host}/{name} note:{x}"
    denying = view({"deny": ["resource:notes:note://internal/secret"]}, alone=True, templates=templates)
    assert denying.templates == ()
    for uri in ("note://7", "note://x/secret", "file://x/etc/shadow", "note:secret"):
        assert isinstance(find_target(denying, "resources/read", uri), NoTarget)
    allowing = view({"allow": ["resource:notes:note://[{7]*"]}, alone=True, templates="note://{id}")
    assert isinstance(find_target(allowing, "resources/read", "note://7"), Target)
    assert isinstance(find_target(allowing, "resources/read", "note://8"), NoTarget)


@behaviour("profiles:listed")
def test_a_server_that_has_not_told_its_list_is_waited_for_before_it_is_refused() -> None:
    registry = Registry(no_effect)
    seen = registry.retain_scope(frame({"notes": {"command": "x"}}, allow=["resource:notes:note://public/*"]))
    found = find_target(seen, "resources/read", "carpool+notes+note://public/open")
    assert isinstance(found, NoTarget)
    assert found.suspects == (PoolKey("notes"),)


# --- completions --------------------------------------------------------------------------------------------


@behaviour("profiles:completions")
@pytest.mark.parametrize(
    ("profile", "template", "completed"),
    [
        ({"allow": ["mcp:notes"]}, "note://public/{name}", True),
        ({"allow": ["resource:notes:note://public/*"]}, "note://public/{name}", True),
        ({"allow": ["resource:notes:note://public/*"]}, "note://public/{space}/{name}", True),
        (
            {"allow": ["resource:notes:*"], "deny": ["resource:notes:note://internal/*"]},
            "note://public/{name}",
            True,
        ),
        (
            {"allow": ["resource:notes:*"], "deny": ["resource:notes:note://public/s*"]},
            "note://public/{name}",
            False,
        ),
        ({"allow": ["resource:notes:*"], "deny": ["resource:notes:*secret"]}, "note://public/{name}", False),
        ({"allow": ["resource:notes:note://public/[{a]*"]}, "note://public/{name}", False),
        ({"allow": ["resource:notes:note://public/{name}"]}, "note://public/{name}", False),
        ({"allow": ["resource:notes:note://*/{name}"]}, "note://public/{name}", False),
        ({"deny": ["resource:notes:NOTE://Public/a"]}, "note://public/{+name}", False),
        ({"deny": ["resource:web:*"]}, "note://public/{name}", True),
    ],
)
def test_a_template_is_completed_only_where_everything_it_expands_to_is_permitted(
    profile: dict[str, Any], template: str, completed: bool
) -> None:
    seen = view(profile, alone=True, templates=template)
    assert [it.uri for it in seen.templates] == [template]
    found = find_target(seen, "completion/complete", complete(template))
    assert isinstance(found, Target) is completed
    if not completed:
        assert isinstance(found, NoTarget)
        assert found.fault == "not_permitted"
    assert is_still_allowed(seen, "completion/complete", ServerName("notes"), complete(template)) is completed
