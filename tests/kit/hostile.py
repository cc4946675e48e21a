r"""What hostile peers write: JSON that is hard to read, messages that are nearly right, names full of tricks.

A grammar over a `Random`, so that the same text comes from a seed as from Hypothesis (`st.randoms`), which
shrinks it. Most of what it makes is sound enough to get past the first reader: junk alone tests only that.

Knows nothing of: who reads it, what must come of it.
"""

import json
from collections.abc import Callable, Sequence
from random import Random
from typing import Final, NamedTuple

NUMBERS: Final = (
    *(
        b"0",
        b"1",
        b"-1",
        b"-0",
        b"1.0",
        b"1e0",
        b"17",
        b"1e400",
        b"-1e999",
        b"0.1",
        b"2147483648",
        b"4294967296",
    ),
    *(b"9007199254740993", b"18446744073709551615", b"18446744073709551616", b"-9223372036854775809"),
    *(b"1" + b"0" * 30, b"9" * 5000, b"-" + b"9" * 5000, b"0." + b"1" * 5000, b"1e" + b"9" * 50),
)
NO_NUMBERS: Final = (b"NaN", b"Infinity", b"-Infinity", b"01", b"+1", b".5", b"1.", b"0x1", b"1_000", b"--1")
STRINGS: Final = (
    *(
        b'""',
        b'"a"',
        b'"1"',
        b'"17"',
        b'"null"',
        b'"good__echo"',
        b'"\\u0000"',
        b'"\\u001b[31m"',
        b'"\\ud83d"',
    ),
    *(b'"\\udc00\\ud800"', b'"\\ud83d\\ude00"', '"\u2028\u2029\x85"'.encode(), '"\u202e\ufeff"'.encode()),
    *(b'"\\\\ud83d"', b'"\\/"', b'"' + b"x" * 3000 + b'"', b'"\x7f"', '"\U0001f600"'.encode(), b'"%s%n{0}"'),
    *(b'"\\r\\n{\\"jsonrpc\\":\\"2.0\\"}"', b'"../../etc"', b'"__proto__"', b'"file:///"', b'"x://y"'),
)
NO_STRINGS: Final = (
    b'"\xff"',
    b'"\xed\xa0\x80"',
    b'"\xc0\xaf"',
    b'"\\x"',
    b'"\\u12"',
    b'"',
    b"'a'",
    b'"\r"',
    b'"\x00"',
)
WORDS: Final = (b"null", b"true", b"false")
NO_WORDS: Final = (b"nul", b"True", b"undefined", b"", b"//", b"/*", b",", b":", b"\xef\xbb\xbf1", b"\x00")
BLANKS: Final = (b"", b"", b"", b"", b" ", b"\t", b"\r", b"  \r ")
KEYS: Final = (
    *(
        "name",
        "arguments",
        "_meta",
        "progressToken",
        "cursor",
        "uri",
        "requestId",
        "reason",
        "level",
        "params",
    ),
    *(
        "id",
        "method",
        "result",
        "error",
        "code",
        "message",
        "data",
        "content",
        "isError",
        "type",
        "text",
        "roots",
    ),
    *(
        "tools",
        "prompts",
        "resources",
        "resourceTemplates",
        "nextCursor",
        "inputSchema",
        "description",
        "task",
    ),
    *(
        "taskId",
        "status",
        "ttl",
        "pollInterval",
        "protocolVersion",
        "capabilities",
        "serverInfo",
        "instructions",
    ),
    *(
        "clientInfo",
        "version",
        "progress",
        "total",
        "ref",
        "argument",
        "value",
        "completion",
        "values",
        "uriTemplate",
    ),
    *(
        "requestState",
        "inputResponses",
        "inputRequests",
        "resultType",
        "ttlMs",
        "cacheScope",
        "notifications",
    ),
    *(
        "supportedVersions",
        "elicitations",
        "elicitationId",
        "url",
        "mode",
        "requestedSchema",
        "action",
        "extensions",
    ),
    *("io.modelcontextprotocol/protocolVersion", "io.modelcontextprotocol/clientCapabilities", "traceparent"),
    *(
        "io.modelcontextprotocol/clientInfo",
        "io.modelcontextprotocol/logLevel",
        "io.modelcontextprotocol/related-task",
    ),
    *(
        "io.modelcontextprotocol/subscriptionId",
        "io.modelcontextprotocol/tasks",
        "",
        "\x00",
        "\ud83d",
        "__proto__",
    ),
)
VERSIONS: Final = (
    *(
        "2024-11-05",
        "2025-03-26",
        "2025-06-18",
        "2025-11-25",
        "2026-07-28",
        "2026-07-28",
        "1999-01-01",
        "",
        "2.0",
    ),
    *("9" * 400, "\u202e", "DRAFT"),
)
DEPTHS: Final = (2, 30, 127, 128, 129, 511, 513, 1000, 1100, 5000, 60_000)
NAMES: Final = (
    *(
        "a",
        "echo",
        "echo ",
        "ECHO",
        "echo__echo",
        "",
        " ",
        ".",
        "a" * 65,
        "a" * 5000,
        "\x1b[2J\x1b]0;title\x07",
    ),
    *(
        "\x9b31m",
        "\u202etxt.exe",
        "line\nbreak",
        "line\u2028break",
        "\r",
        "tab\t",
        "\x00",
        "naïve",
        "日本",
        "\ud83d",
    ),
    *(
        "good__echo",
        "mcp__good__echo",
        "{name}",
        "%s",
        "../x",
        "-rf",
        "$(x)",
        "\U000e0041",
        "e\u0301" * 40,
        "null",
    ),
)
"""For tools, servers, agents: what a terminal, a log or a table could stumble over."""


