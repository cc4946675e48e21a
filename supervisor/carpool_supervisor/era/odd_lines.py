"""Reads lines of a server that are no valid message, and tells what they are good for.

Owns four rules for both eras. A line without `"jsonrpc":"2.0"` is a log line: it ends no call and gets no
answer, whatever its id is. A line that is not UTF-8 is read with U+FFFD in place of each bad byte, unless it
answers a call: a result is passed on byte for byte or not at all. An array of at most `MAX_BATCH` messages is
read if the server speaks the version that has them; a member that is no object is rejected alone. Calls that
any other array answers end as unreadable. No answer repeats an id of more than `MAX_ID_BYTES`, because
answers may have to wait for the server. Source: MCP 2025-03-26, basic "Batching" ("MUST support receiving").

Pure. Knows nothing of: open calls, the greeting, what a message does.
"""

from typing import Final

from carpool_protocol.ids import RawJson
from carpool_protocol.wire.content import elements
from carpool_protocol.wire.jsonrpc import (
    MAX_ID_BYTES,
    MAX_UNUSUAL_BYTES,
    ErrorAnswer,
    InvalidLine,
    ResultAnswer,
    decode,
)

BATCH_VERSION: Final = "2025-03-26"
MAX_BATCH: Final = 100
"""A longer array is not read: all its messages are handled at once, before other servers have their turn."""
MAX_ENDED: Final = 1000
"""The messages of such an array that are searched for answers: more than are open at once."""
NO_OBJECT: Final = "is in an array and is no object"
ANSWERED_TWICE: Final = "answered a request twice"
"""The error about an answer to a request that was answered already: it is one to nothing, whatever it is."""
READ_ANYWAY: Final = "wrote a line that is not valid UTF-8: it is read with U+FFFD in place of the bad bytes"


def is_log_line(garbage: InvalidLine) -> bool:
    """True if the line is none of this protocol's messages, although it is a JSON object."""
    return garbage.why == "bad_version"


def made_readable(line: bytes, garbage: InvalidLine) -> bytes:
    """Return a line that is not UTF-8 as one that is, and that holds a message; empty if it cannot be,
    or is too long for that.
    """
    if garbage.why != "not_utf8" or len(line) > MAX_UNUSUAL_BYTES:
        return b""
    readable = line.decode(errors="replace").encode()
    return b"" if isinstance(decode(readable), InvalidLine) else readable


def messages_of(batch: bytes) -> tuple[list[bytes], int]:
    """Return the objects in an array, and the number of its other members. An array that cannot be cut counts
    as one without objects.
    """
    found = elements(batch.strip()) or []
    objects = [each for each in found if each.startswith(b"{")]
    return objects, len(found) - len(objects)


def batch_error(count: int, version: str) -> str:
    """Return why an array of so many messages of a server that speaks `version` is not read; empty: it is."""
    if version != BATCH_VERSION:
        return f"the line is an array of messages, which only MCP {BATCH_VERSION} has: send one on each line"
    if count > MAX_BATCH:
        return f"the line is an array of more than {MAX_BATCH} messages, which is not read"
    return "" if count else "the line is an array without a message"


def answered_ids(messages: list[bytes]) -> list[RawJson]:
    """Return the ids of the answers among the messages of an array that is not read, the first ones only."""
    answers = (decode(each) for each in messages[:MAX_ENDED] if b'"id"' in each)
    return [each.id for each in answers if isinstance(each, ResultAnswer | ErrorAnswer)]


def id_to_repeat(request_id: RawJson) -> RawJson:
    """Return the id that an answer to this request repeats: `null` in place of one that is too long."""
    return request_id if len(request_id) <= MAX_ID_BYTES else RawJson(b"null")
