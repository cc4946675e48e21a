"""Normal forms of URIs and of patterns over them; URIs that climb."""

from fnmatch import fnmatchcase

import pytest
from hypothesis import assume, example, given
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
from tests.kit.bytecodes import count_bytecodes

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
        "https://XN--bcher-KVA.example/a",
        "https://B\u00dcCHER.example/a",
        "https://bu\u0308cher.example/a",
        "https://b\u00fc\u00adcher.example/a",
        "https://b\u00fccher.example/a",
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
        ("https://strasse.de/a", "https://xn--strae-oqa.de/a"),
        ("https://xn--fa-hia.de/a", "https://fa\u00df.de/a"),
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
        ("https://*.XN--P1AI/*", "https://*.xn--p1ai/*"),
        ("https://*.\u0420\u0424:8080/*", "https://*.xn--p1ai:8080/*"),
        ("https://*\u3002%D1%80%D1%84/*", "https://*.xn--p1ai/*"),
        ("https://b\u00fccher.*/*", "https://xn--bcher-kva.*/*"),
        ("https://xn--*/*", "https://xn--*/*"),
        ("https://*.b\u00fc*/*", "https://*.b\u00fc*/*"),
        ("https://[\u00fc.\u00f6.\u00e4].\u00fc/*", "https://[\u00fc.\u00f6.\u00e4].xn--tda/*"),
        ("https://\uff0a/*", "https://[*]/*"),
        ("https://*.\uff0a/*", "https://*.[*]/*"),
        ("*", "*"),
    ],
)
def test_a_pattern_is_brought_into_the_same_form_and_keeps_its_wildcards(pattern: str, normal: str) -> None:
    assert normalize_pattern(pattern) == normal
    assert normalize_pattern(normal) == normal


RUSSIAN = [
    "https://evil.xn--p1ai/x",
    "https://www.evil.\u0440\u0444/x",
    "https://\u0437\u043b\u043e.xn--p1ai/x",
]
BOOKS = [
    "https://xn--bcher-kva.example/x",
    "https://B\u00fccher.example/x",
    "https://me@b\u00fccher.example:443/x",
]


@pytest.mark.parametrize(
    ("pattern", "covered", "other"),
    [
        ("https://*.xn--p1ai/*", RUSSIAN, BOOKS),
        ("https://*.\u0440\u0444/*", RUSSIAN, BOOKS),
        ("https://xn--bcher-kva.*/*", BOOKS, RUSSIAN),
        ("https://b\u00fccher.*/*", BOOKS, RUSSIAN),
        ("https://xn--bcher-kva.example/*", BOOKS, RUSSIAN),
        ("https://b\u00fccher.example/*", BOOKS, RUSSIAN),
        ("http*://b\u00fccher.example/*", BOOKS, RUSSIAN),
        ("https://xn--*/*", BOOKS, RUSSIAN[:2]),
        ("https://*xn--*/*", BOOKS + RUSSIAN, ["https://bucher.example/x"]),
        ("https://strasse.de/*", ["https://stra\u00dfe.de/x"], ["https://xn--strae-oqa.de/x"]),
    ],
)
def test_a_pattern_covers_an_internationalized_host_in_both_spellings(
    pattern: str, covered: list[str], other: list[str]
) -> None:
    normal = normalize_pattern(pattern)
    assert [uri for uri in covered + other if fnmatchcase(normalize(uri), normal)] == covered


def in_idna(label: str) -> str:
    """What the codec `idna` makes of a label; empty if it refuses it."""
    try:
        return label.lower().encode("idna").decode()
    except UnicodeError:
        return ""


WORDS = st.text(alphabet=st.characters(codec="utf-8", categories=["L", "M", "N"]), min_size=1, max_size=60)
SCRIPTS = st.text(
    alphabet="aZ-\u00dc\u00df\u03a3\u03c2\u0345\u0440\u0444\u200d\u0149\u1e9e\uff21", min_size=1, max_size=60
)


@given(WORDS | SCRIPTS)
@example("\u4e00" * 57)
@example("\u4e00" * 60)
@example("".join(map(chr, range(0x4E00, 0x4E32))))
@example("a" * 50 + "\u00fc")
def test_a_label_in_unicode_has_the_normal_form_of_its_encoded_spelling(label: str) -> None:
    encoded = in_idna(label)
    assume(encoded)
    assert normalize(f"note://{label}.x/") == normalize(f"note://{encoded}.x/") == f"note://{encoded}.x/"
    assert normalize_pattern(f"note://*.{label}/") == f"note://*.{encoded}/"


@given(st.text(alphabet="abcxyz0189-", max_size=59), st.text(alphabet="abcxyz0189-", max_size=59))
@example("strae-oqa", "strasse")
@example("bcher-kva", "bcher-kva-")
@example("-kva", "kva")
def test_two_encoded_labels_never_have_one_normal_form(one: str, other: str) -> None:
    assume(one != other)
    assert normalize(f"https://xn--{one}.x/") != normalize(f"https://xn--{other}.x/")


@pytest.mark.parametrize(
    "host",
    ["\u4e00" * 60 + ".x", "b\u00fccher." + "x" * 250, "\u00ad.x", "\uff58n--\u00fc.x"],
    ids=["label too long", "host too long", "nothing left of a label", "an encoded label in Unicode"],
)
def test_a_host_that_cannot_be_encoded_stays_in_unicode(host: str) -> None:
    assert normalize(f"note://{host}/a") == f"note://{host}/a"


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


@pytest.mark.parametrize(
    "host",
    [
        "\u00e9" * 200,
        "".join(chr(0x4E00 + 7 * at) for at in range(200)),
        "\ufdfa" * 250,
        ".".join("".join(chr(0x4E00 + at) for at in range(50)) for _ in range(4)),
        ".".join("".join(chr(0x4E00 + 7 * at) for at in range(62)) for _ in range(4)),
        ".".join("\u00fc" * 126),
        ".".join(["xn--" + "q" * 59] * 3),
        "xn--" + "9" * 240,
    ],
    ids=[
        "one letter",
        "many letters",
        "letters that become many",
        "long labels",
        "labels too long",
        "many labels",
        "encoded",
        "too long to be encoded",
    ],
)
def test_no_host_takes_long(host: str) -> None:
    """A server lists tens of thousands of URIs, so the price of each is bounded by its length."""
    uri = f"note://{host}/x"
    assert count_bytecodes(lambda: normalize(uri)) < 500 + 200 * len(uri)
