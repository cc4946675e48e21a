"""The form of the answer to a request.

Owns the choice of handshake or stateless era by the request itself, the choice whether a result may need a
rewrite of names and URIs for this agent, and carpool's own errors. On a shared session every answer is
stateless.

Knows nothing of: how an era words an answer, which calls are open.
"""

from typing import Final

from carpool_broker.core.model.capabilities import StatelessAgent
from carpool_broker.core.model.effects import NO_CALL, Reply, ReplyRewritten, ReplyStateless
from carpool_broker.core.model.session import AT_SERVER, OpenCall, Session
from carpool_protocol.faults.fault_answers import TOOLS_CALL, fault, fault_answer
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
    """Return the answer to a call: the server's or carpool's own. `ttl_ms`, `public`: see `CallAnswered`.
    `task`: the call continues as this task.
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
    """Return carpool's own error for a request that is no call yet."""
    is_error, body = fault_answer(fault(slug, detail=detail), "")
    if by is None and not session.shared:
        return Reply(session.id, request, is_error, body)
    return ReplyStateless(session.id, request, is_error, body, method)


def is_cacheable(open_call: OpenCall) -> bool:
    """Tell if the call reads a resource and its answer depends on the URI alone. Other params concern only
    this agent and the server, and so do the answers to asks.
    """
    asked = open_call.asked
    return (
        asked.method == RESOURCES_READ
        and not (open_call.rounds or asked.given)
        and len(asked.rest) <= len(EMPTY_OBJECT)
    )
