"""The sizes that lines of a server may have if they hold no result.

Owns two limits, and the check of a line that was read. Most such lines are not even kept: `LineBuffer` knows
them by their beginning. The check is for those that begin as if they held a result.

Pure. Knows nothing of: results, which have the cap of all lines; what a message does.
"""

from typing import Final

from carpool_protocol.bootstrap.carrier_contract import CAP_BYTES
from carpool_protocol.wire.jsonrpc import ErrorAnswer, Notification, Request, ResultAnswer
from carpool_protocol.wire.lines import OverlongLine

MAX_LINE_BYTES: Final = CAP_BYTES
"""Of a request or an error: as much as a line of an agent may have. Requests for sampling hold images."""
MAX_NOTIFICATION_BYTES: Final = 1024 * 1024
"""Of a notification: it goes to many agents, and nothing waits for it."""


def overlong(
    line: bytes, message: ErrorAnswer | Notification | Request | ResultAnswer
) -> OverlongLine | None:
    """A line with this message as one that is too long; None if it has a size that is read."""
    if len(line) <= MAX_NOTIFICATION_BYTES or isinstance(message, ResultAnswer):
        return None
    if isinstance(message, Notification):
        return OverlongLine(None, False, len(line))
    if len(line) <= MAX_LINE_BYTES:
        return None
    return OverlongLine(message.id, isinstance(message, ErrorAnswer), len(line))