def weighed(rng: Random, good: Sequence[bytes], bad: Sequence[bytes], worst: float = 0.03) -> bytes:
    """Mostly one of the legal ones."""
    return rng.choice(bad if rng.random() < worst else good)


def text(value: str) -> bytes:
    """A string as JSON."""
    return json.dumps(value).encode()


def scalar(rng: Random) -> bytes:
    roll = rng.randrange(4)
    if roll == 0:
        return weighed(rng, NUMBERS, NO_NUMBERS)
    if roll == 3:
        return weighed(rng, WORDS, NO_WORDS, 0.01)
    return text(rng.choice(NAMES)) if rng.random() < 0.3 else weighed(rng, STRINGS, NO_STRINGS)


def bomb(rng: Random) -> bytes:
    """Deep, and closed or not."""
    depth = rng.choice(DEPTHS)
    head, tail = rng.choice(((b"[", b"]"), (b'{"a":', b"}"), (b'[{"id":1,"x":', b"}]"), (b"[1,", b"]")))
    return head * depth + b"1" + tail * (depth if rng.random() < 0.8 else depth // 2)


def blank(rng: Random) -> bytes:
    return rng.choice(BLANKS) if rng.random() < 0.2 else b""


def key(rng: Random, name: str) -> bytes:
    """A key, now and then spelled with escapes."""
    if name and rng.random() < 0.03:
        return b'"\\u%04x%b' % (ord(name[0]) & 0xFFFF, text(name[1:])[1:])
    return text(name)


def members(rng: Random, fields: Sequence[tuple[str, bytes]]) -> bytes:
    """An object of these members; now and then one comes twice, or in another order."""
    pairs = [*fields]
    if pairs and rng.random() < 0.04:
        pairs.append((rng.choice(pairs)[0], value(rng, 1)))
    if rng.random() < 0.1:
        rng.shuffle(pairs)
    gap = blank(rng)
    return b"{" + (b"," + gap).join(key(rng, name) + gap + b":" + gap + raw for name, raw in pairs) + b"}"


def value(rng: Random, depth: int = 2) -> bytes:
    """Any JSON value, or nearly one."""
    roll = rng.randrange(12)
    if roll < 6 or depth == 0:
        return scalar(rng)
    if roll < 8:
        gap = blank(rng)
        return b"[" + (b"," + gap).join(value(rng, depth - 1) for _ in range(rng.randrange(4))) + gap + b"]"
    if roll == 8 and rng.random() < 0.15:
        return bomb(rng)
    return members(rng, [(rng.choice(KEYS), value(rng, depth - 1)) for _ in range(rng.randrange(4))])


def one_of(rng: Random, *likely: bytes, odd: float = 0.12) -> bytes:
    """One of these, or anything."""
    return value(rng, 2) if rng.random() < odd else rng.choice(likely)


def mutated(rng: Random, line: bytes) -> bytes:
    """A few bytes are others, are missing, are doubled."""
    data = bytearray(line)
    for _ in range(rng.choice((1, 1, 2, 8))):
        at = rng.randrange(len(data) + 1)
        match rng.randrange(4):
            case 0:
                data[at:at] = rng.choice(
                    (b'"', b"{", b"}", b"[", b"]", b",", b"\\", b"\r", b"\x00", b"\xff", b" ")
                )
            case 1:
                del data[at : at + rng.choice((1, 1, 5, 40))]
            case 2:
                data[at : at + 1] = bytes([rng.randrange(256)])
            case _:
                data[at:at] = data[at : at + rng.choice((1, 10, 100))]
    return bytes(data).replace(b"\n", b" ")


# --- messages --------------------------------------------------------------------------------------------


class HostileLine(NamedTuple):
    """A line without its end, and what a reader must make of it."""

    line: bytes
    id: bytes = b""
    """Of a request that is sound as a message, however wrong its params are: it must be answered once, with
    these bytes. Empty: nothing is known of it."""
    cancels: bytes = b""


def message(
    rng: Random,
    method: str,
    params: bytes,
    ident: bytes = b"",
    *,
    version: bytes = b'"2.0"',
    spoilt: float = 0.15,
) -> HostileLine:
    """A request or notification; `spoilt`: how often it is more than its params that is wrong."""
    fields = [
        ("jsonrpc", version),
        *([("id", ident)] if ident else []),
        ("method", text(method)),
        ("params", params),
    ]
    if rng.random() >= spoilt:
        gap = blank(rng)
        line = b"{" + (b"," + gap).join(text(name) + b":" + gap + raw for name, raw in fields) + b"}"
        return HostileLine(line, ident if _is_sound(line) and ident else b"")
    for _ in range(rng.randrange(3)):
        at = rng.randrange(len(fields))
        match rng.randrange(4):
            case 0:
                del fields[at]
            case 1:
                fields[at] = (fields[at][0], value(rng))
            case 2:
                fields.append((rng.choice(("id", "method", "result", "error", "params", "x")), value(rng)))
            case _:  # what may be echoed, and is perhaps no text
                fields.append(("id", weighed(rng, NUMBERS, NO_STRINGS, 0.6)))
        if not fields:
            break
    line = members(rng, fields)
    return HostileLine(mutated(rng, line) if rng.random() < 0.5 else line.replace(b"\n", b" "))


def _is_sound(line: bytes) -> bool:
    """Whether another reader than ours takes it: then so must ours. Python's takes half surrogate pairs, and
    refuses numbers of more than 4,300 digits and towers of brackets, so of these nothing is known.
    """

    def refuse(word: str) -> None:
        raise ValueError(word)

    try:
        # As text: of bytes Python's reader takes half surrogate pairs that no UTF-8 has.
        found = json.loads(line.decode(), parse_constant=refuse)
    except (ValueError, RecursionError):
        return False
    ident = found.get("id")
    return (
        isinstance(found.get("params", {}), dict)
        and isinstance(ident, str | int | float)
        and not isinstance(ident, bool)
    )


Ids = Callable[[], bytes]


def fresh_ids() -> Ids:
    """Ids of every legal kind, none twice."""
    count = 0

    def fresh() -> bytes:
        nonlocal count
        count += 1
        forms = (b"%d", b'"h%d"', b"-%d", b"%d.5", b"%de3", b'"\\u0041%d"', b'"\xc3\xa9%d"', b'"\\ud83d%d"')
        return forms[count % len(forms)] % count

    return fresh
