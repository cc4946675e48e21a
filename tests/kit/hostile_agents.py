"""What a hostile agent writes: attach lines, requests of both eras, answers nobody asked for, frames.

Knows nothing of: what must come of it (`hostile.Said` has what is certain).
"""

from random import Random
from typing import Final

from carpool_protocol.bootstrap.carrier_contract import ATTACH_VERSION
from tests.kit.hostile import (
    BLANKS,
    NAMES,
    VERSIONS,
    HostileLine,
    Ids,
    bomb,
    members,
    message,
    mutated,
    one_of,
    scalar,
    text,
    value,
)

TOOLS: Final = (
    *(b'"good__echo"', b'"good__echo"', b'"bad__echo"', b'"good__never"', b'"bad__never"', b'"echo"'),
    *(b'"mcp__good__echo"', b'"nowhere__echo"', b'"new__echo"', b'"new__never"'),
)
OWN: Final = (
    *(b'"call_tool"', b'"call_tool"', b'"find_tools"', b'"describe_tool"', b'"read_resource"'),
    *(b'"get_prompt"', b'"list_resources"', b'"list_prompts"'),
)
META: Final = "io.modelcontextprotocol/"
CAPABILITIES: Final = (
    *(
        b"{}",
        b"{}",
        b'{"sampling":{}}',
        b'{"elicitation":{}}',
        b'{"elicitation":{"url":{},"form":{}},"sampling":{}}',
    ),
    *(b'{"roots":{"listChanged":true}}', b'{"extensions":{"io.modelcontextprotocol/tasks":{}}}'),
)
URIS: Final = (b'"x://y"', b'"x://parts"', b'"file:///etc/passwd"', b'"nothing"', b'""')
CURSORS: Final = (b'"0"', b'""', b"null", b'"eyJ"', b'"m.1.1"')
LEVELS: Final = (b'"debug"', b'"info"', b'"emergency"', b'"loud"', b'""')


def meta(rng: Random) -> bytes:
    """A `_meta`: of the handshake era, or of the stateless one."""
    fields = []
    if rng.random() < 0.6:
        fields.append(("progressToken", one_of(rng, b"1", b'"t"', b"1.5", b"1")))
    if rng.random() < 0.4:
        version = text(rng.choice(VERSIONS)) if rng.random() < 0.3 else b'"2026-07-28"'
        fields.append((META + "protocolVersion", one_of(rng, version, odd=0.05)))
        fields.append((META + "clientCapabilities", one_of(rng, *CAPABILITIES)))
        if rng.random() < 0.4:
            fields.append((META + "clientInfo", one_of(rng, b'{"name":"m","version":"1"}')))
        if rng.random() < 0.3:
            fields.append((META + "logLevel", one_of(rng, *LEVELS)))
    if rng.random() < 0.1:
        fields.append((META + "related-task", value(rng)))
    if rng.random() < 0.1:
        trace = b'"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"'
        fields.append(("traceparent", one_of(rng, trace)))
    return members(rng, fields)


def own_arguments(rng: Random) -> bytes:
    """Nearly right for a tool of carpool's own."""
    fields = [("name", one_of(rng, *TOOLS, *OWN))] if rng.random() < 0.7 else []
    fields += [("arguments", one_of(rng, b"{}", b'{"text":"x"}', odd=0.3))] if rng.random() < 0.7 else []
    fields += [("uri", one_of(rng, *URIS))] if rng.random() < 0.2 else []
    fields += [("query", one_of(rng, b'"echo"', b'""'))] if rng.random() < 0.3 else []
    fields += [("limit", one_of(rng, b"3", b"1e400"))] if rng.random() < 0.1 else []
    return members(rng, fields) if rng.random() < 0.95 else value(rng)


