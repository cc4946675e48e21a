"""The stateless era (2026-07-28) towards agents: the meaning of requests.

Owns the methods, the event for each, and the hash that identifies a request which may be repeated with
answers to an ask (`digest`). Keeps no state. `envelope` reads the `_meta`, `stateless_encode` writes the
answers. Source: MCP 2026-07-28, basic/index, basic/utilities (mrtr, subscriptions), server/discover.

Invariants: refusals come in the order of the specification (envelope, version, method, params); the additions
of a retry (`inputResponses`, `requestState`) never stay in params that a server could see, in any spelling,
except the `inputResponses` of a task; no bytes raise. Knows nothing of: sessions' state, views, sockets.
"""

from hashlib import blake2b
from typing import Final, NamedTuple

import msgspec
from msgspec import Struct

from carpool_broker.core.model.capabilities import StatelessAgent
from carpool_broker.core.model.events import (
    CallRequested,
    DiscoverRequested,
    InputResponse,
    ListenRequested,
    ListNotification,
    ListPageRequested,
)
from carpool_broker.core.model.pagination import Family
from carpool_broker.era import builtin_tools
from carpool_broker.era.envelope import RefusedEnvelope, RequestMeta, read_envelope, refused_request
from carpool_protocol.faults.fault_answers import TOOLS_CALL
from carpool_protocol.ids import ABSENT, EMPTY_OBJECT, RawJson, SessionId
from carpool_protocol.wire.content import mentions, text_of, value_of, without_members
from carpool_protocol.wire.json_scan import MAX_PARTS, fields, has_too_many_parts, key_text
from carpool_protocol.wire.jsonrpc import Request
from carpool_protocol.wire.params import CallParams, ParamsError, list_params, split_call
from carpool_protocol.wire.request_targets import TARGET_KEYS, TASK_ID_KEYS, split_target

DISCOVER: Final = "server/discover"
LISTEN: Final = "subscriptions/listen"
LISTS: Final[dict[str, Family]] = {
    "tools/list": "tools",
    "prompts/list": "prompts",
    "resources/list": "resources",
    "resources/templates/list": "templates",
}
RESUMABLE: Final = frozenset({TOOLS_CALL, "prompts/get", "resources/read"})
"""Methods that may be answered with `input_required` (basic/utilities/mrtr)."""
METHODS: Final = frozenset({DISCOVER, LISTEN, TOOLS_CALL, *LISTS, *TARGET_KEYS, *TASK_ID_KEYS})
"""Methods about tasks belong to the extension (SEP-2663); the core decides if they are served."""
MAX_URIS: Final = 1000
"""Maximum number of URIs in one `subscriptions/listen`."""
MAX_STATE_CHARS: Final = 128
"""Longest token of carpool."""
MAX_KEY_CHARS: Final = 1024
"""Longest key under which carpool asks."""

TASKS_UPDATE: Final = "tasks/update"

_STATE: Final = frozenset({"requeststate"})
_RETRY: Final = _STATE | {"inputresponses"}
_UNKNOWN_KEY: Final = "?"
"""Stands for a text that cannot be a token of carpool. It is never stored, so such a retry is refused."""
_DIGEST_BYTES: Final = 16

StatelessRequest = CallRequested | DiscoverRequested | ListPageRequested | ListenRequested


def read_request(
    session: SessionId, message: Request, *, is_required: bool, key: bytes = b""
) -> StatelessRequest | RefusedEnvelope | None:
    """The meaning of a request. None: it is of the handshake era, which is excluded with `is_required`.

    `key`: secret for digests. A journal holds digests, and its reader must not be able to test guesses of the
    arguments.
    """
    if message.method == "initialize" and not is_required:
        return None  # its own params say which era it begins
    is_required = is_required or message.method == DISCOVER
    params = message.params
    if not (is_required or mentions(params, b"protocolVersion") or mentions(params, b"\\")):
        return None  # the key's name is absent, and no escape can hide it
    envelope = read_envelope(value_of(params, "_meta") or b"", is_required=is_required)
    if envelope is None or isinstance(envelope, RefusedEnvelope):
        return envelope
    method, by = message.method, envelope.by
    if method not in METHODS:
        return refused_request("unknown_method")
    if method == DISCOVER:
        return DiscoverRequested(session, message.id, by)
    if method == LISTEN:
        return _read_listen(session, message, envelope)
    if method == TOOLS_CALL:
        return _read_call(session, message, key)
    if method in TARGET_KEYS:
        return _read_subject_request(session, message, key)
    if method in TASK_ID_KEYS:
        return _read_task_request(session, message, envelope.by)
    cursor = list_params(message.params)
    if isinstance(cursor, ParamsError):
        return _invalid_params(cursor)
    return ListPageRequested(session, message.id, cursor, LISTS[method], by)


