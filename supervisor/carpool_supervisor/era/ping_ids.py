"""The ids of carpool's pings to a server, in both eras.

Owns their form: `ping_id(7)` is `"carpool-ping-7"`, and `ping_number` reads it. Knows nothing of: why a
server is pinged, what its answer means.
"""

from typing import Final

from carpool_protocol.ids import MAX_WIRE_DIGITS, RawJson

_START: Final = b'"carpool-ping-'


def ping_id(number: int) -> RawJson:
    """Return the id of the ping with this number."""
    return RawJson(b'%b%d"' % (_START, number))


def ping_number(answer_id: RawJson) -> int | None:
    """Return the number of the ping that this is the id of; None: it is no ping's."""
    if not answer_id.startswith(_START):
        return None
    digits = answer_id[len(_START) : -1]
    return int(digits) if digits.isdigit() and len(digits) <= MAX_WIRE_DIGITS else None
