"""What a client may send, how long it may take, and what is kept for it.

Only what a client can notice is a setting (`http.max_body_bytes`); the rest holds for everybody.
"""

from typing import Final

from msgspec import Struct

MAX_HEAD_BYTES: Final = 64 * 1024
MAX_HEADERS: Final = 128
MAX_URL_BYTES: Final = 8 * 1024
MAX_PARAMETERS: Final = 100
"""Parameters in the query of a URL. Three have a meaning for agents, and each takes microseconds to read."""
MAX_AHEAD: Final = 16
"""Requests that a client may send before earlier ones are answered."""
MAX_UNSENT_BYTES: Final = 1024 * 1024
"""Events that a client may leave unread."""
UNSENT_IN_SYSTEM_BYTES: Final = 128 * 1024
"""The system takes no more of what is on its way to a client than this and what the client has room for: what
it has taken is in no budget.
"""
SMALL_CHUNKS: Final = 1024
"""So many chunks of a body may be of any length."""
MIN_CHUNK_BYTES: Final = 16
"""The chunks beyond them have so many bytes on average: each takes the door as long as kilobytes of a long
one.
"""
MAX_UNFINISHED_BYTES: Final = 256 * 1024 * 1024
"""Bodies, and parts of them, that wait for their turn on all connections."""
ASK_FIRST_BYTES: Final = 64 * 1024
"""A body that may be longer than this is not taken before its client is known to be let in."""
HEAD_S: Final = 15.0
"""From the first byte of a request to the end of its headers."""
BODY_S: Final = 60.0
"""From there to the end of its body."""
STALLED_S: Final = 60.0
"""A client that takes less than `STALLED_BYTES` of what waits for it in this time is cut."""
STALLED_BYTES: Final = 64 * 1024
KEEP_S: Final = 120.0
"""A connection without a request is closed after this long."""
LINGER_S: Final = 2.0
"""How long a client that was refused may still send: closing at once would take the answer from it."""


class HttpLimits(Struct, frozen=True, kw_only=True):
    """Those that a setting or a test changes."""

    body_bytes: int = 4 * 1024 * 1024
    head_s: float = HEAD_S
    body_s: float = BODY_S
    stalled_s: float = STALLED_S
    keep_s: float = KEEP_S
