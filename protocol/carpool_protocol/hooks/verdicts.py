"""The value that a hook receives and the verdict that it returns.

Owns `HookCall` (one JSON object for a command, one value for a Python function), the verdicts with their
constructors, and the validity of a verdict. A rewrite becomes bytes that the next agent or server reads. So
it must be one line for every reader (rule 1), an object, no larger than a message without a hook may be, and
a result of the form that its method has (rule 17). No error text repeats a value of an argument.

Pure. Knows nothing of: the configured hooks, processes, the effect of a verdict.
"""

import json
from typing import Any, Final, Literal

import msgspec
from msgspec import Raw, Struct

from carpool_protocol.faults.fault_answers import TOOLS_CALL
from carpool_protocol.ids import ABSENT, EMPTY_OBJECT, RawJson
from carpool_protocol.wire.json_scan import fields, members
from carpool_protocol.wire.jsonrpc import ResultAnswer, decode, quote
from carpool_protocol.wire.result_repair import repair_tool_result

__all__ = ["HookCall", "HookVerdict", "allow", "deny", "rewrite"]

ARGUMENTS_CAP_BYTES: Final = 8 * 1024 * 1024
RESULT_CAP_BYTES: Final = 64 * 1024 * 1024
"""The same caps as for arguments that agents send and for answers of servers."""
MAX_REASON_CHARS: Final = 300
METHODS_WITH_ARGUMENTS: Final = frozenset({TOOLS_CALL, "prompts/get"})
"""Methods with arguments, which a hook may rewrite."""

DUPLICATE_NAME: Final = (
    "a name stands twice in its arguments, and servers differ in which of the two they read"
)
"""The reason for the denial of a call that no hook can judge."""

_MEMBER: Final = {"prompts/get": "messages", "resources/read": "contents"}
_NOTHING = Raw()


