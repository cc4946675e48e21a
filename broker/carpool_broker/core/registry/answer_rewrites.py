"""Rewrites of a server's result into the form that one agent reads.

Owns the order of the changes: URIs first (only where two servers share one), then what an agent of an older
version does not know. A pure function; most answers never come here (`needs_rewrite`).
"""

from carpool_broker.core.registry.view import View
from carpool_protocol.ids import PoolKey, RawJson
from carpool_protocol.wire.content import rewrite_uris
from carpool_protocol.wire.downgrade import NEWEST, downgrade_result


def needs_rewrite(view: View, key: PoolKey, version: str) -> bool:
    """True if results of this pool may have to be changed for an agent of this version."""
    return version != NEWEST or key in view.rewritten_pools


def rewrite_answer(view: View, key: PoolKey, method: str, version: str, body: RawJson) -> RawJson:
    """Return the result as the agent reads it; the same object if nothing changes. Raises
    `TooManyPartsError`.
    """
    if key in view.rewritten_pools:
        body = rewrite_uris(method, body, lambda uri: view.agent_uri(key, uri))
    return downgrade_result(method, version, body) if version != NEWEST else body
