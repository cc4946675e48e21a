"""Which URIs can come from a template (RFC 6570)."""

import sys

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from mcp.shared.uri_template import InvalidUriTemplate, UriTemplate

from carpool_broker.core.registry.uri_template import MAX_EXPRESSIONS, MAX_URI_CHARS, parse_template


def test_long_templates_are_not_kept() -> None:
    template = "x://{id}/" + "y" * 1000
    before = sys.getrefcount(template)
    assert parse_template(template) is not None
    assert sys.getrefcount(template) == before


def matches(template: str, uri: str) -> bool:
    parsed = parse_template(template)
    assert parsed is not None
    return parsed.matches(uri)


@pytest.mark.parametrize(
    ("template", "uri", "expected"),
    [
        ("x://{id}", "x://7", True),
        ("x://{id}", "x://7/8", False),
        ("x://{id}", "y://7", False),
        ("x://{id}.json", "x://a.json.json", True),
        ("x://{id}.json", "x://a.txt", False),
        ("x://{a}/{b}", "x://1/2", True),
        ("x://{a}/{b}", "x://1", False),
        ("x://{a}/b/{c}", "x://b/b/b", True),
        ("file:///{+path}", "file:///a/b/c", True),
        ("file:///{path*}", "file:///a/b/c", True),
        ("x://{+a}/end", "x://1/end/2/end", True),
        ("x://{+a}/end", "x://1/end/2", False),
        ("x://s{?q,n}", "x://s", True),
        ("x://s{?q,n}", "x://s?n=1&q=/2", True),
        ("x://s{?q}", "x://st?q=1", False),
        ("x://s?a=1{&b}", "x://s?a=1&b=2", True),
        ("x://s{/a,b}", "x://s/1/2", True),
        ("x://s{/a}", "x://s/1/2", False),
        ("x://s{.e}", "x://s.txt", True),
        ("x://s{;p}", "x://s;p=1", True),
        ("x://s{#f}", "x://s#a/b?c", True),
        ("x://s{#f}", "x://s", True),
        ("x://{id:3}", "x://abc", True),
        ("no expression", "no expression", True),
        ("no expression", "no expression!", False),
        ("", "", True),
        ("", "x", False),
    ],
)
def test_a_template_matches_what_it_expands_to(template: str, uri: str, expected: bool) -> None:
    assert matches(template, uri) is expected


@pytest.mark.parametrize(
    "template", ["{", "}", "a{b", "a}b", "{}", "{+}", "{a{b}}", "{!x", "x" * 5000, "{a}" * 17]
)
def test_a_malformed_or_oversized_template_is_refused_and_does_not_raise(template: str) -> None:
    assert parse_template(template) is None


variable = st.sampled_from(["{a}", "{+b}", "{/c}", "{?d,e}", "{.f}", "{;g}", "{#h}", "{&i}", "{/j*}"])
literal = st.text("ab/.:-?&", max_size=4)


@given(
    st.lists(st.tuples(literal, variable), max_size=4),
    literal,
    st.dictionaries(st.sampled_from("abcdefghij"), st.text("ab/.?#&= ü", max_size=5)),
)
@settings(deadline=None, max_examples=120)
def test_whatever_values_go_in_the_uri_is_matched(
    parts: list[tuple[str, str]], tail: str, values: dict[str, str]
) -> None:
    template = "".join(text + expression for text, expression in parts) + tail
    try:
        expand = UriTemplate.parse(template).expand
    except InvalidUriTemplate:
        assume(False)
    assert matches(template, expand({**values, "j": [values.get("j", ""), "k"]}))


@given(st.text("ab/{}?+", max_size=12), st.text("ab/?", max_size=12))
@example("{+a}b{+a}b", "bbab")
@settings(deadline=None, max_examples=120)
def test_a_template_matches_the_same_uris_as_a_plain_search_over_all_splits(template: str, uri: str) -> None:
    parsed = parse_template(template)
    if parsed is not None and len(parsed.parts) <= 6:
        assert parsed.matches(uri) == slow(list(parsed.parts), uri)


def slow(parts: list[object], uri: str) -> bool:
    if not parts:
        return uri == ""
    first, rest = parts[0], parts[1:]
    if isinstance(first, str):
        return uri.startswith(first) and slow(rest, uri[len(first) :])
    lead, stops = first.lead, first.stops  # type: ignore[attr-defined]
    if lead and slow(rest, uri):
        return True
    if not uri.startswith(lead):
        return False
    taken = uri[len(lead) :]
    for end in range(len(taken) + 1):
        if end and taken[end - 1] in stops:
            return False
        if slow(rest, taken[end:]):
            return True
    return False


def test_a_uri_made_to_cost_costs_little() -> None:
    template = "x" + "{+a}x" * (MAX_EXPRESSIONS - 1)
    assert matches(template, "x" * MAX_URI_CHARS)
    assert not matches(template, "x" * (MAX_URI_CHARS - 1) + "y")
    assert not matches("{+a}", "x" * (MAX_URI_CHARS + 1))
