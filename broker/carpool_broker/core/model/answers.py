"""Which form the answer of a request has: the one place that chooses.

Owns: handshake or stateless, by what the request said of itself; whether names and URIs in a result may have
to be changed for this agent; the errors of ours. On a session that many agents share everything is stateless.

Knows nothing of: how any of it is worded, what is owed.
"""

from typing import Final

from carpool_broker.core.model.capabilities import StatelessAgent
from carpool_broker.core.model.effects import NO_CALL, Reply, ReplyRewritten, ReplyStateless
from carpool_broker.core.model.session import AT_SERVER, OpenCall, Session
from carpool_protocol.faults.faults import TOOLS_CALL, fault, fault_answer
from carpool_protocol.ids import EMPTY_OBJECT, PoolKey, RawJson

RESOURCES_READ: Final = "resources/read"
"""The only method of a call whose result says how long it holds."""


def call_reply(
    open_call: OpenCall,
    *,
    is_error: bool,
    body: RawJson,
    ttl_ms: int = -1,
    public: bool = False,
    task: str = "",
) -> Reply | ReplyRewritten | ReplyStateless:
    """The answer to a call: a server's own, or one of ours. `ttl_ms`, `public`: see `messages.Answered`.
    `task`: it goes on as that.
    """
    session, asked = open_call.session, open_call.asked
    call = open_call.call if open_call.stage in AT_SERVER else NO_CALL  # no record holds what was never sent
    as_tool = asked.method if asked.own and asked.method != TOOLS_CALL and not is_error else ""
    if asked.by is None:
        if as_tool or (open_call.edit and not is_error):
            return ReplyRewritten(
                session.id, asked.id, body, asked.agent_method, session.version, open_call.key, call, as_tool
            )
        return Reply(session.id, asked.id, is_error, body, call)
    reads = asked.agent_method == RESOURCES_READ
    return ReplyStateless(
        session.id,
        asked.id,
        is_error,
        body,
        asked.agent_method,
        uri=asked.name if reads else "",
        ttl_ms=max(ttl_ms, 0) if reads and not open_call.rounds else 0,  # rounds: it must not be cached
        public=public and reads and ttl_ms >= 0 and not open_call.rounds and not session.is_authenticated,
        key=open_call.key if open_call.edit and not is_error else PoolKey(""),
        task="" if is_error else task or open_call.task,
        begins_task=bool(task) and not is_error,
        call=call,
        as_tool=as_tool,
    )


def error_reply(
    session: Session,
    request: RawJson,
    by: StatelessAgent | None,
    slug: str,
    *,
    detail: str = "",
    method: str = "",
) -> Reply | ReplyStateless:
    """An error of ours for a request that is no call yet."""
    is_error, body = fault_answer(fault(slug, detail=detail), "")
    if by is None and not session.shared:
        return Reply(session.id, request, is_error, body)
    return ReplyStateless(session.id, request, is_error, body, method)


def is_cacheable(open_call: OpenCall) -> bool:
    """Whether it is the read of a resource whose answer depends on nothing but the URI: what else its params
    say is between its agent and the server, and what an agent was asked is nobody else's.
    """
    asked = open_call.asked
    return (
        asked.method == RESOURCES_READ
        and not (open_call.rounds or asked.given)
        and len(asked.rest) <= len(EMPTY_OBJECT)
    )
