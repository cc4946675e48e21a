"""The body of a POST, read or refused.

Knows nothing of: eras, sessions.
"""

from carpool.http.core.body import INVALID_REQUEST, BadBody, Message, read_body
from carpool.http.core.effects import Respond, refusal
from carpool_protocol.carrier.streams import MESSAGE_CAP_BYTES, on_one_line


def read(x: int, body: bytes) -> list[Message] | Message | Respond:
    """What a body says, or why it is not taken."""
    if len(body) > MESSAGE_CAP_BYTES:
        return refusal(x, 413, INVALID_REQUEST, f"a message has at most {MESSAGE_CAP_BYTES} bytes")
    found = read_body(on_one_line(body))
    return refusal(x, 400, found.code, found.text, found.id) if isinstance(found, BadBody) else found
