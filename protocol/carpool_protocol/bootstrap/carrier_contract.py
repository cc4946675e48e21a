"""Definitions that a carrier and its broker share: versions of the attach line, and names of lines.

The broker refers to a line by its name, which is a checksum of the line's bytes and its length. Both sides
compute the name from the bytes, so a name means one message wherever it stands in the stream, and no side
depends on the other counting lines alike (docs/decisions/0030). Equal lines have the same name; a reference
to one of several equal lines also gives its number.

Refuses to know JSON, and what versions and names are used for. One small file with few imports, because every
shim loads it.
"""

from binascii import crc32

ATTACH_VERSION = 3
"""Raised when a meaning changes. A broker refuses another number with a sentence that says what to do."""

NAMING_VERSION = 4
"""The same, said by carriers that may name a workspace. A broker that knows nothing of those would run
servers in the wrong one; it refuses this number. Everybody else goes on with the lower one, so that an update
separates nobody who need not be.
"""

CAP_BYTES = 8 * 1024 * 1024
"""A line of an agent that is longer is kept by no broker. Its name is computed as it passes
(`name_of_parts`).
"""

_LENGTH_BITS = 32
_CARRIAGE_RETURN = 13


def name_of(line: "bytes | memoryview") -> int:
    """The name of a line without its line end. A carriage return before that is no part of a line."""
    if line and line[-1] == _CARRIAGE_RETURN and len(line) <= CAP_BYTES:
        line = line[:-1]
    return name_of_parts(crc32(line), len(line))


def name_of_parts(checksum: int, size_bytes: int) -> int:
    """The name of a line by the CRC-32 of its bytes and its length. No line has the name 0."""
    return checksum << _LENGTH_BITS | (size_bytes + 1)


def names_in(text: bytes) -> list[int]:
    """Names as they are said: hexadecimal, in blanks."""
    return [int(name, 16) for name in text.split()]
