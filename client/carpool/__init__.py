"""What people and agents touch: command line, shim, launcher, demo, bench, and the Python client.

This file imports nothing: the stdio shim passes through it and must stay small. The names of the Python
client (`carpool.api`) are there all the same, and are imported when the first of them is asked for.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:  # `typing` itself is more than the shim may import
    from carpool.api import (
        AskedError,
        BadCall,
        Carpool,
        CarpoolError,
        Lost,
        NotRunning,
        Outcome,
        Progress,
        Refused,
        Result,
        Server,
        ServerError,
        TimedOut,
        Tool,
        ToolError,
        Unavailable,
        UnknownName,
        Workspace,
    )

__all__ = [
    "AskedError",
    "BadCall",
    "Carpool",
    "CarpoolError",
    "Lost",
    "NotRunning",
    "Outcome",
    "Progress",
    "Refused",
    "Result",
    "Server",
    "ServerError",
    "TimedOut",
    "Tool",
    "ToolError",
    "Unavailable",
    "UnknownName",
    "Workspace",
]


def __getattr__(name: str) -> object:
    """PEP 562: a name of the Python client."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from carpool import api

    return getattr(api, name)
