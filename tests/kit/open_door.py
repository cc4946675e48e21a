"""The settings of an HTTP door that needs no token, for tests about other things than who comes in.

Knows nothing of: doors, tokens.
"""

from typing import Any


def open_door(port: int = 0, **settings: Any) -> dict[str, Any]:
    """The section `http` of such a door; port 0 stands for any free one."""
    return {"port": port, "tokens": False, **settings}
