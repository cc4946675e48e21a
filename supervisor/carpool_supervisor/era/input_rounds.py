"""Calls for which a server of the stateless era requires input before it answers.

Owns each such call from its first request to its last answer. An `InputRound` holds the required inputs, the
answers so far, and the members that the next request adds to the call's own params: `inputResponses`, and the
server's `requestState` byte for byte. The core decides when the next request is sent
(`core/calls/between_rounds.py`); if no agent is asked, it is sent at once. A round with a state only is a
pause. Progress of a repeated call continues where it was, because the agent sees one call whose values must
grow. An input has no error form: a failed elicitation is answered `cancel` (`decline` if the user
refused it), and a failed sampling fails the call. Source: MCP 2026-07-28, basic/utilities/mrtr,
basic/utilities/progress.

Invariants: a call has one open request or one open round; a request is answered once; a round ends by a
request, or with its call. `requestState` goes back only to the instance that sent it. The bytes of an answer
that a round keeps for the next request, and the parts of its inputs, are bounded. Legal JSON never raises.
Knows nothing of: the text of requests, deadlines, agents.
"""

from collections.abc import Callable
from hashlib import blake2b
from math import isfinite
from typing import Final, Literal

from msgspec import Struct

from carpool_protocol.ids import ABSENT, MAX_WIRE_DIGITS, InstanceId, RawJson, WireId
from carpool_protocol.link.messages import Call, Need
from carpool_protocol.wire.capabilities import needed_capabilities
from carpool_protocol.wire.content import Change, change_members, text_of, value_of
from carpool_protocol.wire.json_scan import MAX_PARTS, fields, has_too_many_parts, key_text, members
from carpool_protocol.wire.jsonrpc import quote
from carpool_protocol.wire.params import ParamsError, meta_params, split_meta
from carpool_supervisor.core.model.attribution import AGENT_METHODS, ROOTS, AskFacts
from carpool_supervisor.core.model.events import AnswerUnreadable, ServerAnswered, ServerAsked, ServerNotReady
from carpool_supervisor.era.adapter import Decoded
from carpool_supervisor.era.server_requests import Declared, roots_result, without_task

MAX_INPUTS: Final = 64
"""Inputs of one round."""
MAX_KEPT_BYTES: Final = 1024 * 1024
"""The most bytes of `requestState` and the keys of inputs. An open call keeps them until its next request."""
_USER_REFUSED: Final = b"-1"
"""The code with which the official SDKs answer when the user rejects a request (MCP 2025-11-25,
client/sampling).
"""


class InputRequest(Struct, frozen=True):
    """One input that the server requires."""

    key: bytes
    """The key as the server spells it, with the quotes."""
    method: str
    params: RawJson
    """An object without a progress token; absent for `roots/list`."""
    needs: tuple[Need, ...] = ()


class BadInputRound(Struct, frozen=True):
    """The required input cannot be given; the text is a clause for people."""

    text: str
    fault: Literal["bad_answer", "answer_too_large"] = "bad_answer"


class InputRound:
    """The open round of one call."""

    def __init__(self, inputs: tuple[InputRequest, ...], state: RawJson) -> None:
        self.inputs = inputs
        self._state = state
        self._given: dict[int, bytes] = {}

    @property
    def is_complete(self) -> bool:
        """True if all required inputs are there."""
        return len(self._given) == len(self.inputs)

    def input_answered(self, at: int, *, is_error: bool, body: RawJson) -> RawJson | None:
        """Add the answer to an input. Returns the error that ends the call if it cannot go on.

        An answer to an input that is not required, or was answered before, changes nothing.
        """
        if at >= len(self.inputs) or at in self._given:
            return None
        if is_error:
            if self.inputs[at].method != "elicitation/create":
                return body
            refused = value_of(body, "code") == _USER_REFUSED
            body = RawJson(b'{"action":"decline"}' if refused else b'{"action":"cancel"}')
        self._given[at] = body
        return None

    def retry_members(self) -> bytes:
        """The members that a repeated call adds to its own params, each preceded by a comma."""
        parts = []
        if self._given:
            inner = b",".join(self.inputs[at].key + b":" + body for at, body in self._given.items())
            parts.append(b',"inputResponses":{%b}' % inner)
        if self._state:
            parts.append(b',"requestState":%b' % self._state)
        return b"".join(parts)


