"""The stateless era (2026-07-28) towards agents: lines for effects.

Owns the members that every result has in that era besides its own content (`resultType`, the server's name,
how long it is current), errors with another spelling, the asks before a call goes on, and the lines of a
`subscriptions/listen`. Source: MCP 2026-07-28, basic/index ("Result types", "Error codes"), basic/utilities
(mrtr, subscriptions), server/utilities/caching.

Invariants: bytes are cut, never decoded and written again, and most bodies are not even cut. Carpool's
members stand at the end, where they also count for a reader of doubles. Ids are the agent's own, byte for
byte, tagged or not (`exchange_ids`). Knows nothing of: the request, views, sockets.
"""

from typing import Final

import msgspec

from carpool_broker.core.model.effects import (
    AcknowledgeListen,
    AnswerDiscover,
    EndListen,
    ReplyStateless,
    RequireInput,
    SendListChanged,
    SendResourceUpdated,
    SendTaskStatus,
)
from carpool_broker.era.exchange_ids import exchange_of_id, id_as_json
from carpool_broker.era.stateless_decode import DISCOVER, LISTS
from carpool_protocol.faults.fault_answers import fault, fault_answer
from carpool_protocol.faults.kinds import INVALID_PARAMS, RESOURCE_NOT_FOUND
from carpool_protocol.ids import RawJson
from carpool_protocol.wire import stateless
from carpool_protocol.wire.asking_server import name_server, unreadable_elicitation
from carpool_protocol.wire.capabilities import capabilities_of
from carpool_protocol.wire.content import TooManyPartsError, change_members, mentions, value_of
from carpool_protocol.wire.json_scan import key_text, members
from carpool_protocol.wire.jsonrpc import error_body_line, notification_line, quote, result_line

RESOURCES_READ: Final = "resources/read"
CACHEABLE: Final = frozenset({DISCOVER, RESOURCES_READ, *LISTS})
"""Methods with results that must say how long they are current (server/utilities/caching)."""
_OWN_METHODS: Final = frozenset({DISCOVER, *LISTS})
"""Methods with results made here: no server can have put carpool's members into them."""
ACKNOWLEDGED: Final = "notifications/subscriptions/acknowledged"

_OWN_MEMBERS: Final = frozenset({"resultType", "_meta"})
_OWN_CACHE_MEMBERS: Final = _OWN_MEMBERS | {"ttlMs", "cacheScope"}
_INFO: Final = {stateless.SERVER_INFO: None}
_INFO_NAME: Final = stateless.SERVER_INFO.rpartition("/")[2].encode()
_SMALL_BYTES: Final = 16 * 1024
_SUBSCRIPTION: Final = {stateless.SUBSCRIPTION_ID: None}
_INTERNAL: Final = b"-32603"
_INVALID: Final = b"%d" % INVALID_PARAMS
_NOT_FOUND: Final = b"%d" % RESOURCE_NOT_FOUND
_URL_ELICITATION_REQUIRED: Final = b"-32042"
_CLOSE = b"}"[0]
_NO_MEMBER: Final = b" {"


