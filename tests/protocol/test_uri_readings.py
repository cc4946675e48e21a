"""Spellings of URIs: what a server may take for the same thing, and what leads elsewhere."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carpool_protocol.uri_readings import climbs, readings


@pytest.mark.parametrize(
    "spelling",
    [
        "file:///secret/key",
        "FILE:///secret/key",
        "file:/secret/key",
        "file:////secret//key",
        "file:///./secret/./key",
        "file://localhost/secret/key",
        "file://LOCALHOST/secret/key",
        "file:///%73ecret/key",
        "file:///%2573ecret/key",
        "file:///secret%2Fkey",
        "file:///secret\\key",
        "file:///secret/key?x=1",
        "file:///secret/key#there",
        "file:///secret/key%00.txt",
        "file:///secret/key/",
        "file:///sec\tret/key\n",
        " file:///secret/key ",
    ],
)
def test_one_file_is_one_file_however_it_is_spelled(spelling: str) -> None:
    assert "file:///secret/key" in readings(spelling)
    assert not climbs(spelling)


def test_a_host_is_read_in_lower_case_too() -> None:
    assert "https://secret.example/a" in readings("https://Secret.Example/a")
    assert "note://secret/a" in readings("note:///secret/a")


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
    ],
)
def test_a_uri_that_climbs_is_known_in_every_spelling(uri: str) -> None:
    assert climbs(uri)


@pytest.mark.parametrize(
    "uri", ["file:///a/..b", "file:///a/b..", "file:///a/...", "file:///a/.b", "file:///v1..v2", "note://a.."]
)
def test_dots_in_names_do_not_climb(uri: str) -> None:
    assert not climbs(uri)


@given(st.text(alphabet="aA%2e5cf./\\:?#;\t\0 \u00e9", max_size=40))
def test_any_text_has_readings_and_the_first_is_itself(uri: str) -> None:
    found = readings(uri)
    assert found[0] == uri
    assert len(found) == len(set(found))
    if len(found) == 1:
        assert ".." not in uri.split("/")
        assert not climbs(uri)