def read_round(result: RawJson, can: frozenset[Need]) -> InputRound | BadInputRound:
    """The round that a result with `resultType: "input_required"` opens. `can`: what the server was told it
    can ask for.
    """
    whole = fields(result) or {}
    requests = whole.get("inputRequests", b"null")
    if has_too_many_parts(requests):
        return BadInputRound(f"inputRequests has more than {MAX_PARTS:,} parts", "answer_too_large")
    cuts = members(requests) if requests != b"null" else []
    if cuts is None or len(cuts) > MAX_INPUTS:
        return BadInputRound(f"inputRequests is no object of at most {MAX_INPUTS} entries")
    state = whole.get("requestState", b"null")
    if state == b"null":
        state = b""
    if not cuts and not state:
        return BadInputRound("it has neither inputRequests nor a requestState")
    if len(state) + sum(cut.key_end - cut.key for cut in cuts) > MAX_KEPT_BYTES:
        text = f"requestState and the keys of inputRequests have more than {MAX_KEPT_BYTES:,} bytes"
        return BadInputRound(text, "answer_too_large")
    found: dict[str | bytes, InputRequest] = {}
    for cut in cuts:
        key = requests[cut.key : cut.key_end]
        one = _input(key, requests[cut.value : cut.value_end], can)
        if isinstance(one, BadInputRound):
            return one
        found[key_text(key) or key] = one
    return InputRound(tuple(found.values()), RawJson(state))


def _input(key: bytes, raw: bytes, can: frozenset[Need]) -> InputRequest | BadInputRound:
    whole = fields(raw) or {}
    method = key_text(whole.get("method", b"")) or ""
    if method not in AGENT_METHODS and method != ROOTS:
        return BadInputRound("it requires input by a method that MCP does not allow for that")
    if not any(need.startswith(method.partition("/")[0]) for need in can):
        return BadInputRound(f"it wants {method}, which was not declared to it")
    if method == ROOTS:
        return InputRequest(key, ROOTS, ABSENT, ("roots",))
    parts = split_meta(RawJson(whole.get("params", b"null")))
    if isinstance(parts, ParamsError):
        return BadInputRound(f"{method}: {parts.text}")
    rest, meta, _ = parts
    needs = needed_capabilities(method, rest)
    if not needs or not can.issuperset(needs):
        return BadInputRound(f"it wants {method} in a mode that was not declared to it")
    return InputRequest(key, method, meta_params(rest, without_task(meta), ABSENT), tuple(needs))


ASKS: Final = frozenset({"tools/call", "prompts/get", "resources/read"})
"""The methods that may be answered with `input_required`."""
MAX_ROUNDS: Final = 10
"""Rounds of one call that ask for input; the official SDKs stop at the same number. Pauses end with the
call's deadline.
"""
FIRST_PAUSE_S: Final = 0.05
LONGEST_PAUSE_S: Final = 0.25
"""Each pause in a row lasts twice as long as the one before, up to this, as in the official SDKs."""

MAX_NUMBER_CHARS: Final = 64
MAX_NAME_BYTES: Final = 1024
"""An input with a longer key is given a shorter one towards the agent."""

_AGAIN: Final = b'"carpool-again-'
_OVER: Final = RawJson(b'{"code":-32603,"message":"The call is over."}')


class _RoundCall:
    """One call, with all its requests."""

    __slots__ = ("base", "call", "latest", "number", "pause_s", "questions", "round")

    def __init__(self, call: Call) -> None:
        self.call = call
        self.number = 0
        """Rounds so far."""
        self.questions = 0
        """Rounds so far that asked for input."""
        self.pause_s = FIRST_PAUSE_S
        self.round: InputRound | None = None
        self.base: float = 0
        """The progress at the time of the last request."""
        self.latest: float = 0


