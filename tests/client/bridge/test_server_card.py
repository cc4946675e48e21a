"""Well-known documents in the shapes that hosts publish."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carpool.bridge.server_card import is_well_known, place_in
from tests.behaviours import behaviour

BASE = "https://h.example/.well-known/mcp.json"
ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["url", "endpoint", "type", "remotes", "servers", "transport", "x"]), inner
        )
    ),
    max_leaves=12,
)


@behaviour("remote:found")
@pytest.mark.parametrize(
    ("document", "place"),
    [
        ({"remotes": [{"type": "streamable-http", "url": "https://a/mcp"}]}, ("http", "https://a/mcp")),
        (
            {"remotes": [{"type": "sse", "url": "https://a/sse"}, {"type": "http", "url": "/mcp"}]},
            ("http", "https://h.example/mcp"),
        ),
        ({"remotes": [{"type": "sse", "url": "https://a/sse"}]}, ("sse", "https://a/sse")),
        ({"transport": {"type": "streamable-http", "endpoint": "/mcp"}}, ("http", "https://h.example/mcp")),
        ({"transports": [{"type": "http", "url": "/mcp"}]}, ("http", "https://h.example/mcp")),
        ({"servers": [{"name": "a", "url": "https://a/mcp"}]}, ("http", "https://a/mcp")),
        ({"endpoint": "/mcp", "version": "1"}, ("http", "https://h.example/mcp")),
        ({"remotes": [{"type": "websocket", "url": "wss://a"}]}, None),
        ({"url": "file:///etc/passwd"}, None),
        ({}, None),
        ([1, "x"], None),
    ],
)
def test_the_server_is_found(document: Any, place: tuple[str, str] | None) -> None:
    assert place_in(document, BASE) == place


@given(ANY)
def test_any_document_is_read(document: Any) -> None:
    place = place_in(document, BASE)
    assert place is None or place[1].startswith(("http://", "https://"))


def test_a_document_is_known_by_its_path() -> None:
    assert is_well_known(BASE)
    assert not is_well_known("https://h.example/mcp?x=/.well-known/")


def test_a_place_that_is_no_url_is_left_out() -> None:
    document = {
        "remotes": [{"url": "http://["}, {"url": "http://evil.invalid\n2026 \x1b[31m/mcp"}, {"url": "/mcp"}]
    }
    assert place_in(document, "https://a.example/card") == ("http", "https://a.example/mcp")
