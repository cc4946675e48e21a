"""The table of `carpool/…` methods: from the name of a method to its handler.

Owns the lookup of a method, the decoding of its params, and the exception of a refusal. The other files of
this folder register their methods here. Sessions of operators may use all methods. Other sessions may use
only the queries about their own view (`inbound.LOOKS`); any other method is "method not found" to them.

Knows nothing of: the effect of a method, sockets, the form of an error on the wire (`faults`).
"""

from collections.abc import Awaitable, Callable
from typing import TypeVar

import msgspec
from msgspec import Struct

from carpool_protocol.ids import RawJson, SessionId

P = TypeVar("P", bound=Struct)
Handler = Callable[[SessionId, RawJson], object]
"""Returns a value that can be encoded as JSON, or an awaitable of one."""


class ControlError(Exception):
    """The request cannot be served. `slug`: a code of `faults`; `server`: the server it is about."""

    def __init__(self, slug: str, detail: str, server: str = "") -> None:
        super().__init__(detail)
        self.slug = slug
        self.detail = detail
        self.server = server


class Methods:
    """All methods of one broker."""

    def __init__(self) -> None:
        self._handlers: dict[str, Handler] = {}

    def add(self, method: str, params: type[P], handler: Callable[[SessionId, P], object]) -> None:
        """Register `handler` for this method, with params of this type."""
        self._handlers[method] = lambda session, raw: handler(session, _read(raw, params))

    def add_plain(self, method: str, handler: Callable[[SessionId], object]) -> None:
        """Register `handler` for this method without params; params that are sent are ignored."""
        self._handlers[method] = lambda session, _: handler(session)

    async def answer(self, session: SessionId, method: str, params: RawJson) -> RawJson:
        """The result of one request. Raises `ControlError`."""
        handler = self._handlers.get(method)
        if handler is None:
            raise ControlError("unknown_method", "")
        result = handler(session, params)
        return RawJson(msgspec.json.encode(await result if isinstance(result, Awaitable) else result))


def _read(params: RawJson, kind: type[P]) -> P:
    try:
        return msgspec.json.decode(params or b"{}", type=kind)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise ControlError("bad_params", f"{error}.") from None