RetryLine = Callable[[RawJson, WireId, Call, bytes], bytes]
"""Makes the line of a call with this request id and these additional members of its params."""


class InputRounds:
    """All calls of one instance that may need input."""

    def __init__(self, instance: InstanceId, declared: Declared, decoded: Decoded, say: RetryLine) -> None:
        self._instance = instance
        self._declared = declared
        self._decoded = decoded
        self._retry_line = say
        self._calls: dict[WireId, _RoundCall] = {}

    def call_written(self, wire_id: WireId, call: Call) -> None:
        """The first request of this call was written."""
        self._calls[wire_id] = _RoundCall(call)

    def is_stale(self, wire_id: WireId, number: int) -> bool:
        """True if an earlier request of this open call was answered before."""
        turns = self._calls.get(wire_id)
        return turns is not None and (turns.round is not None or turns.number != number)

    def is_first(self, wire_id: WireId) -> bool:
        """True if an open call has been sent once only."""
        turns = self._calls.get(wire_id)
        return turns is not None and not turns.number

    def open_call(self, wire_id: WireId) -> Call | None:
        """The call of this wire id if it is open and one of `ASKS`."""
        turns = self._calls.get(wire_id)
        return None if turns is None else turns.call

    def call_ended(self, wire_id: WireId) -> Call | None:
        """The last answer came. Returns the call if it was an open one of `ASKS`."""
        turns = self._calls.pop(wire_id, None)
        return None if turns is None else turns.call

    def cancel_line(self, wire_id: WireId) -> RawJson:
        """Cancel a call. Returns the id of the request to cancel; `ABSENT` between two requests, when nothing
        runs.
        """
        turns = self._calls.pop(wire_id, None)
        if turns is None:
            return _first(wire_id)
        if turns.round is None:
            return _request(wire_id, turns.number)
        self._end(wire_id, _OVER)
        return ABSENT

    def input_required(self, wire_id: WireId, result: RawJson) -> bytes:
        """The server requires input. Returns the line of the next request if no agent is needed for it."""
        turns = self._calls.get(wire_id)
        if turns is None:
            self._bad_round(wire_id, "no open request may be answered with it")
            return b""
        found = read_round(result, self._declared.needs(turns.call.can))
        if isinstance(found, BadInputRound):
            self._bad_round(wire_id, found.text, found.fault)
            return b""
        if found.inputs:
            turns.questions += 1
            turns.pause_s = FIRST_PAUSE_S
            if turns.questions > MAX_ROUNDS:
                self._bad_round(wire_id, f"more than {MAX_ROUNDS} times for one call")
                return b""
        turns.round = found
        turns.number += 1
        if found.is_complete:  # no input is required
            self._decoded.events.append(ServerNotReady(self._instance, wire_id, turns.pause_s))
            turns.pause_s = min(2 * turns.pause_s, LONGEST_PAUSE_S)
            return b""
        return self._ask(wire_id, turns, found)

    def _ask(self, wire_id: WireId, round_call: _RoundCall, found: InputRound) -> bytes:
        can = round_call.call.can
        for number, each in enumerate(found.inputs):
            if each.method == ROOTS and (can is None or "roots" not in can):
                found.input_answered(number, is_error=False, body=roots_result(self._declared.roots or ()))
                continue
            ask = RawJson(b"%d/%d/%d" % (wire_id, round_call.number, number))
            params = each.params
            if "elicitation.url" in each.needs and can is None:
                params = self._with_id(ask, params)
            facts = AskFacts(each.method, wire=wire_id)
            name = key_text(each.key) or "" if len(each.key) <= MAX_NAME_BYTES else ""
            self._decoded.events.append(
                ServerAsked(self._instance, ask, params, facts, ABSENT, needs=each.needs, name=name)
            )
        return self.retry_line(wire_id) if found.is_complete else b""

    def _with_id(self, ask: RawJson, params: RawJson) -> RawJson:
        """MCP 2025-11-25 (client/elicitation) requires an `elicitationId`, which this era does not have."""
        if text_of(params, "elicitationId"):
            return params
        name = b"%d %b" % (self._instance, ask)
        made = quote(blake2b(name, key=self._declared.life[:64], digest_size=16).hexdigest())
        inner = change_members(params, {"elicitationId": None})[1:-1].strip()
        return RawJson(b'{"elicitationId":%b%b%b}' % (made, b"," if inner else b"", inner))

    def ask_answered(self, ask: RawJson, *, is_error: bool, body: RawJson) -> None:
        """An input has arrived or failed; a missing sampling ends the call."""
        wire, number, which = (int(part) for part in ask.split(b"/"))
        turns = self._calls.get(WireId(wire))
        if turns is None or turns.round is None or turns.number != number:
            return
        error = turns.round.input_answered(which, is_error=is_error, body=body)
        if error is not None:
            self._end(WireId(wire), error)

    def retry_line(self, wire_id: WireId) -> bytes:
        """The next request of a call whose round is complete."""
        turns = self._calls.get(wire_id)
        if turns is None or turns.round is None or not turns.round.is_complete:
            return b""
        more = turns.round.retry_members()
        turns.round = None
        turns.base = turns.latest
        return self._retry_line(_request(wire_id, turns.number), wire_id, turns.call, more)

    def close(self) -> None:
        """Drop the reference to the function that writes calls. See `EraAdapter.close`."""
        del self._retry_line

    def total_progress(self, wire_id: WireId, params: RawJson) -> RawJson:
        """The progress of the whole call, from the progress of the open request."""
        turns = self._calls.get(wire_id)
        if turns is None:
            return params
        now = _number(params, "progress")
        if now is None:
            return params
        turns.latest = max(turns.latest, _sum(turns.base, now))
        if not turns.base:
            return params
        total = _number(params, "total")
        changes: dict[str, Change | None] = {"progress": _put(_sum(turns.base, now))}
        if total is not None:
            changes["total"] = _put(_sum(turns.base, total))
        return RawJson(change_members(params, changes))

    def _end(self, wire_id: WireId, error: RawJson) -> None:
        self._calls.pop(wire_id, None)
        self._decoded.events.append(ServerAnswered(self._instance, wire_id, is_error=True, body=error))

    def _bad_round(
        self, wire_id: WireId, why: str, fault: Literal["bad_answer", "answer_too_large"] = "bad_answer"
    ) -> None:
        self._calls.pop(wire_id, None)
        text = f"It required input that cannot be given: {why}."
        self._decoded.events.append(AnswerUnreadable(self._instance, wire_id, fault, text))


