"""Rights: what is allowed and not denied, and which servers are there at all."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carpool_broker.core.model.compiled_profile import ALL_RIGHTS, NO_RIGHTS, Rights
from carpool_protocol.config.schema.capability import KINDS, capability
from tests.behaviours import behaviour

PARTS = ("*", "a", "b", "a*", "?")
PATTERNS = st.one_of(
    st.just("*"),
    st.sampled_from(PARTS).map("mcp:{}".format),
    st.sampled_from(PARTS).map("tag:{}".format),
    st.builds(
        "{}:{}:{}".format, st.sampled_from(("mcp", "prompt", "resource")), *[st.sampled_from(PARTS)] * 2
    ),
)
RIGHTS = st.builds(
    Rights,
    st.lists(PATTERNS.map(capability), max_size=3).map(tuple),
    st.lists(PATTERNS.map(capability), max_size=3).map(tuple),
)


def rights(allow: list[str], deny: list[str] | None = None) -> Rights:
    return Rights(tuple(map(capability, allow)), tuple(map(capability, deny or [])))


@behaviour("profiles:patterns")
def test_deny_is_stronger_than_allow_and_an_unlisted_name_is_not_permitted() -> None:
    found = rights(["mcp:git:*", "prompt:git:a"], ["mcp:git:push*"])
    assert found.permits("tool", "git", (), "log")
    assert not found.permits("tool", "git", (), "push_all")
    assert not found.permits("tool", "hub", (), "log")
    assert found.permits("prompt", "git", (), "a")
    assert not found.permits("prompt", "git", (), "b")
    assert not found.permits("resource", "git", (), "a")


@pytest.mark.parametrize(
    ("found", "seen"),
    [
        (ALL_RIGHTS, True),
        (NO_RIGHTS, False),
        (rights(["mcp:git:log"]), True),
        (rights(["mcp:hub"]), False),
        (rights(["mcp:git:*"], ["mcp:git:*"]), False),
        (rights(["*"], ["mcp:git:*"]), True),  # its prompts are left
        (rights(["*"], ["mcp:git"]), False),
        (rights(["tag:code"]), True),
        (rights(["*"], ["tag:code"]), False),
    ],
)
def test_a_server_of_which_nothing_can_be_permitted_is_not_there(found: Rights, seen: bool) -> None:
    assert found.sees_server("git", ("code",)) is seen


@given(RIGHTS, st.sampled_from(("a", "b", "ab")), st.sampled_from(((), ("a",))), st.sampled_from(("a", "b")))
def test_a_server_is_there_where_anything_of_it_is_permitted(
    found: Rights, server: str, tags: tuple[str, ...], name: str
) -> None:
    for kind in KINDS:
        if found.permits(kind, server, tags, name):
            assert found.may_permit(kind, server, tags)
            assert found.sees_server(server, tags)
    if found.are_all:
        assert all(found.permits(kind, server, tags, name) for kind in KINDS)


@behaviour("profiles:uris")
@pytest.mark.parametrize("climbing", ["..", "%2e%2e", "%252E.", "..\\x\\.."])
def test_a_uri_leads_out_of_no_directory_that_is_allowed_or_denied(climbing: str) -> None:
    uri = f"file:///public/{climbing}/secret/key"
    assert not rights(["resource:fs:file:///public/*"]).permits("resource", "fs", (), uri)
    assert not rights(["*"], ["resource:fs:file:///secret/*"]).permits("resource", "fs", (), uri)
    assert not rights(["*"], ["resource:fs:file:///other"]).permits("resource", "fs", (), uri)
    assert rights(["mcp:fs"], ["mcp:fs:write", "resource:git:*"]).permits("resource", "fs", (), uri)
    assert rights(["resource:*:*"]).permits("resource", "fs", (), uri)


@behaviour("profiles:uris")
@pytest.mark.parametrize(
    "uri",
    [
        "FILE:///secret/key",
        "file:///%73ecret/key",
        "file://localhost/secret/key",
        "file:////secret//key",
        "file:///secret%2fkey",
        "file:///secret/key?x",
    ],
)
def test_a_denied_uri_is_denied_in_every_spelling(uri: str) -> None:
    for pattern in ("resource:fs:file:///secret/*", "resource:*:file:///secret/key"):
        assert not rights(["*"], [pattern]).permits("resource", "fs", (), uri)
        assert rights(["*"], [pattern]).permits(
            "resource", "fs", (), uri.replace("key", "").replace("ecret", "et")
        )
