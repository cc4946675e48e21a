"""Questions of the door itself, as dialogues: yield a request line, get its answer, return what was found.

Used for `/health`, for the list at `/mcp/tools`, for the arguments that tools tell in headers, and to greet
the broker for a client that does not (`http.stateless`). Each returns `None` where the answer is an error.

Knows nothing of: streams, clients, time.
"""

from collections.abc import Generator
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import Struct

from carpool.http.core.body import CAPABILITIES_KEY, STATELESS_VERSIONS, UNREADABLE, VERSION_KEY
from carpool.http.core.headers import Annotated, annotated_arguments
from carpool_protocol.counters.snapshot import CountersSnapshot

MAX_PAGES: Final = 1000
SUPERVISOR_S: Final = 0.5
"""`/health` lets the broker wait so long for the supervisor: less than it waits for the broker itself."""
LIVE_SUPERVISOR_S: Final = 1.0
"""The web page lets the broker wait so long for the supervisor."""
LIVE_CALLS: Final = 200
"""The most open calls that are asked for, for the web page."""
_ENVELOPE: Final = {
    VERSION_KEY: STATELESS_VERSIONS[-1],
    CAPABILITIES_KEY: {},
    "io.modelcontextprotocol/clientInfo": {"name": "carpool-http", "version": "0"},
}
INITIALIZED: Final = b'{"jsonrpc":"2.0","method":"notifications/initialized"}'


class _CountersAnswer(Struct):
    """The answer to `carpool/counters`."""

    result: CountersSnapshot | None = None


_decode_counters = msgspec.json.Decoder(_CountersAnswer).decode


def list_tools() -> Generator[bytes, bytes, list[Any] | None]:
    """All tools, over all pages, on a shared stream."""
    found: list[Any] = []
    cursor: dict[str, Any] = {}
    for _ in range(MAX_PAGES):
        result = _result((yield _request("tools/list", {**cursor, "_meta": _ENVELOPE})))
        if result is None or not isinstance(result.get("tools"), list):
            return None
        found += result["tools"]
        if not isinstance(result.get("nextCursor"), str):
            break
        cursor = {"cursor": result["nextCursor"]}
    return found


def list_annotated() -> Generator[bytes, bytes, dict[str, Annotated] | None]:
    """Tools with arguments that are told in headers, on a shared stream."""
    tools = yield from list_tools()
    if tools is None:
        return None
    named = ((each.get("name"), annotated_arguments(each.get("inputSchema"))) for each in tools)
    return {name: arguments for name, arguments in named if isinstance(name, str) and arguments}


def await_tools_changed() -> Generator[bytes, bytes, None]:
    """Returns when the list of tools has changed, or when nobody would say so."""
    yield _request("subscriptions/listen", {"notifications": {"toolsListChanged": True}, "_meta": _ENVELOPE})


def greet(version: str) -> Generator[bytes, bytes, bool]:
    """Whether a new session took an `initialize`."""
    answer = yield initialize_request(version)
    return _result(answer) is not None


def initialize_request(version: str) -> bytes:
    """An `initialize` of the door itself."""
    return _request(
        "initialize",
        {
            "protocolVersion": version,
            "capabilities": {},
            "clientInfo": {"name": "carpool-http", "version": "0"},
        },
    )


def health() -> Generator[bytes, bytes, dict[str, Any] | None]:
    """What `/health` says, from the broker's status page, on a control stream."""
    page = _result((yield _request("carpool/status", {"within_s": SUPERVISOR_S})))
    if page is None:
        return None
    servers = page.get("servers") or {}
    return {
        "healthy": bool(page.get("healthy")),
        "reason": str(page.get("reason", "")),
        "silent": page.get("silent"),
        "tool_count": sum(int(each.get("tools", 0)) for each in servers.values()),
        "uptime_s": (page.get("broker") or {}).get("uptime_s", 0.0),
        "servers": {
            name: {
                "state": each.get("state", ""),
                "tools": each.get("tools", 0),
                "instances": len(each.get("instances") or ()),
            }
            for name, each in servers.items()
        },
    }


def metrics() -> Generator[bytes, bytes, tuple[dict[str, Any], dict[str, Any]] | None]:
    """The counters and the status page, on a control stream."""
    counters = _result((yield _request("carpool/counters", {"within_s": SUPERVISOR_S})))
    if counters is None:
        return None
    status = _result((yield _request("carpool/status", {"within_s": SUPERVISOR_S})))
    return None if status is None else (counters, status)


class LiveAnswers(NamedTuple):
    """The broker's answers of one moment, for the web page."""

    status: dict[str, Any]
    counters: CountersSnapshot
    calls: list[dict[str, Any]]
    recent: dict[str, Any]


def live(after: int) -> Generator[bytes, bytes, list[bytes]]:
    """The answers that the web page is made of, on a control stream, unread: a reader may take long.
    `after`: the number of the newest recent call that is known.
    """
    within = {"within_s": LIVE_SUPERVISOR_S}
    return [
        (yield _request("carpool/status", within)),
        (yield _request("carpool/counters", within)),
        (yield _request("carpool/calls", {"limit": LIVE_CALLS})),
        (yield _request("carpool/recent_calls", {"after": after})),
    ]


def read_live(answers: list[bytes], after: int) -> LiveAnswers | None:
    """Read the answers of `live`; None if one of them is an error."""
    status, calls = _result(answers[0]), _result(answers[2])
    try:
        counters = _decode_counters(answers[1]).result
    except UNREADABLE:
        counters = None
    if status is None or counters is None or calls is None:
        return None
    recent = _result(answers[3])
    if recent is None:  # a broker of an earlier version keeps none
        recent = {"calls": [], "newest": after, "left_out": 0}
    return LiveAnswers(status, counters, calls["calls"], recent)


def ask_broker(method: str, params: dict[str, Any]) -> Generator[bytes, bytes, dict[str, Any] | None]:
    """The broker's answer to a request of an operator, with `result` or `error`, on a control stream."""
    try:
        found = msgspec.json.decode((yield _request(method, params)))
    except UNREADABLE:
        return None
    return found if isinstance(found, dict) else None


def _request(method: str, params: dict[str, Any]) -> bytes:
    return msgspec.json.encode({"jsonrpc": "2.0", "id": 1, "method": method, "params": params})


def _result(answer: bytes) -> dict[str, Any] | None:
    try:
        found = msgspec.json.decode(answer)
    except UNREADABLE:
        return None
    result = found.get("result") if isinstance(found, dict) else None
    return result if isinstance(result, dict) else None
