"""The Python client: `from carpool import Carpool` (docs/client.md)."""

from carpool.api.callbacks import AskedError
from carpool.api.client import Carpool
from carpool.api.results import Outcome, Progress, Result, Server, Tool, Workspace
from carpool.errors import (
    BadCall,
    CarpoolError,
    Lost,
    NotRunning,
    Refused,
    ServerError,
    TimedOut,
    ToolError,
    Unavailable,
    UnknownName,
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
