"""The stateless era (2026-07-28) towards agents: what a request means.

Owns which methods there are, which event each is, and what identifies a request that may be said again with
answers to what a server wanted (`digest`). Remembers nothing. What a `_meta` must say is `envelope`'s, how we
answer is `stateless_encode`'s. Source: MCP 2026-07-28, basic/index, basic/utilities (mrtr, subscriptions),
server/discover.

Invariants: a refusal comes in the order of the specification (envelope, version, method, params); what a
retry brings (`inputResponses`, `requestState`) never stays in params that a server could see, however it is
spelled, but for the `inputResponses` of a task; no bytes raise.
Knows nothing of: sessions' state, views, sockets.
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
from carpool_protocol.faults.faults import TOOLS_CALL
from carpool_protocol.ids import ABSENT, EMPTY_OBJECT, RawJson, SessionId
from carpool_protocol.wire.content import mentions, text_of, value_of, without_members
from carpool_protocol.wire.json_scan import fields, key_text
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
"""What may be answered with `input_required` (basic/utilities/mrtr)."""
METHODS: Final = frozenset({DISCOVER, LISTEN, TOOLS_CALL, *LISTS, *TARGET_KEYS, *TASK_ID_KEYS})
"""Those about tasks are the extension's (SEP-2663); whether they are served is the core's to say."""
MAX_URIS: Final = 1000
"""In one `subscriptions/listen`."""
MAX_STATE_CHARS: Final = 128
"""No token of ours has more."""
MAX_KEY_CHARS: Final = 1024
"""Nothing is asked for under a longer key."""

TASKS_UPDATE: Final = "tasks/update"

_STATE: Final = frozenset({"requeststate"})
_RETRY: Final = _STATE | {"inputresponses"}
_UNKNOWN_KEY: Final = "?"
"""Stands for what cannot be a token of ours: nobody keeps it, and such a retry is refused as any other."""
_DIGEST_BYTES: Final = 16

StatelessRequest = CallRequested | DiscoverRequested | ListPageRequested | ListenRequested


def read_request(
    session: SessionId, message: Request, *, is_required: bool, key: bytes = b""
) -> StatelessRequest | RefusedEnvelope | None:
    """What a request means. None where it is of the handshake era, which it cannot be if `is_required`.

    `key`: what digests are made with. A journal has them, and nobody is to try there what arguments they
    are of.
    """
    if message.method == "initialize" and not is_required:
        return None  # it says itself which era it begins
    is_required = is_required or message.method == DISCOVER
    params = message.params
    if not (is_required or mentions(params, b"protocolVersion") or mentions(params, b"\\")):
        return None  # the name of the key is not there, and no escape hides it
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
    return refused_request("bad_params", f"{problem.text[:1].upper()}{problem.text[1:].removesuffix('.')}.")


# --- calls -----------------------------------------------------------------------------------------------


def call_requested(
    session: SessionId,
    request: RawJson,
    call: CallParams,
    envelope: RequestMeta | RefusedEnvelope,
    key: bytes,
) -> CallRequested | RefusedEnvelope:
    """A `tools/call`. `envelope`: what its `_meta` says; `key`: see `read`."""
    if isinstance(envelope, RefusedEnvelope):
        return envelope
    again = _retry(call.rest) if call.has_more else _Retry(call.rest)
    if isinstance(again, ParamsError):
        return _invalid_params(again)
    rest, state, given = again
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
        given,
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
    """A request about one prompt, resource or reference."""
    method = message.method
    subject = split_target(method, message.params)
    if isinstance(subject, ParamsError):
        return _invalid_params(subject)
    envelope = _without_token(subject.meta)
    again = _Retry(subject.rest) if subject.rest == EMPTY_OBJECT else _retry(subject.rest)
    if isinstance(envelope, RefusedEnvelope):
        return envelope
    if isinstance(again, ParamsError):
        return _invalid_params(again)
    rest, state, given = again
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
        given if is_resumable else (),
    )


def _read_task_request(
    session: SessionId, message: Request, by: StatelessAgent
) -> CallRequested | RefusedEnvelope:
    """A request about one task. What it brings (`inputResponses`) is for that and resumes no call. One that
    names none is nobody's, where tasks are served at all.
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
    """The envelope of a `_meta` as `params` has cut it, without `progressToken`."""
    envelope = read_envelope(meta, is_required=True)
    assert envelope is not None
    return envelope


