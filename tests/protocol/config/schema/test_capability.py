"""Capabilities: how they are written and what each one covers."""

from typing import Any

import pytest

from carpool_protocol.config.schema.capability import (
    EVERYTHING,
    Capability,
    capability,
    check_capability,
    read_capability,
)
from tests.behaviours import behaviour

TOOL: Any = ("tool", "github", ("code",), "read_file")
OTHER: Any = ("tool", "github", ("code",), "delete_file")
PROMPT: Any = ("prompt", "github", ("code",), "read_me")
NOTE: Any = ("resource", "notes", (), "note://public/a:b")
ALL = [TOOL, OTHER, PROMPT, NOTE]


@behaviour("profiles:patterns")
@pytest.mark.parametrize(
    ("text", "covered"),
    [
        ("*", ALL),
        ("mcp:github", [TOOL, OTHER, PROMPT]),
        ("mcp:git*", [TOOL, OTHER, PROMPT]),
        ("mcp:GitHub", []),
        ("mcp:github:*", [TOOL, OTHER]),
        ("mcp:*:read_*", [TOOL]),
        ("mcp:github:read_file", [TOOL]),
        ("mcp:github:READ_*", []),
        ("mcp:github:[rd]*_file", [TOOL, OTHER]),
        ("prompt:*:*", [PROMPT]),
        ("prompt:github:read_*", [PROMPT]),
        ("resource:notes:note://public/*", [NOTE]),
        ("resource:notes:note://private/*", []),
        ("tag:code", [TOOL, OTHER, PROMPT]),
        ("tag:c*", [TOOL, OTHER, PROMPT]),
        ("tag:github", []),
    ],
)
def test_a_pattern_covers_what_it_says_and_nothing_else(text: str, covered: list[Any]) -> None:
    found = capability(text)
    assert found.text == text
    assert [each for each in ALL if found.covers(*each)] == covered


def test_a_pattern_covers_a_server_as_a_whole_only_by_a_star() -> None:
    assert capability("mcp:github:*").covers_all("tool", "github", ())
    assert not capability("mcp:github:*").covers_all("prompt", "github", ())
    assert not capability("mcp:github:**").covers_all("tool", "github", ())  # careful: it is not asked
    assert all(capability("mcp:github").covers_all(kind, "github", ()) for kind in ("tool", "resource"))
    assert EVERYTHING.covers_all("tool", "any", ())
    assert capability("mcp:a:b:c") == Capability("mcp:a:b:c", "tool", "a", "b:c")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", 'must be "*" or begin with'),
        ("github:*", 'must be "*" or begin with'),
        ("mcp", 'must be "*" or begin with'),
        ("tag:", 'must be "*" or begin with'),
        ("mcp:", 'must name a server after "mcp:"'),
        ("mcp::x", 'must name a server after "mcp:"'),
        ("mcp:a b:x", 'must name a server after "mcp:"'),
        ("prompt:a", 'must say what of the server, like "prompt:a:*"'),
        ("resource:a", 'must say what of the server, like "resource:a:*"'),
        ("mcp:a:", 'has nothing after the second colon; "mcp:a:*" is all of them'),
    ],
)
def test_what_is_no_pattern_is_explained(text: str, said: str) -> None:
    why = check_capability(text)
    assert why is not None
    assert why.startswith(said)
    assert isinstance(read_capability(text), str)
    with pytest.raises(ValueError, match="a capability"):
        capability(text)
