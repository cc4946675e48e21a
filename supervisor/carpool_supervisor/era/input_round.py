"""One round: what a server of the stateless era wants to know before it answers a call.

Owns what it wants in that round, which of it is there, and what the call says beside its own params when it
is said again: `inputResponses`, and the server's `requestState` byte for byte. An input has no error form:
an elicitation that comes to nothing is `cancel` (`decline`, where the agent's user refused it), and without
a sampling a call cannot go on. Source: MCP 2026-07-28, basic/utilities/mrtr.

Invariant: keys and state are the server's own bytes, in and out. No bytes raise.
Knows nothing of: request ids, agents, time.
"""

from typing import Final

from msgspec import Struct

from carpool_protocol.ids import ABSENT, RawJson
from carpool_protocol.link.messages import Need
from carpool_protocol.wire.ask_capabilities import needs_of
from carpool_protocol.wire.content import text_of, value_of
from carpool_protocol.wire.json_scan import key_text, members
from carpool_protocol.wire.params import ParamsError, meta_params, split_meta
from carpool_supervisor.core.model.attribution import ON_LADDER, ROOTS
from carpool_supervisor.era.server_requests import without_task

MAX_INPUTS: Final = 64
"""Of one round."""
_USER_REFUSED: Final = b"-1"
"""What the official SDKs answer with when the user rejects a request (MCP 2025-11-25, client/sampling)."""


class Input(Struct, frozen=True):
    """One thing that the server wants."""

    key: bytes
    """Its key as the server spells it, with the quotes."""
    method: str
    params: RawJson
    """An object without a progress token; of `roots/list` absent."""
    needs: tuple[Need, ...] = ()


class BadRound(Struct, frozen=True):
    """What the server wants cannot be given: a clause for people."""

    text: str


class Round:
    """The open round of one call."""

    def __init__(self, inputs: tuple[Input, ...], state: RawJson) -> None:
        self.inputs = inputs
        self._state = state
        self._given: dict[int, bytes] = {}

    @property
    def is_complete(self) -> bool:
        """Whether everything is there that was wanted."""
        return len(self._given) == len(self.inputs)

    def give(self, at: int, *, is_error: bool, body: RawJson) -> RawJson | None:
        """An input was answered. The error that the call ends with, where it cannot go on.

        One that is not wanted, or answered before, changes nothing.
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

    def members(self) -> bytes:
        """What the params have beside the call's own when it is said again, each with a comma before it."""
        parts = []
        if self._given:
            inner = b",".join(self.inputs[at].key + b":" + body for at, body in self._given.items())
            parts.append(b',"inputResponses":{%b}' % inner)
        if self._state:
            parts.append(b',"requestState":%b' % self._state)
        return b"".join(parts)


def read_round(result: RawJson, can: frozenset[Need]) -> Round | BadRound:
    """The round that a result with `resultType: "input_required"` opens. `can`: what the server was told that
    it can ask for.
    """
    requests = value_of(result, "inputRequests") or b"null"
    cuts = members(requests) if requests != b"null" else []
    if cuts is None or len(cuts) > MAX_INPUTS:
        return BadRound(f"inputRequests is no object of at most {MAX_INPUTS} entries")
    state = value_of(result, "requestState") or b"null"
    if state == b"null":
        state = b""
    if not cuts and not state:
        return BadRound("it says neither what it wants nor a requestState")
    found: dict[str | bytes, Input] = {}
    for cut in cuts:
        key = requests[cut.key : cut.key_end]
        one = _input(key, requests[cut.value : cut.value_end], can)
        if isinstance(one, BadRound):
            return one
        found[key_text(key) or key] = one
    return Round(tuple(found.values()), RawJson(state))


def _input(key: bytes, raw: bytes, can: frozenset[Need]) -> Input | BadRound:
    method = text_of(raw, "method") or ""
    if method not in ON_LADDER and method != ROOTS:
        return BadRound("it wants something of a method that MCP does not have for that")
    if not any(need.startswith(method.partition("/")[0]) for need in can):
        return BadRound(f"it wants {method}, and was not told that it can")
    if method == ROOTS:
        return Input(key, ROOTS, ABSENT, ("roots",))
    parts = split_meta(RawJson(value_of(raw, "params") or b"null"))
    if isinstance(parts, ParamsError):
        return BadRound(f"{method}: {parts.text}")
    rest, meta, _ = parts
    needs = needs_of(method, rest)
    if not needs or not can.issuperset(needs):
        return BadRound(f"it wants {method} in a mode that it was not told of")
    return Input(key, method, meta_params(rest, without_task(meta), ABSENT), tuple(needs))