class StatelessEncoder:
    """Writes the lines of one broker."""

    def __init__(self, release: str) -> None:
        info = msgspec.json.encode({"name": "carpool", "title": "carpool", "version": release})
        self._info = b"%b:%b" % (quote(stateless.SERVER_INFO), info)
        self._complete = b'"resultType":"complete","_meta":{%b}}' % self._info
        self._begun = b'"resultType":"task","_meta":{%b}}' % self._info

    # --- answers ---------------------------------------------------------------------------------------

    def reply_line(self, effect: ReplyStateless, body: RawJson | None = None) -> bytes:
        """The line of an answer to a request. `body`: replaces the effect's body."""
        raw_id = id_as_json(effect.id)
        body = effect.body if body is None else body
        if effect.is_error:
            return error_body_line(raw_id, stateless_error(body, effect.uri))
        if body[:1] != b"{" or body[-1] != _CLOSE:  # only results of `tools/call` are repaired before
            return error_body_line(raw_id, fault_answer(fault("bad_answer"), "")[1])
        ours, hints = self._begun if effect.begins_task else self._complete, b""
        if effect.task:
            body = RawJson(change_members(body, {"taskId": lambda _: quote(effect.task)}))
        if effect.method in CACHEABLE:
            scope = b"public" if effect.public else b"private"
            hints = b'"ttlMs":%d,"cacheScope":"%b",' % (max(effect.ttl_ms, 0), scope)
        if effect.method not in _OWN_METHODS and _may_hold_own_members(body, effect.method):
            body, meta = _without_members(body, _OWN_CACHE_MEMBERS if hints else _OWN_MEMBERS)
            if meta[:1] == b"{":
                kind = b"task" if effect.begins_task else b"complete"
                ours = b'"resultType":"%b","_meta":%b}' % (
                    kind,
                    _with_members(_without_info(meta), self._info),
                )
        begin = (b'{"jsonrpc":"2.0","id":', raw_id, b',"result":', memoryview(body)[:-1])  # copied only once
        return b"".join((*begin, b"" if _is_empty(body) else b",", hints, ours, b"}\n"))

    def discover_line(self, effect: AnswerDiscover) -> bytes:
        """The DiscoverResult (server/discover)."""
        capabilities: dict[str, object] = {**capabilities_of(effect.features)}
        if effect.tasks:
            capabilities["extensions"] = {stateless.TASKS: {}}
        result: dict[str, object] = {
            "supportedVersions": stateless.SUPPORTED,
            "capabilities": capabilities,
        }
        if effect.instructions:
            result["instructions"] = effect.instructions
        body = RawJson(msgspec.json.encode(result))
        return self.reply_line(
            ReplyStateless(
                effect.session,
                effect.id,
                is_error=False,
                body=body,
                method=DISCOVER,
                ttl_ms=effect.ttl_ms,
                public=effect.public,
            )
        )

    def input_required_line(self, effect: RequireInput) -> bytes:
        """The `input_required` result (basic/utilities/mrtr).

        Params of an ask have no `_meta` there, and an elicitation has no id of its own in this era.
        """
        inputs: list[bytes] = []
        for wanted in effect.inputs:
            params = (
                change_members(wanted.params, {"_meta": None, "elicitationId": None})
                if wanted.params
                else b""
            )
            try:
                params = name_server(wanted.method, RawJson(params), wanted.server)
            except TooManyPartsError:
                params = unreadable_elicitation(wanted.server)
            member = b',"params":' + params if params not in {b"", b"{}", b"null"} else b""
            inputs.append(b'%b:{"method":%b%b}' % (quote(wanted.key), quote(wanted.method), member))
        return result_line(
            id_as_json(effect.id),
            RawJson(
                b'{"resultType":"input_required","inputRequests":{%b},"requestState":%b,"_meta":{%b}}'
                % (b",".join(inputs), quote(effect.state), self._info)
            ),
        )

    # --- listens ---------------------------------------------------------------------------------------

    def listen_end_line(self, effect: EndListen) -> list[bytes]:
        """The end of a listen. On a shared stream (HTTP) the answer ends it; elsewhere it is also cancelled
        (basic/utilities/cancellation).
        """
        raw_id = id_as_json(effect.id)
        meta = b'"_meta":{%b,%b}' % (_subscription(raw_id), self._info)
        result = result_line(raw_id, RawJson(b'{"resultType":"complete",%b}' % meta))
        if exchange_of_id(effect.id):
            return [result]
        cancel = notification_line("notifications/cancelled", RawJson(b'{"requestId":%b}' % raw_id))
        return [cancel, result]


def _may_hold_own_members(body: bytes, method: str) -> bool:
    """True if a server's result can have a member that only carpool may set.

    Nearly every answer is searched here. A large one is searched only for `_meta`, and only if it has an
    underscore.
    """
    if mentions(body, b"_") and mentions(body, b'"_meta"'):
        return True
    return method == RESOURCES_READ or (len(body) <= _SMALL_BYTES and mentions(body, b'"resultType"'))


def _without_members(body: RawJson, names: frozenset[str]) -> tuple[RawJson, bytes]:
    """A result without these members, and its `_meta` (the last of doubles). A result that cannot be cut
    stays.
    """
    cuts = members(body)
    if cuts is None:
        return body, b""
    meta = b""
    kept: list[bytes] = []
    for cut in cuts:
        name = key_text(body[cut.key : cut.key_end])
        if name == "_meta":
            meta = body[cut.value : cut.value_end]
        if name not in names:
            kept.append(body[cut.key : cut.value_end])
    return body if len(kept) == len(cuts) else RawJson(b"{%b}" % b",".join(kept)), meta