class _Retry(NamedTuple):
    rest: RawJson
    """The params without what makes a retry of them."""
    state: str = ""
    given: tuple[InputResponse, ...] = ()


def _retry(rest: RawJson) -> _Retry | ParamsError:
    found = fields(rest) or {}
    state, responses = found.get("requestState", b"null"), found.get("inputResponses", b"null")
    text = "" if state == b"null" else key_text(state) if state[:1] == b'"' else None
    if text is None:
        return ParamsError("requestState must be a string, as it was given")
    answers = {} if responses == b"null" else fields(responses) if responses[:1] == b"{" else None
    if answers is None:
        return ParamsError("inputResponses must be an object")
    given = tuple(
        InputResponse(key, RawJson(raw), _is_accepted(raw))
        for key, raw in answers.items()
        if _may_be_our_key(key)
    )
    if len(text) > MAX_STATE_CHARS:
        text = _UNKNOWN_KEY
    return _Retry(RawJson(without_members(rest, _RETRY)), text, given)


def _is_accepted(answer: bytes) -> bool:
    """Whether it is no refusal of an elicitation (client/elicitation, "Response Actions")."""
    return value_of(answer, "action") is None or text_of(answer, "action") == "accept"


def _may_be_our_key(key: str) -> bool:
    """Whether we may have asked under this key: none is so long, or has half of a surrogate pair."""
    if len(key) > MAX_KEY_CHARS:
        return False
    try:
        key.encode()
    except UnicodeEncodeError:
        return False
    return True


def request_digest(method: str, name: str, rest: RawJson, key: bytes) -> str:
    """What a retry must repeat, and what a carrier repeats: the bytes, since both say the same once more."""
    about = name.encode()
    seen = blake2b(b"%b %d " % (method.encode(), len(about)), digest_size=_DIGEST_BYTES, key=key)
    seen.update(about)
    seen.update(rest)
    return seen.hexdigest()


# --- listens ---------------------------------------------------------------------------------------------


class ListenFilter(Struct, rename="camel"):
    """What a listen is for, and what it was granted."""

    tools_list_changed: bool = False
    prompts_list_changed: bool = False
    resources_list_changed: bool = False
    resource_subscriptions: list[str] = []
    task_ids: list[str] = []

    @property
    def families(self) -> tuple[ListNotification, ...]:
        """The lists."""
        flags: tuple[tuple[ListNotification, bool], ...] = (
            ("tools", self.tools_list_changed),
            ("prompts", self.prompts_list_changed),
            ("resources", self.resources_list_changed),
        )
        return tuple(family for family, is_wanted in flags if is_wanted)


_read_filter = msgspec.json.Decoder(ListenFilter).decode


def _read_listen(
    session: SessionId, message: Request, envelope: RequestMeta
) -> ListenRequested | RefusedEnvelope:
    try:
        wanted = _read_filter(value_of(message.params, "notifications") or b"")
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return refused_request(
            "bad_params", f"{LISTEN} needs an object notifications as the specification has it."
        )
    uris = tuple(dict.fromkeys(wanted.resource_subscriptions))
    tasks = tuple(dict.fromkeys(wanted.task_ids))
    if max(len(uris), len(tasks)) > MAX_URIS:
        each = "resourceSubscriptions and as many taskIds"
        return refused_request("bad_params", f"One {LISTEN} can have up to {MAX_URIS} {each}.")
    return ListenRequested(session, message.id, envelope.by, wanted.families, uris, tasks)
