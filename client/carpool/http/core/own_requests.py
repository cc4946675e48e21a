"""Questions of the door itself, as dialogues: yield a question, get its answer, return what was found.

Used for `/health`, for the list at `/mcp/tools`, for the arguments that tools tell in headers, and to greet
the broker for a client that does not (`http.stateless`). Each returns `None` where the answer is an error.

Knows nothing of: streams, clients, time.
"""

from collections.abc import Callable, Generator
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import Raw, Struct

from carpool.http.core.body import CAPABILITIES_KEY, STATELESS_VERSIONS, UNREADABLE, VERSION_KEY, read_any
from carpool.http.core.headers import Annotated, annotated_arguments
from carpool_protocol.carrier.streams import ANNOTATED_TOOLS
from carpool_protocol.counters.snapshot import CountersSnapshot
from carpool_protocol.wire.json_scan import read_despite_half_pairs

MAX_PAGES: Final = 1000
MAX_ANNOTATED_PAGES: Final = 16
"""The headers of tools on later pages are not checked. A page has at most 256 KiB, so what is kept of them is
bounded, whatever a server lists.
"""
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


class OwnQuestion(NamedTuple):
    """A request of the door itself. Several may be open on one stream, each with an id of its own."""

    method: str
    params: dict[str, Any]

    def line(self, ident: int) -> bytes:
        """Return the request with this id."""
        return msgspec.json.encode({"jsonrpc": "2.0", "id": ident, **self._asdict()})


class _CountersAnswer(Struct):
    """The answer to `carpool/counters`."""

    result: CountersSnapshot | None = None


_decode_counters = msgspec.json.Decoder(_CountersAnswer).decode


class _ToolPage(Struct):
    tools: list[Raw]
    nextCursor: str | None = None  # noqa: N815 - the wire's name


class _ToolsAnswer(Struct):
    """An answer to `tools/list`, with its tools as they are written."""

    result: _ToolPage


class _Tool(Struct):
    """The members of a tool that the check of headers reads."""

    name: str = ""
    inputSchema: Raw = Raw(b"null")  # noqa: N815 - the wire's name


_decode_tools = msgspec.json.Decoder(_ToolsAnswer).decode
_decode_tool = msgspec.json.Decoder(_Tool).decode


def list_tools(has_room: Callable[[int], bool]) -> Generator[OwnQuestion, bytes, list[Raw] | None]:
    """All tools as they are written, over all pages, on a shared stream. `has_room`: counts the bytes of a
    page; False if the list gets too long.
    """
    found: list[Raw] = []
    cursor: dict[str, Any] = {}
    for _ in range(MAX_PAGES):
        answer = yield OwnQuestion("tools/list", {**cursor, "_meta": _ENVELOPE})
        page = _tool_page(answer)
        if page is None or not has_room(len(answer)):
            return None
        found += page.tools
        if page.nextCursor is None:
            break
        cursor = {"cursor": page.nextCursor}
    return found


def list_annotated() -> Generator[OwnQuestion, bytes, dict[str, Annotated] | None]:
    """Tools with arguments that are told in headers, on a shared stream. The broker leaves out the others."""
    found: dict[str, Annotated] = {}
    cursor = ANNOTATED_TOOLS
    for _ in range(MAX_ANNOTATED_PAGES):
        page = _tool_page((yield OwnQuestion("tools/list", {"cursor": cursor, "_meta": _ENVELOPE})))
        if page is None:
            return None
        for raw in page.tools:
            name, arguments = _annotations_of(bytes(raw))
            if arguments:
                found[name] = arguments
        if page.nextCursor is None:
            break
        cursor = page.nextCursor
    return found


def _tool_page(answer: bytes) -> _ToolPage | None:
    try:
        return read_despite_half_pairs(_decode_tools, answer).result
    except UNREADABLE:
        return None


def _annotations_of(tool: bytes) -> tuple[str, Annotated]:
    try:
        found = _decode_tool(tool)
        return found.name, annotated_arguments(read_any(bytes(found.inputSchema)))
    except UNREADABLE:
        return "", {}


def await_tools_changed() -> Generator[OwnQuestion, bytes, None]:
    """Returns when the list of tools has changed, or when nobody would say so."""
    yield OwnQuestion(
        "subscriptions/listen", {"notifications": {"toolsListChanged": True}, "_meta": _ENVELOPE}
    )


def greet(version: str) -> Generator[OwnQuestion, bytes, bool]:
    """Whether a new session took an `initialize`."""
    answer = yield initialize_request(version)
    return _result(answer) is not None


def initialize_request(version: str) -> OwnQuestion:
    """An `initialize` of the door itself."""
    return OwnQuestion(
        "initialize",
        {
            "protocolVersion": version,
            "capabilities": {},
            "clientInfo": {"name": "carpool-http", "version": "0"},
        },
    )


def health() -> Generator[OwnQuestion, bytes, dict[str, Any] | None]:
    """What `/health` says, from the broker's status page, on a control stream."""
    page = _result((yield OwnQuestion("carpool/status", {"within_s": SUPERVISOR_S})))
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


def metrics() -> Generator[OwnQuestion, bytes, tuple[dict[str, Any], dict[str, Any]] | None]:
    """The counters and the status page, on a control stream."""
    counters = _result((yield OwnQuestion("carpool/counters", {"within_s": SUPERVISOR_S})))
    if counters is None:
        return None
    status = _result((yield OwnQuestion("carpool/status", {"within_s": SUPERVISOR_S})))
    return None if status is None else (counters, status)


class LiveAnswers(NamedTuple):
    """The broker's answers of one moment, for the web page."""

    status: dict[str, Any]
    counters: CountersSnapshot
    calls: list[dict[str, Any]]
    recent: dict[str, Any]


def live(after: int) -> Generator[OwnQuestion, bytes, list[bytes]]:
    """The answers that the web page is made of, on a control stream, unread: a reader may take long.
    `after`: the number of the newest recent call that is known.
    """
    within = {"within_s": LIVE_SUPERVISOR_S}
    return [
        (yield OwnQuestion("carpool/status", within)),
        (yield OwnQuestion("carpool/counters", within)),
        (yield OwnQuestion("carpool/calls", {"limit": LIVE_CALLS})),
        (yield OwnQuestion("carpool/recent_calls", {"after": after})),
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


def ask_broker(method: str, params: dict[str, Any]) -> Generator[OwnQuestion, bytes, dict[str, Any] | None]:
    """The broker's answer to a request of an operator, with `result` or `error`, on a control stream."""
    try:
        found = read_any((yield OwnQuestion(method, params)))
    except UNREADABLE:
        return None
    return found if isinstance(found, dict) else None


def _result(answer: bytes) -> dict[str, Any] | None:
    try:
        found = read_any(answer)
    except UNREADABLE:
        return None
    result = found.get("result") if isinstance(found, dict) else None
    return result if isinstance(result, dict) else None
