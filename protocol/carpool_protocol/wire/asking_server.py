"""Writes the name of the asking server into an ask, for the agent's user.

Owns two changes of an ask's params: an elicitation's `message` begins with `[SERVER] `, and `_meta` holds
`carpool/server`. An error that sends its agent to URLs holds such params too. MCP 2025-11-25,
client/elicitation, wants clients to show which server requests information, and an agent only knows that
carpool asks. Everything else stays byte for byte. An error with too many parts is not passed on:
`TooManyPartsError`.

Knows nothing of: the agent that is asked, versions of MCP.
"""

from typing import Final

import msgspec
from msgspec import Raw, Struct

from carpool_protocol.ids import RawJson, ServerName
from carpool_protocol.wire.content import (
    TooManyPartsError,
    change_members,
    change_members_strictly,
    elements,
    mentions,
)
from carpool_protocol.wire.json_scan import has_too_many_parts, read_despite_half_pairs
from carpool_protocol.wire.jsonrpc import quote

ELICITATION: Final = "elicitation/create"
META_KEY: Final = "carpool/server"
MAX_IN_ERROR: Final = 100
"""The most elicitations of one error that reach an agent, as many as the supervisor remembers."""
_NOTHING: Final = Raw()


def name_server(method: str, params: RawJson, server: ServerName) -> RawJson:
    """The params with the server's name in front of an elicitation's message. A message that is not text
    stays.

    Example for the server weather: `{"message":"Your name?"}` → `{"message":"[weather] Your name?"}`. Raises
    `TooManyPartsError`.
    """
    if not server or method != ELICITATION:
        return params
    mark = quote(f"[{server}] ")[:-1]

    def named(message: bytes) -> bytes:
        return mark + message[1:] if message[:1] == b'"' else message

    return RawJson(change_members_strictly(params, {"message": named}))


def unreadable_elicitation(server: ServerName) -> RawJson:
    """A form without fields in place of an elicitation that cannot be read, where the agent must get one."""
    text = quote(f"[{server}] The question of this server has too many parts to be shown. Decline it.")
    return RawJson(b'{"message":%b,"requestedSchema":{"type":"object","properties":{}}}' % text)


def meta_server(params: RawJson, server: ServerName) -> RawJson:
    """The params with the server's name in `_meta`. A name that the server itself put there is dropped.
    Raises `TooManyPartsError`.
    """
    if not server or params[:1] != b"{":
        return params
    member = b"%b:%b" % (quote(META_KEY), quote(server))
    found = False

    def with_name(meta: bytes) -> bytes:
        nonlocal found
        rest = change_members_strictly(meta, {META_KEY: None}).strip()
        if rest[:1] != b"{":
            return meta
        found = True
        return _with_member(rest, member)

    changed = change_members_strictly(params, {"_meta": with_name})
    return RawJson(
        changed if found else _with_member(change_members(params, {"_meta": None}), b'"_meta":{%b}' % member)
    )


def name_server_in_error(error: RawJson, server: ServerName) -> RawJson:
    """The error with the server's name in each elicitation of `data.elicitations`. The code is not looked at:
    a number has many spellings, and only an error that sends its agent to URLs (-32042) has this member.
    Raises `TooManyPartsError`: an elicitation without the name must not pass.
    """
    if not server or not (mentions(error, b"elicitations") or mentions(error, b"\\u")):
        return error
    if not _has_elicitations(error):
        return error
    if has_too_many_parts(error):
        raise TooManyPartsError

    def named(params: bytes) -> bytes:
        return name_server(ELICITATION, meta_server(RawJson(params), server), server)

    def all_named(listed: bytes) -> bytes:
        if listed[:1] != b"[":
            return listed
        return b"[%b]" % b",".join(map(named, (elements(listed) or [])[:MAX_IN_ERROR]))

    def in_data(data: bytes) -> bytes:
        return change_members_strictly(data, {"elicitations": all_named})

    return RawJson(change_members_strictly(error, {"data": in_data}))


class _Data(Struct):
    elicitations: Raw = _NOTHING


class _Error(Struct):
    data: Raw = _NOTHING


_read_data = msgspec.json.Decoder(_Data).decode
_read_error = msgspec.json.Decoder(_Error).decode


def _has_elicitations(error: RawJson) -> bool:
    """True if the error may have this member, however many others it has. Also where that cannot be read."""
    try:
        data = bytes(read_despite_half_pairs(_read_error, error).data)
        return bool(data) and bool(bytes(read_despite_half_pairs(_read_data, data).elicitations))
    except msgspec.ValidationError:  # no object
        return False
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return True


def _with_member(whole: bytes, member: bytes) -> bytes:
    inner = whole.strip()[1:-1].strip()
    return b"{%b,%b}" % (inner, member) if inner else b"{%b}" % member
