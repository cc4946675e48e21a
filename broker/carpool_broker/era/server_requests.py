"""The handshake era towards agents, in the direction of asks: requests to agents and their answers.

Owns the meaning of an agent's declared capabilities, the event for an agent's answer or progress (the id of
an ask shows if it is one for `roots/list`), and the accepted roots. Also owns the lines of an ask, its
withdrawal and the end of an elicitation for the agent's version, and the error in place of an answer if that
version has no such ask. Keeps no state. Source: MCP 2025-11-25, basic/lifecycle, client/sampling,
client/elicitation, client/roots, basic/utilities.

Invariant: an ask's id is also its request id and its progress token, always as a JSON string; an answer with
another kind of id belongs to no ask.

Knows nothing of: open asks, requests of agents (`handshake`), the use of roots.
"""

from typing import Final
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from carpool_broker.core.calls.server_requests import error_object
from carpool_broker.core.model.capabilities import Capabilities
from carpool_broker.core.model.effects import SendAsk, SendElicitationComplete, WithdrawAsk
from carpool_broker.core.model.events import AskAnswered, AskProgressed, RootsAnswered
from carpool_broker.core.requests.initialize import VERSIONS
from carpool_broker.core.requests.roots import PREFIX
from carpool_protocol.config.schema.expand import is_usable
from carpool_protocol.ids import AskId, RawJson, SessionId
from carpool_protocol.link.messages import Root
from carpool_protocol.wire.asking_server import meta_server, name_server
from carpool_protocol.wire.content import TooManyPartsError, value_of
from carpool_protocol.wire.downgrade import ELICITATION_SINCE, NEWEST, CannotDowngrade, downgrade_ask
from carpool_protocol.wire.json_scan import has_too_many_parts, key_text
from carpool_protocol.wire.jsonrpc import ErrorAnswer, ResultAnswer, notification_line, quote, request_line
from carpool_protocol.wire.params import ParamsError, meta_params, split_meta, split_progress

UNREADABLE: Final = -32603
"""JSON-RPC's internal error, for an answer of the agent that cannot be passed on."""


def declared_capabilities(version: str, capabilities: bytes) -> Capabilities:
    """The `capabilities` of an `initialize` for `version`. A value that is no object counts as not declared.

    Capabilities that the agreed version does not have are ignored: no ask of that version could use them
    (elicitation: 2025-06-18; its mode `url`, and tools in sampling: 2025-11-25).
    """
    agreed = version if version in VERSIONS else VERSIONS[0]
    sampling = _object(capabilities, "sampling")
    elicitation = _object(capabilities, "elicitation") if agreed >= ELICITATION_SINCE else b""
    # `elicitation: {}` means form mode (client/elicitation); so does everything but `url` alone.
    url = _object(elicitation, "url") != b"" and agreed >= NEWEST
    return Capabilities(
        sampling=sampling != b"",
        sampling_tools=_object(sampling, "tools") != b"" and agreed >= NEWEST,
        form=elicitation != b"" and (not url or _object(elicitation, "form") != b""),
        url=url,
        roots=_object(capabilities, "roots") != b"",
    )


def _object(raw: bytes, key: str) -> bytes:
    """A member that is an object; empty: there is none."""
    found = value_of(raw, key)
    return found if found is not None and found[:1] == b"{" else b""


def ask_answered(
    session: SessionId, message: ResultAnswer | ErrorAnswer
) -> AskAnswered | RootsAnswered | None:
    """The event for an answer of the agent. None: it belongs to no ask."""
    ask = _ask_id(message.id)
    if ask is None:
        return None
    is_error = not isinstance(message, ResultAnswer)
    body = message.error if isinstance(message, ErrorAnswer) else message.result
    if ask.startswith(PREFIX):
        return RootsAnswered(session, ask, None if is_error else read_roots(body))
    return AskAnswered(session, ask, is_error, body)