def params(rng: Random, method: str, ids: list[bytes]) -> bytes:  # noqa: C901 - an arm per method
    """Nearly right for this method. `ids`: requests said before."""
    fields: list[tuple[str, bytes]] = []
    known = rng.choice(ids) if ids else b"1"
    match method:
        case "tools/call" if rng.random() < 0.3:
            fields = [("name", one_of(rng, *OWN)), ("arguments", own_arguments(rng))]
        case "tools/call":
            fields = [
                ("name", one_of(rng, *TOOLS)),
                ("arguments", one_of(rng, b"{}", b'{"text":"x"}', odd=0.3)),
            ]
        case "prompts/get":
            fields = [("name", one_of(rng, b'"good__tell"', b'"tell"')), ("arguments", value(rng))]
        case "resources/read" | "resources/subscribe" | "resources/unsubscribe":
            fields = [("uri", one_of(rng, *URIS))]
        case "completion/complete":
            ref = one_of(
                rng,
                b'{"type":"ref/prompt","name":"good__tell"}',
                b'{"type":"ref/resource","uri":"x://{part}"}',
            )
            fields = [("ref", ref), ("argument", one_of(rng, b'{"name":"a","value":"b"}'))]
        case "logging/setLevel":
            fields = [("level", one_of(rng, *LEVELS))]
        case "initialize":
            info = members(rng, [("name", text(rng.choice(NAMES))), ("version", b'"1"')])
            fields = [
                ("protocolVersion", one_of(rng, text(rng.choice(VERSIONS)))),
                ("capabilities", one_of(rng, *CAPABILITIES)),
                ("clientInfo", one_of(rng, info)),
            ]
        case "notifications/cancelled":
            fields = [("requestId", one_of(rng, known)), ("reason", one_of(rng, b'"why"'))]
        case "notifications/progress":
            fields = [("progressToken", one_of(rng, known, b'"carpool-1"')), ("progress", scalar(rng))]
        case "subscriptions/listen":
            wish = b'{"toolsListChanged":true,"resourceSubscriptions":["x://y"]}'
            fields = [("notifications", one_of(rng, wish, odd=0.4))]
        case "tasks/get" | "tasks/update" | "tasks/cancel" | "tasks/result":
            fields = [("taskId", one_of(rng, b'"t1"'))]
        case _ if method.endswith("list"):
            fields = [("cursor", one_of(rng, *CURSORS))] if rng.random() < 0.3 else []
        case _:
            return value(rng)
    if rng.random() < 0.1:
        fields.append(("requestState", one_of(rng, b'"abc"', b'"' + b"A" * 64 + b'"')))
        fields.append(("inputResponses", one_of(rng, b"{}", b'{"a":{"action":"accept"}}')))
    if rng.random() < 0.6:
        fields.append(("_meta", one_of(rng, meta(rng), odd=0.05)))
    return members(rng, fields)


REQUESTS: Final = (
    *("tools/call",) * 8,
    *(
        "tools/list",
        "prompts/list",
        "resources/list",
        "resources/templates/list",
        "prompts/get",
        "resources/read",
    ),
    *(
        "resources/subscribe",
        "resources/unsubscribe",
        "completion/complete",
        "logging/setLevel",
        "initialize",
        "ping",
    ),
    *("server/discover", "subscriptions/listen", "tasks/get", "tasks/update", "tasks/cancel", "tasks/result"),
    *("carpool/status", "carpool/operate", "no/such", "", "notifications/initialized", "\x1b[31m", "\ud83d"),
)
NOTIFICATIONS: Final = (
    *("notifications/cancelled",) * 3,
    *(
        "notifications/initialized",
        "notifications/progress",
        "notifications/roots/list_changed",
        "tools/call",
    ),
    *("notifications/tasks/status", "carpool/attach", "carpool/environment", "no/such", ""),
)
ANSWERS: Final = (
    b'"carpool-roots-1"',
    b'"carpool-roots"',
    b"1",
    b'"1"',
    b'"ask-1"',
    b"null",
    b'"carpool-ask-1"',
)


def answer(rng: Random) -> HostileLine:
    """An answer to what was never asked, or to what was."""
    what = ("result", value(rng)) if rng.random() < 0.6 else ("error", value(rng))
    fields = [("jsonrpc", b'"2.0"'), ("id", one_of(rng, *ANSWERS)), what]
    if rng.random() < 0.1:
        fields.append(("method", value(rng, 0)))
    return HostileLine(members(rng, fields).replace(b"\n", b" "))


def line(rng: Random, fresh: Ids, ids: list[bytes]) -> HostileLine:
    """One line of a session."""
    roll = rng.random()
    if roll < 0.65:
        method = rng.choice(REQUESTS)
        ident = one_of(rng, fresh(), odd=0.06) if rng.random() < 0.9 or not ids else rng.choice(ids)
        said = message(rng, method, params(rng, method, ids), ident)
        ids.append(ident)
        return said._replace(id=b"") if method == "subscriptions/listen" else said  # it stays open
    if roll < 0.8:
        method = rng.choice(NOTIFICATIONS)
        said = message(rng, method, params(rng, method, ids))
        return said._replace(cancels=b"?" if method == "notifications/cancelled" else b"")
    if roll < 0.9:
        return answer(rng)
    if roll < 0.93:
        inner = [line(rng, fresh, ids).line for _ in range(rng.randrange(4))]
        return HostileLine(b"[" + b",".join(inner) + b"]", cancels=b"?")
    if roll < 0.95:
        return HostileLine(bomb(rng))
    return HostileLine(mutated(rng, value(rng, 3)))


