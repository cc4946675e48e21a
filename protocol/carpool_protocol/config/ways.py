"""What a server is: a command, or a Python module. Exactly one of them.

Owns which keys of a server go with which of the two.

Pure. Knows nothing of: values, files, how either is run.
"""

from collections.abc import Mapping
from typing import Final

from carpool_protocol.config.jsonc import JsonValue
from carpool_protocol.config.problems import KeyPath

WAYS: Final = {"command": "a command", "python": "a Python module"}
"""The keys of which a server has exactly one, each with what it makes of the server."""

ONLY_WITH: Final = {"args": "command", "strict": "python", "interpreter": "python"}
"""Keys that mean something to servers of one kind alone."""


def way_problems(server: Mapping[str, JsonValue]) -> list[tuple[KeyPath, str]]:
    """What is wrong with a server as it is written, each with its place below it."""
    ways = [way for way in WAYS if way in server]
    if not ways:
        return [((), 'has no command: write "command": "…", the program to run')]
    if len(ways) > 1:
        found = " and ".join(f"`{way}`" for way in ways)
        return [((ways[1],), f"a server has only one of {found}; take one of them out")]
    return [
        ((key,), f"goes with `{way}` only, and this server is {WAYS[ways[0]]}; take it out")
        for key, way in ONLY_WITH.items()
        if server.get(key) and way != ways[0]
    ]
