"""Writes the name of the asking server into an ask, for the agent's user.

Owns two changes of an ask's params: an elicitation's `message` begins with `[SERVER] `, and `_meta` holds
`carpool/server`. MCP 2025-11-25, client/elicitation, wants clients to show which server requests information,
and an agent only knows that carpool asks. Everything else stays byte for byte.

Knows nothing of: the agent that is asked, versions of MCP.
"""

from typing import Final

from carpool_protocol.ids import RawJson, ServerName
from carpool_protocol.wire.content import change_members
from carpool_protocol.wire.jsonrpc import quote

ELICITATION: Final = "elicitation/create"
META_KEY: Final = "carpool/server"


def name_server(method: str, params: RawJson, server: ServerName) -> RawJson:
    """The params with the server's name in front of an elicitation's message. A message that is not text
    stays.

    Example for the server weather: `{"message":"Your name?"}` → `{"message":"[weather] Your name?"}`.
    """
    if not server or method != ELICITATION:
        return params
    mark = quote(f"[{server}] ")[:-1]

    def named(message: bytes) -> bytes:
        return mark + message[1:] if message[:1] == b'"' else message

    return RawJson(change_members(params, {"message": named}))


def meta_server(params: RawJson, server: ServerName) -> RawJson:
    """The params with the server's name in `_meta`. A name that the server itself put there is dropped."""
    if not server or params[:1] != b"{":
        return params
    member = b"%b:%b" % (quote(META_KEY), quote(server))
    found = False

    def with_name(meta: bytes) -> bytes:
        nonlocal found
        rest = change_members(meta, {META_KEY: None}).strip()
        if rest[:1] != b"{":
            return meta
        found = True
        return _with_member(rest, member)

    changed = change_members(params, {"_meta": with_name})
    return RawJson(
        changed if found else _with_member(change_members(params, {"_meta": None}), b'"_meta":{%b}' % member)
    )


def _with_member(whole: bytes, member: bytes) -> bytes:
    inner = whole.strip()[1:-1].strip()
    return b"{%b,%b}" % (inner, member) if inner else b"{%b}" % member