def attach(rng: Random) -> bytes:
    """An attach line, right or nearly."""
    run = b'{"argv":["x","echo"],"env":{"A":"secret-value"},"cwd":"/"}'
    fields = [
        ("version", one_of(rng, b"%d" % ATTACH_VERSION, odd=0.08)),
        ("carrier", one_of(rng, b'"shim"', b'"cli"', b'"client"', b'"door"', b'"run"', odd=0.05)),
        ("pid", one_of(rng, b"1", b"-1", odd=0.05)),
        ("cwd", one_of(rng, b'"/tmp"', b'""', b'"relative"', text(rng.choice(NAMES)), odd=0.05)),
        ("agent", one_of(rng, text(rng.choice(NAMES)), odd=0.05)),
    ]
    for name, odds, *likely in (
        ("streams", 0.2, b"true", b"false"),
        ("control", 0.1, b"true", b"false"),
        ("server", 0.2, b'"good"', b'"nope"', b'""'),
        ("profile", 0.3, b'"reader"', b'"reader"', b'""'),
        ("run", 0.2, run, run.replace(b'"x"', text(rng.choice(NAMES)))),
    ):
        if rng.random() < odds:
            fields.append((name, one_of(rng, *likely, odd=0.1)))
    whole = b'{"jsonrpc":"2.0","method":"carpool/attach","params":%b}' % members(rng, fields)
    return mutated(rng, whole) if rng.random() < 0.05 else whole.replace(b"\n", b" ")


def door_attach() -> bytes:
    """The attach line of a carrier with many streams."""
    params = b'{"version":%d,"carrier":"door","streams":true}' % ATTACH_VERSION
    return b'{"jsonrpc":"2.0","method":"carpool/attach","params":%b}' % params


def environment(rng: Random) -> bytes:
    """A carrier's environment line."""
    values = one_of(rng, b'{"NAME":"v"}', b'{"NAME":"\\u0000"}', b"{}", odd=0.2)
    return b'{"jsonrpc":"2.0","method":"carpool/environment","params":%b}' % values


WORDS: Final = (
    *(
        b'{"open":{}}',
        b'{"open":{"kind":"shared"}}',
        b'{"open":{"profile":"reader"}}',
        b'{"open":{"kind":"shared","principal":"p"}}',
        b'{"close":{}}',
    ),
    *(
        b'{"open":{"resume":{"session":"s1","secret":"0.0","kept":1,"open":2,"asks":["a"]}}}',
        b'{"open":{"kind":"shared","resume":{"session":"s1","secret":"","kept":1,"open":-1}}}',
        b'{"open":{"resume":{"session":"","secret":"s1"}}}',
    ),
    *(
        b'{"open":{"kind":"control"}}',
        b'{"gone":1}',
        b'{"gone":2}',
        b'{"open":{"server":"nope"}}',
        b'{"over":1}',
    ),
    *(
        b'{"open":{"max_open_calls":-5}}',
        b'{"open":{"server":"good","agent":"\\u001b"}}',
        b"{}",
        b'{"gone":-1}',
    ),
    *(
        b'{"open":{},"close":{}}',
        b'{"gone":99999999999999999999}',
        b'{"closed":{}}',
        b"null",
        b'{"open":null}',
    ),
)


def frame(rng: Random, stream: int, fresh: Ids, ids: list[bytes]) -> bytes:
    """A frame of a carrier with many streams."""
    roll = rng.random()
    number = b"%d" % max(0, stream + rng.choice((0, 0, 0, 0, 1, -1, 7)))
    if roll < 0.2:
        return b"[%b,null,%b]" % (number, one_of(rng, *WORDS, odd=0.05).replace(b"\n", b" "))
    inner = line(rng, fresh, ids).line
    exchange = rng.choice((b",1", b",2", b",3", b",%d" % rng.randrange(1, 99), b"", b",0", b",%d" % 10**17))
    made = b"[%b,%b%b]" % (number, inner, exchange)
    return mutated(rng, made) if roll > 0.98 else made + rng.choice(BLANKS if roll > 0.97 else (b"",))