class HookCall(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One call, as a hook receives it."""

    hook: str
    """The hook's own name in the configuration."""
    phase: Literal["before", "after"]
    call: str
    """The call's name in errors, logs and the audit log (`c17`)."""
    method: str
    """`tools/call`, `prompts/get` or `resources/read`."""
    server: str
    name: str
    """The server's own name for the tool or prompt, or the URI."""
    session: str
    agent: str = ""
    """The name that the agent or its program gives itself. It proves nothing."""
    profile: str = ""
    workspace: str = ""
    """The root of the session's workspace; empty: it has none."""
    arguments: dict[str, Any] = {}
    """The arguments as they are sent to the server. After a call: as they were sent."""
    outcome: Literal["", "answered", "refused", "unavailable", "lost"] = ""
    """After a call: how it ended.

    `answered`: `result` or `error` is the server's. The others are errors of carpool itself (`code`), which
    the agent already has; a verdict does not change them.
    """
    code: str = ""
    """The code of carpool's error (docs/errors.md)."""
    result: dict[str, Any] | None = None
    error: dict[str, Any] | None = None
    """The JSON-RPC error object of the server. (A failed tool is a result with `isError`.)"""


class HookVerdict(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """The verdict of a hook. Made by `allow`, `deny` and `rewrite`."""

    verdict: Literal["allow", "deny", "rewrite"]
    reason: str = ""
    """Why the hook denies, for the agent: one line of at most `MAX_REASON_CHARS` characters."""
    arguments: dict[str, Any] | None = None
    result: dict[str, Any] | None = None


def allow() -> HookVerdict:
    """Let the call or answer pass unchanged.

    A function that returns None and a command that prints nothing mean the same.
    """
    return HookVerdict(verdict="allow")


def deny(reason: str = "") -> HookVerdict:
    """Do not send the call; after the call: withhold its answer. `reason` is for the agent."""
    return HookVerdict(verdict="deny", reason=reason)


def rewrite(*, arguments: dict[str, Any] | None = None, result: dict[str, Any] | None = None) -> HookVerdict:
    """Replace the arguments before the call, or the result after it. The configuration must permit that."""
    return HookVerdict(verdict="rewrite", arguments=arguments, result=result)


class HookDescription(Struct, kw_only=True, omit_defaults=True):
    """`HookCall` in the form that is written to the hook. Text of agents and servers stays byte for byte."""

    hook: str
    phase: Literal["before", "after"]
    call: str
    method: str
    server: str
    name: str
    session: str
    agent: str = ""
    profile: str = ""
    workspace: str = ""
    arguments: Raw = _NOTHING
    outcome: str = ""
    code: str = ""
    result: Raw = _NOTHING
    error: Raw = _NOTHING


class HookOutput(Struct, frozen=True):
    """A checked verdict of a hook."""

    verdict: Literal["allow", "deny", "rewrite", "failed"]
    reason: str = ""
    """Of a denial: the hook's reason. Of a failure: carpool's."""
    body: RawJson = ABSENT
    """Of a rewrite: the new arguments or result."""


class _Verdict(Struct, forbid_unknown_fields=True):
    verdict: Literal["allow", "deny", "rewrite"]
    reason: str = ""
    arguments: Raw = _NOTHING
    result: Raw = _NOTHING


_read = msgspec.json.Decoder(_Verdict).decode


def read_verdict(raw: bytes, method: str, *, before: bool) -> HookOutput:
    """The checked verdict in a hook's output, or `failed` with the reason. Never raises."""
    try:
        found = _read(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return HookOutput("failed", "its output is not a verdict (`carpool docs hooks`)")
    parts = {name: part for name in ("arguments", "result") if (part := getattr(found, name)) is not _NOTHING}
    wanted = "arguments" if before else "result"
    if found.verdict == "allow" and not parts:
        return HookOutput("allow")
    if found.verdict == "deny" and not parts:
        return HookOutput("deny", clean_reason(found.reason))
    if found.verdict != "rewrite" or [*parts] != [wanted]:
        return HookOutput(
            "failed",
            f"its verdict does not fit: rewrite needs {wanted}, and the other verdicts have no content",
        )
    if before and method not in METHODS_WITH_ARGUMENTS:
        return HookOutput("failed", f"it rewrites the arguments of {method}, which has none")
    return _checked_output(bytes(parts[wanted]), method, wanted)


def _checked_output(raw: bytes, method: str, wanted: str) -> HookOutput:
    cap_bytes = ARGUMENTS_CAP_BYTES if wanted == "arguments" else RESULT_CAP_BYTES
    if len(raw) > cap_bytes:
        return HookOutput("failed", f"its {wanted} are larger than {cap_bytes} bytes")
    read = decode(b'{"jsonrpc":"2.0","id":0,"result":%b}' % raw)
    body = read.result if isinstance(read, ResultAnswer) else ABSENT
    if body[:1] != b"{":
        return HookOutput("failed", f"its {wanted} are not a JSON object, or one that cannot be passed on")
    if wanted == "result":
        if method == TOOLS_CALL:
            why = repair_tool_result(body)[1]
        else:
            members = fields(body) or {}
            why = "" if members.get(_MEMBER[method], b"")[:1] == b"[" else f"it has no {_MEMBER[method]}"
        if why:
            return HookOutput("failed", f"its result is not one of {method}: {why}")
    return HookOutput("rewrite", body=body)


def is_plain(rest: RawJson) -> bool:
    """True if each name stands once in the params of a call.

    Then the hook gets the arguments that every server reads, whether it uses the first or the last of two
    equal names.
    """
    if not rest:
        return True
    cuts, found = members(rest), fields(rest)
    return cuts is not None and found is not None and len(cuts) == len(found)


def has_duplicate_keys(raw: bytes) -> bool:
    """True if some object in this JSON has a key twice. Raises `RecursionError` for too deep nesting."""

    def look(pairs: list[tuple[str, Any]]) -> None:
        if len(dict(pairs)) < len(pairs):
            raise _DuplicateKeyError

    try:
        json.loads(raw, object_pairs_hook=look, parse_int=bool, parse_float=bool)
    except _DuplicateKeyError:
        return True
    return False


class _DuplicateKeyError(Exception):
    pass


def clean_reason(text: str) -> str:
    """The reason as one printable line of at most `MAX_REASON_CHARS` characters."""
    line = " ".join("".join(each if each.isprintable() else " " for each in text).split())
    return line if len(line) <= MAX_REASON_CHARS else line[: MAX_REASON_CHARS - 1] + "…"


def arguments_of(rest: RawJson) -> RawJson:
    """The `arguments` object in the params of a call, which are legal JSON; `{}` if there is none."""
    found = (fields(rest or EMPTY_OBJECT) or {}).get("arguments", b"")
    return RawJson(found) if found[:1] == b"{" else EMPTY_OBJECT


def with_arguments(rest: RawJson, arguments: RawJson) -> RawJson:
    """The params with other `arguments` and everything else unchanged."""
    found = {**(fields(rest or EMPTY_OBJECT) or {}), "arguments": arguments}
    return RawJson(b"{%b}" % b",".join(quote(key) + b":" + raw for key, raw in found.items()))
