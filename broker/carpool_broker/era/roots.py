"""The handshake era towards agents: what an agent's answer to `roots/list` says.

Owns which of its roots are taken. Stateless. Source: MCP 2025-11-25, client/roots.
Knows nothing of: who was asked, what roots are for.
"""

from typing import Final
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from carpool_protocol.config.expand import is_usable
from carpool_protocol.ids import RawJson

MAX_ROOTS: Final = 64
MAX_URI_CHARS: Final = 4096


class _Root(Struct):
    uri: str = ""


class _Answer(Struct):
    roots: list[_Root]


_answer = msgspec.json.Decoder(_Answer)


def read_roots(body: RawJson) -> tuple[str, ...] | None:
    """The file URIs of a `ListRootsResult`, in its order; None where it is none. Other URIs are passed over:
    a root is a `file://` (client/roots).
    """
    try:
        said = [root.uri for root in _answer.decode(body).roots]
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return None
    return tuple(dict.fromkeys(uri for uri in said if _is_file(uri)))[:MAX_ROOTS]


def _is_file(uri: str) -> bool:
    if len(uri) > MAX_URI_CHARS or not is_usable(uri):
        return False
    try:
        return urlsplit(uri).scheme == "file"
    except ValueError:
        return False
