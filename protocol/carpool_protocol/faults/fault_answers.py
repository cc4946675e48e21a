"""Faults as agents read them, and the exceptions for bugs in carpool.

Owns the value `Fault`, its text, the shape of `_meta["carpool/error"]`, and the one function (`fault_answer`)
that chooses between a tool result and a JSON-RPC error. The table in `kinds` lists all faults. Texts hold
names, numbers and advice, never the value of an argument or of an environment variable; callers keep `detail`
free of them too.

Knows nothing of: sockets, sessions, errors of servers (those pass through unchanged).
Decision: docs/decisions/0006.
"""

from typing import Final

import msgspec
from msgspec import Struct

from carpool_protocol.faults.kinds import KINDS, FaultKind
from carpool_protocol.ids import RawJson
from carpool_protocol.link.messages import CallFailed, Delivered

ERROR_META_KEY: Final = "carpool/error"
TOOLS_CALL: Final = "tools/call"

_MAX_NAME_CHARS: Final = 128
_MAX_TEXT_CHARS: Final = 4096


class Fault(Struct, frozen=True, kw_only=True):
    """One request that ends with an error of carpool. Made by `fault` or `fault_of`; a value, not an
    exception.
    """

    slug: str
    delivered: Delivered
    text: str
    """Complete sentences for a model: what happened, whether it was delivered, what to do next."""
    retry_after_s: float | None = None
    server: str = ""
    tool: str = ""
    """The server's own name for the tool."""
    call: str = ""
    """Carpool's own name for the call."""

    @property
    def kind(self) -> FaultKind:
        """The row of this fault in the table."""
        return KINDS[self.slug]


def fault(
    slug: str,
    *,
    detail: str = "",
    retry_after_s: float | None = None,
    server: str = "",
    tool: str = "",
    call: str = "",
) -> Fault:
    """A fault of this kind with its complete text.

    `detail`: whole sentences (an exit status, a limit, candidates) without argument and environment values. A
    slug that is not in the table raises a `Bug`.
    """
    kind = KINDS.get(slug)
    if kind is None:
        raise InvariantBroken(f"fault slug {slug!r} is not in the table")
    server, tool = _clean(server, _MAX_NAME_CHARS), _clean(tool, _MAX_NAME_CHARS)
    return Fault(
        slug=slug,
        delivered=kind.delivered,
        text=_text(kind, _clean(detail, _MAX_TEXT_CHARS), retry_after_s, server, tool),
        retry_after_s=retry_after_s,
        server=server,
        tool=tool,
        call=call,
    )


def fault_of(failed: CallFailed, *, server: str = "", tool: str = "", call: str = "") -> Fault:
    """The fault for a failure that the supervisor reported. Its text stays.

    If slug and `delivered` disagree, the worse one counts: a slug that this release does not know, or one
    that contradicts `delivered`, becomes the general slug of its family.
    """
    known = KINDS.get(failed.fault)
    slug = failed.fault if known is not None else "unavailable"
    if failed.delivered == "maybe" and KINDS[slug].family != "lost":
        slug = "lost"
    kind = KINDS[slug]
    server, tool = _clean(server, _MAX_NAME_CHARS), _clean(tool, _MAX_NAME_CHARS)
    return Fault(
        slug=slug,
        delivered=kind.delivered,
        text=_clean(failed.text, _MAX_TEXT_CHARS) or _text(kind, "", failed.retry_after_s, server, tool),
        retry_after_s=failed.retry_after_s,
        server=server,
        tool=tool,
        call=call,
    )


def fault_answer(fault: Fault, method: str) -> tuple[bool, RawJson]:
    """The answer for a fault: `(is_error, body)`, as in `messages.Answered`.

    `tools/call` gets a result with `isError`, which a model reads and can act on. Every other method, an
    unknown method (`""`) and a request that was wrong in itself get a JSON-RPC error object (MCP,
    server/tools, "Error Handling": unknown tools and invalid arguments are protocol errors).
    """
    if method == TOOLS_CALL and not fault.kind.protocol:
        return False, as_tool_result(fault)
    code, message, data = as_error(fault)
    return True, RawJson(_encode({"code": code, "message": message, "data": msgspec.Raw(data)}))


def as_tool_result(fault: Fault) -> RawJson:
    """`{"content": [...], "isError": true, "_meta": {"carpool/error": ...}}`."""
    return RawJson(
        _encode(
            {
                "content": [{"type": "text", "text": fault.text}],
                "isError": True,
                "_meta": {ERROR_META_KEY: _meta(fault)},
            }
        )
    )


def as_error(fault: Fault) -> tuple[int, str, RawJson]:
    """Code, message and data of a JSON-RPC error. `data` equals `_meta["carpool/error"]` of a result."""
    return fault.kind.code, fault.text, RawJson(_encode(_meta(fault)))


def as_sentence(text: str) -> str:
    """`text` with one mark at its end: "no such file" and "no such file.." both become "no such file."."""
    text = text.rstrip()
    while text.endswith(("..", "?.", "!.")) and not text.endswith("..."):
        text = text[:-1]
    return text if not text or text.endswith((".", "?", "!", "…")) else f"{text}."


_encode: Final = msgspec.json.Encoder().encode


def _meta(fault: Fault) -> dict[str, str | float | None]:
    return {
        "code": fault.slug,
        "delivered": fault.delivered,
        "retry_after_s": fault.retry_after_s,
        "server": fault.server,
        "tool": fault.tool,
        "call": fault.call,
    }


def _text(kind: FaultKind, detail: str, retry_after_s: float | None, server: str, tool: str) -> str:
    where = f"[{server}: {tool}] " if server and tool else f"[{server or tool}] " if server or tool else ""
    parts = [where + kind.what]
    if detail:
        parts.append(as_sentence(detail))
    if kind.family == "unavailable":
        parts.append("Nothing was executed.")
    elif kind.family == "lost":
        parts.append("The call may have been executed.")
    parts.append(kind.advice.replace("SERVER", server) if server else kind.advice)
    if retry_after_s is not None:
        parts.append(f"Wait at least {max(round(retry_after_s, 1), 0.1):g} s first.")
    return " ".join(parts)


def _clean(text: str, max_chars: int) -> str:
    """`text` cut to size and safe for encoders (no lone surrogates), log lines and terminals.

    C1 characters are removed too: a terminal reads 0x9b as it reads `ESC [`.
    """
    if len(text) > max_chars:
        text = text[: max_chars - 1] + "…"
    return text.encode("utf-8", "replace").decode().translate(_CONTROLS)


_CONTROLS: Final = dict.fromkeys((*range(0x20), *range(0x7F, 0xA0), 0x2028, 0x2029), " ")


class Bug(Exception):  # noqa: N818 - the word for it; "BugError" says nothing more
    """A bug in carpool. Never caught below `main`: the journal is dumped and the process exits with 70.

    It is then started again. No bytes that a peer sends may ever cause a `Bug`.
    """


class InvalidTransition(Bug):
    """A shell fed its core an event that cannot happen in this state."""

    def __init__(self, machine: str, state: str, event: str, story: tuple[str, ...] = ()) -> None:
        super().__init__(f"{machine}: {event} cannot happen in state {state}", *story)
        self.machine = machine
        self.state = state
        self.event = event
        self.story = story


class InvariantBroken(Bug):
    """Two facts of one core contradict each other, or a caller broke the core's contract."""

    def __init__(self, what: str, story: tuple[str, ...] = ()) -> None:
        super().__init__(what, *story)
        self.what = what
        self.story = story
