"""JSON values of about 4 MB that cost a reader many steps, if it takes some for each of their parts.

Knows nothing of: the message that such a value stands in.
"""

from typing import Final

from carpool_protocol.wire.json_scan import MAX_PARTS, has_too_many_parts

has_too_many_parts(b"," * MAX_PARTS)  # compiles its pattern, which costs steps once in a process

COSTLY: Final[dict[str, bytes]] = {
    "towers": b"[" + (b"[" * 100 + b"]" * 100 + b",") * 20_000 + b"0]",
    "seven deep": b"[" + b"[[[[[[[0]]]]]]]," * 250_000 + b"0]",
    "arrays": b"[" + b"[]," * 1_300_000 + b"0]",
    "objects": b"[" + b'{"a":0},' * 500_000 + b"0]",
    "members": b"{" + b",".join(b'"k%d":[%b0]' % (n, b"[]," * 1500) for n in range(900)) + b"}",
    "escapes": b'"' + rb"\n" * 2_000_000 + b'"',
    "text": b'"' + b"x" * 4_000_000 + b'"',
}
