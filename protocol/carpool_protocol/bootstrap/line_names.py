"""Names of lines: how a broker tells a carrier which of the lines that passed it means.

Owns how a line is named: by a checksum of its bytes, the id of its message among them, and its length. Both
sides compute it of the bytes that passed. So a name means one message wherever it stands in the stream, and
nothing depends on two sides counting lines alike (docs/decisions/0030). Equal lines have one name; who means
one of several says how many.

Refuses to know JSON, who says names and what for. The standard library's smallest corner only: the shim has
it.
"""

from binascii import crc32

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