def answer_unreadable(
    session: SessionId, raw_id: RawJson | None, why: str
) -> AskAnswered | RootsAnswered | None:
    """The event for an answer that cannot be passed on, so that the server gets an error and does not
    wait.
    """
    ask = None if raw_id is None else _ask_id(raw_id)
    if ask is None:
        return None
    if ask.startswith(PREFIX):
        return RootsAnswered(session, ask, None)
    text = f"The agent's answer cannot be passed on: {why}."
    return AskAnswered(session, ask, is_error=True, body=error_object(UNREADABLE, text))


def ask_progressed(session: SessionId, params: RawJson) -> AskProgressed | None:
    """The event for `notifications/progress` of the agent."""
    split = split_progress(params)
    if isinstance(split, ParamsError):
        return None
    ask = _ask_id(split[0])
    return None if ask is None else AskProgressed(session, ask, split[1])


def _ask_id(raw: RawJson) -> AskId | None:
    """The ask of an id or token, in any escaping; None: it is no ask's."""
    text = key_text(raw) if raw[:1] == b'"' else None
    return None if text is None else AskId(text)


def ask_line(effect: SendAsk) -> bytes | AskAnswered:
    """The request to the agent in the form of its version, or an error if there is none.

    The error is fed as if the agent had answered with it: so the journal shows it, and the server does not
    wait. The core cannot decide this, because it depends on params, which a journal does not keep.
    """
    name = quote(effect.ask)
    try:
        asked = name_server(effect.method, meta_server(effect.params, effect.server), effect.server)
        params = downgrade_ask(effect.version, effect.method, asked)
    except TooManyPartsError as many:
        params = CannotDowngrade(UNREADABLE, f"This cannot be asked of the agent. {many.text}")
    if isinstance(params, CannotDowngrade):
        error = error_object(params.code, params.text)
        return AskAnswered(effect.session, effect.ask, is_error=True, body=error)
    if effect.wants_progress:
        split = split_meta(params)
        if not isinstance(split, ParamsError):  # params that cannot be cut get no token: progress is optional
            params = meta_params(split[0], split[1], name)
    return request_line(name, effect.method, params)


def withdraw_line(effect: WithdrawAsk) -> bytes:
    """`notifications/cancelled` for an ask."""
    params = b'{"requestId":%b,"reason":%b}' % (quote(effect.ask), quote(effect.reason))
    return notification_line("notifications/cancelled", RawJson(params))


def elicitation_complete_line(effect: SendElicitationComplete) -> bytes:
    """`notifications/elicitation/complete` (2025-11-25, client/elicitation)."""
    return notification_line("notifications/elicitation/complete", effect.params)


MAX_ROOTS: Final = 64
MAX_URI_CHARS: Final = 4096
MAX_NAME_CHARS: Final = 256


class _Root(Struct):
    uri: str = ""
    name: str | None = None


class _Answer(Struct):
    roots: list[_Root]


_answer = msgspec.json.Decoder(_Answer)


def read_roots(body: RawJson) -> tuple[Root, ...] | None:
    """The roots of a `ListRootsResult`, in order; None if it is none.

    Each URI counts once. Other URIs than `file://` are ignored (client/roots), and names that are too long
    are left out. A list with too many parts to be looked at in one step is none.
    """
    if has_too_many_parts(body):
        return None
    try:
        roots_sent = _answer.decode(body).roots
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return None
    roots: dict[str, Root] = {}
    for each in roots_sent:
        if _is_file(each.uri):
            name = each.name or ""
            roots.setdefault(each.uri, Root(each.uri, name if len(name) <= MAX_NAME_CHARS else ""))
    return tuple(roots.values())[:MAX_ROOTS]


def _is_file(uri: str) -> bool:
    if len(uri) > MAX_URI_CHARS or not is_usable(uri):
        return False
    try:
        return urlsplit(uri).scheme == "file"
    except ValueError:
        return False
