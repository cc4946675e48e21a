"""Lines that made a session what it is at a broker that died, as its carrier says them again.

Owns what such a line means beyond what it meant when it was new (docs/decisions/0019): a subscription was
said yes to, and before a listen comes the acknowledgement that its agent has had of it. That one is a line of
ours; an agent that says one itself means nothing by it. Remembers nothing.

Knows nothing of: who may come back, which lines a carrier keeps.
"""

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from carpool_broker.core.model.events import ListenResumed, SubscribeRequested
from carpool_broker.era import handshake
from carpool_broker.era.stateless_decode import ListenFilter
from carpool_broker.era.stateless_encode import ACKNOWLEDGED
from carpool_protocol.ids import RawJson, SessionId
from carpool_protocol.wire.content import value_of
from carpool_protocol.wire.jsonrpc import Notification, decode
from carpool_protocol.wire.stateless import SUBSCRIPTION_ID


class _Acknowledged(Struct):
    notifications: ListenFilter


_read = msgspec.json.Decoder(_Acknowledged).decode


def read_acknowledgement(session: SessionId, line: bytes) -> ListenResumed | None:
    """What an acknowledgement of ours says; None: the line is none."""
    if SUBSCRIPTION_ID.encode() not in line:
        return None
    message = decode(line)
    if not isinstance(message, Notification) or message.method != ACKNOWLEDGED:
        return None
    request = value_of(value_of(message.params, "_meta") or b"", SUBSCRIPTION_ID)
    try:
        was = _read(message.params).notifications
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    if not request:
        return None
    uris, tasks = tuple(was.resource_subscriptions), tuple(was.task_ids)
    return ListenResumed(session, RawJson(request), was.families, uris, tasks)


def as_resumed(meaning: handshake.LineMeaning) -> handshake.LineMeaning:
    """What a request means that was answered by an earlier broker."""
    return replace(meaning, granted=True) if isinstance(meaning, SubscribeRequested) else meaning
