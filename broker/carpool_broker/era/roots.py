"""The handshake era towards agents: what an agent's answer to `roots/list` says.

Owns which of its roots are taken. Stateless. Source: MCP 2025-11-25, client/roots.
Knows nothing of: who was asked, what roots are for.
"""

from typing import Final
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from carpool_protocol.config.schema.expand import is_usable
from carpool_protocol.ids import RawJson
from carpool_protocol.link.messages import Root

MAX_ROOTS: Final = 64
MAX_URI_CHARS: Final = 4096
MAX_NAME_CHARS: Final = 256


class _Said(Struct):
    uri: str = ""
    name: str | None = None


class _Answer(Struct):
    roots: list[_Said]


_answer = msgspec.json.Decoder(_Answer)


def read_roots(body: RawJson) -> tuple[Root, ...] | None:
    """The roots of a `ListRootsResult`, in its order; None where it is none. Each URI counts once, and other
    URIs are passed over: a root is a `file://` (client/roots). A name that is too long is left out.
    """
    try:
        said = _answer.decode(body).roots
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return None
    roots: dict[str, Root] = {}
    for each in said:
        if _is_file(each.uri):
            name = each.name or ""
            roots.setdefault(each.uri, Root(each.uri, name if len(name) <= MAX_NAME_CHARS else ""))
    return tuple(roots.values())[:MAX_ROOTS]


def _is_file(uri: str) -> bool:
    if len(uri) > MAX_URI_CHARS or not is_usable(uri):
        return False
    try:
        return urlsplit(uri).scheme == "file"
    except ValueError:
        return False