def _without_info(meta: bytes) -> bytes:
    return change_members(meta, _INFO) if mentions(meta, _INFO_NAME) or mentions(meta, b"\\") else meta


def stateless_error(body: RawJson, uri: str) -> RawJson:
    """An error in the form of this era.

    A missing resource has no code of its own any more and should be named (server/resources, "Error
    Handling"); no error sends agents to URLs. `uri`: of a read, where -32602 can hardly mean anything else:
    servers of the handshake era use it too.
    """
    code = value_of(body, "code")
    if code == _URL_ELICITATION_REQUIRED:
        return RawJson(change_members(body, {"code": lambda _: _INTERNAL, "data": None}))
    if code != _NOT_FOUND and not (code == _INVALID and uri):
        return body
    changed = change_members(body, {"code": lambda _: _INVALID})
    if not uri:
        return RawJson(changed)
    data = value_of(changed, "data") or b""
    if code == _INVALID and data[:1] not in {b"", b"{", b"n"}:
        return body  # the server's own data
    kept = change_members(data, {"uri": None}) if data[:1] == b"{" else b"{}"
    return RawJson(
        _with_members(
            change_members(changed, {"data": None}),
            b'"data":%b' % _with_members(kept, b'"uri":' + quote(uri)),
        )
    )


def acknowledged_line(effect: AcknowledgeListen) -> bytes:
    """The line that acknowledges a listen, `notifications/subscriptions/acknowledged`."""
    honoured = [b'"%bListChanged":true' % family.encode() for family in effect.families]
    if effect.uris:
        honoured.append(b'"resourceSubscriptions":[%b]' % b",".join(map(quote, effect.uris)))
    if effect.tasks:
        honoured.append(b'"taskIds":[%b]' % b",".join(map(quote, effect.tasks)))
    params = b'{"_meta":{%b},"notifications":{%b}}' % (
        _subscription(id_as_json(effect.id)),
        b",".join(honoured),
    )
    return notification_line(ACKNOWLEDGED, RawJson(params))


def list_changed_line(effect: SendListChanged) -> bytes:
    """`notifications/…/list_changed` on a listen."""
    params = b'{"_meta":{%b}}' % _subscription(id_as_json(effect.listen))
    return notification_line(f"notifications/{effect.family}/list_changed", RawJson(params))


def resource_updated_line(effect: SendResourceUpdated) -> bytes:
    """`notifications/resources/updated` on a listen, with the URI that this agent knows."""
    meta = value_of(effect.params, "_meta") or b""
    kept = change_members(meta, _SUBSCRIPTION) if meta[:1] == b"{" else b"{}"
    rest = change_members(effect.params, {"_meta": None, "uri": None})
    ours = b'"uri":%b,"_meta":%b' % (
        quote(effect.uri),
        _with_members(kept, _subscription(id_as_json(effect.listen))),
    )
    return notification_line("notifications/resources/updated", RawJson(_with_members(rest, ours)))


def task_status_line(effect: SendTaskStatus, params: RawJson) -> bytes:
    """`notifications/tasks` on a listen, with the id that this agent knows. `params`: rewritten for this
    agent.
    """
    meta = value_of(params, "_meta") or b""
    kept = change_members(meta, _SUBSCRIPTION) if meta[:1] == b"{" else b"{}"
    rest = change_members(params, {"_meta": None, "taskId": None})
    ours = b'"taskId":%b,"_meta":%b' % (
        quote(effect.task),
        _with_members(kept, _subscription(id_as_json(effect.listen))),
    )
    return notification_line("notifications/tasks", RawJson(_with_members(rest, ours)))


def _subscription(raw_id: RawJson) -> bytes:
    return b"%b:%b" % (quote(stateless.SUBSCRIPTION_ID), raw_id)


def _is_empty(raw: bytes) -> bool:
    return raw[-2] in _NO_MEMBER and not raw[1:-1].strip()


def _with_members(raw: bytes, more: bytes) -> bytes:
    """An object with additional members."""
    return b"%b%b%b}" % (raw[:-1], b"" if _is_empty(raw) else b",", more)