def _invalid_params(problem: ParamsError) -> RefusedEnvelope:
    return refused_request("bad_params", problem.sentence)


# --- calls -----------------------------------------------------------------------------------------------


def call_requested(
    session: SessionId,
    request: RawJson,
    call: CallParams,
    envelope: RequestMeta | RefusedEnvelope,
    key: bytes,
) -> CallRequested | RefusedEnvelope:
    """The event for a `tools/call`. `envelope`: the facts of its `_meta`; `key`: see `read_request`."""
    if isinstance(envelope, RefusedEnvelope):
        return envelope
    retry = _retry(call.rest) if call.has_more else _Retry(call.rest)
    if isinstance(retry, ParamsError):
        return _invalid_params(retry)
    rest, state, responses = retry
    return CallRequested(
        session,
        request,
        call.name,
        rest,
        envelope.meta,
        call.token,
        TOOLS_CALL,
        envelope.trace,
        envelope.by,
        request_digest(TOOLS_CALL, call.name, rest, key),
        state,
        responses,
        builtin_tools.read_builtin_call(call.name, rest) if call.name in builtin_tools.NAMES else (),
    )


def _read_call(session: SessionId, message: Request, key: bytes) -> CallRequested | RefusedEnvelope:
    call = split_call(message.params)
    if isinstance(call, ParamsError):
        return _invalid_params(call)
    return call_requested(session, message.id, call, _without_token(call.meta), key)


def _read_subject_request(
    session: SessionId, message: Request, key: bytes
) -> CallRequested | RefusedEnvelope:
    """The event for a request about one prompt, resource or reference."""
    method = message.method
    subject = split_target(method, message.params)
    if isinstance(subject, ParamsError):
        return _invalid_params(subject)
    envelope = _without_token(subject.meta)
    retry = _Retry(subject.rest) if subject.rest == EMPTY_OBJECT else _retry(subject.rest)
    if isinstance(envelope, RefusedEnvelope):
        return envelope
    if isinstance(retry, ParamsError):
        return _invalid_params(retry)
    rest, state, responses = retry
    is_resumable = method in RESUMABLE
    return CallRequested(
        session,
        message.id,
        subject.text,
        rest,
        envelope.meta,
        subject.token,
        method,
        envelope.trace,
        envelope.by,
        request_digest(method, subject.text, rest, key),
        state if is_resumable else "",
        responses if is_resumable else (),
    )


def _read_task_request(
    session: SessionId, message: Request, by: StatelessAgent
) -> CallRequested | RefusedEnvelope:
    """The event for a request about one task.

    Its `inputResponses` are for the task and resume no call. A request that names no task gets the answer for
    an unknown one, if tasks are served at all.
    """
    subject = split_target(message.method, message.params)
    if isinstance(subject, ParamsError):
        return CallRequested(session, message.id, "", EMPTY_OBJECT, ABSENT, ABSENT, message.method, by=by)
    envelope = _without_token(subject.meta)
    if isinstance(envelope, RefusedEnvelope):
        return envelope
    rest = RawJson(without_members(subject.rest, _RETRY if message.method != TASKS_UPDATE else _STATE))
    return CallRequested(
        session,
        message.id,
        subject.text,
        rest,
        envelope.meta,
        subject.token,
        message.method,
        envelope.trace,
        envelope.by,
    )


