"""What a hook is told and what it says: the shapes that cross to it and back.

Owns `HookCall` (one JSON object for a command, one value for a Python function), the verdicts with their
makers, and what makes a verdict sound. A rewriting is bytes that the next agent or server reads: one line for
every reader (rule 1), an object, no larger than what may cross without a hook, and a result of the form that
its method has (rule 17). Nothing here repeats a value of an argument in a message.

Pure. Knows nothing of: which hooks there are, processes, what follows from a verdict.
"""

import json
from typing import Any, Final, Literal

import msgspec
from msgspec import Raw, Struct

from carpool_protocol.faults.faults import TOOLS_CALL
from carpool_protocol.ids import ABSENT, EMPTY_OBJECT, RawJson
from carpool_protocol.wire.json_scan import fields, members
from carpool_protocol.wire.jsonrpc import ResultAnswer, decode, quote
from carpool_protocol.wire.result_repair import repair_tool_result

__all__ = ["HookCall", "HookVerdict", "allow", "deny", "rewrite"]

ARGUMENTS_CAP_BYTES: Final = 8 * 1024 * 1024
RESULT_CAP_BYTES: Final = 64 * 1024 * 1024
"""As for arguments that agents send, and for answers of servers."""
MAX_REASON_CHARS: Final = 300
METHODS_WITH_ARGUMENTS: Final = frozenset({TOOLS_CALL, "prompts/get"})
"""Methods that have arguments, which a hook may rewrite."""

DUPLICATE_NAME: Final = (
    "a name stands twice in its arguments, and servers differ in which of the two they read"
)
"""Why a call is denied that no hook can judge."""

_MEMBER: Final = {"prompts/get": "messages", "resources/read": "contents"}
_NOTHING = Raw()


