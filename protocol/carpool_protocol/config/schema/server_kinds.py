"""The kinds of server: a command, a URL, a Python module, or a server of another node. A server is exactly
one of them, or none with a `tools_file`: then its tools are listed and nothing runs.

Owns which keys belong to which kind, and which names a Python module may have (checked after variables are
filled in).

Pure. Knows nothing of: values, files, existing modules, how a server is run.
"""

import re
from collections.abc import Mapping
from typing import Final

from carpool_protocol.config.text.jsonc import JsonValue
from carpool_protocol.config.text.problems import KeyPath

_MODULE: Final = re.compile(r"(?!.*\.py$)[^\W\d]\w*(\.[^\W\d]\w*)*")


def module_name_problem(name: str) -> str | None:
    """The problem of a module name; None if it may be used."""
    if _MODULE.fullmatch(name) is not None:
        return None
    return "must be the name of a module, as package.module, not a file"


SERVER_KINDS: Final = {
    "command": "a command",
    "url": "a server over a URL",
    "python": "a Python module",
    "node": "a server of another node",
}
"""Key → kind of the server. A server has exactly one of these keys."""

ONLY_WITH: Final = {
    "args": "command",
    "headers": "url",
    "oauth": "url",
    "strict": "python",
    "interpreter": "python",
    "server": "node",
}
"""Key → the kind of servers for which it has a meaning."""


def kind_problems(server: Mapping[str, JsonValue]) -> list[tuple[KeyPath, str]]:
    """Problems of a server as it is written, with their places below it."""
    kinds = [kind for kind in SERVER_KINDS if kind in server]
    transport = _transport(server)
    if not kinds and transport is not None and transport[1] != _PIPES:
        return [((), 'has no url: write "url": "https://…", where the server is')]
    if not kinds and "tools_file" in server:
        ours = {"args", "cwd", "env", "headers", "interpreter", "oauth", "on", "roots", "server", "strict"}
        return [((key,), _FILE_ALONE) for key in sorted(ours & server.keys())]
    if not kinds:
        return [((), 'has no command: write "command": "…", the program to run')]
    if len(kinds) > 1:
        found = " and ".join(f"`{kind}`" for kind in kinds)
        return [((kinds[1],), f"a server has only one of {found}; remove one of them")]
    (way_here,) = kinds
    if transport is not None and (transport[1] == _PIPES) != (way_here != "url"):
        wanted = '"http", "sse" or "url"' if way_here == "url" else f'"{_PIPES}"'
        return [((transport[0],), f"must be {wanted}: this server is {SERVER_KINDS[way_here]}")]
    if way_here in {"url", "node"} and "cwd" in server:
        return [(("cwd",), f"has no meaning for {SERVER_KINDS[way_here]}; remove it")]
    if way_here == "node" and (aside := {"env", "on", "roots"} & server.keys()):
        return [((key,), "has no meaning for a server of another node; remove it") for key in sorted(aside)]
    return [
        ((key,), f"goes with `{kind}` only, and this server is {SERVER_KINDS[way_here]}; remove it")
        for key, kind in ONLY_WITH.items()
        if server.get(key) and kind != way_here
    ]


_FILE_ALONE: Final = (
    "has no meaning where only a `tools_file` lists tools and nothing runs; remove it, or write "
    '"command", "url" or "python", too'
)
_PIPES: Final = "stdio"
_OVER_URL: Final = frozenset({"http", "streamable-http", "streamableHttp", "streamable_http", "sse", "url"})


def _transport(server: Mapping[str, JsonValue]) -> tuple[str, str] | None:
    """The transport key and its value, if the value is a known transport."""
    for key in ("transport", "type"):
        value = server.get(key)
        if isinstance(value, str) and (value == _PIPES or value in _OVER_URL):
            return key, value
    return None
