"""Definitions that a carrier and its broker share: versions of the attach line, and names of lines.

The broker refers to a line by its name, which is a checksum of the line's bytes and its length. Both sides
compute the name from the bytes, so a name means one message wherever it stands in the stream, and neither
side depends on the other counting lines alike (docs/decisions/0030). Equal lines have the same name; a
reference to one of several equal lines also gives its number.

Refuses to know JSON, and the use of versions and names. One small file with few imports, because every shim
loads it.
"""

from binascii import crc32

ATTACH_VERSION = 3
"""Version of the attach line, raised when a meaning changes.

A broker refuses an unknown version with a sentence that says what to do.
"""

NAMING_VERSION = 4
"""Version of the attach line that names a workspace.

A broker that does not know workspaces would run servers in the wrong one, and refuses this version. All other
carriers send `ATTACH_VERSION`, so that an update does not separate them from an older broker.
"""

CAP_BYTES = 8 * 1024 * 1024
"""The longest line of an agent that a broker keeps. The name of a longer line is computed piece by piece
(`name_of_parts`).
"""

_LENGTH_BITS = 32
_CARRIAGE_RETURN = 13


def name_of(line: "bytes | memoryview") -> int:
    """The name of a line without its line end. A carriage return at its end is not part of the line."""
    if line and line[-1] == _CARRIAGE_RETURN and len(line) <= CAP_BYTES:
        line = line[:-1]
    return name_of_parts(crc32(line), len(line))


def name_of_parts(checksum: int, size_bytes: int) -> int:
    """The name of a line from the CRC-32 of its bytes and its length. No line has the name 0."""
    return checksum << _LENGTH_BITS | (size_bytes + 1)


def names_in(text: bytes) -> list[int]:
    """Parse names of lines as the broker writes them: hexadecimal, separated by blanks. `b"1f 2a"` → `[31,
    42]`.
    """
    return [int(name, 16) for name in text.split()]
