"""Lines that a carrier repeats at a later broker to rebuild a session.

Owns the additional meaning of such a line (docs/decisions/0019): a subscription was granted before, and
before a listen comes the acknowledgement that its agent received. That acknowledgement is carpool's own line;
the same line from an agent has no meaning. Keeps no state.

Knows nothing of: which sessions may resume, which lines a carrier keeps.
"""

from msgspec.structs import replace

from carpool_broker.core.model.events import ListenResumed, SubscribeRequested
from carpool_broker.era import handshake
from carpool_broker.era.stateless_decode import read_filter
from carpool_broker.era.stateless_encode import ACKNOWLEDGED
from carpool_protocol.ids import RawJson, SessionId
from carpool_protocol.wire.content import value_of
from carpool_protocol.wire.jsonrpc import Notification, decode
from carpool_protocol.wire.stateless import SUBSCRIPTION_ID


def read_acknowledgement(session: SessionId, line: bytes) -> ListenResumed | None:
    """The listen that carpool acknowledged with this line; None: it is another line."""
    if SUBSCRIPTION_ID.encode() not in line:
        return None
    message = decode(line)
    if not isinstance(message, Notification) or message.method != ACKNOWLEDGED:
        return None
    request = value_of(value_of(message.params, "_meta") or b"", SUBSCRIPTION_ID)
    was = read_filter(value_of(message.params, "notifications") or b"")
    if was is None or not request:
        return None
    uris, tasks = tuple(was.resource_subscriptions), tuple(was.task_ids)
    return ListenResumed(session, RawJson(request), was.families, uris, tasks)


def as_resumed(meaning: handshake.LineMeaning) -> handshake.LineMeaning:
    """The meaning of a request that an earlier broker has answered."""
    return replace(meaning, granted=True) if isinstance(meaning, SubscribeRequested) else meaning
