"""Names that only the stateless era of MCP has (2026-07-28, basic/index), and its error for other versions.

Owns the spelling of its keys in `_meta`, and which of these keys of a request concern only two neighbours.
Knows nothing of: the processes that write or read them.
"""

from typing import Final

import msgspec

from carpool_protocol.ids import RawJson
from carpool_protocol.wire.downgrade import STATELESS

VERSION: Final = STATELESS
SUPPORTED: Final = (VERSION,)
"""The versions in `server/discover` and in `data.supported` of the error below."""

PREFIX: Final = "io.modelcontextprotocol/"
PROTOCOL_VERSION: Final = PREFIX + "protocolVersion"
CLIENT_CAPABILITIES: Final = PREFIX + "clientCapabilities"
CLIENT_INFO: Final = PREFIX + "clientInfo"
LOG_LEVEL: Final = PREFIX + "logLevel"
SERVER_INFO: Final = PREFIX + "serverInfo"
SUBSCRIPTION_ID: Final = PREFIX + "subscriptionId"
TASKS: Final = PREFIX + "tasks"
"""The extension for tasks."""

HOP_BY_HOP: Final = frozenset(
    key.casefold() for key in (PROTOCOL_VERSION, CLIENT_CAPABILITIES, CLIENT_INFO, LOG_LEVEL)
)
"""Keys of a request that concern only the next reader, in lower case.

A server that was greeted with `initialize` may refuse a request that has them (Python SDK 2.x does).
"""

UNSUPPORTED_VERSION: Final = -32022
MISSING_CAPABILITY: Final = -32021
_MAX_REQUESTED_CHARS: Final = 100


def unsupported_version(requested: str) -> RawJson:
    """The error object for a request in an MCP version that is not served (basic/index, "Error codes").

    Also for an `initialize` on a connection that an agent of this era uses.
    """
    return RawJson(
        msgspec.json.encode(
            {
                "code": UNSUPPORTED_VERSION,
                "message": "The agent's request names a version of MCP that is not supported here. "
                "Send it again with a version from data.supported.",
                "data": {"supported": SUPPORTED, "requested": requested[:_MAX_REQUESTED_CHARS]},
            }
        )
    )


def missing_tasks() -> RawJson:
    """The error object for a request about tasks from an agent that has not declared the extension
    (basic/index, "Error codes").
    """
    return _MISSING_TASKS


_MISSING_TASKS: Final = RawJson(
    msgspec.json.encode(
        {
            "code": MISSING_CAPABILITY,
            "message": f"The agent's request is about tasks and does not declare the extension {TASKS}. "
            "Declare it in the request's client capabilities.",
            "data": {"requiredCapabilities": {"extensions": {TASKS: {}}}},
        }
    )
)