class HookCall(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One call, as a hook is told of it."""

    hook: str
    """The hook's own name in the configuration."""
    phase: Literal["before", "after"]
    call: str
    """The call's name in errors, logs and the audit log."""
    method: str
    """`tools/call`, `prompts/get` or `resources/read`."""
    server: str
    name: str
    """The server's own name of the tool or prompt, or the URI."""
    session: str
    agent: str = ""
    """What the agent calls itself, or its program is called; any agent can say anything."""
    profile: str = ""
    workspace: str = ""
    """The root of the session's workspace; empty where it is in none."""
    arguments: dict[str, Any] = {}
    """As they are sent to the server. After a call: as they were sent."""
    outcome: Literal["", "answered", "refused", "unavailable", "lost"] = ""
    """After a call: how it ended. `answered`: `result` or `error` is the server's. The others are errors of
    carpool itself (`code`), which the agent has already: nothing that a hook says changes them.
    """
    code: str = ""
    """Of such an error (docs/errors.md)."""
    result: dict[str, Any] | None = None
    error: dict[str, Any] | None = None
    """The JSON-RPC error object that the server gave. (A tool's own failure is a result with `isError`.)"""


class HookVerdict(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """What a hook says. Made by `allow`, `deny` and `rewrite`."""

    verdict: Literal["allow", "deny", "rewrite"]
    reason: str = ""
    """Of a denial: for the agent, so that it can do better. One line, `MAX_REASON_CHARS` at most."""
    arguments: dict[str, Any] | None = None
    result: dict[str, Any] | None = None


def allow() -> HookVerdict:
    """Let it pass as it is. So does a function that returns None and a command that prints nothing."""
    return HookVerdict(verdict="allow")


def deny(reason: str = "") -> HookVerdict:
    """Do not send the call, or after it: keep its answer back. `reason` is for the agent."""
    return HookVerdict(verdict="deny", reason=reason)


def rewrite(*, arguments: dict[str, Any] | None = None, result: dict[str, Any] | None = None) -> HookVerdict:
    """Other arguments before the call, or another result after it. The configuration has to permit that."""
    return HookVerdict(verdict="rewrite", arguments=arguments, result=result)


class HookDescription(Struct, kw_only=True, omit_defaults=True):
    """`HookCall` as it is written: what agents and servers wrote goes through byte for byte."""

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
    """A verdict that may be acted on."""

    verdict: Literal["allow", "deny", "rewrite", "failed"]
    reason: str = ""
    """Of a denial the hook's, of a failure ours."""
    body: RawJson = ABSENT
    """Of a rewriting: the arguments or the result."""


class _Verdict(Struct, forbid_unknown_fields=True):
    verdict: Literal["allow", "deny", "rewrite"]
    reason: str = ""
    arguments: Raw = _NOTHING
    result: Raw = _NOTHING


_read = msgspec.json.Decoder(_Verdict).decode


def read_verdict(raw: bytes, method: str, *, before: bool) -> HookOutput:
    """What a hook says, or why it counts as failed. No bytes raise."""
    try:
        found = _read(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return HookOutput("failed", "what it said is no verdict (docs/hooks.md)")
    given = {name: part for name in ("arguments", "result") if (part := getattr(found, name)) is not _NOTHING}
    wanted = "arguments" if before else "result"
    if found.verdict == "allow" and not given:
        return HookOutput("allow")
    if found.verdict == "deny" and not given:
        return HookOutput("deny", clean_reason(found.reason))
    if found.verdict != "rewrite" or [*given] != [wanted]:
        return HookOutput(
            "failed", f"its verdict does not fit: {wanted} go with rewrite, and nothing else does"
        )
    if before and method not in METHODS_WITH_ARGUMENTS:
        return HookOutput("failed", f"it rewrites the arguments of {method}, which has none")
    return _checked_output(bytes(given[wanted]), method, wanted)


def _checked_output(raw: bytes, method: str, wanted: str) -> HookOutput:
    cap_bytes = ARGUMENTS_CAP_BYTES if wanted == "arguments" else RESULT_CAP_BYTES
    if len(raw) > cap_bytes:
        return HookOutput("failed", f"its {wanted} are larger than {cap_bytes} bytes")
    read = decode(b'{"jsonrpc":"2.0","id":0,"result":%b}' % raw)
    body = read.result if isinstance(read, ResultAnswer) else ABSENT
    if body[:1] != b"{":
        return HookOutput("failed", f"its {wanted} are no JSON object, or one that cannot be passed on")
    if wanted == "result":
        if method == TOOLS_CALL:
            why = repair_tool_result(body)[1]
        else:
            members = fields(body) or {}
            why = "" if members.get(_MEMBER[method], b"")[:1] == b"[" else f"it has no {_MEMBER[method]}"
        if why:
            return HookOutput("failed", f"its result is none of {method}: {why}")
    return HookOutput("rewrite", body=body)


def is_plain(rest: RawJson) -> bool:
    """Whether each name stands once in the params of a call, so that a hook is told the arguments that every
    server reads, be it the first of doubles or the last.
    """
    if not rest:
        return True
    cuts, found = members(rest), fields(rest)
    return cuts is not None and found is not None and len(cuts) == len(found)


def has_duplicate_keys(raw: bytes) -> bool:
    """The same for what is within the arguments: whether some object in this JSON has a key twice. Raises
    `RecursionError` for a tower of brackets.
    """

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
    """One line that every terminal and model can be shown."""
    line = " ".join("".join(each if each.isprintable() else " " for each in text).split())
    return line if len(line) <= MAX_REASON_CHARS else line[: MAX_REASON_CHARS - 1] + "…"


def arguments_of(rest: RawJson) -> RawJson:
    """The arguments in the params of a call, which are legal JSON: an object, empty where there are none."""
    found = (fields(rest or EMPTY_OBJECT) or {}).get("arguments", b"")
    return RawJson(found) if found[:1] == b"{" else EMPTY_OBJECT


def with_arguments(rest: RawJson, arguments: RawJson) -> RawJson:
    """The params with other arguments, everything else as it was."""
    found = {**(fields(rest or EMPTY_OBJECT) or {}), "arguments": arguments}
    return RawJson(b"{%b}" % b",".join(quote(key) + b":" + raw for key, raw in found.items()))