def _without_token(meta: RawJson) -> RequestMeta | RefusedEnvelope:
    """The envelope of a `_meta` that `params` has cut, without `progressToken`."""
    envelope = read_envelope(meta, is_required=True)
    assert envelope is not None
    return envelope


class _Retry(NamedTuple):
    rest: RawJson
    """The params without the members of a retry."""
    state: str = ""
    given: tuple[InputResponse, ...] = ()


def _retry(rest: RawJson) -> _Retry | ParamsError:
    found = fields(rest) or {}
    state, responses = found.get("requestState", b"null"), found.get("inputResponses", b"null")
    text = "" if state == b"null" else key_text(state) if state[:1] == b'"' else None
    if text is None:
        return ParamsError("requestState must be a string, as it was given")
    answers = {} if responses == b"null" else fields(responses) if responses[:1] == b"{" else None
    if answers is None or has_too_many_parts(responses):
        return ParamsError(f"inputResponses must be an object of at most {MAX_PARTS} parts")
    given = tuple(
        InputResponse(key, RawJson(raw), _is_accepted(raw))
        for key, raw in answers.items()
        if _may_be_our_key(key)
    )
    if len(text) > MAX_STATE_CHARS:
        text = _UNKNOWN_KEY
    return _Retry(RawJson(without_members(rest, _RETRY)), text, given)


def _is_accepted(answer: bytes) -> bool:
    """True if the answer is not a refusal of an elicitation (client/elicitation, "Response Actions")."""
    return value_of(answer, "action") is None or text_of(answer, "action") == "accept"


def _may_be_our_key(key: str) -> bool:
    """True if carpool may have asked under this key: none is longer, or has half of a surrogate pair."""
    if len(key) > MAX_KEY_CHARS:
        return False
    try:
        key.encode()
    except UnicodeEncodeError:
        return False
    return True


def request_digest(method: str, name: str, rest: RawJson, key: bytes) -> str:
    """The hash that a retry must repeat. It covers the bytes, because agent and carrier repeat them
    unchanged.
    """
    about = name.encode()
    seen = blake2b(b"%b %d " % (method.encode(), len(about)), digest_size=_DIGEST_BYTES, key=key)
    seen.update(about)
    seen.update(rest)
    return seen.hexdigest()


# --- listens ---------------------------------------------------------------------------------------------


class ListenFilter(Struct, rename="camel"):
    """The wanted or granted contents of a listen."""

    tools_list_changed: bool = False
    prompts_list_changed: bool = False
    resources_list_changed: bool = False
    resource_subscriptions: list[str] = []
    task_ids: list[str] = []

    @property
    def families(self) -> tuple[ListNotification, ...]:
        """The lists in it."""
        flags: tuple[tuple[ListNotification, bool], ...] = (
            ("tools", self.tools_list_changed),
            ("prompts", self.prompts_list_changed),
            ("resources", self.resources_list_changed),
        )
        return tuple(family for family, is_wanted in flags if is_wanted)


_read_filter = msgspec.json.Decoder(ListenFilter).decode


def read_filter(notifications: bytes) -> ListenFilter | None:
    """The contents of a listen. None: it is no object of that form, or has too many parts to be read."""
    if has_too_many_parts(notifications):
        return None
    try:
        return _read_filter(notifications)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def _read_listen(
    session: SessionId, message: Request, envelope: RequestMeta
) -> ListenRequested | RefusedEnvelope:
    wanted = read_filter(value_of(message.params, "notifications") or b"")
    if wanted is None:
        return refused_request(
            "bad_params",
            f"{LISTEN} needs an object notifications as the specification has it, of at most {MAX_PARTS:,} "
            "parts.",
        )
    uris = tuple(dict.fromkeys(wanted.resource_subscriptions))
    tasks = tuple(dict.fromkeys(wanted.task_ids))
    if max(len(uris), len(tasks)) > MAX_URIS:
        each = "resourceSubscriptions and as many taskIds"
        return refused_request("bad_params", f"One {LISTEN} can have up to {MAX_URIS} {each}.")
    return ListenRequested(session, message.id, envelope.by, wanted.families, uris, tasks)
