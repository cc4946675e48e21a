"""A server is a command, a Python module or a URL, and has the keys of one of them."""

import json
from typing import Any

import pytest

from carpool_protocol.config.reading.parse import read_config
from carpool_protocol.config.schema.settings import FILE_SETTINGS, SERVER_SETTINGS
from carpool_protocol.config.schema.value_types import FILE_LATER, SERVER_LATER


def problems(server: dict[str, Any]) -> list[str]:
    loaded = read_config(json.dumps({"mcpServers": {"s": server}}), "f")
    return [each.render().removeprefix("f:1: mcpServers.s") for each in loaded.problems]


@pytest.mark.parametrize(
    "server",
    [
        {"command": "x", "args": ["y"]},
        {"python": "tools"},
        {
            "python": "tools",
            "strict": True,
            "interpreter": ".venv/bin/python",
            "cwd": "/w",
            "env": {"A": "b"},
        },
        {"python": "tools", "strict": "${STRICT:-true}"},
        {"command": "x", "strict": False},
        {"command": "x", "transport": "stdio"},
        {"url": "https://x/mcp"},
        {"url": "${URL}", "transport": "http", "headers": {"X-Key": "${KEY}"}, "env": {"A": "b"}},
        {"url": "https://x", "type": "streamableHttp", "oauth": {}},
        {"url": "https://x", "oauth": {"client_id": "a", "scopes": ["b"], "redirect_port": 8123}},
        {"tools_file": "tools.json"},
    ],
)
def test_the_keys_of_one_kind_go_together(server: dict[str, Any]) -> None:
    assert problems(server) == []


@pytest.mark.parametrize(
    ("server", "said"),
    [
        ({}, ': has no command: write "command": "…", the program to run'),
        (
            {"tools_file": "tools.json", "args": ["x"]},
            ".args: has no meaning where only a `tools_file` lists tools and nothing runs; remove it, or "
            'write "command", "url" or "python", too',
        ),
        (
            {"command": "x", "python": "tools"},
            ".python: a server has only one of `command` and `python`; remove one of them",
        ),
        (
            {"python": "tools", "args": ["x"]},
            ".args: goes with `command` only, and this server is a Python module; remove it",
        ),
        (
            {"command": "x", "strict": True},
            ".strict: goes with `python` only, and this server is a command; remove it",
        ),
        (
            {"command": "x", "interpreter": "python3"},
            ".interpreter: goes with `python` only, and this server is a command; remove it",
        ),
        (
            {"command": "x", "url": "https://x"},
            ".url: a server has only one of `command` and `url`; remove one of them",
        ),
        (
            {"command": "x", "headers": {"A": "b"}},
            ".headers: goes with `url` only, and this server is a command; remove it",
        ),
        (
            {"python": "x", "oauth": {"client_id": "b"}},
            ".oauth: goes with `url` only, and this server is a Python module; remove it",
        ),
        ({"transport": "http"}, ': has no url: write "url": "https://…", where the server is'),
        ({"command": "x", "type": "sse"}, '.type: must be "stdio": this server is a command'),
        (
            {"url": "https://x", "transport": "stdio"},
            '.transport: must be "http", "sse" or "url": this server is a server over a URL',
        ),
        ({"url": "https://x", "cwd": "/w"}, ".cwd: has no meaning for a server over a URL; remove it"),
        (
            {"url": "https://x", "args": ["y"]},
            ".args: goes with `command` only, and this server is a server over a URL; remove it",
        ),
        ({"url": "x"}, ".url: must be a URL that begins with http:// or https:// and names a host"),
        ({"url": "https://x", "headers": {"a b": "c"}}, '.headers."a b": is no name of a header'),
        (
            {"url": "https://x", "headers": {"Mcp-Session-Id": "c"}},
            ".headers.Mcp-Session-Id: is a header that carpool writes itself",
        ),
        (
            {"url": "https://x", "headers": {"X-A": "c", "x-a": "d"}},
            ".headers.x-a: is written twice: header names ignore case",
        ),
        ({"python": ["tools"]}, ".python: must be text, found a list"),
    ],
)
def test_the_keys_of_two_kinds_do_not(server: dict[str, Any], said: str) -> None:
    assert problems(server) == [said]


def test_what_is_refused_for_now_is_no_setting() -> None:
    assert not SERVER_LATER.keys() & {each.key for each in SERVER_SETTINGS}
    assert not FILE_LATER.keys() & {each.key for each in FILE_SETTINGS}