def call_of(answer_id: RawJson | None) -> tuple[WireId, int] | None:
    """The call that the id of an answer means, and its number of rounds at that request. `"17"` counts as 17,
    as in the Python SDK.
    """
    if not answer_id:
        return None
    if answer_id.startswith(_AGAIN):
        number, _, wire = answer_id[len(_AGAIN) : -1].partition(b"-")
        if _is_number(number) and _is_number(wire):
            return WireId(int(wire)), int(number)
        return None
    digits = answer_id.strip(b'"')
    return (WireId(int(digits)), 0) if _is_number(digits) else None


def _is_number(digits: bytes) -> bool:
    return digits.isdigit() and len(digits) <= MAX_WIRE_DIGITS


def _first(wire_id: WireId) -> RawJson:
    return RawJson(b"%d" % wire_id)


def _request(wire_id: WireId, number: int) -> RawJson:
    """The id of the request that repeats the call after this many rounds."""
    return RawJson(b'%b%d-%d"' % (_AGAIN, number, wire_id)) if number else _first(wire_id)


def _number(params: RawJson, key: str) -> int | float | None:
    raw = value_of(params, key)
    if raw is None or len(raw) > MAX_NUMBER_CHARS:
        return None
    try:
        number = int(raw) if raw.isdigit() else float(raw)
    except ValueError:
        return None
    return number if isfinite(number) else None


def _sum(one: float, other: float) -> float:
    """A sum that JSON can write; if it would be too large, the larger of the two numbers."""
    whole = one + other
    return whole if isfinite(whole) else max(one, other)


def _put(number: float) -> Change:
    written = b"%r" % number
    return lambda _: written
