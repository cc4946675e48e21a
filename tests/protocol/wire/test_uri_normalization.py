"""Normal forms of URIs and of patterns over them; URIs that climb."""

from fnmatch import fnmatchcase

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from carpool_protocol.wire.uri_normalization import (
    MAX_CHARS,
    authority,
    climbs,
    normalize,
    normalize_pattern,
    scheme,
    with_plain_head,
    without_query,
)

SAME = {
    "file:///secret/key": [
        "FILE:///secret/key",
        "file:/secret/key",
        "file:secret/key",
        "file:////secret//key",
        "file:///./secret/./key",
        "file://localhost/secret/key",
        "file://LOCALHOST/secret/key",
        "file://me@localhost/secret/key",
        "file:///%73ecret/key",
        "file:///%2573ecret/key",
        "file:///secret%2Fkey",
        "file:///secret\\key",
        "file:///secret/key%00.txt",
        "file:///sec\tret/key\n",
        " file:///secret/key ",
    ],
    "https://intranet.example/a": [
        "HTTPS://Intranet.Example/a",
        "https://intranet.example:443/a",
        "https://intranet.example:0443/a",
        "https://intranet.example:/a",
        "https://intranet.example./a",
        "https://me@intranet.example/a",
        "https://me:word@intranet.example:443/a",
        "https:/intranet.example/a",
        "https:///intranet.example/a",
        "https:\\\\intranet.example\\a",
        "https://intranet%2eexample/a",
    ],
    "https://xn--bcher-kva.example/a": [
        "https://B\u00dcCHER.example/a",
        "https://b\u00fccher\u3002example/a",
    ],
    "https://intranet.example/": ["https://intranet.example", "https://intranet.example/."],
    "note://internal/secret": [
        "NOTE://Internal/secret",
        "note://user@internal/secret",
        "note://internal//secret",
        "note://internal/./secret",
    ],
    "note:secret": ["NOTE:secret", "note:%73ecret"],
    "file:///secret/": ["file:///secret/.", "file:///secret//"],
}


@pytest.mark.parametrize(("normal", "spelling"), [(it, each) for it in SAME for each in [it, *SAME[it]]])
def test_one_resource_has_one_normal_form_however_it_is_spelled(normal: str, spelling: str) -> None:
    assert normalize(spelling) == normal
    assert not climbs(spelling)
    assert authority(spelling) == authority(normal)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("note://internal/secret", "note://x/secret"),
        ("note://internal/secret", "note:///secret"),
        ("note://internal/secret", "note://internal:1/secret"),
        ("file:///etc/shadow", "file://x/etc/shadow"),
        ("https://intranet.example/a", "https://intranet.example:8443/a"),
        ("https://intranet.example/a", "http://intranet.example/a"),
        ("https://intranet.example/a?id=1", "https://intranet.example/a?id=2"),
        ("file:///a/b", "file:///A/b"),
    ],
)
def test_what_may_be_another_resource_has_another_normal_form(one: str, other: str) -> None:
    assert normalize(one) != normalize(other)


def test_queries_and_fragments_stay_and_can_be_left_out() -> None:
    assert normalize("note://a//b?x=//1#there") == "note://a/b?x=//1#there"
    assert without_query("note://a/b/?x=1") == ("note://a/b/?x=1", "note://a/b/", "note://a/b")


@pytest.mark.parametrize(
    ("uri", "found"),
    [
        ("NOTE://me@Internal:1/a", "note://internal:1"),
        ("note:///a", "note://"),
        ("note:a/b", "note:"),
        ("note:/a", "note:"),
        ("file:/a", "file://"),
        ("a/b", ""),
    ],
)
def test_an_authority_is_told_with_its_scheme(uri: str, found: str) -> None:
    assert authority(uri) == found
    assert authority(normalize(uri)) == found


def test_a_scheme_is_what_stands_before_the_first_colon() -> None:
    assert [scheme(each) for each in ("File:///a", "note:a", "{+any}", "a/b:c", "")] == [
        "file:",
        "note:",
        "",
        "",
        "",
    ]
    assert with_plain_head("NOTE://Me@Internal/A") == "note://me@internal/A"
    assert with_plain_head("NOTE:Abc") == "note:Abc"


@pytest.mark.parametrize(
    ("pattern", "normal"),
    [
        ("HTTPS://Intranet:443/*", "https://intranet/*"),
        ("https://me@intranet/*", "https://intranet/*"),
        ("https://*", "https://*"),
        ("https:*", "https:*"),
        ("file:*", "file:*"),
        ("FILE://localhost/Secret//*", "file:///Secret/*"),
        ("note://*.Example/%73ecret", "note://*.example/secret"),
        ("*://Internal/*", "*://internal/*"),
        ("*Secret", "*Secret"),
        ("note://a/100%25", "note://a/100%"),
        ("note://a/%2A", "note://a/[*]"),
        ("note://a/%C3%A9", "note://a/\u00e9"),
        ("*", "*"),
    ],
)
def test_a_pattern_is_brought_into_the_same_form_and_keeps_its_wildcards(pattern: str, normal: str) -> None:
    assert normalize_pattern(pattern) == normal
    assert normalize_pattern(normal) == normal


@pytest.mark.parametrize(
    "uri",
    [
        "file:///public/../secret",
        "file:///public/..",
        "file:///public/%2e%2e/secret",
        "file:///public/.%2E/secret",
        "file:///public/%252e%252e/secret",
        "file:///public/..\\secret",
        "file:///public/..%5csecret",
        "file:///public/..%2fsecret",
        "file:///public/.\t./secret",
        "file:///public/..;x/secret",
        "file:///public/..%00",
        "note://../secret",
        "note:../secret",
        "../secret",
        "file:///public/%" + "25" * 20 + "2e./secret",
        "file:///" + "a" * MAX_CHARS,
    ],
)
def test_a_uri_that_climbs_is_known_in_every_spelling(uri: str) -> None:
    assert climbs(uri)


@pytest.mark.parametrize(
    "uri", ["file:///a/..b", "file:///a/b..", "file:///a/...", "file:///a/.b", "file:///v1..v2", "note://a.."]
)
def test_dots_in_names_do_not_climb(uri: str) -> None:
    assert not climbs(uri)


TEXTS = st.text(alphabet="aA%2e5cf./\\:?#;@[]*\t\0 \u00e9\u00df", max_size=40)


@given(
    TEXTS
    | st.builds(
        "{}:{}{}".format, st.sampled_from(["file", "HTTPS", "note"]), st.sampled_from(["", "//"]), TEXTS
    )
)
def test_a_normal_form_is_its_own_normal_form(uri: str) -> None:
    found = normalize(uri)
    assert normalize(found) == found
    assert authority(found) == authority(uri)


@given(st.text(alphabet="aA/.:@%41", max_size=20).map("note://a/{}".format))
@example("note://a/%11")
@example("note://a/%0941%00b")
def test_a_uri_as_a_pattern_covers_itself(uri: str) -> None:
    assert fnmatchcase(normalize(uri), normalize_pattern(uri))
