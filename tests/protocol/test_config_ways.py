"""A server is a command or a Python module, and has the keys of one of them."""

import json
from typing import Any

import pytest

from carpool_protocol.config.shape import read_config


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
    ],
)
def test_the_keys_of_one_kind_go_together(server: dict[str, Any]) -> None:
    assert problems(server) == []


@pytest.mark.parametrize(
    ("server", "said"),
    [
        ({}, ': has no command: write "command": "…", the program to run'),
        (
            {"command": "x", "python": "tools"},
            ".python: a server has only one of `command` and `python`; take one of them out",
        ),
        (
            {"python": "tools", "args": ["x"]},
            ".args: goes with `command` only, and this server is a Python module; take it out",
        ),
        (
            {"command": "x", "strict": True},
            ".strict: goes with `python` only, and this server is a command; take it out",
        ),
        (
            {"command": "x", "interpreter": "python3"},
            ".interpreter: goes with `python` only, and this server is a command; take it out",
        ),
        ({"python": ["tools"]}, ".python: must be text, found a list"),
    ],
)
def test_the_keys_of_two_kinds_do_not(server: dict[str, Any], said: str) -> None:
    assert problems(server) == [said]
